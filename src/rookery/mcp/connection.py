"""One connection to one server, in the protocol era of the server, over the official package `mcp`.

Importing this module imports that package (0.35 s, 23 MB). Only `connection_pool` imports it, when the first server is
used. One task owns the connection: it enters and leaves every context of the package, so that no cancel scope crosses
tasks. Other tasks only send requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, cast

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp import Client
from mcp.client.extension import advertise
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError
from pydantic.alias_generators import to_camel

import rookery
from rookery.mcp import call_results, tool_lists
from rookery.mcp.call_results import CallResult, InputRequest, InputRequired, Outcome, Progress, Responses, Resume
from rookery.mcp.errors import McpError, Problem, ProblemKind
from rookery.mcp.guarded_http import ServerAuth, ServerTransport, guarded_transport
from rookery.mcp.output_schemas import OutputSchema
from rookery.mcp.server_config import MAX_CALL_SECONDS, ServerConfig
from rookery.mcp.sse_transport import sse_streams
from rookery.mcp.tool_lists import Annotations, McpTool, RefusedTool, ToolList
from rookery.runtime.address_guard import CONNECT_SECONDS, Guard, Lookups
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.log import get_logger
from rookery.telemetry.tracing import spans

log = get_logger("mcp.connection")
# They log addresses with their queries, session ids and texts of servers. What matters of that is in our problems.
for _name, _level in (("httpx2", logging.WARNING), ("mcp", logging.CRITICAL), ("client", logging.CRITICAL)):
    logging.getLogger(_name).setLevel(_level)

MAX_PAGES = 50
CLOSE_SECONDS = 3.0
# How long a call of the session era waits for the user while its connection is kept open for it.
PARKED_SECONDS = 1_800.0
# A task may work longer than a call may be silent.
MAX_TASK_SECONDS = 86_400.0
POLL_SECONDS = (0.2, 1.0, 30.0)  # least, default, most
PROGRESS_SECONDS = 0.1
# A server that answers a call with its state alone wants the call again.
MAX_STATE_ROUNDS = 20
RELISTEN_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
TASKS = "io.modelcontextprotocol/tasks"
MAX_PROBLEM_CHARS = 500

# How the package says that the answer will never come. Servers use the same code for errors of their own.
_CLOSED_WORDS = ("Connection closed", "SSE stream ", "The server answered with ")

OnProgress = Callable[[Progress], None]
OnTask = Callable[[str], Awaitable[None]]


class _Raw(RootModel[dict[str, Any]]):
    """A result in the form in which the server sent it. The session has validated it."""


class _TaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class _GetTask(types.Request[_TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: _TaskParams
    name_param = "taskId"


class _UpdateTask(types.Request[_TaskParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    params: _TaskParams
    name_param = "taskId"


class _CancelTask(types.Request[_TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: _TaskParams
    name_param = "taskId"


class _TaskState(BaseModel):
    """A task of the protocol extension. Unknown fields from the server are ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    task_id: str
    status: str
    status_message: str | None = None
    poll_interval_ms: float | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = None


