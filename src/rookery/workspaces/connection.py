"""The connection of a chat to its workspace, dialed on first use: a chat that needs no workspace never touches one.

The workspace's row decides which agent to dial. An old endpoint is never trusted, a changed row is noticed while the
dial still waits, and each reason for having no connection has a message that tells the model what to do.
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
# After this long a dial reads the row again to check that it still calls the right agent.
REREAD_SECONDS = 5.0
# A connection used this recently is reused without reading its row.
FRESH_SECONDS = 10.0
# An agent that was last seen this long ago is considered lost: it needs a restart.
SILENT = timedelta(seconds=90)
ROUNDS = 2


class Reach(StrEnum):
    """The path from this replica to a workspace: direct, through a replica of its machine, or none."""

    HERE = "here"
    RELAYED = "relayed"
    OFFLINE = "offline"  # no replica runs on its machine
    OUT_OF_REACH = "out_of_reach"  # its replicas cannot be dialed from here


class WorkspaceLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a workspace's row that a dial needs. `operation` is the kind of the open operation."""

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
    """Raised when the row of a workspace cannot be read because the database does not respond."""


class WorkspaceDirectory(Protocol):
    """The lookup of workspaces and the factory of their connections.

    Reads raise `Unreadable` when the database does not respond.
    """

    async def find_binding(self, chat_id: ChatId) -> UUID | None: ...

    async def find(self, workspace_id: UUID) -> WorkspaceLocation | None:
        """Return the workspace's row, or None if it never existed or is gone."""
        ...

    def connect(self, location: WorkspaceLocation, chat: ChatHeaders) -> AgentConn:
        """Return a client for this boot. No connection is opened yet."""
        ...

    def release(self, location: WorkspaceLocation) -> None:
        """Close the connections of this boot, which has ended, or whose address belongs to another boot now."""
        ...

    async def connected(self, chat_id: ChatId, location: WorkspaceLocation, health: Health) -> None:
        """Record, best effort, that a chat uses this boot: update its last use and the chat's boot."""
        ...


class _Cached(msgspec.Struct):
    location: WorkspaceLocation
    conn: AgentConn
    health: Health
    used_at: float


