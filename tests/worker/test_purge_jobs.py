"""Purge of logins, audit entries, tool runs and debug records: what is deleted, and what is kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from rookery.domain.access.rights import Scope, SystemActor, SystemName
from rookery.domain.chat.states import State
from rookery.store.db import idempotency
from rookery.store.db.hints import MiscHint
from rookery.store.people import audit, one_time_links, sessions, tokens
from rookery.store.people.audit import Event
from rookery.store.people.one_time_links import LinkKind
from rookery.testing.clock import FakeClock
from rookery.worker.purge_jobs import AuditPurge, AuthPurge, DebugPurge, DebugSweep, Removed, ToolRunPurge
from rookery.worker.stats import WorkerStats
from tests.store.debug.debug_rows import DebugRows
from tests.store.machine.machine_rig import Rig, make_rig
from tests.store.people.account_rows import person

NOW = datetime(2030, 1, 31, 15, 30, tzinfo=UTC)


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as opened:
        yield opened


async def test_ended_credentials_are_deleted_and_valid_ones_are_kept(rig: Rig) -> None:
    for name, at in (("grace", NOW - timedelta(days=40)), ("alan", NOW)):
        async with rig.pool.acquire() as conn:
            user = (await person(conn, name)).id
            await sessions.create_session(conn, user, now=at)
            await one_time_links.create_link(conn, user, kind=LinkKind.RESET, now=at)
            request = idempotency.Request(user_id=user, key="k", operation="x", body=b"")
            await idempotency.store_answer(conn, request, answer=b"{}", now=at)
        await rig.sql("INSERT INTO login_failures VALUES ($1, 1, $2, $2)", uuid4().bytes * 2, at)
    stats = WorkerStats()

    removed = await AuthPurge(rig.pool, clock=FakeClock(NOW), stats=stats)()

    assert removed == Removed(4)
    kinds = ("sessions", "one_time_links", "login_failures", "idempotency_keys")
    assert +stats.purged == dict.fromkeys(kinds, 1)
    assert [await rig.value(f"SELECT count(*) FROM {kind}") for kind in kinds] == [1, 1, 1, 1]


async def test_token_stays_listed_for_a_week_after_its_end(rig: Rig) -> None:
    end = NOW - timedelta(days=7)
    async with rig.pool.acquire() as conn:
        user = (await person(conn, "grace")).id
        for name, at in (("dead", end), ("dying", end + timedelta(seconds=1)), ("good", NOW)):
            made = at - timedelta(days=1)
            await tokens.create_token(conn, user, name=name, scopes=[Scope.ALL], now=made, days=1)
    stats = WorkerStats()

    await AuthPurge(rig.pool, clock=FakeClock(NOW), stats=stats)()

    async with rig.pool.acquire() as conn:
        assert {token.name for token in await tokens.list_tokens(conn, user)} == {"dying", "good"}
    assert stats.purged["api_tokens"] == 1


@pytest.mark.parametrize(("stored", "kept"), [(None, 2), ({"retention_days": 5}, 1), ({"retention_days": 0}, 6)])
async def test_audit_log_is_kept_for_as_long_as_administrators_want(
    rig: Rig, stored: dict[str, int] | None, kept: int
) -> None:
    async with rig.pool.acquire() as conn:
        for days in (1, 10, 370, 380, 390, 400):
            event = Event(action="x", resource_type="user", resource_id=None)
            await audit.record(conn, event, actor=SystemActor(SystemName.SETUP), now=NOW - timedelta(days=days))
    if stored is not None:
        await rig.sql("INSERT INTO settings (key, value) VALUES ('audit', $1)", json.dumps(stored))
    stats = WorkerStats()

    await AuditPurge(rig.pool, clock=FakeClock(NOW), stats=stats, batch=2)()

    assert await rig.value("SELECT count(*) FROM audit_log") == kept
    assert stats.purged["audit_log"] == 6 - kept


async def test_retention_that_cannot_be_read_removes_nothing(rig: Rig) -> None:
    async with rig.pool.acquire() as conn:
        event = Event(action="x", resource_type="user", resource_id=None)
        await audit.record(conn, event, actor=SystemActor(SystemName.SETUP), now=NOW - timedelta(days=4000))
    await rig.sql("INSERT INTO settings (key, value) VALUES ('audit', $1)", json.dumps({"retention_days": "long"}))

    with pytest.raises(msgspec.ValidationError):
        await AuditPurge(rig.pool, clock=FakeClock(NOW), stats=WorkerStats())()

    assert await rig.value("SELECT count(*) FROM audit_log") == 1


async def test_old_tool_runs_are_removed_in_batches_and_counted(rig: Rig) -> None:
    chat_id = await rig.create()
    for age in ("31 days", "32 days", "33 days", "1 day"):
        await rig.sql(
            "INSERT INTO chat_tool_runs (token, chat_id, message_id, tool_call_id, tool_name, started_at)"
            f" VALUES ($1, $2, 1, 'c', 't', now() - interval '{age}')",
            uuid4(),
            chat_id,
        )

    stats = WorkerStats()

    removed = await ToolRunPurge(rig.pool, stats=stats, batch=2)()

    assert await rig.value("SELECT count(*) FROM chat_tool_runs") == 1
    assert (removed, stats.purged["tool_runs"]) == (Removed(3), 3)


@pytest.mark.parametrize(("stored", "kept"), [(None, 2), ({"retention_days": 5}, 1), ({"retention_days": 0}, 5)])
async def test_debug_records_are_kept_for_as_long_as_administrators_want(
    rig: Rig, stored: dict[str, int] | None, kept: int
) -> None:
    rows, chat_id = DebugRows(rig), await rig.chat(State.W)
    for days in (0, 10, 31, 40, 400):
        run = await rows.run(chat_id)
        await rig.sql(
            "UPDATE chat_debug_runs SET updated_at = now() - $2::interval WHERE id = $1", run.id, timedelta(days)
        )
    if stored is not None:
        await rig.sql("INSERT INTO settings (key, value) VALUES ('debug', $1)", json.dumps(stored))
    stats = WorkerStats()

    removed = await DebugPurge(rig.pool, stats=stats, batch=2)()

    assert len(await rows.runs(chat_id)) == kept
    assert (removed, stats.purged["debug_runs"]) == (Removed(5 - kept), 5 - kept)


async def test_debug_sweep_ends_orphans_deletes_removed_records_and_announces_both(rig: Rig) -> None:
    rows, chat_id = DebugRows(rig), await rig.chat(State.W)
    orphan = await rows.run(chat_id, replica_id=uuid4())
    edited = await rig.chat(State.W)
    await rows.run(edited)
    await rig.sql("INSERT INTO chat_debug_state (chat_id) VALUES ($1) ON CONFLICT DO NOTHING", edited)
    await rig.sql("UPDATE chat_debug_state SET floor = 1000000, delete_from = 0 WHERE chat_id = $1", edited)
    rig.published.clear()

    removed = await DebugSweep(rig.pool, rig.published)()

    assert removed == Removed(1)
    assert await rows.runs(edited) == set()
    assert (await rows.row("runs", orphan.id))["status"] == "interrupted"
    (hint,) = [hint for hint in rig.published.hints if isinstance(hint, MiscHint)]
    assert hint.data == {"kind": "finalize", "run_id": str(orphan.id)}
