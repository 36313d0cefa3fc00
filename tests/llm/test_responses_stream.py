"""The Responses wire: the parts of the events of a stream."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rookery.llm.responses.stream import ResponsesFold
from rookery.llm.types import (
    ErrorKind,
    Finish,
    FinishReason,
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
    ToolResult,
    Usage,
    UsageUpdate,
)
from rookery.llm.wire import Event
from rookery.testing.fake_responses import (
    Ending,
    FakeResponses,
    FunctionCall,
    Output,
    Reasoning,
    Refusal,
    Text,
    say,
)
from rookery.testing.fake_responses import WebSearch as Searched


def fold(*events: dict[str, Any], ends: bool = False) -> list[StreamPart]:
    reader = ResponsesFold("OpenAI")
    reader.start("req_1")
    parts = [part for event in events for part in reader.feed(_event(event))]
    return [*parts, *(reader.end() if ends else ())]


def feed(*outputs: Output, ending: Ending | None = None, piece: int = 100) -> list[StreamPart]:
    """Return the parts of an answer of the fake server, without the start."""
    events = [payload for _, payload in FakeResponses().answer(*outputs, ending=ending, piece=piece)]
    started, *parts = fold(*events)
    assert isinstance(started, ResponseStarted)
    return parts


def _event(payload: dict[str, Any]) -> Event:
    return Event(payload.get("type", ""), msgspec.json.encode(payload))


STARTED = ResponseStarted("resp_1", "gpt-x", "req_1")
CREATED = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "model": "gpt-x"}}
COMPLETED = {"type": "response.completed", "response": {"status": "completed", "output": []}}
USAGE = Usage(
    input=20, cache_read=0, cache_write=0, output=10, reasoning=0, total=30, web_searches=None, context_tokens=20
)


@pytest.mark.parametrize("kind", ["response.created", "response.in_progress", "response.queued"])
def test_start_is_told_once(kind: str) -> None:
    assert fold(CREATED | {"type": kind}, CREATED | {"type": "response.in_progress", "sequence_number": 1}) == [STARTED]


def test_stream_without_a_start_has_one() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"}

    assert fold(delta) == [
        ResponseStarted(None, None, "req_1"),
        TextStart("text-0-0"),
        TextDelta("text-0-0", "Hi"),
    ]


def test_text() -> None:
    assert feed(say("Hello.", phase="final_answer"), piece=4) == [
        TextStart("text-0-0"),
        TextDelta("text-0-0", "Hell"),
        TextDelta("text-0-0", "o."),
        TextEnd("text-0-0", {"item_id": "msg_0002", "phase": "final_answer"}),
        Finish(FinishReason.STOP, USAGE),
    ]


def test_text_that_only_the_end_has() -> None:
    assert feed(Text(parts=("Hello.",), has_deltas=False))[:2] == [
        TextStart("text-0-0"),
        TextDelta("text-0-0", "Hello."),
    ]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_text_missing_from_deltas_is_taken_from_the_last_event_that_has_it(kept: int) -> None:
    events = [payload for _, payload in FakeResponses().answer(Text(parts=("Hello.",), has_deltas=False))]
    ends = [
        event
        for event in events
        if event["type"] in ("response.output_text.done", "response.content_part.done", "response.output_item.done")
    ]

    parts = fold(*(event for event in events if event not in ends or event in ends[-kept:]))

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["Hello."]


def test_texts_of_one_message_end_in_order_with_one_id() -> None:
    parts = feed(say("One", "Two"))

    assert [part for part in parts if isinstance(part, TextEnd)] == [
        TextEnd("text-0-0", {"item_id": "msg_0002"}),
        TextEnd("text-0-1", {"item_id": "msg_0002"}),
    ]


def test_refusal_is_text_and_filters_the_finish() -> None:
    assert feed(Refusal("No.")) == [
        TextStart("text-0-0"),
        TextDelta("text-0-0", "No."),
        TextEnd("text-0-0", {"item_id": "msg_0002", "refusal": True}, refusal=True),
        Finish(FinishReason.CONTENT_FILTER, USAGE),
    ]


def test_refusal_beats_tool_calls() -> None:
    parts = feed(FunctionCall(name="read_file"), Refusal("No."))

    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason is FinishReason.CONTENT_FILTER


def test_reasoning_has_its_proof_from_the_end_of_the_item() -> None:
    assert feed(Reasoning(summaries=("One.", "Two.")), say("x"))[:5] == [
        ReasoningStart("reasoning-0"),
        ReasoningDelta("reasoning-0", "One."),
        ReasoningDelta("reasoning-0", "\n\n"),
        ReasoningDelta("reasoning-0", "Two."),
        ReasoningEnd(
            "reasoning-0",
            {
                "item_id": "rs_0002",
                "encrypted_content": "sealed-rs_0002",
                "summary": [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}],
            },
        ),
    ]


def test_summary_that_was_not_streamed_comes_from_the_end_of_the_item() -> None:
    events = [payload for _, payload in FakeResponses().answer(Reasoning(summaries=("One.", "Two.")))]

    parts = fold(*(event for event in events if "summary" not in event["type"]))

    assert "".join(part.text for part in parts if isinstance(part, ReasoningDelta)) == "One.\n\nTwo."


def test_raw_reasoning_text_is_reasoning() -> None:
    assert feed(Reasoning(text="Hm."))[:3] == [
        ReasoningStart("reasoning-0"),
        ReasoningDelta("reasoning-0", "Hm."),
        ReasoningEnd("reasoning-0", {"item_id": "rs_0002", "encrypted_content": "sealed-rs_0002"}),
    ]


def test_reasoning_without_text_still_has_its_proof() -> None:
    start, end, *_ = feed(Reasoning(), say("x"))

    assert start == ReasoningStart("reasoning-0")
    assert end == ReasoningEnd("reasoning-0", {"item_id": "rs_0002", "encrypted_content": "sealed-rs_0002"})


def test_item_after_unproven_reasoning_is_stored_without_its_id() -> None:
    parts = feed(Reasoning(is_encrypted=False), say("x", phase="commentary"), FunctionCall(name="read_file"))

    (end,) = (part for part in parts if isinstance(part, TextEnd))
    (call,) = (part for part in parts if isinstance(part, ToolCall))
    assert (end.meta, call.meta) == ({"phase": "commentary"}, None)


def test_calls_are_told_apart_by_their_place() -> None:
    calls = (FunctionCall(name="add", arguments='{"a":1}'), FunctionCall(name="read_file", arguments="", call_id="c"))

    assert feed(*calls, piece=4) == [
        ToolInputStart("call_0003", "add"),
        ToolInputDelta("call_0003", '{"a"'),
        ToolInputDelta("call_0003", ":1}"),
        ToolInputEnd("call_0003"),
        ToolCall("call_0003", "add", '{"a":1}', meta={"item_id": "fc_0002"}),
        ToolInputStart("c", "read_file"),
        ToolInputEnd("c"),
        ToolCall("c", "read_file", "{}", meta={"item_id": "fc_0004"}),
        Finish(FinishReason.TOOL_CALLS, USAGE),
    ]


def test_call_cut_off_by_the_limit_is_not_a_call() -> None:
    cut = Ending(incomplete="max_output_tokens")

    parts = feed(FunctionCall(name="add", arguments='{"a":'), ending=cut)

    assert not any(isinstance(part, ToolCall) for part in parts)
    assert parts[-1] == Finish(FinishReason.LENGTH, USAGE, detail="max_output_tokens")


def test_web_search_is_a_call_and_its_result() -> None:
    start, end, call, result, *rest = feed(Searched(query="rooks", sources=("https://example.org",)))
    raw = {
        "id": "ws_0002",
        "type": "web_search_call",
        "status": "completed",
        "action": {
            "type": "search",
            "query": "rooks",
            "queries": ["rooks"],
            "sources": [{"type": "url", "url": "https://example.org"}],
        },
    }

    assert (start, end) == (
        ToolInputStart("ws_0002", "web_search", provider_executed=True),
        ToolInputEnd("ws_0002"),
    )
    assert isinstance(call, ToolCall)
    assert (call.id, call.name, call.provider_executed) == ("ws_0002", "web_search", True)
    assert msgspec.json.decode(call.input) == raw["action"]
    assert call.meta == {"item_id": "ws_0002", "raw": raw}
    assert isinstance(result, ToolResult)
    assert (msgspec.json.decode(result.output), result.is_error) == (raw, False)
    assert rest == [Finish(FinishReason.STOP, msgspec.structs.replace(USAGE, web_searches=1))]


def test_item_of_an_unknown_kind_is_kept_whole() -> None:
    item = {"type": "tool_search_call", "id": "ts_1", "arguments": {"q": 1}, "content": 7}

    parts = fold(
        CREATED,
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    )

    assert parts[1:4] == [
        ToolInputStart("ts_1", "tool_search_call", provider_executed=True),
        ToolInputEnd("ts_1"),
        ToolCall("ts_1", "tool_search_call", "{}", provider_executed=True, meta={"item_id": "ts_1", "raw": item}),
    ]


def test_citations_are_sources_once_each() -> None:
    cited = (("https://a.example", "A"), ("https://b.example", "B"), ("https://a.example", "A again"))

    parts = feed(Text(parts=("x",), sources=cited))

    assert [part for part in parts if isinstance(part, Source)] == [
        Source("source-1", "url", "https://a.example", "A"),
        Source("source-2", "url", "https://b.example", "B"),
    ]


def test_cited_file_is_a_document() -> None:
    annotation = {"type": "file_citation", "file_id": "file_1", "filename": "a.pdf", "index": 0}

    *_, source = fold(CREATED, {"type": "response.output_text.annotation.added", "annotation": annotation})

    assert source == Source("source-1", "document", "file_1", "a.pdf")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("max_output_tokens", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("steered", FinishReason.OTHER),
    ],
)
def test_incomplete_response_says_why(reason: str, finish: FinishReason) -> None:
    assert feed(say("x"), ending=Ending(incomplete=reason))[-1] == Finish(finish, USAGE, detail=reason)


def test_tool_calls_beat_the_limit() -> None:
    parts = feed(FunctionCall(name="add"), say("x"), ending=Ending(incomplete="max_output_tokens"))

    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason is FinishReason.TOOL_CALLS


def test_response_without_item_events_is_read_from_its_end() -> None:
    events = [payload for _, payload in FakeResponses().answer(Reasoning(summaries=("Hm.",)), say("Hi."))]

    parts = fold(events[0], events[-1])

    assert parts == fold(*events)
    assert "".join(part.text for part in parts if isinstance(part, TextDelta)) == "Hi."


def test_blocks_that_were_never_closed_end_before_the_finish() -> None:
    events = [payload for _, payload in FakeResponses().answer(Reasoning(summaries=("Hm.",)), say("Hi."))]
    opened = [event for event in events if event["type"] != "response.output_item.done"][:-1]

    parts = fold(*opened, COMPLETED)

    assert parts[-3:-1] == [ReasoningEnd("reasoning-0"), TextEnd("text-1-0")]
    assert isinstance(parts[-1], Finish)


# Usage


def usage_of(**reported: Any) -> Usage:
    *_, finish = fold(CREATED, {"type": "response.completed", "response": {"status": "completed"} | reported})
    assert isinstance(finish, Finish)
    return finish.usage


def test_usage_counts_cached_tokens_apart() -> None:
    usage = usage_of(
        usage={
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
            "output_tokens": 50,
            "output_tokens_details": {"reasoning_tokens": 40},
            "total_tokens": 150,
        }
    )

    assert usage == Usage(
        input=30, cache_read=60, cache_write=10, output=50, reasoning=40, total=150, context_tokens=100
    )


def test_usage_is_never_negative_and_needs_no_details() -> None:
    assert usage_of(usage={"input_tokens": 5, "input_tokens_details": {"cached_tokens": 9}}).input == 0
    assert usage_of(usage={"input_tokens": 5, "output_tokens": 2}) == Usage(input=5, output=2, context_tokens=5)


@pytest.mark.parametrize("reported", [None, {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}])
def test_no_usage_is_not_zero_usage(reported: Any) -> None:
    assert usage_of(usage=reported) == Usage()


def test_reported_searches_win_over_counted_ones() -> None:
    assert usage_of(tool_usage={"web_search": {"num_requests": 3}}).web_searches == 3


# Errors


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("server_error", ErrorKind.GENERIC, True),
        ("rate_limit_exceeded", ErrorKind.RATE_LIMIT, True),
        ("vector_store_timeout", ErrorKind.TIMEOUT, True),
        ("bio_policy", ErrorKind.CONTENT_FILTER, False),
        ("misalignment_policy_violation", ErrorKind.CONTENT_FILTER, False),
        ("image_content_policy_violation", ErrorKind.CONTENT_FILTER, False),
        ("invalid_prompt", ErrorKind.CONFIG, False),
        ("invalid_image_url", ErrorKind.CONFIG, False),
        ("image_too_large", ErrorKind.CONFIG, False),
        ("empty_image_file", ErrorKind.CONFIG, False),
        ("context_length_exceeded", ErrorKind.CONTEXT_OVERFLOW, False),
        ("something_new", ErrorKind.GENERIC, False),
    ],
)
@pytest.mark.parametrize("form", ["failed", "flat", "nested"])
def test_failure_is_told_by_its_code(form: str, code: str, kind: ErrorKind, retryable: bool) -> None:
    said = {"code": code, "message": "It went wrong."}
    forms: dict[str, dict[str, Any]] = {
        "failed": {"type": "response.failed", "response": {"status": "failed", "error": said}},
        "flat": {"type": "error", **said, "param": None, "sequence_number": 0},
        "nested": {"type": "error", "error": said | {"type": "some_error"}},
    }

    *_, part = fold(CREATED, forms[form])

    assert isinstance(part, StreamError)
    error = part.error
    assert (error.kind, error.retryable, error.code) == (kind, retryable, code)
    assert (error.detail, error.request_id, error.status) == ("It went wrong.", "req_1", None)


def test_failed_response_still_reports_its_usage() -> None:
    response = {"error": {"code": "server_error", "message": "x"}, "usage": {"input_tokens": 7, "output_tokens": 1}}

    parts = fold(CREATED, {"type": "response.failed", "response": response})

    assert parts[1] == UsageUpdate(Usage(input=7, output=1, context_tokens=7))
    assert isinstance(parts[2], StreamError)


def test_first_event_that_is_an_error_is_the_only_part() -> None:
    (part,) = fold({"type": "error", "code": "server_error", "message": "x", "sequence_number": 0})

    assert isinstance(part, StreamError)


SCENARIOS: list[tuple[Output, ...]] = [
    (say("Hello."),),
    (Reasoning(summaries=("One.",)), say("x", phase="commentary"), FunctionCall(name="add", arguments='{"a":1}')),
    (Reasoning(), Searched(query="rooks"), Refusal("No.")),
]


@pytest.mark.parametrize("outputs", SCENARIOS, ids=["text", "call", "search"])
def test_stream_cut_at_any_event_is_a_retryable_error(outputs: tuple[Output, ...]) -> None:
    events = [payload for _, payload in FakeResponses().answer(*outputs)]

    for length in range(len(events)):
        *before, last = fold(*events[:length], ends=True)
        assert isinstance(last, StreamError)
        assert (last.error.kind, last.error.retryable) == (ErrorKind.TIMEOUT, True)
        assert not any(isinstance(part, Finish | StreamError) for part in before)
    assert isinstance(fold(*events)[-1], Finish)


def test_event_with_a_number_that_does_not_grow_is_skipped() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0}

    parts = fold(
        CREATED,
        delta | {"sequence_number": 3, "delta": "a"},
        delta | {"sequence_number": 3, "delta": "again"},
        delta | {"sequence_number": 2, "delta": "late"},
        delta | {"sequence_number": 9, "delta": "b"},
        delta | {"delta": "c"},
    )

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["a", "b", "c"]


def test_events_of_an_item_that_is_over_change_nothing() -> None:
    events = [
        {key: value for key, value in payload.items() if key != "sequence_number"}
        for _, payload in FakeResponses().answer(Reasoning(summaries=("Hm.",)), say("Hi."), FunctionCall(name="add"))
    ]
    *said, completed = events

    assert fold(*said, *said, completed) == fold(*said, completed)


def test_unknown_events_are_counted_and_ignored() -> None:
    reader = ResponsesFold("OpenAI")

    assert list(reader.feed(Event("", b'{"type":"response.shiny","delta":7}'))) == []
    assert list(reader.feed(Event("", b"[DONE]"))) == []
    assert reader.unknown == {"response.shiny": 1}


@pytest.mark.parametrize(
    "data", [b"{broken", b'"text"', b'{"type":"response.output_text.delta","delta":7}', b"\xff\xfe", b""]
)
def test_unreadable_event_is_a_retryable_error(data: bytes) -> None:
    (part,) = ResponsesFold("OpenAI").feed(Event("", data))

    assert isinstance(part, StreamError)
    assert (part.error.kind, part.error.retryable) == (ErrorKind.GENERIC, True)


def test_item_nested_beyond_reason_is_a_retryable_error() -> None:
    item = b'{"type":"shiny","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    *_, part = ResponsesFold("OpenAI").feed(Event("", b'{"type":"response.output_item.done","item":' + item + b"}"))

    assert isinstance(part, StreamError)
    assert part.error.retryable


def test_broken_item_is_a_retryable_error() -> None:
    *_, part = fold(CREATED, {"type": "response.output_item.done", "output_index": 0, "item": {"type": 7}})

    assert isinstance(part, StreamError)
    assert part.error.retryable


def test_error_document_instead_of_a_stream_is_an_error() -> None:
    (part,) = ResponsesFold("OpenAI").read_document(b'{"error":{"message":"Too many.","code":"rate_limit_exceeded"}}')

    assert isinstance(part, StreamError)
    assert part.error.kind is ErrorKind.RATE_LIMIT


@pytest.mark.parametrize("body", [b"[]", b"{broken", b'{"output":[{"type":7}]}'])
def test_document_that_cannot_be_read_is_an_error(body: bytes) -> None:
    *_, part = ResponsesFold("OpenAI").read_document(body)

    assert isinstance(part, StreamError)
    assert part.error.retryable
