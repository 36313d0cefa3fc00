"""Calls that wait for the answer to a question of their server: asked once, answered once, also across crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from rookery.domain.chat import elicitation
from rookery.domain.chat.approvals import Answer, Decision
from rookery.domain.chat.elicitation import Elicitation, FieldKind, FormField, ServerQuestion
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.llm.scripted import CallTool, Say
from rookery.loop.tool import EarlierRun, Replay, ToolCall, ToolContext, ToolOutput, WaitsForUser
from rookery.store import machine
from tests import scripted_tools
from tests.eventually import until
from tests.scripted_tools import ScriptedTool
from tests.worker.worker_rig import WorkerRig, in_turn, open_house

SCRIPT = ((CallTool("book"),), (Say("done"),))
ASKED = Elicitation(
    "Trains", (ServerQuestion(id="q", fields=(FormField(name="seat", kind=FieldKind.TEXT, required=True),)),)
)


class Kept(msgspec.Struct):
    rounds: int = 0


def booking(rounds: int = 1, before: Callable[[ToolContext], Awaitable[None]] | None = None) -> ScriptedTool:
    """Return a tool that asks the user this many times and then returns the last answer."""

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        state = Kept()
        answer = None
        if ctx.earlier is not None and ctx.earlier.state is not None:
            state, answer = msgspec.json.decode(ctx.earlier.state, type=Kept), ctx.earlier.answer
        if before is not None:
            await before(ctx)
        if state.rounds < rounds:
            await ctx.keep_state(Kept(state.rounds + 1), question=ASKED)
            raise WaitsForUser
        assert answer is not None
        return ToolOutput(msgspec.json.decode(answer))

    return ScriptedTool("book", behave, replay=Replay.RESUME)


async def until_asked(rig: WorkerRig, chat_id: ChatId) -> None:
    async def parked() -> bool:
        chat = await rig.chat(chat_id)
        return chat.is_parked and chat.worker_id is None

    await until(parked)


def given(seat: object = "12A", **fields: Any) -> Callable[[str], Answer]:
    return lambda call_id: Answer(
        tool_call_id=call_id, decision=Decision.APPROVE, responses={"q": {"seat": seat}}, **fields
    )


def denied(call_id: str) -> Answer:
    return Answer(tool_call_id=call_id, decision=Decision.DENY, reason="too dear")


async def answer(rig: WorkerRig, chat_id: ChatId, make: Callable[[str], Answer]) -> None:
    async def run(tx: machine.Tx) -> None:
        pending = await machine.open_calls.asked_calls(tx)
        await machine.answer_approvals(tx, [make(call.tool_call_id) for call in pending], answered_by=rig.user)

    await rig.machine.chat(chat_id).update(run)


async def test_the_call_is_continued_with_the_answer(database_url: str) -> None:
    tool = booking()
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        chat_id = await rig.ask("hello", client_type="api")
        await until_asked(rig, chat_id)

        await answer(rig, chat_id, given())
        await rig.rested(chat_id)

        assert await rig.results(chat_id) == [{"responses": {"q": {"action": "accept", "content": {"seat": "12A"}}}}]
        assert len(tool.runs) == 2
        assert len(set(tool.runs)) == 1
        assert await rig.sql("SELECT question IS NULL AND answer IS NULL FROM chat_tool_runs")


async def test_a_call_can_ask_several_times(database_url: str) -> None:
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[booking(rounds=3)]) as rig:
        chat_id = await rig.ask("hello")
        for seat in ("1", "2", "3"):
            await until_asked(rig, chat_id)
            await answer(rig, chat_id, given(seat))
        await rig.rested(chat_id)

        assert (await rig.results(chat_id))[0]["responses"]["q"]["content"] == {"seat": "3"}


async def test_an_approved_call_still_asks_the_question_of_its_server(database_url: str) -> None:
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[booking()]) as rig:
        await rig.set("approvals", {"rules": [{"tool": "book", "action": "ask"}]})
        chat_id = await rig.ask("hello")
        await until_asked(rig, chat_id)
        await answer(rig, chat_id, lambda call_id: Answer(tool_call_id=call_id, decision=Decision.APPROVE))

        await until(lambda: rig.sql("SELECT EXISTS (SELECT FROM chat_approvals WHERE offers ? 'elicitation')"))
        await until_asked(rig, chat_id)
        await answer(rig, chat_id, given())
        await rig.rested(chat_id)

        assert len(await rig.results(chat_id)) == 1


async def test_results_of_other_calls_are_committed_before_the_question(database_url: str) -> None:
    script = in_turn((CallTool("book"), CallTool("echo", {"n": 1})), (Say("done"),))
    async with open_house(database_url, script=script, tools=[booking(), scripted_tools.echo()]) as rig:
        chat_id = await rig.ask("hello")
        await until_asked(rig, chat_id)
        before = await rig.results(chat_id)

        await answer(rig, chat_id, given())
        await rig.rested(chat_id)

        assert before == [{"n": 1}]
        assert len(await rig.results(chat_id)) == 2


async def test_a_declined_question_is_a_result_for_the_model(database_url: str) -> None:
    tool = booking()
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        chat_id = await rig.ask("hello")
        await until_asked(rig, chat_id)

        await answer(rig, chat_id, denied)
        await rig.rested(chat_id)

        (result,) = await rig.results(chat_id)
        assert "declined to answer the question of Trains" in result["error"]
        assert "too dear" in result["error"]
        assert len(tool.runs) == 1
        assert await rig.sql("SELECT question IS NULL FROM chat_tool_runs")


@pytest.mark.parametrize("wrong", [None, "", 5, "x" * (elicitation.MAX_ANSWER_CHARS + 1)])
async def test_a_wrong_value_leaves_the_question_open(database_url: str, wrong: object) -> None:
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[booking()]) as rig:
        chat_id = await rig.ask("hello")
        await until_asked(rig, chat_id)

        with pytest.raises(InvalidInput, match="cannot be used"):
            await answer(rig, chat_id, given(wrong))

        assert (await rig.chat(chat_id)).is_parked
        await answer(rig, chat_id, given())
        await rig.rested(chat_id)


async def test_values_for_a_call_without_a_question_are_refused(database_url: str) -> None:
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[scripted_tools.echo("book")]) as rig:
        await rig.set("approvals", {"rules": [{"tool": "book", "action": "ask"}]})
        chat_id = await rig.ask("hello")
        await until_asked(rig, chat_id)

        with pytest.raises(InvalidInput, match="no question"):
            await answer(rig, chat_id, given())


async def test_the_question_outlives_its_replica(database_url: str) -> None:
    tool = booking()
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        chat_id = await rig.ask("hello")
        await until_asked(rig, chat_id)

        await rig.crash()
        await rig.add_replica()
        asked = await rig.sql("SELECT count(*) FROM chat_approvals WHERE approved_at IS NULL")
        await answer(rig, chat_id, given())
        await rig.rested(chat_id)

        assert asked == 1
        assert len(tool.runs) == 2


async def test_a_replica_that_dies_after_the_answer_leaves_it_to_the_next(database_url: str) -> None:
    died = asyncio.Event()
    earlier: list[EarlierRun | None] = []

    async def hold_once(ctx: ToolContext) -> None:
        earlier.append(ctx.earlier)
        if len(earlier) == 2:
            died.set()
            await asyncio.Event().wait()

    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[booking(before=hold_once)]) as rig:
        chat_id = await rig.ask("hello")
        await until_asked(rig, chat_id)
        await answer(rig, chat_id, given())
        await died.wait()

        await rig.crash()
        await rig.add_replica()
        await rig.rested(chat_id)

        assert len(earlier) == 3
        assert earlier[1] == earlier[2]
        assert len(await rig.results(chat_id)) == 1


async def test_a_run_that_kept_nothing_is_told_that_it_is_a_repetition(database_url: str) -> None:
    started = asyncio.Event()
    seen: list[EarlierRun | None] = []

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        seen.append(ctx.earlier)
        if len(seen) == 1:
            started.set()
            await asyncio.Event().wait()
        return ToolOutput({"ok": True})

    tool = ScriptedTool("book", behave, replay=Replay.RESUME)
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        chat_id = await rig.ask("hello")
        await started.wait()

        await rig.crash()
        await rig.add_replica()
        await rig.rested(chat_id)

        assert seen == [None, EarlierRun()]
