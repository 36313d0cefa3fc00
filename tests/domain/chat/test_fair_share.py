"""The fair share of a pool: slots for owners without a running chat, and the owners who give way."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat.fair_share import (
    Claim,
    Use,
    WaitingChat,
    blocks_waiting_owner,
    find_donors,
    find_receiver,
    may_start,
)
from rookery.domain.chat.messages import ChatId

START = datetime(2030, 1, 1, tzinfo=UTC)


def claim(owner: int, held: int, *, waits: bool = False, since: int = 0) -> Claim:
    waiting = WaitingChat(ChatId(UUID(int=owner)), 1, START + timedelta(seconds=since)) if waits else None
    return Claim(UUID(int=owner), held, waiting)


def most_of_one(limit: int) -> int:
    """Return the number of chats that a single owner can run."""
    held = 0
    while may_start(limit, Use(held, min(held, 1), held)):
        held += 1
    return held


@pytest.mark.parametrize(
    ("limit", "most"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (8, 6), (20, 15), (40, 30), (200, 150)]
)
def test_one_owner_takes_three_quarters_of_the_slots(limit: int, most: int) -> None:
    assert most_of_one(limit) == most


@pytest.mark.parametrize("limit", [4, 20, 200])
def test_owners_who_have_none_find_room_until_the_reserve_is_used(limit: int) -> None:
    busy = most_of_one(limit)

    for others in range(limit // 4):
        assert may_start(limit, Use(busy + others, 1 + others, 0))
    assert not may_start(limit, Use(limit, 1 + limit // 4, 0))


def test_second_chat_of_an_owner_is_not_taken_from_the_reserve() -> None:
    assert not may_start(20, Use(16, 2, 1))
    assert may_start(20, Use(15, 2, 1))


def test_owner_above_the_share_gives_way_to_who_has_the_least_and_waits_longest() -> None:
    claims = [claim(1, 15, waits=True), claim(2, 3, waits=True), claim(3, 2, waits=True, since=9), claim(4, 0)]
    claims[3] = claim(4, 2, waits=True, since=1)

    assert find_donors(20, claims) == {UUID(int=1)}
    found = find_receiver(20, claims, donor=UUID(int=1))
    assert found is not None
    assert found.chat_id == UUID(int=4)


@pytest.mark.parametrize(
    "claims",
    [
        [claim(1, 15, waits=True)],  # its own backlog
        [claim(1, 15, waits=True), claim(2, 1)],  # the other has all it wants
        [claim(1, 15), claim(2, 0, waits=True)],  # there is room
        [claim(1, 10, waits=True), claim(2, 10, waits=True)],  # both have the same
        [claim(owner, 1, waits=owner > 4) for owner in range(1, 5)] + [claim(9, 0, waits=True)],
    ],
)
def test_no_owner_gives_way_without_need(claims: list[Claim]) -> None:
    limit = 4 if len(claims) > 2 else 20

    assert find_donors(limit, claims) == frozenset()
    assert all(find_receiver(limit, claims, donor=each.owner_id) is None for each in claims)


def test_last_slot_is_left_to_who_has_less_and_waits_for_it() -> None:
    use = Use(active=3, owners=2, own=2)
    mine, poorer = claim(1, 2, waits=True), claim(3, 0, waits=True)

    assert blocks_waiting_owner(4, use, [mine, poorer], chat_id=ChatId(UUID(int=1)))
    assert not blocks_waiting_owner(4, use, [mine, claim(2, 1)], chat_id=ChatId(UUID(int=1)))
    assert not blocks_waiting_owner(4, use, [mine, claim(2, 2, waits=True)], chat_id=ChatId(UUID(int=1)))
    assert not blocks_waiting_owner(9, use, [mine, poorer], chat_id=ChatId(UUID(int=1))), "there is another slot"


@given(
    limit=st.integers(1, 60),
    wants=st.lists(st.integers(1, 80), min_size=1, max_size=12),
    arrivals=st.permutations(range(12)),
)
def test_slots_come_to_rest_at_a_fair_share_after_a_bounded_number_of_moves(
    limit: int, wants: list[int], arrivals: list[int]
) -> None:
    """Owners arrive one after the other, each with all chats at the same time, and no chat ends."""
    held: Counter[int] = Counter()
    moves = 0
    here: list[int] = []
    for owner in (each for each in arrivals if each < len(wants)):
        here.append(owner)
        for _ in range(limit * 3):
            claims = [claim(each, held[each], waits=held[each] < wants[each]) for each in here]
            active, owners = held.total(), sum(held[each] > 0 for each in here)
            hungry = sorted((each for each in here if held[each] < wants[each]), key=lambda each: (held[each], each))
            starts = [e for e in hungry if may_start(limit, Use(active, owners, held[e]))]
            if starts:
                held[starts[0]] += 1
                continue
            donors = find_donors(limit, claims)
            if not donors:
                break
            donor = min(donors)
            assert find_receiver(limit, claims, donor=donor) is not None
            held[donor.int] -= 1
            moves += 1
        assert held.total() <= limit

    share = max(1, limit // len(here))
    assert moves <= limit * len(here)
    greedy = [owner for owner in here if held[owner] > share]
    poor = [owner for owner in here if held[owner] < min(share, wants[owner])]
    assert not (greedy and poor), (held, wants, share)
