"""The operation executor: claims operations on workspaces, calls the driver, and stores the result.

Every replica has an executor; those of one node share its local workspaces. A claim is a lease of 30 s that is renewed
every 10 s, so another replica finishes the operations of a dead one. For that reason driver actions are idempotent:
starting a boot that already responds is a success. A canceled start is released before another operation of its
workspace is claimed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NoReturn
from uuid import UUID

from rookery.runtime.clock import DeadlineExceeded
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import MiscHint
from rookery.store.workspaces import claims, requests, workspaces
from rookery.store.workspaces.claims import RENEW_SECONDS, ClaimLost, Down, Up
from rookery.store.workspaces.operations import Kind, Operation, Reason
from rookery.store.workspaces.workspaces import SETTLED, AgentState, Status, Workspace
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_messages import Health
from rookery.workspaces.drivers.protocol import DriverError, Endpoint
from rookery.workspaces.errors import AgentError, WorkspaceError
from rookery.workspaces.operation_log import OperationWriter
from rookery.workspaces.readiness import Readiness, disk_warning
from rookery.workspaces.services import WorkspaceServices

log = get_logger("workspaces.operations")

START_SECONDS = 600.0
# Waiting operations are announced by hints; polling covers hints that were missed.
POLL_SECONDS = 2.0
RETRY_SECONDS = 2.0
MAX_AT_ONCE = 8
DELETE_SECONDS = 300.0
DISABLED_GRACE_SECONDS = 2.0
STOP_SLACK_SECONDS = 30.0
OUT_OF_REACH = frozenset({"ssh_auth", "ssh_hostkey", "ssh_failed", "python_missing"})


class _InHand:
    """An operation this replica works on. `lost` is set when its lease is lost."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.lost = asyncio.Event()


