"""Fair share of slots: an owner without a running chat does not wait, and giving way loses no work."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.model_prompt import PromptText
from rookery.domain.chat.states import Status
from rookery.llm.scripted import CallTool, Fail, Say, Step
from rookery.llm.types import Call, ErrorKind
from rookery.loop.tool import ToolCall, ToolContext, ToolOutput
from rookery.worker.config import WorkerConfig
from rookery.worker.worker import Worker
from tests.eventually import until
from tests.scripted_tools import ScriptedTool
from tests.worker.worker_rig import GatedToolbox, WorkerRig, open_house

# The timer is too slow to help a test that waits for a slot.
QUIET = WorkerConfig(acquire_interval_seconds=3600.0, slot_hold_seconds=0.0)
DONE = 4  # steps of a long turn


class Bench:
    """A tool that blocks each chat until the test releases it, and a model that calls the tool on request."""

    def __init__(self) -> None:
        self.held: list[ChatId] = []
        self._gates: dict[ChatId, asyncio.Event] = defaultdict(asyncio.Event)
        self.tool = ScriptedTool("hold", self._hold)

    def let_go(self, chat_id: ChatId) -> None:
        self._gates[chat_id].set()

    def let_all_go(self) -> None:
        for chat_id in tuple(self.held):
            self.let_go(chat_id)

    async def _hold(self, ctx: ToolContext, call: ToolCall) -> ToolOutput:
        self.held.append(ctx.chat_id)
        await self._gates[ctx.chat_id].wait()
        return ToolOutput("held")


def script(call: Call) -> Sequence[Step]:
    last = call.prompt.messages[-1]
    if last.role is Role.TOOL:
        return (Say("done"),)
    words = "".join(part.text for part in last.parts if isinstance(part, PromptText))
    return (CallTool("hold"),) if "work" in words else (Say("hello"),)


def gave_way(rig: WorkerRig) -> int:
    return sum(replica.worker.stats.gave_way.total() for replica in rig.replicas)


def was_asked(worker: Worker) -> bool:
    """Return whether the worker knows of an owner who must give up slots."""
    return bool(worker.manager._services.slot_requests._slots)


async def ask_for_work(rig: WorkerRig, owner: UUID, count: int) -> list[ChatId]:
    return [await rig.ask("work", owner_id=owner) for _ in range(count)]


async def answer_of(rig: WorkerRig, chat_id: ChatId, words: str) -> int:
    """Return the id of the message with this text. Ids of all chats are in the order of their commits."""
    await rig.rested(chat_id)
    return next(each.id for each in await rig.messages(chat_id) if each.role is Role.ASSISTANT and words in str(each))


async def test_owner_with_nothing_running_is_answered_although_another_has_all_it_may(database_url: str) -> None:
    bench = Bench()
    async with open_house(database_url, script=script, tools=[bench.tool], config=QUIET) as rig:
        await rig.set("chats", {"running_roots": 4})
        await ask_for_work(rig, rig.user, 6)
        await until(lambda: len(bench.held) == 3)

        other = await rig.ask("hi", owner_id=await rig.add_user())
        chat = await rig.rested(other)

        assert chat.status == Status.WAITING
        assert len(bench.held) == 3, "one slot of four is kept"
        assert gave_way(rig) == 0
        bench.let_all_go()


@pytest.mark.parametrize("workers", [1, 2])
async def test_chat_above_the_fair_share_gives_way_between_two_steps_and_goes_on_later(
    database_url: str, workers: int
) -> None:
    bench = Bench()
    async with open_house(database_url, script=script, tools=[bench.tool], config=QUIET, workers=workers) as rig:
        await rig.set("chats", {"running_roots": 4})
        mine = await ask_for_work(rig, rig.user, 3)
        await until(lambda: len(bench.held) == 3)
        await ask_for_work(rig, await rig.add_user(), 1)
        await until(lambda: len(bench.held) == 4)
        third = await rig.ask("hi", owner_id=await rig.add_user())
        await until(lambda: all(was_asked(replica.worker) for replica in rig.replicas))
        assert gave_way(rig) == 0, "nobody is stopped in the middle of a step"

        bench.let_go(mine[0])
        heard = await answer_of(rig, third, "hello")
        done = await answer_of(rig, mine[0], "done")

        assert gave_way(rig) == 1
        assert heard < done, "the one that had waited came first"
        assert [words for _, words in await rig.story(mine[0])] == ["work", "hold!", "hold=ok", "done"]
        assert await rig.usage(mine[0]) == [("turn", "ok")] * 2, "no call was made twice"
        assert (await rig.chat(mine[0])).last_error is None
        bench.let_all_go()


async def test_turn_that_only_has_to_end_does_not_give_way(database_url: str) -> None:
    toolbox = GatedToolbox()  # delays each step until the owner's slots are requested
    # After its only step, the turn is at its limit. A turn that ends with an answer ends with the commit of the answer.
    called = (CallTool("look"),)
    async with open_house(database_url, script=called, toolbox=toolbox, config=QUIET, max_steps=1) as rig:
        await rig.set("chats", {"running_roots": 2})
        mine = [await rig.ask("hi") for _ in range(2)]
        for role in (Role.ASSISTANT, Role.TOOL):  # the model's call, then the tool's
            await until(lambda: count_gated(toolbox) == 2)
            toolbox.let_go(2)
            for chat_id in mine:
                await until_said(rig, chat_id, role)
        other = await rig.ask("hi", owner_id=await rig.add_user())
        await until(lambda: was_asked(rig.worker))

        toolbox.let_go(5)
        for chat_id in (*mine, other):
            await rig.rested(chat_id)

        assert gave_way(rig) == 0


def count_gated(toolbox: GatedToolbox) -> int:
    """Return the number of steps that wait at the gate."""
    return sum(not waiter.done() for waiter in toolbox._let_go._waiters or ())


async def until_said(rig: WorkerRig, chat_id: ChatId, role: Role) -> None:
    async def is_there() -> bool:
        return any(each.role is role for each in await rig.messages(chat_id))

    await until(is_there)


async def test_chat_that_only_waits_for_another_try_gives_way_and_its_wait_goes_on(database_url: str) -> None:
    def fails(call: Call) -> Sequence[Step]:
        if "work" in str(call.prompt.messages[-1]):
            return (Fail(ErrorKind.RATE_LIMIT, retry_after=timedelta(minutes=5)),)
        return (Say("hello"),)

    async with open_house(database_url, script=fails, config=QUIET) as rig:
        await rig.set("chats", {"running_roots": 2})
        mine = await ask_for_work(rig, rig.user, 2)
        waits = "SELECT count(*) = 2 FROM chats WHERE retry_state IS NOT NULL"
        await until(lambda: rig.sql(waits))
        before = [await rig.chat(chat_id) for chat_id in mine]

        other = await rig.ask("hi", owner_id=await rig.add_user())
        await rig.rested(other)

        assert gave_way(rig) == 1
        after = [await rig.chat(chat_id) for chat_id in mine]
        assert [chat.retry_state for chat in after] == [chat.retry_state for chat in before]
        assert [chat.generation_attempt for chat in after] == [1, 1], "no try is counted for it"


async def test_two_owners_with_long_turns_change_places_a_few_times_only(database_url: str) -> None:
    async def run(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        return ToolOutput("ok")

    def works_on(call: Call) -> Sequence[Step]:
        steps = sum(message.role is Role.TOOL for message in call.prompt.messages)
        return (Say("done"),) if steps == DONE else (CallTool("hold"),)

    async with open_house(database_url, script=works_on, tools=[ScriptedTool("hold", run)], config=QUIET) as rig:
        await rig.set("chats", {"running_roots": 4})
        chats = await ask_for_work(rig, rig.user, 8)
        chats += await ask_for_work(rig, await rig.add_user(), 8)

        for chat_id in chats:
            assert (await rig.rested(chat_id)).status == Status.WAITING

        assert gave_way(rig) <= 4, "no more often than there are slots"
        for chat_id in chats:
            assert await rig.usage(chat_id) == [("turn", "ok")] * (DONE + 1)
