"""The reconciler: adoption, dead agents, stray sandboxes, silent agents, and idle workspaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from rookery.store.settings import settings
from rookery.store.settings.limit_settings import WorkspaceSettings
from rookery.store.workspaces import idle_deadlines
from rookery.testing import FakeClock
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.drivers.driver_interface import DriverError, Found, Probe, WorkspaceSpec
from rookery.workspaces.errors import AgentCutOff
from rookery.workspaces.runtime import WorkspaceRuntime
from tests.eventually import until
from tests.workspaces.fake_driver import FakeDriver
from tests.workspaces.workspaces_rig import WorkspacesRig, open_yard


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[WorkspacesRig]:
    async with open_yard(database_url) as made:
        yield made


async def started(rig: WorkspacesRig) -> tuple[WorkspaceRuntime, FakeDriver]:
    replica, driver = rig.replica()
    await rig.run(replica)
    return replica, driver


async def test_restarted_server_adopts_what_still_runs(rig: WorkspacesRig) -> None:
    first, driver = await started(rig)
    place = await rig.running(first)
    await rig.kill(first)
    second, _ = await started(rig)

    await second.reconciler.reconcile()

    adopted = await rig.load(place.id)
    assert (adopted.status, adopted.generation, adopted.agent_state) == ("running", 1, "ready")
    assert adopted.last_seen_at is not None
    assert place.last_seen_at is not None
    assert adopted.last_seen_at > place.last_seen_at
    assert driver.strays == []


async def test_killed_agent_turns_the_row_to_failed(rig: WorkspacesRig) -> None:
    replica, driver = await started(rig)
    place = await rig.running(replica)
    await driver.kill(str(place.id))

    await replica.reconciler.reconcile()

    failed = await rig.load(place.id)
    assert (failed.status, failed.error_code) == ("failed", "agent_exited")
    await rig.settled(await replica.service.request_start(rig.as_user(), place.id), "running")


async def test_machine_that_was_restarted_leaves_stopped_workspaces(rig: WorkspacesRig) -> None:
    first, driver = await started(rig)
    place = await rig.running(first)
    await rig.kill(first)
    await driver.kill(str(place.id))
    await rig.world.conn.execute("UPDATE workspaces SET last_seen_at = now() - interval '1 hour'")
    second, _ = await started(rig)

    await second.reconciler.reconcile()

    stopped = await rig.load(place.id)
    assert (stopped.status, stopped.error_code) == ("stopped", "node_restarted")


async def test_sandbox_without_a_row_or_of_another_start_is_stopped(rig: WorkspacesRig) -> None:
    replica, driver = await started(rig)
    kept, outdated = await rig.running(replica), await rig.running(replica)
    gone = await rig.running(replica)
    await rig.world.conn.execute("DELETE FROM workspaces WHERE id = $1", gone.id)
    await rig.world.conn.execute("UPDATE workspaces SET generation = 7 WHERE id = $1", outdated.id)

    await replica.reconciler.reconcile()

    assert {each.workspace_id for each in driver.strays} == {str(gone.id), str(outdated.id)}
    assert (await rig.load(kept.id)).status == "running"


async def test_stray_sandbox_that_cannot_be_stopped_does_not_block_the_others(
    rig: WorkspacesRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, driver = await started(rig)
    gone, dead = await rig.running(replica), await rig.running(replica)
    await rig.world.conn.execute("DELETE FROM workspaces WHERE id = $1", gone.id)
    await driver.kill(str(dead.id))

    async def refuse(found: Found) -> None:
        raise DriverError("stop_failed", "It did not end.")

    monkeypatch.setattr(driver, "stop_stray", refuse)
    await replica.reconciler.reconcile()

    assert (await rig.load(dead.id)).status == "failed"


async def test_agents_are_looked_at_side_by_side(rig: WorkspacesRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that does not respond takes seconds; others must not wait for it."""
    replica, _ = await started(rig)
    for _ in range(2):
        await rig.running(replica)
    both, met = asyncio.Barrier(2), []

    async def probe(ws: WorkspaceSpec) -> Probe:
        await both.wait()
        met.append(ws.id)
        return Probe(alive=True, answers=True)

    monkeypatch.setattr(FakeDriver, "probe", lambda _, ws: probe(ws))
    await replica.reconciler.reconcile()

    assert len(met) == 2


