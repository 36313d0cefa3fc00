"""Workspace operations as the executing replica sees them: claims, leases, the log, and the changes that they make.

Each write names the replica, and applies only while that replica has the claim. A replica gets `ClaimLost` if it was
paused for longer than its lease, or if its start was canceled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

import msgspec

from rookery.store.db.pool import Connection, atomic
from rookery.store.mcp import project_servers
from rookery.store.workspaces import operation_rows, workspaces
from rookery.store.workspaces.operation_rows import MAX_LOG_BYTES, Operation
from rookery.store.workspaces.workspaces import AgentState, Status, Workspace

# Return a new sealed token for the workspace with this id.
TokenSealer: TypeAlias = Callable[[UUID], str]

LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0

# A claim ends with its lease or with its replica. Peers notice the end of a replica long before the lease ends.
_IS_HELD = """(x.lease_until > clock_timestamp() AND EXISTS (SELECT FROM replicas r WHERE r.id = x.claimed_by))"""
# Nothing is claimed for a workspace while a replica still works on its canceled start. SKIP LOCKED keeps replicas from
# waiting for each other. Open operations are few and have their own index.
CLAIM = f"""
    UPDATE workspace_operations o
       SET state = 'running', claimed_by = $1, lease_until = clock_timestamp() + interval '{LEASE_SECONDS} seconds',
           started_at = coalesce(o.started_at, clock_timestamp())
     WHERE o.id IN (
             SELECT x.id
               FROM workspace_operations x
               JOIN workspaces w ON w.id = x.workspace_id
              WHERE x.state IN ('queued', 'running')
                AND (x.state = 'queued' OR NOT {_IS_HELD})
                AND (w.node IS NULL OR w.node = $2)
                AND x.id <> ALL ($3::uuid[])
                AND NOT EXISTS (SELECT
                                  FROM workspace_operations c
                                 WHERE c.workspace_id = x.workspace_id
                                   AND c.state = 'canceled'
                                   AND c.claimed_by IS NOT NULL
                                   AND {_IS_HELD.replace("x.", "c.")})
              ORDER BY x.created_at
              LIMIT $4
                FOR UPDATE OF x SKIP LOCKED)
    RETURNING {operation_rows.COLUMNS}
"""
RENEW = f"""
    UPDATE workspace_operations
       SET lease_until = clock_timestamp() + interval '{LEASE_SECONDS} seconds'
     WHERE id = ANY ($1::uuid[])
       AND claimed_by = $2
    RETURNING id, state
"""
LOCK_OWN = f"""
    SELECT {operation_rows.COLUMNS}
      FROM workspace_operations o
     WHERE o.id = $1
       AND o.state = 'running'
       AND o.claimed_by = $2
       FOR NO KEY UPDATE
"""
RELEASE_CANCELED = """
    UPDATE workspace_operations
       SET claimed_by = NULL, lease_until = NULL
     WHERE id = $1
       AND claimed_by = $2
       AND state = 'canceled'
"""
REQUEUE = """
    UPDATE workspace_operations
       SET state = 'queued', claimed_by = NULL, lease_until = NULL
     WHERE id = $1
       AND claimed_by = $2
       AND state = 'running'
"""
FINISH = """
    UPDATE workspace_operations
       SET state = $2, error = $3, error_code = $4, finished_at = clock_timestamp(), claimed_by = NULL,
           lease_until = NULL, parameters = '{}', secrets_enc = NULL
     WHERE id = $1
"""
SET_GENERATION = "UPDATE workspace_operations SET generation = $2 WHERE id = $1"
BEGIN = """
    UPDATE workspaces
       SET generation = $2, token_enc = $3, status = 'starting', agent_state = 'connecting', endpoint = NULL,
           startup_exit_code = NULL, error = NULL, error_code = NULL, warning = NULL,
           disk_warning = NULL, updated_at = clock_timestamp()
     WHERE id = $1
"""
SET_RUNNING = """
    UPDATE workspaces
       SET status = 'running', agent_state = $2, endpoint = $3, os = $4, arch = $5, home = $6, directory = $7,
           warning = $8, last_seen_at = $9, last_used_at = greatest(last_used_at, $9), started_at = $9,
           stopped_at = NULL, error = NULL, error_code = NULL, disk_warning = $10, startup_exit_code = $11,
           network = $12, updated_at = clock_timestamp()
     WHERE id = $1
"""
SET_DOWN = """
    UPDATE workspaces
       SET status = $2, error = $3, error_code = $4, endpoint = NULL, agent_state = 'connecting', stopped_at = $5,
           updated_at = clock_timestamp()
     WHERE id = $1
"""
SET_DELETED = """
    UPDATE workspaces
       SET status = 'deleted', deleted_at = $2, endpoint = NULL, token_enc = NULL, template_revision = NULL,
           error = NULL, error_code = NULL, parameters = '{}', secrets_enc = NULL, updated_at = clock_timestamp()
     WHERE id = $1