class _LiveCall:
    """An open call to a server of the session era. The connection owns the asyncio task of the call."""

    __slots__ = ("asked", "parked_until", "prepared", "questions", "silence", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[dict[str, Any]] | None = None
        self.questions: dict[str, tuple[InputRequest, asyncio.Future[Mapping[str, Any]]]] = {}
        self.asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.prepared: dict[str, Mapping[str, Any]] = {}
        self.parked_until: float | None = None
        # Extends the deadline of the present waiter.
        self.silence: Callable[[Progress], None] = _ignore_progress


_live_call: ContextVar[_LiveCall | None] = ContextVar("mcp_live_call", default=None)


class Connection:
    """A connection that is opened once. A lost connection is not repaired: `is_usable` becomes false, and the owner
    opens another.
    """

    def __init__(self, config: ServerConfig, guard: Guard, clock: Clock, *, lookups: Lookups | None = None) -> None:
        self.config = config
        self._guard = guard
        self._lookups = lookups
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._client: Client | None = None
        self._http: ServerTransport | None = None
        self._is_lost = False
        self._is_listed = False
        self._schemas: dict[str, OutputSchema] = {}
        self._live: dict[str, _LiveCall] = {}
        self.instructions: str | None = None
        self.protocol_version: str | None = None
        # True until the list is asked for again: the server says that it changed, or may have said so unheard.
        self.is_list_outdated = False

    @property
    def is_usable(self) -> bool:
        return self._client is not None and not self._is_lost and not self._closing.is_set()

    @property
    def is_parked(self) -> bool:
        """Return whether a call on this connection waits for the user."""
        now = self._clock.monotonic()
        return any(each.parked_until is not None and each.parked_until > now for each in self._live.values())

    async def open(self) -> None:
        """Connect and negotiate. Raise `McpError` on failure. The caller sets the time limit; if the caller is
        cancelled, the connection is closed.
        """
        self._task = asyncio.create_task(self._own(), name=f"mcp-{self.config.slug}")
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection: end the session, and stop waiting after `CLOSE_SECONDS`."""
        self._closing.set()
        task = self._task
        if task is None:
            return
        if not self._opened.done():
            task.cancel()
        for live in self._live.values():
            if live.task is not None:
                live.task.cancel()
        _, left = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
        if left:
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_SECONDS)

    async def list_tools(self) -> ToolList:
        """Request all pages of the list of tools. Raise `McpError` on failure."""
        client = self._usable()
        self.is_list_outdated = False
        found = ToolList(ttl_seconds=tool_lists.MAX_TTL_SECONDS)
        cursor: str | None = None
        seen: set[str] = set()
        try:
            for _ in range(MAX_PAGES):
                page = await client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
                # Page by page, so that a server with large pages does not fill the memory before the list is cut.
                found = tool_lists.joined_list([found, self._list_of(page)])
                cursor = page.next_cursor
                if not cursor or found.is_cut:
                    break
                if cursor in seen or len(found.tools) >= tool_lists.MAX_TOOLS:
                    found = msgspec.structs.replace(found, is_cut=True)
                    break
                seen.add(cursor)
            else:
                found = msgspec.structs.replace(found, is_cut=True)
        except Exception as error:
            raise McpError(self._problem_of(error)) from error
        self._is_listed = True
        self._schemas.clear()
        return found

    def _list_of(self, page: types.ListToolsResult) -> ToolList:
        tools: list[McpTool] = []
        meta = page.meta or {}
        refused = [RefusedTool(**each) for each in meta.get(tool_lists.REFUSED_KEY, ())]
        for tool in page.tools:
            hints = tool.annotations or types.ToolAnnotations()
            made = tool_lists.made_tool(
                name=tool.name,
                title=tool.title,
                description=tool.description,
                input_schema=tool.input_schema,
                output_schema=tool.output_schema,
                annotations=Annotations(
                    title=hints.title,
                    read_only=hints.read_only_hint,
                    destructive=hints.destructive_hint,
                    idempotent=hints.idempotent_hint,
                    open_world=hints.open_world_hint,
                ),
                task_support=(tool.execution and tool.execution.task_support) or "forbidden",
            )
            if isinstance(made, RefusedTool):
                refused.append(made)
            else:
                tools.append(made)
        ttl = page.ttl_ms / 1000 if self._is_modern and page.ttl_ms is not None else tool_lists.DEFAULT_TTL_SECONDS
        return ToolList(
            tools=tuple(tools),
            refused=tuple(refused),
            is_cut=bool(meta.get(tool_lists.CUT_KEY)),
            ttl_seconds=min(max(ttl, tool_lists.MIN_TTL_SECONDS), tool_lists.MAX_TTL_SECONDS),
        )

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        call_key: str,
        output_schema: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
        meta: Mapping[str, Any] | None = None,
        resume: Resume | None = None,
        on_task: OnTask | None = None,
        stop_remote: Callable[[], bool] = lambda: True,
    ) -> Outcome:
        """Call a tool. Raise `McpError` on failure; its problem tells whether the call may have run.

        `call_key` identifies a repetition of the call. If the caller is cancelled, the call is cancelled at the server
        too, except when the server has made a task of it and `stop_remote` returns False.
        """
        self._usable()
        silence = self.config.call_seconds
        try:
            async with (
                self._clock.deadline(max(MAX_TASK_SECONDS, silence), "mcp task"),
                self._clock.deadline(silence, "mcp call") as deadline,
            ):

                def heard(seconds: float = silence) -> None:
                    deadline.reset(seconds)

                progress = _Throttle(self._clock, heard, on_progress)
                if not self._is_listed:
                    # The package learns from the list which arguments go into headers.
                    await self.list_tools()
                raw = await self._result(tool, arguments, call_key, meta, resume, on_task, stop_remote, progress)
        except DeadlineExceeded as error:
            why = f"The server was silent for {error.seconds:g} {'second' if error.seconds == 1 else 'seconds'}."
            raise McpError(Problem(ProblemKind.TIMEOUT, why, may_have_run=True)) from error
        if isinstance(raw, InputRequired):
            return raw
        return self._made_result(tool, raw, output_schema)

    # ------------------------------------------------------------------ the owning task

    async def _own(self) -> None:
        problem = Problem(ProblemKind.CLOSED, "The connection was closed.")
        try:
            for way in self._ways():
                try:
                    async with self._connected(way) as client:
                        self._client = client
                        self.instructions, self.protocol_version = client.instructions, client.protocol_version
                        if self._http is not None:
                            self._http.is_opening = False
                        if not self._opened.done():
                            self._opened.set_result(None)
                        await self._watch(client)
                    return
                except Exception as error:
                    problem = self._problem_of(error)
                    if not self._opened.done() and self._http is not None and self._http.login_problem is not None:
                        problem = self._http.login_problem
                    if self._opened.done():
                        log.warning("mcp_connection_lost", server=self.config.shown_url, problem=problem.text)
                        return
                    if problem.status not in (400, 404, 405, 406):
                        return
        finally:
            self._is_lost = True
            if not self._opened.done():
                self._opened.set_exception(McpError(problem))
                self._opened.exception()  # retrieved, because the opening may have been cancelled

    def _ways(self) -> tuple[Literal["streamable_http", "sse"], ...]:
        match self.config.transport:
            case "auto":
                return ("streamable_http", "sse")
            case other:
                return (other,)

    @asynccontextmanager
    async def _connected(self, way: Literal["streamable_http", "sse"]) -> AsyncIterator[Client]:
        self._http = ServerTransport(
            guarded_transport(self._guard, lookups=self._lookups), self.config.url, on_lost_session=self._lose
        )
        async with httpx2.AsyncClient(
            transport=self._http,
            auth=ServerAuth(self.config.headers, self.config.on_unauthorized),
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS, write=CONNECT_SECONDS * 3),
            trust_env=False,
            follow_redirects=False,
        ) as http:
            client = Client(
                self._streams(way, http),
                mode="auto" if way == "streamable_http" else "legacy",
                cache=None,
                client_info=types.Implementation(name="rookery", title="Rookery", version=rookery.__version__),
                elicitation_callback=self._on_elicitation,
                message_handler=self._on_message,
                extensions=[advertise(TASKS)],
            )
            async with client:
                yield client

    def _streams(
        self, way: Literal["streamable_http", "sse"], http: httpx2.AsyncClient
    ) -> AbstractAsyncContextManager[Any]:
        if way == "sse":
            assert self._http is not None
            return sse_streams(self.config.url, http, on_lost=self._lose, problem_in=self._http.problem_in)
        # The limit of an event is enforced below, for answers of every kind.
        return streamable_http_client(self.config.url, http_client=http, max_sse_event_size=None)

    async def _watch(self, client: Client) -> None:
        """Keep the connection open until it is closed, and listen for changes of the list of tools."""
        tools = client.server_capabilities.tools
        listener = None
        if self._is_modern and tools is not None and tools.list_changed:
            listener = asyncio.create_task(self._listen(client), name=f"mcp-listen-{self.config.slug}")
        try:
            await self._closing.wait()
        finally:
            if listener is not None:
                listener.cancel()
                await asyncio.wait({listener})

    async def _listen(self, client: Client) -> None:
        for seconds in RELISTEN_SECONDS:
            with suppress(MCPError, SubscriptionLost, TimeoutError):
                async with client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        self.is_list_outdated = True
            # Changes may have been missed in between.
            self.is_list_outdated = True
            await self._clock.sleep(seconds, "mcp listen")

    def _lose(self) -> None:
        self._is_lost = True

    # ------------------------------------------------------------------ what the server says unasked

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.is_list_outdated = True

    async def _on_elicitation(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer a question of a server of the session era. The call that the question belongs to waits for the
        user.
        """
        live = _live_call.get()
        if live is None and len(self._live) == 1:
            live = next(iter(self._live.values()))
        if live is None:
            return types.ErrorData(code=types.INVALID_REQUEST, message="There is no call that this belongs to.")
        asked = _question(params)
        answer = live.prepared.pop(asked.id, None)
        if answer is None:
            future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
            live.questions[asked.id] = (asked, future)
            if not live.asked.done():
                live.asked.set_result(None)
            answer = await future
        return _answer(answer)

    # ------------------------------------------------------------------ calls

    async def _result(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        call_key: str,
        meta: Mapping[str, Any] | None,
        resume: Resume | None,
        on_task: OnTask | None,
        stop_remote: Callable[[], bool],
        progress: _Throttle,
    ) -> dict[str, Any] | InputRequired:
        if resume is not None and resume.task_id is not None:
            return await self._polled(resume.task_id, resume.responses, stop_remote, progress)
        if not self._is_modern:
            return await self._live_result(tool, arguments, call_key, meta, resume, progress)
        responses = None if resume is None else resume.responses
        state = None if resume is None else resume.request_state
        for _ in range(MAX_STATE_ROUNDS):
            raw = await self._asked(tool, arguments, meta, progress, responses=responses or None, state=state)
            match raw.get("resultType"):
                case "input_required" if raw.get("inputRequests"):
                    return InputRequired(
                        requests=_questions(raw["inputRequests"]), request_state=raw.get("requestState")
                    )
                case "input_required":
                    responses, state = None, raw.get("requestState")
                    await self._clock.sleep(POLL_SECONDS[0], "mcp state")
                case "task":
                    task = _TaskState.model_validate(raw)
                    if on_task is not None:
                        await on_task(task.task_id)
                    return await self._polled(task.task_id, {}, stop_remote, progress, first=task)
                case _:
                    return raw
        raise McpError(Problem(ProblemKind.INVALID, "The server asks for the same call again and again."))

    async def _asked(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        meta: Mapping[str, Any] | None,
        progress: _Throttle,
        *,
        responses: Responses | None = None,
        state: str | None = None,
    ) -> dict[str, Any]:
        """Send `tools/call`. If a server of the stateless era misses a header, update the list of tools and send the
        call once more.
        """
        session = self._usable().session
        sent: dict[str, Any] = dict(meta or {})
        if (traceparent := spans.traceparent()) is not None:
            sent.setdefault("traceparent", traceparent)
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(
                name=tool,
                arguments=dict(arguments),
                input_responses=None if responses is None else {key: _answer(each) for key, each in responses.items()},
                request_state=state,
                _meta=cast("types.RequestParamsMeta", sent) if sent else None,
            )
        )
        for is_last in (False, True):
            try:
                raw = await session.send_request(request, _Raw, progress_callback=progress)
                return raw.root
            except MCPError as error:
                if error.code == types.HEADER_MISMATCH and self._is_modern and not is_last:
                    await self.list_tools()
                    continue
                if (questions := _url_questions(error)) is not None:
                    return questions
                raise McpError(self._problem_of(error, is_call=True)) from error
            except Exception as error:
                raise McpError(self._problem_of(error, is_call=True)) from error
        raise AssertionError("unreachable")

    async def _live_result(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        call_key: str,
        meta: Mapping[str, Any] | None,
        resume: Resume | None,
        progress: _Throttle,
    ) -> dict[str, Any] | InputRequired:
        """Start or continue a call to a server of the session era, which asks questions while the call is open."""
        responses = {} if resume is None else resume.responses
        live = self._live.get(call_key)
        if live is None:
            live = self._live[call_key] = _LiveCall()
            live.prepared = dict(responses)

            async def run(live: _LiveCall) -> dict[str, Any]:
                _live_call.set(live)
                return await self._asked(tool, arguments, meta, _Forward(live))

            live.task = asyncio.create_task(run(live), name=f"mcp-call-{self.config.slug}")
        else:
            live.parked_until = None
            for key, answer in responses.items():
                if (waiting := live.questions.pop(key, None)) is not None and not waiting[1].done():
                    waiting[1].set_result(answer)
        assert live.task is not None
        live.silence = progress.heard
        if not live.questions and live.asked.done():
            live.asked = asyncio.get_running_loop().create_future()
        try:
            waiting_for: set[asyncio.Future[Any]] = {live.task, live.asked}
            await asyncio.wait(waiting_for, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._live.pop(call_key, None)
            live.task.cancel()
            await asyncio.wait({live.task})
            raise
        if live.task.done():
            self._live.pop(call_key, None)
            raw = await live.task
            if _URLS in raw:
                return InputRequired(requests=tuple(raw[_URLS]))
            return raw
        live.parked_until = self._clock.monotonic() + PARKED_SECONDS
        live.silence = _ignore_progress
        return InputRequired(requests=tuple(asked for asked, _ in live.questions.values()))

    def drop_parked(self) -> None:
        """Cancel the calls whose users have not answered in time."""
        now = self._clock.monotonic()
        for key, live in list(self._live.items()):
            if live.parked_until is not None and live.parked_until <= now and live.task is not None:
                live.task.cancel()
                del self._live[key]

    async def _polled(
        self,
        task_id: str,
        responses: Responses,
        stop_remote: Callable[[], bool],
        progress: _Throttle,
        *,
        first: _TaskState | None = None,
    ) -> dict[str, Any] | InputRequired:
        session = self._usable().session
        try:
            if responses:
                update = _TaskParams(task_id=task_id, input_responses={k: dict(v) for k, v in responses.items()})
                await session.send_request(_UpdateTask(params=update), _Raw)
            task = first
            while True:
                if task is not None:
                    least, default, most = POLL_SECONDS
                    wait = default if task.poll_interval_ms is None else task.poll_interval_ms / 1000
                    wait = min(max(wait, least), most)
                    progress.heard(Progress(0, None, task.status_message), seconds=wait + self.config.call_seconds)
                    await self._clock.sleep(wait, "mcp task")
                task = await session.send_request(_GetTask(params=_TaskParams(task_id=task_id)), _TaskState)
                asked = {key: value for key, value in (task.input_requests or {}).items() if key not in responses}
                match task.status:
                    case "completed":
                        return task.result or {}
                    case "failed":
                        why = str((task.error or {}).get("message") or task.status_message or "no reason given")
                        raise McpError(_refused(f"The server's task failed: {why}", may_have_run=True))
                    case "cancelled":
                        raise McpError(_refused("The server cancelled the task.", may_have_run=True))
                    case "input_required" if asked:
                        return InputRequired(requests=_questions(asked), task_id=task_id)
        except asyncio.CancelledError:
            if stop_remote():
                with suppress(Exception), anyio.move_on_after(CLOSE_SECONDS, shield=True):
                    await session.send_request(_CancelTask(params=_TaskParams(task_id=task_id)), _Raw)
            raise
        except McpError:
            raise
        except Exception as error:
            raise McpError(self._problem_of(error, is_call=True)) from error

    def _made_result(self, tool: str, raw: dict[str, Any], output_schema: Mapping[str, Any] | None) -> CallResult:
        content = raw.get("content")
        if not isinstance(content, list):
            why = "The server sent a result without content."
            raise McpError(Problem(ProblemKind.INVALID, why, may_have_run=True))
        structured = raw.get("structuredContent")
        is_error = raw.get("isError") is True
        problem = None
        if output_schema is not None and structured is not None and not is_error:
            if tool not in self._schemas:
                self._schemas[tool] = OutputSchema(output_schema)
            problem = self._schemas[tool].problem_with(structured)
        blocks = [each for each in content if isinstance(each, dict)]
        return call_results.call_result(blocks, structured, is_error=is_error, schema_problem=problem)

    # ------------------------------------------------------------------ state and errors

    @property
    def _is_modern(self) -> bool:
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS

    def _usable(self) -> Client:
        if self._client is None or self._is_lost:
            raise McpError(Problem(ProblemKind.CLOSED, "The connection to the server is closed."))
        return self._client

    def _problem_of(self, error: BaseException, *, is_call: bool = False) -> Problem:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        match error:
            case McpError():
                return error.problem
            case MCPError():
                own = None if self._http is None else self._http.problem_in(error.error.data)
                if own is not None:
                    return own
                if error.code == types.CONNECTION_CLOSED and error.error.message.startswith(_CLOSED_WORDS):
                    why = f"The connection to the server ended: {_shortened(error.error.message)}"
                    return Problem(ProblemKind.CLOSED, why, may_have_run=is_call)
                if error.code == types.PARSE_ERROR:
                    return Problem(ProblemKind.INVALID, "The server sent invalid JSON.", may_have_run=is_call)
                return _refused(f"The server refused: {_shortened(error.error.message)}")
            case ValidationError() | msgspec.ValidationError():
                why = "The server sent an answer that is not valid in its protocol version."
                return Problem(ProblemKind.INVALID, why, may_have_run=is_call)
            case TimeoutError() | DeadlineExceeded():
                return Problem(ProblemKind.TIMEOUT, "The server did not answer in time.", may_have_run=is_call)
            case ListenNotSupportedError() | RuntimeError():
                return Problem(ProblemKind.INVALID, _shortened(str(error)), may_have_run=is_call)
            case _:
                log.exception("mcp_unknown_error", error, server=self.config.shown_url)
                return Problem(ProblemKind.INVALID, f"The client failed: {type(error).__name__}.", may_have_run=is_call)


class _Throttle:
    """The progress callback for the `mcp` package. It extends the deadline at each notification, and informs the caller
    at intervals.
    """

    def __init__(self, clock: Clock, extend: Callable[..., None], tell: OnProgress | None) -> None:
        self._clock = clock
        self._extend = extend
        self._tell = tell
        self._told = float("-inf")
        self._latest = clock.monotonic() + MAX_CALL_SECONDS

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        if self._clock.monotonic() < self._latest:
            self.heard(Progress(progress, total, message))

    def heard(self, progress: Progress, *, seconds: float | None = None) -> None:
        if seconds is None:
            self._extend()
        else:
            self._extend(seconds)
        now = self._clock.monotonic()
        if self._tell is not None and now - self._told >= PROGRESS_SECONDS:
            self._told = now
            self._tell(progress)


class _Forward(_Throttle):
    """Forwards the progress of an open call to the caller that waits for it now."""

    def __init__(self, live: _LiveCall) -> None:
        self._live = live

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self._live.silence(Progress(progress, total, message))


def _ignore_progress(progress: Progress) -> None:
    pass


# Under this key, `_asked` returns questions that a server of 2025-11-25 sent as an error.
_URLS = "rookery/urls"


def _url_questions(error: MCPError) -> dict[str, Any] | None:
    if error.code != types.URL_ELICITATION_REQUIRED:
        return None
    try:
        data = types.ElicitationRequiredErrorData.model_validate(error.error.data)
    except ValidationError:
        return None
    return {_URLS: [_question(each) for each in data.elicitations]}


def _question(params: types.ElicitRequestParams) -> InputRequest:
    """Return a question of the session era. If the server asks the same question again, the id is the same."""
    if isinstance(params, types.ElicitRequestURLParams):
        said: tuple[str, object] = (params.message, params.url)
        made = InputRequest(id="", mode="url", message=params.message, url=params.url)
    else:
        schema = dict(params.requested_schema)
        said = (params.message, schema)
        made = InputRequest(id="", mode="form", message=params.message, schema=schema)
    digest = hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()[:32]
    return msgspec.structs.replace(made, id=digest)


def _questions(requests: Mapping[str, Any]) -> tuple[InputRequest, ...]:
    """Return the questions of the stateless era. Raise `McpError` if one of them cannot be answered by a user."""
    made = []
    for key, value in requests.items():
        method = value.get("method") if isinstance(value, dict) else None
        if method != "elicitation/create":
            raise McpError(_refused(f"The server asks for {_shortened(str(method))}, which Rookery does not offer."))
        try:
            request = types.ElicitRequest.model_validate(value, by_name=False)
        except ValidationError as error:
            why = "The server asks the user in a form that is not valid."
            raise McpError(Problem(ProblemKind.INVALID, why)) from error
        made.append(msgspec.structs.replace(_question(request.params), id=key))
    return tuple(made)


def _answer(response: Mapping[str, Any]) -> types.ElicitResult:
    try:
        return types.ElicitResult.model_validate(dict(response))
    except ValidationError:
        return types.ElicitResult(action="cancel")


def _refused(text: str, *, may_have_run: bool = False) -> Problem:
    return Problem(ProblemKind.REFUSED, text, may_have_run=may_have_run)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_PROBLEM_CHARS else f"{text[:MAX_PROBLEM_CHARS]}..."
