"""A chat in an invalid state refuses every change except the repair, which loses nothing."""

from __future__ import annotations

import msgspec
import pytest

from rookery.domain.chat.chat import Chat, LastError
from rookery.domain.chat.errors import InvalidState, TransitionNotAllowed
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import ALLOWED_WHEN_INVALID
from rookery.store import machine
from rookery.store.db.hints import WatchKind
from rookery.store.machine.turn_transitions import REPAIRED
from tests.store.machine.machine_rig import Rig, call, calling, closure_of, words
from tests.store.machine.transition_calls import MOVES

# How a row can get where the constraints would not let it: the state before, what is forced, the state after.
DAMAGE = {
    "waiting with a backlog": (State.E1, "status = 'waiting', last_error = NULL", State.E1),
    "archived while running": (State.R0, "archived = true, archived_at = now()", State.E0),
    "archived while running with a backlog": (State.R1, "archived = true, archived_at = now()", State.E1),
    "archived while interrupting": (State.I0, "archived = true, archived_at = now()", State.E0),
    "archived while it waits for a client": (State.A1, "archived = true, archived_at = now()", State.E1),
    "archived and waiting with a backlog": (
        State.E1,
        "status = 'waiting', last_error = NULL, archived = true, archived_at = now()",
        State.E1,
    ),
    "a status of another version": (State.W, "status = 'asleep'", State.E0),
    "a status of another version with a backlog": (State.R1, "status = 'asleep'", State.E1),
}


_CONSTRAINTS = """
    SELECT conname, pg_get_constraintdef(oid)
      FROM pg_constraint
     WHERE conrelid = 'chats'::regclass AND contype = 'c'
"""


async def damaged(rig: Rig, name: str) -> ChatId:
    state, assignments, _ = DAMAGE[name]
    chat_id = await rig.chat(state, queued=2)
    await rig.force(chat_id, assignments)
    assert await rig.state(chat_id) is State.INVALID
    rig.published.clear()
    return chat_id


def error_of(chat: Chat) -> LastError:
    assert chat.last_error is not None
    return msgspec.json.decode(chat.last_error, type=LastError)


@pytest.mark.parametrize("name", DAMAGE)
async def test_damaged_chat_refuses_every_transition(rig: Rig, name: str) -> None:
    chat_id = await damaged(rig, name)
    before = await rig.trace(chat_id)

    for transition, move in MOVES.items():
        if transition in ALLOWED_WHEN_INVALID:
            continue
        with pytest.raises(InvalidState):
            await rig.update(chat_id, lambda tx, move=move: move(rig, tx))  # type: ignore[misc]

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


@pytest.mark.parametrize("name", DAMAGE)
async def test_repair_lands_in_an_error_that_every_constraint_accepts_with_the_queue_intact(
    rig: Rig, name: str
) -> None:
    async with rig.pool.acquire() as conn:
        constraints = await conn.fetch(_CONSTRAINTS)
    chat_id = await damaged(rig, name)
    queue, said = await rig.queue(chat_id), [m.id for m in await rig.history(chat_id)]

    await rig.update(chat_id, machine.reconcile_invalid_state)

    chat = await rig.load(chat_id)
    assert chat.state is DAMAGE[name][2]
    assert await rig.queue(chat_id) == queue
    assert [m.id for m in await rig.history(chat_id)][: len(said)] == said
    assert error_of(chat) == REPAIRED
    for constraint, definition in constraints:
        await rig.sql(f"ALTER TABLE chats ADD CONSTRAINT {constraint} {definition}")


async def test_repair_is_announced_and_asks_for_no_owner(rig: Rig) -> None:
    chat_id = await damaged(rig, "archived while running")

    await rig.update(chat_id, machine.reconcile_invalid_state)

    assert [(hint.status, hint.archived) for hint in rig.published.chats()] == [("error", False)]
    assert [hint.kind for hint in rig.published.watch()] == [WatchKind.UNARCHIVED]
    assert rig.published.ownership() == []