class ChatWorkspace:
    """The workspace of one chat. `bind` sets the workspace that the newest snapshot of the chat names."""

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
        # Set when a turn uses its workspace; decides what is refreshed at the end of the turn.
        self.was_used = False
        self._told: str | None = None

    @property
    def workspace_id(self) -> UUID | None:
        return self._binding

    @property
    def health(self) -> Health | None:
        """The last health report of the agent, if this chat has talked to it."""
        return None if self._cached is None else self._cached.health

    def take_warning(self) -> str | None:
        """Return the disk warning for the model if it changed since the last call."""
        warning = None if self._cached is None else self._cached.location.disk_warning
        is_news = warning != self._told
        self._told = warning
        return warning if is_news else None

    def bind(self, workspace_id: UUID | None) -> None:
        """Set the workspace that the chat's row names now."""
        if workspace_id != self._binding:
            self._binding = workspace_id
            self._cached = None

    def forget(self, conn: AgentConn) -> None:
        """Drop this broken connection, so that the next call dials."""
        if self._cached is not None and self._cached.conn is conn:
            self._cached = None

    async def conn(self) -> AgentConn:
        """Return a connection that responded, or raise `NoConnection` with a message for the model."""
        return (await self._shared()).conn

    async def dial(self) -> tuple[AgentConn, Health]:
        """Return a connection, as `conn` does, with the agent's health."""
        found = await self._shared()
        return found.conn, found.health

    async def _shared(self) -> _Cached:
        """Share one dial, and its result, among concurrent callers. It is canceled when the last caller leaves."""
        self.was_used = True
        if (cached := await self._find_cached()) is not None:
            return cached
        if self._dialing is None or self._dialing.done():
            self._dialing = asyncio.create_task(self._find(), name=f"dial:{self._chat_id}")
            # Retrieve the exception, which no caller reads if all of them have left.
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
                # `used_at` is unchanged, so that the next call checks again.
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
            await self._directory.connected(self._chat_id, location, health)
            self._cached = _Cached(location, conn, health, self._clock.monotonic())
            return self._cached
        raise NoConnection(
            Situation.CHANGED, "The chat's workspace was changed while it was being connected to. Call the tool again."
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
        """Ask the agent for its health until it reports the row's boot; follow row changes; 30 s in total."""
        latest = self._clock.monotonic() + DIAL_SECONDS
        conn, asking = self._ask(location)
        is_checked = is_repeated = False
        try:
            while True:
                left = latest - self._clock.monotonic()
                await self._wait(asking, left if is_checked else min(REREAD_SECONDS, left))
                error = _failure(asking)
                if asking.done() and error is None:
                    health = asking.result()
                    _check_api(health)
                    if health.generation == location.generation:
                        return location, conn, health
                    error = WorkspaceError("The workspace agent belongs to another start of this workspace.")
                is_late = self._clock.monotonic() >= latest
                fresh = await self._reread(location)
                if is_late and not asking.done():
                    raise _late(fresh, now=self._clock.now())
                if not _is_same_address(fresh, location) and not is_late:
                    # A late response of the old agent is discarded with its task.
                    await _discard(asking)
                    self._directory.release(location)
                    location, is_checked, is_repeated = fresh, False, False
                    conn, asking = self._ask(location)
                    continue
                is_checked = True
                if error is None:
                    continue
                if is_repeated or is_late:
                    raise NoConnection(Situation.OTHER, str(error)) from error
                is_repeated = True
                conn, asking = self._ask(location)
        finally:
            await _discard(asking)

    def _ask(self, location: WorkspaceLocation) -> tuple[AgentConn, asyncio.Task[Health]]:
        conn = self._directory.connect(location, self._headers)
        return conn, asyncio.create_task(conn.health(seconds=2 * DIAL_SECONDS), name="agent-health")

    async def _wait(self, asking: asyncio.Task[Health], seconds: float) -> None:
        try:
            async with self._clock.deadline(max(seconds, 0.0), "agent-dial"):
                await asyncio.wait({asking})
        except DeadlineExceeded:
            pass

    async def _reread(self, location: WorkspaceLocation) -> WorkspaceLocation:
        """Return the current row, or the given one if it cannot be read. Raise `NoConnection` if it must not be
        dialed.
        """
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
    """Return the location if it may be dialed; else raise `NoConnection` by its status."""
    if location is None or location.status == "deleted":
        raise NoConnection(
            Situation.DELETED, "The workspace of this chat was deleted. Use create_workspace to make a new one."
        )
    if location.operation is not None or location.status in ("pending", "starting", "stopping", "deleting"):
        raise NoConnection(
            Situation.BUSY,
            f"The workspace {location.name} is being {_doing(location)}. Use start_workspace, which waits for it.",
        )
    if location.status in ("stopped", "failed"):
        why = f" ({location.error})" if location.error else ""
        situation = Situation.STOPPED if location.status == "stopped" else Situation.FAILED
        raise NoConnection(
            situation,
            f"The workspace {location.name} does not run{why}. Use start_workspace to start it. Files are kept.",
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


def _doing(location: WorkspaceLocation) -> str:
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
    """Return whether the agent was last seen 90 s ago or longer, or never since its start."""
    seen = location.last_seen_at
    if seen is None or (location.started_at is not None and seen < location.started_at):
        return True
    return now - seen >= SILENT


def _check_api(health: Health) -> None:
    if health.api not in ACCEPTED_APIS:
        raise NoConnection(
            Situation.AGENT_TOO_OLD,
            "The agent of this workspace does not fit this server. Use stop_workspace, then start_workspace: a restart "
            "updates it.",
        )


def _is_same(row: WorkspaceLocation | None, location: WorkspaceLocation) -> bool:
    if row is None or row.status != "running" or row.agent_state == "unreachable" or row.operation == "stop":
        return False
    return _is_same_address(row, location)


def _is_same_address(row: WorkspaceLocation, location: WorkspaceLocation) -> bool:
    return (row.generation, row.endpoint) == (location.generation, location.endpoint)


def _unknown(error: Unreadable) -> NoConnection:
    return NoConnection(Situation.OTHER, f"The state of the workspace cannot be read: {error} Call the tool again.")


def _failure(asking: asyncio.Task[Health]) -> Exception | None:
    if not asking.done():
        return None
    if asking.cancelled():
        return WorkspaceError("The connection to the workspace was given up.")
    error = asking.exception()
    if error is None or isinstance(error, WorkspaceError):
        return error
    raise error


async def _discard(asking: asyncio.Task[Health]) -> None:
    if not asking.done():
        asking.cancel()
        await asyncio.wait({asking})
    if not asking.cancelled():
        asking.exception()
