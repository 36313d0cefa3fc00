"""The tools of MCP servers: their calls, the questions of servers during calls, and the handling of repeated calls.

The tool ledger has a row for each call. After a crash, a task that the server still runs is continued, a call that may
be repeated is repeated, and the outcome of any other call is unknown. A question of the server parks the call until the
user has answered. The answer continues the call, also in another process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat import approvals, elicitation, parts
from rookery.domain.chat.elicitation import Given, Unusable
from rookery.domain.chat.parts import Json
from rookery.domain.content import uploads
from rookery.domain.content.uploads import GIF, JPEG, PNG, WEBP
from rookery.domain.mcp.server import McpServer
from rookery.loop.tool import (
    Attachment,
    CancelReason,
    Media,
    Replay,
    ToolCall,
    ToolContext,
    ToolOutput,
    ToolSource,
    ToolSpec,
    WaitsForUser,
    object_schema,
)
from rookery.loop.tool_batch import OUTCOME_UNKNOWN
from rookery.mcp import tool_names
from rookery.mcp.call_results import CallResult, InputRequired, Outcome, Progress, Resume
from rookery.mcp.connection_pool import OnProgress, OnTask
from rookery.mcp.errors import McpError, ProblemKind
from rookery.mcp.server_config import ServerConfig
from rookery.mcp.tool_lists import McpTool, ServerTools
from rookery.runtime.clock import Clock
from rookery.store.chats import files
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.telemetry.log import get_logger
from rookery.tools.mcp_stats import McpUseStats

log = get_logger("tools.mcp_tools")

# Added to the time that a call may be silent, so that the connection notices the silence first.
GRACE_SECONDS = 30.0
# A task of a server may take as long as the longest call.
TASK_SECONDS = 4 * 3600.0
# What is kept for a call must not be lost while the database restarts: the call cannot be continued without it.
DATABASE_SECONDS = 30.0
AGAIN_SECONDS = 0.5
# How often a task is asked again whose server cannot be reached, and the pauses before.
TASK_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
MAX_STATE_CHARS = 64 * 1024
MAX_ROUNDS = 20
MAX_FILES = 8
MAX_SPECS = 20_000
CALL_KEY = "rookery/call"
INTENT, ARGUMENTS = "model_intent", "properties"
WITHDRAWN = "The user has not agreed to the MCP server {name}, or its entry has changed. Go on without it."
REFUSED = (
    "{name} refuses the key that is set up for it, or wants one and has none. Tell the user, and go on without it."
)
_IMAGES = frozenset({PNG, JPEG, GIF, WEBP})
_LOST = frozenset({ProblemKind.UNREACHABLE, ProblemKind.SESSION, ProblemKind.CLOSED, ProblemKind.TIMEOUT})
_REMOTE_ENDS = frozenset({None, CancelReason.USER})


class Connections(Protocol):
    """The methods of `mcp.connection_pool.McpConnections` that a tool uses."""

    async def call(
        self,
        chat_id: UUID,
        server: ServerConfig,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        call_key: str,
        output_schema: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
        meta: Mapping[str, Any] | None = None,
        resume: Resume | None = None,
        on_task: OnTask | None = None,
        stop_remote: Any = ...,
    ) -> Outcome: ...


class CallState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a call in the tool ledger. `responses` are the user's answers of all rounds.

    `waits`: the call has asked the user, and the server has not been called since then.
    """

    request_state: str | None = None
    task_id: str | None = None
    responses: dict[str, dict[str, Any]] = {}
    rounds: int = 0
    waits: bool = False


_state = msgspec.json.Decoder(CallState)
_given = msgspec.json.Decoder(Given)


async def always(server: McpServer) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class McpCaller:
    """The dependencies that all tools of a step share. `owner_id` is the owner of the chat and of files that servers
    send. `may_call` is asked before each call.
    """

    connections: Connections
    pool: asyncpg.Pool
    clock: Clock
    chat_id: UUID
    owner_id: UUID
    stats: McpUseStats
    may_call: Callable[[McpServer], Awaitable[bool]] = always


