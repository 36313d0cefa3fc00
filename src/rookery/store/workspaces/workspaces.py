"""Workspaces as rows, and the hints about their changes.

The row is authoritative: a sandbox without a row is stopped. Only operations (`operation_rows`) and the reconciler
change the status. Tokens are stored sealed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.store.db.hints import Hint, MiscHint, WatchHint, WatchKind
from rookery.store.db.pool import Connection
from rookery.store.people.errors import AlreadyExists, Missing

TABLE = "workspaces"
TOKEN_COLUMN = "token_enc"  # noqa: S105 -- a name, not a secret
SECRETS_COLUMN = "secrets_enc"
MAX_NAME = 32
NAME_RULE = f"Use lowercase letters, digits and single hyphens, at most {MAX_NAME} characters."
SHOWN_CHATS = 20
# The owner of an idle workspace is warned this long before it is stopped.
ENDS_SOON = timedelta(minutes=10)

# The columns of `Workspace`, in the order of its fields.
COLUMNS = (
    "w.id, w.owner_id, w.name, w.template, w.template_revision, w.driver, w.node, w.parameters, w.secrets_enc, "
    "w.status, w.error, w.error_code, w.warning, w.disk_warning, w.generation, w.endpoint, w.token_enc, w.agent_state, "
    "w.startup_exit_code, w.os, w.arch, w.home, w.directory, w.last_seen_at, w.last_used_at, w.started_at, "
    "w.stopped_at, w.idle_stop_after, w.created_at, w.updated_at, w.deleted_at, w.network"
)
FIND = f"SELECT {COLUMNS} FROM workspaces w WHERE w.id = $1"
# Older versions stored credentials in URLs among the parameters.
LIST_UNSEALED = f"""
    SELECT {COLUMNS}
      FROM workspaces w
     WHERE w.secrets_enc IS NULL
       AND w.deleted_at IS NULL
       AND w.parameters::text LIKE '%://%@%'
"""
SEAL_PARAMETERS = """
    UPDATE workspaces
       SET parameters = $2, secrets_enc = $3
     WHERE id = $1
       AND secrets_enc IS NULL
       AND parameters = $4
"""
FIND_OWNER = "SELECT owner_id FROM workspaces WHERE id = $1 AND deleted_at IS NULL"
# Every request and every step of an operation takes this lock, so nothing slow may happen while it is held.
LOCK = f"{FIND} FOR NO KEY UPDATE"
LIST = f"""
    SELECT {COLUMNS}
      FROM workspaces w
     WHERE ($1::uuid IS NULL OR w.owner_id = $1)
       AND w.deleted_at IS NULL
       AND ($2::text[] IS NULL OR w.status = ANY ($2))
       AND ($3::text IS NULL OR w.template = $3)
       AND ($4::timestamptz IS NULL OR (w.created_at, w.id) < ($4, $5::uuid))
     ORDER BY w.created_at DESC, w.id DESC
     LIMIT $6
"""
LIST_UP = f"""
    SELECT {COLUMNS}
      FROM workspaces w
     WHERE w.status IN ('pending', 'starting', 'running', 'stopping')
       AND ($1::text IS NULL OR w.node = $1 OR w.node IS NULL)
     ORDER BY w.id
"""
COUNT_BY_STATUS = "SELECT driver, status, count(*) FROM workspaces WHERE deleted_at IS NULL GROUP BY driver, status"
# Archived chats are included, because they still show their workspace.
CHATS = """
    SELECT id
      FROM chats
     WHERE workspace_id = $1
     ORDER BY updated_at DESC, id
     LIMIT $2
"""
LIST_BOUND_CHATS = """
    SELECT id, owner_id, snapshot_version
      FROM chats
     WHERE workspace_id = $1
       AND NOT archived
     ORDER BY updated_at DESC
     LIMIT 100
"""
IS_BUSY = """
    SELECT EXISTS (SELECT FROM chats
                    WHERE workspace_id = $1
                      AND status IN ('running', 'interrupting', 'requires_action'))
"""
TOUCH = """
    UPDATE workspaces
       SET last_used_at = $2
     WHERE id = $1
       AND last_used_at < $2::timestamptz - interval '1 minute'
"""
UPDATE_NAMED = """
    UPDATE workspaces
       SET name = $2, idle_stop_after = $3, updated_at = clock_timestamp()
     WHERE id = $1