"""
# Only the end of the log is kept. The bytes before it are counted, so that readers know their position.
READ_LOG = "SELECT log, log_dropped FROM workspace_operations WHERE id = $1 FOR NO KEY UPDATE"
WRITE_LOG = "UPDATE workspace_operations SET log = $2, log_dropped = $3 WHERE id = $1"
# The report applies only to the boot $2, and only while the workspace is running. Without a report ($5 is NULL), the
# disk warning keeps its value. A workspace whose agent misbehaved stays unreachable until its next start.
RECORD_AGENT_STATE = """
    UPDATE workspaces w
       SET agent_state = $3, startup_exit_code = coalesce($4, w.startup_exit_code),
           last_seen_at = CASE WHEN $5::timestamptz IS NULL THEN w.last_seen_at ELSE $5 END,
           disk_warning = CASE WHEN $5::timestamptz IS NULL THEN w.disk_warning ELSE $6::text END,
           updated_at = CASE WHEN before.is_other THEN clock_timestamp() ELSE w.updated_at END
      FROM (SELECT b.id, b.agent_state <> $3
                    OR ($5::timestamptz IS NOT NULL AND b.disk_warning IS DISTINCT FROM $6::text) AS is_other
              FROM workspaces b
             WHERE b.id = $1) before
     WHERE w.id = before.id
       AND w.generation = $2
       AND w.status = 'running'
       AND w.error_code IS DISTINCT FROM 'agent_misbehaved'
    RETURNING before.is_other
"""
CUT_OFF = """
    UPDATE workspaces
       SET agent_state = 'unreachable', error = $3, error_code = 'agent_misbehaved', updated_at = clock_timestamp()
     WHERE id = $1
       AND generation = $2
       AND status = 'running'
       AND error_code IS DISTINCT FROM 'agent_misbehaved'
"""
# The two-key form of advisory locks. The first key is chosen: "wsre".
TRY_LOCK_NODE = "SELECT pg_try_advisory_lock(2003989093, hashtext($1::text))"
UNLOCK_NODE = "SELECT pg_advisory_unlock(2003989093, hashtext($1::text))"
NODE_START = """
    SELECT min(started_at)
      FROM replicas
     WHERE host_id = $1
       AND heartbeat_at >= clock_timestamp() - interval '15 seconds'
"""
HAS_OPEN = """
    SELECT EXISTS (SELECT FROM workspace_operations WHERE workspace_id = $1 AND state IN ('queued', 'running'))
"""


class ClaimLost(Exception):
    """Raised if the operation was canceled, or if another replica took it over.

    The caller stops working on it, without an error.
    """


class DownResult(msgspec.Struct, frozen=True):
    """The result of an operation that leaves a workspace stopped, failed or deleted."""

    status: Status
    error: str | None = None
    error_code: str | None = None


class StartResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a start: the facts about the workspace when its agent answers."""

    endpoint: str
    agent_state: str = AgentState.STARTING
    os: str | None = None
    arch: str | None = None
    home: str | None = None
    directory: str | None = None
    warning: str | None = None
    disk_warning: str | None = None
    startup_exit_code: int | None = None
    network: str | None = None


async def claim(
    conn: Connection,
    replica_id: UUID,
    *,
    node: str,
    without: Collection[UUID] = (),
    limit: int = 8,
) -> list[Operation]:
    """Claim at most `limit` open operations for a replica of this node.

    `without` are the operations that it already has.
    """
    records = await conn.fetch(CLAIM, replica_id, node, list(without), limit)
    return [operation_rows.from_record(record) for record in records]


async def renew(conn: Connection, replica_id: UUID, operation_ids: Collection[UUID]) -> frozenset[UUID]:
    """Renew the leases. Returns the operations to continue: those not canceled and not taken over."""
    records = await conn.fetch(RENEW, list(operation_ids), replica_id)
    return frozenset(record["id"] for record in records if record["state"] == "running")


async def begin(
    conn: Connection, operation: Operation, *, replica_id: UUID, seal: TokenSealer
) -> tuple[Workspace, Operation]:
    """Begin a start: give the workspace a boot number and a token before the driver acts.

    A replica that takes the operation over continues with the same boot, because its agent may be running already.
    """
    async with atomic(conn):
        workspace = await workspaces.lock_workspace(conn, operation.workspace_id)
        current = await _lock_own(conn, operation.id, replica_id)
        if current.generation is None:
            generation = workspace.generation + 1
            await conn.execute(BEGIN, workspace.id, generation, seal(workspace.id))
            await conn.execute(SET_GENERATION, operation.id, generation)
        return (
            await workspaces.get_workspace(conn, workspace.id),
            await operation_rows.get_operation(conn, operation.id),
        )


