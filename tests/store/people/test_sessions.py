"""Sessions: their extension, their end, and secrets that cannot be guessed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from rookery.store.db import migrate
from rookery.store.people import credentials, sessions, users
from rookery.store.people.credentials import Kind
from rookery.store.people.errors import SessionExpired, SessionKeyRequired, SessionNotFound, Unauthenticated
from rookery.store.people.users import Status, UserPatch
from tests.store.builders import StoreRig, open_store_rig
from tests.store.people.account_rows import person

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SESSION_KEYS = next(each.version for each in migrate.load() if each.name == "session_keys")


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


async def test_cookie_leads_to_its_user(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")

    made = await sessions.create_session(world.conn, ada.id, now=NOW, ip="10.0.0.1", user_agent="Firefox\x00\n")
    found = await sessions.authenticate(world.conn, made.cookie, made.key, now=NOW)

    assert (found.user.id, found.session, found.renewed) == (ada.id, made.session, False)
    assert found.session.user_agent == "Firefox"
    assert found.actor.scopes == {"all"}


async def test_cookie_is_nowhere_in_the_database(world: StoreRig) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)

    row = str(await world.conn.fetchval("SELECT s::text FROM sessions s"))

    parsed = credentials.parse(Kind.SESSION, made.cookie)
    assert parsed is not None
    assert made.cookie not in row
    assert parsed.secret.hex() not in row
    assert made.cookie not in repr(parsed)


async def test_session_is_renewed_from_half_its_life_on(world: StoreRig) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)

    early = await sessions.authenticate(world.conn, made.cookie, made.key, now=NOW + 11 * HOUR)
    late = await sessions.authenticate(world.conn, made.cookie, made.key, now=NOW + 13 * HOUR)

    assert (early.renewed, early.session.expires_at) == (False, NOW + 24 * HOUR)
    assert (late.renewed, late.session.expires_at) == (True, NOW + 37 * HOUR)


async def test_unused_session_ends_after_a_day(world: StoreRig) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)

    with pytest.raises(SessionExpired):
        await sessions.authenticate(world.conn, made.cookie, made.key, now=NOW + 24 * HOUR)


async def test_session_in_daily_use_ends_after_thirty_days(world: StoreRig) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)
    at = NOW
    while at < NOW + sessions.LONGEST - 20 * HOUR:
        at += 20 * HOUR
        await sessions.authenticate(world.conn, made.cookie, made.key, now=at)

    with pytest.raises(SessionExpired):
        await sessions.authenticate(world.conn, made.cookie, made.key, now=NOW + sessions.LONGEST)


async def test_being_here_is_written_once_an_hour(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")
    assert (await users.get_user(world.conn, ada.id)).last_seen_at is None
    made = await sessions.create_session(world.conn, ada.id, now=NOW)

    await sessions.authenticate(world.conn, made.cookie, made.key, now=NOW + HOUR / 2)
    assert (await users.get_user(world.conn, ada.id)).last_seen_at == NOW
    await sessions.authenticate(world.conn, made.cookie, made.key, now=NOW + HOUR)

    assert (await users.get_user(world.conn, ada.id)).last_seen_at == NOW + HOUR


@pytest.mark.parametrize("cookie", ["", "rk_s_", "rk_s_" + "A" * 71, "nonsense", "rk_s_" + "ü" * 71])
async def test_garbage_is_refused(world: StoreRig, cookie: str) -> None:
    with pytest.raises(Unauthenticated):
        await sessions.authenticate(world.conn, cookie, "", now=NOW)


async def test_right_id_with_a_wrong_secret_is_refused(world: StoreRig) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)
    forged = credentials.Credential(Kind.SESSION, made.session.id, b"x" * 32).reveal()

    with pytest.raises(Unauthenticated) as refused:
        await sessions.authenticate(world.conn, forged, made.key, now=NOW)

    assert type(refused.value) is Unauthenticated


async def test_session_of_a_disabled_user_is_no_good(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")
    made = await sessions.create_session(world.conn, ada.id, now=NOW)
    await users.update_user(world.conn, ada.id, patch=UserPatch(status=Status.DISABLED))

    with pytest.raises(SessionExpired):
        await sessions.authenticate(world.conn, made.cookie, made.key, now=NOW)


async def test_cookie_without_its_key_is_refused(world: StoreRig) -> None:
    made, other = [
        await sessions.create_session(world.conn, (await person(world.conn, name)).id, now=NOW)
        for name in ("ada", "bob")
    ]
    forged = credentials.Credential(Kind.SESSION_KEY, made.session.id, b"x" * 32).reveal()

    for key in ("", "nonsense", other.key, forged, made.cookie):
        with pytest.raises(SessionKeyRequired):
            await sessions.authenticate(world.conn, made.cookie, key, now=NOW)
    assert made.key not in str(await world.conn.fetchval("SELECT array_agg(s::text) FROM sessions s")) + repr(made)


async def test_session_of_an_older_replica_has_no_key_and_does_not_count(world: StoreRig) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)
    await world.conn.execute("UPDATE sessions SET key_hash = NULL")

    with pytest.raises(SessionExpired):
        await sessions.authenticate(world.conn, made.cookie, made.key, now=NOW)


async def test_session_is_looked_up_by_one_statement(world: StoreRig) -> None:
    made = await sessions.create_session(world.conn, (await person(world.conn)).id, now=NOW)
    asked: list[str] = []
    world.conn.add_query_logger(lambda record: asked.append(record.query))

    await sessions.authenticate(world.conn, made.cookie, made.key, now=NOW)
    await asyncio.sleep(0)  # the logger is called by the loop

    assert asked == [sessions.FIND]


async def test_update_ends_the_sessions_of_before_once(empty_database_url: str, tmp_path: Path) -> None:
    conn = await asyncpg.connect(empty_database_url)
    try:
        for each in migrate.load():
            if each.version < SESSION_KEYS:
                (tmp_path / f"{each}.sql").write_text(each.sql)
        await migrate.migrate(conn, tmp_path)
        user = await conn.fetchval("INSERT INTO users (username) VALUES ('ada') RETURNING id")
        await conn.execute(
            "INSERT INTO sessions (id, user_id, secret_hash, created_at, last_seen_at, expires_at)"
            " VALUES (gen_random_uuid(), $1, sha256('x'), now(), now(), now() + interval '1 day')",
            user,
        )

        await migrate.migrate(conn)
        ended = await conn.fetchval("SELECT count(*) FROM sessions")
        await sessions.create_session(conn, user, now=NOW)
        await migrate.migrate(conn)
        kept = await conn.fetchval("SELECT count(*) FROM sessions")
    finally:
        await conn.close()

    assert (ended, kept) == (0, 1)


async def test_ending_others_keeps_one(world: StoreRig) -> None:
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


async def test_purge_removes_what_has_ended(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")
    await sessions.create_session(world.conn, ada.id, now=NOW)
    await sessions.create_session(world.conn, ada.id, now=NOW + HOUR)

    assert await sessions.purge_sessions(world.conn, now=NOW + 24 * HOUR) == 1
    assert await world.conn.fetchval("SELECT count(*) FROM sessions") == 1
