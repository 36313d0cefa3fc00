"""The executor's side of operations: claims, leases, the log, and every change that an operation makes.

Each write names the replica and applies only while the operation is still its own: a replica that was paused for longer
than its lease, or whose start was canceled, changes nothing any more and gets `ClaimLost`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

import msgspec

from rookery.store.db.nested_transaction import atomic
from rookery.store.db.pool import Connection
from rookery.store.workspaces import operations, workspaces
from rookery.store.workspaces.operations import MAX_LOG_BYTES, Operation
from rookery.store.workspaces.workspaces import AgentState, Status, Workspace

# Creates a sealed token for a workspace.
Sealing: TypeAlias = Callable[[UUID], str]

LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0

# A claim is valid until its lease ends, or its replica is gone, which peers notice much earlier.
_IS_HELD = """(x.lease_until > clock_timestamp() AND EXISTS (SELECT FROM replicas r WHERE r.id = x.claimed_by))"""
# Nothing is claimed for a workspace while a replica still works on its canceled start. SKIP LOCKED keeps replicas from
# queueing behind each other; the open operations are few, and have their own index.
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
    RETURNING {operations.COLUMNS}
"""
RENEW = f"""
    UPDATE workspace_operations
       SET lease_until = clock_timestamp() + interval '{LEASE_SECONDS} seconds'
     WHERE id = ANY ($1::uuid[])
       AND claimed_by = $2
    RETURNING id, state
"""
LOCK_OWN = f"""
    SELECT {operations.COLUMNS}
      FROM workspace_operations o
     WHERE o.id = $1
       AND o.state = 'running'
       AND o.claimed_by = $2
       FOR NO KEY UPDATE
"""
LET_GO = """
    UPDATE workspace_operations
       SET claimed_by = NULL, lease_until = NULL
     WHERE id = $1
       AND claimed_by = $2
       AND state = 'canceled'
"""
GIVE_BACK = """
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
# Only the end of the log is kept; the bytes before it are counted, so that readers know their position.
READ_LOG = "SELECT log, log_dropped FROM workspace_operations WHERE id = $1 FOR NO KEY UPDATE"
WRITE_LOG = "UPDATE workspace_operations SET log = $2, log_dropped = $3 WHERE id = $1"
# The agent's report. It applies only to its own boot, and only while the workspace counts as running. A missing report
# says nothing about the disk: the last value stays. A workspace that was cut off stays so until its next start,
# whatever its agent answers.
OBSERVE = """
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
# The two-key form; the first key is chosen: "wsre".
TRY_TURN = "SELECT pg_try_advisory_lock(2003989093, hashtext($1::text))"
END_TURN = "SELECT pg_advisory_unlock(2003989093, hashtext($1::text))"
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
    """Raised if the operation was taken over or canceled. The caller releases everything, quietly."""


class Down(msgspec.Struct, frozen=True):
    """The outcome of an operation that leaves a workspace down."""

    status: Status
    error: str | None = None
    error_code: str | None = None


class Up(msgspec.Struct, frozen=True, kw_only=True):
    """The facts known once the agent answers."""

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
    """Claim waiting operations for a replica of this node, at most `limit`; `without` are those it already has."""
    records = await conn.fetch(CLAIM, replica_id, node, list(without), limit)
    return [operations.from_record(record) for record in records]


async def renew(conn: Connection, replica_id: UUID, operation_ids: Collection[UUID]) -> frozenset[UUID]:
    """Renew leases. Returns those still to be worked on: not canceled, not taken by another."""
    records = await conn.fetch(RENEW, list(operation_ids), replica_id)
    return frozenset(record["id"] for record in records if record["state"] == "running")


async def begin(
    conn: Connection, operation: Operation, *, replica_id: UUID, seal: Sealing
) -> tuple[Workspace, Operation]:
    """Begin a start: give the workspace a boot number and a token, before any driver acts.

    A replica that takes the operation over continues with the same boot: its agent may be up already.
    """
    async with atomic(conn):
        workspace = await workspaces.lock_workspace(conn, operation.workspace_id)
        current = await _own(conn, operation.id, replica_id)
        if current.generation is None:
            generation = workspace.generation + 1
            await conn.execute(BEGIN, workspace.id, generation, seal(workspace.id))
            await conn.execute(SET_GENERATION, operation.id, generation)
        return (
            await workspaces.get_workspace(conn, workspace.id),
            await operations.get_operation(conn, operation.id),
        )


