"""The executor of operations: claims operations, calls the drivers, and stores the results.

Every replica has an executor. Executors of the same node share its local workspaces. A claim is a lease of 30 s that is
renewed every 10 s. If a replica dies, another replica claims its operations and repeats them, so driver actions are
idempotent. A canceled start is released before the next operation of its workspace is claimed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NoReturn
from uuid import UUID

from rookery.runtime.clock import DeadlineExceeded
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import MiscHint
from rookery.store.mcp import servers
from rookery.store.workspaces import lifecycle_requests, operation_claims, workspaces
from rookery.store.workspaces.operation_claims import RENEW_SECONDS, ClaimLost, DownResult, StartResult
from rookery.store.workspaces.operation_rows import Kind, Operation, Reason
from rookery.store.workspaces.workspaces import SCRIPT_ENDED, AgentState, Status, Workspace
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_messages import Health
from rookery.workspaces.drivers.driver_interface import DriverError, Endpoint
from rookery.workspaces.errors import AgentError, WorkspaceError
from rookery.workspaces.operation_log import OperationWriter
from rookery.workspaces.readiness import Readiness, disk_warning
from rookery.workspaces.shared_services import WorkspaceServices

log = get_logger("workspaces.operation_executor")

START_SECONDS = 600.0
# New operations are announced by hints. Polling finds them if a hint is lost.
POLL_SECONDS = 2.0
RETRY_SECONDS = 2.0
MAX_AT_ONCE = 8
DELETE_SECONDS = 300.0
DISABLED_GRACE_SECONDS = 2.0
STOP_SLACK_SECONDS = 30.0
OUT_OF_REACH = frozenset({"ssh_auth", "ssh_hostkey", "ssh_failed", "python_missing"})


class _ClaimedOperation:
    """An operation that this replica has claimed. `lost` is set when its lease is lost."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.lost = asyncio.Event()


