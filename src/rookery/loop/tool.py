"""The tool interface of the loop: specification, context and output of a tool, and the set of tools of a step.

The loop knows no tool by name. A tool keeps no state between calls; everything a call needs is in its `ToolContext`.
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

# Publishes a live part. Never waits.
Publish = Callable[[Role, Part], None]
# Reports progress, with the monotonic time until which silence is acceptable; None if no tool runs.
OnProgress = Callable[[float | None], None]

T = TypeVar("T")


class CancelReason(StrEnum):
    """The reason of a cancellation. Only `user` means that the effects of the task are unwanted."""

    USER = "user"
    SUPERSEDED = "superseded"
    LEASE_LOST = "lease_lost"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"


class Cancellation:
    """Holds the reason of a cancellation, which is set before the task is cancelled."""

    __slots__ = ("reason",)

    def __init__(self, reason: CancelReason | None = None) -> None:
        self.reason = reason


class ToolSource(StrEnum):
    """The executor of a tool: worker, MCP server, MCP server in the workspace, API client, or model provider."""

    BUILTIN = "builtin"
    MCP = "mcp"
    WORKSPACE_MCP = "workspace_mcp"
    DYNAMIC = "dynamic"
    PROVIDER = "provider"


class Replay(StrEnum):
    """The rule for repeating a call after a crash.

    `safe`: the call may run twice. `token`: the tool sends the replay token to a receiver, which answers a repeated
    token with its first answer. `ledger`: the loop records the start, and never starts the call twice. `resume`: the
    loop records the start and what the tool keeps, and starts the tool again with it; the tool decides.
    """

    SAFE = "safe"
    TOKEN = "token"  # noqa: S105 - not a password
    LEDGER = "ledger"
    RESUME = "resume"


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The specification of a tool. `deadline_seconds` is the time limit of a call; the call may extend it.

    `shell_argument` is the name of the argument with a shell command; users are shown the programs that it runs.
    `rule_name` is the tool's name in approval rules, if it differs from `name`.
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
        """The label in metrics. All tools that are not built in share one label per source, to limit the labels."""
        return self.name if self.source is ToolSource.BUILTIN else str(self.source)


class ToolCall(msgspec.Struct, frozen=True):
    """A call that has passed all checks. `input` is a JSON object; `name` is the tool's current name."""

    id: str
    name: str
    input: Raw


class Media(msgspec.Struct, frozen=True):
    """An image or other media for the model. The last two fields identify the same media as a stored file."""

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
    """The output of a call: an object or a text. Bytes are decoded as UTF-8."""

    value: Mapping[str, Json] | str | bytes = ""
    is_error: bool = False
    media: Media | None = None
    attachments: tuple[Attachment, ...] = ()
    provider_metadata: Mapping[str, Json] = {}


class KeepResult(Protocol):
    def __call__(self, call_id: str, token: UUID, output: ToolOutput) -> Awaitable[str | None]:
        """Store an output that is too large for the prompt, where the model can read it. Return the path, or None.

        It never raises and takes a bounded time. A repeated token stores nothing twice.
        """


async def keep_no_result(call_id: str, token: UUID, output: ToolOutput) -> str | None:
    return None


class LiveOutput(Protocol):
    def __call__(self, text: str, *, reset: bool = False) -> None:
        """Show a piece of output live. With `reset`, it replaces the earlier pieces. It never raises or waits."""


class Services:
    """Services for the tools of a step (workspace, files, ...), looked up by type."""

    def __init__(self, *services: object) -> None:
        self._services = {type(service): service for service in services}

    def add(self, service: object) -> None:
        """Add a service that exists only after the tools were opened."""
        self._services[type(service)] = service

    def get(self, kind: type[T]) -> T:
        """Return the service of exactly this type. Raise `LookupError` if the step has none."""
        found = self._services.get(kind)
        if not isinstance(found, kind):
            raise LookupError(f"This turn has no {kind.__name__}.")
        return found


class EarlierRun(msgspec.Struct, frozen=True):
    """An earlier run of the same call, which has started and has no result.

    `state` is the JSON that the run has kept. `answer` is the user's answer to its question, as JSON.
    """

    state: str | None = None
    answer: str | None = None


class KeepState(Protocol):
    def __call__(self, state: msgspec.Struct, *, question: msgspec.Struct | None = None) -> Awaitable[None]:
        """Store the state with which another process can continue the call, and the question for the user, if there is
        one.

        It replaces the previous state, and deletes the answer to an earlier question.
        """


async def keep_no_state(state: msgspec.Struct, *, question: msgspec.Struct | None = None) -> None:
    raise LookupError("Only a tool with the replay rule `resume` can keep a state.")


class WaitsForUser(Exception):
    """Raised by a tool whose call waits for the answer of the user. The call stays open, without a result.

    The tool has kept its state and the question before.
    """


