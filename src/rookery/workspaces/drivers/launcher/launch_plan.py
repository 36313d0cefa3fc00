"""The plan: the input of the launcher, as JSON on standard input."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    """One sandbox to start. All paths are paths of the machine.

    `directory` holds `home/` and `run/`, which belong to the workspace, and the launcher's own files `sandbox.json` and
    `sandbox.log`.
    """

    workspace_id: str
    generation: int
    directory: str
    agent: str  # the zipapp
    python: str
    python_prefix: str | None = None  # bound too, if the interpreter is not below /usr
    bwrap: str | None = None  # None: start an unconfined process
    bwrap_libraries: str | None = None  # its bundled libraries; both are bound for nested sandboxes
    uid: int | None = None  # the user of the sandbox, if the launcher runs as root
    network: str = "none"  # `host` is the network of the machine; others have their own namespace
    egress: str | None = None  # for `hosts` and `public`: the directory of the egress socket
    nested: bool = True
    ro_binds: list[str] = field(default_factory=list)
    rw_binds: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # paths of the server, hidden in all bound trees
    env: dict[str, str] = field(default_factory=dict)
    tmp_mb: int = 1024
    memory_mb: int = 0
    cpus: float = 0
    pids: int = 0
    disk_mb: int = 0
    cgroup: str | None = None
    # The sandbox check runs this command instead of the agent, and waits for its end.
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
    """Raised when the launcher fails. The message is for users. `code` is an error code of drivers."""

    def __init__(self, message: str, code: str = "sandbox_failed") -> None:
        super().__init__(message)
        self.code = code
