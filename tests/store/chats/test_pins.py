"""Pins: numbered 1..n per user, also after concurrent changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.domain.chat.errors import ChatNotFound, ChatNotRoot, InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.store.chats import pins
from rookery.store.chats.pins import Pin
from tests.store.builders import OPEN, StoreRig, open_store_rig


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


async def pinned_chats(world: StoreRig, user_id: UUID, count: int) -> list[ChatId]:
    chats = [await world.chat(user_id) for _ in range(count)]
    for chat in chats:
        await pins.pin(world.conn, chat, user_id=user_id)
    return chats


async def order_of(world: StoreRig, user_id: UUID) -> list[ChatId]:
    """Return the pinned chats in order, after a check of their numbers."""
    listed = await pins.list_pins(world.conn, user_id)
    assert [pin.pin_order for pin in listed] == list(range(1, len(listed) + 1))
    return [pin.chat_id for pin in listed]


async def test_a_new_pin_goes_last_for_any_requested_position(world: StoreRig) -> None:
    user = await world.user()
    a, b = await pinned_chats(world, user, 2)
    c = await world.chat(user)

    assert await pins.pin(world.conn, c, user_id=user, position=1) == Pin(c, 3)

    assert await order_of(world, user) == [a, b, c]


@pytest.mark.parametrize(
    ("position", "expected"),
    [(1, "cabd"), (2, "acbd"), (3, "abcd"), (4, "abdc"), (0, "cabd"), (-7, "cabd"), (99, "abdc"), (2**80, "abdc")],
)
async def test_moving_clamps_and_shifts_the_neighbours(world: StoreRig, position: int, expected: str) -> None:
    user = await world.user()
    names = dict(zip("abcd", await pinned_chats(world, user, 4), strict=True))

    moved = await pins.pin(world.conn, names["c"], user_id=user, position=position)

    assert await order_of(world, user) == [names[name] for name in expected]
    assert moved == Pin(names["c"], expected.index("c") + 1)


async def test_pinning_again_without_a_position_leaves_it_there(world: StoreRig) -> None:
    user = await world.user()
    a, b = await pinned_chats(world, user, 2)

    assert await pins.pin(world.conn, a, user_id=user) == Pin(a, 1)

    assert await order_of(world, user) == [a, b]


async def test_unpinning_closes_the_gap(world: StoreRig) -> None:
    user = await world.user()
    a, b, c = await pinned_chats(world, user, 3)

    assert await pins.unpin(world.conn, b, user_id=user)

    assert await order_of(world, user) == [a, c]


async def test_unpinning_what_is_not_pinned_changes_nothing(world: StoreRig) -> None:
    user = await world.user()
    [a] = await pinned_chats(world, user, 1)

    assert not await pins.unpin(world.conn, await world.chat(user), user_id=user)

    assert await order_of(world, user) == [a]


async def test_two_people_pinning_one_chat_do_not_affect_each_other(world: StoreRig) -> None:
    user, other = await world.user(), await world.user()
    a, b = await pinned_chats(world, user, 2)
    await pins.pin(world.conn, b, user_id=other)

    await pins.pin(world.conn, b, user_id=user, position=1)
    await pins.unpin(world.conn, b, user_id=other)

    assert await order_of(world, user) == [b, a]
    assert await order_of(world, other) == []


async def test_archived_chats_are_refused(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user, archived=True)

    with pytest.raises(InvalidInput) as caught:
        await pins.pin(world.conn, chat, user_id=user)

    assert caught.value.field == "pin_order"
    assert await order_of(world, user) == []


async def test_a_person_has_so_many_pins_and_no_more(world: StoreRig) -> None:
    user = await world.user()
    chats = [await world.chat(user) for _ in range(pins.MAX_PINS + 1)]
    await world.conn.execute(pins.WRITE_ORDER, user, chats[:-1])

    with pytest.raises(InvalidInput) as caught:
        await pins.pin(world.conn, chats[-1], user_id=user)
    assert await pins.pin(world.conn, chats[-2], user_id=user, position=1) == Pin(chats[-2], 1)

    assert caught.value.field == "pin_order"
    assert len(await order_of(world, user)) == pins.MAX_PINS


async def test_children_are_refused(world: StoreRig) -> None:
    user = await world.user()
    child = await world.chat(user, parent=await world.chat(user))

    with pytest.raises(ChatNotRoot):
        await pins.pin(world.conn, child, user_id=user)


async def test_missing_chats_are_not_found(world: StoreRig) -> None:
    with pytest.raises(ChatNotFound):
        await pins.pin(world.conn, ChatId(uuid4()), user_id=await world.user())


async def test_pins_move_no_version(world: StoreRig) -> None:
    user = await world.user()
    a, b = await world.chat(user), await world.chat(user)
    before = await world.versions(a)

    await pins.pin(world.conn, a, user_id=user)
    await pins.pin(world.conn, b, user_id=user)
    await pins.pin(world.conn, a, user_id=user, position=2)
    await pins.unpin(world.conn, a, user_id=user)

    assert await world.versions(a) == before


async def test_numbers_stay_whole_when_many_pin_move_and_unpin_at_once(world: StoreRig) -> None:
    user = await world.user()
    chats = [await world.chat(user) for _ in range(6)]
    seeds = range(6)

    async def meddle(seed: int) -> None:
        rng = random.Random(seed)
        async with world.connection() as conn:
            for _ in range(15):
                chat = rng.choice(chats)
                if rng.random() < 0.7:
                    await pins.pin(conn, chat, user_id=user, position=rng.randint(-1, 8))
                else:
                    await pins.unpin(conn, chat, user_id=user)

    await asyncio.gather(*map(meddle, seeds))

    order = await order_of(world, user)
    assert len(set(order)) == len(order)


async def test_concurrent_new_pins_all_get_a_number(world: StoreRig) -> None:
    user = await world.user()
    chats = [await world.chat(user) for _ in range(8)]

    async def pin(chat: ChatId) -> None:
        async with world.connection() as conn:
            await pins.pin(conn, chat, user_id=user)

    await asyncio.gather(*map(pin, chats))

    assert set(await order_of(world, user)) == set(chats)


async def test_dropping_a_chats_pins_closes_everybodys_gap(world: StoreRig) -> None:
    user, other = await world.user(), await world.user()
    a, b, c = await pinned_chats(world, user, 3)
    for chat in (b, a):
        await pins.pin(world.conn, chat, user_id=other)

    async with world.conn.transaction():
        await world.conn.execute(OPEN, b)
        await pins.drop_pins(world.conn, b)

    assert await order_of(world, user) == [a, c]
    assert await order_of(world, other) == [a]


async def test_a_pin_cannot_slip_in_under_an_archive(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)

    async with world.connection() as other:
        async with world.conn.transaction():
            await world.conn.execute(OPEN, chat)
            await pins.drop_pins(world.conn, chat)
            late = asyncio.create_task(pins.pin(other, chat, user_id=user))
            await _until_waiting(world, other)
            await world.conn.execute("UPDATE chats SET archived = true, archived_at = now() WHERE id = $1", chat)
        with pytest.raises(InvalidInput):
            await late

    assert await order_of(world, user) == []


async def test_numbers_heal_when_a_pinned_chat_vanished(world: StoreRig) -> None:
    user = await world.user()
    chats = await pinned_chats(world, user, 4)
    await world.conn.execute("DELETE FROM chats WHERE id = $1", chats[1])

    await pins.pin(world.conn, chats[3], user_id=user, position=2)

    assert await order_of(world, user) == [chats[0], chats[3], chats[2]]


async def _until_waiting(world: StoreRig, blocked: asyncpg.Connection) -> None:
    """Return when the other connection waits for a lock."""
    pid = blocked.get_server_pid()
    blockers: Sequence[int] = ()
    async with asyncio.timeout(10):
        while not blockers:
            blockers = await world.conn.fetchval("SELECT pg_blocking_pids($1)", pid)