class Executor:
    """The executor of one replica. At its end it returns its operations to the queue; sandboxes keep running."""

    def __init__(self, parts: WorkspaceServices) -> None:
        self._parts = parts
        self._claimed: dict[UUID, _ClaimedOperation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self.readiness = Readiness(parts)

    def wake(self, _: object = None) -> None:
        """Check for new and canceled operations now."""
        self._wake.set()

    async def run(self) -> NoReturn:
        bus = self._parts.bus
        subscriptions = [
            bus.subscribe(MiscHint, self.wake, key=lifecycle_requests.TOPIC),
            bus.on_resync(self.wake),
        ]
        renewing = asyncio.create_task(self._renew_regularly(), name="operation-leases")
        try:
            while True:
                self._wake.clear()
                try:
                    await self._renew()
                    await self._claim()
                except DATABASE_ERRORS as error:
                    log.warning("operations_not_claimed", error=str(error))
                await self._pause()
        finally:
            for subscription in subscriptions:
                subscription.close()
            renewing.cancel()
            await self._shut_down(renewing)

    async def _shut_down(self, renewing: asyncio.Task[NoReturn]) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait({renewing, *self._tasks})
        await self.readiness.close()

    async def _pause(self) -> None:
        try:
            async with self._parts.clock.deadline(POLL_SECONDS, "operations-poll"):
                await self._wake.wait()
        except DeadlineExceeded:
            pass

    async def _claim(self) -> None:
        room = MAX_AT_ONCE - len(self._claimed)
        if room <= 0:
            return
        async with self._parts.pool.acquire() as conn:
            claimed = await operation_claims.claim(
                conn, self._parts.replica_id, node=self._parts.node, without=list(self._claimed), limit=room
            )
        for operation in claimed:
            held = self._claimed[operation.id] = _ClaimedOperation(operation)
            task = asyncio.create_task(self._run_claimed(held), name=f"operation:{operation.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _renew_regularly(self) -> NoReturn:
        async for _ in self._parts.clock.ticker(RENEW_SECONDS, "operation-leases"):
            try:
                await self._renew()
            except DATABASE_ERRORS as error:
                log.warning("leases_not_renewed", error=str(error))
        raise AssertionError("unreachable")

    async def _renew(self) -> None:
        held = list(self._claimed)
        if not held:
            return
        async with self._parts.pool.acquire() as conn:
            ours = await operation_claims.renew(conn, self._parts.replica_id, held)
        for operation_id in held:
            if operation_id not in ours and (lost := self._claimed.get(operation_id)) is not None:
                lost.lost.set()

    async def _run_claimed(self, held: _ClaimedOperation) -> None:
        """Execute one operation until it is over, its lease is lost, or the executor ends."""
        operation = held.operation
        work = asyncio.create_task(self._execute(operation), name=f"operation-work:{operation.id}")
        losing = asyncio.create_task(held.lost.wait(), name=f"operation-lost:{operation.id}")
        try:
            await asyncio.wait({work, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.info("operation_let_go", operation_id=operation.id, workspace_id=operation.workspace_id)
                work.cancel()
                await asyncio.wait({work})
                await self._release(operation)
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait({work})
            await self._return(operation)
            raise
        finally:
            losing.cancel()
            self._claimed.pop(operation.id, None)
            self._wake.set()

    async def _release(self, operation: Operation) -> None:
        """Release an operation whose lease is lost. The next operation of the workspace waits for this."""
        try:
            async with self._parts.pool.acquire() as conn:
                await operation_claims.release_canceled(conn, operation.id, replica_id=self._parts.replica_id)
        except DATABASE_ERRORS as error:
            log.warning("operation_not_let_go", operation_id=operation.id, error=str(error))  # its lease expires
        self._parts.publish([MiscHint(topic=lifecycle_requests.TOPIC)])

    async def _return(self, operation: Operation) -> None:
        try:
            async with self._parts.pool.acquire() as conn:
                await operation_claims.requeue(conn, operation.id, replica_id=self._parts.replica_id)
        except DATABASE_ERRORS as error:
            log.warning("operation_not_given_back", operation_id=operation.id, error=str(error))
        self._parts.publish([MiscHint(topic=lifecycle_requests.TOPIC)])

    async def _execute(self, operation: Operation) -> None:
        writer = OperationWriter(self._parts, operation.workspace_id, operation.id)
        writing = asyncio.create_task(writer.run(), name=f"operation-log:{operation.id}")
        try:
            await self._execute_logged(operation, writer)
        except ClaimLost:
            log.info("operation_lost", operation_id=operation.id)
        except Exception as error:
            # A bug, or the database is not available. The lease expires, and a replica claims the operation again.
            log.exception("operation_broke", error, operation_id=operation.id, workspace_id=operation.workspace_id)
            await self._parts.clock.sleep(RETRY_SECONDS, "operation-broke")
        finally:
            try:
                await writer.close(writing)
            except DATABASE_ERRORS as error:
                log.warning("operation_log_not_stored", operation_id=operation.id, error=str(error))

    async def _execute_logged(self, operation: Operation, writer: OperationWriter) -> None:
        try:
            match operation.kind:
                case Kind.CREATE | Kind.START:
                    await self._start(operation, writer)
                case Kind.STOP:
                    await self._stop(operation, writer)
                case _:
                    await self._delete(operation, writer)
        except DriverError as error:
            writer(f"Failed: {error.advice}")
            await writer.flush()
            await self._finish_down(operation, DownResult(Status.FAILED, error.advice, error.code))
        except DeadlineExceeded as error:
            message = f"This took longer than {error.seconds:g} s and was aborted."
            writer(f"Failed: {message}")
            await writer.flush()
            await self._finish_down(operation, DownResult(Status.FAILED, message, "timeout"))

    async def _start(self, operation: Operation, writer: OperationWriter) -> None:
        parts = self._parts
        began = parts.clock.monotonic()
        result = "failed"
        async with parts.pool.acquire() as conn:
            workspace, operation = await operation_claims.begin(
                conn, operation, replica_id=parts.replica_id, seal=parts.specs.fresh_token
            )
            await parts.publish_change(conn, workspace, operation=str(operation.id))
            spec = await parts.specs.for_start(conn, workspace, operation)
        driver = parts.driver(workspace.driver)
        writer(f"Starting {workspace.name} from {workspace.template} (start {workspace.generation}).")
        try:
            async with parts.clock.deadline(START_SECONDS, "workspace-start"):
                endpoint = await driver.start(spec, writer)
                if spec.secrets:
                    await self._send_secrets(workspace, spec.secrets)
                health = await parts.find_health(workspace)
            for warning in endpoint.warnings:
                writer(f"Warning: {warning}")
            if is_ready := health is not None and health.agent_state in SCRIPT_ENDED:
                assert health is not None
                await self.readiness.log_result(workspace, writer, health)
            # Stored before the end of the operation, because readers of the log stop then.
            await writer.flush()
            running = await self._finish_up(operation, endpoint, health)
            self.readiness.follow(running, operation.id, is_logged=is_ready)
            result = "succeeded"
        except DeadlineExceeded:
            await driver.stop(spec, 0.0)
            raise
        except asyncio.CancelledError:
            result = "canceled"
            raise
        finally:
            parts.stats.start_seconds.observe((workspace.driver, result), parts.clock.monotonic() - began)

    async def _send_secrets(self, workspace: Workspace, secrets: Mapping[str, str]) -> None:
        """Send the secrets to the agent. Its startup script waits for them."""
        try:
            async with self._parts.connected(workspace) as agent:
                await agent.give_secrets(secrets)
        except AgentError as error:
            # The replica that claimed the operation before may have sent them.
            if error.code != "secrets_given":
                raise _secrets_not_sent(error) from error
        except WorkspaceError as error:
            raise _secrets_not_sent(error) from error

    async def _finish_up(self, operation: Operation, endpoint: Endpoint, health: Health | None) -> Workspace:
        parts = self._parts
        up = StartResult(
            endpoint=endpoint.url,
            agent_state=_agent_state(health),
            os=health.os if health is not None else None,
            arch=health.arch if health is not None else None,
            home=endpoint.home,
            directory=endpoint.directory,
            warning=" ".join(endpoint.warnings) or None,
            disk_warning=disk_warning(health) if health is not None else None,
            # Stored together with the state, for callers that wait for the script.
            startup_exit_code=health.startup_exit_code if health is not None else None,
            network=endpoint.network,
        )
        async with parts.pool.acquire() as conn:
            running = await operation_claims.finish_up(
                conn, operation, up, replica_id=parts.replica_id, now=parts.clock.now()
            )
            await parts.publish_change(conn, running, operation=str(operation.id))
        return running

    async def _stop(self, operation: Operation, writer: OperationWriter) -> None:
        parts = self._parts
        async with parts.pool.acquire() as conn:
            workspace = await workspaces.get_workspace(conn, operation.workspace_id)
            spec = await parts.specs.for_access(conn, workspace)
            grace = await parts.specs.shutdown_seconds(conn, workspace)
            if operation.reason == Reason.DISABLED:
                # The owner's account was disabled, so the workspace stops soon.
                grace = min(grace, DISABLED_GRACE_SECONDS)
        writer(f"Stopping {workspace.name}.")
        async with parts.clock.deadline(grace + STOP_SLACK_SECONDS, "workspace-stop"):
            await parts.driver(workspace.driver).stop(spec, grace)
        writer("All its processes have ended. Its files are kept.")
        await writer.flush()
        await self._finish_down(operation, DownResult(Status.STOPPED))

    async def _delete(self, operation: Operation, writer: OperationWriter) -> None:
        parts = self._parts
        async with parts.pool.acquire() as conn:
            workspace = await workspaces.get_workspace(conn, operation.workspace_id)
        writer(f"Deleting {workspace.name} with its files.")
        try:
            async with parts.pool.acquire() as conn:
                spec = await parts.specs.for_access(conn, workspace)
            async with parts.clock.deadline(DELETE_SECONDS, "workspace-delete"):
                await parts.driver(workspace.driver).delete(spec)
            writer("Its files are deleted.")
        except DriverError as error:
            # The machine may never come back. With force, the row is deleted, so that it no longer counts in the
            # owner's quota.
            if error.code not in OUT_OF_REACH or not operation.parameters.get(lifecycle_requests.FORCE):
                raise
            writer(f"Its files are not deleted, because their machine is not reachable: {error.message}")
        await writer.flush()
        await self._finish_down(operation, DownResult(Status.DELETED))

    async def _finish_down(self, operation: Operation, down: DownResult) -> None:
        parts = self._parts
        async with parts.pool.acquire() as conn:
            workspace = await operation_claims.finish_down(
                conn, operation, down, replica_id=parts.replica_id, now=parts.clock.now()
            )
            await parts.publish_change(conn, workspace, operation=str(operation.id))
        if down.status is Status.DELETED:
            parts.publish([servers.hint()])


def _secrets_not_sent(error: WorkspaceError) -> DriverError:
    return DriverError("sandbox_failed", f"The secret parameters could not be sent: {error}")


def _agent_state(health: Health | None) -> str:
    """Return the state of the agent if the startup script is over; else STARTING."""
    if health is not None and health.agent_state in SCRIPT_ENDED:
        return health.agent_state
    return AgentState.STARTING
