"""The connection of a chat to its workspace. It is opened ("dialed") when a tool needs it.

The row of the workspace names the agent to dial. Changes of the row during the dial are noticed. If there is no
connection, the error has a message that tells the model what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.agent_messages import ACCEPTED_APIS, Health
from rookery.workspaces.errors import NoConnection, Situation, WorkspaceError

log = get_logger("workspaces.connection")

DIAL_SECONDS = 30.0
# A dial that takes longer reads the row again, to check that it dials the right agent.
REREAD_SECONDS = 5.0
# A connection that was used within this time is reused without reading the row.
FRESH_SECONDS = 10.0
# An agent that has not been seen for this long is considered lost, and needs a restart.
SILENT = timedelta(seconds=90)
ROUNDS = 2


class Reach(StrEnum):
    """The path from this replica to a workspace: direct, through a replica on its machine, or none."""

    HERE = "here"
    RELAYED = "relayed"
    OFFLINE = "offline"  # no replica runs on its machine
    OUT_OF_REACH = "out_of_reach"  # the replicas of its machine have no address


class WorkspaceLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a workspace's row that a dial needs. `operation` is the kind of its open operation."""

    id: UUID
    name: str
    status: str
    generation: int
    agent_state: str = ""
    endpoint: str | None = None
    error: str | None = None
    operation: str | None = None
    reach: Reach = Reach.HERE
    started_at: datetime | None = None
    last_seen_at: datetime | None = None
    directory: str | None = None
    disk_warning: str | None = None
    home: str | None = None

    @property
    def is_reachable(self) -> bool:
        return self.reach in (Reach.HERE, Reach.RELAYED)


class Unreadable(Exception):
    """Raised when the row of a workspace cannot be read, because the database does not respond."""


class WorkspaceDirectory(Protocol):
    """Finds workspaces, and creates clients of their agents. Reads raise `Unreadable` if the database does not
    respond.
    """

    async def find_binding(self, chat_id: ChatId) -> UUID | None: ...

    async def find(self, workspace_id: UUID) -> WorkspaceLocation | None:
        """Return the workspace, or None if it does not exist."""
        ...

    def connect(self, location: WorkspaceLocation, chat: ChatHeaders) -> AgentConn:
        """Return a client for this boot. It opens no connection."""
        ...

    def release(self, location: WorkspaceLocation) -> None:
        """Close the connections of this boot. It has ended, or its address belongs to another boot."""
        ...

    async def record_use(self, chat_id: ChatId, location: WorkspaceLocation, health: Health) -> None:
        """Store that the chat uses this boot. Errors are only logged."""
        ...


class _Cached(msgspec.Struct):
    location: WorkspaceLocation
    conn: AgentConn
    health: Health
    used_at: float


