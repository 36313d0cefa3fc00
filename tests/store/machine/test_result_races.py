"""Each pair of transitions that could give a result to the same tool call, forced in both orders."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import product

import pytest

from rookery.domain.chat.approvals import Answer, Decision
from rookery.domain.chat.chat import Fence
from rookery.domain.chat.errors import ChatError, InvariantViolation, StaleFence
from rookery.domain.chat.messages import ChatId, NewMessage, QueuedMessageId, Role
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.parts import ToolResult
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.machine import Tx
from tests.store.machine.held_bundles import in_order, updating
from tests.store.machine.machine_rig import CLIENT_TOOL, Rig, call, calling, result, text

CALL = "call-1"
LOCAL_TOOL = "run"


class Situation:
    """A chat with one open call, an owner and one queued message, and the writes that can race for the call."""

    def __init__(self, rig: Rig, chat_id: ChatId, queued_id: QueuedMessageId, fence: Fence) -> None:
        self.rig = rig
        self.chat_id = chat_id
        self.queued_id = queued_id
        self.fence = fence

    # Users

    async def submit(self, tx: Tx) -> object:
        results = [SubmittedResult(CALL, '{"output": "red"}')]
        return await machine.complete_requires_action(tx, results, submitted_by=self.rig.user)

    async def deny(self, tx: Tx) -> object:
        answers = [Answer(tool_call_id=CALL, decision=Decision.DENY)]
        return await machine.answer_approvals(tx, answers, answered_by=self.rig.user)

    async def interrupt(self, tx: Tx) -> object:
        return await machine.interrupt(tx)

    async def send_interrupting(self, tx: Tx) -> object:
        return await machine.send_message(tx, self.rig.message("stop"), BusyBehavior.INTERRUPT)

    async def promote(self, tx: Tx) -> object:
        return await machine.promote_queued_message(tx, self.queued_id)

    async def edit(self, tx: Tx) -> object:
        first = (await self.rig.history(self.chat_id))[0].id
        return await machine.edit_message(tx, first, content=text("hello again"), edited_by=self.rig.user)

    # Workers

    async def expire(self, tx: Tx) -> object:
        return await machine.cancel_requires_action(tx)

    async def commit_results(self, tx: Tx) -> object:
        return await machine.commit_step(tx, [result(CALL, LOCAL_TOOL)])

    async def commit_two_rows(self, tx: Tx) -> object:
        """Commit a step of two rows, which uses another statement than a step of one row."""
        note = NewMessage(role=Role.ASSISTANT, content=text("done"))
        return await machine.commit_step(tx, [result(CALL, LOCAL_TOOL), note])

    async def finish_turn(self, tx: Tx) -> object:
        return await machine.finish_turn(tx)

    async def save_partial_result(self, tx: Tx) -> object:
        return await machine.finish_interruption(tx, [result(CALL, LOCAL_TOOL)])

    async def finish_interruption(self, tx: Tx) -> object:
        return await machine.finish_interruption(tx)


WORKER_WRITES = frozenset(
    {"expire", "commit_results", "commit_two_rows", "finish_turn", "save_partial_result", "finish_interruption"}
)
USER_WRITES = ("interrupt", "send_interrupting", "promote", "edit")
SITUATIONS: dict[str, tuple[str, ...]] = {
    "client call": ("submit", "expire", *USER_WRITES),
    "question": ("deny", "expire", *USER_WRITES),
    "running": ("commit_results", "commit_two_rows", "finish_turn", *USER_WRITES),
    "interrupting": ("save_partial_result", "finish_interruption", "edit", "promote", "send_interrupting"),
}


async def arrange(rig: Rig, name: str) -> Situation:
    chat_id = await rig.create()
    tool = CLIENT_TOOL if name == "client call" else LOCAL_TOOL
    await rig.commit(chat_id, calling(call(CALL, tool)))
    await rig.send(chat_id, "next")
    if name == "client call":
        await rig.run(chat_id, machine.enter_requires_action, timeout_seconds=0)
    if name == "question":

        async def ask(tx: Tx) -> None:
            (asked,) = await machine.open_calls.turn_calls(tx)
            await machine.ask_approvals(tx, [machine.Question(asked)], timeout_seconds=0)

        await rig.update(chat_id, ask)
    if name == "interrupting":
        await rig.update(chat_id, machine.interrupt)
    (queued,) = await rig.queue(chat_id)
    return Situation(rig, chat_id, queued.id, await rig.acquire(chat_id))


async def live_results(rig: Rig, chat_id: ChatId) -> list[str]:
    return [
        part.tool_call_id
        for message in await rig.history(chat_id)
        for part in message.parts()
        if isinstance(part, ToolResult)
    ]


@pytest.mark.parametrize("name", SITUATIONS)
async def test_call_has_one_result_whichever_two_transitions_meet_and_in_either_order(rig: Rig, name: str) -> None:
    for names in product(SITUATIONS[name], repeat=2):
        at = await arrange(rig, name)
        first, second = (
            updating(rig, at.chat_id, getattr(at, each), fence=at.fence if each in WORKER_WRITES else None)
            for each in names
        )

        _, outcome = await in_order(rig, first, second)

        assert not isinstance(outcome, Exception) or isinstance(outcome, ChatError), (names, outcome)
        assert not isinstance(outcome, InvariantViolation), names
        # A stopped turn is ended by its worker: an open call gets its result then.
        if await rig.state(at.chat_id) in (State.I0, State.I1):
            fence = rig.fence(await rig.load(at.chat_id))
            await rig.update(at.chat_id, machine.finish_interruption, fence=fence)
        assert await live_results(rig, at.chat_id) == ([] if "edit" in names else [CALL]), names


ORDERS = [
    ("first commits", "second takes the chat", "second commits"),
    ("second takes the chat", "first commits", "second commits"),
    ("second takes the chat", "second commits", "first commits"),
]


@pytest.mark.parametrize("order", ORDERS)
async def test_call_of_a_chat_that_changes_its_worker_has_one_result(rig: Rig, order: tuple[str, ...]) -> None:
    at = await arrange(rig, "running")
    work = {"first": (at.fence, [CALL])}
    for name, act in (each.split(" ", 1) for each in order):
        if act == "takes the chat":
            fence = await rig.acquire(at.chat_id)
            found = await rig.update(at.chat_id, machine.open_calls.turn_calls)
            work[name] = fence, [each.tool_call_id for each in found]
            continue
        fence, calls = work[name]
        rows = [result(each, LOCAL_TOOL) for each in calls] or [NewMessage(role=Role.ASSISTANT, content=text("done"))]
        with suppress(StaleFence):
            await rig.update(at.chat_id, partial(machine.commit_step, messages=rows), fence=fence)

    assert await live_results(rig, at.chat_id) == [CALL]


# One bundle: its fence is compared once, before its first transition.

BUNDLES = {
    "two steps": ("commit_results", "commit_results"),
    "two steps, of one row and of two": ("commit_results", "commit_two_rows"),
    "the end of the turn and a step": ("finish_turn", "commit_results"),
    "an interruption and a step": ("finish_interruption", "commit_results"),
    "a timeout and a step": ("expire", "commit_results"),
}


@pytest.mark.parametrize("name", BUNDLES)
async def test_bundle_that_answers_a_call_twice_is_refused_as_a_whole(rig: Rig, name: str) -> None:
    names = BUNDLES[name]
    situation = {"finish_interruption": "interrupting", "expire": "question"}.get(names[0], "running")
    at = await arrange(rig, situation)
    before = await rig.trace(at.chat_id)

    async def answer_twice(tx: Tx) -> None:
        for each in names:
            await getattr(at, each)(tx)

    with pytest.raises(InvariantViolation, match=f"call {CALL} of chat .* has a result"):
        await rig.update(at.chat_id, answer_twice, fence=at.fence)

    assert await rig.trace(at.chat_id) == before
