"""Archived families whose time is over: what goes, what stays, who is told, and several replicas at once.

What is archived in a test is archived now, by the clock of the database; the clock of the job runs ahead of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.authorized.store import Store
from rookery.store.chats import retention
from rookery.store.db.hints import WatchKind
from rookery.testing.clock import FakeClock
from rookery.worker.purge_jobs import ChatPurge, FilePurge, Removed
from rookery.worker.stats import WorkerStats
from tests.eventually import until
from tests.store.machine.machine_rig import Rig, make_rig


class House:
    def __init__(self, rig: Rig, database_url: str) -> None:
        self.rig = rig
        self.url = database_url
        self.clock = FakeClock(datetime.now(UTC) + timedelta(days=31))
        self.stats = WorkerStats()

    def purge(self, *, max_families: int = 1000, listed: int = 100) -> ChatPurge:
        """The job as a replica has it."""
        rig = self.rig
        store = Store(rig.pool, machine=rig.machine, publisher=rig.published, clock=self.clock)
        return ChatPurge(
            store,
            rig.pool,
            self.connect,
            clock=self.clock,
            stats=self.stats,
            max_families=max_families,
            listed=listed,
        )

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.url)

    async def keep_for(self, days: object) -> None:
        await self.rig.sql(
            "INSERT INTO settings (key, value) VALUES ('chats', $1)", json.dumps({"retention_days": days})
        )

    async def root(self) -> ChatId:
        return await self.rig.chat(State.W)

    async def archive(self, root: ChatId, *, archived: bool = True) -> None:
        await self.rig.machine.bundle(lambda bundle: machine.set_family_archived(bundle, root, archived=archived))
        self.rig.published.clear()

    async def family(self) -> tuple[ChatId, ChatId]:
        """An archived root with a child."""
        root = await self.root()
        child = await self.rig.child(root)
        await self.rig.update(child, machine.finish_turn)
        await self.archive(root)
        return root, child

    async def archived(self, number: int) -> list[ChatId]:
        """Archived roots, the oldest first."""
        roots = [await self.root() for _ in range(number)]
        for root in roots:
            await self.archive(root)
        return roots

    async def are_there(self, *chats: ChatId) -> list[bool]:
        found = await self.rig.value("SELECT coalesce(array_agg(id), '{}') FROM chats")
        assert isinstance(found, list)
        return [chat in found for chat in chats]

    async def deletions(self) -> list[tuple[str, str, str]]:
        """Of the audit log: who removed what."""
        async with self.rig.pool.acquire() as conn:
            records = await conn.fetch(
                "SELECT actor_kind, actor_label, resource_id FROM audit_log WHERE action = 'chat.delete' ORDER BY id"
            )
        return [tuple(record) for record in records]


@pytest.fixture
async def house(database_url: str) -> AsyncIterator[House]:
    async with make_rig(database_url) as rig:
        yield House(rig, database_url)


async def test_family_goes_whole_is_announced_audited_and_counted(house: House) -> None:
    root, child = await house.family()
    reader = await house.rig.value("INSERT INTO users (username) VALUES ('bob') RETURNING id")
    assert isinstance(reader, UUID)
    await house.rig.sql("INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)", root, reader)

    removed = await house.purge()()

    assert removed == Removed(2)
    assert house.stats.purged["chats"] == 2
    assert await house.are_there(root, child) == [False, False]
    assert await house.deletions() == [("system", "jobs", str(root))]
    told = house.rig.published.watch()
    assert {(hint.kind, hint.chat_id) for hint in told} == {(WatchKind.DELETED, root), (WatchKind.DELETED, child)}
    assert all(reader in hint.users for hint in told)
    assert {hint.chat_id for hint in house.rig.published.chats() if hint.gone} == {root, child}


@pytest.mark.parametrize(("days", "is_kept"), [(0, True), (30, False), (31, True), (3650, True)])
async def test_family_is_kept_for_as_long_as_administrators_want(house: House, days: int, is_kept: bool) -> None:
    await house.keep_for(days)
    house.clock = FakeClock(datetime.now(UTC) + timedelta(days=30, hours=12))
    root, child = await house.family()

    await house.purge()()

    assert await house.are_there(root, child) == [is_kept, is_kept]


async def test_chat_that_is_not_archived_stays_however_old(house: House) -> None:
    house.clock = FakeClock(datetime.now(UTC) + timedelta(days=4000))
    at_rest, unarchived = await house.root(), await house.root()
    await house.archive(unarchived)
    await house.archive(unarchived, archived=False)

    assert await house.purge()() == Removed()

    assert await house.are_there(at_rest, unarchived) == [True, True]


async def test_retention_that_cannot_be_read_removes_nothing(house: House) -> None:
    await house.keep_for("a while")
    root, _ = await house.family()

    with pytest.raises(Exception, match="retention_days"):
        await house.purge()()

    assert await house.are_there(root) == [True]


async def test_what_was_used_stays_counted(house: House) -> None:
    root, child = await house.family()
    for chat_id in (root, child):
        await house.rig.sql(
            "INSERT INTO model_usage (owner_id, chat_id, root_chat_id, purpose, provider_id, model, key_source,"
            " status, input_tokens, cost_micros, runtime_ms)"
            " SELECT $1, $2, $3, 'turn', id, 'scripted', 'central', 'ok', 7, 11, 0 FROM model_providers",
            house.rig.user,
            chat_id,
            root,
        )
    total = "SELECT array[count(*), sum(input_tokens), sum(cost_micros)]::int[] FROM model_usage WHERE owner_id = $1"

    await house.purge()()

    assert await house.are_there(root) == [False]
    assert await house.rig.value(total, house.rig.user) == [2, 14, 22]


async def test_family_with_a_running_child_stays_and_is_told_of_once(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    root, child = await house.family()
    (free,) = await house.archived(1)
    # No transition leads there; a restore or a hand in the database might.
    await house.rig.force(child, "archived = false, archived_at = NULL, status = 'running', runnable_since = now()")
    assert (await house.rig.state(child)).is_runnable
    purge = house.purge()
    caplog.set_level(logging.WARNING, "rookery")

    assert await purge() == Removed(1, skipped=1)
    assert await purge() == Removed(0, skipped=1)

    assert await house.are_there(root, child, free) == [True, True, False]
    assert [record.getMessage() for record in caplog.records] == ["family_not_purged"]
    assert await house.deletions() == [("system", "jobs", str(free))]


async def test_family_with_an_invalid_member_stays(house: House) -> None:
    root, child = await house.family()
    await house.rig.force(child, "status = 'asleep'")

    assert await house.purge()() == Removed(0, skipped=1)

    assert await house.are_there(root, child) == [True, True]


async def test_family_that_takes_too_long_keeps_no_other(house: House) -> None:
    large, small = await house.archived(2)
    await house.rig.sql(
        "CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014'; END $$"
    )
    await house.rig.sql(
        f"CREATE TRIGGER take_long BEFORE DELETE ON chats FOR EACH ROW WHEN (OLD.id = '{large}')"
        " EXECUTE FUNCTION take_long()"
    )

    assert await house.purge()() == Removed(1, skipped=1)

    assert await house.are_there(large, small) == [True, False]


async def test_run_takes_the_oldest_first_and_goes_past_those_that_cannot_go(house: House) -> None:
    roots = await house.archived(6)
    await house.rig.force(roots[0], "status = 'asleep'")

    assert await house.purge(max_families=3, listed=2)() == Removed(3, skipped=1)
    assert await house.are_there(*roots) == [True, False, False, False, True, True]

    assert await house.purge(max_families=3, listed=2)() == Removed(2, skipped=1)
    assert await house.are_there(*roots) == [True, False, False, False, False, False]


async def test_families_that_were_taken_out_since_they_were_listed_stay(house: House) -> None:
    first, used, again, last = await house.archived(4)
    # The retention after that moment: what is archived from now on is not due.
    moment = await house.rig.value("SELECT clock_timestamp()")
    assert isinstance(moment, datetime)
    house.clock = FakeClock(moment + timedelta(days=30))
    blocker = await house.connect()
    await blocker.execute("BEGIN")
    await blocker.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", first)
    running = asyncio.create_task(house.purge()())
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: house.rig.value(waiting))

    await house.archive(used, archived=False)
    await house.archive(again, archived=False)
    await house.archive(again)
    await blocker.execute("ROLLBACK")

    assert await running == Removed(2)
    assert await house.are_there(first, used, again, last) == [False, True, True, False]
    await blocker.close()


async def test_replicas_at_once_remove_each_family_once(house: House) -> None:
    roots = await house.archived(8)
    purges = [house.purge(listed=2) for _ in range(3)]

    removed = await asyncio.gather(*(purge() for purge in purges))

    assert sum(each.number for each in removed) == len(roots)
    assert sorted(what for _, _, what in await house.deletions()) == sorted(map(str, roots))
    assert await house.rig.value("SELECT count(*) FROM chats") == 0


async def test_replica_leaves_it_to_the_one_that_is_at_it(house: House) -> None:
    (root,) = await house.archived(1)
    other = await house.connect()
    assert await retention.try_lock(other)

    assert await house.purge()() == Removed()
    assert await house.are_there(root) == [True]

    await other.close()
    assert await house.purge()() == Removed(1)


async def test_files_of_a_family_go_after_it_by_the_next_run(house: House) -> None:
    root, _ = await house.family()
    file_id = await house.rig.add_file()
    await house.rig.sql("INSERT INTO chat_file_links VALUES ($1, $2)", root, file_id)
    files = FilePurge(house.rig.pool, clock=house.clock, stats=house.stats, batch=1)

    assert await files() == Removed()
    await house.purge()()
    assert await files() == Removed(1)

    assert house.stats.purged["files"] == 1


@pytest.mark.parametrize(("hours", "is_kept"), [(23, True), (25, False)])
async def test_file_waits_a_day_for_its_message(house: House, hours: int, is_kept: bool) -> None:
    files = [await house.rig.add_file() for _ in range(5)]
    house.clock = FakeClock(datetime.now(UTC) + timedelta(hours=hours))

    removed = await FilePurge(house.rig.pool, clock=house.clock, stats=house.stats, batch=2)()

    assert removed == Removed(0 if is_kept else len(files))
    assert await house.rig.value("SELECT count(*) FROM chat_files") == (len(files) if is_kept else 0)


async def test_deleted_by_a_person_meanwhile_is_no_failure(house: House) -> None:
    first, second = await house.archived(2)
    blocker = await house.connect()
    await blocker.execute("BEGIN")
    await blocker.execute("DELETE FROM chats WHERE id = $1", first)
    running = asyncio.create_task(house.purge()())
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: house.rig.value(waiting))

    await blocker.execute("COMMIT")

    assert await running == Removed(1)
    assert await house.are_there(first, second) == [False, False]
    await blocker.close()
