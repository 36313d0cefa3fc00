"""Purge of archived families: which are deleted, audit entries, and several replicas at once.

Tests archive chats now, by the clock of the database; the clock of the job is ahead of it.
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
from rookery.store.authorized.actor_store import Store
from rookery.store.chats import retention
from rookery.store.db.hints import WatchKind
from rookery.testing.clock import FakeClock
from rookery.worker.purge_jobs import ChatPurge, FilePurge, Removed
from rookery.worker.stats import WorkerStats
from tests.eventually import until
from tests.store.machine.machine_rig import Rig, make_rig


class PurgeRig:
    def __init__(self, rig: Rig, database_url: str) -> None:
        self.rig = rig
        self.url = database_url
        self.clock = FakeClock(datetime.now(UTC) + timedelta(days=31))
        self.stats = WorkerStats()

    def purge(self, *, max_families: int = 1000, listed: int = 100) -> ChatPurge:
        """Return the job of a replica."""
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
            "INSERT INTO settings (key, value) VALUES ('chats', $1)"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            json.dumps({"retention_days": days}),
        )

    async def root(self) -> ChatId:
        return await self.rig.chat(State.W)

    async def archive(self, root: ChatId, *, archived: bool = True) -> None:
        await self.rig.machine.bundle(lambda bundle: machine.set_family_archived(bundle, root, archived=archived))
        self.rig.published.clear()

    async def family(self) -> tuple[ChatId, ChatId]:
        """Return an archived root chat with a child."""
        root = await self.root()
        child = await self.rig.child(root)
        await self.rig.update(child, machine.finish_turn)
        await self.archive(root)
        return root, child

    async def archived(self, number: int) -> list[ChatId]:
        """Return archived root chats, the oldest first."""
        roots = [await self.root() for _ in range(number)]
        for root in roots:
            await self.archive(root)
        return roots

    async def are_there(self, *chats: ChatId) -> list[bool]:
        found = await self.rig.value("SELECT coalesce(array_agg(id), '{}') FROM chats")
        assert isinstance(found, list)
        return [chat in found for chat in chats]

    async def deletions(self) -> list[tuple[str, str, str]]:
        """Return the deletions in the audit log, with their actors."""
        async with self.rig.pool.acquire() as conn:
            records = await conn.fetch(
                "SELECT actor_kind, actor_label, resource_id FROM audit_log WHERE action = 'chat.delete' ORDER BY id"
            )
        return [tuple(record) for record in records]


@pytest.fixture
async def purge_rig(database_url: str) -> AsyncIterator[PurgeRig]:
    async with make_rig(database_url) as rig:
        purging = PurgeRig(rig, database_url)
        await purging.keep_for(30)
        yield purging


async def test_family_goes_whole_is_announced_audited_and_counted(purge_rig: PurgeRig) -> None:
    root, child = await purge_rig.family()
    reader = await purge_rig.rig.value("INSERT INTO users (username) VALUES ('bob') RETURNING id")
    assert isinstance(reader, UUID)
    await purge_rig.rig.sql("INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)", root, reader)

    removed = await purge_rig.purge()()

    assert removed == Removed(2)
    assert purge_rig.stats.purged["chats"] == 2
    assert await purge_rig.are_there(root, child) == [False, False]
    assert await purge_rig.deletions() == [("system", "jobs", str(root))]
    told = purge_rig.rig.published.watch()
    assert {(hint.kind, hint.chat_id) for hint in told} == {(WatchKind.DELETED, root), (WatchKind.DELETED, child)}
    assert all(reader in hint.users for hint in told)
    assert {hint.chat_id for hint in purge_rig.rig.published.chats() if hint.gone} == {root, child}


@pytest.mark.parametrize(("days", "is_kept"), [(0, True), (30, False), (31, True), (3650, True)])
async def test_family_is_kept_for_as_long_as_administrators_want(purge_rig: PurgeRig, days: int, is_kept: bool) -> None:
    await purge_rig.keep_for(days)
    purge_rig.clock = FakeClock(datetime.now(UTC) + timedelta(days=30, hours=12))
    root, child = await purge_rig.family()

    await purge_rig.purge()()

    assert await purge_rig.are_there(root, child) == [is_kept, is_kept]


async def test_chat_that_is_not_archived_stays_however_old(purge_rig: PurgeRig) -> None:
    purge_rig.clock = FakeClock(datetime.now(UTC) + timedelta(days=4000))
    at_rest, unarchived = await purge_rig.root(), await purge_rig.root()
    await purge_rig.archive(unarchived)
    await purge_rig.archive(unarchived, archived=False)

    assert await purge_rig.purge()() == Removed()

    assert await purge_rig.are_there(at_rest, unarchived) == [True, True]


async def test_retention_that_cannot_be_read_removes_nothing(purge_rig: PurgeRig) -> None:
    await purge_rig.keep_for("a while")
    root, _ = await purge_rig.family()

    with pytest.raises(Exception, match="retention_days"):
        await purge_rig.purge()()

    assert await purge_rig.are_there(root) == [True]


async def test_usage_of_deleted_chats_stays_counted(purge_rig: PurgeRig) -> None:
    root, child = await purge_rig.family()
    for chat_id in (root, child):
        await purge_rig.rig.sql(
            "INSERT INTO model_usage (owner_id, chat_id, root_chat_id, purpose, provider_id, model, key_source,"
            " status, input_tokens, cost_micros, runtime_ms)"
            " SELECT $1, $2, $3, 'turn', id, 'scripted', 'central', 'ok', 7, 11, 0 FROM model_providers",
            purge_rig.rig.user,
            chat_id,
            root,
        )
    total = "SELECT array[count(*), sum(input_tokens), sum(cost_micros)]::int[] FROM model_usage WHERE owner_id = $1"

    await purge_rig.purge()()

    assert await purge_rig.are_there(root) == [False]
    assert await purge_rig.rig.value(total, purge_rig.rig.user) == [2, 14, 22]


async def test_family_with_a_running_child_stays_and_is_told_of_once(
    purge_rig: PurgeRig, caplog: pytest.LogCaptureFixture
) -> None:
    root, child = await purge_rig.family()
    (free,) = await purge_rig.archived(1)
    # No transition leads to this state, but a restored backup could contain it.
    await purge_rig.rig.force(child, "archived = false, archived_at = NULL, status = 'running', runnable_since = now()")
    assert (await purge_rig.rig.state(child)).is_runnable
    purge = purge_rig.purge()
    caplog.set_level(logging.WARNING, "rookery")

    assert await purge() == Removed(1, skipped=1)
    assert await purge() == Removed(0, skipped=1)

    assert await purge_rig.are_there(root, child, free) == [True, True, False]
    assert [record.getMessage() for record in caplog.records] == ["family_not_purged"]
    assert await purge_rig.deletions() == [("system", "jobs", str(free))]


async def test_family_with_an_invalid_member_stays(purge_rig: PurgeRig) -> None:
    root, child = await purge_rig.family()
    await purge_rig.rig.force(child, "status = 'asleep'")

    assert await purge_rig.purge()() == Removed(0, skipped=1)

    assert await purge_rig.are_there(root, child) == [True, True]


async def test_family_that_takes_too_long_keeps_no_other(purge_rig: PurgeRig) -> None:
    large, small = await purge_rig.archived(2)
    await purge_rig.rig.sql(
        "CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014'; END $$"
    )
    await purge_rig.rig.sql(
        f"CREATE TRIGGER take_long BEFORE DELETE ON chats FOR EACH ROW WHEN (OLD.id = '{large}')"
        " EXECUTE FUNCTION take_long()"
    )

    assert await purge_rig.purge()() == Removed(1, skipped=1)

    assert await purge_rig.are_there(large, small) == [True, False]


async def test_run_takes_the_oldest_first_and_goes_past_those_that_cannot_go(purge_rig: PurgeRig) -> None:
    roots = await purge_rig.archived(6)
    await purge_rig.rig.force(roots[0], "status = 'asleep'")

    assert await purge_rig.purge(max_families=3, listed=2)() == Removed(3, skipped=1)
    assert await purge_rig.are_there(*roots) == [True, False, False, False, True, True]

    assert await purge_rig.purge(max_families=3, listed=2)() == Removed(2, skipped=1)
    assert await purge_rig.are_there(*roots) == [True, False, False, False, False, False]


async def test_families_that_were_taken_out_since_they_were_listed_stay(purge_rig: PurgeRig) -> None:
    first, used, again, last = await purge_rig.archived(4)
    # The retention begins after this moment, so chats archived from now on are not due.
    moment = await purge_rig.rig.value("SELECT clock_timestamp()")
    assert isinstance(moment, datetime)
    purge_rig.clock = FakeClock(moment + timedelta(days=30))
    blocker = await purge_rig.connect()
    await blocker.execute("BEGIN")
    await blocker.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", first)
    running = asyncio.create_task(purge_rig.purge()())
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: purge_rig.rig.value(waiting))

    await purge_rig.archive(used, archived=False)
    await purge_rig.archive(again, archived=False)
    await purge_rig.archive(again)
    await blocker.execute("ROLLBACK")

    assert await running == Removed(2)
    assert await purge_rig.are_there(first, used, again, last) == [False, True, True, False]
    await blocker.close()


async def test_replicas_at_once_remove_each_family_once(purge_rig: PurgeRig) -> None:
    roots = await purge_rig.archived(8)
    purges = [purge_rig.purge(listed=2) for _ in range(3)]

    removed = await asyncio.gather(*(purge() for purge in purges))

    assert sum(each.number for each in removed) == len(roots)
    assert sorted(what for _, _, what in await purge_rig.deletions()) == sorted(map(str, roots))
    assert await purge_rig.rig.value("SELECT count(*) FROM chats") == 0


async def test_replica_leaves_it_to_the_one_that_is_at_it(purge_rig: PurgeRig) -> None:
    (root,) = await purge_rig.archived(1)
    other = await purge_rig.connect()
    assert await retention.try_lock(other)

    assert await purge_rig.purge()() == Removed()
    assert await purge_rig.are_there(root) == [True]

    await other.close()
    assert await purge_rig.purge()() == Removed(1)


async def test_files_of_a_family_go_after_it_by_the_next_run(purge_rig: PurgeRig) -> None:
    root, _ = await purge_rig.family()
    file_id = await purge_rig.rig.add_file()
    await purge_rig.rig.sql("INSERT INTO chat_file_links VALUES ($1, $2)", root, file_id)
    files = FilePurge(purge_rig.rig.pool, clock=purge_rig.clock, stats=purge_rig.stats, batch=1)

    assert await files() == Removed()
    await purge_rig.purge()()
    assert await files() == Removed(1)

    assert purge_rig.stats.purged["files"] == 1


@pytest.mark.parametrize(("hours", "is_kept"), [(23, True), (25, False)])
async def test_file_waits_a_day_for_its_message(purge_rig: PurgeRig, hours: int, is_kept: bool) -> None:
    files = [await purge_rig.rig.add_file() for _ in range(5)]
    purge_rig.clock = FakeClock(datetime.now(UTC) + timedelta(hours=hours))

    removed = await FilePurge(purge_rig.rig.pool, clock=purge_rig.clock, stats=purge_rig.stats, batch=2)()

    assert removed == Removed(0 if is_kept else len(files))
    assert await purge_rig.rig.value("SELECT count(*) FROM chat_files") == (len(files) if is_kept else 0)


async def test_deleted_by_a_person_meanwhile_is_no_failure(purge_rig: PurgeRig) -> None:
    first, second = await purge_rig.archived(2)
    blocker = await purge_rig.connect()
    await blocker.execute("BEGIN")
    await blocker.execute("DELETE FROM chats WHERE id = $1", first)
    running = asyncio.create_task(purge_rig.purge()())
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: purge_rig.rig.value(waiting))

    await blocker.execute("COMMIT")

    assert await running == Removed(1)
    assert await purge_rig.are_there(first, second) == [False, False]
    await blocker.close()
