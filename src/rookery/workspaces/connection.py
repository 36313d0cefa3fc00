"""How a turn gets its connection to the workspace, lazily: a chat that needs none never touches one.

The row decides whom to call (workspaces.md, "AgentConn"): an old endpoint is never trusted, a changed row is noticed
while the dial still waits, and every way to have no connection has a sentence that tells the model what to do.
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
# A dial that takes this long looks again whether it calls the right one.
REREAD_SECONDS = 5.0
# A connection used this recently needs no look at its row.
FRESH_SECONDS = 10.0
# An agent that nobody heard for this long will not come back by itself.
SILENT = timedelta(seconds=90)
ROUNDS = 2


class Reach(StrEnum):
    """How this replica gets to a workspace: by itself, through a replica of its machine, or not at all."""

    HERE = "here"
    RELAYED = "relayed"
    OFFLINE = "offline"  # nobody lives on its machine
    OUT_OF_REACH = "out_of_reach"  # somebody does, and cannot be dialed from here


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace's row as far as a dial looks at it. `operation` is the kind of the open one."""

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
    """The row cannot be read now; nothing is known about the workspace."""


class Places(Protocol):
    """Where rows come from and connections begin. Reads raise `Unreadable` when the database does not answer."""

    async def find_binding(self, chat_id: ChatId) -> UUID | None: ...

    async def find(self, workspace_id: UUID) -> Place | None:
        """None: there never was one, or its row is gone."""
        ...

    def connect(self, place: Place, chat: ChatHeaders) -> AgentConn:
        """A client for this generation. No connection is made yet."""
        ...

    def release(self, place: Place) -> None:
        """This generation answered for another, or is gone: its connections are closed."""
        ...

    async def connected(self, chat_id: ChatId, place: Place, health: Health) -> None:
        """A chat uses this generation now. Best effort: bumps the last use, follows the generation."""
        ...


class _Cached(msgspec.Struct):
    place: Place
    conn: AgentConn
    health: Health
    used_at: float


