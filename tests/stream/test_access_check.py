"""Database checks of the rights behind streams, and notifications of read cursors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from rookery.domain.access.rights import Role
from rookery.runtime.clock import SystemClock
from rookery.store.people import sessions
from rookery.stream.access_check import AccessCheck, ReadNotifier
from rookery.stream.access_monitor import Grant, Right
from rookery.testing.clock import FakeClock
from tests.store.people.account_rows import person
from tests.stream.stream_rig import Rig, open_rig

NOW = SystemClock().now()


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with open_rig(database_url) as opened:
        yield opened


async def session_of(rig: Rig, user_id: UUID, *, age: timedelta = timedelta()) -> str:
    async with rig.pool.acquire() as conn:
        return str((await sessions.create_session(conn, user_id, now=NOW - age)).session.id)


async def share(rig: Rig, chat_id: UUID, user_id: UUID) -> None:
    await rig.chats.sql(
        "INSERT INTO chat_shares (chat_id, user_id, created_at) VALUES ($1, $2, now())", chat_id, user_id
    )


async def test_rights_are_those_of_login_sharing_and_reason(rig: Rig) -> None:
    chat_id = await rig.chat("one", "two")
    async with rig.pool.acquire() as conn:
        reader, stranger = (await person(conn)).id, (await person(conn)).id
        admin, disabled = (await person(conn, role=Role.ADMIN)).id, (await person(conn, disabled=True)).id
    await share(rig, chat_id, reader)
    owner = rig.chats.user
    old = await session_of(rig, owner, age=timedelta(days=40))
    cases = [
        (Grant(user_id=owner, credential=await session_of(rig, owner), chat_id=chat_id), Right.KEPT),
        (Grant(user_id=owner, credential=await session_of(rig, owner)), Right.KEPT),
        (Grant(user_id=owner, credential=old, chat_id=chat_id), Right.LOGGED_OUT),
        (Grant(user_id=owner, credential=str(uuid4())), Right.LOGGED_OUT),
        (Grant(user_id=disabled, credential=await session_of(rig, disabled)), Right.LOGGED_OUT),
        (Grant(user_id=reader, credential=await session_of(rig, reader), chat_id=chat_id), Right.KEPT),
        (Grant(user_id=stranger, credential=await session_of(rig, stranger), chat_id=chat_id), Right.WITHDRAWN),
        (Grant(user_id=admin, credential=await session_of(rig, admin), chat_id=chat_id), Right.WITHDRAWN),
        (
            Grant(user_id=admin, credential=await session_of(rig, admin), chat_id=chat_id, has_reason=True),
            Right.KEPT,
        ),
    ]

    found = await AccessCheck(rig.pool, clock=SystemClock())([grant for grant, _ in cases])

    assert list(found) == [right for _, right in cases]


async def test_session_with_an_open_stream_does_not_end_for_want_of_requests(rig: Rig) -> None:
    owner = rig.chats.user
    watched = await session_of(rig, owner, age=timedelta(hours=20))
    idle = await session_of(rig, owner, age=timedelta(hours=20))
    check = AccessCheck(rig.pool, clock=FakeClock(NOW))

    await check([Grant(user_id=owner, credential=watched)])

    ends = {str(row["id"]): row["expires_at"] for row in await rig.pool.fetch("SELECT id, expires_at FROM sessions")}
    assert ends == {watched: NOW + sessions.IDLE, idle: NOW + timedelta(hours=4)}
    assert await rig.pool.fetchval("SELECT last_seen_at FROM users WHERE id = $1", owner) == NOW


async def test_session_lasts_no_longer_than_any_other_for_being_watched_with(rig: Rig) -> None:
    owner = rig.chats.user
    watched = await session_of(rig, owner, age=timedelta(hours=20))
    await rig.chats.sql("UPDATE sessions SET created_at = $1", NOW - sessions.LONGEST + timedelta(hours=6))

    await AccessCheck(rig.pool, clock=FakeClock(NOW))([Grant(user_id=owner, credential=watched)])

    assert await rig.pool.fetchval("SELECT expires_at FROM sessions") == NOW + timedelta(hours=6)


async def test_read_cursor_is_announced_only_to_other_tabs_of_the_reader(rig: Rig) -> None:
    chat_id = await rig.chat("one", "two")
    async with rig.pool.acquire() as conn:
        reader = (await person(conn)).id
    await share(rig, chat_id, reader)
    owners, readers = rig.site.watch(rig.chats.user), rig.site.watch(reader)
    await owners.until("ready")
    await readers.until("ready")

    ReadNotifier(rig.wire)(reader, chat_id)
    event = await readers.until("chat")

    assert event["kinds"] == ["read"]
    assert owners.of("chat") == []
