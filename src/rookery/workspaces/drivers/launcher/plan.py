"""The launcher's input: one plan, as JSON on standard input."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    """One sandbox to start. Paths are those of the machine that it starts on.

    The directory of a workspace holds `home/` and `run/`, which the workspace owns and may change in any way, and
    beside them files it must not touch: `sandbox.json` and `sandbox.log`.
    """

    workspace_id: str
    generation: int
    directory: str
    agent: str  # the zipapp
    python: str
    python_prefix: str | None = None  # bound as well, when the interpreter is not below /usr
    bwrap: str | None = None  # none: an unconfined process with all rights of its user
    bwrap_libraries: str | None = None  # its bundled libraries; the sandbox gets both, for nested sandboxes
    uid: int | None = None  # the user to switch to when started as root
    network: str = "none"  # host: the machine's; every other: its own namespace
    egress: str | None = None  # with hosts and public: the directory of the egress socket
    nested: bool = True
    ro_binds: list[str] = field(default_factory=list)
    rw_binds: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # hidden in all bound trees: the server's own data
    env: dict[str, str] = field(default_factory=dict)
    tmp_mb: int = 1024
    memory_mb: int = 0
    cpus: float = 0
    pids: int = 0
    disk_mb: int = 0
    cgroup: str | None = None
    # Run this instead of the agent, wait for it, and end with its exit status. The machine check uses it.
    command: list[str] | None = None

    @classmethod
    def read(cls, text: bytes) -> Plan:
        given: dict[str, Any] = json.loads(text)
        return cls(**given)

    @property
    def home(self) -> str:
        return f"{self.directory}/home"

    @property
    def run(self) -> str:
        return f"{self.directory}/run"


class LaunchError(Exception):
    """Raised when the sandbox did not start; a sentence for users, with a code that drivers know."""

    def __init__(self, message: str, code: str = "sandbox_failed") -> None:
        super().__init__(message)
        self.code = code