async def test_sandbox_of_a_start_that_is_under_way_is_left_alone(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica(gated=True)
    await rig.run(replica)
    await rig.create(replica)
    await driver.is_starting.wait()

    await replica.reconciler.reconcile()

    assert driver.strays == []


async def test_agent_that_is_silent_for_half_a_minute_is_unreachable_until_it_answers(rig: WorkspacesRig) -> None:
    replica, driver = await started(rig)
    place = await rig.running(replica)
    silenced = driver._agents.pop(str(place.id))
    await silenced.cleanup()

    await replica.reconciler.reconcile()
    assert (await rig.load(place.id)).agent_state == "ready"
    await rig.world.conn.execute("UPDATE workspaces SET last_seen_at = now() - interval '31 seconds'")
    await replica.reconciler.reconcile()
    assert (await rig.load(place.id)).agent_state == "unreachable"

    await driver._serve(driver.starts[0])
    await replica.reconciler.reconcile()
    assert (await rig.load(place.id)).agent_state == "ready"


async def test_agent_that_floods_the_server_is_cut_off_until_the_next_start(rig: WorkspacesRig) -> None:
    replica, driver = await started(rig)
    workspace = await rig.running(replica)
    place = await replica.directory.find(workspace.id)
    assert place is not None
    driver.floods = True
    with pytest.raises(AgentCutOff, match="before a response"):
        await replica.directory.connect(place, ChatHeaders()).health()

    async def is_marked() -> bool:
        return (await rig.load(workspace.id)).error_code == "agent_misbehaved"

    await until(is_marked)
    driver.floods = False
    await replica.reconciler.reconcile()

    marked = await rig.load(workspace.id)
    assert (marked.status, marked.agent_state) == ("running", "unreachable")
    assert marked.error is not None
    assert "more than 64 KiB before a response" in marked.error
    assert replica.parts.stats.cut_off == 1

    await rig.settled(await replica.service.request_stop(rig.as_user(), workspace.id), "stopped")
    again = await rig.settled(await replica.service.request_start(rig.as_user(), workspace.id), "running")
    assert (again.agent_state, again.error) == ("ready", None)
    await replica.directory.close()


async def test_flood_in_answer_to_the_reconciler_is_cut_off_too(rig: WorkspacesRig) -> None:
    replica, driver = await started(rig)
    workspace = await rig.running(replica)
    driver.floods = True

    await replica.reconciler.reconcile()

    assert (await rig.load(workspace.id)).error_code == "agent_misbehaved"


async def test_idle_workspace_is_stopped_and_its_files_stay(rig: WorkspacesRig) -> None:
    replica, driver = await started(rig)
    place = await rig.running(replica)
    await rig.world.conn.execute("UPDATE workspaces SET last_used_at = now() - interval '59 minutes'")
    assert await replica.reconciler.stop_idle() == 0
    await rig.world.conn.execute("UPDATE workspaces SET last_used_at = now() - interval '61 minutes'")

    assert await replica.reconciler.stop_idle() == 1

    async def is_stopped() -> bool:
        return (await rig.load(place.id)).status == "stopped"

    await until(is_stopped, timeout=30)
    assert driver.has_files(place.id)
    assert await rig.world.conn.fetchval("SELECT reason FROM workspace_operations WHERE kind = 'stop'") == "idle"


async def test_workspace_of_a_chat_at_work_is_never_idle(rig: WorkspacesRig) -> None:
    replica, _ = await started(rig)
    place = await rig.running(replica)
    chat_id = await rig.world.chat(rig.owner)
    async with rig.world.conn.transaction():
        await rig.world.conn.execute(
            "UPDATE chats SET snapshot_version = snapshot_version + 1, status = 'running', workspace_id = $2"
            " WHERE id = $1",
            chat_id,
            place.id,
        )
    await rig.world.conn.execute("UPDATE workspaces SET last_used_at = now() - interval '1 day'")

    assert await replica.reconciler.stop_idle() == 0
    assert (await rig.load(place.id)).last_used_at > place.created_at


async def test_use_between_the_list_and_the_lock_saves_a_workspace(rig: WorkspacesRig) -> None:
    replica, _ = await started(rig)
    place = await rig.running(replica)
    now = rig.clock.now()
    rules = WorkspaceSettings()
    await rig.world.conn.execute("UPDATE workspaces SET last_used_at = now() - interval '2 hours'")

    async with rig.pool.acquire() as conn:
        assert await idle_deadlines.list_idle(conn, rules, now=now) == [place.id]
        await replica.service.touch(place.id)
        assert await idle_deadlines.stop_idle(conn, place.id, rules, now=now) is None


@pytest.mark.parametrize("status", ["running", "interrupting", "requires_action"])
async def test_chat_that_wakes_between_the_list_and_the_lock_saves_its_workspace(
    rig: WorkspacesRig, status: str
) -> None:
    replica, _ = await started(rig)
    place = await rig.running(replica)
    chat_id = await rig.world.chat(rig.owner)
    now, rules = rig.clock.now(), WorkspaceSettings()
    await rig.world.conn.execute("UPDATE workspaces SET last_used_at = now() - interval '2 hours'")
    change = (
        "UPDATE chats SET snapshot_version = snapshot_version + 1, status = $2, workspace_id = $3,"
        " requires_action_deadline_at = CASE $2 WHEN 'requires_action' THEN now() + interval '1 hour' END WHERE id = $1"
    )

    async with rig.pool.acquire() as conn:
        assert await idle_deadlines.list_idle(conn, rules, now=now) == [place.id]
        await conn.execute(change, chat_id, status, place.id)
        assert await idle_deadlines.stop_idle(conn, place.id, rules, now=now) is None
        await conn.execute(change, chat_id, "waiting", place.id)
        assert await idle_deadlines.stop_idle(conn, place.id, rules, now=now) is not None


async def test_maximum_of_the_deployment_wins_over_templates(rig: WorkspacesRig) -> None:
    replica, _ = await started(rig)
    await settings.write_setting(rig.world.conn, "workspaces", value={"max_idle_minutes": 10})
    place = await rig.running(replica)
    assert place.idle_stop_after == timedelta(minutes=10)
    await rig.world.conn.execute(
        "UPDATE workspaces SET idle_stop_after = interval '0', last_used_at = now() - interval '11 minutes'"
    )

    assert await replica.reconciler.stop_idle() == 1


async def test_stopped_workspaces_are_deleted_only_when_asked_for_and_unbound(rig: WorkspacesRig) -> None:
    replica, _ = await started(rig)
    bound, free = await rig.running(replica), await rig.running(replica)
    store = rig.as_user()
    for each in (bound, free):
        await rig.settled(await replica.service.request_stop(store, each.id), "stopped")
    chat_id = await rig.world.chat(rig.owner)
    await rig.world.conn.execute("UPDATE chats SET workspace_id = $2 WHERE id = $1", chat_id, bound.id)
    await rig.world.conn.execute("UPDATE workspaces SET stopped_at = now() - interval '8 days'")
    assert await replica.reconciler.stop_idle() == 0
    await settings.write_setting(rig.world.conn, "workspaces", value={"delete_after_stopped_days": 7})

    assert await replica.reconciler.stop_idle() == 1

    async def is_deleted() -> bool:
        return (await rig.load(free.id)).status == "deleted"

    await until(is_deleted, timeout=30)
    assert (await rig.load(bound.id)).status == "stopped"


@pytest.mark.parametrize(("wanted", "most", "got"), [(60, 0, 60), (60, 10, 10), (5, 10, 5), (0, 10, 10), (0, 0, 0)])
def test_idle_time_under_a_cap(wanted: int, most: int, got: int) -> None:
    rules = WorkspaceSettings(max_idle_minutes=most)

    assert rules.capped_idle(timedelta(minutes=wanted)) == timedelta(minutes=got)


async def test_rounds_come_every_half_minute_and_begin_at_once(database_url: str) -> None:
    clock = FakeClock()
    async with open_yard(database_url, clock=clock) as rig:
        replica, driver = rig.replica()
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
            # The round is not over after the probes: time must not pass before it sleeps again.
            await clock.until_waiting("reconcile")
            await clock.advance(30)
            await until(lambda: rounds == 2, timeout=30)
        finally:
            task.cancel()
            await asyncio.wait({task})


async def test_disk_that_is_nearly_full_is_told_until_there_is_room(rig: WorkspacesRig) -> None:
    replica, driver = await started(rig)
    place = await rig.running(replica)
    mebibyte = 1024 * 1024

    async def seen(used: int) -> str | None:
        driver.health = {"agent_state": "ready", "disk_used": used, "disk_limit": 100 * mebibyte}
        await replica.reconciler.reconcile()
        found = await rig.load(place.id)
        return found.warnings(found.last_used_at)

    assert await seen(89 * mebibyte) is None
    rig.wire.hints.clear()
    assert await seen(90 * mebibyte) == "The disk of the workspace is nearly full: 90% of 100 MiB are used."
    assert rig.wire.hints
    rig.wire.hints.clear()
    await seen(90 * mebibyte + 5)
    assert not rig.wire.hints  # nothing that a user would notice
    assert await seen(mebibyte) is None
