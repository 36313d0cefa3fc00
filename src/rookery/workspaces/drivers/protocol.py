"""The contract of a driver: what it is told about a workspace, what it gives back, how it fails.

Every action is idempotent, because an operation whose replica died is run again by another: the start of a generation
that already answers is success, and so is the stop of one that does not run.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

import msgspec

from rookery.workspaces import networks
from rookery.workspaces.networks import Network

MAX_MESSAGE_CHARS = 4000

# What `DriverError.code` can be; it ends up in `workspaces.error_code`.
ErrorCode = Literal[
    "driver_unavailable",  # this machine cannot do it: no bubblewrap, no user namespaces, no ssh client
    "invalid_workspace",  # the template asks for what the driver refuses, for example a bind of the server's data
    "sandbox_failed",  # bubblewrap ended before the agent ran
    "agent_exited",  # the agent ended before it answered
    "agent_timeout",  # the agent did not answer in time
    "python_missing",  # no Python >= 3.9 where the workspace is
    "stop_failed",  # something of the workspace still runs
    "delete_failed",  # some of its files could not be removed
    "ssh_auth",
    "ssh_hostkey",
    "ssh_failed",  # any other failure of the connection
]


class DriverError(Exception):
    """An action of a driver failed. The message is a sentence for people; `code` is stored with the workspace."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        message = _storable(message)
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message

    @property
    def advice(self) -> str:
        """The message, with what helps where that is known."""
        return self.message


def _storable(message: str) -> str:
    """It may quote what a sandbox or another machine said, where anything can be, also what no database takes."""
    whole = message.encode("utf-8", "replace").decode()
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")[:MAX_MESSAGE_CHARS]


class DriverUnavailable(DriverError):
    """This machine cannot run workspaces of this driver. `fix` says what an operator does about it."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__("driver_unavailable", message)
        self.fix = fix

    @property
    def advice(self) -> str:
        message = f"{self.message[:1].upper()}{self.message[1:].rstrip('.')}."
        return _storable(f"{message} {self.fix}".strip())


class Log(Protocol):
    """Where a driver says what it does. Called from the event loop with one line, without a newline; never blocks."""

    def __call__(self, line: str, /) -> None: ...


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A script of the template, with the time it may take."""

    text: str
    timeout_s: float


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest's `[sandbox]`. Binds are absolute paths of the host, seen at the same place inside."""

    enabled: bool = True  # ssh only: a local workspace is always confined
    network: Network = networks.DEFAULT
    hosts: tuple[str, ...] = ()  # with `hosts`: what may be reached
    nested: bool = True
    ro_binds: tuple[str, ...] = ()
    rw_binds: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest's `[limits]`; 0 is none."""

    memory_mb: int = 0
    cpus: float = 0
    pids: int = 0
    disk_mb: int = 0


class Ssh(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest's `[ssh]`, with the secret filled in: `identity` is the text of a private key."""

    host: str
    known_hosts: str  # lines in the form of the file
    user: str | None = None
    port: int = 22
    jump: str | None = None  # user@host:port, checked against the same known_hosts
    identity: str | None = None  # none: the server's own agent and default keys


class WorkspaceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver is told. `stop`, `delete`, `probe` and `connector` need no more than id, generation and token
    (and `ssh`, for that driver): the rest may be left at its defaults.
    """

    id: str
    generation: int
    token: str
    name: str = ""
    directory: str = "~"
    env: dict[str, str] = msgspec.field(default_factory=dict)
    parameters: dict[str, str] = msgspec.field(default_factory=dict)  # without the prefix ROOKERY_PARAM_
    secrets: dict[str, str] = msgspec.field(default_factory=dict)  # handed to the agent once it answers, never written
    startup: Script | None = None
    shutdown: Script | None = None
    files: bytes | None = None  # a tar archive, gzipped or not, of what `files/` holds; names relative to the home
    context_sources: tuple[str, ...] = ()
    sandbox: Sandbox = Sandbox()
    limits: Limits = Limits()
    ssh: Ssh | None = None

    def __repr__(self) -> str:
        # The token, the key of ssh and the values of parameters belong in no log and no traceback.
        return f"WorkspaceSpec(id={self.id!r}, generation={self.generation})"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a started agent is reached, and how it sees its own place.

    `url` is `unix:///path` on this node, `tcp://host:port`, or `ssh-unix://host/path`; it is stored for people and to
    notice changes. Connections are made by `Driver.connector`, not from it.
    """

    url: str
    home: str
    directory: str
    network: Network  # what it got, which may be less than its template asks for
    warnings: tuple[str, ...] = ()  # shown with the workspace, for example that it is not confined


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What is there now. `alive` is the process of this very generation; `answers` is its health with our token."""

    alive: bool
    answers: bool = False
    pid: int | None = None
    generation: int | None = None  # of what was found, which may be another one
    detail: str = ""


class Connector(Protocol):
    """The way from this replica to one agent.

    Call `prepare` before the first connection and after a failed one: it brings a tunnel up if there must be one, and
    is cheap otherwise. `unix_path` may be used instead of `open` (aiohttp's UnixConnector) once prepared.
    """

    @property
    def unix_path(self) -> str | None: ...
    async def prepare(self) -> None: ...
    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...
    async def close(self) -> None: ...


class Driver(Protocol):
    async def start(self, ws: WorkspaceSpec, log: Log) -> Endpoint:
        """Bring this generation up and wait until its agent answers; end agents of other generations first.

        A cancelled start leaves nothing that a later start, stop or delete does not find.
        """
        ...

    async def stop(self, ws: WorkspaceSpec, grace: float) -> None:
        """Ask the agent to shut down, wait `grace` seconds, then kill. Returns once nothing of it is left."""
        ...

    async def delete(self, ws: WorkspaceSpec) -> None:
        """Stop without grace, and remove its files."""
        ...

    async def probe(self, ws: WorkspaceSpec) -> Probe: ...
    def connector(self, ws: WorkspaceSpec) -> Connector: ...


class Found(msgspec.Struct, frozen=True):
    """A sandbox that runs on this node, whatever the database says."""

    workspace_id: str
    generation: int
    pid: int


class Inventory(Protocol):
    """What the local driver offers to the reconciler, besides `Driver`."""

    async def list_running(self) -> list[Found]: ...
    async def stop_stray(self, found: Found) -> None:
        """Kill a sandbox that has no row. Its files stay."""
        ...
