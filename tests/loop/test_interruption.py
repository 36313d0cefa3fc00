"""The live parts of a step, saved by an interruption (`domain.chat.interrupted_step`)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID

from msgspec import Raw

from rookery.domain.chat import interrupted_step, parts
from rookery.domain.chat.interrupted_step import LivePart
from rookery.domain.chat.messages import NewMessage, Role
from rookery.domain.chat.open_tool_calls import OpenCall
from rookery.llm.types import (
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    ToolCall,
    ToolInputDelta,
    ToolInputStart,
    ToolResult,
    Usage,
    UsageUpdate,
)
from rookery.loop import model_step, step_rows
from rookery.loop.model_step import StepMeter
from rookery.loop.tool import Attachment, ToolOutput
from rookery.testing import FakeClock
from tests import scripted_tools
from tests.eventually import until
from tests.loop.loop_rig import CONFIG_ID, HELLO, BatchRig, Played, PlayedModel, Shown, call, said, step

AT = datetime(2030, 1, 2, tzinfo=UTC)


async def interrupt(*played: Played) -> tuple[NewMessage, ...]:
    """Return the rows of a step that streams these parts and is interrupted four seconds after its start."""
    clock, shown, meter, reached = FakeClock(), Shown(), StepMeter(), asyncio.Event()
    model = PlayedModel([*played, reached.set, asyncio.Event()])
    task = asyncio.create_task(model_step.generate_assistant(model, HELLO, step(clock, shown, meter=meter)))
    await reached.wait()
    await clock.advance(4)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return kept(shown, meter, clock)


def kept(shown: Shown, meter: StepMeter, clock: FakeClock, *open_calls: OpenCall) -> tuple[NewMessage, ...]:
    return interrupted_step.rows(
        [LivePart(role, part) for role, part in shown.all],
        at=AT,
        model_config_id=CONFIG_ID,
        figures=step_rows.interrupted_figures(meter, monotonic=clock.monotonic(), context_limit=1000),
        committed=open_calls,
    )


async def test_half_a_text_is_kept_with_usage_and_run_time() -> None:
    (row,) = await interrupt(UsageUpdate(Usage(input=12, output=1)), TextDelta("a", "Half a "), TextDelta("a", "sent"))

    assert row.content == (parts.Text("Half a sent"),)
    assert row.figures is not None
    assert (row.figures.input_tokens, row.figures.runtime_ms) == (12, 4000)
    assert (row.figures.finish_reason, row.figures.context_limit) == ("interrupted", 1000)


async def test_thoughts_are_kept_without_a_proof_and_finished_ones_keep_their_times() -> None:
    (row,) = await interrupt(
        ReasoningStart("r", {"signature": "x"}), ReasoningDelta("r", "hm"), ReasoningEnd("r"), *said("So:")
    )

    thought, text = row.content
    assert isinstance(thought, parts.Reasoning)
    assert (thought.text, thought.provider_meta, text) == ("hm", None, parts.Text("So:"))
    assert thought.completed_at == FakeClock().now()


async def test_a_half_written_call_is_dropped_and_a_complete_one_answered() -> None:
    row, result = await interrupt(
        ToolInputStart("c1", "read"),
        ToolInputDelta("c1", '{"path":'),
        ToolInputDelta("c1", '"a"}'),
        ToolInputStart("c2", "read"),
        ToolInputDelta("c2", '{"pa'),
    )

    assert [part.tool_call_id for part in row.content if isinstance(part, parts.ToolCall)] == ["c1"]
    assert result.role is Role.TOOL


async def test_a_call_whose_id_was_replaced_is_one_call() -> None:
    row, result = await interrupt(
        ToolInputStart("", "read"), ToolInputDelta("", "{}"), ToolCall("", "read", "{}"), *said("and")
    )

    (made, _) = row.content
    (answer,) = result.content
    assert isinstance(made, parts.ToolCall)
    assert isinstance(answer, parts.ToolResult)
    assert made.tool_call_id == answer.tool_call_id != ""


async def test_results_of_the_providers_own_tools_stay_with_their_calls() -> None:
    (row,) = await interrupt(
        ToolCall("s1", "web_search", "{}", True), ToolResult("s1", "web_search", Raw(b'{"found":1}')), *said("It")
    )

    assert [type(part) for part in row.content] == [parts.ToolCall, parts.ToolResult, parts.Text]


async def test_nothing_shown_is_nothing_kept() -> None:
    assert await interrupt() == ()


async def test_finished_results_of_a_running_batch_are_kept_with_their_files() -> None:
    file = Attachment(UUID(int=6), "text/plain", "a.txt")
    rig = BatchRig([scripted_tools.giving(ToolOutput({"a": 1}, attachments=(file,))), scripted_tools.hanging()])
    task = rig.start(call("give"), call("hang"))
    await until(lambda: rig.shown.results())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    rows = kept(rig.shown, StepMeter(), rig.clock, OpenCall(1, "call_give", "give"), OpenCall(1, "call_hang", "hang"))

    given, hung = rows
    assert [type(part) for part in given.content] == [parts.ToolResult, parts.File]
    (synthetic,) = hung.content
    assert isinstance(synthetic, parts.ToolResult)
    assert synthetic.is_error
