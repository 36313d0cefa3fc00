"""The tool interface of the loop: description, execution, output, and the set of tools a step may use.

The loop knows no tool by name. A tool keeps no state between calls: what a call needs comes with its `ToolContext`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import Json, Part
from rookery.domain.content import shell_programs
from rookery.llm import types as llm
from rookery.runtime.clock import Clock, Deadline
from rookery.telemetry.log import get_logger

log = get_logger("loop.tool")

# Shows a live part. Never waits.
Publish = Callable[[Role, Part], None]
# Called on progress, with the monotonic time until which silence is acceptable; None: no tool runs.
OnProgress = Callable[[float | None], None]

T = TypeVar("T")


class CancelReason(StrEnum):
    """Why a task is cancelled. Only `user` means that its effects are unwanted."""

    USER = "user"
    SUPERSEDED = "superseded"
    LEASE_LOST = "lease_lost"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"


class Cancellation:
    """Holds the reason of a cancellation. It is set before the task is cancelled, for its tools to read."""

    __slots__ = ("reason",)

    def __init__(self, reason: CancelReason | None = None) -> None:
        self.reason = reason


class ToolSource(StrEnum):
    """Who executes a tool: the worker, an MCP server, one of the workspace, the API client, the model provider."""

    BUILTIN = "builtin"
    MCP = "mcp"
    WORKSPACE_MCP = "workspace_mcp"
    DYNAMIC = "dynamic"
    PROVIDER = "provider"


class Replay(StrEnum):
    """How a call is run again after a crash.

    `safe`: it may simply run twice. `token`: the tool passes the replay token on, and the receiver returns the first
    answer again. `ledger`: the loop records the start, and does not start the call twice.
    """

    SAFE = "safe"
    TOKEN = "token"  # noqa: S105 - not a password
    LEDGER = "ledger"


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as models and the loop see it. `deadline_seconds`: how long a call may take, unless it asks for more.

    `shell_argument` names the argument that is shell text: users are shown which programs it runs. `rule_name` is the
    tool's name in approval rules, if that differs from its name.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    source: ToolSource = ToolSource.BUILTIN
    server_id: UUID | None = None
    exclusive: bool = False
    serial: bool = False
    stop_after: bool = False
    needs_workspace: bool = False
    read_only: bool = False
    replay: Replay = Replay.SAFE
    deadline_seconds: float | None = None
    shell_argument: str | None = None
    rule_name: str = ""

    @property
    def label(self) -> str:
        """The name in metrics. Models invent names and servers choose theirs, so foreign names share one label."""
        return self.name if self.source is ToolSource.BUILTIN else str(self.source)


class ToolCall(msgspec.Struct, frozen=True):
    """A call that passed all checks. `input` is the JSON text of an object; `name` is the tool's current name."""

    id: str
    name: str
    input: Raw


class Media(msgspec.Struct, frozen=True):
    """Bytes for the model to look at. The last two fields let a client recognize a stored file as the same picture."""

    data: bytes
    mime_type: str
    text: str = ""
    attachment_file_id: UUID | None = None
    attachment_name: str | None = None


class Attachment(msgspec.Struct, frozen=True):
    """A stored file for the user."""

    file_id: UUID
    media_type: str
    name: str | None = None


class ToolOutput(msgspec.Struct, frozen=True):
    """The output of a call: an object, or text (bytes are text in any encoding, read as UTF-8)."""

    value: Mapping[str, Json] | str | bytes = ""
    is_error: bool = False
    media: Media | None = None
    attachments: tuple[Attachment, ...] = ()
    provider_metadata: Mapping[str, Json] = {}


class KeepResult(Protocol):
    def __call__(self, call_id: str, token: UUID, output: ToolOutput) -> Awaitable[str | None]:
        """Store an output that is too large for the model where it can read it. Return the path, or None.

        Never fails, and takes a bounded time. A repeated token stores nothing twice.
        """


async def keep_nowhere(call_id: str, token: UUID, output: ToolOutput) -> str | None:
    return None


