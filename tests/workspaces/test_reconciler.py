"""Rows and sandboxes agree: adoption, dead agents, strays, silence, and workspaces that nobody uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from rookery.store.settings import settings, workspaces
from rookery.store.settings.workspaces import WorkspaceSettings
from rookery.store.workspaces import idle
from rookery.testing import FakeClock
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.drivers.protocol import DriverError, Found, Probe, WorkspaceSpec
from rookery.workspaces.errors import AgentCutOff
from rookery.workspaces.loops import WorkspaceRuntime
from tests.eventually import until
from tests.workspaces.fake_driver import FakeDriver
from tests.workspaces.workspaces_rig import Yard, open_yard


@pytest.fixture
async def yard(database_url: str) -> AsyncIterator[Yard]:
    async with open_yard(database_url) as made:
        yield made


async def started(yard: Yard) -> tuple[WorkspaceRuntime, FakeDriver]:
    replica, driver = yard.replica()
    await yard.run(replica)
    return replica, driver


async def test_restarted_server_adopts_what_still_runs(yard: Yard) -> None:
    first, driver = await started(yard)
    place = await yard.running(first)
    await yard.kill(first)
    second, _ = await started(yard)

    await second.reconciler.reconcile()

    adopted = await yard.load(place.id)
    assert (adopted.status, adopted.generation, adopted.agent_state) == ("running", 1, "ready")
    assert adopted.last_seen_at is not None
    assert place.last_seen_at is not None
    assert adopted.last_seen_at > place.last_seen_at
    assert driver.strays == []


async def test_killed_agent_turns_the_row_to_failed(yard: Yard) -> None:
    replica, driver = await started(yard)
    place = await yard.running(replica)
    await driver.kill(str(place.id))

    await replica.reconciler.reconcile()

    failed = await yard.load(place.id)
    assert (failed.status, failed.error_code) == ("failed", "agent_exited")
    await yard.settled(await replica.service.request_start(yard.as_user(), place.id), "running")


async def test_machine_that_was_restarted_leaves_stopped_workspaces(yard: Yard) -> None:
    first, driver = await started(yard)
    place = await yard.running(first)
    await yard.kill(first)
    await driver.kill(str(place.id))
    await yard.world.conn.execute("UPDATE workspaces SET last_seen_at = now() - interval '1 hour'")
    second, _ = await started(yard)

    await second.reconciler.reconcile()

    stopped = await yard.load(place.id)
    assert (stopped.status, stopped.error_code) == ("stopped", "node_restarted")


async def test_sandbox_without_a_row_or_of_another_start_is_stopped(yard: Yard) -> None:
    replica, driver = await started(yard)
    kept, outdated = await yard.running(replica), await yard.running(replica)
    gone = await yard.running(replica)
    await yard.world.conn.execute("DELETE FROM workspaces WHERE id = $1", gone.id)
    await yard.world.conn.execute("UPDATE workspaces SET generation = 7 WHERE id = $1", outdated.id)

    await replica.reconciler.reconcile()

    assert {each.workspace_id for each in driver.strays} == {str(gone.id), str(outdated.id)}
    assert (await yard.load(kept.id)).status == "running"


async def test_stray_that_cannot_be_stopped_keeps_nobody_from_being_looked_after(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, driver = await started(yard)
    gone, dead = await yard.running(replica), await yard.running(replica)
    await yard.world.conn.execute("DELETE FROM workspaces WHERE id = $1", gone.id)
    await driver.kill(str(dead.id))

    async def refuse(found: Found) -> None:
        raise DriverError("stop_failed", "It did not end.")

    monkeypatch.setattr(driver, "stop_stray", refuse)
    await replica.reconciler.reconcile()

    assert (await yard.load(dead.id)).status == "failed"


async def test_agents_are_looked_at_side_by_side(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer takes seconds; others must not wait for it."""
    replica, _ = await started(yard)
    for _ in range(2):
        await yard.running(replica)
    both, met = asyncio.Barrier(2), []

    async def probe(ws: WorkspaceSpec) -> Probe:
        await both.wait()
        met.append(ws.id)
        return Probe(alive=True, answers=True)

    monkeypatch.setattr(FakeDriver, "probe", lambda _, ws: probe(ws))
    await replica.reconciler.reconcile()

    assert len(met) == 2


async def test_sandbox_of_a_start_that_is_under_way_is_left_alone(yard: Yard) -> None:
    replica, driver = yard.replica(gated=True)
    await yard.run(replica)
    await yard.create(replica)
    await driver.is_starting.wait()

    await replica.reconciler.reconcile()

    assert driver.strays == []


