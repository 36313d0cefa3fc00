"""The life of workspaces: operations, races between them, replicas that die, quotas (workspaces.md, "Acceptance")."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import msgspec
import pytest

from rookery.store.db.pool import Connection
from rookery.store.models import sealed_values
from rookery.store.people.errors import InUse
from rookery.store.settings import settings
from rookery.store.workspaces import claims, operations, requests
from rookery.store.workspaces.operations import Reason
from rookery.store.workspaces.requests import Draft, NodeOffline, OperationInProgress, Requested, WorkspaceQuotaExceeded
from rookery.workspaces.drivers.protocol import DriverError
from rookery.workspaces.template_problems import ParametersInvalid
from tests.eventually import until
from tests.workspaces.workspaces_rig import NODE, Yard, open_yard


@pytest.fixture
async def yard(database_url: str) -> AsyncIterator[Yard]:
    async with open_yard(database_url) as made:
        yield made


async def test_workspace_is_made_started_stopped_and_deleted(yard: Yard) -> None:
    replica, driver = yard.replica()
    await yard.run(replica)
    store = yard.as_user()

    running = await yard.running(replica)
    assert (running.generation, running.home, running.os) == (1, "/home/agent", "linux")
    assert running.agent_state == "ready"
    assert running.name.startswith("plain-")

    stopped = await yard.settled(await replica.service.request_stop(store, running.id), "stopped")
    assert stopped.endpoint is None
    assert driver.has_files(running.id)

    again = await yard.settled(await replica.service.request_start(store, running.id), "running")
    assert again.generation == 2
    assert driver.starts[0].token != driver.starts[1].token

    deleted = await yard.settled(await replica.service.request_delete(store, running.id), "deleted")
    assert deleted.deleted_at is not None
    assert not driver.has_files(running.id)
    assert (await yard.create(replica, name=running.name)).workspace.name == running.name


async def test_log_of_an_operation_has_the_words_of_the_driver(yard: Yard) -> None:
    """All of them with the end of the operation, when whoever follows it leaves; those of a short script too."""
    replica, driver = yard.replica()
    driver.printed = "installing\n"
    await yard.run(replica)
    made = await yard.create(replica)
    await yard.settled(made, "running")
    assert made.operation is not None

    said = [line.split(" ", 1)[1] for line in (await yard.log(made.operation.id)).splitlines()]

    assert said[1:] == ["the driver begins", "the driver is done", "startup: installing", "The workspace is ready."]


async def test_two_starts_at_once_make_one_operation(yard: Yard) -> None:
    replica, driver = yard.replica()
    await yard.run(replica)
    place = await yard.running(replica)
    store = yard.as_user()
    await yard.settled(await replica.service.request_stop(store, place.id), "stopped")

    both = await asyncio.gather(*(replica.service.request_start(store, place.id) for _ in range(2)))

    assert len({each.operation.id for each in both if each.operation is not None}) == 1
    assert [each.is_new for each in both].count(True) == 1
    await yard.settled(both[0], "running")
    assert len(driver.starts) == 2
    assert (await replica.service.request_start(store, place.id)).operation is None


async def test_start_during_a_stop_is_refused_and_works_afterwards(yard: Yard) -> None:
    replica, _ = yard.replica()
    task = await yard.run(replica)
    place = await yard.running(replica)
    store = yard.as_user()
    task.cancel()
    stopping = await replica.service.request_stop(store, place.id)

    with pytest.raises(OperationInProgress) as refused:
        await replica.service.request_start(store, place.id)
    assert refused.value.code == "operation_in_progress"
    assert (await replica.service.request_stop(store, place.id)).operation == stopping.operation

    await yard.kill(replica)
    await yard.run(replica)
    await yard.settled(stopping, "stopped")
    await yard.settled(await replica.service.request_start(store, place.id), "running")


async def test_stop_cancels_a_running_start_and_waits_until_it_is_let_go_of(yard: Yard) -> None:
    replica, driver = yard.replica(gated=True)
    await yard.run(replica)
    made = await yard.create(replica)
    await driver.is_starting.wait()

    stopping = await replica.service.request_stop(yard.as_user(), made.workspace.id)
    stopped = await yard.settled(stopping, "stopped")

    assert made.operation is not None
    canceled = await yard.operation(made.operation.id)
    assert (canceled.state, canceled.claimed_by) == ("canceled", None)
    assert driver.stops == [(str(stopped.id), 1)]
    assert await driver.list_running() == []


async def test_delete_cancels_a_start_that_nobody_has_begun(yard: Yard) -> None:
    replica, driver = yard.replica()
    made = await yard.create(replica)
    deleting = await replica.service.request_delete(yard.as_user(), made.workspace.id)

    await yard.run(replica)

    await yard.settled(deleting, "deleted")
    assert driver.starts == []


async def test_start_that_a_dead_replica_left_is_finished_by_another(yard: Yard) -> None:
    first, dying = yard.replica(gated=True)
    second, driver = yard.replica()
    await yard.run(first)
    made = await yard.create(first)
    await dying.is_starting.wait()

    await yard.kill(first)
    await yard.run(second)
    running = await yard.settled(made, "running")

    assert running.generation == 1  # the same start, so an agent that is up already is found
    assert dying.starts[0].token == driver.starts[0].token
    assert len(await driver.list_running()) == 1


async def test_lease_of_a_live_replica_is_respected_until_it_ends(yard: Yard) -> None:
    first, held = yard.replica(gated=True)
    second, _ = yard.replica()
    await yard.run(first)
    made = await yard.create(first)
    await held.is_starting.wait()
    assert made.operation is not None
    other = second.parts.replica_id

    async with yard.pool.acquire() as conn:
        assert await claims.claim(conn, other, node="this-node") == []
        await conn.execute("UPDATE workspace_operations SET lease_until = now() - interval '1 second'")
        (taken,) = await claims.claim(conn, other, node="this-node")

        assert taken.id == made.operation.id
        with pytest.raises(claims.ClaimLost):
            await claims.begin(conn, taken, replica_id=first.parts.replica_id, seal=first.parts.specs.fresh_token)


async def test_stop_is_not_begun_while_somebody_has_the_canceled_start_in_hand(yard: Yard) -> None:
    first, _ = yard.replica()
    second, _ = yard.replica()
    holder, other = first.parts.replica_id, second.parts.replica_id
    await yard.pool.execute(
        "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version) VALUES ($1, $2, 'h', 1, '1', 7)",
        holder,
        NODE,
    )
    made = await yard.create(first)
    assert made.operation is not None

    async with yard.pool.acquire() as conn:
        assert [each.id for each in await claims.claim(conn, holder, node=NODE)] == [made.operation.id]
        stopping = await second.service.request_stop(yard.as_user(), made.workspace.id)
        assert await claims.claim(conn, other, node=NODE) == []
        await claims.let_go(conn, made.operation.id, replica_id=holder)
        (taken,) = await claims.claim(conn, other, node=NODE)

    assert stopping.operation is not None
    assert taken.id == stopping.operation.id


async def test_replica_of_another_node_leaves_local_workspaces_alone(yard: Yard) -> None:
    here, _ = yard.replica()
    elsewhere, _ = yard.replica(node="other-node")
    await yard.run(elsewhere)
    made = await yard.create(here)

    async with yard.pool.acquire() as conn:
        assert await claims.claim(conn, elsewhere.parts.replica_id, node="other-node") == []

    await yard.run(here)
    place = await yard.settled(made, "running")
    await yard.settled(await here.service.request_stop(yard.as_user(), place.id), "stopped")
    await yard.kill(here)
    with pytest.raises(NodeOffline):
        await elsewhere.service.request_start(yard.as_user(), place.id)


async def test_failure_of_the_driver_fails_the_workspace_and_can_be_started_again(yard: Yard) -> None:
    replica, driver = yard.replica()
    # It quotes what another machine said, where anything can be.
    driver.fails = DriverError("sandbox_failed", "There is no room\0 \ud800.")
    await yard.run(replica)
    made = await yard.create(replica)

    failed = await yard.settled(made, "failed")

    assert (failed.error, failed.error_code) == ("There is no room\N{REPLACEMENT CHARACTER} ?.", "sandbox_failed")
    assert made.operation is not None
    assert "Failed: There is no room" in await yard.log(made.operation.id)
    driver.fails = None
    await yard.settled(await replica.service.request_start(yard.as_user(), failed.id), "running")


async def test_failing_script_leaves_a_usable_workspace_with_its_state_and_log(yard: Yard) -> None:
    replica, driver = yard.replica()
    driver.health = {"agent_state": "starting"}
    driver.printed = "installing\n"
    await yard.run(replica)
    made = await yard.create(replica)
    place = await yard.settled(made, "running")
    assert place.agent_state == "starting"

    driver.printed += "no such package\n"
    driver.health = {"agent_state": "script_failed", "startup_exit_code": 3}
    ready = await replica.service.wait_ready(place.id, seconds=30)

    assert (ready.status, ready.agent_state, ready.startup_exit_code) == ("running", "script_failed", 3)
    assert made.operation is not None
    operation_id = made.operation.id

    async def has_all() -> bool:
        return "The startup script failed with exit code 3" in await yard.log(operation_id)

    await until(has_all, timeout=30)
    said = await yard.log(operation_id)
    assert said.count("startup: installing") == said.count("startup: no such package") == 1


async def test_all_parameter_errors_come_together_and_an_immutable_change_is_refused(yard: Yard) -> None:
    replica, _ = yard.replica()
    await yard.run(replica)

    with pytest.raises(ParametersInvalid) as refused:
        await yard.create(replica, name="Not good", parameters={"size": "huge", "colour": "red", "verbose": 7})
    assert {each.field for each in refused.value.problems} == {
        "name",
        "parameters.size",
        "parameters.colour",
        "parameters.verbose",
    }

    place = await yard.running(replica)
    store = yard.as_user()
    await yard.settled(await replica.service.request_stop(store, place.id), "stopped")
    with pytest.raises(ParametersInvalid, match="cannot be changed"):
        await replica.service.request_start(store, place.id, parameters={"size": "large"})
    started = await replica.service.request_start(store, place.id, parameters={"verbose": True})
    assert (await yard.settled(started, "running")).parameters == {"size": "small", "verbose": True}


async def test_next_start_uses_the_newest_revision_and_revisions_in_use_are_kept(yard: Yard) -> None:
    replica, driver = yard.replica()
    await yard.run(replica)
    place = await yard.running(replica)
    newer = await yard.push(b'name = "plain"\nenv = { NEW = "1" }')
    store = yard.as_user()
    assert (await yard.load(place.id)).template_revision != newer

    await yard.settled(await replica.service.request_stop(store, place.id), "stopped")
    again = await yard.settled(await replica.service.request_start(store, place.id), "running")

    assert again.template_revision == newer
    assert driver.starts[-1].env == {"NEW": "1"}


async def test_sixth_running_workspace_is_refused_with_numbers(yard: Yard) -> None:
    replica, _ = yard.replica()
    for _ in range(5):
        await yard.create(replica)

    with pytest.raises(WorkspaceQuotaExceeded) as refused:
        await yard.create(replica)

    assert (refused.value.kind, refused.value.used, refused.value.limit) == ("max_running_per_user", 5, 5)
    assert await yard.world.conn.fetchval("SELECT count(*) FROM workspaces") == 5
    assert (await yard.create(replica, owner=await yard.world.user())).is_new


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


async def test_secret_parameters_are_sealed_masked_and_handed_to_the_agent(yard: Yard) -> None:
    replica, driver = yard.replica()
    await yard.run(replica)
    await yard.push(SECRETIVE)
    given = {"key": "hunter2", "once": "swordfish", "repo": "https://me:pa55@h/x.git"}

    made = await replica.service.request_create(yard.as_user(), yard.owner, template="secretive", parameters=given)
    assert isinstance(made, Requested)
    running = await yard.settled(made, "running")

    assert running.parameters == {"key": "***", "repo": "https://***@h/x.git"}
    assert driver.secrets == [{"key": "hunter2", "once": "swordfish", "repo": "https://me:pa55@h/x.git"}]
    assert driver.starts[0].parameters == {"repo": "https://h/x.git"}
    rows = await yard.world.conn.fetch(
        "SELECT to_jsonb(w)::text FROM workspaces w UNION ALL SELECT to_jsonb(o)::text FROM workspace_operations o"
    )
    stored = " ".join(row[0] for row in rows)
    assert not [text for text in ("hunter2", "swordfish", "pa55") if text in stored]
    assert await yard.world.conn.fetchval("SELECT count(secrets_enc) FROM workspace_operations") == 0

    await yard.settled(await replica.service.request_stop(yard.as_user(), running.id), "stopped")
    again = await replica.service.request_start(yard.as_user(), running.id, parameters={"key": "***"})
    await yard.settled(again, "running")
    assert driver.secrets[1] == {"key": "hunter2", "repo": "https://me:pa55@h/x.git"}


async def test_credentials_that_an_older_version_stored_are_sealed_once(yard: Yard) -> None:
    replica, driver = yard.replica()
    await yard.run(replica)
    await yard.push(SECRETIVE)
    made = await replica.service.request_create(
        yard.as_user(), yard.owner, template="secretive", parameters={"key": "hunter2", "repo": "https://h/x.git"}
    )
    assert isinstance(made, Requested)
    workspace = await yard.settled(made, "running")
    await yard.settled(await replica.service.request_stop(yard.as_user(), workspace.id), "stopped")
    clear = {"key": "hunter2", "repo": "https://me:pa55@h/x.git"}
    await yard.world.conn.execute(
        "UPDATE workspaces SET secrets_enc = NULL, parameters = $1", msgspec.json.encode(clear).decode()
    )

    done = [await replica.parts.specs.seal_clear_parameters(yard.world.conn) for _ in range(2)]

    assert done == [1, 0]
    assert (await yard.load(workspace.id)).parameters["repo"] == "https://***@h/x.git"
    await yard.settled(await replica.service.request_start(yard.as_user(), workspace.id), "running")
    assert driver.secrets[-1]["repo"] == "https://me:pa55@h/x.git"


async def test_start_that_is_taken_over_after_its_secrets_were_handed_over_succeeds(yard: Yard) -> None:
    replica, driver = yard.replica()
    await yard.run(replica)
    await yard.push(SECRETIVE)
    made = await replica.service.request_create(
        yard.as_user(), yard.owner, template="secretive", parameters={"key": "hunter2"}
    )
    assert isinstance(made, Requested)
    running = await yard.settled(made, "running")

    await replica.executor._hand_over(running, {"key": "hunter2"})

    assert driver.secrets == [{"key": "hunter2"}]


async def test_secret_parameters_move_to_another_key_of_the_ring(yard: Yard) -> None:
    replica, driver = yard.replica()
    await yard.run(replica)
    await yard.push(SECRETIVE)
    made = await replica.service.request_create(
        yard.as_user(), yard.owner, template="secretive", parameters={"key": "hunter2"}
    )
    assert isinstance(made, Requested)
    running = await yard.settled(made, "running")

    done = await sealed_values.rotate(yard.world.conn, yard.ring, full=True)

    assert done.unreadable == 0
    await yard.settled(await replica.service.request_stop(yard.as_user(), running.id), "stopped")
    await yard.settled(await replica.service.request_start(yard.as_user(), running.id), "running")
    assert driver.secrets[-1] == {"key": "hunter2"}


async def test_of_two_racing_creates_at_the_limit_one_wins(yard: Yard) -> None:
    replica, _ = yard.replica()
    await settings.write_setting(yard.world.conn, "workspaces", value={"max_per_user": 3})
    for _ in range(2):
        await yard.create(replica)

    both = await asyncio.gather(*(yard.create(replica) for _ in range(4)), return_exceptions=True)

    refused = [each for each in both if isinstance(each, BaseException)]
    assert len(refused) == 3
    assert all(isinstance(each, WorkspaceQuotaExceeded) and each.kind == "max_per_user" for each in refused)
    assert await yard.world.conn.fetchval("SELECT count(*) FROM workspaces") == 3


async def test_create_at_the_limit_waits_for_one_that_is_not_committed_yet(yard: Yard) -> None:
    revision = await yard.push()
    rules = {"max_per_user": 1, "max_running_per_node": 0}
    await settings.write_setting(yard.world.conn, "workspaces", value=rules)

    async def create(conn: Connection, name: str) -> Requested:
        draft = Draft(
            id=uuid4(),
            owner_id=yard.owner,
            name=name,
            template="plain",
            revision=revision,
            driver="local",
            node=NODE,
            parameters={},
            once={},
            idle_stop_after=timedelta(),
        )
        return await requests.create(conn, draft, reason=Reason.USER, now=yard.clock.now())

    async with yard.pool.acquire() as first, yard.pool.acquire() as second:
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
            return another.done() or await yard.world.conn.fetchval(waits, pid)

        await until(is_held_up)
        await before.commit()
        with pytest.raises(WorkspaceQuotaExceeded):
            await another


async def test_node_has_a_limit_of_its_own(yard: Yard) -> None:
    replica, _ = yard.replica()
    await settings.write_setting(yard.world.conn, "workspaces", value={"max_running_per_node": 1})
    await yard.create(replica)

    with pytest.raises(WorkspaceQuotaExceeded) as refused:
        await yard.create(replica, owner=await yard.world.user())

    assert refused.value.kind == "max_running_per_node"


async def test_workspace_of_a_chat_at_work_is_deleted_only_with_force(yard: Yard) -> None:
    replica, _ = yard.replica()
    made = await yard.create(replica)
    chat_id = await yard.world.chat(yard.owner)
    async with yard.world.conn.transaction():
        await yard.world.conn.execute(
            "UPDATE chats SET snapshot_version = snapshot_version + 1, status = 'running', workspace_id = $2"
            " WHERE id = $1",
            chat_id,
            made.workspace.id,
        )
    store = yard.as_user()

    with pytest.raises(InUse):
        await replica.service.request_delete(store, made.workspace.id)
    assert (await replica.service.request_delete(store, made.workspace.id, force=True)).is_new


async def test_workspace_whose_machine_never_comes_back_is_deleted_with_force(yard: Yard) -> None:
    replica, driver = yard.replica()
    await yard.run(replica)
    place = await yard.running(replica)
    store = yard.as_user()
    driver.fails = DriverError("ssh_failed", "Nobody answers.")

    kept = await yard.settled(await replica.service.request_delete(store, place.id), "failed")
    driver.fails = DriverError("delete_failed", "A file cannot be removed.")
    there = await yard.settled(await replica.service.request_delete(store, place.id, force=True), "failed")
    driver.fails = DriverError("ssh_failed", "Nobody answers.")
    forced = await replica.service.request_delete(store, place.id, force=True)
    gone = await yard.settled(forced, "deleted")

    assert (kept.error, there.error) == ("Nobody answers.", "A file cannot be removed.")
    assert gone.deleted_at is not None
    assert forced.operation is not None
    assert "Its files stay where they are" in await yard.log(forced.operation.id)


async def test_same_id_again_finds_what_the_first_request_made(yard: Yard) -> None:
    replica, _ = yard.replica()
    chat_id = await yard.world.chat(yard.owner)
    first = await yard.create(replica, chat_id=chat_id)

    again = await yard.create(replica, chat_id=chat_id, workspace_id=first.workspace.id)

    assert (again.workspace.id, again.operation, again.is_new) == (first.workspace.id, first.operation, False)
    assert await yard.world.conn.fetchval("SELECT workspace_id FROM chats WHERE id = $1", chat_id) == first.workspace.id


async def test_wait_for_an_operation_ends_by_itself_and_changes_nothing(yard: Yard) -> None:
    replica, driver = yard.replica(gated=True)
    await yard.run(replica)
    made = await yard.create(replica)
    assert made.operation is not None
    await driver.is_starting.wait()

    early = await replica.service.wait_operation(made.operation.id, seconds=0)
    waiting = asyncio.create_task(replica.service.wait_operation(made.operation.id, seconds=60))
    driver.gate.set()

    assert early.operation.is_open
    assert (await waiting).operation.state == "succeeded"


async def test_log_keeps_its_end_and_counts_what_is_gone(yard: Yard) -> None:
    replica, _ = yard.replica()
    made = await yard.create(replica)
    assert made.operation is not None
    async with yard.pool.acquire() as conn:
        for _ in range(3):
            await claims.append_log(conn, made.operation.id, "ä" * 100_000 + "\0\n")
        found = await operations.read_log(conn, made.operation.id)

    assert len(found.text.encode()) <= operations.MAX_LOG_BYTES
    assert found.dropped + len(found.text.encode()) == 3 * (200_000 + 4)
    assert found.text.endswith("\N{REPLACEMENT CHARACTER}\n")