class McpServerTool:
    """One tool of a server. `definition` contains the original name."""

    def __init__(
        self, spec: ToolSpec, *, server: McpServer, config: ServerConfig, definition: McpTool, caller: McpCaller
    ) -> None:
        self._spec = spec
        self._server = server
        self._config = config
        self._definition = definition
        self._caller = caller

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def run(self, ctx: ToolContext, call: ToolCall) -> ToolOutput:
        if not await self._caller.may_call(self._server):
            return ToolOutput(WITHDRAWN.format(name=self._server.name), is_error=True)
        try:
            output = await self._run(ctx, self._arguments(call))
        except McpError as error:
            self._caller.stats.calls[str(error.kind)] += 1
            return ToolOutput(self._explained(error), is_error=True)
        except WaitsForUser:
            self._caller.stats.calls["question"] += 1
            raise
        self._caller.stats.calls["error" if output.is_error else "ok"] += 1
        return output

    async def _run(self, ctx: ToolContext, arguments: Mapping[str, Any]) -> ToolOutput:
        state, resume = await self._continued(ctx)
        if state is None:
            log.info("mcp_outcome_unknown", chat_id=ctx.chat_id, server=self._server.slug, call_id=ctx.call_id)
            return ToolOutput(OUTCOME_UNKNOWN, is_error=True)
        outcome = await self._call(ctx, arguments, state, resume)
        if isinstance(outcome, InputRequired):
            return await self._ask(ctx, outcome, state)
        return await self._output(outcome)

    # Repetition

    async def _continued(self, ctx: ToolContext) -> tuple[CallState | None, Resume | None]:
        """Return the state of the call, and the data to continue it; no state if the call must not be repeated."""
        if ctx.earlier is None:
            return CallState(), None
        hints = self._definition.annotations
        may_repeat = bool(hints.read_only or hints.idempotent)
        kept = None if ctx.earlier.state is None else _state.decode(ctx.earlier.state)
        if kept is None:
            return (CallState() if may_repeat else None), None
        if kept.waits:
            if ctx.earlier.answer is None:
                return None, None
            given = _given.decode(ctx.earlier.answer)
            kept = msgspec.structs.replace(kept, responses={**kept.responses, **given.responses}, waits=False)
            # From here on the server may act on the answer, so a crash must not send it a second time.
            await self._keep(ctx, kept)
        elif kept.task_id is None and not may_repeat:
            return None, None
        resume = Resume(responses=kept.responses, request_state=kept.request_state, task_id=kept.task_id)
        return kept, resume

    async def _keep(self, ctx: ToolContext, state: CallState, question: msgspec.Struct | None = None) -> None:
        due = ctx.clock.monotonic() + DATABASE_SECONDS
        while True:
            try:
                await ctx.keep_state(state, question=question)
                return
            except DATABASE_ERRORS as error:
                if ctx.clock.monotonic() >= due:
                    raise
                log.warning("mcp_state_not_kept", error=str(error) or type(error).__name__)
            await ctx.clock.sleep(AGAIN_SECONDS, "mcp-state")

    # The call

    async def _call(
        self, ctx: ToolContext, arguments: Mapping[str, Any], state: CallState, resume: Resume | None
    ) -> Outcome:
        """Call the server, or continue the call. A task of the server outlives the connection, so it is polled
        again.
        """
        task_id = state.task_id

        async def on_task(made: str) -> None:
            nonlocal task_id
            task_id = made
            await self._keep(ctx, msgspec.structs.replace(state, task_id=made, waits=False))
            ctx.set_deadline(TASK_SECONDS)

        if task_id is not None:
            ctx.set_deadline(TASK_SECONDS)
        for pause in (*TASK_PAUSES, None):
            try:
                return await self._caller.connections.call(
                    self._caller.chat_id,
                    self._config,
                    self._definition.name,
                    arguments,
                    call_key=str(ctx.replay_token),
                    output_schema=self._definition.output_schema,
                    on_progress=self._shown(ctx),
                    meta={CALL_KEY: str(ctx.replay_token)},
                    resume=resume,
                    on_task=on_task,
                    stop_remote=lambda: ctx.cancel_reason in _REMOTE_ENDS,
                )
            except McpError as error:
                if task_id is None or pause is None or error.kind not in _LOST:
                    raise
                resume = Resume(task_id=task_id)
            await ctx.clock.sleep(pause, "mcp-task")
        raise AssertionError("the last try returns or raises")

    def _shown(self, ctx: ToolContext) -> OnProgress:
        def show(progress: Progress) -> None:
            ctx.set_deadline(max(self._config.call_seconds + GRACE_SECONDS, ctx.deadline - ctx.clock.monotonic()))
            share = ""
            if progress.total:
                share = f"{min(max(progress.progress / progress.total, 0.0), 1.0):.0%}"
            text = " ".join(each for each in (share, progress.message or "") if each)
            if text:
                ctx.publish(f"{text}\n", reset=True)

        return show

    def _arguments(self, call: ToolCall) -> dict[str, Json]:
        given = parts.json_value(call.input)
        arguments = dict(given) if isinstance(given, dict) else {}
        if self._server.model_intent:
            arguments = unwrapped(arguments, self._definition.input_schema)
        return self._definition.own_arguments(arguments)

    # Questions

    async def _ask(self, ctx: ToolContext, required: InputRequired, state: CallState) -> ToolOutput:
        name = self._server.name
        if state.rounds >= MAX_ROUNDS or len(required.request_state or "") > MAX_STATE_CHARS:
            return ToolOutput(f"{name} asks the user again and again. The call was given up.", is_error=True)
        try:
            asked = elicitation.read(name, required.requests)
        except Unusable as error:
            return ToolOutput(str(error), is_error=True)
        waiting = CallState(
            request_state=required.request_state,
            task_id=required.task_id,
            responses=state.responses,
            rounds=state.rounds + 1,
            waits=True,
        )
        await self._keep(ctx, waiting, asked)
        raise WaitsForUser

    # Results

    async def _output(self, result: CallResult) -> ToolOutput:
        """Return the text of a result. Images and sounds become files of the chat; the model gets the first image."""
        attachments: list[Attachment] = []
        shown: Media | None = None
        notes = [result.text] if result.text else []
        for place, media in enumerate(result.media[:MAX_FILES], start=1):
            name = f"{tool_names.joined(self._server.slug, self._definition.name)}-{place}"
            try:
                mime_type = uploads.detected_type(media.data, name=name)
                stored = await self._store(name, mime_type, media.data)
            except (ValueError, *DATABASE_ERRORS) as error:
                log.warning("mcp_media_left_out", server=self._server.slug, error=str(error) or type(error).__name__)
                notes.append(f"[{media.mime_type}: it cannot be stored]")
                continue
            attachments.append(Attachment(stored.id, mime_type, name))
            if shown is None and mime_type in _IMAGES:
                shown = Media(media.data, mime_type, attachment_file_id=stored.id, attachment_name=name)
            else:
                notes.append(f"[{mime_type}: the user sees it as the file {name}]")
        if len(result.media) > MAX_FILES:
            notes.append(f"[{len(result.media) - MAX_FILES} more files were left out]")
        text = "\n".join(notes)
        if shown is not None:
            shown = msgspec.structs.replace(shown, text=text)
        return ToolOutput(text, is_error=result.is_error, media=shown, attachments=tuple(attachments))

    async def _store(self, name: str, mime_type: str, data: bytes) -> files.FileInfo:
        if not 0 < len(data) <= files.MAX_FILE_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        async with self._caller.pool.acquire() as conn:
            return await files.create_file(
                conn, self._caller.owner_id, name=name, mime_type=mime_type, data=data, origin=files.Origin.TOOL
            )

    def _explained(self, error: McpError) -> str:
        problem = error.problem
        if problem.needs_login and not self._server.can_log_in:
            return REFUSED.format(name=self._server.name)
        if problem.needs_login:
            return (
                f"{self._server.name} needs the user to log in. The user can do so under Settings > Connections. "
                "Tell the user, and go on without it."
            )
        if problem.may_have_run:
            return f"{self._server.name}: {problem.text} The call may have had an effect: check before you repeat it."
        return f"{self._server.name}: {problem.text}"