class LiveOutput(Protocol):
    def __call__(self, text: str, *, reset: bool = False) -> None:
        """Show this piece of output now; `reset` replaces what was shown before. Never fails, never waits."""


class Services:
    """Services for the tools of a step (workspace, files, ...), looked up by type."""

    def __init__(self, *services: object) -> None:
        self._services = {type(service): service for service in services}

    def get(self, kind: type[T]) -> T:
        """Return the service of exactly this type. Raises `LookupError` if the step has none."""
        found = self._services.get(kind)
        if not isinstance(found, kind):
            raise LookupError(f"This turn has no {kind.__name__}.")
        return found


class BatchView(msgspec.Struct):
    """The batch of a call: the names of all calls, and by call id which have ended and whether with an error.

    When a `serial` tool runs, all calls that are not serial have ended. Rejected calls count as errors.
    """

    names: tuple[str, ...] = ()
    errors: dict[str, bool] = {}


class CallTimer:
    """The deadline of one call, which the tool may move within the limit set at its start."""

    __slots__ = ("_clock", "_deadline", "_latest", "_on_change", "due")

    def __init__(self, clock: Clock, *, seconds: float, max_seconds: float, on_change: Callable[[], None]) -> None:
        self._clock = clock
        self._on_change = on_change
        self._deadline: Deadline | None = None
        self._latest = clock.monotonic() + max_seconds
        self.due = min(clock.monotonic() + seconds, self._latest)

    def start(self) -> Deadline:
        self._deadline = self._clock.deadline(self.due - self._clock.monotonic(), "tool")
        return self._deadline

    def set(self, seconds: float) -> None:
        now = self._clock.monotonic()
        self.due = min(now + seconds, self._latest)
        if self._deadline is not None:
            self._deadline.reset(self.due - now)
        self._on_change()