class Executor:
    """Runs until canceled; then it releases its operations and leaves their sandboxes running."""

    def __init__(self, parts: WorkspaceServices) -> None:
        self._parts = parts
        self._in_hand: dict[UUID, _InHand] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self.readiness = Readiness(parts)

    def wake(self, _: object = None) -> None:
        """Check again: there may be an operation to claim, or a claimed one was canceled."""
        self._wake.set()

    async def run(self) -> NoReturn:
        bus = self._parts.bus
        subscriptions = [
            bus.subscribe(MiscHint, self.wake, key=requests.TOPIC),
            bus.on_resync(self.wake),
        ]
        renewing = asyncio.create_task(self._renew_for_ever(), name="operation-leases")
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
            await self._leave(renewing)

    async def _leave(self, renewing: asyncio.Task[NoReturn]) -> None:
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
        room = MAX_AT_ONCE - len(self._in_hand)
        if room <= 0:
            return
        async with self._parts.pool.acquire() as conn:
            claimed = await claims.claim(
                conn, self._parts.replica_id, node=self._parts.node, without=list(self._in_hand), limit=room
            )
        for operation in claimed:
            held = self._in_hand[operation.id] = _InHand(operation)
            task = asyncio.create_task(self._hold(held), name=f"operation:{operation.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _renew_for_ever(self) -> NoReturn:
        async for _ in self._parts.clock.ticker(RENEW_SECONDS, "operation-leases"):
            try:
                await self._renew()
            except DATABASE_ERRORS as error:
                log.warning("leases_not_renewed", error=str(error))
        raise AssertionError("unreachable")

    async def _renew(self) -> None:
        held = list(self._in_hand)
        if not held:
            return
        async with self._parts.pool.acquire() as conn:
            ours = await claims.renew(conn, self._parts.replica_id, held)
        for operation_id in held:
            if operation_id not in ours and (lost := self._in_hand.get(operation_id)) is not None:
                lost.lost.set()

    async def _hold(self, held: _InHand) -> None:
        """Work on one operation until it is over, its lease is lost, or this replica ends."""
        operation = held.operation
        work = asyncio.create_task(self._execute(operation), name=f"operation-work:{operation.id}")
        losing = asyncio.create_task(held.lost.wait(), name=f"operation-lost:{operation.id}")
        try:
            await asyncio.wait({work, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.info("operation_let_go", operation_id=operation.id, workspace_id=operation.workspace_id)
                work.cancel()
                await asyncio.wait({work})
                await self._let_go(operation)
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait({work})
            await self._give_back(operation)
            raise
        finally:
            losing.cancel()
            self._in_hand.pop(operation.id, None)
            self._wake.set()

    async def _let_go(self, operation: Operation) -> None:
        """Release the operation. The next one of the workspace waits for this, so that driver actions never overlap."""
        try:
            async with self._parts.pool.acquire() as conn:
                await claims.let_go(conn, operation.id, replica_id=self._parts.replica_id)
        except DATABASE_ERRORS as error:
            log.warning("operation_not_let_go", operation_id=operation.id, error=str(error))  # its lease expires
        self._parts.publish([MiscHint(topic=requests.TOPIC)])

    async def _give_back(self, operation: Operation) -> None:
        try:
            async with self._parts.pool.acquire() as conn:
                await claims.give_back(conn, operation.id, replica_id=self._parts.replica_id)
        except DATABASE_ERRORS as error:
            log.warning("operation_not_given_back", operation_id=operation.id, error=str(error))
        self._parts.publish([MiscHint(topic=requests.TOPIC)])

    async def _execute(self, operation: Operation) -> None:
        writer = OperationWriter(self._parts, operation.workspace_id, operation.id)
        writing = asyncio.create_task(writer.run(), name=f"operation-log:{operation.id}")
        try:
            await self._execute_logged(operation, writer)
        except ClaimLost:
            log.info("operation_lost", operation_id=operation.id)
        except Exception as error:
            # A bug, or the database went away: the lease expires and the next replica to claim the operation repeats
            # it.
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
            await self._finish_down(operation, Down(Status.FAILED, error.advice, error.code))
        except DeadlineExceeded as error:
            message = f"This took longer than {error.seconds:g} s and was given up."
            writer(f"Failed: {message}")
            await writer.flush()
            await self._finish_down(operation, Down(Status.FAILED, message, "timeout"))

    async def _start(self, operation: Operation, writer: OperationWriter) -> None:
        parts = self._parts
        began = parts.clock.monotonic()
        result = "failed"
        async with parts.pool.acquire() as conn:
            workspace, operation = await claims.begin(
                conn, operation, replica_id=parts.replica_id, seal=parts.specs.fresh_token
            )
            await parts.tell(conn, workspace, operation=str(operation.id))
            spec = await parts.specs.whole(conn, workspace, operation)
        driver = parts.driver(workspace.driver)
        writer(f"Starting {workspace.name} from {workspace.template} (start {workspace.generation}).")
        try:
            async with parts.clock.deadline(START_SECONDS, "workspace-start"):
                endpoint = await driver.start(spec, writer)
                if spec.secrets:
                    await self._hand_over(workspace, spec.secrets)
                health = await parts.find_health(workspace)
            for warning in endpoint.warnings:
                writer(f"Warning: {warning}")
            if is_ready := health is not None and health.agent_state in SETTLED:
                assert health is not None
                await self.readiness.tell(workspace, writer, health)
            # Before the end is published: followers of the log stop reading then.
            await writer.flush()
            running = await self._finish_up(operation, endpoint, health)
            self.readiness.follow(running, operation.id, is_told=is_ready)
            result = "succeeded"
        except DeadlineExceeded:
            await driver.stop(spec, 0.0)
            raise
        except asyncio.CancelledError:
            result = "canceled"
            raise
        finally:
            parts.stats.start_seconds.observe((workspace.driver, result), parts.clock.monotonic() - began)

    async def _hand_over(self, workspace: Workspace, secrets: Mapping[str, str]) -> None:
        """Send the agent the secrets that its startup script waits for."""
        try:
            async with self._parts.connected(workspace) as agent:
                await agent.give_secrets(secrets)
        except AgentError as error:
            # After a takeover, the previous replica may have sent them already.
            if error.code != "secrets_given":
                raise _not_handed_over(error) from error
        except WorkspaceError as error:
            raise _not_handed_over(error) from error

    async def _finish_up(self, operation: Operation, endpoint: Endpoint, health: Health | None) -> Workspace:
        parts = self._parts
        up = Up(
            endpoint=endpoint.url,
            agent_state=_agent_state(health),
            os=health.os if health is not None else None,
            arch=health.arch if health is not None else None,
            home=endpoint.home,
            directory=endpoint.directory,
            warning=" ".join(endpoint.warnings) or None,
            disk_warning=disk_warning(health) if health is not None else None,
            # Stored with the state, so that waiters for a finished script need no further request.
            startup_exit_code=health.startup_exit_code if health is not None else None,
            network=endpoint.network,
        )
        async with parts.pool.acquire() as conn:
            running = await claims.finish_up(conn, operation, up, replica_id=parts.replica_id, now=parts.clock.now())
            await parts.tell(conn, running, operation=str(operation.id))
        return running

    async def _stop(self, operation: Operation, writer: OperationWriter) -> None:
        parts = self._parts
        async with parts.pool.acquire() as conn:
            workspace = await workspaces.get_workspace(conn, operation.workspace_id)
            spec = await parts.specs.plain(conn, workspace)
            grace = await parts.specs.shutdown_seconds(conn, workspace)
            if operation.reason == Reason.DISABLED:
                # A short grace period: the user of this workspace is disabled.
                grace = min(grace, DISABLED_GRACE_SECONDS)
        writer(f"Stopping {workspace.name}.")
        async with parts.clock.deadline(grace + STOP_SLACK_SECONDS, "workspace-stop"):
            await parts.driver(workspace.driver).stop(spec, grace)
        writer("Nothing of it runs any more. Its files are kept.")
        await writer.flush()
        await self._finish_down(operation, Down(Status.STOPPED))

    async def _delete(self, operation: Operation, writer: OperationWriter) -> None:
        parts = self._parts
        async with parts.pool.acquire() as conn:
            workspace = await workspaces.get_workspace(conn, operation.workspace_id)
        writer(f"Deleting {workspace.name} with its files.")
        try:
            async with parts.pool.acquire() as conn:
                spec = await parts.specs.plain(conn, workspace)
            async with parts.clock.deadline(DELETE_SECONDS, "workspace-delete"):
                await parts.driver(workspace.driver).delete(spec)
            writer("Its files are gone.")
        except DriverError as error:
            # A machine that never comes back must not keep a row, which counts towards its owner's quota, forever.
            if error.code not in OUT_OF_REACH or not operation.parameters.get(requests.FORCE):
                raise
            writer(f"Its files stay where they are, because their machine is out of reach: {error.message}")
        await writer.flush()
        await self._finish_down(operation, Down(Status.DELETED))

    async def _finish_down(self, operation: Operation, down: Down) -> None:
        parts = self._parts
        async with parts.pool.acquire() as conn:
            workspace = await claims.finish_down(
                conn, operation, down, replica_id=parts.replica_id, now=parts.clock.now()
            )
            await parts.tell(conn, workspace, operation=str(operation.id))


def _not_handed_over(error: WorkspaceError) -> DriverError:
    return DriverError("sandbox_failed", f"The secret parameters could not be handed over: {error}")


def _agent_state(health: Health | None) -> str:
    """Return the agent's state if it is known; else the script counts as running until the next check."""
    if health is not None and health.agent_state in SETTLED:
        return health.agent_state
    return AgentState.STARTING
