"""What a tool is to the loop: its description, how it is run, what it gives back, and the set a turn may use.

The loop knows no tool by name. A tool keeps no state of a turn: what a call needs comes with its `ToolContext`.
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

# Live parts, as they are shown. Never awaits.
Publish = Callable[[Role, Part], None]
# Told whenever something moved: until when (monotonic) silence is no reason to worry, None if just now.
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
    """Where the reason of a cancellation is left before the task is cancelled, for its tools to read."""

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
    """What happens when a call is run again after a crash.

    `safe`: nothing, it may run twice. `token`: the tool hands the replay token on, and whoever gets it answers the
    second time as the first. `ledger`: the loop writes down that it starts, and does not start it twice.
    """

    SAFE = "safe"
    TOKEN = "token"  # noqa: S105 - not a password
    LEDGER = "ledger"


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as models and the loop see it. `deadline_seconds`: how long a call may take, unless it asks for more.

    `shell_argument` names the argument that is shell text: people are shown which programs it runs. `rule_name` is what
    approval rules call the tool, where that is not its name.
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
        """The name in metrics. Models invent names and servers choose theirs; labels stay few."""
        return self.name if self.source is ToolSource.BUILTIN else str(self.source)


class ToolCall(msgspec.Struct, frozen=True):
    """A call that passed all checks. `input` is the JSON text of an object; `name` is the tool's current one."""

    id: str
    name: str
    input: Raw


class Media(msgspec.Struct, frozen=True):
    """Bytes for the model to look at. The last two let a client recognise a stored file as the same picture."""

    data: bytes
    mime_type: str
    text: str = ""
    attachment_file_id: UUID | None = None
    attachment_name: str | None = None


class Attachment(msgspec.Struct, frozen=True):
    """A stored file for people."""

    file_id: UUID
    media_type: str
    name: str | None = None


class ToolOutput(msgspec.Struct, frozen=True):
    """What a call gave: an object, or text (bytes: text in whatever encoding, taken as UTF-8)."""

    value: Mapping[str, Json] | str | bytes = ""
    is_error: bool = False
    media: Media | None = None
    attachments: tuple[Attachment, ...] = ()
    provider_metadata: Mapping[str, Json] = {}


class KeepResult(Protocol):
    def __call__(self, call_id: str, token: UUID, output: ToolOutput) -> Awaitable[str | None]:
        """Keep an output that is too large for the model where it can read it; the path, None when that is nowhere.

        Never fails, and takes a bounded time. The same token again keeps nothing twice.
        """


async def keep_nowhere(call_id: str, token: UUID, output: ToolOutput) -> str | None:
    return None


class LiveOutput(Protocol):
    def __call__(self, text: str, *, reset: bool = False) -> None:
        """Show this piece of output now; `reset` replaces what was shown before. Never fails, never waits."""


class Services:
    """What tools of a turn work with (workspace, files, ...), looked up by its type."""

    def __init__(self, *services: object) -> None:
        self._services = {type(service): service for service in services}

    def get(self, kind: type[T]) -> T:
        """The service of this very type; `LookupError` when the turn has none."""
        found = self._services.get(kind)
        if not isinstance(found, kind):
            raise LookupError(f"This turn has no {kind.__name__}.")
        return found


class BatchView(msgspec.Struct):
    """The batch a call stands in: the names of all calls, and by call id who has settled and whether with an error.

    For a `serial` tool everybody who is not serial has settled. Calls that were rejected count as errors.
    """

    names: tuple[str, ...] = ()
    errors: dict[str, bool] = {}


class CallTimer:
    """The deadline of one call, which the tool may move within the limit of its start."""

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
    """What a tool gets with one call.

    `replay_token` is the same whenever this call is run again: the idempotency key of everything it does.
    `turn_id` is the message that began the turn.
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
        """Ask for this long from now, for a call that knows how long it takes. Bounded by the server's maximum."""
        self.timer.set(seconds)


class Tool(Protocol):
    """Cancellable at every await; what it cleans up then is bounded, or it is left behind."""

    @property
    def spec(self) -> ToolSpec: ...

    def run(self, ctx: ToolContext, call: ToolCall) -> Awaitable[ToolOutput]: ...


class LedgerState(StrEnum):
    NEW = "new"
    UNFINISHED = "unfinished"
    FINISHED = "finished"


class LedgerRun(msgspec.Struct, frozen=True):
    """What the ledger knows of a run. `content` of a finished one is what `Ledger.finish` was given."""

    state: LedgerState
    content: str | None = None


class Ledger(Protocol):
    """Remembers across crashes which calls were begun and what they gave. What it raises fails the whole batch."""

    async def begin(self, token: UUID, *, chat_id: ChatId, message_id: int, call_id: str, tool_name: str) -> LedgerRun:
        """Write down that the run starts; `new` only to the first who says so."""

    async def finish(self, token: UUID, content: str) -> None:
        """Keep the result: JSON text of message parts as `chat.parts.encode` makes it, good for jsonb."""


class ToolSet:
    """The tools of one turn, in the order they are registered: the order is part of the prompt's prefix.

    `active` are the names sent to the model, none if empty. `allow_inactive` may be called without having been sent.
    `declared` are tools that run in the client. Aliases lead from names found in old history to current ones.
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
        """The tool that runs here under this name or alias."""
        return self._tools.get(self.canonical(name))

    def find_spec(self, name: str) -> ToolSpec | None:
        return self._specs.get(self.canonical(name))

    def find_problem(self, name: str) -> str | None:
        """Why a call of this name cannot run here."""
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
        """Which programs a call runs, for people; None when it runs none, or that is not clear."""
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
        """What the model is told: the active functions. The provider's own tools are the wire's business."""
        return tuple(
            llm.Tool(name=spec.name, description=spec.description, input_schema=object_schema(spec.input_schema))
            for spec in self._specs.values()
            if spec.name in self.active and spec.source is not ToolSource.PROVIDER
        )


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema in the form that all providers take: of an object, `properties` there, `required` only if it says
    something."""
    shaped = {**schema, "type": "object"}
    if not isinstance(shaped.get("properties"), dict):
        shaped["properties"] = {}
    if not shaped.get("required"):
        shaped.pop("required", None)
    return shaped