# Definitions


class SpecCache:
    """The specifications of tools, so that steps with the same lists do not build them again.

    Entries hold their definition, so that its identity is not reused.
    """

    def __init__(self, max_entries: int = MAX_SPECS) -> None:
        self._max_entries = max_entries
        self._specs: dict[tuple[str, int], tuple[McpTool, McpServer, ToolSpec]] = {}

    def spec(self, name: str, server: McpServer, definition: McpTool) -> ToolSpec:
        key = name, id(definition)
        known = self._specs.get(key)
        if known is not None and known[0] is definition and known[1] is server:
            return known[2]
        self._specs.pop(key, None)
        while len(self._specs) >= self._max_entries:
            del self._specs[next(iter(self._specs))]  # the oldest entry
        made = _spec(name, server, definition)
        self._specs[key] = definition, server, made
        return made


def tools_of(
    found: Sequence[tuple[McpServer, ServerTools]],
    caller: McpCaller,
    *,
    taken: Collection[str] = (),
    specs: SpecCache | None = None,
) -> list[McpServerTool]:
    """Return the tools that the lists of the servers permit, sorted by their names for the model."""
    offered = [
        (server, listed.server, definition)
        for server, listed in found
        for definition in listed.tools
        if server.offers(definition.name)
    ]
    named = tool_names.unique_names([(server.slug, each.name) for server, _, each in offered], taken)
    made: dict[str, McpServerTool] = {}
    for server, config, definition in offered:
        name = named[server.slug, definition.name]
        if name not in made:  # two servers may have one slug if one of them is the user's own
            spec = _spec(name, server, definition) if specs is None else specs.spec(name, server, definition)
            made[name] = McpServerTool(spec, server=server, config=config, definition=definition, caller=caller)
    return [made[name] for name in sorted(made)]


