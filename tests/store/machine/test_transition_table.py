"""The transition table: every legal transition leads to its listed state, and every other pair is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rookery.domain.chat.errors import ChatArchived, ChatNotFound, InvalidState, TransitionNotAllowed
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import ALLOWED_WHEN_INVALID, TABLE, Transition
from rookery.store import machine
from tests.store.machine.machine_rig import Rig
from tests.store.machine.transition_calls import MOVES, settings_for

EXISTING = [state for state in State if state is not State.N]
LEGAL = [(t, s) for t, moves in TABLE.items() for s in moves if s is not State.N]
ILLEGAL = [(t, s) for t in MOVES for s in EXISTING if s not in TABLE[t]]
# A chat becomes invalid only where constraints are dropped, so these have a database of their own.
SEPARATE = State.INVALID


def in_valid_states(pairs: Sequence[tuple[Transition, State]]) -> list[tuple[Transition, State]]:
    return [(name, source) for name, source in pairs if source is not SEPARATE]


def test_every_transition_of_the_table_has_a_move() -> None:
    assert set(MOVES) | {Transition.CREATE_CHAT} == set(TABLE)


@pytest.mark.parametrize(("name", "source"), in_valid_states(LEGAL), ids=lambda value: str(value))
async def test_legal_transition_lands_in_every_state_the_table_lists_and_in_no_other(
    shared_rig: Rig, name: Transition, source: State
) -> None:
    await lands(shared_rig, name, source)


@pytest.mark.parametrize(("name", "source"), in_valid_states(ILLEGAL), ids=lambda value: str(value))
async def test_illegal_transition_is_refused_and_leaves_no_trace(
    shared_rig: Rig, name: Transition, source: State
) -> None:
    await is_refused(shared_rig, name, source)


async def test_invalid_chat_does_what_the_table_says_and_nothing_else(rig: Rig) -> None:
    for name, source in LEGAL:
        if source is SEPARATE:
            await lands(rig, name, source)
    for name, source in ILLEGAL:
        if source is SEPARATE:
            await is_refused(rig, name, source)


async def lands(rig: Rig, name: Transition, source: State) -> None:
    reached = set()
    for chat_id in await settings_for(rig, source):
        before = await rig.load(chat_id)
        rig.published.clear()

        await rig.update(chat_id, lambda tx: MOVES[name](rig, tx))

        after = await rig.load(chat_id)
        reached.add(after.state)
        assert after.snapshot_version == before.snapshot_version + 1, name
        assert [hint.snapshot_version for hint in rig.published.chats()] == [after.snapshot_version], name
        assert rig.published.chats()[0].status == after.status, name

    assert reached == TABLE[name][source], name


async def is_refused(rig: Rig, name: Transition, source: State) -> None:
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

        assert type(refusal.value) is expected, name
        assert await rig.trace(chat_id) == before, name
        assert rig.published.hints == [], name


@pytest.mark.parametrize("name", list(MOVES))
async def test_transition_on_a_missing_chat_says_that_there_is_none(shared_rig: Rig, name: Transition) -> None:
    rig, chat_id = shared_rig, await shared_rig.chat(State.W)
    await rig.machine.bundle(lambda bundle: machine.delete_family(bundle, chat_id))
    rig.published.clear()

    with pytest.raises(ChatNotFound):
        await rig.update(chat_id, lambda tx: MOVES[name](rig, tx))

    assert rig.published.hints == []
