"""The connections of a replica to MCP servers: one per chat and server, opened on demand and closed when idle.

A turn requests the tools of all its servers at the same time. Lists of tools are cached, so that most turns begin
without a request. After a failure, a server is not contacted for a while, so that it delays one turn and not every
turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from uuid import UUID

import msgspec

from rookery.mcp.call_results import Outcome, Progress, Resume
from rookery.mcp.errors import McpError, Problem, ProblemKind
from rookery.mcp.server_config import ServerConfig
from rookery.mcp.tool_lists import McpTool, ServerTools, ToolList
from rookery.runtime.address_guard import Guard, Lookups
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.log import get_logger

log = get_logger("mcp.connection_pool")

# To connect, to negotiate and to list all pages.
OPEN_SECONDS = 10.0
IDLE_SECONDS = 300.0
SWEEP_SECONDS = 30.0
# A server that failed is asked again after these times.
RETRY_SECONDS = (15.0, 30.0, 60.0, 120.0, 300.0)
MAX_CONNECTIONS = 1_000
MAX_LISTS_BYTES = 64 * 1024 * 1024
MAX_LOOKUPS = 8

OnProgress: TypeAlias = Callable[[Progress], None]
OnTask: TypeAlias = Callable[[str], Awaitable[None]]


class OpenConnection(Protocol):
    """The methods of a `Connection` that this module uses."""

    config: ServerConfig
    is_list_outdated: bool
    instructions: str | None
    protocol_version: str | None

    @property
    def is_usable(self) -> bool: ...

    @property
    def is_parked(self) -> bool: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def list_tools(self) -> ToolList: ...

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        call_key: str,
        output_schema: Mapping[str, Any] | None,
        on_progress: OnProgress | None,
        meta: Mapping[str, Any] | None,
        resume: Resume | None,
        on_task: OnTask | None,
        stop_remote: Callable[[], bool],
    ) -> Outcome: ...

    def drop_parked(self) -> None: ...


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the test of a server."""

    tools: ServerTools
    protocol_version: str | None = None


@dataclass(slots=True)
class _Slot:
    """The connection of one chat to one server."""

    connection: OpenConnection | None = None
    opening: asyncio.Task[OpenConnection] | None = None
    calls: int = 0
    used_at: float = 0.0


@dataclass(slots=True)
class _KnownList:
    """The cached list of tools of a server for one login."""

    found: ToolList | None = None
    instructions: str | None = None
    fresh_until: float = 0.0
    failures: int = 0
    problem: Problem | None = None
    retry_at: float = 0.0


@dataclass(slots=True)
class McpStats:
    connections: int = 0
    lists: int = 0
    opened: int = 0
    failed: int = 0
    calls: int = 0
    list_bytes: int = field(default=0)


