"""Housekeeping jobs: their effects, and that a failure ends no other job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.chats import auto_archive, pins
from rookery.store.db import job_runs
from rookery.store.db.hints import WatchKind
from rookery.store.db.job_runs import JobOutcome, JobRun
from rookery.store.people import audit
from rookery.testing.clock import FakeClock
from rookery.worker import housekeeping
from rookery.worker.config import WorkerConfig
from rookery.worker.housekeeping import (
    AutoArchive,
    CapacityGauges,
    Digest,
    Housekeeping,
    Job,
    SearchBackfill,
    UsageRollUp,
)
from rookery.worker.purge_jobs import Removed
from rookery.worker.stats import WorkerStats
from tests.eventually import until
from tests.otlp_collector import exporting, otlp_collector
from tests.store.machine.machine_rig import Rig, assistant, make_rig

NOW = datetime(2030, 1, 31, 15, 30, tzinfo=UTC)
OLD = NOW - timedelta(days=40)


class Digests:
    """Records digests. Owners in `failing` get none."""

    def __init__(self) -> None:
        self.sent: list[Digest] = []
        self.failing: set[UUID] = set()

    async def __call__(self, digest: Digest) -> None:
        if digest.owner_id in self.failing:
            raise ConnectionError("no mail today")
        self.sent.append(digest)


class HousekeepingRig:
    def __init__(self, rig: Rig, database_url: str, past: asyncpg.Connection) -> None:
        self.rig = rig
        self.url = database_url
        self.clock = FakeClock(NOW)
        self.stats = WorkerStats()
        self.digests = Digests()
        self._past = past

    def archive(self, *, batch: int = 1000) -> AutoArchive:
        return AutoArchive(
            self.rig.machine,
            self.rig.pool,
            self.connect,
            clock=self.clock,
            stats=self.stats,
            send_digest=self.digests,
            batch=batch,
        )

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.url)

    async def settings(self, **values: object) -> None:
        await self.rig.sql(
            "INSERT INTO settings (key, value) VALUES ('chats', $1)"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            json.dumps(values),
        )

    async def age(self, chat_id: ChatId, at: datetime = OLD) -> None:
        """Set old times, which the triggers would otherwise replace."""
        await self._past.execute("UPDATE chats SET created_at = $2, updated_at = $2 WHERE id = $1", chat_id, at)
        await self._past.execute("UPDATE chat_messages SET created_at = $2 WHERE chat_id = $1", chat_id, at)

    async def old_root(self, title: str = "A chat", *, owner: UUID | None = None, at: datetime = OLD) -> ChatId:
        chat_id = await self.rig.create(title=title, **({} if owner is None else {"owner_id": owner}))
        await self.rig.update(chat_id, machine.finish_turn)
        await self.age(chat_id, at)
        self.rig.published.clear()
        return chat_id

    async def old_child(self, root: ChatId, *, is_busy: bool = False) -> ChatId:
        child = await self.rig.child(root)
        if not is_busy:
            await self.rig.update(child, machine.finish_turn)
        await self.age(child)
        self.rig.published.clear()
        return child

    async def user(self) -> UUID:
        found = await self.rig.value("INSERT INTO users (username) VALUES ($1) RETURNING id", f"u{uuid4().hex}")
        assert isinstance(found, UUID)
        return found

    async def is_archived(self, chat_id: ChatId) -> bool:
        return (await self.rig.load(chat_id)).archived


@pytest.fixture
async def jobs_rig(database_url: str) -> AsyncIterator[HousekeepingRig]:
    past = await asyncpg.connect(database_url.replace("rookery@", "postgres@"))
    await past.execute("SET session_replication_role = replica")
    async with make_rig(database_url) as rig:
        yield HousekeepingRig(rig, database_url, past)
    await past.close()


# Auto-archive


async def test_nothing_is_archived_by_default(jobs_rig: HousekeepingRig) -> None:
    chat_id = await jobs_rig.old_root()

    await jobs_rig.archive()()

    assert not await jobs_rig.is_archived(chat_id)


async def test_old_family_is_archived_as_a_whole_announced_and_counted(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    root = await jobs_rig.old_root("The old one")
    child = await jobs_rig.old_child(root)

    await jobs_rig.archive()()

    assert await jobs_rig.is_archived(root)
    assert await jobs_rig.is_archived(child)
    assert [(hint.kind, hint.chat_id) for hint in jobs_rig.rig.published.watch()] == [
        (WatchKind.ARCHIVED, root),
        (WatchKind.ARCHIVED, child),
    ]
    assert jobs_rig.stats.auto_archived == 2
    assert jobs_rig.digests.sent == [Digest(owner_id=jobs_rig.rig.user, titles=("The old one",), more=0)]
    async with jobs_rig.rig.pool.acquire() as conn:
        (entry,) = (await audit.list_entries(conn)).entries
    assert (entry.action, entry.resource_id, entry.actor_kind, entry.actor_label, entry.extra) == (
        "chat.archive",
        str(root),
        "system",
        "jobs",
        {"chats": 2},
    )


async def test_further_runs_of_the_same_day_archive_nothing_new(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    midnight = NOW.replace(hour=0, minute=0) - timedelta(days=30)
    due = await jobs_rig.old_root(at=midnight - timedelta(seconds=1))
    tomorrow = await jobs_rig.old_root(at=midnight)
    archive = jobs_rig.archive()
    await archive()

    await jobs_rig.clock.advance(8 * 3600)
    await archive()

    assert await jobs_rig.is_archived(due)
    assert not await jobs_rig.is_archived(tomorrow)
    assert len(jobs_rig.digests.sent) == 1

    await jobs_rig.clock.advance(3600)
    await archive()

    assert await jobs_rig.is_archived(tomorrow)


async def test_active_child_blocks_its_family_only(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    blocked, free = await jobs_rig.old_root(), await jobs_rig.old_root()
    busy = await jobs_rig.old_child(blocked, is_busy=True)

    await jobs_rig.archive()()

    assert not await jobs_rig.is_archived(blocked)
    assert not await jobs_rig.is_archived(busy)
    assert await jobs_rig.is_archived(free)


async def test_pinned_chat_stays(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    chat_id = await jobs_rig.old_root()
    async with jobs_rig.rig.pool.acquire() as conn, conn.transaction():
        await pins.pin(conn, chat_id, user_id=jobs_rig.rig.user)

    await jobs_rig.archive()()

    assert not await jobs_rig.is_archived(chat_id)


async def test_family_that_becomes_busy_after_it_was_listed_is_passed_over(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    first, second, third = [
        await jobs_rig.old_root(str(number), at=OLD + timedelta(hours=number)) for number in range(3)
    ]
    blocker = await jobs_rig.connect()
    await blocker.execute("BEGIN")
    await blocker.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", first)
    running = asyncio.create_task(jobs_rig.archive()())
    await _until_blocked(jobs_rig)

    await jobs_rig.rig.send(second, "hello again")
    await blocker.execute("ROLLBACK")
    await running
    await blocker.close()

    assert [await jobs_rig.is_archived(each) for each in (first, second, third)] == [True, False, True]
    assert jobs_rig.digests.sent[0].titles == ("0", "2")


async def test_family_that_was_used_and_rests_again_since_it_was_listed_is_passed_over(
    jobs_rig: HousekeepingRig,
) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    jobs_rig.clock = FakeClock(datetime.now(UTC) - timedelta(seconds=1))
    long_ago = jobs_rig.clock.now() - timedelta(days=40)
    first, second = [await jobs_rig.old_root(at=long_ago + timedelta(hours=number)) for number in range(2)]
    blocker = await jobs_rig.connect()
    await blocker.execute("BEGIN")
    await blocker.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", first)
    running = asyncio.create_task(jobs_rig.archive()())
    await _until_blocked(jobs_rig)

    await jobs_rig.rig.send(second, "hello again")
    await jobs_rig.rig.commit(second, assistant("Welcome back."))
    await jobs_rig.rig.update(second, machine.finish_turn)
    await blocker.execute("ROLLBACK")
    await running
    await blocker.close()

    assert [await jobs_rig.is_archived(each) for each in (first, second)] == [True, False]


async def _until_blocked(jobs_rig: HousekeepingRig) -> None:
    """Wait until a transaction waits for a row lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: jobs_rig.rig.value(query))


