"""The interface of drivers: their input, results and errors.

Every action is idempotent, because another replica repeats an operation whose replica has died. The start of a running
boot succeeds, and so does the stop of a workspace that does not run.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

import msgspec

from rookery.workspaces import network_levels
from rookery.workspaces.network_levels import Network

MAX_MESSAGE_CHARS = 4000

# Values of `DriverError.code`, stored in `workspaces.error_code`.
ErrorCode = Literal[
    "driver_unavailable",  # this machine lacks bubblewrap, user namespaces, or an ssh client
    "invalid_workspace",  # the driver refuses a part of the template, for example a bind of the server's data
    "sandbox_failed",  # bubblewrap ended before the agent ran
    "agent_exited",  # the agent ended before it responded
    "agent_timeout",  # the agent did not respond in time
    "python_missing",  # no Python >= 3.9 on the workspace's machine
    "stop_failed",  # a process of the workspace still runs
    "delete_failed",  # some of its files could not be removed
    "ssh_auth",
    "ssh_hostkey",
    "ssh_failed",  # any other failure of the connection
]


class DriverError(Exception):
    """Raised when an action of a driver fails. The message is for users. `code` is stored with the workspace."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        message = _storable(message)
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message

    @property
    def advice(self) -> str:
        """Return the message, and the fix if one is known."""
        return self.message


def _storable(message: str) -> str:
    """Replace characters that the database refuses. The message may quote output of a sandbox or another machine."""
    whole = message.encode("utf-8", "replace").decode()
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")[:MAX_MESSAGE_CHARS]


class DriverUnavailable(DriverError):
    """Raised when this machine cannot run workspaces of the driver. `fix` tells the operator what to do."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__("driver_unavailable", message)
        self.fix = fix

    @property
    def advice(self) -> str:
        message = f"{self.message[:1].upper()}{self.message[1:].rstrip('.')}."
        return _storable(f"{message} {self.fix}".strip())


class Log(Protocol):
    """The progress log of an action. Call it in the event loop with one line without a newline. It never blocks."""

    def __call__(self, line: str, /) -> None: ...


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A script of the template, with its time limit."""

    text: str
    timeout_s: float


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest's `[sandbox]`. Binds are absolute paths of the host, with the same path in the sandbox."""

    enabled: bool = True  # ssh only: a local workspace is always confined
    network: Network = network_levels.DEFAULT
    hosts: tuple[str, ...] = ()  # with `hosts`: the hosts that may be reached
    nested: bool = True
    ro_binds: tuple[str, ...] = ()
    rw_binds: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest's `[limits]`. 0 means no limit."""

    memory_mb: int = 0
    cpus: float = 0
    pids: int = 0
    disk_mb: int = 0


class Ssh(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest's `[ssh]`. `identity` is the text of the private key, not its name."""

    host: str
    known_hosts: str  # lines in the format of the file
    user: str | None = None
    port: int = 22
    jump: str | None = None  # user@host:port, checked against the same known_hosts
    identity: str | None = None  # None: the ssh agent and the default keys of the server


class WorkspaceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a driver. `start` needs all fields.

    The other actions need only `id`, `generation`, `token`, and for the ssh driver `ssh`.
    """

    id: str
    generation: int
    token: str
    name: str = ""
    directory: str = "~"
    env: dict[str, str] = msgspec.field(default_factory=dict)
    parameters: dict[str, str] = msgspec.field(default_factory=dict)  # without the prefix ROOKERY_PARAM_
    secrets: dict[str, str] = msgspec.field(default_factory=dict)  # sent to the running agent, never written to disk
    startup: Script | None = None
    shutdown: Script | None = None
    files: bytes | None = None  # a tar archive, gzipped or not, of the content of `files/`; names relative to the home
    context_sources: tuple[str, ...] = ()
    sandbox: Sandbox = Sandbox()
    limits: Limits = Limits()
    ssh: Ssh | None = None

    def __repr__(self) -> str:
        # The token, the ssh key and parameter values must not appear in logs or tracebacks.
        return f"WorkspaceSpec(id={self.id!r}, generation={self.generation})"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a started agent, and the paths in its workspace.

    `url` is `unix:///path` on this node, `tcp://host:port`, or `ssh-unix://host/path`. It is stored for display and to
    detect changes. Connections are made by `Driver.connector`.
    """

    url: str
    home: str
    directory: str
    network: Network  # the granted level, which may be lower than the template requests
    warnings: tuple[str, ...] = ()  # shown with the workspace, for example that it is not confined


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a boot: `alive` if its process runs, `answers` if its agent responds and accepts the token."""

    alive: bool
    answers: bool = False
    pid: int | None = None
    generation: int | None = None  # the boot of the sandbox that was found
    detail: str = ""


class Connector(Protocol):
    """The access of this replica to one agent.

    Call `prepare` before the first connection, and after a failed one. It opens a tunnel if one is needed. Then connect
    with `open`, or through `unix_path`, for example with aiohttp's `UnixConnector`.
    """

    @property
    def unix_path(self) -> str | None: ...
    async def prepare(self) -> None: ...
    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...
    async def close(self) -> None: ...


class Driver(Protocol):
    async def start(self, ws: WorkspaceSpec, log: Log) -> Endpoint:
        """End agents of other boots, start this boot, and wait until its agent responds.

        A later start, stop or delete finds everything that a canceled start has left.
        """
        ...

    async def stop(self, ws: WorkspaceSpec, grace: float) -> None:
        """Request a shutdown of the agent, and kill it after `grace` seconds. Return when all processes have ended."""
        ...

    async def delete(self, ws: WorkspaceSpec) -> None:
        """Kill the workspace and remove its files."""
        ...

    async def probe(self, ws: WorkspaceSpec) -> Probe: ...
    def connector(self, ws: WorkspaceSpec) -> Connector: ...


class Found(msgspec.Struct, frozen=True):
    """A sandbox that runs on this node. Its row may be missing or different."""

    workspace_id: str
    generation: int
    pid: int


class Inventory(Protocol):
    """The interface of the local driver for the reconciler, in addition to `Driver`."""

    async def list_running(self) -> list[Found]: ...
    async def stop_stray(self, found: Found) -> None:
        """Kill a sandbox that has no row. Keep its files."""
        ...
