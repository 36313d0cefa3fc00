"""Requests to create, start, stop and delete workspaces. Each one holds the lock of the row.

A request inserts an operation. If an operation of the same kind is open, the request returns that one instead. If
nothing has to be done, it inserts none. It is refused while an operation of another kind is open, except that stop and
delete cancel a start. Quotas are checked under a lock per owner.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.store.db.hints import Hint, MiscHint
from rookery.store.db.pool import Connection, atomic
from rookery.store.people.errors import Conflict, Disabled, InUse, QuotaExceeded
from rookery.store.settings.limit_settings import WorkspaceSettings, read_workspace_settings
from rookery.store.workspaces import operation_rows, workspaces
from rookery.store.workspaces.operation_rows import Kind, Operation, Reason
from rookery.store.workspaces.templates import TemplateNotFound
from rookery.store.workspaces.workspaces import Status, Workspace, WorkspaceNotFound

FORCE = "force"  # a parameter of delete operations
TOPIC = "workspace_operations"  # tells executors that an operation can be claimed or was canceled

# Advisory locks with two keys. The first keys are chosen: "wsow" and "wsno". The order of locks is owner, row, node.
LOCK_OWNER = "SELECT pg_advisory_xact_lock(2003988343, hashtext($1::uuid::text))"
LOCK_NODE = "SELECT pg_advisory_xact_lock(2003988079, hashtext($1::text))"
IS_ACTIVE = "SELECT status = 'active' FROM users WHERE id = $1"
COUNT_OWNED = """
    SELECT count(*) AS owned,
           count(*) FILTER (WHERE status IN ('pending', 'starting', 'running')) AS running
      FROM workspaces
     WHERE owner_id = $1
       AND deleted_at IS NULL
       AND id <> $2
"""
COUNT_ON_NODE = """
    SELECT count(*)
      FROM workspaces
     WHERE node = $1
       AND status IN ('pending', 'starting', 'running')
       AND id <> $2
"""
INSERT = """
    INSERT INTO workspaces (id, owner_id, name, template, template_revision, driver, node, parameters, secrets_enc,
                            status, idle_stop_after, last_used_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'pending', $10, $11)
"""
INSERT_OPERATION = f"""
    INSERT INTO workspace_operations AS o (workspace_id, kind, reason, parameters, secrets_enc)
    VALUES ($1, $2, $3, $4, $5)
    RETURNING {operation_rows.COLUMNS}
"""
# A canceled start keeps its claim until its replica has released the driver.
CANCEL = """
    UPDATE workspace_operations
       SET state = 'canceled', finished_at = clock_timestamp(), parameters = '{}', secrets_enc = NULL,
           error = 'This start was canceled.', error_code = 'canceled'
     WHERE id = $1
"""
PLAN_START = """
    UPDATE workspaces
       SET status = 'starting', agent_state = 'connecting', template_revision = $2, parameters = $3, secrets_enc = $4,
           error = NULL, error_code = NULL, last_used_at = $5, updated_at = clock_timestamp()
     WHERE id = $1
"""
SET_STATUS = "UPDATE workspaces SET status = $2, updated_at = clock_timestamp() WHERE id = $1"
NODE_LIVES = """
    SELECT EXISTS (SELECT FROM replicas
                    WHERE host_id = $1
                      AND stopping_at IS NULL
                      AND heartbeat_at >= clock_timestamp() - interval '15 seconds')
"""


class OperationInProgress(Conflict):
    """Raised if an operation of another kind is in progress. `operation` is the one to wait for."""

    code = "operation_in_progress"

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        doing = {"create": "being created", "start": "being started", "stop": "being stopped"}
        what = doing.get(operation.kind, "being deleted")
        super().__init__(f"This workspace is {what} right now. Wait until that is done, then try again.")


class NodeOffline(Conflict):
    """Raised if the workspace's files are on a machine where no replica of this deployment runs."""

    code = "node_offline"

    def __init__(self) -> None:
        super().__init__("The machine of this workspace is offline. Start a Rookery server there, then try again.")