@dataclass(slots=True, kw_only=True)
class ToolContext:
    """The context of one call.

    `replay_token` is the same whenever this call is run again: the idempotency key of everything it does. `turn_id` is
    the message that began the turn.
    """

    chat_id: ChatId
    call_id: str
    replay_token: UUID
    clock: Clock
    new_id: Callable[[], UUID]
    publish: LiveOutput
    timer: CallTimer
    cancellation: Cancellation = field(default_factory=Cancellation)
    services: Services = field(default_factory=Services)
    batch: BatchView = field(default_factory=BatchView)
    owner_id: UUID | None = None
    turn_id: int | None = None
    context_limit: int | None = None

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why this call is being cancelled; None while it is not, or when its deadline is the reason."""
        return self.cancellation.reason

    @property
    def deadline(self) -> float:
        """When the call is stopped, in monotonic time."""
        return self.timer.due

    def set_deadline(self, seconds: float) -> None:
        """Extend the deadline to this long from now, for a call that knows its duration.

        Bounded by the server's maximum.
        """
        self.timer.set(seconds)


class Tool(Protocol):
    """A tool. It must be cancellable at every await; its cleanup is bounded, or the task is abandoned."""

    @property
    def spec(self) -> ToolSpec: ...

    def run(self, ctx: ToolContext, call: ToolCall) -> Awaitable[ToolOutput]: ...


class LedgerState(StrEnum):
    NEW = "new"
    UNFINISHED = "unfinished"
    FINISHED = "finished"


class LedgerRun(msgspec.Struct, frozen=True):
    """A run in the ledger. `content` of a finished run is what `Ledger.finish` was given."""

    state: LedgerState
    content: str | None = None


class Ledger(Protocol):
    """Remembers across crashes which calls were started, and their results. Its errors fail the whole batch."""

    async def begin(self, token: UUID, *, chat_id: ChatId, message_id: int, call_id: str, tool_name: str) -> LedgerRun:
        """Record the start of the run; only the first caller gets `new`."""

    async def finish(self, token: UUID, content: str) -> None:
        """Store the result: JSON text of message parts as `domain.chat.parts.encode` makes it, valid for jsonb."""


class ToolSet:
    """The tools of one step, in the order of registration: the order is part of the prompt's prefix.

    `active` are the names sent to the model, none if empty. `allow_inactive` may be called without having been sent.
    `declared` are tools that run in the client. Aliases map names found in old history to current ones.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        active: Collection[str],
        declared: Iterable[ToolSpec] = (),
        allow_inactive: Collection[str] = (),
        aliases: Mapping[str, str] = {},
    ) -> None:
        self.active = frozenset(active)
        self._allow_inactive = frozenset(allow_inactive)
        self._aliases = dict(aliases)
        self._tools: dict[str, Tool] = {}
        self._specs: dict[str, ToolSpec] = {}
        for tool in tools:
            if self._register(tool.spec):
                self._tools[tool.spec.name] = tool
        for spec in declared:
            self._register(spec)

    def _register(self, spec: ToolSpec) -> bool:
        taken = self._specs.get(spec.name)
        if taken is not None:
            log.warning("tool_name_taken", tool=spec.name, kept=taken.source, dropped=spec.source)
            return False
        self._specs[spec.name] = spec
        return True

    def canonical(self, name: str) -> str:
        return self._aliases.get(name, name) if name not in self._specs else name

    def find(self, name: str) -> Tool | None:
        """Return the tool that runs here under this name or alias."""
        return self._tools.get(self.canonical(name))

    def find_spec(self, name: str) -> ToolSpec | None:
        return self._specs.get(self.canonical(name))

    def find_problem(self, name: str) -> str | None:
        """Return why a call of this name cannot run here."""
        canonical = self.canonical(name)
        spec = self._specs.get(canonical)
        if spec is None:
            return f"There is no tool {canonical}."
        has_runner = canonical in self._tools
        is_allowed = canonical in self.active or canonical in self._allow_inactive
        if not is_allowed and not (has_runner and spec.source is ToolSource.PROVIDER):
            return f"{canonical} is not active in this turn."
        return None if has_runner else f"{canonical} cannot be run by this server."

    def server_id(self, name: str) -> UUID | None:
        spec = self.find_spec(name)
        return None if spec is None else spec.server_id

    def shell_commands(self, name: str, args: Raw) -> tuple[tuple[str, ...], ...] | None:
        """Return which programs a call runs, for users; None when it runs none, or that is unclear."""
        spec = self.find_spec(name)
        if spec is None or spec.shell_argument is None:
            return None
        given = parts.json_value(args)
        text = given.get(spec.shell_argument) if isinstance(given, dict) else None
        return shell_programs.parsed_commands(text) if isinstance(text, str) else None

    def label(self, name: str) -> str:
        spec = self.find_spec(name)
        return "unknown" if spec is None else spec.label

    def is_exclusive(self, name: str) -> bool:
        spec = self.find_spec(name)
        return spec is not None and spec.exclusive

    @property
    def dynamic_names(self) -> frozenset[str]:
        return self._names(lambda spec: spec.source is ToolSource.DYNAMIC)

    @property
    def exclusive_names(self) -> frozenset[str]:
        return self._names(lambda spec: spec.exclusive)

    @property
    def stop_after_names(self) -> frozenset[str]:
        return self._names(lambda spec: spec.stop_after)

    def _names(self, holds: Callable[[ToolSpec], bool]) -> frozenset[str]:
        return frozenset(spec.name for spec in self._specs.values() if holds(spec))

    def definitions(self) -> tuple[llm.Tool, ...]:
        """Return the active functions as the model sees them. The wires declare the provider's own tools."""
        return tuple(
            llm.Tool(name=spec.name, description=spec.description, input_schema=object_schema(spec.input_schema))
            for spec in self._specs.values()
            if spec.name in self.active and spec.source is not ToolSource.PROVIDER
        )


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema in the form that all providers accept: of an object, with `properties`, and `required` only
    if it is not empty."""
    shaped = {**schema, "type": "object"}
    if not isinstance(shaped.get("properties"), dict):
        shaped["properties"] = {}
    if not shaped.get("required"):
        shaped.pop("required", None)
    return shaped