async def test_only_one_replica_archives_at_a_time(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    chat_id = await jobs_rig.old_root()
    other = await jobs_rig.connect()
    assert await auto_archive.try_lock(other)

    await jobs_rig.archive()()
    assert not await jobs_rig.is_archived(chat_id)

    await other.close()
    await jobs_rig.archive()()
    assert await jobs_rig.is_archived(chat_id)


async def test_lock_is_free_after_a_run(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    await jobs_rig.archive()()

    other = await jobs_rig.connect()
    await until(lambda: auto_archive.try_lock(other))
    await other.close()


async def test_run_takes_the_oldest_first_and_no_more_than_its_batch(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    newer, oldest = await jobs_rig.old_root(at=OLD + timedelta(days=1)), await jobs_rig.old_root(at=OLD)

    await jobs_rig.archive(batch=1)()

    assert await jobs_rig.is_archived(oldest)
    assert not await jobs_rig.is_archived(newer)


async def test_owners_get_one_digest_each_and_one_failure_stops_no_other(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    first, second = await jobs_rig.user(), await jobs_rig.user()
    for number in range(27):
        await jobs_rig.old_root(f"Chat {number}", owner=first, at=OLD + timedelta(minutes=number))
    await jobs_rig.old_root("Mine", owner=second, at=OLD - timedelta(days=1))
    jobs_rig.digests.failing = {second}

    await jobs_rig.archive()()

    (digest,) = jobs_rig.digests.sent
    assert (digest.owner_id, digest.titles[0], len(digest.titles), digest.more) == (first, "Chat 0", 25, 2)
    assert jobs_rig.stats.auto_archived == 28


# Other jobs


async def test_search_finds_what_was_written(jobs_rig: HousekeepingRig) -> None:
    chat_id = await jobs_rig.rig.create()
    await jobs_rig.rig.commit(chat_id, assistant("kingfisher"))

    await SearchBackfill(jobs_rig.rig.pool)()

    assert await jobs_rig.rig.value("SELECT count(*) FROM chat_message_search WHERE tsv IS NULL") == 0
    assert await jobs_rig.rig.value("SELECT count(*) FROM chat_message_search WHERE tsv @@ 'kingfisher'::tsquery") == 1


async def test_usage_is_summed_by_day(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.rig.sql(
        "INSERT INTO model_usage (owner_id, purpose, provider_id, model, key_source, status, input_tokens,"
        " runtime_ms, at)"
        " SELECT $1, 'turn', id, 'scripted', 'central', 'ok', 7, 0, $2"
        " FROM model_providers, generate_series(1, 2)",
        jobs_rig.rig.user,
        NOW - timedelta(hours=1),
    )
    roll_up = UsageRollUp(jobs_rig.rig.pool, clock=jobs_rig.clock)

    await roll_up()
    await roll_up()

    assert await jobs_rig.rig.value("SELECT array_agg(input_tokens) FROM usage_daily") == [14]


async def test_gauges_show_who_works_and_who_waits_in_each_pool(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(running_roots=1)
    working, _ = await jobs_rig.rig.create(), await jobs_rig.rig.create()
    await jobs_rig.rig.acquire(working)
    child = await jobs_rig.rig.child(working)
    await jobs_rig.rig.acquire(child)

    await CapacityGauges(jobs_rig.rig.pool, stats=jobs_rig.stats)()

    assert jobs_rig.stats.agents_active == {"root": 1, "subagent": 1}
    assert jobs_rig.stats.agents_queued == {"root": 1, "subagent": 0}
    assert (jobs_rig.stats.approvals_open, jobs_rig.stats.approval_oldest_seconds) == (0, 0.0)


# The loop


def keeping(jobs_rig: HousekeepingRig, *jobs: Job) -> Housekeeping:
    return Housekeeping(
        jobs,
        replica_id=jobs_rig.rig.worker,
        pool=jobs_rig.rig.pool,
        clock=jobs_rig.clock,
        rng=Random(1),
        stats=jobs_rig.stats,
    )


async def runs_of(jobs_rig: HousekeepingRig, job: str) -> list[JobRun]:
    async with jobs_rig.rig.pool.acquire() as conn:
        return [run for run in await job_runs.list_runs(conn) if run.job == job]


async def test_job_waits_for_its_first_run_and_then_from_the_end_of_each(jobs_rig: HousekeepingRig) -> None:
    begun: list[float] = []

    async def work() -> None:
        begun.append(jobs_rig.clock.monotonic())
        await jobs_rig.clock.sleep(100, "working")

    running = asyncio.create_task(keeping(jobs_rig, Job("slow", 60, work)).run())
    await jobs_rig.clock.fire("job-slow")
    await jobs_rig.clock.fire("working")
    await jobs_rig.clock.fire("job-slow")
    running.cancel()
    await asyncio.wait([running])

    assert 30 <= begun[0] <= 36
    assert 160 <= begun[1] - begun[0] <= 172


async def test_failing_job_is_counted_goes_on_and_disturbs_no_other(jobs_rig: HousekeepingRig) -> None:
    async def broken() -> None:
        raise asyncpg.PostgresConnectionError("gone")

    async def buggy() -> None:
        raise KeyError("a bug")

    async def fine() -> None:
        """Do nothing."""

    jobs = (Job("broken", 10, broken), Job("buggy", 10, buggy), Job("fine", 10, fine))
    running = asyncio.create_task(keeping(jobs_rig, *jobs).run())
    for _ in range(2):
        for job in jobs:
            await jobs_rig.clock.until_waiting(f"job-{job.name}")
        await jobs_rig.clock.advance(40)
    await until(lambda: all((jobs_rig.stats.jobs + jobs_rig.stats.jobs_failed)[job.name] >= 2 for job in jobs))
    running.cancel()
    await asyncio.wait([running])

    assert jobs_rig.stats.jobs_failed["broken"] >= 2
    assert jobs_rig.stats.jobs_failed["buggy"] >= 2
    assert set(jobs_rig.stats.jobs_failed) == {"broken", "buggy"}


async def test_run_is_written_down_with_who_when_and_how_much(jobs_rig: HousekeepingRig) -> None:
    async def work() -> Removed:
        await jobs_rig.clock.sleep(7, "working")
        return Removed(5, skipped=2)

    running = asyncio.create_task(keeping(jobs_rig, Job("sweep", 60, work)).run_once(Job("sweep", 60, work)))
    await jobs_rig.clock.fire("working")
    assert await running

    (run,) = await runs_of(jobs_rig, "sweep")
    assert run == JobRun(
        job="sweep",
        replica_id=jobs_rig.rig.worker,
        started_at=NOW,
        finished_at=NOW + timedelta(seconds=7),
        outcome=JobOutcome.DONE,
        removed=5,
        skipped=2,
    )


async def test_runs_are_spans_of_their_own_with_their_queries(jobs_rig: HousekeepingRig) -> None:
    async def work() -> Removed:
        await jobs_rig.rig.sql("SELECT count(*) FROM users WHERE username = $1", "classified")
        return Removed(3)

    async def broken() -> None:
        raise OSError("no way to postgresql://rookery:opensesame@db.example.org/rookery")

    with otlp_collector() as collector:
        async with exporting(collector):
            for job in (Job("sweep", 60, work), Job("broken", 60, broken)):
                await keeping(jobs_rig, job).run_once(job)

    sweep, failed = collector.one("job sweep"), collector.one("job broken")
    assert (sweep.parent_id, sweep.attributes) == ("", {"rookery.job.removed": 3})
    assert (failed.has_failed, failed.attributes["error.type"]) == (True, "job_failed")
    assert sweep.trace_id != failed.trace_id
    everything = b"".join(collector.bodies)
    assert b"opensesame" not in everything
    assert b"classified" not in everything


async def test_failure_is_written_down_without_rows_secrets_and_what_bugs_quote(jobs_rig: HousekeepingRig) -> None:
    async def refused() -> None:
        await jobs_rig.rig.sql("INSERT INTO users (username) SELECT username FROM users")

    async def unreachable() -> None:
        raise OSError("no way to postgresql://rookery:opensesame@db.example.org/rookery")

    async def buggy() -> None:
        raise KeyError("what somebody wrote")

    jobs = [Job("refused", 60, refused), Job("unreachable", 60, unreachable), Job("buggy", 60, buggy)]
    keeper = keeping(jobs_rig, *jobs)

    assert [await keeper.run_once(job) for job in jobs] == [False] * 3

    errors = {job.name: (await runs_of(jobs_rig, job.name))[0] for job in jobs}
    assert {run.outcome for run in errors.values()} == {JobOutcome.FAILED}
    said = {name: run.error or "" for name, run in errors.items()}
    assert said["refused"] == 'duplicate key value violates unique constraint "users_username"'
    assert said["unreachable"].startswith("no way to ")
    assert "opensesame" not in said["unreachable"]
    assert said["buggy"] == "KeyError. See the log of the replica."


async def test_job_that_cannot_be_written_down_is_done_all_the_same(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.rig.sql("DROP TABLE job_runs")

    async def work() -> None:
        """Do nothing."""

    assert await keeping(jobs_rig).run_once(Job("sweep", 60, work))
    assert jobs_rig.stats.jobs["sweep"] == 1


async def test_setting_that_cannot_be_read_fails_only_the_jobs_that_need_it(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days="often")
    jobs = housekeeping.make_jobs(
        jobs_rig.rig.machine,
        jobs_rig.rig.pool,
        jobs_rig.connect,
        publisher=jobs_rig.rig.published,
        clock=jobs_rig.clock,
        config=WorkerConfig(),
        stats=jobs_rig.stats,
    )
    keeper = keeping(jobs_rig, *jobs)

    outcome = {job.name: await keeper.run_once(job) for job in jobs}

    assert outcome == {
        "auto_archive": False,
        "search_backfill": True,
        "usage_rollup": True,
        "purge_chats": False,
        "purge_files": True,
        "purge_tool_runs": True,
        "purge_auth": True,
        "purge_audit": True,
        "debug_sweep": True,
        "purge_debug": True,
        "capacity_gauges": False,
    }
    assert {key for key, _ in jobs_rig.stats.job_seconds.items()} == set(outcome.items())


async def test_archived_families_are_reported_although_the_run_broke_off(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    done = await jobs_rig.old_root("Done")
    broken = await jobs_rig.old_root("Broken", at=OLD + timedelta(hours=1))
    await jobs_rig.rig.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END $$"
    )
    await jobs_rig.rig.sql(
        "CREATE TRIGGER refuse BEFORE UPDATE ON chats FOR EACH ROW"
        f" WHEN (NEW.archived AND NEW.id = '{broken}') EXECUTE FUNCTION refuse()"
    )

    with pytest.raises(asyncpg.DiskFullError):
        await jobs_rig.archive()()

    assert await jobs_rig.is_archived(done)
    assert [digest.titles for digest in jobs_rig.digests.sent] == [("Done",)]


async def test_invalid_chat_does_not_stop_the_run(jobs_rig: HousekeepingRig) -> None:
    await jobs_rig.settings(auto_archive_days=30)
    root, free = await jobs_rig.old_root(), await jobs_rig.old_root(at=OLD + timedelta(hours=1))
    await jobs_rig.rig.force(root, "queue_len = 3")
    assert await jobs_rig.rig.state(root) is State.INVALID

    await jobs_rig.archive()()

    assert not await jobs_rig.is_archived(root)
    assert await jobs_rig.is_archived(free)
