"""Interrupts: the visible output of the step is saved, and the chat rests or continues with the next message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

import asyncpg
import pytest

from rookery.domain.chat.interrupted_step import NOTE
from rookery.domain.chat.messages import ChatId, NewMessage
from rookery.domain.chat.parts import TurnEnd
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.llm.scripted import CallTool, Count, Fail, Say, Step, Think, Wait
from rookery.llm.types import ErrorKind, Usage
from rookery.loop.tool import CancelReason, ToolContext, ToolOutput
from rookery.loop.tool import ToolCall as Called
from rookery.store import machine
from rookery.store.models import model_configs
from rookery.store.models.model_configs import ModelConfigPatch
from rookery.testing import FakeClock
from rookery.worker import interrupt as interrupt_work
from tests import scripted_tools
from tests.eventually import until
from tests.worker.worker_rig import GatedToolbox, WorkerRig, in_turn, open_house

USAGE = Usage(input=700, output=3, total=703, context_tokens=700)
HANG = Wait(3600)
# Streamed parts, and the rows that are saved.
STREAMED: dict[str, tuple[tuple[Step, ...], list[tuple[str, str]]]] = {
    "half a text": ((Say("half a"), HANG), [("assistant", "half a")]),
    "thoughts": ((Think("hm"), HANG), [("assistant", "(hm)")]),
    "text and a whole call": (
        (Say("look"), CallTool("read"), HANG),
        [("assistant", "look read!"), ("tool", "read=error")],
    ),
    "nothing": ((HANG,), [("system", "TurnEnd")]),
}


async def streaming(rig: WorkerRig, chat_id: ChatId) -> None:
    """Wait until the model has streamed everything."""
    assert isinstance(rig.clock, FakeClock)
    await rig.clock.until_waiting("scripted-wait")


async def test_stopped_answer_counts_tokens_that_the_provider_has_not_reported(database_url: str) -> None:
    clock = FakeClock()
    async with open_house(database_url, script=(Say("word " * 80), HANG), clock=clock) as rig:
        async with rig.database.api.acquire() as conn:
            prices = ModelConfigPatch(price_input=Decimal(1000), price_output=Decimal(1000))
            await model_configs.update_model_config(conn, rig.model, patch=prices, by=None)
        rig.forget()
        chat_id = await rig.ask("hello " * 60)
        await streaming(rig, chat_id)

        await rig.interrupt(chat_id)
        await rig.rested(chat_id)

        [(status, read, written, cost)] = await rig.usage(chat_id, "status, input_tokens, output_tokens, cost_micros")
        assert (status, written) == ("interrupted", 100)
        assert isinstance(read, int)
        assert read >= 60
        assert cost == (read + 100) * 1000
        assert (await rig.rows(chat_id, "output_tokens, cost_micros"))[-1] == (100, cost)


@pytest.mark.parametrize("what", STREAMED)
async def test_interrupted_answer_keeps(what: str, database_url: str) -> None:
    steps, kept = STREAMED[what]
    clock = FakeClock()
    tools = [scripted_tools.echo("read")]
    async with open_house(database_url, script=(Count(USAGE), *steps), tools=tools, clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await streaming(rig, chat_id)
        await clock.advance(7)

        await rig.interrupt(chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (await rig.story(chat_id))[1:] == kept
        assert await rig.usage(chat_id, "status, input_tokens, message_id") == [("interrupted", 700, None)]
        if kept[0][0] == "assistant":
            figures = (await rig.rows(chat_id, "runtime_ms, finish_reason, input_tokens, context_limit"))[1]
            assert figures == (7000, "interrupted", 700, 100_000)

        rig.script = (Say("go on"),)
        await rig.send(chat_id, "and now?")
        await rig.rested(chat_id)

        assert (await rig.story(chat_id))[-1] == ("assistant", "go on")


async def test_interrupted_batch_keeps_what_its_tools_gave(database_url: str) -> None:
    quick, hang = scripted_tools.echo("quick"), scripted_tools.hanging("hang")
    script = (Say("both"), CallTool("hang"), CallTool("quick", {"a": 1}))
    async with open_house(database_url, script=script, tools=[quick, hang]) as rig:
        chat_id = await rig.ask("hello")
        await hang.started.wait()
        await quick.started.wait()

        await rig.interrupt(chat_id)
        await rig.rested(chat_id)

        assert (await rig.story(chat_id))[1:] == [
            ("assistant", "both hang! quick!"),
            ("tool", "hang=error"),
            ("tool", "quick=ok"),
        ]
        assert NOTE in str((await rig.results(chat_id))[0])
        assert [runtime for (runtime,) in (await rig.rows(chat_id, "runtime_ms"))[2:]] == [None, None]


async def test_batch_of_a_local_and_a_client_call_ends_with_two_results(database_url: str) -> None:
    hang = scripted_tools.hanging("hang")
    dynamic = b'[{"name": "pick", "description": "", "input_schema": {"type": "object"}}]'
    script = (CallTool("pick"), CallTool("hang"))
    async with open_house(database_url, script=script, tools=[hang]) as rig:
        chat_id = await rig.ask("hello", dynamic_tools=dynamic.decode())
        await hang.started.wait()

        await rig.interrupt(chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert sorted((await rig.story(chat_id))[2:]) == [("tool", "hang=error"), ("tool", "pick=error")]


async def test_output_of_a_stopped_tool_is_saved_with_the_step(database_url: str) -> None:
    """One tool answers its cancellation with output, another one has only shown some."""

    async def answer(ctx: ToolContext, call: Called) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return ToolOutput({"error": "stopped after 3 s", "output": "one\ntwo\n"}, is_error=True)
        raise AssertionError

    async def show(ctx: ToolContext, call: Called) -> ToolOutput:
        ctx.publish("10 %\n")
        ctx.publish("20 %\n")
        await asyncio.Event().wait()
        raise AssertionError

    tools = [scripted_tools.ScriptedTool("answer", answer), scripted_tools.ScriptedTool("show", show)]
    script = (CallTool("answer"), CallTool("show"))
    async with open_house(database_url, script=script, tools=tools) as rig:
        chat_id = await rig.ask("hello")
        for tool in tools:
            await tool.started.wait()

        await rig.interrupt(chat_id)
        await rig.rested(chat_id)

        answered, shown = await rig.results(chat_id)
        assert answered == {"error": "stopped after 3 s", "output": "one\ntwo\n"}
        assert shown["output"] == "10 %\n20 %\n"
        assert shown["reason"] == "interrupted"


async def test_tool_reads_that_the_user_stopped_it(database_url: str) -> None:
    reasons: list[CancelReason | None] = []

    async def behave(ctx: ToolContext, call: Called) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancel_reason)
        raise AssertionError

    tool = scripted_tools.ScriptedTool("hang", behave)
    async with open_house(database_url, script=(CallTool("hang"),), tools=[tool]) as rig:
        chat_id = await rig.ask("hello")
        await tool.started.wait()

        await rig.interrupt(chat_id)
        await rig.rested(chat_id)

        assert reasons == [CancelReason.USER]


async def test_deaf_tool_does_not_hold_up_the_stop(database_url: str) -> None:
    let_go = asyncio.Event()
    tool = scripted_tools.deaf(let_go)
    async with open_house(database_url, script=(CallTool("deaf"),), tools=[tool]) as rig:
        chat_id = await rig.ask("hello")
        await tool.started.wait()

        await rig.interrupt(chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert not let_go.is_set()
        let_go.set()


async def test_message_that_interrupts_is_answered_next(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Say("half"), HANG), (Say("whole"),))
    async with open_house(database_url, script=script, clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await streaming(rig, chat_id)

        await rig.send(chat_id, "no, this", BusyBehavior.INTERRUPT)
        await rig.rested(chat_id)

        assert [words for _, words in await rig.story(chat_id)] == ["hello", "half", "no, this", "whole"]


async def test_edit_keeps_nothing_of_the_running_step(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Say("half"), HANG), (Say("whole"),))
    async with open_house(database_url, script=script, clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await streaming(rig, chat_id)
        (message,) = await rig.messages(chat_id)

        await rig.edit(chat_id, message, "hi")
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [("user", "hi"), ("assistant", "whole")]


async def test_wait_for_a_retry_is_interrupted(database_url: str) -> None:
    clock = FakeClock()
    script = (Fail(ErrorKind.OVERLOADED, retry_after=timedelta(minutes=5)),)
    async with open_house(database_url, script=script, clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("generation-retry")

        await rig.interrupt(chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert len(rig.calls) == 1
        (_, mark) = await rig.messages(chat_id)
        assert mark.parts() == (TurnEnd("stopped"),)
        # The turn can be tried again, because it has no answer.
        rig.script = (Say("at last"),)
        await rig.retry(chat_id)
        await rig.rested(chat_id)
        assert (await rig.story(chat_id))[-1] == ("assistant", "at last")


async def test_interrupted_summary_leaves_nothing(database_url: str) -> None:
    clock = FakeClock()
    async with open_house(database_url, script=(Say("long story"),), clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        before = await rig.story(chat_id)
        rig.script = (Say("In short"), HANG)
        await rig.compact(chat_id)
        await streaming(rig, chat_id)

        await rig.interrupt(chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert await rig.story(chat_id) == before
        assert await rig.usage(chat_id) == [("turn", "ok"), ("compaction", "interrupted")]


async def test_interrupt_without_a_draft_answers_what_is_open(database_url: str) -> None:
    """The replica that ran the step is dead, and another replica finishes the interruption."""
    hang = scripted_tools.hanging("hang")
    async with open_house(database_url, script=(CallTool("hang"),), tools=[hang]) as rig:
        chat_id = await rig.ask("hello")
        await hang.started.wait()
        await rig.crash()
        await rig.machine.chat(chat_id).update(machine.interrupt)

        await rig.add_replica()
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (await rig.story(chat_id))[-1] == ("tool", "hang=error")


async def test_interrupt_before_the_first_attempt_stops_the_step(database_url: str) -> None:
    toolbox = GatedToolbox()
    async with open_house(database_url, script=(Say("never"),), toolbox=toolbox) as rig:
        chat_id = await rig.ask("hello")
        await toolbox.waiting.wait()

        await rig.interrupt(chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert await rig.story(chat_id) == [("user", "hello"), ("system", "TurnEnd")]
        assert rig.calls == []


async def test_answer_whose_commit_came_too_late_is_billed(database_url: str) -> None:
    """The interrupt is committed while the answer ends, before the runner knows of it."""
    clock = FakeClock()
    async with open_house(database_url, script=(Say("an answer"), Wait(5)), clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await streaming(rig, chat_id)
        silent = machine.Machine(rig.database.api, _Silent())
        await silent.chat(chat_id).update(machine.interrupt)

        await clock.fire("scripted-wait")
        await until(lambda: _is_billed(rig, chat_id))
        assert await rig.usage(chat_id, "status, message_id") == [("interrupted", None)]
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert await rig.story(chat_id) == [("user", "hello"), ("assistant", "an answer")]


class _Silent:
    def publish(self, hints: object) -> None:
        return


async def _is_billed(rig: WorkerRig, chat_id: ChatId) -> bool:
    return bool(await rig.usage(chat_id))


@pytest.mark.parametrize("error", [ValueError("no column takes this"), asyncpg.QueryCanceledError("too slow")])
async def test_partial_output_that_cannot_be_stored_does_not_keep_the_chat_from_stopping(
    database_url: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = machine.finish_interruption

    async def refusing(tx: machine.Tx, partials: Sequence[NewMessage] = ()) -> machine.Interrupted:
        if partials:
            raise error
        return await finish(tx, partials)

    monkeypatch.setattr(interrupt_work, "finish_interruption", refusing)
    clock = FakeClock()
    async with open_house(database_url, script=(Say("half a"), HANG), clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await streaming(rig, chat_id)

        await rig.interrupt(chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert await rig.story(chat_id) == [("user", "hello")]
