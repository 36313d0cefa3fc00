"""Shutdown of a replica: running steps may end, other chats are released, and another replica continues."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rookery.domain.chat.states import Status
from rookery.domain.chat.system_blocks import Mode
from rookery.llm.scripted import CallTool, Fail, Say, Wait
from rookery.llm.types import ErrorKind
from rookery.loop.tool import CancelReason, ToolContext, ToolOutput
from rookery.loop.tool import ToolCall as Called
from rookery.store.chats.step_reads import Step as LoadedStep
from rookery.store.db.hints import OwnershipHint
from rookery.testing import FakeClock
from rookery.tools.step_tools import PlainToolbox, StepTools, ToolsUnavailable
from rookery.worker import commit_shield
from tests import scripted_tools
from tests.eventually import until
from tests.worker.worker_rig import WorkerRig, in_turn, open_house


async def heartbeats(rig: WorkerRig) -> int:
    count: int = await rig.sql("SELECT count(*) FROM chat_heartbeats")
    return count


async def test_step_that_ends_within_the_drain_is_committed_and_another_replica_goes_on(database_url: str) -> None:
    release = asyncio.Event()

    async def behave(*_: object) -> ToolOutput:
        await release.wait()
        return ToolOutput("held")

    tool = scripted_tools.ScriptedTool("hold", behave)
    script = in_turn((CallTool("hold"),), (Say("done"),))
    # The clock is stopped, so the other replica continues because of a hint and not because of its timer.
    async with open_house(database_url, script=script, tools=[tool], clock=FakeClock()) as rig:
        chat_id = await rig.ask("hello")
        await tool.started.wait()
        await rig.add_replica()
        old = rig.worker

        draining = asyncio.ensure_future(old.drain())
        release.set()
        await draining
        assert len(old.manager) == 0
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (await rig.story(chat_id))[1:] == [("assistant", "hold!"), ("tool", "hold=ok"), ("assistant", "done")]
        assert len(tool.runs) == 1
        assert chat.worker_id in (None, rig.replicas[1].id)


@pytest.mark.parametrize("by", ["time", "hurry"])
async def test_step_that_does_not_end_is_cut_and_made_elsewhere(by: str, database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Say("half"), Wait(3600)), (Say("whole"),))
    async with open_house(database_url, script=script, clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")
        old = rig.worker
        heard: list[OwnershipHint] = []
        with rig.replicas[0].bus.subscribe(OwnershipHint, heard.append):
            draining = asyncio.ensure_future(old.drain())
            await clock.until_waiting("drain")
            if by == "time":
                await clock.fire("drain")
            else:
                draining.cancel()  # a second signal does the same
            await asyncio.wait({draining})
            assert await heartbeats(rig) == 1

            await old.close()

            assert {hint.chat_id for hint in heard} == {chat_id}
        assert await heartbeats(rig) == 0
        assert (await rig.chat(chat_id)).status == Status.RUNNING

        await rig.add_replica()
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [("user", "hello"), ("assistant", "whole")]


async def test_drain_does_not_sit_out_a_retry(database_url: str) -> None:
    clock = FakeClock()
    async with open_house(database_url, script=(Fail(ErrorKind.OVERLOADED),), clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("generation-retry")

        await rig.worker.drain()

        chat = await rig.chat(chat_id)
        assert (chat.status, chat.worker_id) == (Status.RUNNING, None)


async def test_tool_reads_that_its_process_stops(database_url: str) -> None:
    reasons: list[CancelReason | None] = []

    async def behave(ctx: ToolContext, call: Called) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancel_reason)
        raise AssertionError

    tool = scripted_tools.ScriptedTool("hang", behave)
    async with open_house(database_url, script=(CallTool("hang"),), tools=[tool]) as rig:
        await rig.ask("hello")
        await tool.started.wait()

        await rig.worker.close()

        assert reasons == [CancelReason.SHUTDOWN]


async def test_deaf_tool_does_not_keep_others_from_the_chat_of_a_process_that_stops(database_url: str) -> None:
    clock, let_go = FakeClock(), asyncio.Event()
    tool = scripted_tools.deaf(let_go)
    async with open_house(database_url, script=(CallTool("deaf"),), tools=[tool], clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await tool.started.wait()
        heard: list[OwnershipHint] = []
        with rig.replicas[0].bus.subscribe(OwnershipHint, heard.append):
            closing = asyncio.ensure_future(rig.worker.close())
            try:
                await until(lambda: heard)
                is_closed, count = closing.done(), await heartbeats(rig)
            finally:
                let_go.set()
            await closing

        assert {hint.chat_id for hint in heard} == {chat_id}
        assert (is_closed, count) == (False, 0)
        assert clock.monotonic() == 0.0


async def test_closing_twice_and_closing_what_never_ran_is_fine(database_url: str) -> None:
    async with open_house(database_url) as rig:
        await rig.worker.close()
        await rig.worker.close()


async def test_draining_worker_takes_nothing_new(database_url: str) -> None:
    async with open_house(database_url, script=(Say("hi"),)) as rig:
        await rig.worker.drain()
        chat_id = await rig.ask("hello")
        rig.worker.wake()

        await rig.add_replica()
        await rig.rested(chat_id)

        assert len(rig.worker.manager) == 0


async def test_resting_chat_is_let_go_of(database_url: str) -> None:
    async with open_house(database_url, script=(Say("hi"),)) as rig:
        heard: list[OwnershipHint] = []
        with rig.replicas[0].bus.subscribe(OwnershipHint, heard.append):
            chat_id = await rig.ask("hello")
            await rig.rested(chat_id)
            await rig.worker.wait_idle()

        assert (await rig.chat(chat_id)).worker_id is None
        assert await heartbeats(rig) == 0
        # Slots are limited by default, so other chats may wait for the free slot.
        assert chat_id in [hint.chat_id for hint in heard]


async def test_leases_are_written_without_waiting_for_the_disk(database_url: str) -> None:
    async with open_house(database_url) as rig:
        connection = await rig.worker._connect_leases()
        try:
            assert await connection.fetchval("SHOW synchronous_commit") == "off"
        finally:
            connection.terminate()


# Shielded commits


async def test_work_that_is_seen_through_ends_before_its_cancellation() -> None:
    gate, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await gate.wait()
        ended.set()

    task = asyncio.create_task(commit_shield.run_to_end(work()))
    await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()

    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_work_that_is_seen_through_gives_its_result_or_its_error() -> None:
    async def give() -> int:
        return 7

    async def fail() -> None:
        raise KeyError("x")

    assert await commit_shield.run_to_end(give()) == 7
    with pytest.raises(KeyError):
        await commit_shield.run_to_end(fail())


async def test_commit_that_meets_a_cancellation_is_never_lost(database_url: str) -> None:
    """Run steps and effects of many turns. Every turn at rest has its label, and every answer its ledger row."""
    async with open_house(database_url, script=in_turn((Say("hi"),))) as rig:
        chats = [await rig.ask(f"hello {number}") for number in range(8)]
        for chat_id in chats:
            await rig.rested(chat_id)
        await until(lambda: len(rig.worker.manager) == 0)
        await rig.worker.wait_idle()

        assert await rig.sql("SELECT count(*) FROM chats WHERE last_turn_summary IS NOT NULL") == len(chats)
        assert await rig.sql("SELECT count(*) FROM model_usage WHERE purpose = 'turn'") == len(chats)


class Stubborn(PlainToolbox):
    """Raises another error when it is cancelled, as libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = asyncio.Event()

    async def open(self, step: LoadedStep, *, mode: Mode, stack: AsyncExitStack) -> StepTools:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ToolsUnavailable("The connection was closed.") from None
        raise AssertionError("unreachable")


async def test_step_that_a_shutdown_cancels_leaves_no_error_for_any_exception(database_url: str) -> None:
    toolbox = Stubborn()
    async with open_house(database_url, toolbox=toolbox) as rig:
        chat_id = await rig.ask("hello")
        await toolbox.waiting.wait()

        rig.worker.manager.close()
        await rig.worker.manager.wait_idle()

        chat = await rig.chat(chat_id)
        assert (chat.status, chat.last_error, chat.retry_state) == (Status.RUNNING, None, None)
