"""Fences: a worker's write is accepted only if nothing has changed that its task has read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple
from uuid import uuid4

import pytest

from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.errors import ChatNotFound, StaleFence, TransitionNotAllowed
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import Transition
from rookery.store import machine
from rookery.store.machine import Tx
from tests.store.machine import shared_rig
from tests.store.machine.machine_rig import CLIENT_TOOL, FAILED, Rig, assistant, call, calling
from tests.store.machine.transition_calls import MOVES, RETRY

rig = shared_rig.rig

Work = Callable[[Tx], Awaitable[object]]


class Case(NamedTuple):
    """One row of the specification of fences: the work, its start state, and the fields of the fence that it checks."""

    state: State
    work: Work
    has_attempt: bool = False
    allow_archived: bool = False


async def load(tx: Tx) -> None:
    """Read under the fence, in an empty bundle."""


CASES: Mapping[str, Case] = {
    "load": Case(State.R0, load),
    "record_generation_attempt": Case(State.R0, machine.record_generation_attempt),
    "enter_requires_action": Case(State.R0, machine.enter_requires_action),
    "commit_step": Case(State.R0, lambda tx: machine.commit_step(tx, [assistant("done")]), has_attempt=True),
    "finish_turn after an attempt": Case(State.R0, machine.finish_turn, has_attempt=True),
    "finish_error after an attempt": Case(State.R0, lambda tx: machine.finish_error(tx, FAILED), has_attempt=True),
    "finish_turn without one": Case(State.R0, machine.finish_turn),
    "finish_error without one": Case(State.R0, lambda tx: machine.finish_error(tx, FAILED)),
    "record_retry_state": Case(State.R0, lambda tx: machine.record_retry_state(tx, RETRY)),
    "finish_interruption": Case(State.I0, lambda tx: machine.finish_interruption(tx, [assistant("par")])),
    "cancel_requires_action": Case(State.A0, machine.cancel_requires_action),
    "abandon while idle": Case(State.W, machine.abandon, allow_archived=True),
    "abandon while running": Case(State.R0, machine.abandon, allow_archived=True),
    "abandon an archived chat": Case(State.XW, machine.abandon, allow_archived=True),
}


async def setting(rig: Rig, case: Case) -> tuple[ChatId, Chat, Fence]:
    """An owned chat in the case's state, with an open client call and a second attempt if the state allows these."""
    chat_id = await rig.chat(case.state)
    await rig.acquire(chat_id)
    if case.state is State.R0:
        await rig.update(
            chat_id, lambda tx: machine.commit_step(tx, [calling(call("call-1"), call("call-2", CLIENT_TOOL))])
        )
        for _ in range(2):
            await rig.update(chat_id, machine.record_generation_attempt)
    chat = await rig.load(chat_id)
    attempt = chat.generation_attempt if case.has_attempt else None
    fence = rig.fence(chat, generation_attempt=attempt, allow_archived=case.allow_archived)
    rig.published.clear()
    return chat_id, chat, fence


def altered(case: Case, chat: Chat) -> dict[str, dict[str, object]]:
    """Return fences that differ from the row in one field, for each checked field."""
    other_status = Status.ERROR if chat.status != Status.ERROR else Status.RUNNING
    wrong: dict[str, dict[str, object]] = {
        "worker_id": {"worker_id": uuid4()},
        "runner_id": {"runner_id": uuid4()},
        "status": {"status": other_status},
        "history_version": {"history_version": chat.history_version - 1},
    }
    if case.has_attempt:
        wrong["generation_attempt"] = {"generation_attempt": chat.generation_attempt - 1}
    if chat.archived:
        wrong["archived"] = {"allow_archived": False}
    return wrong


@pytest.mark.parametrize("name", CASES)
async def test_work_with_one_field_out_of_date_is_stale_and_leaves_no_trace(rig: Rig, name: str) -> None:
    case = CASES[name]
    chat_id, chat, fence = await setting(rig, case)
    before = await rig.trace(chat_id)

    for field, fields in altered(case, chat).items():
        defaults: dict[str, object] = {
            "generation_attempt": fence.generation_attempt,
            "allow_archived": fence.allow_archived,
        }
        with pytest.raises(StaleFence) as refusal:
            await rig.update(chat_id, case.work, fence=rig.fence(chat, **{**defaults, **fields}))
        assert refusal.value.field == field
        assert await rig.trace(chat_id) == before
        assert rig.published.hints == []

    await rig.update(chat_id, case.work, fence=fence)
    assert len(rig.published.chats()) == 1


async def test_work_that_is_not_bound_to_an_attempt_goes_on_after_another_one(rig: Rig) -> None:
    for name in ("enter_requires_action", "finish_turn without one", "record_retry_state"):
        chat_id, _, fence = await setting(rig, CASES[name])
        await rig.update(chat_id, machine.record_generation_attempt)

        await rig.update(chat_id, CASES[name].work, fence=fence)


async def test_owner_that_lost_its_pair_is_stale_against_the_empty_one(rig: Rig) -> None:
    chat_id, _, fence = await setting(rig, CASES["load"])
    await rig.update(chat_id, machine.abandon)

    with pytest.raises(StaleFence) as refusal:
        await rig.update(chat_id, load, fence=fence)

    assert refusal.value.field == "worker_id"


async def test_missing_chat_counts_as_stale_for_those_with_a_fence_only(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    fence = await rig.acquire(chat_id)
    await rig.machine.bundle(lambda bundle: machine.delete_family(bundle, chat_id))
    rig.published.clear()

    with pytest.raises(StaleFence) as refusal:
        await rig.update(chat_id, machine.abandon, fence=fence)
    with pytest.raises(ChatNotFound):
        await rig.update(chat_id, machine.abandon)

    assert refusal.value.field == "chat"
    assert rig.published.hints == []


async def test_callback_behind_a_stale_fence_never_runs(rig: Rig) -> None:
    chat_id, chat, _ = await setting(rig, CASES["load"])

    async def never(tx: Tx) -> None:
        raise AssertionError("stale work must not even look")

    with pytest.raises(StaleFence):
        await rig.update(chat_id, never, fence=rig.fence(chat, runner_id=uuid4()))


async def test_same_worker_does_not_pass_as_its_former_self(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    former = await rig.acquire(chat_id)
    current = await rig.acquire(chat_id)
    assert former.worker_id == current.worker_id

    with pytest.raises(StaleFence):
        await rig.update(chat_id, machine.finish_turn, fence=former)

    await rig.update(chat_id, machine.finish_turn, fence=current)


async def test_deadline_is_kept_by_the_database_clock_behind_the_fence(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.update(chat_id, lambda tx: machine.commit_step(tx, [calling(call("call-1"))]))
    await rig.update(chat_id, lambda tx: machine.enter_requires_action(tx, timeout_seconds=3600))
    fence = await rig.acquire(chat_id)
    before = await rig.trace(chat_id)

    with pytest.raises(TransitionNotAllowed) as refusal:
        await rig.update(chat_id, lambda tx: MOVES[Transition.CANCEL_REQUIRES_ACTION](rig, tx), fence=fence)

    assert refusal.value.cause == "deadline_not_reached"
    assert await rig.trace(chat_id) == before
