"""Idempotency keys: the stored first answer, or a refusal with the reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from rookery.domain.chat.errors import InvalidInput
from rookery.store.db import idempotency
from rookery.store.db.idempotency import Request
from rookery.store.people.errors import IdempotencyInProgress, IdempotencyMismatch
from tests.store.builders import StoreRig, open_store_rig
from tests.store.people.account_rows import person

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


def request(user_id: UUID, *, key: str = "k", operation: str = "chats.create", body: bytes = b"{}") -> Request:
    return Request(user_id, key, operation, body)


async def do(world: StoreRig, asked: Request, *, answer: bytes = b"201", now: datetime = NOW) -> bytes | None:
    """Handle a request like a router: look up the key, act, store the answer. Return the answer that was stored
    before.
    """
    async with world.conn.transaction():
        found = await idempotency.find_answer(world.conn, asked, now=now)
        if found is None:
            await idempotency.store_answer(world.conn, asked, answer=answer, now=now)
        return found


async def test_repeat_gets_the_first_answer(world: StoreRig) -> None:
    asked = request((await person(world.conn)).id)

    assert await do(world, asked) is None
    assert await do(world, asked, answer=b"other") == b"201"


async def test_key_of_another_user_is_another_key(world: StoreRig) -> None:
    await do(world, request((await person(world.conn)).id))

    assert await do(world, request((await person(world.conn)).id)) is None


@pytest.mark.parametrize("other", [{"body": b"[]"}, {"operation": "workspaces.create"}])
async def test_key_used_for_something_else_is_refused(world: StoreRig, other: dict[str, object]) -> None:
    user = (await person(world.conn)).id
    await do(world, request(user))

    with pytest.raises(IdempotencyMismatch):
        await do(world, request(user, **other))  # type: ignore[arg-type]


async def test_repeat_while_the_first_is_under_way_is_refused_at_once(world: StoreRig) -> None:
    asked = request((await person(world.conn)).id)

    async with world.connection() as other, other.transaction():
        assert await idempotency.find_answer(other, asked, now=NOW) is None
        with pytest.raises(IdempotencyInProgress):
            await do(world, asked)
        await idempotency.store_answer(other, asked, answer=b"first", now=NOW)

    assert await do(world, asked) == b"first"


async def test_failed_first_leaves_nothing_behind(world: StoreRig) -> None:
    asked = request((await person(world.conn)).id)
    failing = world.conn.transaction()
    await failing.start()
    await idempotency.find_answer(world.conn, asked, now=NOW)
    await idempotency.store_answer(world.conn, asked, answer=b"lost", now=NOW)
    await failing.rollback()

    assert await do(world, asked) is None


async def test_answer_is_kept_for_a_day(world: StoreRig) -> None:
    user = (await person(world.conn)).id
    await do(world, request(user))

    assert await do(world, request(user), now=NOW + timedelta(hours=23)) == b"201"
    assert await do(world, request(user, body=b"[]"), now=NOW + timedelta(hours=24)) is None
    assert await idempotency.purge_answers(world.conn, now=NOW + timedelta(hours=47)) == 0
    assert await idempotency.purge_answers(world.conn, now=NOW + timedelta(hours=48)) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "a\0b"])
def test_bad_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        request(UUID(int=1), key=key)

    assert refused.value.field == "Idempotency-Key"