async def test_agent_that_is_silent_for_half_a_minute_is_unreachable_until_it_answers(yard: Yard) -> None:
    replica, driver = await started(yard)
    place = await yard.running(replica)
    silenced = driver._agents.pop(str(place.id))
    await silenced.cleanup()

    await replica.reconciler.reconcile()
    assert (await yard.load(place.id)).agent_state == "ready"
    await yard.world.conn.execute("UPDATE workspaces SET last_seen_at = now() - interval '31 seconds'")
    await replica.reconciler.reconcile()
    assert (await yard.load(place.id)).agent_state == "unreachable"

    await driver._serve(driver.starts[0])
    await replica.reconciler.reconcile()
    assert (await yard.load(place.id)).agent_state == "ready"


async def test_agent_that_floods_the_server_is_cut_off_until_the_next_start(yard: Yard) -> None:
    replica, driver = await started(yard)
    workspace = await yard.running(replica)
    place = await replica.places.find(workspace.id)
    assert place is not None
    driver.floods = True
    with pytest.raises(AgentCutOff, match="before an answer"):
        await replica.places.connect(place, ChatHeaders()).health()

    async def is_marked() -> bool:
        return (await yard.load(workspace.id)).error_code == "agent_misbehaved"

    await until(is_marked)
    driver.floods = False
    await replica.reconciler.reconcile()

    marked = await yard.load(workspace.id)
    assert (marked.status, marked.agent_state) == ("running", "unreachable")
    assert marked.error is not None
    assert "more than 64 KiB before an answer" in marked.error
    assert replica.parts.stats.cut_off == 1

    await yard.settled(await replica.service.request_stop(yard.as_user(), workspace.id), "stopped")
    again = await yard.settled(await replica.service.request_start(yard.as_user(), workspace.id), "running")
    assert (again.agent_state, again.error) == ("ready", None)
    await replica.places.close()


async def test_flood_in_answer_to_the_reconciler_is_cut_off_too(yard: Yard) -> None:
    replica, driver = await started(yard)
    workspace = await yard.running(replica)
    driver.floods = True

    await replica.reconciler.reconcile()

    assert (await yard.load(workspace.id)).error_code == "agent_misbehaved"


async def test_idle_workspace_is_stopped_and_its_files_stay(yard: Yard) -> None:
    replica, driver = await started(yard)
    place = await yard.running(replica)
    await yard.world.conn.execute("UPDATE workspaces SET last_used_at = now() - interval '59 minutes'")
    assert await replica.reconciler.stop_idle() == 0
    await yard.world.conn.execute("UPDATE workspaces SET last_used_at = now() - interval '61 minutes'")

    assert await replica.reconciler.stop_idle() == 1

    async def is_stopped() -> bool:
        return (await yard.load(place.id)).status == "stopped"

    await until(is_stopped, timeout=30)
    assert driver.has_files(place.id)
    assert await yard.world.conn.fetchval("SELECT reason FROM workspace_operations WHERE kind = 'stop'") == "idle"


async def test_workspace_of_a_chat_at_work_is_never_idle(yard: Yard) -> None:
    replica, _ = await started(yard)
    place = await yard.running(replica)
    chat_id = await yard.world.chat(yard.owner)
    async with yard.world.conn.transaction():
        await yard.world.conn.execute(
            "UPDATE chats SET snapshot_version = snapshot_version + 1, status = 'running', workspace_id = $2"
            " WHERE id = $1",
            chat_id,
            place.id,
        )
    await yard.world.conn.execute("UPDATE workspaces SET last_used_at = now() - interval '1 day'")

    assert await replica.reconciler.stop_idle() == 0
    assert (await yard.load(place.id)).last_used_at > place.created_at


async def test_use_between_the_list_and_the_lock_saves_a_workspace(yard: Yard) -> None:
    replica, _ = await started(yard)
    place = await yard.running(replica)
    now = yard.clock.now()
    rules = WorkspaceSettings()
    await yard.world.conn.execute("UPDATE workspaces SET last_used_at = now() - interval '2 hours'")

    async with yard.pool.acquire() as conn:
        assert await idle.list_idle(conn, rules, now=now) == [place.id]
        await replica.service.touch(place.id)
        assert await idle.stop_idle(conn, place.id, rules, now=now) is None


