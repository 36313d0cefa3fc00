"""The shared state of the agent's modules: configuration, clocks, log, file locks, and the paths that chats touched."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.config import Config
from rookery.workspaces.agent.journal import Journal
from rookery.workspaces.agent.log import Log
from rookery.workspaces.agent.process.children import Children
from rookery.workspaces.agent.process.processes import Processes
from rookery.workspaces.agent.scripts import Scripts
from rookery.workspaces.agent.server.http import ChatHeaders

VERSION = "0.1.0"
API = 2  # the protocol version; a server accepts its own version and the previous one
MAX_CHATS = 1024
MAX_PATHS = 2048

Listener = Callable[[frozenset[str], str], None]


class TouchedPaths:
    """The touched paths of each chat, the most recent last. They are in memory only, so a restart forgets them.

    Listeners are called for every touch, even of a known path.
    """

    def __init__(self) -> None:
        self._paths: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self._listeners: list[Listener] = []

    def record(self, chat: ChatHeaders, path: str) -> None:
        """Record an absolute path for the chat and its ancestors. Requests without a chat do not count."""
        if chat.chat_id is None:
            return
        chats = (chat.chat_id, *chat.ancestor_ids)
        for chat_id in chats:
            paths = self._paths.setdefault(chat_id, OrderedDict())
            self._paths.move_to_end(chat_id)
            paths[path] = None
            paths.move_to_end(path)
            if len(paths) > MAX_PATHS:
                paths.popitem(last=False)
        while len(self._paths) > MAX_CHATS:
            self._paths.popitem(last=False)
        for listener in tuple(self._listeners):
            listener(frozenset(chats), path)

    def paths(self, chat_id: str) -> tuple[str, ...]:
        return tuple(self._paths.get(chat_id, ()))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(chat_ids, path)` on every touch, until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


class PathLocks:
    """One lock per real path, which serializes writes of the same file. Unused locks are deleted."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def hold(self, paths: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of these real paths. They are taken in sorted order, which prevents deadlocks."""
        async with AsyncExitStack() as stack:
            for path in sorted(set(paths)):
                await stack.enter_async_context(self._one(path))
            yield

    @asynccontextmanager
    async def _one(self, path: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(path, asyncio.Lock())
        self._users[path] = self._users.get(path, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[path] -= 1
            if self._users[path] == 0:
                del self._users[path], self._locks[path]


@dataclass
class Agent:
    """One run of the agent. Handlers get it in their module's `register(router, agent)`."""

    config: Config
    run_dir: Path
    token: str
    log: Log
    journal: Journal
    children: Children
    processes: Processes
    scripts: Scripts
    clock: Clock = field(default_factory=Clock)
    touched: TouchedPaths = field(default_factory=TouchedPaths)
    locks: PathLocks = field(default_factory=PathLocks)
    read_only_prefix: list[str] | None = None  # the command line that enters the read-only view, once it is known
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a background task. If it fails, the error is logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log(f"a background task failed: {task.exception()!r}")
