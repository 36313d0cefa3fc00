"""The lifecycle of workspaces: operations, races between them, replicas that die, quotas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import msgspec
import pytest

from rookery.store.db.pool import Connection
from rookery.store.models import key_rotation
from rookery.store.people.errors import InUse
from rookery.store.settings import settings
from rookery.store.workspaces import lifecycle_requests, operation_claims, operation_rows
from rookery.store.workspaces.lifecycle_requests import (
    Draft,
    NodeOffline,
    OperationInProgress,
    Requested,
    WorkspaceQuotaExceeded,
)
from rookery.store.workspaces.operation_rows import Reason
from rookery.workspaces.drivers.driver_interface import DriverError
from rookery.workspaces.template_errors import ParametersInvalid
from tests.eventually import until
from tests.workspaces.workspaces_rig import NODE, WorkspacesRig, open_yard


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[WorkspacesRig]:
    async with open_yard(database_url) as made:
        yield made


async def test_workspace_is_made_started_stopped_and_deleted(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    await rig.run(replica)
    store = rig.as_user()

    running = await rig.running(replica)
    assert (running.generation, running.home, running.os) == (1, "/home/agent", "linux")
    assert running.agent_state == "ready"
    assert len(running.name.split("-")) == 2

    stopped = await rig.settled(await replica.service.request_stop(store, running.id), "stopped")
    assert stopped.endpoint is None
    assert driver.has_files(running.id)

    again = await rig.settled(await replica.service.request_start(store, running.id), "running")
    assert again.generation == 2
    assert driver.starts[0].token != driver.starts[1].token

    deleted = await rig.settled(await replica.service.request_delete(store, running.id), "deleted")
    assert deleted.deleted_at is not None
    assert not driver.has_files(running.id)
    assert (await rig.create(replica, name=running.name)).workspace.name == running.name


async def test_log_of_an_operation_has_the_words_of_the_driver(rig: WorkspacesRig) -> None:
    """All lines are there at the end of the operation, when followers stop reading; those of a short script too."""
    replica, driver = rig.replica()
    driver.printed = "installing\n"
    await rig.run(replica)
    made = await rig.create(replica)
    await rig.settled(made, "running")
    assert made.operation is not None

    said = [line.split(" ", 1)[1] for line in (await rig.log(made.operation.id)).splitlines()]

    assert said[1:] == ["the driver begins", "the driver is done", "startup: installing", "The workspace is ready."]


async def test_two_starts_at_once_make_one_operation(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    await rig.run(replica)
    place = await rig.running(replica)
    store = rig.as_user()
    await rig.settled(await replica.service.request_stop(store, place.id), "stopped")

    both = await asyncio.gather(*(replica.service.request_start(store, place.id) for _ in range(2)))

    assert len({each.operation.id for each in both if each.operation is not None}) == 1
    assert [each.is_new for each in both].count(True) == 1
    await rig.settled(both[0], "running")
    assert len(driver.starts) == 2
    assert (await replica.service.request_start(store, place.id)).operation is None


async def test_start_during_a_stop_is_refused_and_works_afterwards(rig: WorkspacesRig) -> None:
    replica, _ = rig.replica()
    task = await rig.run(replica)
    place = await rig.running(replica)
    store = rig.as_user()
    task.cancel()
    stopping = await replica.service.request_stop(store, place.id)

    with pytest.raises(OperationInProgress) as refused:
        await replica.service.request_start(store, place.id)
    assert refused.value.code == "operation_in_progress"
    assert (await replica.service.request_stop(store, place.id)).operation == stopping.operation

    await rig.kill(replica)
    await rig.run(replica)
    await rig.settled(stopping, "stopped")
    await rig.settled(await replica.service.request_start(store, place.id), "running")


async def test_stop_cancels_a_running_start_and_waits_until_it_is_let_go_of(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica(gated=True)
    await rig.run(replica)
    made = await rig.create(replica)
    await driver.is_starting.wait()

    stopping = await replica.service.request_stop(rig.as_user(), made.workspace.id)
    stopped = await rig.settled(stopping, "stopped")

    assert made.operation is not None
    canceled = await rig.operation(made.operation.id)
    assert (canceled.state, canceled.claimed_by) == ("canceled", None)
    assert driver.stops == [(str(stopped.id), 1)]
    assert await driver.list_running() == []


async def test_delete_cancels_a_start_that_is_not_claimed(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    made = await rig.create(replica)
    deleting = await replica.service.request_delete(rig.as_user(), made.workspace.id)

    await rig.run(replica)

    await rig.settled(deleting, "deleted")
    assert driver.starts == []


async def test_start_that_a_dead_replica_left_is_finished_by_another(rig: WorkspacesRig) -> None:
    first, dying = rig.replica(gated=True)
    second, driver = rig.replica()
    await rig.run(first)
    made = await rig.create(first)
    await dying.is_starting.wait()

    await rig.kill(first)
    await rig.run(second)
    running = await rig.settled(made, "running")

    assert running.generation == 1  # the same boot, so a running agent is found
    assert dying.starts[0].token == driver.starts[0].token
    assert len(await driver.list_running()) == 1


async def test_lease_of_a_live_replica_is_respected_until_it_ends(rig: WorkspacesRig) -> None:
    first, held = rig.replica(gated=True)
    second, _ = rig.replica()
    await rig.run(first)
    made = await rig.create(first)
    await held.is_starting.wait()
    assert made.operation is not None
    other = second.parts.replica_id

    async with rig.pool.acquire() as conn:
        assert await operation_claims.claim(conn, other, node="this-node") == []
        await conn.execute("UPDATE workspace_operations SET lease_until = now() - interval '1 second'")
        (taken,) = await operation_claims.claim(conn, other, node="this-node")

        assert taken.id == made.operation.id
        with pytest.raises(operation_claims.ClaimLost):
            await operation_claims.begin(
                conn, taken, replica_id=first.parts.replica_id, seal=first.parts.specs.fresh_token
            )


async def test_stop_is_not_claimed_while_a_replica_still_holds_the_canceled_start(rig: WorkspacesRig) -> None:
    first, _ = rig.replica()
    second, _ = rig.replica()
    holder, other = first.parts.replica_id, second.parts.replica_id
    await rig.pool.execute(
        "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version) VALUES ($1, $2, 'h', 1, '1', 7)",
        holder,
        NODE,
    )
    made = await rig.create(first)
    assert made.operation is not None

    async with rig.pool.acquire() as conn:
        assert [each.id for each in await operation_claims.claim(conn, holder, node=NODE)] == [made.operation.id]
        stopping = await second.service.request_stop(rig.as_user(), made.workspace.id)
        assert await operation_claims.claim(conn, other, node=NODE) == []
        await operation_claims.release_canceled(conn, made.operation.id, replica_id=holder)
        (taken,) = await operation_claims.claim(conn, other, node=NODE)

    assert stopping.operation is not None
    assert taken.id == stopping.operation.id


async def test_replica_of_another_node_leaves_local_workspaces_alone(rig: WorkspacesRig) -> None:
    here, _ = rig.replica()
    elsewhere, _ = rig.replica(node="other-node")
    await rig.run(elsewhere)
    made = await rig.create(here)

    async with rig.pool.acquire() as conn:
        assert await operation_claims.claim(conn, elsewhere.parts.replica_id, node="other-node") == []

    await rig.run(here)
    place = await rig.settled(made, "running")
    await rig.settled(await here.service.request_stop(rig.as_user(), place.id), "stopped")
    await rig.kill(here)
    with pytest.raises(NodeOffline):
        await elsewhere.service.request_start(rig.as_user(), place.id)


async def test_failure_of_the_driver_fails_the_workspace_and_can_be_started_again(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    # It quotes the output of another machine, which may contain anything.
    driver.fails = DriverError("sandbox_failed", "There is no room\0 \ud800.")
    await rig.run(replica)
    made = await rig.create(replica)

    failed = await rig.settled(made, "failed")

    assert (failed.error, failed.error_code) == ("There is no room\N{REPLACEMENT CHARACTER} ?.", "sandbox_failed")
    assert made.operation is not None
    assert "Failed: There is no room" in await rig.log(made.operation.id)
    driver.fails = None
    await rig.settled(await replica.service.request_start(rig.as_user(), failed.id), "running")


async def test_failing_script_leaves_a_usable_workspace_with_its_state_and_log(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    driver.health = {"agent_state": "starting"}
    driver.printed = "installing\n"
    await rig.run(replica)
    made = await rig.create(replica)
    place = await rig.settled(made, "running")
    assert place.agent_state == "starting"

    driver.printed += "no such package\n"
    driver.health = {"agent_state": "script_failed", "startup_exit_code": 3}
    ready = await replica.service.wait_ready(place.id, seconds=30)

    assert (ready.status, ready.agent_state, ready.startup_exit_code) == ("running", "script_failed", 3)
    assert made.operation is not None
    operation_id = made.operation.id

    async def has_all() -> bool:
        return "The startup script failed with exit code 3" in await rig.log(operation_id)

    await until(has_all, timeout=30)
    said = await rig.log(operation_id)
    assert said.count("startup: installing") == said.count("startup: no such package") == 1


async def test_all_parameter_errors_come_together_and_an_immutable_change_is_refused(rig: WorkspacesRig) -> None:
    replica, _ = rig.replica()
    await rig.run(replica)

    with pytest.raises(ParametersInvalid) as refused:
        await rig.create(replica, name="Not good", parameters={"size": "huge", "colour": "red", "verbose": 7})
    assert {each.field for each in refused.value.problems} == {
        "name",
        "parameters.size",
        "parameters.colour",
        "parameters.verbose",
    }

    place = await rig.running(replica)
    store = rig.as_user()
    await rig.settled(await replica.service.request_stop(store, place.id), "stopped")
    with pytest.raises(ParametersInvalid, match="cannot be changed"):
        await replica.service.request_start(store, place.id, parameters={"size": "large"})
    started = await replica.service.request_start(store, place.id, parameters={"verbose": True})
    assert (await rig.settled(started, "running")).parameters == {"size": "small", "verbose": True}


async def test_next_start_uses_the_newest_revision_and_revisions_in_use_are_kept(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    await rig.run(replica)
    place = await rig.running(replica)
    newer = await rig.push(b'name = "plain"\nenv = { NEW = "1" }')
    store = rig.as_user()
    assert (await rig.load(place.id)).template_revision != newer

    await rig.settled(await replica.service.request_stop(store, place.id), "stopped")
    again = await rig.settled(await replica.service.request_start(store, place.id), "running")

    assert again.template_revision == newer
    assert driver.starts[-1].env == {"NEW": "1"}


async def test_sixth_running_workspace_is_refused_with_numbers(rig: WorkspacesRig) -> None:
    replica, _ = rig.replica()
    for _ in range(5):
        await rig.create(replica)

    with pytest.raises(WorkspaceQuotaExceeded) as refused:
        await rig.create(replica)

    assert (refused.value.kind, refused.value.used, refused.value.limit) == ("max_running_per_user", 5, 5)
    assert await rig.world.conn.fetchval("SELECT count(*) FROM workspaces") == 5
    assert (await rig.create(replica, owner=await rig.world.user())).is_new


SECRETIVE = b"""
name = "secretive"
[[parameters]]
name = "key"
type = "secret"
required = true
mutable = true
[[parameters]]
name = "once"
type = "secret"
ephemeral = true
[[parameters]]
name = "repo"
"""


async def test_secret_parameters_are_sealed_masked_and_handed_to_the_agent(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    await rig.run(replica)
    await rig.push(SECRETIVE)
    given = {"key": "hunter2", "once": "swordfish", "repo": "https://me:pa55@h/x.git"}

    made = await replica.service.request_create(rig.as_user(), rig.owner, template="secretive", parameters=given)
    assert isinstance(made, Requested)
    running = await rig.settled(made, "running")

    assert running.parameters == {"key": "***", "repo": "https://***@h/x.git"}
    assert driver.secrets == [{"key": "hunter2", "once": "swordfish", "repo": "https://me:pa55@h/x.git"}]
    assert driver.starts[0].parameters == {"repo": "https://h/x.git"}
    rows = await rig.world.conn.fetch(
        "SELECT to_jsonb(w)::text FROM workspaces w UNION ALL SELECT to_jsonb(o)::text FROM workspace_operations o"
    )
    stored = " ".join(row[0] for row in rows)
    assert not [text for text in ("hunter2", "swordfish", "pa55") if text in stored]
    assert await rig.world.conn.fetchval("SELECT count(secrets_enc) FROM workspace_operations") == 0

    await rig.settled(await replica.service.request_stop(rig.as_user(), running.id), "stopped")
    again = await replica.service.request_start(rig.as_user(), running.id, parameters={"key": "***"})
    await rig.settled(again, "running")
    assert driver.secrets[1] == {"key": "hunter2", "repo": "https://me:pa55@h/x.git"}


async def test_credentials_that_an_older_version_stored_are_sealed_once(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    await rig.run(replica)
    await rig.push(SECRETIVE)
    made = await replica.service.request_create(
        rig.as_user(), rig.owner, template="secretive", parameters={"key": "hunter2", "repo": "https://h/x.git"}
    )
    assert isinstance(made, Requested)
    workspace = await rig.settled(made, "running")
    await rig.settled(await replica.service.request_stop(rig.as_user(), workspace.id), "stopped")
    clear = {"key": "hunter2", "repo": "https://me:pa55@h/x.git"}
    await rig.world.conn.execute(
        "UPDATE workspaces SET secrets_enc = NULL, parameters = $1", msgspec.json.encode(clear).decode()
    )

    done = [await replica.parts.specs.seal_clear_parameters(rig.world.conn) for _ in range(2)]

    assert done == [1, 0]
    assert (await rig.load(workspace.id)).parameters["repo"] == "https://***@h/x.git"
    await rig.settled(await replica.service.request_start(rig.as_user(), workspace.id), "running")
    assert driver.secrets[-1]["repo"] == "https://me:pa55@h/x.git"


async def test_start_that_is_taken_over_after_its_secrets_were_handed_over_succeeds(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    await rig.run(replica)
    await rig.push(SECRETIVE)
    made = await replica.service.request_create(
        rig.as_user(), rig.owner, template="secretive", parameters={"key": "hunter2"}
    )
    assert isinstance(made, Requested)
    running = await rig.settled(made, "running")

    await replica.executor._send_secrets(running, {"key": "hunter2"})

    assert driver.secrets == [{"key": "hunter2"}]


async def test_secret_parameters_move_to_another_key_of_the_ring(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    await rig.run(replica)
    await rig.push(SECRETIVE)
    made = await replica.service.request_create(
        rig.as_user(), rig.owner, template="secretive", parameters={"key": "hunter2"}
    )
    assert isinstance(made, Requested)
    running = await rig.settled(made, "running")

    done = await key_rotation.rotate(rig.world.conn, rig.ring, full=True)

    assert done.unreadable == 0
    await rig.settled(await replica.service.request_stop(rig.as_user(), running.id), "stopped")
    await rig.settled(await replica.service.request_start(rig.as_user(), running.id), "running")
    assert driver.secrets[-1] == {"key": "hunter2"}


async def test_of_two_racing_creates_at_the_limit_one_wins(rig: WorkspacesRig) -> None:
    replica, _ = rig.replica()
    await settings.write_setting(rig.world.conn, "workspaces", value={"max_per_user": 3})
    for _ in range(2):
        await rig.create(replica)

    both = await asyncio.gather(*(rig.create(replica) for _ in range(4)), return_exceptions=True)

    refused = [each for each in both if isinstance(each, BaseException)]
    assert len(refused) == 3
    assert all(isinstance(each, WorkspaceQuotaExceeded) and each.kind == "max_per_user" for each in refused)
    assert await rig.world.conn.fetchval("SELECT count(*) FROM workspaces") == 3


async def test_create_at_the_limit_waits_for_one_that_is_not_committed_yet(rig: WorkspacesRig) -> None:
    revision = await rig.push()
    rules = {"max_per_user": 1, "max_running_per_node": 0}
    await settings.write_setting(rig.world.conn, "workspaces", value=rules)

    async def create(conn: Connection, name: str) -> Requested:
        draft = Draft(
            id=uuid4(),
            owner_id=rig.owner,
            name=name,
            template="plain",
            revision=revision,
            driver="local",
            node=NODE,
            parameters={},
            once={},
            idle_stop_after=timedelta(),
        )
        return await lifecycle_requests.create(conn, draft, reason=Reason.USER, now=rig.clock.now())

    async with rig.pool.acquire() as first, rig.pool.acquire() as second:
        before = first.transaction()
        await before.start()
        await create(first, "one")

        async def create_another() -> Requested:
            async with second.transaction():
                return await create(second, "two")

        another = asyncio.create_task(create_another())
        waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
        pid = second.get_server_pid()

        async def is_held_up() -> bool:
            return another.done() or await rig.world.conn.fetchval(waits, pid)

        await until(is_held_up)
        await before.commit()
        with pytest.raises(WorkspaceQuotaExceeded):
            await another


async def test_node_has_a_limit_of_its_own(rig: WorkspacesRig) -> None:
    replica, _ = rig.replica()
    await settings.write_setting(rig.world.conn, "workspaces", value={"max_running_per_node": 1})
    await rig.create(replica)

    with pytest.raises(WorkspaceQuotaExceeded) as refused:
        await rig.create(replica, owner=await rig.world.user())

    assert refused.value.kind == "max_running_per_node"


async def test_workspace_of_a_chat_at_work_is_deleted_only_with_force(rig: WorkspacesRig) -> None:
    replica, _ = rig.replica()
    made = await rig.create(replica)
    chat_id = await rig.world.chat(rig.owner)
    async with rig.world.conn.transaction():
        await rig.world.conn.execute(
            "UPDATE chats SET snapshot_version = snapshot_version + 1, status = 'running', workspace_id = $2"
            " WHERE id = $1",
            chat_id,
            made.workspace.id,
        )
    store = rig.as_user()

    with pytest.raises(InUse):
        await replica.service.request_delete(store, made.workspace.id)
    assert (await replica.service.request_delete(store, made.workspace.id, force=True)).is_new


async def test_workspace_whose_machine_never_comes_back_is_deleted_with_force(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica()
    await rig.run(replica)
    place = await rig.running(replica)
    store = rig.as_user()
    driver.fails = DriverError("ssh_failed", "Nobody answers.")

    kept = await rig.settled(await replica.service.request_delete(store, place.id), "failed")
    driver.fails = DriverError("delete_failed", "A file cannot be removed.")
    there = await rig.settled(await replica.service.request_delete(store, place.id, force=True), "failed")
    driver.fails = DriverError("ssh_failed", "Nobody answers.")
    forced = await replica.service.request_delete(store, place.id, force=True)
    gone = await rig.settled(forced, "deleted")

    assert (kept.error, there.error) == ("Nobody answers.", "A file cannot be removed.")
    assert gone.deleted_at is not None
    assert forced.operation is not None
    assert "Its files are not deleted" in await rig.log(forced.operation.id)


async def test_same_id_again_finds_what_the_first_request_made(rig: WorkspacesRig) -> None:
    replica, _ = rig.replica()
    chat_id = await rig.world.chat(rig.owner)
    first = await rig.create(replica, chat_id=chat_id)

    again = await rig.create(replica, chat_id=chat_id, workspace_id=first.workspace.id)

    assert (again.workspace.id, again.operation, again.is_new) == (first.workspace.id, first.operation, False)
    assert await rig.world.conn.fetchval("SELECT workspace_id FROM chats WHERE id = $1", chat_id) == first.workspace.id


async def test_wait_for_an_operation_ends_by_itself_and_changes_nothing(rig: WorkspacesRig) -> None:
    replica, driver = rig.replica(gated=True)
    await rig.run(replica)
    made = await rig.create(replica)
    assert made.operation is not None
    await driver.is_starting.wait()

    early = await replica.service.wait_operation(made.operation.id, seconds=0)
    waiting = asyncio.create_task(replica.service.wait_operation(made.operation.id, seconds=60))
    driver.gate.set()

    assert early.operation.is_open
    assert (await waiting).operation.state == "succeeded"


async def test_log_keeps_its_end_and_counts_what_is_gone(rig: WorkspacesRig) -> None:
    replica, _ = rig.replica()
    made = await rig.create(replica)
    assert made.operation is not None
    async with rig.pool.acquire() as conn:
        for _ in range(3):
            await operation_claims.append_log(conn, made.operation.id, "ä" * 100_000 + "\0\n")
        found = await operation_rows.read_log(conn, made.operation.id)

    assert len(found.text.encode()) <= operation_rows.MAX_LOG_BYTES
    assert found.dropped + len(found.text.encode()) == 3 * (200_000 + 4)
    assert found.text.endswith("\N{REPLACEMENT CHARACTER}\n")