async def test_default_error_of_a_repair_says_how_to_go_on(rig: Rig) -> None:
    chat_id = await damaged(rig, "a status of another version")

    await rig.update(chat_id, machine.reconcile_invalid_state)

    message = error_of(await rig.load(chat_id)).message
    assert "Send or edit a message" in message
    await rig.send(chat_id, "go on")
    assert await rig.state(chat_id) is State.R0


async def test_error_given_to_a_repair_is_kept(rig: Rig) -> None:
    chat_id = await damaged(rig, "a status of another version")
    given = LastError(message="Restored from a backup.", retryable=False)

    await rig.update(chat_id, lambda tx: machine.reconcile_invalid_state(tx, given))

    assert error_of(await rig.load(chat_id)) == given


async def test_repair_answers_the_calls_of_clients_and_leaves_the_others_to_the_next_user_row(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    calls = calling(call("client"), call("server", "run_command"))
    await rig.update(chat_id, lambda tx: machine.commit_step(tx, [calls]))
    await rig.update(chat_id, machine.enter_requires_action)
    await rig.force(chat_id, "archived = true, archived_at = now()")

    closed = await rig.update(chat_id, machine.reconcile_invalid_state)

    chat = await rig.load(chat_id)
    assert [closure_of(message) for message in closed] == [("client", CloseReason.INVALID_STATE)]
    assert [m.id for m in await rig.history(chat_id)][-1:] == [m.id for m in closed]
    assert chat.history_version == chat.snapshot_version
    assert chat.requires_action_deadline_at is None
    sent = await rig.send(chat_id, "go on")
    assert closure_of(sent.inserted[0]) == ("server", CloseReason.NEW_USER_MESSAGE)


async def test_repair_that_closes_nothing_leaves_the_history_version_alone(rig: Rig) -> None:
    chat_id = await damaged(rig, "archived while running")
    before = await rig.load(chat_id)

    assert await rig.update(chat_id, machine.reconcile_invalid_state) == []

    after = await rig.load(chat_id)
    assert after.history_version == before.history_version
    assert after.updated_at > before.updated_at


async def test_repaired_backlog_runs_on_with_the_next_message(rig: Rig) -> None:
    chat_id = await damaged(rig, "waiting with a backlog")
    await rig.update(chat_id, machine.reconcile_invalid_state)

    sent = await rig.send(chat_id, "go on")

    assert [words(m) for m in sent.inserted] == ["queued 0"]
    assert [words(row) for row in await rig.queue(chat_id)] == ["queued 1", "go on"]
    assert await rig.state(chat_id) is State.R1


async def test_repair_drops_the_order_to_compact(rig: Rig) -> None:
    chat_id = await rig.chat(State.E0)
    await rig.update(chat_id, machine.request_compaction)
    await rig.force(chat_id, "status = 'asleep'")

    await rig.update(chat_id, machine.reconcile_invalid_state)

    chat = await rig.load(chat_id)
    assert (chat.compaction_requested_at, chat.compaction_resume) == (None, False)


async def test_damaged_chat_can_change_its_owner_and_nothing_else(rig: Rig) -> None:
    chat_id = await damaged(rig, "archived while running")
    before = await rig.load(chat_id)

    fence = await rig.acquire(chat_id)
    await rig.update(chat_id, machine.abandon, fence=rig.fence(await rig.load(chat_id), allow_archived=True))

    assert fence.runner_id is not None
    assert await rig.load(chat_id) == msgspec.structs.replace(before, snapshot_version=before.snapshot_version + 2)
    assert rig.published.ownership() == []


async def test_sound_chat_is_not_repaired(rig: Rig) -> None:
    for state in (State.W, State.R1, State.XW):
        chat_id = await rig.chat(state)
        before = await rig.trace(chat_id)

        with pytest.raises(TransitionNotAllowed):
            await rig.update(chat_id, machine.reconcile_invalid_state)

        assert await rig.trace(chat_id) == before
