"""The rows of a step."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Effort, NewMessage, Role, StepFigures, Visibility
from rookery.llm.types import (
    Finish,
    FinishReason,
    ResponseStarted,
    StreamPart,
    ToolCall,
    ToolInputDelta,
    ToolInputStart,
    Usage,
)
from rookery.loop import step_rows
from rookery.loop.model_step import StepMeter
from rookery.loop.tool import ToolSet, ToolSource
from rookery.loop.tool_results import CallName, CallResult, error_result
from tests import scripted_tools
from tests.loop.loop_rig import CONFIG_ID, USAGE, generate, said

AT = datetime(2030, 1, 1, tzinfo=UTC)
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
CALLS = Finish(FinishReason.TOOL_CALLS, USAGE)
TOOLS = ToolSet(
    [
        scripted_tools.echo("read", input_schema=SCHEMA),
        scripted_tools.echo("advisor", exclusive=True),
        scripted_tools.echo("docs__find", input_schema=SCHEMA, source=ToolSource.MCP, server_id=UUID(int=4)),
    ],
    active={"read", "advisor", "docs__find"},
)


async def rows(*played: StreamPart, **fields: Any) -> tuple[NewMessage, ...]:
    outcome = await generate(*played, context_limit=1000)
    return step_rows.assistant_rows(outcome, tools=TOOLS, model_config_id=CONFIG_ID, at=AT, **fields)


def errors(made: tuple[NewMessage, ...]) -> dict[str, str]:
    found = [row.content[0] for row in made if row.role is Role.TOOL]
    return {
        part.tool_call_id: parts.json_value(part.result)["error"]
        for part in found
        if isinstance(part, parts.ToolResult) and isinstance(part.result, Raw) and part.is_error
    }


async def test_an_answer_is_one_row_with_its_figures() -> None:
    usage = Usage(
        input=1, output=2, total=12, reasoning=1, cache_read=4, cache_write=5, cache_write_1h=5, context_tokens=10
    )

    (row,) = await rows(
        ResponseStarted("resp", "m", "req", b"fp"),
        *said("Hello."),
        Finish(FinishReason.STOP, usage),
        cost_micros=0,
        reasoning_effort=Effort.HIGH,
    )

    assert (row.role, row.visibility, row.compressed) == (Role.ASSISTANT, Visibility.BOTH, False)
    assert (row.model_config_id, row.reasoning_effort) == (CONFIG_ID, Effort.HIGH)
    assert row.figures == StepFigures(
        input_tokens=1,
        output_tokens=2,
        total_tokens=12,
        reasoning_tokens=1,
        cache_read_tokens=4,
        cache_write_tokens=5,
        context_tokens=10,
        context_limit=1000,
        cost_micros=0,
        runtime_ms=0,
        finish_reason="stop",
        prefix_fp=b"fp",
        request_id="req",
        response_id="resp",
    )


async def test_nothing_said_is_no_row() -> None:
    assert await rows(Finish(FinishReason.STOP, USAGE)) == ()


async def test_ids_of_a_provider_fit_their_columns_for_any_content() -> None:
    (row,) = await rows(ResponseStarted("r\0" * 500, None, "\ud800"), *said("x"), Finish(FinishReason.STOP, USAGE))

    assert row.figures is not None
    assert row.figures.response_id == ("r\ufffd" * 100)
    assert row.figures.request_id == "\ufffd"


async def test_calls_that_may_run_get_no_result_yet() -> None:
    made = await rows(ToolCall("a", "read", '{"path":"x"}'), ToolCall("b", "unheard_of", ""), CALLS)

    assert [row.role for row in made] == [Role.ASSISTANT]


async def test_malformed_and_ambiguous_calls_are_answered_with_the_step_in_call_order() -> None:
    made = await rows(
        ToolCall("a", "read", '{"path": '),
        ToolCall("b", "read", '{"path":"x"}'),
        ToolCall("c", "read", '{"Path":"x"}'),
        ToolCall("d", "docs__find", "[]"),
        CALLS,
    )

    assert list(errors(made)) == ["a", "c", "d"]
    assert "well-formed JSON object" in errors(made)["a"]
    assert "`Path` is spelled `path`" in errors(made)["c"]


async def test_invalid_calls_that_the_brake_may_hold_stay_open() -> None:
    made = await rows(ToolCall("a", "read", '{"path": '), ToolCall("c", "read", '{"Path":"x"}'), CALLS, left_open={"a"})

    assert list(errors(made)) == ["c"]


async def test_a_call_that_was_cut_off_does_not_stay_open_if_it_could_run() -> None:
    """An answer that ends before the input has no arguments, which reads like an empty object."""
    cut = Finish(FinishReason.LENGTH, USAGE)
    before = await rows(ToolInputStart("a", "read"), cut, left_open={"a"})
    within = await rows(ToolInputStart("a", "read"), ToolInputDelta("a", '{"path": '), cut, left_open={"a"})

    assert (list(errors(before)), list(errors(within))) == (["a"], [])


async def test_keys_of_other_peoples_tools_are_not_judged() -> None:
    made = await rows(ToolCall("a", "docs__find", '{"Path":"x"}'), CALLS)

    assert errors(made) == {}


async def test_a_call_cut_off_by_the_output_limit_is_told_so() -> None:
    made = await rows(ToolCall("a", "read", '{"path":"x'), Finish(FinishReason.LENGTH, USAGE))

    assert "output limit" in errors(made)["a"]


async def test_a_batch_that_breaks_the_exclusive_rule_is_left_to_that_rule_as_a_whole() -> None:
    made = await rows(ToolCall("a", "advisor", "{}"), ToolCall("b", "read", "{broken"), CALLS)
    alone = await rows(ToolCall("a", "advisor", "{broken"), CALLS)

    assert errors(made) == {}
    assert list(errors(alone)) == ["a"]


async def test_a_provider_executed_call_is_nobodys_to_answer() -> None:
    made = await rows(ToolCall("a", "web_search", "{broken", True), *said("x"), CALLS)

    assert errors(made) == {}


def test_results_are_rows_of_their_own_with_their_files_behind_them() -> None:
    result = error_result(CallName("a", "read"), "no", at=AT, max_bytes=1000).result
    file = parts.File("text/plain", file_id=UUID(int=5))

    (row,) = step_rows.tool_rows([CallResult(result=result, files=(file,))], model_config_id=CONFIG_ID)

    assert (row.role, row.content, row.figures) == (Role.TOOL, (result, file), None)


def test_a_step_that_never_began_has_no_figures() -> None:
    assert step_rows.interrupted_figures(StepMeter(), monotonic=5.0, context_limit=9) == StepFigures(context_limit=9)
