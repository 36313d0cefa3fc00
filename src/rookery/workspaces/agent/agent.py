"""What the modules of the agent share: configuration, clocks, the log, and the registries they meet in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rookery.workspaces.agent.config import Config
from rookery.workspaces.agent.locks import PathLocks
from rookery.workspaces.agent.touched import Touched

VERSION = "0.1.0"
API = 1  # the wire's number; the server accepts its own and the one before


@dataclass(frozen=True)
class Clock:
    """Where time comes from; tests bring their own."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


@dataclass
class Agent:
    """One run of the agent. Handlers get it in their module's `register(router, agent)`."""

    config: Config
    run_dir: Path
    token: str
    log: Callable[[str], None]
    clock: Clock = field(default_factory=Clock)
    touched: Touched = field(default_factory=Touched)
    locks: PathLocks = field(default_factory=PathLocks)
