"""Repair of email addresses from older versions: each is rewritten once, oldest first, and all users can still log
in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from rookery.store.people import users
from rookery.store.people.users import EmailRepair, User, repair_emails
from tests.eventually import until
from tests.store.builders import StoreRig, open_store_rig
from tests.store.people.account_rows import person

SHARP, PLAIN = "o@Stra\u00dfe.example", "o@strasse.example"
WIDE = "\uff4f@strasse.example"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


async def old_user(world: StoreRig, email: str, *, day: int) -> User:
    """Insert an account as an older version stored it."""
    made = await person(world.conn)
    created_at = datetime(2026, 1, day, tzinfo=UTC)
    await world.conn.execute("UPDATE users SET email = $2, created_at = $3 WHERE id = $1", made.id, email, created_at)
    return await users.get_user(world.conn, made.id)


async def emails(world: StoreRig) -> list[str]:
    return [record["email"] for record in await world.conn.fetch("SELECT email FROM users ORDER BY created_at, id")]


async def found(world: StoreRig, login: str) -> User:
    result = await users.find_by_login(world.conn, login)
    assert result is not None, ascii(login)
    return result[0]


async def test_addresses_are_rewritten_and_all_spellings_find_them(world: StoreRig) -> None:
    ada = await old_user(world, "Ada@Example.org", day=1)
    old = await old_user(world, SHARP, day=2)
    normal = await old_user(world, "bob@example.org", day=3)
    await world.conn.execute("INSERT INTO users (username) VALUES ('operator')")

    assert await repair_emails(world.conn) == EmailRepair((ada.id, old.id), ())
    assert await repair_emails(world.conn) == EmailRepair((), ())

    assert (await users.get_user(world.conn, ada.id)).email == "ada@example.org"
    assert await users.get_user(world.conn, normal.id) == normal
    for spelling in (SHARP, PLAIN, WIDE, SHARP.upper()):
        assert (await found(world, spelling)).id == old.id


async def test_younger_of_two_spellings_stays_and_is_found_by_its_own(world: StoreRig) -> None:
    younger = await old_user(world, WIDE, day=2)
    older = await old_user(world, SHARP, day=1)

    for _ in range(2):
        assert (await repair_emails(world.conn)).unchanged == (younger.id,)

    assert await emails(world) == [PLAIN, WIDE]
    assert (await found(world, WIDE)).id == younger.id
    for spelling in (SHARP, PLAIN, PLAIN.upper()):
        assert (await found(world, spelling)).id == older.id


async def test_account_that_has_the_normal_form_keeps_it_from_an_older_one(world: StoreRig) -> None:
    older = await old_user(world, SHARP, day=1)
    younger = await old_user(world, PLAIN, day=2)

    assert await repair_emails(world.conn) == EmailRepair((), (older.id,))

    assert (await found(world, SHARP)).id == older.id
    assert (await found(world, PLAIN)).id == younger.id


async def test_address_that_has_no_normal_form_stays(world: StoreRig) -> None:
    odd = await old_user(world, "a\uff20b@example.org", day=1)

    assert await repair_emails(world.conn) == EmailRepair((), (odd.id,))
    assert (await found(world, "a\uff20b@example.org")).id == odd.id


async def test_replicas_that_start_together_rewrite_each_address_once(world: StoreRig) -> None:
    old = [await old_user(world, f"User{n}@Stra\u00dfe.example", day=1 + n) for n in range(5)]
    double = await old_user(world, "\uff55ser0@strasse.example", day=9)

    async with world.connection() as one, world.connection() as two, world.connection() as three:
        repairs = await asyncio.gather(*map(repair_emails, (one, two, three)))

    assert sorted(len(each.rewritten) for each in repairs) == [0, 0, len(old)]
    assert {each.unchanged for each in repairs} == {(double.id,)}


async def test_address_that_changes_during_the_repair_is_not_overwritten(world: StoreRig) -> None:
    ada = await old_user(world, "Ada@Example.org", day=1)

    async with world.connection() as other, world.connection() as starting:
        change = other.transaction()
        await change.start()
        await other.execute("UPDATE users SET email = 'new@example.org' WHERE id = $1", ada.id)
        repair = asyncio.create_task(repair_emails(starting))
        waits = "SELECT cardinality(pg_blocking_pids($1)) > 0"
        await until(lambda: world.conn.fetchval(waits, starting.get_server_pid()))
        await change.commit()
        assert await repair == EmailRepair((), ())

    assert await emails(world) == ["new@example.org"]