def _spec(name: str, server: McpServer, definition: McpTool) -> ToolSpec:
    """Return the specification of a tool. The server's hints about effects of the tool grant no permission."""
    return ToolSpec(
        name=name,
        description=definition.description,
        input_schema=wrapped(definition.input_schema)
        if server.model_intent
        else object_schema(definition.input_schema),
        source=ToolSource.MCP,
        server_id=server.id,
        replay=Replay.RESUME,
        deadline_seconds=server.call_timeout_seconds + GRACE_SECONDS,
        rule_name=approvals.mcp_name(server.slug, definition.name),
    )


def wrapped(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with the tool's arguments and a field in which the model describes its intention for the user."""
    return {
        "type": "object",
        "properties": {
            INTENT: {"type": "string", "description": "What this call is for, in a few words, for the user."},
            ARGUMENTS: object_schema(schema),
        },
        "required": [INTENT, ARGUMENTS],
    }


def unwrapped(arguments: Mapping[str, Json], schema: Mapping[str, Any]) -> dict[str, Json]:
    """Return the tool's own arguments, also if the model did not nest them as the schema requires."""
    declared = schema.get("properties")
    own = declared if isinstance(declared, Mapping) else {}
    inner = arguments.get(ARGUMENTS)
    if isinstance(inner, str) and ARGUMENTS not in own:
        try:
            inner = msgspec.json.decode(inner)
        except msgspec.DecodeError:
            inner = None
    if isinstance(inner, dict) and (ARGUMENTS not in own or set(arguments) <= {INTENT, ARGUMENTS}):
        return dict(inner)
    return {name: value for name, value in arguments.items() if name != INTENT or INTENT in own}