class McpConnections:
    """All connections of a replica. `close` ends them."""

    def __init__(self, guard: Guard, clock: Clock, *, max_connections: int = MAX_CONNECTIONS) -> None:
        self._guard = guard
        self._clock = clock
        self._lookups = Lookups(MAX_LOOKUPS)
        self._max_connections = max_connections
        self._slots: dict[tuple[UUID, str], _Slot] = {}
        self._lists: OrderedDict[tuple[str, str], _KnownList] = OrderedDict()
        self._stats = McpStats()
        self._sweeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def stats(self) -> McpStats:
        self._stats.connections = sum(slot.connection is not None for slot in self._slots.values())
        self._stats.lists = len(self._lists)
        return self._stats

    # ------------------------------------------------------------------ lists

    async def tools_of(
        self, chat_id: UUID, servers: Sequence[ServerConfig], *, known: Mapping[str, Sequence[McpTool]] = {}
    ) -> list[ServerTools]:
        """Return the tools of all servers, in their order, within `OPEN_SECONDS`. A failed server raises no error.

        `known` are stored lists by the key of the server. They are used for servers that do not answer.
        """
        found: list[ServerTools | None] = [self._kept(chat_id, server, known) for server in servers]
        missing = [index for index, tools in enumerate(found) if tools is None]
        if missing:
            async with asyncio.TaskGroup() as group:
                asking = [
                    (index, group.create_task(self._ask(chat_id, servers[index], known), name="mcp-list"))
                    for index in missing
                ]
            for index, task in asking:
                found[index] = task.result()
        return [tools for tools in found if tools is not None]

    def _kept(self, chat_id: UUID, server: ServerConfig, known: Mapping[str, Sequence[McpTool]]) -> ServerTools | None:
        """Return the cached tools of a server; None if the server has to be asked."""
        kept = self._lists.get((server.key, server.revision))
        if kept is None:
            return None
        now = self._clock.monotonic()
        if kept.problem is not None and now < kept.retry_at:
            return _failed(server, kept, kept.problem, known)
        slot = self._slots.get((chat_id, server.key))
        is_outdated = slot is not None and slot.connection is not None and slot.connection.is_list_outdated
        if kept.found is None or is_outdated or now >= kept.fresh_until:
            return None
        self._lists.move_to_end((server.key, server.revision))
        return _listed(server, kept.found, kept.instructions)

    async def _ask(self, chat_id: UUID, server: ServerConfig, known: Mapping[str, Sequence[McpTool]]) -> ServerTools:
        kept = self._lists.setdefault((server.key, server.revision), _KnownList())
        try:
            async with self._clock.deadline(OPEN_SECONDS, "mcp open"):
                connection = await self._connection(chat_id, server)
                listed = await connection.list_tools()
        except (McpError, DeadlineExceeded) as error:
            problem = error.problem if isinstance(error, McpError) else _too_slow(error.seconds)
            kept.problem = problem
            kept.retry_at = self._clock.monotonic() + RETRY_SECONDS[min(kept.failures, len(RETRY_SECONDS) - 1)]
            kept.failures += 1
            self._stats.failed += 1
            log.warning("mcp_server_skipped", server=server.shown_url, kind=problem.kind, problem=problem.text)
            return _failed(server, kept, problem, known)
        kept.found, kept.instructions = listed, connection.instructions
        kept.fresh_until = self._clock.monotonic() + listed.ttl_seconds
        kept.problem, kept.failures = None, 0
        self._bound_lists()
        return _listed(server, listed, kept.instructions)

    def _bound_lists(self) -> None:
        size = sum(kept.found.size for kept in self._lists.values() if kept.found is not None)
        while size > MAX_LISTS_BYTES or len(self._lists) > self._max_connections:
            _, dropped = self._lists.popitem(last=False)
            size -= 0 if dropped.found is None else dropped.found.size
        self._stats.list_bytes = size

    def outdate(self, server: ServerConfig) -> None:
        """Contact the server at the next step, even if it has failed recently, because its user has just logged in."""
        self._lists.pop((server.key, server.revision), None)

    # ------------------------------------------------------------------ calls

    async def call(
        self,
        chat_id: UUID,
        server: ServerConfig,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        call_key: str,
        output_schema: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
        meta: Mapping[str, Any] | None = None,
        resume: Resume | None = None,
        on_task: OnTask | None = None,
        stop_remote: Callable[[], bool] = lambda: True,
    ) -> Outcome:
        """Call a tool by its original name. Raise `McpError` if the server could not be called.

        `call_key` identifies the call when it is repeated or continued. `meta` is sent as `_meta`. `on_task` is awaited
        with the id of a task before the task is polled. If the caller is cancelled, `stop_remote` returns whether a
        task of the server is cancelled too.
        """
        self._stats.calls += 1
        for is_last in (False, True):
            connection = await self._connection(chat_id, server)
            # The chat may have been released since its connection was opened.
            slot = self._slots.setdefault((chat_id, server.key), _Slot(connection))
            slot.calls += 1
            try:
                return await connection.call(
                    tool,
                    arguments,
                    call_key=call_key,
                    output_schema=output_schema,
                    on_progress=on_progress,
                    meta=meta,
                    resume=resume,
                    on_task=on_task,
                    stop_remote=stop_remote,
                )
            except McpError as error:
                # The server did not take the call: its session is gone, or the connection was already closed.
                is_dead = error.kind in (ProblemKind.SESSION, ProblemKind.CLOSED) and not error.problem.may_have_run
                if is_last or not is_dead:
                    raise
            finally:
                slot.calls -= 1
                slot.used_at = self._clock.monotonic()
        raise AssertionError("unreachable")

    # ------------------------------------------------------------------ connections

    async def probe(self, server: ServerConfig) -> Probe:
        """Connect and list the tools on a separate connection, for the test of a server."""
        connection = await self._made(server)
        try:
            async with self._clock.deadline(OPEN_SECONDS, "mcp probe"):
                await connection.open()
                listed = await connection.list_tools()
        except (McpError, DeadlineExceeded) as error:
            problem = error.problem if isinstance(error, McpError) else _too_slow(error.seconds)
            version = connection.protocol_version
            return Probe(tools=ServerTools(server=server, problem=problem), protocol_version=version)
        finally:
            await connection.close()
        return Probe(
            tools=_listed(server, listed, connection.instructions), protocol_version=connection.protocol_version
        )

    async def release(self, chat_id: UUID) -> None:
        """Close the connections of a chat immediately."""
        await self._close([key for key in self._slots if key[0] == chat_id])

    async def close(self) -> None:
        """Close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None
        await self._close(list(self._slots))
        if self._closing:
            await asyncio.wait(self._closing)

    async def _connection(self, chat_id: UUID, server: ServerConfig) -> OpenConnection:
        """Return a usable connection. Callers that wait at the same time share one attempt to connect."""
        slot = self._slots.setdefault((chat_id, server.key), _Slot())
        slot.used_at = self._clock.monotonic()
        held = slot.connection
        if held is not None:
            if held.is_usable and held.config.revision == server.revision:
                return held
            slot.connection = None
            self._close_later(held)
        if slot.opening is None:
            self._make_room()
            slot.opening = asyncio.create_task(self._open(slot, server), name=f"mcp-open-{server.slug}")
            slot.opening.add_done_callback(_retrieved)
        return await asyncio.shield(slot.opening)

    async def _open(self, slot: _Slot, server: ServerConfig) -> OpenConnection:
        try:
            connection = await self._made(server)
            try:
                async with self._clock.deadline(OPEN_SECONDS, "mcp connect"):
                    await connection.open()
            except DeadlineExceeded as error:
                raise McpError(_too_slow(error.seconds)) from error
            slot.connection = connection
            self._stats.opened += 1
            return connection
        finally:
            slot.opening = None
            if self._sweeper is None:
                self._sweeper = asyncio.create_task(self._sweep(), name="mcp-sweep")

    async def _made(self, server: ServerConfig) -> OpenConnection:
        # The official package takes a third of a second to import, so it is imported in a thread, and only now.
        make = await asyncio.to_thread(_load)
        return make(server, self._guard, self._clock, lookups=self._lookups)

    def _make_room(self) -> None:
        """If there are too many connections, close the one that was idle for the longest time."""
        if len(self._slots) <= self._max_connections:
            return
        idle = [(slot.used_at, key) for key, slot in self._slots.items() if slot.calls == 0 and slot.opening is None]
        if idle:
            self._forget(min(idle)[1])

    async def _sweep(self) -> None:
        async for _ in self._clock.ticker(SWEEP_SECONDS, "mcp sweep"):
            now = self._clock.monotonic()
            for key, slot in list(self._slots.items()):
                if slot.connection is not None:
                    slot.connection.drop_parked()
                is_busy = slot.calls > 0 or slot.opening is not None
                is_parked = slot.connection is not None and slot.connection.is_parked
                is_lost = slot.connection is not None and not slot.connection.is_usable
                if not is_busy and not is_parked and (is_lost or now - slot.used_at >= IDLE_SECONDS):
                    self._forget(key)

    def _forget(self, key: tuple[UUID, str]) -> None:
        slot = self._slots.pop(key)
        if slot.connection is not None:
            self._close_later(slot.connection)

    def _close_later(self, connection: OpenConnection) -> None:
        task = asyncio.create_task(connection.close(), name="mcp-close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, keys: Sequence[tuple[UUID, str]]) -> None:
        slots = [self._slots.pop(key) for key in keys]
        for slot in slots:
            if slot.opening is not None:
                slot.opening.cancel()
                await asyncio.wait({slot.opening})
        await asyncio.gather(*(slot.connection.close() for slot in slots if slot.connection is not None))


def _load() -> Callable[..., OpenConnection]:
    from rookery.mcp.connection import Connection
    from rookery.mcp.guarded_http import shared_ssl_context

    shared_ssl_context()
    return Connection


def _listed(server: ServerConfig, listed: ToolList, instructions: str | None) -> ServerTools:
    return ServerTools(
        server=server, tools=listed.tools, refused=listed.refused, is_cut=listed.is_cut, instructions=instructions
    )


def _failed(
    server: ServerConfig, kept: _KnownList, problem: Problem, known: Mapping[str, Sequence[McpTool]]
) -> ServerTools:
    if kept.found is not None:
        return msgspec.structs.replace(_listed(server, kept.found, kept.instructions), problem=problem)
    return ServerTools(server=server, tools=tuple(known.get(server.key, ())), problem=problem)


def _too_slow(seconds: float) -> Problem:
    return Problem(ProblemKind.TIMEOUT, f"The server did not answer within {seconds:g} seconds.")


def _retrieved(task: asyncio.Task[OpenConnection]) -> None:
    if not task.cancelled():
        task.exception()  # retrieved, because its callers may have been cancelled
