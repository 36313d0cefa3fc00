"""Files that no chat links: the deleted ones, and links that are created at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from rookery.domain.chat.states import State
from rookery.store.chats import retention
from tests.eventually import until
from tests.store.machine.machine_rig import Rig, make_rig

LINK = "INSERT INTO chat_file_links (chat_id, file_id) VALUES ($1, $2)"
GATE = 4711


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as opened:
        yield opened


def soon() -> datetime:
    """Return a time at which all current uploads are old enough."""
    return datetime.now(UTC) + timedelta(minutes=1)


async def purge(rig: Rig, *, before: datetime | None = None, batch: int = 10) -> tuple[int, int]:
    async with asyncio.timeout(30), rig.pool.acquire() as conn:
        return await retention.purge_files(conn, before=before or soon(), batch=batch)


async def exists(rig: Rig, file_id: UUID) -> bool:
    return bool(await rig.value("SELECT EXISTS (SELECT FROM chat_files WHERE id = $1)", file_id))


async def until_blocked(rig: Rig) -> None:
    """Wait until one connection waits for a lock of another."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: rig.value(query))


async def test_file_that_no_chat_links_goes_and_linked_and_young_ones_stay(rig: Rig) -> None:
    unlinked, linked = await rig.add_file(), await rig.add_file()
    chat_id = await rig.chat(State.W)
    await rig.sql(LINK, chat_id, linked)
    before = await rig.value("SELECT clock_timestamp()")
    assert isinstance(before, datetime)
    young = await rig.add_file()

    assert await purge(rig, before=before) == (1, 1)

    assert [await exists(rig, each) for each in (unlinked, linked, young)] == [False, True, True]
    assert await rig.linked_files(chat_id) == {linked}


async def test_file_goes_with_the_last_chat_that_links_it(rig: Rig) -> None:
    file_id = await rig.add_file()
    chats = [await rig.chat(State.W) for _ in range(2)]
    for chat_id in chats:
        await rig.sql(LINK, chat_id, file_id)

    await rig.sql("DELETE FROM chats WHERE id = $1", chats[0])
    await purge(rig)
    assert await exists(rig, file_id)

    await rig.sql("DELETE FROM chats WHERE id = $1", chats[1])
    await purge(rig)
    assert not await exists(rig, file_id)


async def test_oldest_go_first_and_no_more_than_a_batch(rig: Rig) -> None:
    files = [await rig.add_file() for _ in range(3)]

    assert await purge(rig, batch=2) == (2, 2)
    assert [await exists(rig, each) for each in files] == [False, False, True]


async def test_file_whose_link_is_not_committed_yet_stays(rig: Rig) -> None:
    file_id = await rig.add_file()
    chat_id = await rig.chat(State.W)

    async with rig.pool.acquire() as conn, conn.transaction():
        await conn.execute(LINK, chat_id, file_id)
        assert await purge(rig) == (0, 0)

    assert await rig.linked_files(chat_id) == {file_id}
    assert await exists(rig, file_id)


async def test_file_that_is_linked_between_the_look_and_the_lock_stays(rig: Rig, database_url: str) -> None:
    file_id = await rig.add_file()
    chat_id = await rig.chat(State.W)
    # The look begins, and waits at the row; foreign keys are checked past such policies.
    await rig.sql(
        "CREATE FUNCTION pass_gate() RETURNS boolean LANGUAGE plpgsql VOLATILE AS"
        f" $$ BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN true; END $$"
    )
    await rig.sql("CREATE POLICY gate ON chat_files USING (pass_gate())")
    await rig.sql("ALTER TABLE chat_files ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    gate = await asyncpg.connect(database_url)
    await gate.execute(f"SELECT pg_advisory_lock({GATE})")
    purging = asyncio.create_task(purge(rig))
    await until_blocked(rig)

    await rig.sql(LINK, chat_id, file_id)
    await gate.execute(f"SELECT pg_advisory_unlock({GATE})")

    assert await purging == (1, 0)
    assert await rig.linked_files(chat_id) == {file_id}
    await gate.close()


async def test_link_that_comes_after_the_lock_finds_the_file_gone(rig: Rig, database_url: str) -> None:
    file_id = await rig.add_file()
    chat_id = await rig.chat(State.W)
    await rig.sql(
        "CREATE FUNCTION pass_gate() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN OLD; END $$"
    )
    await rig.sql("CREATE TRIGGER gate BEFORE DELETE ON chat_files FOR EACH ROW EXECUTE FUNCTION pass_gate()")
    gate = await asyncpg.connect(database_url)
    await gate.execute(f"SELECT pg_advisory_lock({GATE})")
    purging = asyncio.create_task(purge(rig))
    await until_blocked(rig)

    linking = asyncio.create_task(rig.sql(LINK, chat_id, file_id))
    await until(lambda: rig.value("SELECT count(*) > 1 FROM pg_locks WHERE NOT granted"))
    await gate.execute(f"SELECT pg_advisory_unlock({GATE})")

    assert await purging == (1, 1)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await linking
    await gate.close()


async def test_replicas_at_once_remove_each_file_once(rig: Rig) -> None:
    files = [await rig.add_file() for _ in range(40)]

    async def replica() -> int:
        total = 0
        while True:
            found, removed = await purge(rig, batch=3)
            total += removed
            if not found:
                return total

    assert sum(await asyncio.gather(replica(), replica(), replica())) == len(files)
    assert await rig.value("SELECT count(*) FROM chat_files") == 0