async def finish_up(
    conn: Connection, operation: Operation, up: StartResult, *, replica_id: UUID, now: datetime
) -> Workspace:
    """Finish a start whose agent has answered: set the workspace to running and the operation to succeeded."""
    async with atomic(conn):
        workspace = await workspaces.lock_workspace(conn, operation.workspace_id)
        await _lock_own(conn, operation.id, replica_id)
        await conn.execute(
            SET_RUNNING,
            workspace.id,
            up.agent_state,
            up.endpoint,
            up.os,
            up.arch,
            up.home,
            up.directory,
            up.warning,
            now,
            up.disk_warning,
            up.startup_exit_code,
            up.network,
        )
        await conn.execute(FINISH, operation.id, "succeeded", None, None)
        return await workspaces.get_workspace(conn, workspace.id)


async def finish_down(
    conn: Connection, operation: Operation, down: DownResult, *, replica_id: UUID, now: datetime
) -> Workspace:
    """Finish an operation that leaves the workspace stopped, failed or deleted."""
    async with atomic(conn):
        workspace = await workspaces.lock_workspace(conn, operation.workspace_id)
        await _lock_own(conn, operation.id, replica_id)
        if down.status is Status.DELETED:
            await conn.execute(SET_DELETED, workspace.id, now)
            await project_servers.delete_of_workspace(conn, workspace.id)
        else:
            await conn.execute(SET_DOWN, workspace.id, down.status, down.error, down.error_code, now)
        state = "failed" if down.status is Status.FAILED else "succeeded"
        await conn.execute(FINISH, operation.id, state, down.error, down.error_code)
        return await workspaces.get_workspace(conn, workspace.id)


async def release_canceled(conn: Connection, operation_id: UUID, *, replica_id: UUID) -> None:
    """Release the claim on a canceled start, so that the next operation of the workspace can be claimed."""
    await conn.execute(RELEASE_CANCELED, operation_id, replica_id)


async def requeue(conn: Connection, operation_id: UUID, *, replica_id: UUID) -> None:
    """Put the operation back into the queue when this replica ends. Another replica need not wait for the lease."""
    await conn.execute(REQUEUE, operation_id, replica_id)


async def append_log(conn: Connection, operation_id: UUID, text: str) -> None:
    """Append to the log and keep its last 256 KiB.

    The operation may already be finished, because the startup script continues after the start.
    """
    async with atomic(conn):
        record = await conn.fetchrow(READ_LOG, operation_id)
        if record is None:
            return
        whole = (record["log"] + text.replace("\0", "\N{REPLACEMENT CHARACTER}")).encode(errors="replace")
        cut = max(len(whole) - MAX_LOG_BYTES, 0)
        while cut < len(whole) and whole[cut] & 0xC0 == 0x80:  # `cut` is in the middle of a character
            cut += 1
        await conn.execute(WRITE_LOG, operation_id, whole[cut:].decode(), record["log_dropped"] + cut)


async def record_agent_state(
    conn: Connection,
    workspace_id: UUID,
    generation: int,
    *,
    agent_state: str,
    exit_code: int | None = None,
    seen_at: datetime | None = None,
    disk_warning: str | None = None,
) -> bool:
    """Store the state that a running agent reports. Returns whether watchers must be notified of a change.

    `seen_at` is None if the agent has not answered.
    """
    return bool(
        await conn.fetchval(RECORD_AGENT_STATE, workspace_id, generation, agent_state, exit_code, seen_at, disk_warning)
    )


async def cut_off(conn: Connection, workspace_id: UUID, generation: int, *, error: str) -> bool:
    """Record that the agent of this boot broke the protocol. Returns False if that was already recorded."""
    return (await conn.execute(CUT_OFF, workspace_id, generation, error)) == "UPDATE 1"


async def mark_down(conn: Connection, workspace: Workspace, down: DownResult, *, now: datetime) -> Workspace | None:
    """Record that the process of a running workspace is gone. Returns None if the row has changed meanwhile."""
    async with atomic(conn):
        current = await workspaces.lock_workspace(conn, workspace.id)
        is_same = (current.status, current.generation) == (Status.RUNNING, workspace.generation)
        if not is_same or await conn.fetchval(HAS_OPEN, workspace.id):
            return None
        await conn.execute(SET_DOWN, workspace.id, down.status, down.error, down.error_code, now)
        return await workspaces.get_workspace(conn, workspace.id)


@asynccontextmanager
async def node_lock(conn: Connection, node: str) -> AsyncIterator[bool]:
    """Try to lock the node for one reconciler, until the block ends. Yields whether this replica has the lock."""
    is_mine = bool(await conn.fetchval(TRY_LOCK_NODE, node))
    try:
        yield is_mine
    finally:
        if is_mine:
            await conn.fetchval(UNLOCK_NODE, node)


async def find_node_start(conn: Connection, node: str) -> datetime | None:
    """Return the start time of the oldest live replica on this node."""
    started_at: datetime | None = await conn.fetchval(NODE_START, node)
    return started_at


async def _lock_own(conn: Connection, operation_id: UUID, replica_id: UUID) -> Operation:
    record = await conn.fetchrow(LOCK_OWN, operation_id, replica_id)
    if record is None:
        raise ClaimLost
    return operation_rows.from_record(record)