class BatchView(msgspec.Struct):
    """The batch of a call: the tool names of all calls, and whether each ended call is an error, by call id.

    Serial tools run after all other calls have ended. Rejected calls count as errors.
    """

    names: tuple[str, ...] = ()
    errors: dict[str, bool] = {}
    call_ids: tuple[str, ...] = ()

    def succeeded(self) -> tuple[str, ...]:
        """Return the tools of the calls that have ended without an error."""
        return tuple(
            name for name, call_id in zip(self.names, self.call_ids, strict=True) if self.errors.get(call_id) is False
        )


class CallTimer:
    """The deadline of one call, which the tool may extend up to `max_seconds` after the start."""

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

    `replay_token` is the idempotency key of the call; a repetition after a crash has the same one. `turn_id` is the id
    of the message that began the turn. `earlier` is set if a run of the same call has started before.
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
    earlier: EarlierRun | None = None
    keep_state: KeepState = keep_no_state

    @property
    def cancel_reason(self) -> CancelReason | None:
        """The reason of the call's cancellation; None if it is not cancelled, or if its deadline passed."""
        return self.cancellation.reason

    @property
    def deadline(self) -> float:
        """The monotonic time at which the call is cancelled."""
        return self.timer.due

    def set_deadline(self, seconds: float) -> None:
        """Set the deadline to this many seconds from now, but not beyond the server's maximum."""
        self.timer.set(seconds)


class Tool(Protocol):
    """A tool. It must end soon after a cancellation. If it does not, `UnfinishedTools` takes over its task."""

    @property
    def spec(self) -> ToolSpec: ...

    def run(self, ctx: ToolContext, call: ToolCall) -> Awaitable[ToolOutput]: ...


class LedgerState(StrEnum):
    NEW = "new"
    UNFINISHED = "unfinished"
    FINISHED = "finished"


class LedgerRun(msgspec.Struct, frozen=True):
    """A run in the ledger. `content` is the result of a finished run, as stored by `Ledger.finish`.

    `earlier` is the stored state of an unfinished run.
    """

    state: LedgerState
    content: str | None = None
    earlier: EarlierRun = EarlierRun()


class Ledger(Protocol):
    """Records the start and the result of calls, so that they survive a crash. Its errors fail the whole batch."""

    async def begin(self, token: UUID, *, chat_id: ChatId, message_id: int, call_id: str, tool_name: str) -> LedgerRun:
        """Record the start of the run. Only the first call for a token returns the state `new`."""

    async def finish(self, token: UUID, content: str) -> None:
        """Store the result: the JSON of message parts from `domain.chat.parts.encode`."""

    async def keep(self, token: UUID, state: msgspec.Struct, *, question: msgspec.Struct | None) -> None:
        """Store the state with which an unfinished run can be continued, and the question whose answer it needs."""


class ToolSet:
    """The tools of one step, in the order of registration, which is part of the prompt's prefix.

    `active` are the names of the tools that the model is sent. `allow_inactive` are names that may be called although
    they were not sent. `declared` are tools that the client runs. Aliases map names in old histories to current names.
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

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(self._specs.values())

    def with_search(self, tool: Tool, *, deferred: Collection[str]) -> ToolSet:
        """Return the same tools with one that finds the deferred ones, which are not sent but may be called.

        It stands before the tools of servers.
        """
        found = ToolSet(active=(self.active - frozenset(deferred)) | {tool.spec.name}, aliases=self._aliases)
        found._allow_inactive = self._allow_inactive | frozenset(deferred)
        found._tools = {**self._tools, tool.spec.name: tool}
        builtin = {name: spec for name, spec in self._specs.items() if spec.source is ToolSource.BUILTIN}
        found._specs = {**builtin, tool.spec.name: tool.spec, **self._specs}
        return found

    def canonical(self, name: str) -> str:
        return self._aliases.get(name, name) if name not in self._specs else name

    def find(self, name: str) -> Tool | None:
        """Return the tool that this server runs under this name or alias."""
        return self._tools.get(self.canonical(name))

    def find_spec(self, name: str) -> ToolSpec | None:
        return self._specs.get(self.canonical(name))

    def find_problem(self, name: str) -> str | None:
        """Return why this server cannot run a call of this name; None if it can."""
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
        """Return the programs that a call runs, to show them to users; None if it runs none or they are unclear."""
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
        """Return the definitions of the active tools for the model, except the provider's own tools."""
        return tuple(
            llm.Tool(name=spec.name, description=spec.description, input_schema=object_schema(spec.input_schema))
            for spec in self._specs.values()
            if spec.name in self.active and spec.source is not ToolSource.PROVIDER
        )


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema in the form that all providers accept.

    It describes an object, has `properties`, and has `required` only if that is not empty.
    """
    shaped = {**schema, "type": "object"}
    if not isinstance(shaped.get("properties"), dict):
        shaped["properties"] = {}
    if not shaped.get("required"):
        shaped.pop("required", None)
    return shaped