class ChatWorkspace:
    """The workspace of one chat, as its turns use it. `bind` says which one the newest snapshot of the chat names."""

    def __init__(
        self, chat_id: ChatId, places: Places, *, clock: Clock, ancestor_ids: Sequence[UUID] = (), is_root: bool = True
    ) -> None:
        self._chat_id = chat_id
        self._places = places
        self._clock = clock
        self._headers = ChatHeaders(chat_id, tuple(ancestor_ids))
        self._is_root = is_root
        self._binding: UUID | None = None
        self._cached: _Cached | None = None
        self._dialing: asyncio.Task[_Cached] | None = None
        self._waiters = 0
        # Whether the turn has used its workspace: what is refreshed at its end depends on it.
        self.was_used = False
        self._told: str | None = None

    @property
    def workspace_id(self) -> UUID | None:
        return self._binding

    @property
    def health(self) -> Health | None:
        """What the agent last said of itself, if this chat has talked to it."""
        return None if self._cached is None else self._cached.health

    def take_warning(self) -> str | None:
        """What the model should know about the disk, each time it changed: commands fill it without being asked."""
        warning = None if self._cached is None else self._cached.place.disk_warning
        is_news = warning != self._told
        self._told = warning
        return warning if is_news else None

    def bind(self, workspace_id: UUID | None) -> None:
        """The chat's row names this workspace now."""
        if workspace_id != self._binding:
            self._binding = workspace_id
            self._cached = None

    def forget(self, conn: AgentConn) -> None:
        """This connection turned out to lead nowhere: the next call dials."""
        if self._cached is not None and self._cached.conn is conn:
            self._cached = None

    async def conn(self) -> AgentConn:
        """A connection that answered; `NoConnection` with a sentence for the model when there cannot be one."""
        return (await self._shared()).conn

    async def dial(self) -> tuple[AgentConn, Health]:
        """As `conn`, with what the agent says of itself."""
        found = await self._shared()
        return found.conn, found.health

    async def _shared(self) -> _Cached:
        """Callers of one moment share one dial, and whatever comes of it. The last one to leave ends it."""
        self.was_used = True
        if (cached := await self._find_cached()) is not None:
            return cached
        if self._dialing is None or self._dialing.done():
            self._dialing = asyncio.create_task(self._find(), name=f"dial:{self._chat_id}")
            # Heard by nobody when all who waited for it have left.
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
        if cached is None or cached.place.id != self._binding:
            return None
        now = self._clock.monotonic()
        if now - cached.used_at > FRESH_SECONDS:
            try:
                row = await self._places.find(cached.place.id)
            except Unreadable:
                # Checked again by the next call: the time of its use stays.
                return cached
            if row is None or not _is_same(row, cached.place):
                if self._cached is cached:
                    self._cached = None
                return None
            cached.place = row
        cached.used_at = now
        return cached

    async def _find(self) -> _Cached:
        for _ in range(ROUNDS):
            workspace_id = self._binding
            if workspace_id is None:
                workspace_id = self._binding = await self._read_binding()
            if workspace_id is None:
                raise no_workspace(is_root=self._is_root)
            place, conn, health = await self._dial(await self._read(workspace_id))
            current = await self._read_binding()
            if current != workspace_id:
                self._binding = current
                continue
            await self._places.connected(self._chat_id, place, health)
            self._cached = _Cached(place, conn, health, self._clock.monotonic())
            return self._cached
        raise NoConnection(
            Situation.CHANGED, "The chat's workspace was changed while it was being connected to. Call the tool again."
        )

    async def _read_binding(self) -> UUID | None:
        try:
            return await self._places.find_binding(self._chat_id)
        except Unreadable as error:
            raise _unknown(error) from error

    async def _read(self, workspace_id: UUID) -> Place:
        try:
            return _usable(await self._places.find(workspace_id))
        except Unreadable as error:
            raise _unknown(error) from error

    async def _dial(self, place: Place) -> tuple[Place, AgentConn, Health]:
        """Health with token and generation, 30 s in all, of whatever generation the row names meanwhile."""
        latest = self._clock.monotonic() + DIAL_SECONDS
        conn, asking = self._ask(place)
        is_checked = is_repeated = False
        try:
            while True:
                left = latest - self._clock.monotonic()
                await self._wait(asking, left if is_checked else min(REREAD_SECONDS, left))
                error = _failure(asking)
                if asking.done() and error is None:
                    health = asking.result()
                    _check_api(health)
                    if health.generation == place.generation:
                        return place, conn, health
                    error = WorkspaceError("The workspace agent belongs to another start of this workspace.")
                is_late = self._clock.monotonic() >= latest
                fresh = await self._reread(place)
                if is_late and not asking.done():
                    raise _late(fresh, now=self._clock.now())
                if not _is_same_address(fresh, place) and not is_late:
                    # A late answer of the old one is discarded with its task.
                    await _discard(asking)
                    self._places.release(place)
                    place, is_checked, is_repeated = fresh, False, False
                    conn, asking = self._ask(place)
                    continue
                is_checked = True
                if error is None:
                    continue
                if is_repeated or is_late:
                    raise NoConnection(Situation.OTHER, str(error)) from error
                is_repeated = True
                conn, asking = self._ask(place)
        finally:
            await _discard(asking)

    def _ask(self, place: Place) -> tuple[AgentConn, asyncio.Task[Health]]:
        conn = self._places.connect(place, self._headers)
        return conn, asyncio.create_task(conn.health(seconds=2 * DIAL_SECONDS), name="agent-health")

    async def _wait(self, asking: asyncio.Task[Health], seconds: float) -> None:
        try:
            async with self._clock.deadline(max(seconds, 0.0), "agent-dial"):
                await asyncio.wait({asking})
        except DeadlineExceeded:
            pass

    async def _reread(self, place: Place) -> Place:
        """The row as it is now; the one at hand when it cannot be read. `NoConnection` when it is not to be called."""
        try:
            return _usable(await self._places.find(place.id))
        except Unreadable:
            return place


