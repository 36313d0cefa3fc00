"""What the modules of the agent share: configuration, clocks, the log, and the registries they meet in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.config import Config
from rookery.workspaces.agent.journal import Journal
from rookery.workspaces.agent.locks import PathLocks
from rookery.workspaces.agent.touched import Touched

VERSION = "0.1.0"
API = 1  # the wire's number; the server accepts its own and the one before


@dataclass
class Agent:
    """One run of the agent. Handlers get it in their module's `register(router, agent)`."""

    config: Config
    run_dir: Path
    token: str
    log: Callable[[str], None]
    journal: Journal
    clock: Clock = field(default_factory=Clock)
    touched: Touched = field(default_factory=Touched)
    locks: PathLocks = field(default_factory=PathLocks)