"""


class Status(StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DELETING = "deleting"
    DELETED = "deleted"


class AgentState(StrEnum):
    """The agent's state while the workspace runs. The workspace is usable even if its startup script failed."""

    CONNECTING = "connecting"
    STARTING = "starting"
    READY = "ready"
    SCRIPT_FAILED = "script_failed"
    SCRIPT_TIMEOUT = "script_timeout"
    UNREACHABLE = "unreachable"


# The states after the end of the startup script, successful or not.
SCRIPT_ENDED = frozenset({AgentState.READY, AgentState.SCRIPT_FAILED, AgentState.SCRIPT_TIMEOUT})


class WorkspaceNotFound(Missing):
    """Raised if the workspace does not exist, or if the caller may not see it."""

    def __init__(self, workspace_id: UUID) -> None:
        self.workspace_id = workspace_id
        super().__init__(f"There is no workspace {workspace_id}.")


class Workspace(msgspec.Struct, frozen=True):
    """A workspace as stored. `status` and `agent_state` are text, so that values of a newer version can be listed."""

    id: UUID
    owner_id: UUID
    name: str
    template: str | None
    template_revision: str | None
    driver: str
    node: str | None
    parameters: dict[str, Any]
    secrets_enc: str | None
    status: str
    error: str | None
    error_code: str | None
    warning: str | None
    disk_warning: str | None
    generation: int
    endpoint: str | None
    token_enc: str | None
    agent_state: str
    startup_exit_code: int | None
    os: str | None
    arch: str | None
    home: str | None
    directory: str | None
    last_seen_at: datetime | None
    last_used_at: datetime
    started_at: datetime | None
    stopped_at: datetime | None
    idle_stop_after: timedelta
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    network: str | None  # the network access since the last start; None before the first start

    @property
    def is_running(self) -> bool:
        return self.status == Status.RUNNING

    def warnings(self, now: datetime) -> str | None:
        """Return warnings for the owner: no isolation, a disk that is nearly full, and a stop that is near."""
        disk = self.disk_warning if self.is_running else None
        return " ".join(each for each in (self.warning, disk, self._ending(now)) if each) or None

    def _ending(self, now: datetime) -> str | None:
        if self.stops_at is None or self.stops_at - now > min(ENDS_SOON, self.idle_stop_after / 2):
            return None
        minutes = max(math.ceil((self.stops_at - now) / timedelta(minutes=1)), 0)
        return f"This workspace is unused and stops in {minutes} min. Its processes end, and its files stay."

    @property
    def has_run(self) -> bool:
        """Return whether an agent has ever answered. If so, there may be files of the user."""
        return self.started_at is not None

    @property
    def stops_at(self) -> datetime | None:
        """Return the time at which the workspace is stopped unless it is used; None if it is down or never stopped."""
        if not self.is_running or not self.idle_stop_after:
            return None
        return self.last_used_at + self.idle_stop_after


async def find_workspace(conn: Connection, workspace_id: UUID) -> Workspace | None:
    """Return a workspace, even a deleted one."""
    record = await conn.fetchrow(FIND, workspace_id)
    return None if record is None else from_record(record)


async def find_owner(conn: Connection, workspace_id: UUID) -> UUID | None:
    """Return the owner of the workspace. None if it does not exist or is deleted."""
    owner_id: UUID | None = await conn.fetchval(FIND_OWNER, workspace_id)
    return owner_id


async def check_own(conn: Connection, workspace_id: UUID, owner_id: UUID) -> None:
    """Check that a chat of this owner may be bound to the workspace.

    The message does not show whether the workspace is missing or belongs to another user.
    """
    if await find_owner(conn, workspace_id) != owner_id:
        raise InvalidInput("workspace_id", "You have no such workspace. Choose another one, or none.")


async def get_workspace(conn: Connection, workspace_id: UUID) -> Workspace:
    found = await find_workspace(conn, workspace_id)
    if found is None:
        raise WorkspaceNotFound(workspace_id)
    return found


async def lock_workspace(conn: Connection, workspace_id: UUID) -> Workspace:
    """Return the row, locked until the end of the transaction."""
    record = await conn.fetchrow(LOCK, workspace_id)
    if record is None:
        raise WorkspaceNotFound(workspace_id)
    return from_record(record)