def no_workspace(*, is_root: bool) -> NoConnection:
    if is_root:
        return NoConnection(Situation.NONE, "No workspace is attached to this chat. Use create_workspace to make one.")
    return NoConnection(
        Situation.NONE_IN_CHILD,
        "No workspace is attached to this chat. Say in your report that the task needs one, so that the agent that "
        "gave it to you can attach it.",
    )


def _usable(place: Place | None) -> Place:
    """The place, if it is to be called; else `NoConnection` by its status."""
    if place is None or place.status == "deleted":
        raise NoConnection(
            Situation.DELETED, "The workspace of this chat was deleted. Use create_workspace to make a new one."
        )
    if place.operation is not None or place.status in ("pending", "starting", "stopping", "deleting"):
        raise NoConnection(
            Situation.BUSY,
            f"The workspace {place.name} is being {_doing(place)}. Use start_workspace, which waits for it.",
        )
    if place.status in ("stopped", "failed"):
        why = f" ({place.error})" if place.error else ""
        situation = Situation.STOPPED if place.status == "stopped" else Situation.FAILED
        raise NoConnection(
            situation, f"The workspace {place.name} does not run{why}. Use start_workspace to start it. Files are kept."
        )
    if place.agent_state == "unreachable" and place.error:
        raise NoConnection(
            Situation.CUT_OFF, f"{place.error} Use stop_workspace, then start_workspace, or tell the user."
        )
    if place.reach is Reach.OFFLINE:
        raise NoConnection(
            Situation.NODE_OFFLINE,
            f"The machine of the workspace {place.name} is offline. Trying again does not help until it is back. Tell "
            "the user, who has to bring it back; the files are on it.",
        )
    if place.reach is Reach.OUT_OF_REACH:
        raise NoConnection(
            Situation.OUT_OF_REACH,
            f"The workspace {place.name} is on another machine, and the server that runs this chat cannot reach "
            "workspaces there. Trying again does not help. Tell the user; an administrator can help.",
        )
    return place


def _doing(place: Place) -> str:
    kind = place.operation or place.status
    if kind in ("stop", "stopping"):
        return "stopped"
    return "deleted" if kind in ("delete", "deleting") else "started"


def _late(place: Place, *, now: datetime) -> NoConnection:
    if is_silent(place, now=now):
        return NoConnection(
            Situation.SILENT,
            f"The workspace {place.name} does not answer and cannot run tools. Use stop_workspace, then "
            "start_workspace; its files are kept.",
        )
    return NoConnection(
        Situation.TIMED_OUT,
        f"The connection to the workspace {place.name} timed out. It answered a moment ago, so the next attempt may "
        "work: call the tool again.",
    )


def is_silent(place: Place, *, now: datetime) -> bool:
    """Whether nobody has heard the agent for 90 s, or never since it was started."""
    seen = place.last_seen_at
    if seen is None or (place.started_at is not None and seen < place.started_at):
        return True
    return now - seen >= SILENT


def _check_api(health: Health) -> None:
    if health.api not in ACCEPTED_APIS:
        raise NoConnection(
            Situation.AGENT_TOO_OLD,
            "The agent of this workspace does not fit this server. Use stop_workspace, then start_workspace: a restart "
            "updates it.",
        )


def _is_same(row: Place | None, place: Place) -> bool:
    if row is None or row.status != "running" or row.agent_state == "unreachable" or row.operation == "stop":
        return False
    return _is_same_address(row, place)


def _is_same_address(row: Place, place: Place) -> bool:
    return (row.generation, row.endpoint) == (place.generation, place.endpoint)


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