class WorkspaceQuotaExceeded(QuotaExceeded):
    """Raised if a quota is reached.

    `kind` is its setting: max_per_user, max_running_per_user or max_running_per_node.
    """

    def __init__(self, kind: str, *, used: int, limit: int) -> None:
        self.kind, self.used, self.limit = kind, used, limit
        advice = {
            "max_per_user": f"You have {used} workspaces, and {limit} are allowed. Delete one that you do not need.",
            "max_running_per_user": f"{used} of your workspaces are running, and {limit} are allowed. Stop one first.",
            "max_running_per_node": f"{used} workspaces run on this machine, and {limit} are allowed. Try again later.",
        }
        super().__init__(advice[kind])


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace to create. `parameters` are stored with the workspace, `once` only with its first operation.

    Secrets are sealed in the `secrets_enc` fields, and masked in the parameters.
    """

    id: UUID
    owner_id: UUID
    name: str
    template: str
    revision: str
    driver: str
    node: str | None
    parameters: dict[str, Any]
    secrets_enc: str | None = None
    once: dict[str, Any]
    once_secrets_enc: str | None = None
    idle_stop_after: timedelta


class StartPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The revision and parameters for the start of an existing workspace. The fields are those of `Draft`."""

    revision: str
    parameters: dict[str, Any]
    secrets_enc: str | None = None
    once: dict[str, Any]
    once_secrets_enc: str | None = None


class Requested(msgspec.Struct, frozen=True):
    """The result of a request.

    `operation` is None if there was nothing to do. `is_new`: this request created the operation.
    """

    workspace: Workspace
    operation: Operation | None
    is_new: bool = False


async def create(conn: Connection, draft: Draft, *, reason: Reason, now: datetime) -> Requested:
    """Create the row and its first operation. A repeated request of the same owner returns those of the first one."""
    await conn.execute(LOCK_OWNER, draft.owner_id)
    existing = await workspaces.find_workspace(conn, draft.id)
    if existing is not None:
        if existing.owner_id != draft.owner_id:
            raise WorkspaceNotFound(draft.id)
        return Requested(existing, await operation_rows.find_last(conn, draft.id))
    await _require_active(conn, draft.owner_id)
    quotas = await read_workspace_settings(conn)
    await _check_quotas(conn, draft.owner_id, quotas, workspace_id=draft.id, node=draft.node, is_new=True)
    try:
        async with atomic(conn):
            await conn.execute(
                INSERT,
                draft.id,
                draft.owner_id,
                draft.name,
                draft.template,
                draft.revision,
                draft.driver,
                draft.node,
                _json(draft.parameters),
                draft.secrets_enc,
                quotas.capped_idle(draft.idle_stop_after),
                now,
            )
    except asyncpg.UniqueViolationError:
        raise workspaces.name_taken(draft.name) from None
    except asyncpg.ForeignKeyViolationError:
        raise TemplateNotFound(draft.template) from None  # it was deleted after it was read
    operation = await _insert(
        conn, draft.id, Kind.CREATE, reason=reason, once=draft.once, secrets_enc=draft.once_secrets_enc
    )
    return Requested(await workspaces.get_workspace(conn, draft.id), operation, True)


async def find_startable(conn: Connection, workspace_id: UUID, owner_id: UUID) -> Requested | None:
    """Lock the workspace for a start. Returns None if it is down, so that `start` may be called.

    If the workspace is already running or starting, returns the result of the request. Raises `OperationInProgress`
    while it is being stopped or deleted.
    """
    await conn.execute(LOCK_OWNER, owner_id)
    workspace = await _locked(conn, workspace_id)
    open_one = await operation_rows.find_open(conn, workspace_id)
    if open_one is not None:
        if not open_one.is_start:
            raise OperationInProgress(open_one)
        return Requested(workspace, open_one)
    return Requested(workspace, None) if workspace.is_running else None


async def start(conn: Connection, workspace: Workspace, plan: StartPlan, *, reason: Reason, now: datetime) -> Requested:
    """Start a workspace that `find_startable` locked in this transaction."""
    if workspace.node is not None and not await conn.fetchval(NODE_LIVES, workspace.node):
        raise NodeOffline
    await _require_active(conn, workspace.owner_id)
    quotas = await read_workspace_settings(conn)
    await _check_quotas(conn, workspace.owner_id, quotas, workspace_id=workspace.id, node=workspace.node, is_new=False)
    await conn.execute(PLAN_START, workspace.id, plan.revision, _json(plan.parameters), plan.secrets_enc, now)
    operation = await _insert(
        conn, workspace.id, Kind.START, reason=reason, once=plan.once, secrets_enc=plan.once_secrets_enc
    )
    return Requested(await workspaces.get_workspace(conn, workspace.id), operation, True)


