"""The whole table, derived from the table: every legal move lands where it says, every other pair is refused."""

from __future__ import annotations

import pytest

from rookery.chat.errors import ChatArchived, ChatNotFound, InvalidState, TransitionNotAllowed
from rookery.chat.states import State
from rookery.chat.transitions import ALLOWED_WHEN_INVALID, TABLE, Transition
from rookery.store import machine
from tests.store.machine.moves import MOVES, settings_for
from tests.store.machine.rig import Rig

EXISTING = [state for state in State if state is not State.N]
LEGAL = [(t, s) for t, moves in TABLE.items() for s in moves if s is not State.N]
ILLEGAL = [(t, s) for t in MOVES for s in EXISTING if s not in TABLE[t]]


def test_every_transition_of_the_table_has_a_move() -> None:
    assert set(MOVES) | {Transition.CREATE_CHAT} == set(TABLE)


@pytest.mark.parametrize(("name", "source"), LEGAL, ids=lambda value: str(value))
async def test_legal_transition_lands_in_every_state_the_table_lists_and_in_no_other(
    rig: Rig, name: Transition, source: State
) -> None:
    reached = set()
    for chat_id in await settings_for(rig, source):
        before = await rig.load(chat_id)
        rig.published.clear()

        await rig.update(chat_id, lambda tx: MOVES[name](rig, tx))

        after = await rig.load(chat_id)
        reached.add(after.state)
        assert after.snapshot_version == before.snapshot_version + 1
        assert [hint.snapshot_version for hint in rig.published.chats()] == [after.snapshot_version]
        assert rig.published.chats()[0].status == after.status

    assert reached == TABLE[name][source]


@pytest.mark.parametrize(("name", "source"), ILLEGAL, ids=lambda value: str(value))
async def test_illegal_transition_is_refused_and_leaves_no_trace(rig: Rig, name: Transition, source: State) -> None:
    for chat_id in await settings_for(rig, source):
        before = await rig.trace(chat_id)
        rig.published.clear()
        expected: type[Exception] = TransitionNotAllowed
        if source is State.INVALID and name not in ALLOWED_WHEN_INVALID:
            expected = InvalidState
        elif source.is_archived:
            expected = ChatArchived

        with pytest.raises(expected) as refusal:
            await rig.update(chat_id, lambda tx: MOVES[name](rig, tx))

        assert type(refusal.value) is expected
        assert await rig.trace(chat_id) == before
        assert rig.published.hints == []


@pytest.mark.parametrize("name", list(MOVES))
async def test_transition_on_a_missing_chat_says_that_there_is_none(rig: Rig, name: Transition) -> None:
    chat_id = await rig.chat(State.W)
    await rig.machine.bundle(lambda bundle: machine.delete_family(bundle, chat_id))
    rig.published.clear()

    with pytest.raises(ChatNotFound):
        await rig.update(chat_id, lambda tx: MOVES[name](rig, tx))

    assert rig.published.hints == []