async def finish_up(conn: Connection, operation: Operation, up: Up, *, replica_id: UUID, now: datetime) -> Workspace:
    """Finish a start: the agent answered, the workspace runs, and the operation has succeeded."""
    async with atomic(conn):
        workspace = await workspaces.lock_workspace(conn, operation.workspace_id)
        await _own(conn, operation.id, replica_id)
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
    conn: Connection, operation: Operation, down: Down, *, replica_id: UUID, now: datetime
) -> Workspace:
    """Finish the operation with the workspace down: as requested, or because of a failure."""
    async with atomic(conn):
        workspace = await workspaces.lock_workspace(conn, operation.workspace_id)
        await _own(conn, operation.id, replica_id)
        if down.status is Status.DELETED:
            await conn.execute(SET_DELETED, workspace.id, now)
        else:
            await conn.execute(SET_DOWN, workspace.id, down.status, down.error, down.error_code, now)
        state = "failed" if down.status is Status.FAILED else "succeeded"
        await conn.execute(FINISH, operation.id, state, down.error, down.error_code)
        return await workspaces.get_workspace(conn, workspace.id)


async def let_go(conn: Connection, operation_id: UUID, *, replica_id: UUID) -> None:
    """Release a canceled start: the next operation may be claimed."""
    await conn.execute(LET_GO, operation_id, replica_id)


async def give_back(conn: Connection, operation_id: UUID, *, replica_id: UUID) -> None:
    """Release the operation because this replica ends: another one continues immediately, without waiting for the
    lease.
    """
    await conn.execute(GIVE_BACK, operation_id, replica_id)


async def append_log(conn: Connection, operation_id: UUID, text: str) -> None:
    """Append to the log and keep its last 256 KiB. Allowed after the operation is over: scripts continue after
    a start.
    """
    async with atomic(conn):
        record = await conn.fetchrow(READ_LOG, operation_id)
        if record is None:
            return
        whole = (record["log"] + text.replace("\0", "\N{REPLACEMENT CHARACTER}")).encode(errors="replace")
        cut = max(len(whole) - MAX_LOG_BYTES, 0)
        while cut < len(whole) and whole[cut] & 0xC0 == 0x80:  # in the middle of a character
            cut += 1
        await conn.execute(WRITE_LOG, operation_id, whole[cut:].decode(), record["log_dropped"] + cut)


async def observe(
    conn: Connection,
    workspace_id: UUID,
    generation: int,
    *,
    agent_state: str,
    exit_code: int | None = None,
    seen_at: datetime | None = None,
    disk_warning: str | None = None,
) -> bool:
    """Store the report of a running agent. Returns True if something changed that its watchers have to be
    notified of.
    """
    return bool(await conn.fetchval(OBSERVE, workspace_id, generation, agent_state, exit_code, seen_at, disk_warning))


async def cut_off(conn: Connection, workspace_id: UUID, generation: int, *, error: str) -> bool:
    """Record that the agent of this start broke the protocol. Returns True if that was not known yet."""
    return (await conn.execute(CUT_OFF, workspace_id, generation, error)) == "UPDATE 1"


async def lose(conn: Connection, workspace: Workspace, down: Down, *, now: datetime) -> Workspace | None:
    """Record that the reconciler found the process gone. Returns None if the row has changed meanwhile."""
    async with atomic(conn):
        current = await workspaces.lock_workspace(conn, workspace.id)
        is_same = (current.status, current.generation) == (Status.RUNNING, workspace.generation)
        if not is_same or await conn.fetchval(HAS_OPEN, workspace.id):
            return None
        await conn.execute(SET_DOWN, workspace.id, down.status, down.error, down.error_code, now)
        return await workspaces.get_workspace(conn, workspace.id)


@asynccontextmanager
async def node_turn(conn: Connection, node: str) -> AsyncIterator[bool]:
    """Yield whether this replica may look after its node, until the block ends."""
    is_mine = bool(await conn.fetchval(TRY_TURN, node))
    try:
        yield is_mine
    finally:
        if is_mine:
            await conn.fetchval(END_TURN, node)


async def find_node_start(conn: Connection, node: str) -> datetime | None:
    """Return since when a replica of this node has lived without a break, as far as live replicas know."""
    started_at: datetime | None = await conn.fetchval(NODE_START, node)
    return started_at


async def _own(conn: Connection, operation_id: UUID, replica_id: UUID) -> Operation:
    record = await conn.fetchrow(LOCK_OWN, operation_id, replica_id)
    if record is None:
        raise ClaimLost
    return operations.from_record(record)