async def stop(conn: Connection, workspace_id: UUID, *, reason: Reason) -> Requested:
    """Stop the workspace, even during its start. Do nothing if it is stopped."""
    workspace = await _locked(conn, workspace_id)
    open_one = await operation_rows.find_open(conn, workspace_id)
    if open_one is not None and open_one.kind == Kind.STOP:
        return Requested(workspace, open_one)
    if open_one is None and workspace.status == Status.STOPPED:
        return Requested(workspace, None)
    await _cancel(conn, open_one)
    await conn.execute(SET_STATUS, workspace_id, Status.STOPPING)
    operation = await _insert(conn, workspace_id, Kind.STOP, reason=reason)
    return Requested(await workspaces.get_workspace(conn, workspace_id), operation, True)


async def delete(conn: Connection, workspace_id: UUID, *, reason: Reason, force: bool = False) -> Requested:
    """Delete the workspace and its files. Refused while a bound chat is working, unless `force`.

    With `force`, the workspace is deleted even if the machine of its files is unreachable. The files then stay there.
    """
    workspace = await _locked(conn, workspace_id)
    open_one = await operation_rows.find_open(conn, workspace_id)
    if open_one is not None and open_one.kind == Kind.DELETE:
        return Requested(workspace, open_one)
    if not force and await workspaces.is_busy(conn, workspace_id):
        raise InUse("A chat is working in this workspace. Stop the chat first, or delete the workspace with force.")
    await _cancel(conn, open_one)
    await conn.execute(SET_STATUS, workspace_id, Status.DELETING)
    operation = await _insert(conn, workspace_id, Kind.DELETE, reason=reason, once={FORCE: True} if force else None)
    return Requested(await workspaces.get_workspace(conn, workspace_id), operation, True)


async def hints_of(conn: Connection, requested: Requested) -> list[Hint]:
    """Return the hints to publish after the commit."""
    if not requested.is_new:
        return []
    assert requested.operation is not None
    changes = await workspaces.hints_about(conn, requested.workspace, operation=str(requested.operation.id))
    return [MiscHint(topic=TOPIC, data={"workspace": str(requested.workspace.id)}), *changes]


async def _require_active(conn: Connection, owner_id: UUID) -> None:
    """Raise `Disabled` if the owner's account is disabled.

    Disabling an account stops its chats and workspaces. Without this check, a chat that has not stopped yet could start
    its workspace again.
    """
    if not await conn.fetchval(IS_ACTIVE, owner_id):
        raise Disabled("The account of this workspace's owner is disabled.")


async def _locked(conn: Connection, workspace_id: UUID) -> Workspace:
    workspace = await workspaces.lock_workspace(conn, workspace_id)
    if workspace.deleted_at is not None:
        raise WorkspaceNotFound(workspace_id)
    return workspace


async def _cancel(conn: Connection, operation: Operation | None) -> None:
    """Cancel a start. Raises `OperationInProgress` for an operation of another kind."""
    if operation is None:
        return
    if not operation.is_start:
        raise OperationInProgress(operation)
    await conn.execute(CANCEL, operation.id)


async def _insert(
    conn: Connection,
    workspace_id: UUID,
    kind: Kind,
    *,
    reason: Reason,
    once: dict[str, Any] | None = None,
    secrets_enc: str | None = None,
) -> Operation:
    record = await conn.fetchrow(INSERT_OPERATION, workspace_id, kind, reason, _json(once or {}), secrets_enc)
    assert record is not None
    return operation_rows.from_record(record)


async def _check_quotas(
    conn: Connection,
    owner_id: UUID,
    quotas: WorkspaceSettings,
    *,
    workspace_id: UUID,
    node: str | None,
    is_new: bool,
) -> None:
    counted = await conn.fetchrow(COUNT_OWNED, owner_id, workspace_id)
    assert counted is not None
    if is_new:
        _check("max_per_user", counted["owned"], quotas.max_per_user)
    _check("max_running_per_user", counted["running"], quotas.max_running_per_user)
    if node is not None and quotas.max_running_per_node:
        await conn.execute(LOCK_NODE, node)
        _check(
            "max_running_per_node", await conn.fetchval(COUNT_ON_NODE, node, workspace_id), quotas.max_running_per_node
        )


def _check(kind: str, used: int, limit: int) -> None:
    if limit and used >= limit:
        raise WorkspaceQuotaExceeded(kind, used=used, limit=limit)


def _json(values: dict[str, Any]) -> str:
    return msgspec.json.encode(values).decode()
