"""Streams of Chat Completions servers: all forms of an answer give the same parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from rookery.llm.completions.messages import merge_details
from rookery.llm.completions.stream import CompletionsFold
from rookery.llm.types import (
    ErrorKind,
    Finish,
    FinishReason,
    ProviderError,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    Source,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    Usage,
    UsageUpdate,
)
from rookery.llm.wire import Event
from rookery.testing.fake_completions import Answer, FakeCall, FakeUsage, Style, document, error_event, events
from rookery.testing.fake_server import ScriptedEvent

Json = Any


def as_event(scripted: ScriptedEvent) -> Event:
    assert isinstance(scripted, tuple)
    name, payload = scripted
    if isinstance(payload, bytes):
        return Event(name, payload)
    return Event(name, payload.encode() if isinstance(payload, str) else msgspec.json.encode(payload))


def folded(scripted: Iterable[ScriptedEvent], *, think_tags: bool = False) -> list[StreamPart]:
    """Return all parts of a stream that ends after these events."""
    fold = CompletionsFold("Some Server", think_tags=think_tags)
    fold.start("req_1")
    parts: list[StreamPart] = []
    for event in scripted:
        parts += fold.feed(as_event(event))
        if parts and isinstance(parts[-1], Finish | StreamError):
            return parts
    return [*parts, *fold.end()]


def chunk(delta: Json, reason: str | None = None, **fields: Json) -> ScriptedEvent:
    return "", {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **fields}


def text_of(parts: Iterable[StreamPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextDelta))


def reasoning_of(parts: Iterable[StreamPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, ReasoningDelta))


def calls_of(parts: Iterable[StreamPart]) -> list[ToolCall]:
    return [part for part in parts if isinstance(part, ToolCall)]


def finish_of(parts: list[StreamPart]) -> Finish:
    assert isinstance(parts[-1], Finish), parts[-1]
    return parts[-1]


def error_of(parts: list[StreamPart]) -> ProviderError:
    assert isinstance(parts[-1], StreamError), parts[-1]
    return parts[-1].error


# Streams


def test_stream_of_openai_becomes_these_parts() -> None:
    answer = Answer(
        reasoning="Look first.",
        text="I look.",
        calls=(FakeCall("read_file", '{"a":1}', id="x"), FakeCall("list_chats", "{}", id="y")),
        citations=(("https://example.org", "Example"),),
        usage=FakeUsage(prompt=100, completion=20, cached=60, written=10, reasoning=5),
    )
    usage = Usage(input=30, cache_read=60, cache_write=10, output=20, reasoning=5, total=120, context_tokens=100)
    assert folded(events(answer, Style(), model="m")) == [
        ResponseStarted("chatcmpl-1", "m", "req_1"),
        ReasoningStart("reasoning-0"),
        ReasoningDelta("reasoning-0", "Look fi"),
        ReasoningDelta("reasoning-0", "rst."),
        ReasoningEnd("reasoning-0", {"reasoning_field": "reasoning_content"}),
        TextStart("text-1"),
        TextDelta("text-1", "I look."),
        Source("source-1", "url", "https://example.org", "Example"),
        ToolInputStart("x", "read_file"),
        ToolInputDelta("x", '{"a":1}'),
        ToolInputEnd("x"),
        ToolInputStart("y", "list_chats"),
        ToolInputDelta("y", "{}"),
        UsageUpdate(usage),
        TextEnd("text-1"),
        ToolInputEnd("y"),
        ToolCall("x", "read_file", '{"a":1}'),
        ToolCall("y", "list_chats", "{}"),
        Finish(FinishReason.TOOL_CALLS, usage),
    ]


ANSWER = Answer(
    reasoning="Let me think about it.",
    text="The answer is here: 42.",
    calls=(
        FakeCall("read_file", '{"path": "a b c"}', id="call_0", signature="s"),
        FakeCall("list_chats", '{"deep": {"n": [1, 2]}}', id="call_1"),
    ),
    usage=FakeUsage(prompt=100, completion=20, cached=60),
)

DIALECTS: dict[str, Style] = {
    "openai": Style(),
    "usage in the finish chunk": Style(usage="finish chunk"),
    "usage before an empty finish chunk": Style(usage="before finish"),
    "cumulative usage": Style(usage="cumulative"),
    "usage in the choice": Style(usage="choice"),
    "usage of groq": Style(usage="groq"),
    "usage of deepseek": Style(usage_names="deepseek"),
    "no indexes": Style(indexes="missing"),
    "no indexes, ids on every piece": Style(indexes="missing", ids="every"),
    "no indexes and no ids": Style(indexes="missing", ids="missing"),
    "no indexes, no ids, names on every piece": Style(indexes="missing", ids="missing", names="every"),
    "every index is zero": Style(indexes="zero"),
    "late names": Style(names="late"),
    "names on every piece": Style(names="every", ids="every"),
    "arguments as objects": Style(arguments="object"),
    "no ids": Style(ids="missing"),
    "reasoning": Style(reasoning="reasoning"),
    "reasoning details": Style(reasoning="reasoning_details"),
    "think tags": Style(reasoning="think tags"),
    "think tags, one character a chunk": Style(reasoning="think tags", piece_chars=1),
    "no done": Style(end="eof"),
    "no finish reason": Style(finish="missing"),
}


@pytest.mark.parametrize("style", DIALECTS.values(), ids=DIALECTS.keys())
def test_every_dialect_says_the_same(style: Style) -> None:
    parts = folded(events(ANSWER, style, model="m"), think_tags=style.reasoning == "think tags")

    assert reasoning_of(parts) == ANSWER.reasoning
    assert text_of(parts) == ANSWER.text
    calls = calls_of(parts)
    assert [made.name for made in calls] == ["read_file", "list_chats"]
    assert [msgspec.json.decode(made.input) for made in calls] == [
        msgspec.json.decode(asked.arguments) for asked in ANSWER.calls
    ]
    assert [made.id for made in calls] == ["call_0", "call_1"]
    assert calls[0].meta == {"extra_content": {"google": {"thought_signature": "s"}}}
    finish = finish_of(parts)
    assert finish.reason is FinishReason.TOOL_CALLS
    assert (finish.usage.input, finish.usage.cache_read, finish.usage.output) == (40, 60, 20)
    assert finish.usage.context_tokens == 100
    shown = {made.id: "" for made in calls}
    for part in parts:
        if isinstance(part, ToolInputDelta):
            shown[part.id] += part.json
    assert list(shown.values()) == [made.input for made in calls]


def test_whole_answer_of_a_server_that_ignores_stream_says_the_same() -> None:
    fold = CompletionsFold("Some Server")
    fold.start("req_1")
    parts = list(fold.read_document(msgspec.json.encode(document(replace(ANSWER, citations=(("u", "t"),)), "m"))))

    assert (reasoning_of(parts), text_of(parts)) == (ANSWER.reasoning, ANSWER.text)
    assert [(made.id, made.input) for made in calls_of(parts)] == [(c.id, c.arguments) for c in ANSWER.calls]
    assert finish_of(parts).reason is FinishReason.TOOL_CALLS
    assert finish_of(parts).usage.input == 40


@pytest.mark.parametrize("body", [b"[]", b"{}", b"not json", b'{"choices": []}', b'"text"'])
def test_document_that_is_no_answer_is_an_error_to_try_again(body: bytes) -> None:
    parts = list(CompletionsFold("Some Server").read_document(body))
    assert error_of(parts).retryable
    assert len(parts) == 1


def test_error_envelope_with_status_200_is_an_error() -> None:
    parts = list(
        CompletionsFold("Some Server").read_document(b'{"error": {"message": "No.", "code": "invalid_api_key"}}')
    )
    assert error_of(parts).kind is ErrorKind.AUTH


@pytest.mark.parametrize("end", ["done", "eof"])
def test_stream_cut_at_any_event_is_truncated_until_its_finish_reason(end: Any) -> None:
    answer = Answer(reasoning="Let me think.", text="The answer is 42.")
    scripted = events(answer, Style(usage="before finish", end=end), model="m")
    finish_at = len(scripted) - (1 if end == "done" else 0)
    for count in range(len(scripted) + 1):
        parts = folded(scripted[:count])
        terminal = [part for part in parts if isinstance(part, Finish | StreamError)]
        assert terminal == parts[-1:]
        if count < finish_at:
            assert error_of(parts).retryable
            assert error_of(parts).kind is ErrorKind.TIMEOUT
            assert error_of(parts).request_id == "req_1"
        else:
            assert finish_of(parts).reason is FinishReason.STOP


def test_stream_cut_within_calls_is_truncated_also_behind_a_whole_one() -> None:
    """The first of several calls may be complete when the connection breaks.

    A partial step must not count as a step.
    """
    scripted = events(replace(ANSWER, text="", reasoning=""), Style(finish="missing", end="eof"), model="m")
    for count in range(len(scripted) + 1):
        parts = folded(scripted[:count])
        assert error_of(parts).retryable
        assert calls_of(parts) == []


def test_done_ends_whole_calls_without_a_finish_reason_and_not_half_ones() -> None:
    half = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":'}}]}

    whole = folded(events(ANSWER, Style(finish="missing"), model="m"))

    assert [made.name for made in calls_of(whole)] == ["read_file", "list_chats"]
    assert error_of(folded([chunk(half), ("", "[DONE]")])).kind is ErrorKind.TIMEOUT


def test_usage_is_kept_when_the_last_chunk_has_none() -> None:
    used = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    parts = folded([chunk({"content": "a"}, usage=used), chunk({}, "stop", usage=None), chunk({}, usage=zeros)])
    assert finish_of(parts).usage == Usage(input=7, output=3, total=10, context_tokens=7)


def test_missing_usage_is_not_reported_as_zero() -> None:
    assert finish_of(folded(events(ANSWER, Style(usage="missing"), model="m"))).usage == Usage()


def test_reasoning_that_is_counted_beside_the_completion_becomes_part_of_the_output() -> None:
    used = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 22,
        "completion_tokens_details": {"reasoning_tokens": 7},
    }
    assert finish_of(folded([chunk({"content": "a"}, "stop", usage=used)])).usage.output == 12


@pytest.mark.parametrize(
    ("said", "reason", "detail"),
    [
        ("stop", FinishReason.STOP, None),
        ("length", FinishReason.LENGTH, None),
        ("content_filter", FinishReason.CONTENT_FILTER, None),
        ("insufficient_system_resource", FinishReason.OTHER, "insufficient_system_resource"),
    ],
)
def test_finish_reasons_are_translated(said: str, reason: FinishReason, detail: str | None) -> None:
    finish = finish_of(folded([chunk({"content": "a"}), chunk({}, said)]))
    assert (finish.reason, finish.detail) == (reason, detail)


def test_calls_determine_the_finish_reason_despite_the_servers_own() -> None:
    whole = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]}
    parts = folded([chunk(whole), chunk({}, "stop")])
    assert calls_of(parts) == [ToolCall("a", "f", "{}")]
    assert finish_of(parts).reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize("arguments", ['{"a":', "", None])
def test_call_cut_by_the_output_limit_is_not_made(arguments: str | None, reason: str) -> None:
    half = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": arguments}}]}
    parts = folded([chunk(half), chunk({}, reason)])
    assert calls_of(parts) == []
    assert finish_of(parts).reason is FinishReason(reason)


def test_limit_strikes_the_last_call_only() -> None:
    calls = [{"index": n, "id": f"c{n}", "function": {"name": "f", "arguments": ""}} for n in range(2)]
    parts = folded([chunk({"tool_calls": calls}), chunk({}, "length")])
    assert calls_of(parts) == [ToolCall("c0", "f", "{}")]
    assert finish_of(parts).reason is FinishReason.TOOL_CALLS
    assert finish_of(parts).meta == {"stop_reason": "max_tokens"}


def test_calls_come_in_order_of_their_index() -> None:
    def entry(index: int, text: str, **fields: Json) -> ScriptedEvent:
        return chunk({"tool_calls": [{"index": index, **fields, "function": {"arguments": text, "name": f"f{index}"}}]})

    parts = folded([entry(1, '{"b"', id="b"), entry(0, '{"a":1}', id="a"), entry(1, ":2}"), chunk({}, "tool_calls")])
    assert calls_of(parts) == [ToolCall("a", "f0", '{"a":1}'), ToolCall("b", "f1", '{"b":2}')]


def test_pieces_of_an_index_used_twice_go_to_the_later_call() -> None:
    def entry(call_id: str | None, name: str | None, text: str) -> ScriptedEvent:
        function = {"name": name, "arguments": text}
        return chunk({"tool_calls": [{"index": 0, "id": call_id, "function": function}]})

    parts = folded(
        [
            entry("a", "f", '{"n":'),
            entry(None, None, "1}"),
            entry("b", "g", '{"n":'),
            entry(None, None, "2}"),
            chunk({}, "tool_calls"),
        ]
    )
    assert calls_of(parts) == [ToolCall("a", "f", '{"n":1}'), ToolCall("b", "g", '{"n":2}')]


def test_id_that_two_calls_share_is_given_to_the_first_only() -> None:
    entries = [{"index": index, "id": "a", "function": {"name": "f", "arguments": "{}"}} for index in range(2)]
    parts = folded([chunk({"tool_calls": entries}, "tool_calls")])
    assert [made.id for made in calls_of(parts)] == ["a", "call_1"]


def test_empty_entries_and_legacy_function_calls_are_understood() -> None:
    empty = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "", "arguments": ""}}]})
    parts = folded(
        [
            empty,
            chunk({"function_call": {"name": "f", "arguments": '{"a"'}}),
            chunk({"function_call": {"arguments": ":1}"}}, "function_call"),
        ]
    )
    assert calls_of(parts) == [ToolCall("call_0", "f", '{"a":1}')]


def test_call_that_never_gets_a_name_is_an_error_to_try_again() -> None:
    nameless = {"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{}"}}]}
    parts = folded([chunk(nameless), chunk({}, "tool_calls")])
    assert error_of(parts).retryable


def test_name_in_pieces_is_put_together() -> None:
    first = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read_"}}]}
    second = {"tool_calls": [{"index": 0, "function": {"name": "file", "arguments": "{}"}}]}
    assert calls_of(folded([chunk(first), chunk(second), chunk({}, "tool_calls")]))[0].name == "read_file"


def test_refusal_is_text_that_says_so_and_a_filtered_step() -> None:
    parts = folded(events(Answer(refusal="I cannot help."), Style(), model="m"))
    (end,) = (part for part in parts if isinstance(part, TextEnd))
    assert (text_of(parts), end.refusal) == ("I cannot help.", True)
    assert finish_of(parts).reason is FinishReason.CONTENT_FILTER


def test_text_and_reasoning_close_when_the_other_starts() -> None:
    parts = folded([chunk({"reasoning": "a"}), chunk({"content": "b"}), chunk({"reasoning": "c"}, "stop")])
    kinds = [type(part).__name__ for part in parts[1:-1]]
    assert kinds == [
        *("ReasoningStart", "ReasoningDelta", "ReasoningEnd"),
        *("TextStart", "TextDelta", "TextEnd"),
        *("ReasoningStart", "ReasoningDelta", "ReasoningEnd"),
    ]


def test_reasoning_details_are_put_together_and_late_ones_kept() -> None:
    encrypted = {"type": "reasoning.encrypted", "data": "x", "id": "rs_1"}
    scripted = events(Answer(reasoning="Think about it."), Style(reasoning="reasoning_details"), model="m")
    parts = folded([*scripted[:-3], chunk({"content": "Done."}), chunk({"reasoning_details": [encrypted]}, "stop")])
    first, last = (part.meta for part in parts if isinstance(part, ReasoningEnd))

    assert first == {
        "reasoning_field": "reasoning_details",
        "reasoning_details": [
            {
                "type": "reasoning.text",
                "text": "Think about it.",
                "format": "anthropic-claude-v1",
                "index": 0,
                "signature": "c2ln",
            }
        ],
    }
    assert last == {"reasoning_field": "reasoning_details", "reasoning_details": [encrypted]}
    assert sum(isinstance(part, TextStart) for part in parts) == 1


def test_merging_details_again_changes_nothing() -> None:
    merged = merge_details(
        [
            {"type": "reasoning.text", "text": "a", "index": 0},
            {"type": "reasoning.text", "text": "b", "index": 0},
            {"type": "reasoning.summary", "summary": "c", "index": 1},
            {"type": "reasoning.encrypted", "data": "d", "index": 2},
            {"type": "reasoning.encrypted", "data": "e", "index": 2},
        ]
    )
    assert [item.get("text") or item.get("summary") or item["data"] for item in merged] == ["ab", "c", "d", "e"]
    assert merge_details(merged) == merged


def test_content_as_a_list_is_text_and_thinking() -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Yes."},
    ]
    parts = folded([chunk({"content": content}, "stop")])
    assert (reasoning_of(parts), text_of(parts)) == ("Hm.", "Yes.")


def test_same_source_is_given_once() -> None:
    cited = {"annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}, {"type": "file"}]}
    parts = folded([chunk(cited), chunk(cited, "stop")])
    assert [part for part in parts if isinstance(part, Source)] == [Source("source-1", "url", "u")]


def test_chunk_of_filter_results_alone_starts_nothing() -> None:
    azure: ScriptedEvent = ("", {"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
    parts = folded([azure, chunk({"content": "a"}, "stop")])
    assert parts[0] == ResponseStarted("c1", "m", "req_1")


def test_answers_beside_the_first_are_ignored() -> None:
    other: ScriptedEvent = ("", {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "length"}]})
    parts = folded([chunk({"content": "a"}), other, chunk({}, "stop")])
    assert (text_of(parts), finish_of(parts).reason) == ("a", FinishReason.STOP)


@pytest.mark.parametrize(
    ("event", "kind", "retryable"),
    [
        (error_event("The model is overloaded.", code="overloaded_error"), ErrorKind.OVERLOADED, True),
        (error_event("Upstream failed.", code=502), ErrorKind.TIMEOUT, True),
        (error_event("Slow down.", code="rate_limit_exceeded", named=True), ErrorKind.RATE_LIMIT, True),
        (("", {"error": "This model's maximum context length is 10 tokens."}), ErrorKind.CONTEXT_OVERFLOW, False),
        (("", {"object": "error", "message": "Boom.", "code": 500}), ErrorKind.GENERIC, True),
        (("error", "something broke"), ErrorKind.GENERIC, False),
        (("", "{not json"), ErrorKind.GENERIC, True),
        (("", '{"choices": 7}'), ErrorKind.GENERIC, True),
        (("", b"\xff\xfe".decode("latin-1")), ErrorKind.GENERIC, True),
    ],
)
def test_error_within_a_stream_is_classified(event: ScriptedEvent, kind: ErrorKind, retryable: bool) -> None:
    error = error_of(folded([chunk({"content": "a"}), event]))
    assert (error.kind, error.retryable, error.request_id) == (kind, retryable, "req_1")


def test_done_without_anything_before_it_is_no_answer() -> None:
    assert error_of(folded([("", "[DONE]")])).kind is ErrorKind.TIMEOUT


def test_done_ends_text_without_a_finish_reason() -> None:
    assert finish_of(folded([chunk({"content": "a"}), ("", "[DONE]")])).reason is FinishReason.OTHER


def test_half_a_character_is_mended_and_the_answer_goes_on() -> None:
    halves = [
        chunk({"content": "a"}),
        ("", '{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}'),
        chunk({}, "stop"),
    ]
    assert text_of(folded(halves)) == "a\ufffd"


def test_unclosed_think_tag_is_reasoning_to_the_end() -> None:
    parts = folded([chunk({"content": "<think>Hm. </think"}, "length")], think_tags=True)
    assert (reasoning_of(parts), text_of(parts)) == ("Hm. </think", "")