async def list_workspaces(
    conn: Connection,
    *,
    owner_id: UUID | None = None,
    statuses: Collection[str] | None = None,
    template: str | None = None,
    after: tuple[datetime, UUID] | None = None,
    limit: int = 200,
) -> list[Workspace]:
    """Return the workspaces that are not deleted, newest first.

    `after` is the `created_at` and the id of the last workspace on the previous page.
    """
    seen_at, seen_id = after or (None, None)
    wanted = None if statuses is None else list(statuses)
    return [
        from_record(record) for record in await conn.fetch(LIST, owner_id, wanted, template, seen_at, seen_id, limit)
    ]


async def list_up(conn: Connection, *, node: str | None = None) -> list[Workspace]:
    """Return the workspaces that are pending, starting, running or stopping.

    With `node`, only those of this node and those without a node, which every node reaches.
    """
    return [from_record(record) for record in await conn.fetch(LIST_UP, node)]


async def count_by_status(conn: Connection) -> dict[tuple[str, str], int]:
    """Count workspaces by driver and status."""
    return {(record[0], record[1]): record[2] for record in await conn.fetch(COUNT_BY_STATUS)}


async def list_chat_ids(conn: Connection, workspace_id: UUID) -> list[UUID]:
    """Return the 20 last changed chats that are bound to the workspace."""
    return [record["id"] for record in await conn.fetch(CHATS, workspace_id, SHOWN_CHATS)]


async def is_busy(conn: Connection, workspace_id: UUID) -> bool:
    """Return whether a bound chat is working."""
    return bool(await conn.fetchval(IS_BUSY, workspace_id))


async def touch(conn: Connection, workspace_id: UUID, *, now: datetime) -> None:
    """Record that the workspace is used. The row is written at most once a minute."""
    await conn.execute(TOUCH, workspace_id, now)


async def update_workspace(
    conn: Connection, workspace_id: UUID, *, name: str | None = None, idle_stop_after: timedelta | None = None
) -> Workspace:
    """Change the name or the idle time. The caller checks both values. Raises `AlreadyExists` for a taken name."""
    current = await lock_workspace(conn, workspace_id)
    if current.deleted_at is not None:
        raise WorkspaceNotFound(workspace_id)
    idle = current.idle_stop_after if idle_stop_after is None else idle_stop_after
    try:
        await conn.execute(UPDATE_NAMED, workspace_id, name or current.name, idle)
    except asyncpg.UniqueViolationError:
        raise name_taken(name or current.name) from None
    return await get_workspace(conn, workspace_id)


async def hints_about(conn: Connection, workspace: Workspace, **data: str | int | bool | None) -> list[Hint]:
    """Return the hints to publish after a change.

    They are for callers that wait for the workspace, and for viewers of its chats.
    """
    states: dict[str, str | int | bool | None] = {"status": workspace.status, "agent_state": workspace.agent_state}
    hints: list[Hint] = [MiscHint(topic=topic(workspace.id), data=states | data)]
    hints.extend(
        WatchHint(
            user_id=record["owner_id"],
            kind=WatchKind.WORKSPACE,
            chat_id=record["id"],
            snapshot_version=record["snapshot_version"],
        )
        for record in await conn.fetch(LIST_BOUND_CHATS, workspace.id)
    )
    return hints


def topic(workspace_id: UUID) -> str:
    return f"workspace:{workspace_id}"


def name_taken(name: str) -> AlreadyExists:
    return AlreadyExists("name", f"You already have a workspace called {name}. Choose another name.")


def is_name(name: str) -> bool:
    """Return whether the name is valid. A constraint of the table has the same rule."""
    words = name.split("-")
    return (
        0 < len(name) <= MAX_NAME and name.isascii() and all(word.isalnum() and word == word.lower() for word in words)
    )


def from_record(record: asyncpg.Record | Mapping[str, Any]) -> Workspace:
    values = dict(record)
    values["parameters"] = msgspec.json.decode(values["parameters"])
    return Workspace(**values)


async def list_unsealed_parameters(conn: Connection) -> list[Workspace]:
    """Return the workspaces whose parameters may contain credentials that an older version stored unsealed."""
    return [from_record(record) for record in await conn.fetch(LIST_UNSEALED)]


async def seal_parameters(
    conn: Connection, workspace: Workspace, *, parameters: Mapping[str, Any], secrets_enc: str
) -> None:
    """Store the sealed secrets, and parameters with masks. Does nothing if a start has sealed them meanwhile."""
    await conn.execute(
        SEAL_PARAMETERS,
        workspace.id,
        msgspec.json.encode(dict(parameters)).decode(),
        secrets_enc,
        msgspec.json.encode(workspace.parameters).decode(),
    )