@pytest.mark.parametrize("status", ["running", "interrupting", "requires_action"])
async def test_chat_that_wakes_between_the_list_and_the_lock_saves_its_workspace(yard: Yard, status: str) -> None:
    replica, _ = await started(yard)
    place = await yard.running(replica)
    chat_id = await yard.world.chat(yard.owner)
    now, rules = yard.clock.now(), WorkspaceSettings()
    await yard.world.conn.execute("UPDATE workspaces SET last_used_at = now() - interval '2 hours'")
    change = (
        "UPDATE chats SET snapshot_version = snapshot_version + 1, status = $2, workspace_id = $3,"
        " requires_action_deadline_at = CASE $2 WHEN 'requires_action' THEN now() + interval '1 hour' END WHERE id = $1"
    )

    async with yard.pool.acquire() as conn:
        assert await idle.list_idle(conn, rules, now=now) == [place.id]
        await conn.execute(change, chat_id, status, place.id)
        assert await idle.stop_idle(conn, place.id, rules, now=now) is None
        await conn.execute(change, chat_id, "waiting", place.id)
        assert await idle.stop_idle(conn, place.id, rules, now=now) is not None


async def test_maximum_of_the_deployment_wins_over_templates(yard: Yard) -> None:
    replica, _ = await started(yard)
    await settings.write_setting(yard.world.conn, "workspaces", value={"max_idle_minutes": 10})
    place = await yard.running(replica)
    assert place.idle_stop_after == timedelta(minutes=10)
    await yard.world.conn.execute(
        "UPDATE workspaces SET idle_stop_after = interval '0', last_used_at = now() - interval '11 minutes'"
    )

    assert await replica.reconciler.stop_idle() == 1


async def test_stopped_workspaces_are_deleted_only_when_asked_for_and_unbound(yard: Yard) -> None:
    replica, _ = await started(yard)
    bound, free = await yard.running(replica), await yard.running(replica)
    store = yard.as_user()
    for each in (bound, free):
        await yard.settled(await replica.service.request_stop(store, each.id), "stopped")
    chat_id = await yard.world.chat(yard.owner)
    await yard.world.conn.execute("UPDATE chats SET workspace_id = $2 WHERE id = $1", chat_id, bound.id)
    await yard.world.conn.execute("UPDATE workspaces SET stopped_at = now() - interval '8 days'")
    assert await replica.reconciler.stop_idle() == 0
    await settings.write_setting(yard.world.conn, "workspaces", value={"delete_after_stopped_days": 7})

    assert await replica.reconciler.stop_idle() == 1

    async def is_deleted() -> bool:
        return (await yard.load(free.id)).status == "deleted"

    await until(is_deleted, timeout=30)
    assert (await yard.load(bound.id)).status == "stopped"


@pytest.mark.parametrize(("wanted", "most", "got"), [(60, 0, 60), (60, 10, 10), (5, 10, 5), (0, 10, 10), (0, 0, 0)])
def test_idle_time_under_a_cap(wanted: int, most: int, got: int) -> None:
    rules = workspaces.WorkspaceSettings(max_idle_minutes=most)

    assert rules.capped_idle(timedelta(minutes=wanted)) == timedelta(minutes=got)


async def test_rounds_come_every_half_minute_and_begin_at_once(database_url: str) -> None:
    clock = FakeClock()
    async with open_yard(database_url, clock=clock) as yard:
        replica, driver = yard.replica()
        rounds = 0
        looked = driver.list_running

        async def counted() -> list[object]:
            nonlocal rounds
            rounds += 1
            return list(await looked())

        driver.list_running = counted  # type: ignore[method-assign, assignment]
        task = asyncio.create_task(replica.reconciler.run())
        try:
            await until(lambda: rounds == 1, timeout=30)
            # The round is not over when it has looked: time must not pass before it sleeps again.
            await clock.until_waiting("reconcile")
            await clock.advance(30)
            await until(lambda: rounds == 2, timeout=30)
        finally:
            task.cancel()
            await asyncio.wait({task})


async def test_disk_that_is_nearly_full_is_told_until_there_is_room(yard: Yard) -> None:
    replica, driver = await started(yard)
    place = await yard.running(replica)
    mebibyte = 1024 * 1024

    async def seen(used: int) -> str | None:
        driver.health = {"agent_state": "ready", "disk_used": used, "disk_limit": 100 * mebibyte}
        await replica.reconciler.reconcile()
        found = await yard.load(place.id)
        return found.warnings(found.last_used_at)

    assert await seen(89 * mebibyte) is None
    yard.wire.hints.clear()
    assert await seen(90 * mebibyte) == "The disk of the workspace is nearly full: 90% of 100 MiB are used."
    assert yard.wire.hints
    yard.wire.hints.clear()
    await seen(90 * mebibyte + 5)
    assert not yard.wire.hints  # nothing that a person would notice
    assert await seen(mebibyte) is None