class ChatWorkspace:
    """The workspace of one chat, and the connection to it."""

    def __init__(
        self,
        chat_id: ChatId,
        directory: WorkspaceDirectory,
        *,
        clock: Clock,
        ancestor_ids: Sequence[UUID] = (),
        is_root: bool = True,
    ) -> None:
        self._chat_id = chat_id
        self._directory = directory
        self._clock = clock
        self._headers = ChatHeaders(chat_id, tuple(ancestor_ids))
        self._is_root = is_root
        self._binding: UUID | None = None
        self._cached: _Cached | None = None
        self._dialing: asyncio.Task[_Cached] | None = None
        self._waiters = 0
        # Set when a turn uses the workspace. Then repositories are scanned at the end of the turn.
        self.was_used = False
        self._last_warning: str | None = None

    @property
    def workspace_id(self) -> UUID | None:
        return self._binding

    @property
    def health(self) -> Health | None:
        """Return the last health report of the agent; None if there is no connection."""
        return None if self._cached is None else self._cached.health

    def take_warning(self) -> str | None:
        """Return the disk warning if it has changed since the last call."""
        warning = None if self._cached is None else self._cached.location.disk_warning
        is_new = warning != self._last_warning
        self._last_warning = warning
        return warning if is_new else None

    def bind(self, workspace_id: UUID | None) -> None:
        """Set the workspace of the chat's current row."""
        if workspace_id != self._binding:
            self._binding = workspace_id
            self._cached = None

    def forget(self, conn: AgentConn) -> None:
        """Drop this broken connection. The next call dials again."""
        if self._cached is not None and self._cached.conn is conn:
            self._cached = None

    async def conn(self) -> AgentConn:
        """Return a connection whose agent has responded. Raise `NoConnection` with a message for the model."""
        return (await self._dial_shared()).conn

    async def dial(self) -> tuple[AgentConn, Health]:
        """Return a connection as `conn` does, and the health of the agent."""
        found = await self._dial_shared()
        return found.conn, found.health

    async def _dial_shared(self) -> _Cached:
        """Dial, or join the dial of a concurrent caller. The dial is canceled when its last caller is canceled."""
        self.was_used = True
        if (cached := await self._find_cached()) is not None:
            return cached
        if self._dialing is None or self._dialing.done():
            self._dialing = asyncio.create_task(self._find(), name=f"dial:{self._chat_id}")
            # Retrieve the exception, in case all callers were canceled.
            self._dialing.add_done_callback(lambda done: done.cancelled() or done.exception())
        dialing = self._dialing
        self._waiters += 1
        try:
            return await asyncio.shield(dialing)
        finally:
            self._waiters -= 1
            if self._waiters == 0 and not dialing.done():
                dialing.cancel()
                self._dialing = None

    async def _find_cached(self) -> _Cached | None:
        cached = self._cached
        if cached is None or cached.location.id != self._binding:
            return None
        now = self._clock.monotonic()
        if now - cached.used_at > FRESH_SECONDS:
            try:
                row = await self._directory.find(cached.location.id)
            except Unreadable:
                # `used_at` is unchanged, so the next call checks again.
                return cached
            if row is None or not _is_same(row, cached.location):
                if self._cached is cached:
                    self._cached = None
                return None
            cached.location = row
        cached.used_at = now
        return cached

    async def _find(self) -> _Cached:
        for _ in range(ROUNDS):
            workspace_id = self._binding
            if workspace_id is None:
                workspace_id = self._binding = await self._read_binding()
            if workspace_id is None:
                raise no_workspace(is_root=self._is_root)
            location, conn, health = await self._dial(await self._read(workspace_id))
            current = await self._read_binding()
            if current != workspace_id:
                self._binding = current
                continue
            await self._directory.record_use(self._chat_id, location, health)
            self._cached = _Cached(location, conn, health, self._clock.monotonic())
            return self._cached
        raise NoConnection(
            Situation.CHANGED, "The chat got another workspace during the connection. Call the tool again."
        )

    async def _read_binding(self) -> UUID | None:
        try:
            return await self._directory.find_binding(self._chat_id)
        except Unreadable as error:
            raise _unknown(error) from error

    async def _read(self, workspace_id: UUID) -> WorkspaceLocation:
        try:
            return _usable(await self._directory.find(workspace_id))
        except Unreadable as error:
            raise _unknown(error) from error

    async def _dial(self, location: WorkspaceLocation) -> tuple[WorkspaceLocation, AgentConn, Health]:
        """Request the health of the agent until it reports the boot of the row. Follow changes of the row for 30 s."""
        latest = self._clock.monotonic() + DIAL_SECONDS
        conn, health_task = self._ask(location)
        is_checked = is_repeated = False
        try:
            while True:
                left = latest - self._clock.monotonic()
                await self._wait(health_task, left if is_checked else min(REREAD_SECONDS, left))
                error = _failure(health_task)
                if health_task.done() and error is None:
                    health = health_task.result()
                    _check_api(health)
                    if health.generation == location.generation:
                        return location, conn, health
                    error = WorkspaceError("The workspace agent belongs to another start of this workspace.")
                is_late = self._clock.monotonic() >= latest
                fresh = await self._reread(location)
                if is_late and not health_task.done():
                    raise _late(fresh, now=self._clock.now())
                if not _is_same_address(fresh, location) and not is_late:
                    # A late response of the old agent is discarded.
                    await _discard(health_task)
                    self._directory.release(location)
                    location, is_checked, is_repeated = fresh, False, False
                    conn, health_task = self._ask(location)
                    continue
                is_checked = True
                if error is None:
                    continue
                if is_repeated or is_late:
                    raise NoConnection(Situation.OTHER, str(error)) from error
                is_repeated = True
                conn, health_task = self._ask(location)
        finally:
            await _discard(health_task)

    def _ask(self, location: WorkspaceLocation) -> tuple[AgentConn, asyncio.Task[Health]]:
        conn = self._directory.connect(location, self._headers)
        return conn, asyncio.create_task(conn.health(seconds=2 * DIAL_SECONDS), name="agent-health")

    async def _wait(self, health_task: asyncio.Task[Health], seconds: float) -> None:
        try:
            async with self._clock.deadline(max(seconds, 0.0), "agent-dial"):
                await asyncio.wait({health_task})
        except DeadlineExceeded:
            pass

    async def _reread(self, location: WorkspaceLocation) -> WorkspaceLocation:
        """Return the current row, or the given one if it cannot be read. Raise `NoConnection` if it has no agent."""
        try:
            return _usable(await self._directory.find(location.id))
        except Unreadable:
            return location


