"""Workspace operations as rows: the request, the claim, the result, and the log.

A unique index allows one open operation per workspace. The replica in `claimed_by` has the operation until
`lease_until`, or until the replica is gone. A canceled start keeps its claim until its replica has released the driver.
Until then, no other operation of that workspace is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.store.db.pool import Connection
from rookery.store.people.errors import Missing

TABLE = "workspace_operations"
MAX_LOG_BYTES = 256 * 1024

# The columns of `Operation`, in the order of its fields. The log is read separately.
COLUMNS = (
    "o.id, o.workspace_id, o.kind, o.state, o.reason, o.parameters, o.secrets_enc, o.generation, o.error, "
    "o.error_code, o.claimed_by, o.lease_until, o.created_at, o.started_at, o.finished_at"
)
FIND = f"SELECT {COLUMNS} FROM workspace_operations o WHERE o.id = $1"
FIND_OPEN = f"""
    SELECT {COLUMNS}
      FROM workspace_operations o
     WHERE o.workspace_id = $1
       AND o.state IN ('queued', 'running')
"""
FIND_LAST = f"""
    SELECT {COLUMNS}
      FROM workspace_operations o
     WHERE o.workspace_id = $1
     ORDER BY o.created_at DESC, o.id
     LIMIT 1
"""
FIND_START = """
    SELECT o.id
      FROM workspace_operations o
     WHERE o.workspace_id = $1 AND o.kind IN ('create', 'start')
     ORDER BY o.created_at DESC, o.id
     LIMIT 1
"""
FIND_OWNER = """
    SELECT w.owner_id
      FROM workspace_operations o
      JOIN workspaces w ON w.id = o.workspace_id
     WHERE o.id = $1
"""
# A start succeeds when its agent answers. The startup script continues after that, and writes to the same log.
LOG = """
    SELECT o.log, o.log_dropped, o.state,
           o.state = 'succeeded' AND o.kind IN ('create', 'start') AND w.generation = o.generation
             AND w.status = 'running' AND w.agent_state IN ('connecting', 'starting') AS is_in_script
      FROM workspace_operations o
      JOIN workspaces w ON w.id = o.workspace_id
     WHERE o.id = $1
"""


class Kind(StrEnum):
    CREATE = "create"
    START = "start"
    STOP = "stop"
    DELETE = "delete"


class OperationState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Reason(StrEnum):
    USER = "user"
    CHAT = "chat"
    IDLE = "idle"
    QUOTA = "quota"
    RECOVERY = "recovery"
    DISABLED = "disabled"  # the owner's account was disabled


STARTS = frozenset({Kind.CREATE, Kind.START})


class OperationNotFound(Missing):
    def __init__(self, operation_id: UUID) -> None:
        self.operation_id = operation_id
        super().__init__(f"There is no operation {operation_id}.")


class Operation(msgspec.Struct, frozen=True):
    """An operation as stored. `parameters` and secrets are for this operation only, and are deleted after it."""

    id: UUID
    workspace_id: UUID
    kind: str
    state: str
    reason: str
    parameters: dict[str, Any]
    secrets_enc: str | None
    generation: int | None
    error: str | None
    error_code: str | None
    claimed_by: UUID | None
    lease_until: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_open(self) -> bool:
        return self.finished_at is None

    @property
    def is_start(self) -> bool:
        return self.kind in STARTS


class OperationLog(msgspec.Struct, frozen=True):
    """The end of the log. `dropped` is the number of bytes before it.

    `is_over` says that nothing more will be written, not even by the startup script.
    """

    text: str
    dropped: int
    is_over: bool


async def find_operation(conn: Connection, operation_id: UUID) -> Operation | None:
    record = await conn.fetchrow(FIND, operation_id)
    return None if record is None else from_record(record)


async def get_operation(conn: Connection, operation_id: UUID) -> Operation:
    found = await find_operation(conn, operation_id)
    if found is None:
        raise OperationNotFound(operation_id)
    return found


async def find_owner(conn: Connection, operation_id: UUID) -> UUID | None:
    """Return the owner of the operation's workspace, even if it is deleted. None if there is no such operation."""
    owner_id: UUID | None = await conn.fetchval(FIND_OWNER, operation_id)
    return owner_id


async def find_open(conn: Connection, workspace_id: UUID) -> Operation | None:
    """Return the operation that is queued or running."""
    record = await conn.fetchrow(FIND_OPEN, workspace_id)
    return None if record is None else from_record(record)


async def find_last(conn: Connection, workspace_id: UUID) -> Operation | None:
    record = await conn.fetchrow(FIND_LAST, workspace_id)
    return None if record is None else from_record(record)


async def find_start_id(conn: Connection, workspace_id: UUID) -> UUID | None:
    """Return the last operation that created or started the workspace."""
    operation_id: UUID | None = await conn.fetchval(FIND_START, workspace_id)
    return operation_id


async def read_log(conn: Connection, operation_id: UUID) -> OperationLog:
    record = await conn.fetchrow(LOG, operation_id)
    if record is None:
        raise OperationNotFound(operation_id)
    is_open = record["state"] in (OperationState.QUEUED, OperationState.RUNNING)
    return OperationLog(record["log"], record["log_dropped"], not is_open and not record["is_in_script"])


def from_record(record: asyncpg.Record | Mapping[str, Any]) -> Operation:
    values = dict(record)
    values["parameters"] = msgspec.json.decode(values["parameters"])
    return Operation(**values)
