"""The parts of each event of a Messages stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from rookery.domain.chat.model_prompt import PromptCall
from rookery.llm.anthropic.stream import STOP_REASONS, AnthropicFold
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
from tests.llm.anthropic_rig import (
    Json,
    said,
    text,
)
from tests.wire.difficult_prompts import assistant, user


def event(name: str, **fields: Any) -> Event:
    return Event(name, msgspec.json.encode({"type": name, **fields}))


def folded(events: Sequence[Event]) -> list[StreamPart]:
    fold = AnthropicFold("Anthropic")
    fold.start("req_1")
    return [part for one in events for part in fold.feed(one)]


def block(index: int, start: Json, *deltas: Json) -> list[Event]:
    return [
        event("content_block_start", index=index, content_block=start),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


START = event(
    "message_start", message={"id": "msg_1", "model": "claude-x", "usage": {"input_tokens": 3, "output_tokens": 1}}
)
STOP = event("message_stop")
READ: Json = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}


def ending(reason: str | None = "end_turn", **fields: Any) -> list[Event]:
    return [event("message_delta", delta={"stop_reason": reason, **fields}, usage={"output_tokens": 9}), STOP]


def test_text_is_folded() -> None:
    made = folded([START, *block(0, text(""), {"type": "text_delta", "text": "Hi"}), *ending()])

    first = Usage(input=3, output=1, total=4, context_tokens=3)
    last = Usage(input=3, output=9, total=12, context_tokens=3)
    assert made == [
        ResponseStarted("msg_1", "claude-x", "req_1"),
        UsageUpdate(first),
        TextStart("0"),
        TextDelta("0", "Hi"),
        TextEnd("0"),
        UsageUpdate(last),
        Finish(FinishReason.STOP, last, {"stop_reason": "end_turn"}),
    ]


def test_thinking_is_folded_with_its_whole_signature() -> None:
    made = folded(
        block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "signature_delta", "signature": "ab"},
            {"type": "signature_delta", "signature": "cd"},
        )
    )

    assert made == [ReasoningStart("0"), ReasoningDelta("0", "hm"), ReasoningEnd("0", {"signature": "abcd"})]


def test_redacted_thinking_is_reasoning_without_text() -> None:
    made = folded(block(0, {"type": "redacted_thinking", "data": "zzz"}))

    assert made == [ReasoningStart("0", {"redacted_data": "zzz"}), ReasoningEnd("0", {"redacted_data": "zzz"})]


@pytest.mark.parametrize(
    ("start", "pieces", "expected"),
    [
        ({}, ["", '{"a":', " 1}"], '{"a": 1}'),
        ({}, [""], "{}"),
        ({"a": 1}, [], '{"a":1}'),
        ({}, ['{"a":'], '{"a":'),
    ],
)
def test_input_of_a_call_is_what_the_model_wrote(start: Json, pieces: list[str], expected: str) -> None:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]

    made = folded([*block(0, {**READ, "input": start}, *deltas), *ending("tool_use")])

    shown = [ToolInputDelta("toolu_1", piece) for piece in pieces if piece]
    assert made[:-2] == [
        ToolInputStart("toolu_1", "read"),
        *shown,
        ToolInputEnd("toolu_1"),
        ToolCall("toolu_1", "read", expected),
    ]


def test_search_of_the_provider_is_folded_with_raw_blocks_and_sources() -> None:
    found = {"type": "web_search_result", "url": "https://a.org", "title": "A", "encrypted_content": "x"}
    result_block = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [found, found]}
    citation = {"type": "web_search_result_location", "url": "https://a.org", "title": "A", "cited_text": "a"}
    document = {"type": "char_location", "document_title": "Report", "document_index": 0, "cited_text": "a"}

    made = folded(
        [
            *block(
                0,
                {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
                {"type": "input_json_delta", "partial_json": '{"query":"a"}'},
            ),
            *block(1, result_block),
            *block(
                2,
                text(""),
                {"type": "citations_delta", "citation": citation},
                {"type": "citations_delta", "citation": document},
            ),
        ]
    )

    raw = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "a"}}
    shown = b'[{"type":"web_search_result","url":"https://a.org","title":"A"}'
    assert made == [
        ToolInputStart("srv_1", "web_search", True),
        ToolInputDelta("srv_1", '{"query":"a"}'),
        ToolInputEnd("srv_1"),
        ToolCall("srv_1", "web_search", '{"query":"a"}', True, {"raw": raw}),
        Source("source_1", "url", "https://a.org", "A"),
        ToolResult("srv_1", "web_search", Raw(shown + b"," + shown[1:] + b"]"), False, {"raw": result_block}),
        TextStart("2"),
        Source("source_2", "document", "", "Report"),
        TextEnd("2"),
    ]


def test_search_that_was_cut_off_keeps_its_text_as_input_and_is_not_sent_back() -> None:
    start = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}

    made = folded(block(0, start, {"type": "input_json_delta", "partial_json": '{"que'}))[-1]

    assert isinstance(made, ToolCall)
    assert made.meta == {"raw": {**start, "input": '{"que'}}
    back = PromptCall(made.id, made.name, Raw("{}"), True, made.meta)
    assert said(user("a"), assistant(back, "b", finish_reason="pause"))[1]["content"] == [text("b")]


def test_failed_search_is_an_error_result() -> None:
    failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}

    made = folded(block(0, {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": failed}))

    (only,) = made
    assert isinstance(only, ToolResult)
    assert (only.name, only.is_error, bytes(only.output)) == ("web_search", True, b'{"error":"max_uses_exceeded"}')


def test_unknown_block_is_kept_with_what_its_deltas_add() -> None:
    made = folded(
        block(
            0,
            {"type": "crystal", "content": "a", "seen": [1]},
            {"type": "crystal_delta", "content": "b", "seen": [2], "clear": True},
        )
    )

    raw = {"type": "crystal", "content": "ab", "seen": [1, 2], "clear": True}
    assert made == [ReasoningStart("0"), ReasoningEnd("0", {"raw": raw})]


def test_unknown_events_are_ignored_and_counted() -> None:
    fold = AnthropicFold("Anthropic")

    parts = [*fold.feed(event("aurora", value=1)), *fold.feed(event("ping")), *fold.feed(event("aurora"))]

    assert (parts, fold.unknown) == ([], {"aurora": 2})


def test_unknown_deltas_and_deltas_of_no_block_are_ignored() -> None:
    made = folded(
        [
            event("content_block_delta", index=7, delta={"type": "text_delta", "text": "lost"}),
            *block(0, text(""), {"type": "sparkle_delta", "glow": 1}),
        ]
    )

    assert made == [TextStart("0"), TextEnd("0")]


def test_event_without_a_name_is_told_by_its_type() -> None:
    named = [START, *block(0, text(""), {"type": "text_delta", "text": "Hi"}), *ending()]

    assert folded([Event("", one.data) for one in named]) == folded(named)
    assert folded([Event("", b"[DONE]")]) == []


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("pause_turn", FinishReason.PAUSE),
        ("refusal", FinishReason.CONTENT_FILTER),
        ("sunset", FinishReason.OTHER),
    ],
)
def test_stop_reasons_are_translated(reason: str, expected: FinishReason) -> None:
    last = folded([START, *ending(reason)])[-1]

    assert isinstance(last, Finish)
    assert last.reason is expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", FinishReason.TOOL_CALLS),
        ("pause_turn", FinishReason.TOOL_CALLS),
        ("max_tokens", FinishReason.TOOL_CALLS),
        ("refusal", FinishReason.CONTENT_FILTER),
    ],
)
def test_local_call_decides_the_reason_except_for_refusals(reason: str, expected: FinishReason) -> None:
    called = block(0, READ, {"type": "input_json_delta", "partial_json": '{"a": 1}'})

    last = folded([START, *called, *ending(reason)])[-1]

    assert isinstance(last, Finish)
    assert last.reason is expected


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
@pytest.mark.parametrize("pieces", [(), ("",), ('{"path": "a',), ('{"path"', ": ")])
def test_call_cut_off_in_its_input_or_before_it_is_shown_and_not_made(reason: str, pieces: tuple[str, ...]) -> None:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]

    parts = folded([START, *block(0, text("")), *block(1, READ, *deltas), *ending(reason)])

    assert ToolInputStart("toolu_1", "read") in parts
    assert not any(isinstance(part, ToolCall) for part in parts)
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason is STOP_REASONS[reason]


def test_limit_strikes_the_last_call_only() -> None:
    """A call that is followed by another block is complete, even without input."""
    cut = block(1, {**READ, "id": "toolu_2"}, {"type": "input_json_delta", "partial_json": '{"pa'})

    parts = folded([START, *block(0, READ), *cut, *ending("max_tokens")])

    assert [part for part in parts if isinstance(part, ToolCall)] == [ToolCall("toolu_1", "read", "{}")]
    assert isinstance(parts[-1], Finish)
    assert (parts[-1].reason, parts[-1].meta) == (FinishReason.TOOL_CALLS, {"stop_reason": "max_tokens"})


def test_refusal_says_category_and_explanation() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "This could do harm."}

    last = folded([START, *ending("refusal", stop_details=details)])[-1]

    assert isinstance(last, Finish)
    assert last.meta == {"stop_reason": "refusal", "category": "cyber"}
    assert last.detail == "This could do harm."


def test_usage_of_several_passes_is_billed_from_the_end_and_measured_at_the_start() -> None:
    start = {
        "input_tokens": 2,
        "cache_read_input_tokens": 139956,
        "cache_creation_input_tokens": 7770,
        "cache_creation": {"ephemeral_5m_input_tokens": 7000, "ephemeral_1h_input_tokens": 770},
        "output_tokens": 1,
    }
    end = {
        "input_tokens": 4,
        "cache_read_input_tokens": 287682,
        "cache_creation_input_tokens": 15556,
        "output_tokens": 4996,
        "output_tokens_details": {"thinking_tokens": 100},
        "server_tool_use": {"web_search_requests": 2},
    }

    last = folded(
        [
            event("message_start", message={"usage": start}),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage=end),
            STOP,
        ]
    )[-1]

    assert isinstance(last, Finish)
    assert last.usage == Usage(
        input=4,
        cache_read=287682,
        cache_write=15556,
        cache_write_1h=770,
        output=4996,
        reasoning=100,
        total=4 + 287682 + 15556 + 4996,
        web_searches=2,
        context_tokens=147728,
    )


def test_listed_passes_tell_what_the_last_one_read() -> None:
    passes = [
        {"type": "message", "input_tokens": 5, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 0},
        {"type": "message", "input_tokens": 6, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 1},
        {"type": "compaction", "input_tokens": 999},
    ]

    last = folded([START, event("message_delta", delta={}, usage={"output_tokens": 7, "iterations": passes})])[-1]

    assert isinstance(last, UsageUpdate)
    assert last.usage.context_tokens == 27


def test_events_without_usage_leave_it_unknown() -> None:
    made = folded(
        [event("message_start", message={"id": "m"}), event("message_delta", delta={"stop_reason": "end_turn"}), STOP]
    )

    assert made == [
        ResponseStarted("m", None, "req_1"),
        Finish(FinishReason.STOP, Usage(), {"stop_reason": "end_turn"}),
    ]


def test_block_that_ends_twice_ends_once() -> None:
    made = folded([*block(0, text("Hi")), event("content_block_stop", index=0)])

    assert made == [TextStart("0"), TextDelta("0", "Hi"), TextEnd("0")]


def test_all_zero_usage_is_no_usage() -> None:
    started = folded([event("message_start", message={"usage": {"input_tokens": 0, "output_tokens": 0}})])

    assert started[-1] == UsageUpdate(Usage())


@pytest.mark.parametrize(
    ("code", "kind", "is_retryable"),
    [
        ("overloaded_error", ErrorKind.OVERLOADED, True),
        ("rate_limit_error", ErrorKind.RATE_LIMIT, True),
        ("api_error", ErrorKind.GENERIC, True),
        ("authentication_error", ErrorKind.AUTH, False),
        ("something_new", ErrorKind.GENERIC, False),
    ],
)
def test_error_in_the_stream_goes_through_the_table(code: str, kind: ErrorKind, is_retryable: bool) -> None:
    last = folded([START, event("error", error={"type": code, "message": "No."})])[-1]

    assert isinstance(last, StreamError)
    assert (last.error.kind, last.error.retryable, last.error.detail) == (kind, is_retryable, "No.")
    assert last.error.request_id == "req_1"


WHOLE_STREAM = [
    START,
    event("ping"),
    *block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"}),
    *block(1, text(""), {"type": "text_delta", "text": "Hi"}),
    *block(2, {"type": "tool_use", "id": "t", "name": "read", "input": {}}),
    *ending("tool_use"),
]


@pytest.mark.parametrize("length", range(len(WHOLE_STREAM)))
def test_stream_cut_at_any_event_is_a_retryable_error(length: int) -> None:
    fold = AnthropicFold("Anthropic")

    parts = [part for one in WHOLE_STREAM[:length] for part in fold.feed(one)]
    parts += fold.end()

    terminal = [part for part in parts if isinstance(part, Finish | StreamError)]
    assert len(terminal) == 1
    assert isinstance(parts[-1], StreamError)
    assert (parts[-1].error.kind, parts[-1].error.retryable) == (ErrorKind.TIMEOUT, True)
    assert parts[-1].error.detail == "stream closed before the response completed"


def test_end_without_a_stop_reason_is_a_cut() -> None:
    last = folded([START, STOP])[-1]

    assert isinstance(last, StreamError)
    assert last.error.retryable


def test_open_blocks_are_closed_before_the_end() -> None:
    open_text = event("content_block_start", index=0, content_block=text("Hi"))

    made = folded([START, open_text, *ending()])

    assert made[2:4] == [TextStart("0"), TextDelta("0", "Hi")]
    assert TextEnd("0") in made
    assert isinstance(made[-1], Finish)


@pytest.mark.parametrize(
    "broken",
    [
        Event("content_block_delta", b'{"index": '),
        Event("content_block_delta", b'{"index": "0", "delta": {"type": "text_delta"}}'),
        Event("content_block_start", b'{"index": 0, "content_block": []}'),
        Event("message_delta", b"[]"),
        Event("", b"<html>"),
        Event("message_start", b"\xff"),
    ],
)
def test_event_that_cannot_be_read_ends_the_stream(broken: Event) -> None:
    (only,) = folded([broken])

    assert isinstance(only, StreamError)
    assert (only.error.kind, only.error.retryable) == (ErrorKind.GENERIC, True)


def test_whole_message_is_read_like_a_stream() -> None:
    message = {
        "type": "message",
        "id": "msg_1",
        "model": "claude-x",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {**text("Hi"), "citations": [{"url": "https://a.org", "title": "A"}, None]},
            {"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 9},
    }

    made = list(AnthropicFold("Anthropic").read_document(msgspec.json.encode(message)))

    assert ReasoningEnd("0", {"signature": "s"}) in made
    assert TextDelta("1", "Hi") in made
    assert [part for part in made if isinstance(part, Source)] == [Source("source_1", "url", "https://a.org", "A")]
    assert ToolCall("t", "read", '{"path":"a"}') in made
    assert isinstance(made[-1], Finish)
    assert made[-1].reason is FinishReason.TOOL_CALLS
    assert made[-1].usage == Usage(input=3, output=9, total=12, context_tokens=3)


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', ErrorKind.OVERLOADED),
        (b"{}", ErrorKind.GENERIC),
        (b"nonsense", ErrorKind.GENERIC),
    ],
)
def test_whole_answer_that_is_no_message_is_an_error(document: bytes, kind: ErrorKind) -> None:
    (only,) = AnthropicFold("Anthropic").read_document(document)

    assert isinstance(only, StreamError)
    assert only.error.kind is kind
