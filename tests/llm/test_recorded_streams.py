"""Regression tests from recorded streams of real providers."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest
from openai.types.responses.response_stream_event import ResponseStreamEvent

from rookery.domain.chat.model_prompt import PromptText
from rookery.llm import errors, wire_model
from rookery.llm.anthropic.stream import AnthropicFold
from rookery.llm.completions.stream import CompletionsFold
from rookery.llm.completions.wire import CompletionsFormat
from rookery.llm.http import HttpClients
from rookery.llm.responses import event_structs
from rookery.llm.responses.request import _without_sources
from rookery.llm.responses.stream import ResponsesFold
from rookery.llm.types import (
    Capabilities,
    ErrorKind,
    Finish,
    FinishReason,
    ReplayFault,
    ResponseStarted,
    Source,
    StreamError,
    StreamPart,
    TextDelta,
    ToolCall,
    UsageUpdate,
)
from rookery.llm.wire import Event
from rookery.llm.wire_model import WireModel
from rookery.llm.wire_stats import ModelCounters
from tests.llm.model_rig import CALL, ID, drain, model_at, recording
from tests.llm.raw_server import RawRequest, answer, serving

Json = dict[str, Any]


def responses(*given: Json) -> list[StreamPart]:
    fold = ResponsesFold("OpenAI")
    fold.start("req")
    return [part for each in given for part in fold.feed(Event("", msgspec.json.encode(each)))]


def anthropic(*given: Json) -> list[StreamPart]:
    fold = AnthropicFold("Anthropic")
    fold.start("req")
    return [part for each in given for part in fold.feed(Event(each["type"], msgspec.json.encode(each)))]


def completions(*given: Json, name: str = "") -> list[StreamPart]:
    fold = CompletionsFold("Groq")
    fold.start("req")
    parts = [part for each in given for part in fold.feed(Event(name, msgspec.json.encode(each)))]
    return parts if parts and isinstance(parts[-1], StreamError) else [*parts, *fold.feed(Event("", b"[DONE]"))]


# Responses


def test_sources_of_a_web_search_are_not_sent_back() -> None:
    item: Json = {
        "type": "web_search_call",
        "id": "ws_1",
        "action": {"type": "search", "query": "q", "sources": [{"url": "u"}]},
    }

    sent: Json = dict(_without_sources(item))

    assert sent["action"] == {"type": "search", "query": "q"}
    assert item["action"]["sources"]  # the stored item is unchanged
    bare: Json = {"type": "web_search_call", "action": None}
    assert _without_sources(bare) == bare


def test_item_that_the_api_does_not_take_back_is_a_fault_of_the_history() -> None:
    error = errors.classify("OpenAI", 400, text="Unknown parameter: 'input[7].action.sources'.")

    assert error.replay_fault is ReplayFault.UNKNOWN_ITEM
    assert errors.classify("OpenAI", 400, text="Unknown parameter: 'tools[0].x'.").replay_fault is None


def message(item_id: str, text: str) -> Json:
    return {"type": "message", "id": item_id, "content": [{"type": "output_text", "text": text}]}


def call(item_id: str, name: str) -> Json:
    return {
        "type": "function_call",
        "id": item_id,
        "call_id": f"call_{name}",
        "name": name,
        "arguments": "{}",
        "status": "completed",
    }


@pytest.mark.parametrize("ids", [("m1", "f1"), ("changed", "other"), (None, None)])
def test_items_are_matched_by_id_or_type_and_never_by_their_place_in_the_list(ids: tuple[str | None, ...]) -> None:
    """A server numbered its items 0 and 2, and listed two of them at the end."""
    parts = responses(
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_item.done", "output_index": 0, "item": message("m1", "Hello.")},
        {"type": "response.output_item.done", "output_index": 2, "item": call("f1", "run")},
        {
            "type": "response.completed",
            "response": {
                "status": "completed",
                "output": [message("m1", "Hello.") | {"id": ids[0]}, call("f1", "run") | {"id": ids[1]}],
            },
        },
    )

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["Hello."]
    assert [part.name for part in parts if isinstance(part, ToolCall)] == ["run"]
    assert isinstance(parts[-1], Finish)


def test_item_that_only_the_result_has_is_read_beside_those_of_the_stream() -> None:
    parts = responses(
        {"type": "response.output_item.done", "output_index": 1, "item": message("m1", "One.")},
        {
            "type": "response.completed",
            "response": {"status": "completed", "output": [call("f1", "run"), message("m1", "One.")]},
        },
    )

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["One."]
    assert [part.name for part in parts if isinstance(part, ToolCall)] == ["run"]


def test_every_documented_event_is_understood_or_ignored_on_purpose() -> None:
    documented = {
        typing.get_args(kind.model_fields["type"].annotation)[0]
        for kind in typing.get_args(typing.get_args(ResponseStreamEvent)[0])
    }

    assert documented <= event_structs.KNOWN_TYPES | event_structs.IGNORED_TYPES
    assert not event_structs.KNOWN_TYPES & event_structs.IGNORED_TYPES


def test_ignored_events_are_not_counted_as_unknown_and_others_are() -> None:
    fold = ResponsesFold("OpenAI")
    for kind in ("response.web_search_call.searching", "response.mcp_call.failed", "response.from_the_future"):
        assert not fold.feed(Event("", msgspec.json.encode({"type": kind, "sequence_number": 1})))

    assert fold.unknown == {"response.from_the_future": 1}


def test_unknown_event_is_logged_once_for_each_type(caplog: pytest.LogCaptureFixture) -> None:
    counters = ModelCounters()
    with caplog.at_level("WARNING"):
        for _ in range(3):
            counters.unknown_events("responses", {"a.new": 2, "b.new": 1})

    assert [record.getMessage() for record in caplog.records] == ["unknown_event"] * 2
    assert counters.counts().unknown_events == {("responses", "a.new"): 6, ("responses", "b.new"): 3}


# Anthropic


def test_tool_call_inside_of_the_first_event_is_read() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "run", "input": {"a": 1}}
    parts = anthropic(
        {"type": "message_start", "message": {"id": "m", "content": [block], "stop_reason": "tool_use"}},
        {"type": "message_stop"},
    )

    assert [(part.name, part.input) for part in parts if isinstance(part, ToolCall)] == [("run", '{"a":1}')]
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason is FinishReason.TOOL_CALLS


def test_second_message_in_the_middle_ends_the_stream_with_an_error_that_passes() -> None:
    parts = anthropic(
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Half"}},
        {"type": "message_start", "message": {"id": "m2"}},
    )

    assert isinstance(parts[0], ResponseStarted)
    assert isinstance(parts[-1], StreamError)
    assert parts[-1].error.retryable


@pytest.mark.parametrize("content", ["", "x", {}, 3, [3], [None]])
def test_first_event_with_content_of_another_form_is_read_as_before(content: object) -> None:
    parts = anthropic(
        {"type": "message_start", "message": {"id": "m", "content": content}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    )

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["Hello"]
    assert isinstance(parts[-1], Finish)


def test_blocks_that_stand_in_the_first_event_and_follow_it_are_read_once() -> None:
    block = {"type": "text", "text": "Hello"}
    parts = anthropic(
        {"type": "message_start", "message": {"id": "m", "content": [block]}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    )

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["Hello"]


# Chat Completions

FAILED: Json = {
    "error": {
        "message": "Failed to call a function. Please adjust your prompt.",
        "type": "invalid_request_error",
        "code": "tool_use_failed",
        "failed_generation": '<tool-use>{"name": "run", "arguments": {</tool-use>',
    }
}


def test_invalid_tool_call_has_its_own_kind_and_says_what_the_model_wrote() -> None:
    (part,) = completions(FAILED, name="error")

    assert isinstance(part, StreamError)
    assert part.error.kind is ErrorKind.INVALID_TOOL_CALL
    assert part.error.failed_generation == FAILED["error"]["failed_generation"]
    assert "invalid tool call" in part.error.message


async def test_invalid_tool_call_is_asked_for_once_more_with_a_hint() -> None:
    seen: list[RawRequest] = []
    reply = answer(msgspec.json.encode(FAILED), status="400 Bad Request", content_type="application/json")
    clients = HttpClients()
    try:
        async with serving(recording(seen, reply, reply)) as server:
            parts = await drain(model_at(server.url, clients))
    finally:
        await clients.close()

    assert [len(msgspec.json.decode(each.body)["parts"]) for each in seen] == [1, 2]
    assert isinstance(parts[-1], StreamError)
    assert parts[-1].error.kind is ErrorKind.INVALID_TOOL_CALL


async def test_invalid_tool_call_behind_an_empty_first_chunk_is_asked_for_again_too() -> None:
    seen: list[RawRequest] = []
    begun = b'data: {"id":"g","choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    failed = begun + b"event: error\ndata: " + msgspec.json.encode(FAILED) + b"\n\n"
    said = begun + b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    clients = HttpClients()
    try:
        async with serving(recording(seen, answer(failed), answer(said))) as server:
            groq = WireModel(
                CompletionsFormat("m", Capabilities(), provider="Groq"),
                clients.client(server.url),
                provider_id=ID,
                provider_type="openai_compat",
                provider_name="Groq",
                model="m",
                caps=Capabilities(),
                base_url=server.url,
            )
            parts = await drain(groq)
    finally:
        await clients.close()

    assert len(seen) == 2
    assert b"run" in seen[1].body
    assert [type(part) for part in parts].count(ResponseStarted) == 1
    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["Hi"]


def test_hint_shows_the_model_what_it_wrote_behind_the_prompt() -> None:
    hinted = wire_model._with_call_note(CALL, "run(")

    assert hinted.prompt.messages[:-1] == CALL.prompt.messages
    (part,) = hinted.prompt.messages[-1].parts
    assert isinstance(part, PromptText)
    assert "run(" in part.text


def test_usage_of_an_answer_that_fails_behind_its_end_is_kept() -> None:
    parts = completions(
        {"id": "g", "choices": [{"delta": {"content": "Hello"}, "finish_reason": "length"}]},
        {
            "id": "g",
            "choices": [{"delta": {}, "finish_reason": "error"}],
            "error": {"code": "502", "message": "Upstream error"},
            "usage": {"prompt_tokens": 5, "completion_tokens": 7},
        },
    )

    assert [part.usage.output for part in parts if isinstance(part, UsageUpdate)] == [7]
    assert isinstance(parts[-1], StreamError)
    assert (parts[-1].error.kind, parts[-1].error.status) == (ErrorKind.TIMEOUT, 502)


SEARCHED = [
    (
        {
            "choices": [
                {
                    "delta": {
                        "executed_tools": [
                            {
                                "index": 0,
                                "type": "search",
                                "search_results": {"results": [{"url": "https://a", "title": "A"}]},
                            },
                            {"index": 1, "type": "python", "output": "1"},
                        ]
                    }
                }
            ]
        },
        1,
    ),
    (
        {
            "choices": [{"delta": {"content": "x"}}],
            "citations": ["https://a", "https://b", 3, None],
            "search_results": [{"url": "https://a", "title": "A"}, {"no": "url"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "num_search_queries": 2},
        },
        2,
    ),
    (
        {
            "choices": [{"delta": {"annotations": [{"type": "url_citation", "url": "https://a", "title": "A"}]}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "server_tool_use": {"web_search_requests": 3}},
        },
        3,
    ),
    (
        {"choices": [{"delta": {"annotations": [{"url_citation": {"url": "https://a", "title": "A"}}]}}]},
        None,
    ),
]


@pytest.mark.parametrize(("chunk", "searches"), SEARCHED, ids=["groq", "perplexity", "openrouter", "nested"])
def test_results_of_provider_searches_are_sources(chunk: Json, searches: int | None) -> None:
    parts = completions(chunk, chunk, {"choices": [{"delta": {}, "finish_reason": "stop"}]})

    sources = [(part.url, part.title) for part in parts if isinstance(part, Source)]
    assert sources[0] == ("https://a", "A")
    assert len(sources) == len(set(sources)) <= 2
    assert isinstance(parts[-1], Finish)
    assert parts[-1].usage.web_searches == searches


@pytest.mark.parametrize("odd", [3, "text", {"a": 1}, [[]], [None], [{"type": 3, "search_results": 7}], [{"url": 3}]])
def test_odd_sources_are_left_out(odd: object) -> None:
    parts = completions(
        {"choices": [{"delta": {"content": "x", "executed_tools": odd}}], "citations": odd, "search_results": odd},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    )

    assert isinstance(parts[-1], Finish)


def test_closing_chunk_that_repeats_the_whole_answer_adds_nothing() -> None:
    parts = completions(
        {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "Hello"}}]},
        {
            "object": "chat.completion.done",
            "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}],
        },
    )

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["Hello"]
    assert isinstance(parts[-1], Finish)


def test_call_without_a_result_is_a_fault_of_the_history_at_deepseek_too() -> None:
    error = errors.classify("DeepSeek", 400, text="No tool output found for tool call call_1.")

    assert error.replay_fault is ReplayFault.BROKEN_PAIRS