def no_workspace(*, is_root: bool) -> NoConnection:
    if is_root:
        return NoConnection(Situation.NONE, "No workspace is attached to this chat. Use create_workspace to make one.")
    return NoConnection(
        Situation.NONE_IN_CHILD,
        "No workspace is attached to this chat. Say in your report that the task needs one, so that the agent that "
        "gave it to you can attach it.",
    )


def _usable(location: WorkspaceLocation | None) -> WorkspaceLocation:
    """Return the location if its agent can be dialed. Raise `NoConnection` with the reason otherwise."""
    if location is None or location.status == "deleted":
        raise NoConnection(
            Situation.DELETED, "The workspace of this chat was deleted. Use create_workspace to make a new one."
        )
    if location.operation is not None or location.status in ("pending", "starting", "stopping", "deleting"):
        raise NoConnection(
            Situation.BUSY,
            f"The workspace {location.name} is being {_verb(location)}. Use start_workspace, which waits for it.",
        )
    if location.status in ("stopped", "failed"):
        why = f" ({location.error})" if location.error else ""
        situation = Situation.STOPPED if location.status == "stopped" else Situation.FAILED
        raise NoConnection(
            situation,
            f"The workspace {location.name} is not running{why}. Use start_workspace to start it. Files are kept.",
        )
    if location.agent_state == "unreachable" and location.error:
        raise NoConnection(
            Situation.CUT_OFF, f"{location.error} Use stop_workspace, then start_workspace, or tell the user."
        )
    if location.reach is Reach.OFFLINE:
        raise NoConnection(
            Situation.NODE_OFFLINE,
            f"The machine of the workspace {location.name} is offline. Trying again does not help until it is back. "
            "Tell the user, who has to bring it back; the files are on it.",
        )
    if location.reach is Reach.OUT_OF_REACH:
        raise NoConnection(
            Situation.OUT_OF_REACH,
            f"The workspace {location.name} is on another machine, and the server that runs this chat cannot reach "
            "workspaces there. Trying again does not help. Tell the user; an administrator can help.",
        )
    return location


def _verb(location: WorkspaceLocation) -> str:
    kind = location.operation or location.status
    if kind in ("stop", "stopping"):
        return "stopped"
    return "deleted" if kind in ("delete", "deleting") else "started"


def _late(location: WorkspaceLocation, *, now: datetime) -> NoConnection:
    if is_silent(location, now=now):
        return NoConnection(
            Situation.SILENT,
            f"The workspace {location.name} does not answer and cannot run tools. Use stop_workspace, then "
            "start_workspace; its files are kept.",
        )
    return NoConnection(
        Situation.TIMED_OUT,
        f"The connection to the workspace {location.name} timed out. It answered a moment ago, so the next attempt may "
        "work: call the tool again.",
    )


def is_silent(location: WorkspaceLocation, *, now: datetime) -> bool:
    """Return whether the agent has not been seen for 90 s, or never since its start."""
    seen = location.last_seen_at
    if seen is None or (location.started_at is not None and seen < location.started_at):
        return True
    return now - seen >= SILENT


def _check_api(health: Health) -> None:
    if health.api not in ACCEPTED_APIS:
        raise NoConnection(
            Situation.AGENT_TOO_OLD,
            "The agent of this workspace has another version than the server. Use stop_workspace, then "
            "start_workspace: a restart updates it.",
        )


def _is_same(row: WorkspaceLocation | None, location: WorkspaceLocation) -> bool:
    if row is None or row.status != "running" or row.agent_state == "unreachable" or row.operation == "stop":
        return False
    return _is_same_address(row, location)


def _is_same_address(row: WorkspaceLocation, location: WorkspaceLocation) -> bool:
    return (row.generation, row.endpoint) == (location.generation, location.endpoint)


def _unknown(error: Unreadable) -> NoConnection:
    return NoConnection(Situation.OTHER, f"The state of the workspace cannot be read: {error} Call the tool again.")


def _failure(health_task: asyncio.Task[Health]) -> Exception | None:
    if not health_task.done():
        return None
    if health_task.cancelled():
        return WorkspaceError("The connection to the workspace was canceled.")
    error = health_task.exception()
    if error is None or isinstance(error, WorkspaceError):
        return error
    raise error


async def _discard(health_task: asyncio.Task[Health]) -> None:
    if not health_task.done():
        health_task.cancel()
        await asyncio.wait({health_task})
    if not health_task.cancelled():
        health_task.exception()
