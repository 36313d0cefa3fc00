"""The shared state of the agent's modules: configuration, clocks, the log, and registries."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.config import Config
from rookery.workspaces.agent.journal import Journal
from rookery.workspaces.agent.locks import PathLocks
from rookery.workspaces.agent.log import Log
from rookery.workspaces.agent.process.children import Children
from rookery.workspaces.agent.process.processes import Processes
from rookery.workspaces.agent.scripts import Scripts
from rookery.workspaces.agent.touched_paths import Touched

VERSION = "0.1.0"
API = 2  # the protocol version; the server accepts its own and the previous one


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
    touched: Touched = field(default_factory=Touched)
    locks: PathLocks = field(default_factory=PathLocks)
    read_only_prefix: list[str] | None = None  # the command that enters the read-only view, once it was determined
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a background task. Its failure is logged, and it ends with the agent."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log(f"background work failed: {task.exception()!r}")
