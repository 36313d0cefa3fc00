"""Stop the chats and workspaces of a disabled account. Queued messages stay in the queue.

This is done in the transaction that disables the account. A request that runs at that moment may still start a turn or
a workspace, so replicas check recently disabled accounts again for a while.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from rookery.store.db.hints import Hint
from rookery.store.db.pool import Connection
from rookery.store.machine import Bundle, interrupt
from rookery.store.workspaces import lifecycle_requests
from rookery.store.workspaces.lifecycle_requests import OperationInProgress
from rookery.store.workspaces.operation_rows import Reason
from rookery.store.workspaces.workspaces import WorkspaceNotFound

NOTE = "The account of the user was disabled."

# Uses the clock of the database, because that clock also sets `disabled_at`.
RECENT = """
    SELECT id, disabled_at
      FROM users
     WHERE status = 'disabled'
       AND disabled_at > clock_timestamp() - make_interval(secs => $1)
     ORDER BY disabled_at
"""
# Roots first: the lock order of chats of a family.
BUSY_CHATS = """
    SELECT id
      FROM chats
     WHERE owner_id = $1
       AND status IN ('running', 'requires_action')
     ORDER BY parent_chat_id IS NOT NULL, created_at, id
"""
WORKSPACES_UP = """
    SELECT id
      FROM workspaces
     WHERE owner_id = $1
       AND deleted_at IS NULL
       AND status IN ('pending', 'starting', 'running')
     ORDER BY id
"""


class DisabledUser(msgspec.Struct, frozen=True):
    id: UUID
    disabled_at: datetime


async def list_recent(conn: Connection, *, seconds: float) -> list[DisabledUser]:
    return [DisabledUser(*record) for record in await conn.fetch(RECENT, seconds)]


async def has_busy_chats(conn: Connection, user_id: UUID) -> bool:
    return await conn.fetchval(f"SELECT EXISTS ({BUSY_CHATS})", user_id) is True


async def stop_chats(bundle: Bundle, user_id: UUID) -> int:
    """Interrupt the running chats. Returns their number."""
    stopped = 0
    for record in await bundle.conn.fetch(BUSY_CHATS, user_id):
        tx = await bundle.open(record["id"])
        if tx.chat.status in ("running", "requires_action"):
            await interrupt(tx, note=NOTE)
            stopped += 1
    return stopped


async def stop_workspaces(conn: Connection, user_id: UUID) -> list[Hint]:
    """Request the stop of each workspace that runs or starts. Returns the hints to publish after the commit."""
    hints: list[Hint] = []
    for record in await conn.fetch(WORKSPACES_UP, user_id):
        try:
            requested = await lifecycle_requests.stop(conn, record["id"], reason=Reason.DISABLED)
        except (OperationInProgress, WorkspaceNotFound):
            continue  # it is being deleted, or is deleted
        hints += await lifecycle_requests.hints_of(conn, requested)
    return hints
