"""Unused workspaces: the times at which they are stopped and deleted.

A workspace is in use while a bound chat is working, even between its tool calls.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from rookery.store.db.pool import Connection, atomic
from rookery.store.settings.limit_settings import WorkspaceSettings
from rookery.store.workspaces import lifecycle_requests, workspaces
from rookery.store.workspaces.lifecycle_requests import OperationInProgress, Requested
from rookery.store.workspaces.operation_rows import Reason
from rookery.store.workspaces.workspaces import Status, WorkspaceNotFound

_BUSY = """EXISTS (SELECT FROM chats c
                    WHERE c.workspace_id = w.id
                      AND c.status IN ('running', 'interrupting', 'requires_action'))"""
# Writes each row at most once a minute.
TOUCH_BUSY = f"""
    UPDATE workspaces w
       SET last_used_at = $1
     WHERE w.status = 'running'
       AND w.last_used_at < $1::timestamptz - interval '1 minute'
       AND {_BUSY}
"""
# `$2` is the upper limit for `idle_stop_after`. In both, an interval of 0 means no limit.
IDLE = f"""
    SELECT w.id
      FROM workspaces w
     WHERE w.status = 'running'
       AND w.last_used_at < $1::timestamptz - CASE
             WHEN w.idle_stop_after = interval '0' THEN $2::interval
             WHEN $2::interval = interval '0' THEN w.idle_stop_after
             ELSE least(w.idle_stop_after, $2::interval) END
       AND (w.idle_stop_after > interval '0' OR $2::interval > interval '0')
       AND NOT {_BUSY}
"""
IS_IDLE = f"{IDLE} AND w.id = $3"
ABANDONED = """
    SELECT w.id
      FROM workspaces w
     WHERE w.status = 'stopped'
       AND w.stopped_at < $1
       AND NOT EXISTS (SELECT FROM chats c WHERE c.workspace_id = w.id AND NOT c.archived)
     LIMIT 100
"""
IS_ABANDONED = ABANDONED.replace("LIMIT 100", "AND w.id = $2")


async def touch_busy(conn: Connection, *, now: datetime) -> None:
    await conn.execute(TOUCH_BUSY, now)


async def list_idle(conn: Connection, settings: WorkspaceSettings, *, now: datetime) -> list[UUID]:
    return [record["id"] for record in await conn.fetch(IDLE, now, settings.max_idle)]


async def stop_idle(
    conn: Connection, workspace_id: UUID, settings: WorkspaceSettings, *, now: datetime
) -> Requested | None:
    """Stop an idle workspace. Returns None if it is no longer idle, which is checked under its lock."""
    async with atomic(conn):
        try:
            await workspaces.lock_workspace(conn, workspace_id)
            if await conn.fetchval(IS_IDLE, now, settings.max_idle, workspace_id) is None:
                return None
            return await lifecycle_requests.stop(conn, workspace_id, reason=Reason.IDLE)
        except (OperationInProgress, WorkspaceNotFound):
            return None


async def list_abandoned(conn: Connection, *, stopped_before: datetime) -> list[UUID]:
    """Return the workspaces that were stopped before this time and have no bound chat except archived ones."""
    return [record["id"] for record in await conn.fetch(ABANDONED, stopped_before)]


async def delete_abandoned(conn: Connection, workspace_id: UUID, *, stopped_before: datetime) -> Requested | None:
    async with atomic(conn):
        try:
            workspace = await workspaces.lock_workspace(conn, workspace_id)
            if workspace.status != Status.STOPPED:
                return None
            if await conn.fetchval(IS_ABANDONED, stopped_before, workspace_id) is None:
                return None
            return await lifecycle_requests.delete(conn, workspace_id, reason=Reason.IDLE)
        except (OperationInProgress, WorkspaceNotFound):
            return None
