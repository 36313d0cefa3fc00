"""Parts of the streams of pydantic-ai models."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    Citation,
    DocumentCitationSource,
    FilePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    ToolCallPart,
    WebCitationSource,
)
from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from rookery.llm.bridge.stream import usage_of
from rookery.llm.complete_answers import generate
from rookery.llm.types import (
    ErrorKind,
    Finish,
    FinishReason,
    GeneratedFile,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    Source,
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
from tests.llm.bridge_rig import (
    PlayedModel,
    asking,
    bridged,
    check,
    drain,
    error_of,
    finish_of,
    text,
    thinking,
    tool,
    whole,
)

COUNTED = UsageUpdate(
    Usage(
        input=10, cache_read=0, cache_write=0, cache_write_1h=0, output=3, reasoning=None, total=13, context_tokens=10
    )
)


async def played(*moves: Any, **options: Any) -> list[StreamPart]:
    """Return the parts of these moves, without usage."""
    parts = await drain(bridged(PlayedModel(list(moves), **options)))
    return [part for part in parts if not isinstance(part, UsageUpdate)]


async def test_text_comes_as_one_block() -> None:
    parts = await drain(bridged(PlayedModel([text("Good "), text("day.")])))

    assert parts == [
        ResponseStarted(None, "played-1", None),
        TextStart("text-1"),
        TextDelta("text-1", "Good "),
        TextDelta("text-1", "day."),
        COUNTED,
        TextEnd("text-1"),
        Finish(FinishReason.STOP, COUNTED.usage),
    ]


async def test_reasoning_ends_with_its_signature() -> None:
    parts = await played(thinking("Hm"), thinking("m."), thinking(signature="proof"), text("Yes."))

    assert parts[1:5] == [
        ReasoningStart("reasoning-1"),
        ReasoningDelta("reasoning-1", "Hm"),
        ReasoningDelta("reasoning-1", "m."),
        ReasoningEnd("reasoning-1", {"provider_name": "played", "signature": "proof"}),
    ]
    assert parts[5:8] == [TextStart("text-2"), TextDelta("text-2", "Yes."), TextEnd("text-2")]


async def test_reasoning_without_text_is_kept_for_its_signature() -> None:
    parts = await played(thinking(signature="hidden"), text("Yes."))

    assert parts[1:3] == [
        ReasoningStart("reasoning-1"),
        ReasoningEnd("reasoning-1", {"provider_name": "played", "signature": "hidden"}),
    ]


async def test_signature_that_comes_late_is_not_lost() -> None:
    parts = await played(thinking("Hm."), text("Yes."), thinking(signature="late"))

    ends = [part for part in parts if isinstance(part, ReasoningEnd)]
    assert [end.meta for end in ends] == [None, {"provider_name": "played", "signature": "late"}]


async def test_reasoning_without_a_signature_has_no_meta() -> None:
    parts = await played(thinking("Hm."), text("Yes."))

    assert ReasoningEnd("reasoning-1") in parts


async def test_tool_call_streams_its_input_and_follows_it() -> None:
    parts = await played(tool("look", '{"path":', call_id="c1"), tool(args='"a"}'), end={"finish_reason": "tool_call"})

    assert parts[1:] == [
        ToolInputStart("c1", "look"),
        ToolInputDelta("c1", '{"path":'),
        ToolInputDelta("c1", '"a"}'),
        ToolInputEnd("c1"),
        ToolCall("c1", "look", '{"path":"a"}'),
        Finish(FinishReason.TOOL_CALLS, COUNTED.usage),
    ]


async def test_calls_that_stream_side_by_side_are_put_together() -> None:
    parts = await played(
        tool("one", '{"a":', call_id="c1", part="1"),
        tool("two", '{"b":', call_id="c2", part="2"),
        tool(args="1}", part="1"),
        tool(args="2}", part="2"),
    )

    calls = [part for part in parts if isinstance(part, ToolCall)]
    assert calls == [ToolCall("c1", "one", '{"a":1}'), ToolCall("c2", "two", '{"b":2}')]


async def test_call_whose_input_is_an_object_is_told_as_json() -> None:
    parts = await played(tool("look", {"path": "a"}, call_id="c1"))

    assert ToolCall("c1", "look", '{"path":"a"}') in parts
    assert ToolInputDelta("c1", '{"path":"a"}') in parts


async def test_call_without_input_has_an_empty_object() -> None:
    parts = await played(tool("look", call_id="c1"))

    assert ToolCall("c1", "look", "{}") in parts


async def test_two_calls_with_one_id_get_two_ids() -> None:
    parts = await played(tool("a", "{}", call_id="call_0", part="1"), tool("b", "{}", call_id="call_0", part="2"))

    assert [part.id for part in parts if isinstance(part, ToolCall)] == ["call_0", "call_0_"]


async def test_call_keeps_what_its_provider_wants_back() -> None:
    part = ToolCallPart(
        "look", '{"a":1}', "c1", provider_name="played", provider_details={"thought_signature": "s", "raw": b"\xff"}
    )

    parts = await played(whole(part, "1"))

    meta = {"provider_name": "played", "details": {"thought_signature": "s", "raw": "_w=="}}
    assert ToolCall("c1", "look", '{"a":1}', meta=meta) in parts


async def test_text_behind_a_call_follows_it() -> None:
    parts = await played(text("Before.", "1"), tool("look", "{}", call_id="c1"), text("After.", "2"))

    kinds = [type(part) for part in parts if isinstance(part, TextEnd | ToolCall)]
    assert kinds == [TextEnd, ToolCall, TextEnd]
    assert finish_of(parts).reason is FinishReason.TOOL_CALLS


async def test_text_that_goes_on_behind_a_call_is_a_block_of_its_own() -> None:
    parts = await played(text("Before."), tool("look", "{}", call_id="c1"), text(" And after."))

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["Before.", " And after."]
    assert [part.id for part in parts if isinstance(part, TextEnd)] == ["text-1", "text-2"]


async def test_tools_of_the_provider_are_told_with_their_results() -> None:
    call = NativeToolCallPart("web_search", {"query": "rooks"}, "s1", provider_name="played", provider_details={"n": 1})
    found = NativeToolReturnPart("web_search", [{"title": "Rook"}], "s1", provider_name="played")

    parts = await played(whole(call, "1"), whole(found, "2"), text("Birds."))

    assert parts[1:6] == [
        ToolInputStart("s1", "web_search", True),
        ToolInputDelta("s1", '{"query":"rooks"}'),
        ToolInputEnd("s1"),
        ToolCall(
            "s1",
            "web_search",
            '{"query":"rooks"}',
            provider_executed=True,
            meta={
                "provider_name": "played",
                "details": {"n": 1},
                "raw": {"args": {"query": "rooks"}, "call_id": "s1", "kind": None},
            },
        ),
        ToolResult(
            "s1",
            "web_search",
            msgspec.Raw(b'[{"title":"Rook"}]'),
            meta={
                "provider_name": "played",
                "raw": {"content": [{"title": "Rook"}], "call_id": "s1", "kind": None},
            },
        ),
    ]
    assert finish_of(parts).reason is FinishReason.STOP


async def test_part_that_is_started_again_replaces_the_first() -> None:
    first = NativeToolCallPart("web_search", None, "s1")
    second = NativeToolCallPart("web_search", {"query": "rooks"}, "s1")

    parts = await played(whole(first, "1"), whole(second, "1"), text("Birds."))

    assert [part.input for part in parts if isinstance(part, ToolCall)] == ['{"query":"rooks"}']
    assert sum(isinstance(part, ToolInputStart) for part in parts) == 1


async def test_failed_tool_of_the_provider_is_an_error_result() -> None:
    failed = NativeToolReturnPart("web_search", "no network", "s1", outcome="failed")

    parts = await played(whole(NativeToolCallPart("web_search", "{}", "s1"), "1"), whole(failed, "2"), text("."))

    result = next(part for part in parts if isinstance(part, ToolResult))
    assert result.is_error
    assert bytes(result.output) == b'{"output":"no network"}'


async def test_generated_file_is_told_with_its_bytes() -> None:
    image = FilePart(BinaryContent(b"\x89PNG", media_type="image/png"))

    parts = await played(whole(image, "1"))

    assert GeneratedFile("file-1", "image/png", b"\x89PNG") in parts


async def test_each_source_is_told_once() -> None:
    cited = [
        Citation([WebCitationSource("https://a.example", title="A"), DocumentCitationSource(title="Plan")]),
        Citation([WebCitationSource("https://a.example", title="A again")]),
    ]

    def cite(manager: Any) -> Any:
        return manager.handle_text_delta(vendor_part_id="text", content="", citations=cited)

    parts = await played(text("Facts."), cite)

    assert [part for part in parts if isinstance(part, Source)] == [
        Source("source-1", "url", "https://a.example", "A"),
        Source("source-2", "document", "", "Plan"),
    ]


# The end


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        (None, FinishReason.OTHER),
        # The reason of models that used only a tool of the provider.
        ("tool_call", FinishReason.STOP),
    ],
)
async def test_finish_reasons(said: str | None, reason: FinishReason) -> None:
    parts = await played(text("Hi."), end={"finish_reason": said})

    assert finish_of(parts).reason is reason


async def test_local_call_makes_the_reason_tool_calls() -> None:
    parts = await played(tool("look", "{}", call_id="c1"), end={"finish_reason": "length"})

    assert finish_of(parts).reason is FinishReason.TOOL_CALLS


async def test_call_that_a_limit_cut_in_two_is_dropped() -> None:
    parts = await played(text("Hi."), tool("look", '{"pa', call_id="c1"), end={"finish_reason": "length"})

    assert not any(isinstance(part, ToolCall) for part in parts)
    assert finish_of(parts).reason is FinishReason.LENGTH


async def test_content_filter_stays_beside_calls_and_says_why() -> None:
    end = {"finish_reason": "content_filter", "provider_details": {"refusal": "Not\nthis."}}

    finish = finish_of(await played(tool("look", "{}", call_id="c1"), end=end))

    assert finish.reason is FinishReason.CONTENT_FILTER
    assert finish.detail == "Not this."


async def test_suspended_answer_is_a_pause() -> None:
    parts = await played(text("Searching."), end={"finish_reason": None, "state": "suspended"})

    assert finish_of(parts).reason is FinishReason.PAUSE


async def test_answer_that_ends_in_an_error_is_retryable() -> None:
    end = {"finish_reason": "error", "provider_details": {"finish_reason": "MALFORMED_FUNCTION_CALL"}}

    error = error_of(await played(text("Hi."), end=end))

    assert (error.kind, error.retryable, error.detail) == (ErrorKind.GENERIC, True, "MALFORMED_FUNCTION_CALL")


@pytest.mark.parametrize("end", [{"finish_reason": None, "provider_details": None}, {"state": "incomplete"}])
async def test_stream_without_an_end_is_truncated(end: dict[str, Any]) -> None:
    parts = await drain(bridged(PlayedModel([text("Half an answ")], end=end)))

    error = error_of(parts)
    assert (error.kind, error.retryable) == (ErrorKind.TIMEOUT, True)
    assert COUNTED in parts


@pytest.mark.parametrize("args", ['{"a":', '{"a":1}'])
async def test_calls_without_an_end_are_truncated_also_when_they_are_whole(args: str) -> None:
    parts = await played(tool("look", args, call_id="c1"), end={"finish_reason": None, "provider_details": None})

    assert error_of(parts).kind is ErrorKind.TIMEOUT


@pytest.mark.parametrize("args", [None, "", '{"a":'])
async def test_limit_strikes_the_last_call_only(args: str | None) -> None:
    parts = await played(
        tool("look", '{"a":1}', call_id="c1"),
        tool("look", args, call_id="c2", part="b"),
        end={"finish_reason": "length"},
    )

    assert [part.id for part in parts if isinstance(part, ToolCall)] == ["c1"]
    assert finish_of(parts).reason is FinishReason.TOOL_CALLS
    assert finish_of(parts).meta == {"stop_reason": "max_tokens"}


async def test_answer_of_nothing_finishes() -> None:
    parts = await played(end={"finish_reason": "content_filter"})

    assert [type(part) for part in parts] == [ResponseStarted, Finish]


# Usage


async def test_cached_tokens_stand_beside_the_input() -> None:
    usage = RequestUsage(
        input_tokens=1000,
        cache_read_tokens=700,
        cache_write_tokens=200,
        cache_write_1h_tokens=50,
        output_tokens=90,
        output_reasoning_tokens=40,
    )

    finish = finish_of(await played(text("Hi."), usage=usage))

    assert finish.usage == Usage(
        input=100,
        cache_read=700,
        cache_write=200,
        cache_write_1h=50,
        output=90,
        reasoning=40,
        total=1090,
        context_tokens=1000,
    )


async def test_nothing_counted_is_not_reported() -> None:
    parts = await drain(bridged(PlayedModel([text("Hi.")], usage=RequestUsage())))

    assert finish_of(parts).usage == Usage()
    assert not any(isinstance(part, UsageUpdate) for part in parts)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_usage_is_never_negative_and_adds_up(input_: int, read: int, write: int, output: int) -> None:
    counted = RequestUsage(
        input_tokens=input_ + read + write, cache_read_tokens=read, cache_write_tokens=write, output_tokens=output
    )
    usage = usage_of(counted)

    if usage != Usage():
        assert (usage.input, usage.cache_read, usage.cache_write, usage.output) == (input_, read, write, output)
        assert usage.total == input_ + read + write + output
    odd = usage_of(RequestUsage(input_tokens=input_, cache_read_tokens=input_ + 1 + read, output_tokens=1))
    assert odd.input == 0


# Any order of events


@st.composite
def some_moves(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """Return moves of a few parts in any order, like those of providers that stream parts in parallel."""
    kinds = st.sampled_from(["text", "thinking", "signature", "tool"])
    move = st.tuples(kinds, st.sampled_from("abc"), st.text("xyz{}", max_size=3))
    return draw(st.lists(move, min_size=1, max_size=25))


def as_moves(told: list[tuple[str, str, str]]) -> list[Any]:
    moves = []
    for place, (kind, part, content) in enumerate(told):
        match kind:
            case "text":
                moves.append(text(content, f"text-{part}"))
            case "thinking":
                moves.append(thinking(content, part=f"thinking-{part}"))
            case "signature":
                moves.append(thinking(signature=content or "s", part=f"thinking-{part}"))
            case "tool":
                pieces = input_pieces(told, part)
                number = sum((k, p) == (kind, part) for k, p, _ in told[:place])
                name = f"tool_{part}" if number == 0 else None
                moves.append(tool(name, pieces[number], call_id=part, part=f"tool-{part}"))
    return moves


def input_pieces(told: list[tuple[str, str, str]], part: str) -> list[str]:
    """Return the input of a call in as many pieces as it has moves."""
    count = sum(kind == "tool" and name == part for kind, name, _ in told)
    whole_input = '{"path":"' + part * count + '"}'
    cuts = [len(whole_input) * number // count for number in range(count + 1)] if count else []
    return [whole_input[start:stop] for start, stop in pairwise(cuts)]


@given(some_moves())
def test_contract_holds_for_events_in_any_order(told: list[tuple[str, str, str]]) -> None:
    parts = asyncio.run(drain(bridged(PlayedModel(as_moves(told)))))

    check(parts)
    shown = "".join(part.text for part in parts if isinstance(part, TextDelta))
    thought = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
    assert shown == "".join(content for kind, _, content in told if kind == "text")
    assert thought == "".join(content for kind, _, content in told if kind == "thinking")
    inputs = {part.id: part.input for part in parts if isinstance(part, ToolCall)}
    assert inputs == {name: "".join(pieces) for name in "abc" if (pieces := input_pieces(told, name))}


# The library's own test models


async def test_function_model_is_drained_to_a_whole_answer() -> None:
    async def answer(messages: Any, info: Any) -> Any:
        yield {0: DeltaThinkingPart(content="Hm.", signature="s")}
        yield {1: DeltaToolCall("look", '{"a":', tool_call_id="c1")}
        yield {1: DeltaToolCall(json_args="1}")}

    response = await generate(bridged(FunctionModel(stream_function=answer)), asking())

    assert response.reasoning == "Hm."
    assert [(call.name, call.input) for call in response.calls] == [("look", '{"a":1}')]
    assert response.reason is FinishReason.TOOL_CALLS
    assert response.usage.output


async def test_test_model_is_drained_to_a_whole_answer() -> None:
    response = await generate(bridged(TestModel(custom_output_text="All is well.")), asking())

    assert response.text == "All is well."
    assert response.reason is FinishReason.STOP
