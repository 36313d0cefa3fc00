"""Calls that end early: deadlines, cancellations, crashes and replays."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from uuid import UUID, uuid5

import pytest

from rookery.domain.chat import open_tool_calls, parts
from rookery.domain.chat.messages import ChatId
from rookery.loop.config import LoopConfig
from rookery.loop.tool import (
    Cancellation,
    CancelReason,
    LedgerRun,
    LedgerState,
    Replay,
    ToolCall,
    ToolContext,
    ToolOutput,
)
from rookery.loop.tool_batch import OUTCOME_UNKNOWN
from tests import scripted_tools
from tests.eventually import until
from tests.loop.loop_rig import CHAT_ID, BatchRig, call, value
from tests.scripted_tools import MemoryLedger, ScriptedTool

# Deadlines


async def test_a_tool_that_hangs_is_stopped_at_the_default_deadline_and_told_so() -> None:
    rig = BatchRig([scripted_tools.hanging(), scripted_tools.echo()])
    task = rig.start(call("hang"), call("echo"))

    await rig.clock.until_waiting("tool")
    await rig.clock.advance(599)
    assert not task.done()
    await rig.clock.advance(1)
    late, fine = await task

    assert value(late) == {"error": "hang did not finish within 10 min and was stopped."}
    assert not fine.is_error
    assert rig.clock.waiting() == []


async def test_a_declared_deadline_counts_within_the_maximum() -> None:
    rig = BatchRig(
        [scripted_tools.hanging(deadline_seconds=3600), scripted_tools.hanging("endless", deadline_seconds=10**9)]
    )
    task = rig.start(call("hang"), call("endless"))

    await rig.clock.until_waiting("tool", count=2)
    assert [timer.due for timer in rig.clock.waiting("tool")] == [3600, 4 * 3600]
    await rig.clock.advance(4 * 3600)
    first, second = await task

    assert "within 1 h" in value(first)["error"]
    assert "within 4 h" in value(second)["error"]


async def test_a_call_may_ask_for_the_time_it_needs() -> None:
    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        ctx.set_deadline(3600)
        await ctx.clock.sleep(2400, "tool-command")
        return ToolOutput("done")

    rig = BatchRig([ScriptedTool("execute", behave)])
    task = rig.start(call("execute"))

    await rig.clock.until_waiting("tool-command")
    assert rig.progress == [600, 3600]
    await rig.clock.advance(2400)
    (done,) = await task

    assert value(done) == {"output": "done"}
    assert rig.progress == [600, 3600, None]


async def test_no_call_gets_more_time_than_the_maximum() -> None:
    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        await ctx.clock.sleep(100, "tool-work")
        ctx.set_deadline(10**6)
        return ToolOutput({"deadline": ctx.deadline})

    rig = BatchRig([ScriptedTool("greedy", behave)])
    task = rig.start(call("greedy"))
    await rig.clock.until_waiting("tool-work")
    await rig.clock.advance(100)

    assert value((await task)[0]) == {"deadline": 4 * 3600}


async def test_progress_names_the_latest_deadline_of_those_that_run() -> None:
    rig = BatchRig(
        [scripted_tools.slow(5, "short", deadline_seconds=10), scripted_tools.slow(8, "long", deadline_seconds=1000)]
    )
    task = rig.start(call("short"), call("long"))

    await rig.clock.advance(8)
    await task

    assert rig.progress == [10, 1000, 1000, None]


async def test_a_tool_that_ends_as_its_time_is_up_keeps_its_result() -> None:
    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        ctx.set_deadline(0)
        return ToolOutput("just in time")

    (done,) = await BatchRig([ScriptedTool("close", behave)]).run(call("close"))

    assert value(done) == {"output": "just in time"}


async def test_a_tool_that_fails_while_it_is_stopped_is_late_not_broken() -> None:
    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("cannot clean up")

    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    rig = BatchRig([ScriptedTool("messy", behave, deadline_seconds=60)])
    task = rig.start(call("messy"))
    await rig.clock.until_waiting("tool")
    await rig.clock.advance(60)

    assert "within 1 min" in value((await task)[0])["error"]
    # The error was retrieved, so asyncio does not log it.
    del task
    gc.collect()
    assert complaints == []


async def test_a_tool_that_ignores_its_cancellation_does_not_hold_up_the_batch() -> None:
    let_go = asyncio.Event()
    rig = BatchRig([scripted_tools.deaf(let_go, deadline_seconds=60), scripted_tools.echo()])
    task = rig.start(call("deaf"), call("echo"))

    await rig.clock.until_waiting("tool")
    await rig.clock.advance(60)
    await rig.clock.fire("tool-cleanup")
    deaf, fine = await task

    assert "was stopped" in value(deaf)["error"]
    assert not fine.is_error
    assert len(rig.unfinished_tools) == 1
    let_go.set()
    await until(lambda: len(rig.unfinished_tools) == 0)


# Cancellation


async def test_a_cancellation_inside_a_tool_is_the_result_of_this_tool_only() -> None:
    rig = BatchRig([scripted_tools.failing(asyncio.CancelledError()), scripted_tools.echo()])

    cancelled, fine = await rig.run(call("fail"), call("echo"))

    assert "was cancelled before it finished" in value(cancelled)["error"]
    assert not fine.is_error


async def test_a_tool_that_cancels_itself_fails_alone() -> None:
    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        raise AssertionError("cancelled before")

    rig = BatchRig([ScriptedTool("odd", behave), scripted_tools.echo()])
    cancelled, fine = await rig.run(call("odd"), call("echo"))

    assert "was cancelled" in value(cancelled)["error"]
    assert not fine.is_error


async def test_cancelling_the_batch_cancels_its_tools_which_can_read_why() -> None:
    reasons: list[CancelReason | None] = []

    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancel_reason)
        return ToolOutput()

    cancellation = Cancellation()
    tool = ScriptedTool("wait", behave)
    rig = BatchRig([tool, scripted_tools.echo()])
    task = rig.start(call("wait"), call("echo"), cancellation=cancellation)
    await tool.started.wait()
    await until(lambda: rig.shown.results())

    cancellation.reason = CancelReason.USER
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert reasons == [CancelReason.USER]
    # Finished results were published, and an interruption saves them.
    assert [part.tool_name for part in rig.shown.results()] == ["echo"]
    assert rig.clock.waiting() == []


@pytest.mark.parametrize(("reason", "shown"), [(CancelReason.USER, ["slow"]), (CancelReason.SHUTDOWN, [])])
async def test_output_that_a_stopped_tool_still_returns_is_published(reason: CancelReason, shown: list[str]) -> None:
    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return ToolOutput({"output": "half"}, is_error=True)
        raise AssertionError

    cancellation = Cancellation()
    tool = ScriptedTool("slow", behave)
    rig = BatchRig([tool])
    task = rig.start(call("slow"), cancellation=cancellation)
    await tool.started.wait()

    cancellation.reason = reason
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [part.tool_name for part in rig.shown.results()] == shown


async def test_calls_that_wait_for_their_turn_never_start_after_a_cancellation() -> None:
    tool = scripted_tools.hanging()
    rig = BatchRig([tool])
    task = rig.start(*(call("hang", call_id=f"c{n}") for n in range(5)), config=LoopConfig(tool_batch_concurrency=2))
    await rig.clock.until_waiting("tool", count=2)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(tool.runs) == 2


async def test_a_cancelled_batch_does_not_wait_for_a_deaf_tool_for_ever() -> None:
    let_go = asyncio.Event()
    tool = scripted_tools.deaf(let_go)
    rig = BatchRig([tool])
    task = rig.start(call("deaf"))
    await tool.started.wait()

    task.cancel()
    await rig.clock.fire("tool-cleanup")
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(rig.unfinished_tools) == 1
    closing = asyncio.create_task(rig.unfinished_tools.close(rig.clock, 5))
    await rig.clock.fire("unfinished-tools")
    await closing
    let_go.set()
    await until(lambda: len(rig.unfinished_tools) == 0)


async def test_a_second_cancellation_leaves_at_once_and_loses_no_task() -> None:
    let_go = asyncio.Event()
    tool = scripted_tools.deaf(let_go)
    rig = BatchRig([tool])
    task = rig.start(call("deaf"))
    await tool.started.wait()

    task.cancel()
    await rig.clock.until_waiting("tool-cleanup")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(rig.unfinished_tools) >= 1
    let_go.set()
    await until(lambda: len(rig.unfinished_tools) == 0)


async def test_a_cancelled_tool_may_clean_up() -> None:
    cleaned = asyncio.Event()

    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()
        return ToolOutput()

    tool = ScriptedTool("tidy", behave)
    rig = BatchRig([tool])
    task = rig.start(call("tidy"))
    await tool.started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert cleaned.is_set()
    assert len(rig.unfinished_tools) == 0


# Replays


def test_the_replay_token_is_made_of_chat_message_and_call() -> None:
    token = open_tool_calls.replay_token(CHAT_ID, 12, "call_0")

    assert token == uuid5(CHAT_ID, "12:call_0")
    assert token != open_tool_calls.replay_token(CHAT_ID, 13, "call_0")
    assert token != open_tool_calls.replay_token(ChatId(UUID(int=1)), 12, "call_0")


async def test_a_token_tool_gets_the_same_token_in_every_run() -> None:
    tool = scripted_tools.counting(replay=Replay.TOKEN)
    rig = BatchRig([tool])

    first = await rig.run(call("count"))
    again = await rig.run(call("count"))

    assert len(tool.runs) == 2
    assert len(set(tool.runs)) == 1
    assert value(first[0]) == value(again[0]) == {"times": 1}
    assert rig.ledger.begun == set()


async def test_a_ledger_tool_runs_once_and_its_result_is_given_again() -> None:
    tool = scripted_tools.counting()
    rig = BatchRig([tool])

    first = await rig.run(call("count"))
    await rig.clock.advance(60)
    again = await rig.run(call("count"))

    assert len(tool.runs) == 1
    assert parts.same((first[0].result,), (again[0].result,))
    assert len(rig.shown.results()) == 2


async def test_another_message_is_another_run() -> None:
    tool = scripted_tools.counting()
    rig = BatchRig([tool])

    await rig.run(call("count", message_id=1))
    await rig.run(call("count", message_id=2))

    assert len(tool.runs) == 2


async def test_a_run_that_was_never_finished_is_not_repeated() -> None:
    tool = scripted_tools.hanging(replay=Replay.LEDGER)
    rig = BatchRig([tool])
    task = rig.start(call("hang"))
    await tool.started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    (again,) = await rig.run(call("hang"))

    assert len(tool.runs) == 1
    assert value(again) == {"error": OUTCOME_UNKNOWN}


async def test_an_error_result_is_a_finished_run() -> None:
    tool = scripted_tools.failing(ValueError("no"), replay=Replay.LEDGER)
    rig = BatchRig([tool])

    await rig.run(call("fail"))
    (again,) = await rig.run(call("fail"))

    assert len(tool.runs) == 1
    assert value(again) == {"error": "tool failed: ValueError: no"}


async def test_a_ledger_that_cannot_begin_fails_the_batch_and_stops_the_others() -> None:
    class Down(MemoryLedger):
        async def begin(self, token: UUID, **fields: Any) -> LedgerRun:
            raise ConnectionError("the database is gone")

    counting, hanging = scripted_tools.counting(), scripted_tools.hanging()
    rig = BatchRig([counting, hanging])

    with pytest.raises(ConnectionError):
        await rig.run(call("count"), call("hang"), ledger=Down())

    assert counting.runs == []
    assert rig.clock.waiting() == []


async def test_a_ledger_that_cannot_finish_costs_no_result() -> None:
    class Half(MemoryLedger):
        async def finish(self, token: UUID, content: str) -> None:
            raise ConnectionError("the database is gone")

    (done,) = await BatchRig([scripted_tools.counting()]).run(call("count"), ledger=Half())

    assert value(done) == {"times": 1}


async def test_a_result_is_written_down_even_if_the_batch_is_cancelled_meanwhile() -> None:
    class Slow(MemoryLedger):
        def __init__(self) -> None:
            super().__init__()
            self.entered, self.go_on = asyncio.Event(), asyncio.Event()

        async def finish(self, token: UUID, content: str) -> None:
            self.entered.set()
            await self.go_on.wait()
            await super().finish(token, content)

    ledger = Slow()
    rig = BatchRig([scripted_tools.counting()])
    task = rig.start(call("count"), ledger=ledger)
    await ledger.entered.wait()
    task.cancel()
    await rig.clock.until_waiting("tool-ledger")
    ledger.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(ledger.finished) == 1


@pytest.mark.parametrize("content", [None, "[]", "{broken", '[{"type":"text","text":"x"}]'])
async def test_a_ledger_row_that_cannot_be_read_is_an_unknown_outcome(content: str | None) -> None:
    class Damaged(MemoryLedger):
        async def begin(self, token: UUID, **fields: Any) -> LedgerRun:
            return LedgerRun(LedgerState.FINISHED, content)

    (done,) = await BatchRig([scripted_tools.counting()]).run(call("count"), ledger=Damaged())

    assert value(done) == {"error": OUTCOME_UNKNOWN}


async def test_a_cancellation_inside_the_ledger_is_the_result_of_that_call() -> None:
    class Cut(MemoryLedger):
        async def begin(self, token: UUID, **fields: Any) -> LedgerRun:
            raise asyncio.CancelledError

    done = await BatchRig([scripted_tools.counting(), scripted_tools.echo()]).run(
        call("count"), call("echo"), ledger=Cut()
    )

    assert [each.is_error for each in done] == [True, False]
