"""Sessions: they slide, they end, and nobody guesses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from rookery.store import credentials, sessions, users
from rookery.store.access_errors import SessionExpired, SessionNotFound, Unauthenticated
from rookery.store.credentials import Kind
from rookery.store.users import Status, UserPatch
from tests.store.accounts import person
from tests.store.builders import World, open_world

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with open_world(database_url) as world:
        yield world


async def test_cookie_leads_to_its_user(world: World) -> None:
    ada = await person(world.conn, "ada")

    made = await sessions.create_session(world.conn, ada.id, now=NOW, ip="10.0.0.1", user_agent="Firefox\x00\n")
    found = await sessions.authenticate(world.conn, made.cookie, now=NOW)

    assert (found.user.id, found.session, found.renewed) == (ada.id, made.session, False)
    assert found.session.user_agent == "Firefox"
    assert found.actor.scopes == {"all"}


async def test_cookie_is_nowhere_in_the_database(world: World) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)

    row = str(await world.conn.fetchval("SELECT s::text FROM sessions s"))

    parsed = credentials.parse(Kind.SESSION, made.cookie)
    assert parsed is not None
    assert made.cookie not in row
    assert parsed.secret.hex() not in row
    assert made.cookie not in repr(parsed)


async def test_session_is_renewed_from_half_its_life_on(world: World) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)

    early = await sessions.authenticate(world.conn, made.cookie, now=NOW + 11 * HOUR)
    late = await sessions.authenticate(world.conn, made.cookie, now=NOW + 13 * HOUR)

    assert (early.renewed, early.session.expires_at) == (False, NOW + 24 * HOUR)
    assert (late.renewed, late.session.expires_at) == (True, NOW + 37 * HOUR)


async def test_unused_session_ends_after_a_day(world: World) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)

    with pytest.raises(SessionExpired):
        await sessions.authenticate(world.conn, made.cookie, now=NOW + 24 * HOUR)


async def test_session_in_daily_use_ends_after_thirty_days(world: World) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)
    at = NOW
    while at < NOW + sessions.LONGEST - 20 * HOUR:
        at += 20 * HOUR
        await sessions.authenticate(world.conn, made.cookie, now=at)

    with pytest.raises(SessionExpired):
        await sessions.authenticate(world.conn, made.cookie, now=NOW + sessions.LONGEST)


async def test_being_here_is_written_once_an_hour(world: World) -> None:
    ada = await person(world.conn, "ada")
    assert (await users.get_user(world.conn, ada.id)).last_seen_at is None
    made = await sessions.create_session(world.conn, ada.id, now=NOW)

    await sessions.authenticate(world.conn, made.cookie, now=NOW + HOUR / 2)
    assert (await users.get_user(world.conn, ada.id)).last_seen_at == NOW
    await sessions.authenticate(world.conn, made.cookie, now=NOW + HOUR)

    assert (await users.get_user(world.conn, ada.id)).last_seen_at == NOW + HOUR


@pytest.mark.parametrize("cookie", ["", "rk_s_", "rk_s_" + "A" * 71, "nonsense", "rk_s_" + "ü" * 71])
async def test_garbage_is_refused(world: World, cookie: str) -> None:
    with pytest.raises(Unauthenticated):
        await sessions.authenticate(world.conn, cookie, now=NOW)


async def test_right_id_with_a_wrong_secret_is_refused(world: World) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)
    forged = credentials.Credential(Kind.SESSION, made.session.id, b"x" * 32).reveal()

    with pytest.raises(Unauthenticated) as refused:
        await sessions.authenticate(world.conn, forged, now=NOW)

    assert type(refused.value) is Unauthenticated


async def test_session_of_a_disabled_user_is_no_good(world: World) -> None:
    ada = await person(world.conn, "ada")
    made = await sessions.create_session(world.conn, ada.id, now=NOW)
    await users.update_user(world.conn, ada.id, patch=UserPatch(status=Status.DISABLED))

    with pytest.raises(SessionExpired):
        await sessions.authenticate(world.conn, made.cookie, now=NOW)


async def test_ending_others_keeps_one(world: World) -> None:
    ada, bob = await person(world.conn, "ada"), await person(world.conn, "bob")
    kept, ended, foreign = [
        (await sessions.create_session(world.conn, user.id, now=NOW)).session.id for user in (ada, ada, bob)
    ]

    assert await sessions.end_sessions(world.conn, ada.id, but=kept) == [ended]
    assert [session.id for session in await sessions.list_sessions(world.conn, ada.id, now=NOW)] == [kept]
    with pytest.raises(SessionNotFound):
        await sessions.end_session(world.conn, ada.id, session_id=foreign)
    await sessions.end_session(world.conn, bob.id, session_id=foreign)
    assert await sessions.list_sessions(world.conn, bob.id, now=NOW) == []


async def test_purge_removes_what_has_ended(world: World) -> None:
    ada = await person(world.conn, "ada")
    await sessions.create_session(world.conn, ada.id, now=NOW)
    await sessions.create_session(world.conn, ada.id, now=NOW + HOUR)

    assert await sessions.purge_sessions(world.conn, now=NOW + 24 * HOUR) == 1
    assert await world.conn.fetchval("SELECT count(*) FROM sessions") == 1
