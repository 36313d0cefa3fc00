"""A fake MCP server for both protocol eras: tools as functions, questions, tasks, progress, logins, and misbehavior.

    async def add(call: FakeCall) -> Json:
        await call.progress(1, 2, "halfway")
        return text(call.arguments["a"] + call.arguments["b"])

    fake = FakeMcp(era="sessions")
    fake.tool("add", add, properties={"a": {"type": "integer"}, "b": {"type": "integer"}})
    async with fake.listening() as url:
        ...
    assert fake.calls[0].arguments == {"a": 1, "b": 2}

In the era `stateless` (2026-07-28), a question ends the call with `input_required`, and the function runs again with
the answer. In the era `sessions` (2025-11-25), the call stays open while the client answers. `behaviors` replaces the
answer to a method, so that a test can hang, lie or flood.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from rookery.testing.fake_socket import Connection, Head, serve

Json: TypeAlias = Any
Era: TypeAlias = Literal["stateless", "sessions"]

STATELESS = "2026-07-28"
SESSIONS = "2025-11-25"
TASKS = "io.modelcontextprotocol/tasks"
_META = "io.modelcontextprotocol/"


def text(value: object, *, is_error: bool = False) -> Json:
    """Return the result of a call with one text."""
    return {"content": [{"type": "text", "text": str(value)}], "isError": is_error}


class RpcError(Exception):
    """Raised by a tool or a behavior, to answer the request with an error."""

    def __init__(self, code: int, message: str, data: Json = None, *, status: int = 200) -> None:
        super().__init__(message)
        self.code = code
        self.data = data
        self.status = status


class _Asked(Exception):
    def __init__(self, key: str, request: Json) -> None:
        super().__init__(key)
        self.key = key
        self.request = request


@dataclass(eq=False, slots=True)
class FakeRequest:
    """A request as it arrived. `headers` have lowercase names."""

    method: str
    params: Mapping[str, Json]
    id: Json
    headers: Mapping[str, str]
    connection: Connection = field(repr=False)


@dataclass(eq=False, slots=True)
class FakeTask:
    """A task of the extension. A test may set `status` and `result` itself, or let the tool's function do it."""

    id: str
    status: str = "working"
    result: Json = None
    error: Json = None
    message: str | None = None
    requests: dict[str, Json] = field(default_factory=dict)
    responses: dict[str, Json] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    polls: int = 0


class FakeCall:
    """One execution of a tool. If a call is repeated after a question, the function is executed again."""

    def __init__(self, fake: FakeMcp, request: FakeRequest, stream: _Stream) -> None:
        params = request.params
        self.tool: str = params["name"]
        self.arguments: Mapping[str, Json] = params.get("arguments") or {}
        self.meta: Mapping[str, Json] = params.get("_meta") or {}
        self.headers = request.headers
        self.responses: Mapping[str, Json] = params.get("inputResponses") or {}
        self.request_state: str | None = params.get("requestState")
        self.is_cancelled = asyncio.Event()
        self.task: FakeTask | None = None
        self._fake = fake
        self._request = request
        self._stream = stream

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        token = self.meta.get("progressToken")
        if token is not None:
            params = {"progressToken": token, "progress": progress, "total": total, "message": message}
            await self._stream.notify("notifications/progress", {k: v for k, v in params.items() if v is not None})

    async def ask(self, message: str, schema: Json = None, *, url: str | None = None, key: str = "question") -> Json:
        """Ask the user and return the answer: `{"action": ..., "content": ...}`."""
        params: dict[str, Json] = {"message": message}
        if url is None:
            params |= {"mode": "form", "requestedSchema": schema or {"type": "object", "properties": {}}}
        else:
            params |= {"mode": "url", "url": url}
            if self._fake.era == "sessions":
                params["elicitationId"] = key
        return await self.request(key, "elicitation/create", params)

    async def request(self, key: str, method: str, params: Json) -> Json:
        """Send any request to the client, in the form of the protocol era."""
        if self.task is not None:
            self.task.requests[key] = {"method": method, "params": params}
            self.task.status = "input_required"
            while key not in self.task.responses:
                self.task.answered.clear()
                await self.task.answered.wait()
            self.task.status = "working"
            return self.task.responses[key]
        if self._fake.era == "stateless":
            if key not in self.responses:
                raise _Asked(key, {"method": method, "params": params})
            return self.responses[key]
        self._fake.questions += 1
        return await self._fake.ask_client(self._stream, method, params)


Run: TypeAlias = Callable[[FakeCall], Awaitable[Json]]
Behavior: TypeAlias = Callable[[FakeRequest], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class FakeTool:
    definition: Mapping[str, Json]
    run: Run
    is_task: bool = False


@dataclass(eq=False, slots=True)
class _Session:
    outgoing: asyncio.Queue[Json] = field(default_factory=asyncio.Queue)
    has_stream: bool = False


class FakeMcp:
    """The server. `bearers` are the accepted tokens; None accepts everyone. `page_size` cuts the list into pages."""

    def __init__(
        self,
        era: Era = "stateless",
        *,
        bearers: Container[str] | None = None,
        page_size: int = 100,
        ttl_ms: int = 300_000,
        instructions: str | None = None,
        poll_ms: int = 200,
    ) -> None:
        self.era: Era = era
        self.bearers = bearers
        self.challenge = 'Bearer resource_metadata="/.well-known/oauth-protected-resource"'
        self.page_size = page_size
        self.ttl_ms = ttl_ms
        self.instructions = instructions
        self.poll_ms = poll_ms
        self.tools: dict[str, FakeTool] = {}
        self.behaviors: dict[str, Behavior] = {}
        self.requests: list[FakeRequest] = []
        self.calls: list[FakeCall] = []
        self.tasks: dict[str, FakeTask] = {}
        self.sessions: dict[str, _Session] = {}
        self.questions = 0
        self.cancelled: list[Json] = []
        self.port = 0
        self._listeners: list[asyncio.Queue[Json]] = []
        self._asked: dict[str, asyncio.Future[Json]] = {}
        self._ids = itertools.count(1)
        self._running: set[asyncio.Task[None]] = set()
        self._open_calls: dict[Json, FakeCall] = {}

    def tool(
        self,
        name: str,
        run: Run | None = None,
        *,
        description: str = "",
        properties: Mapping[str, Json] | None = None,
        output_schema: Json = None,
        annotations: Json = None,
        is_task: bool = False,
    ) -> None:
        """Add a tool. Without a function it answers with its own name. With `is_task`, every call becomes a task."""

        async def say_name(call: FakeCall) -> Json:
            return text(name)

        definition: dict[str, Json] = {
            "name": name,
            "description": description,
            "inputSchema": {"type": "object", "properties": dict(properties or {})},
        }
        if output_schema is not None:
            definition["outputSchema"] = output_schema
        if annotations is not None:
            definition["annotations"] = annotations
        self.tools[name] = FakeTool(definition, run or say_name, is_task)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve at the yielded address. A second `listening` uses the same port, as a restarted server does."""
        async with serve(self._serve, port=self.port) as port:
            self.port = port
            try:
                yield f"http://127.0.0.1:{port}/mcp"
            finally:
                self.sessions.clear()
                for task in self._running:
                    task.cancel()

    async def change_list(self) -> None:
        """Notify all clients that the list has changed."""
        for queue in [*self._listeners, *(session.outgoing for session in self.sessions.values())]:
            queue.put_nowait(("notifications/tools/list_changed", {}))

    def count(self, method: str) -> int:
        return sum(request.method == method for request in self.requests)

    # ------------------------------------------------------------------ HTTP

    async def _serve(self, connection: Connection) -> None:
        while (head := await connection.read_request()) is not None:
            answering = asyncio.ensure_future(self._answer(connection, head))
            gone = asyncio.ensure_future(connection.gone.wait())
            try:
                await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    answering.cancel()
                    await asyncio.wait({answering})
                    return
                try:
                    answering.result()
                except ConnectionError:
                    return
            finally:
                gone.cancel()
                answering.cancel()

    async def _answer(self, connection: Connection, head: Head) -> None:
        headers = dict(head.headers)
        if self.bearers is not None and headers.get("authorization", "").removeprefix("Bearer ") not in self.bearers:
            await _send(connection, 401, {"error": "invalid_token"}, {"www-authenticate": self.challenge})
            return
        session_id = headers.get("mcp-session-id")
        match head.method:
            case "POST":
                message = msgspec.json.decode(head.body)
                request = FakeRequest(
                    message.get("method", ""), message.get("params") or {}, message.get("id"), headers, connection
                )
                self.requests.append(request)
                await self._post(connection, request, message)
            case "GET" if session_id in self.sessions:
                await self._stream_of(connection, self.sessions[session_id])
            case "DELETE" if session_id in self.sessions:
                del self.sessions[session_id]
                await _send(connection, 200, {})
            case _:
                await _send(connection, 405, {"error": "method not allowed"})

    async def _post(self, connection: Connection, request: FakeRequest, message: Json) -> None:
        if not request.method:
            answer = self._asked.pop(str(message.get("id")), None)
            if answer is not None and not answer.done():
                if (refused := message.get("error")) is None:
                    answer.set_result(message.get("result"))
                else:
                    answer.set_exception(RpcError(refused["code"], refused["message"]))
            await _send(connection, 202, None)
            return
        session_id = request.headers.get("mcp-session-id")
        needs_session = self.era == "sessions" and request.method not in ("initialize", "server/discover")
        if needs_session and session_id not in self.sessions:
            await _send(connection, 404, _error(request.id, -32001, "Session not found"))
            return
        if request.id is None:
            if request.method == "notifications/cancelled":
                cancelled = request.params.get("requestId")
                self.cancelled.append(cancelled)
                if cancelled in self._open_calls:
                    self._open_calls[cancelled].is_cancelled.set()
            await _send(connection, 202, None)
            return
        try:
            if (behavior := self.behaviors.get(request.method)) is not None:
                result = await behavior(request)
                if result is None:
                    return  # it has answered by itself
            else:
                result = await self._result(connection, request)
                if result is None:
                    return
        except RpcError as error:
            answer_body = _error(request.id, error.code, str(error), error.data)
            await _send(connection, error.status, answer_body)
            return
        extra = {}
        if request.method == "initialize":
            new_id = secrets.token_hex(8)
            self.sessions[new_id] = _Session()
            extra["mcp-session-id"] = new_id
        await _send(connection, 200, {"jsonrpc": "2.0", "id": request.id, "result": result}, extra)

    async def _result(self, connection: Connection, request: FakeRequest) -> Json | None:
        is_stateless = self.era == "stateless"
        info = {"name": "fake", "version": "1.0"}
        match request.method:
            case "server/discover" if is_stateless:
                return self._done(
                    {
                        "supportedVersions": [STATELESS],
                        "capabilities": {"tools": {"listChanged": True}, "extensions": {TASKS: {}}},
                        "instructions": self.instructions,
                        "_meta": {f"{_META}serverInfo": info},
                        **self._cache_hints(),
                    }
                )
            case "initialize" if not is_stateless:
                return {
                    "protocolVersion": SESSIONS,
                    "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": info,
                    "instructions": self.instructions,
                }
            case "tools/list":
                return self._done(self._page(request.params.get("cursor")))
            case "tools/call":
                await self._call(connection, request)
                return None
            case "subscriptions/listen" if is_stateless:
                await self._listen(connection, request)
                return None
            case "tasks/get" | "tasks/update" | "tasks/cancel" if is_stateless:
                return self._done(self._on_task(request))
            case _:
                raise RpcError(-32601, f"Method not found: {request.method}", status=404)

    def _page(self, cursor: str | None) -> Json:
        start = int(cursor or 0)
        definitions = [dict(tool.definition) for tool in self.tools.values()]
        end = start + self.page_size
        page: dict[str, Json] = {"tools": definitions[start:end], **self._cache_hints()}
        if end < len(definitions):
            page["nextCursor"] = str(end)
        return page

    def _cache_hints(self) -> Json:
        return {"ttlMs": self.ttl_ms, "cacheScope": "private"} if self.era == "stateless" else {}

    def _done(self, result: Json) -> Json:
        result = {key: value for key, value in result.items() if value is not None}
        return {"resultType": "complete", **result} if self.era == "stateless" else result

    # ------------------------------------------------------------------ calls

    async def _call(self, connection: Connection, request: FakeRequest) -> None:
        tool = self.tools.get(request.params.get("name", ""))
        if tool is None:
            raise RpcError(-32602, f"Unknown tool: {request.params.get('name')}")
        stream = _Stream(connection)
        call = FakeCall(self, request, stream)
        self.calls.append(call)
        self._open_calls[request.id] = call
        if tool.is_task and self.era == "stateless":
            await _send(connection, 200, {"jsonrpc": "2.0", "id": request.id, "result": self._start_task(tool, call)})
            return
        await stream.start()
        try:
            try:
                result = self._done(await tool.run(call))
            except _Asked as asked:
                result = {"resultType": "input_required", "inputRequests": {asked.key: asked.request}}
                result["requestState"] = f"state-{next(self._ids)}"
            answer = {"jsonrpc": "2.0", "id": request.id, "result": result}
        except RpcError as error:
            answer = _error(request.id, error.code, str(error), error.data)
        except asyncio.CancelledError:
            call.is_cancelled.set()
            raise
        finally:
            self._open_calls.pop(request.id, None)
        await stream.send(answer)
        await connection.end_response()

    def _start_task(self, tool: FakeTool, call: FakeCall) -> Json:
        task = call.task = FakeTask(f"task-{next(self._ids)}")
        self.tasks[task.id] = task

        async def work() -> None:
            try:
                result = await tool.run(call)
            except RpcError as error:
                task.status, task.error = "failed", {"code": error.code, "message": str(error)}
            else:
                if task.status != "cancelled":
                    task.status, task.result = "completed", self._done(result)

        running = asyncio.get_running_loop().create_task(work())
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return {"resultType": "task", **self._state_of(task)}

    def _state_of(self, task: FakeTask) -> dict[str, Json]:
        state = {
            "taskId": task.id,
            "status": task.status,
            "statusMessage": task.message,
            "createdAt": "2026-07-28T00:00:00Z",
            "lastUpdatedAt": "2026-07-28T00:00:00Z",
            "pollIntervalMs": self.poll_ms,
            "result": task.result,
            "error": task.error,
            "inputRequests": {k: v for k, v in task.requests.items() if k not in task.responses} or None,
        }
        return {"ttlMs": None, **{key: value for key, value in state.items() if value is not None}}

    def _on_task(self, request: FakeRequest) -> Json:
        task = self.tasks.get(request.params.get("taskId", ""))
        if task is None:
            raise RpcError(-32602, "Unknown task")
        match request.method:
            case "tasks/update":
                task.responses |= request.params.get("inputResponses") or {}
                task.answered.set()
                return {}
            case "tasks/cancel":
                task.status = "cancelled"
                return {}
            case _:
                task.polls += 1
                return self._state_of(task)

    async def ask_client(self, stream: _Stream, method: str, params: Json) -> Json:
        """Send a request to the client on the stream of a call, and return its result."""
        request_id = f"ask-{next(self._ids)}"
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._asked[request_id] = answer
        await stream.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return await answer

    # ------------------------------------------------------------------ streams

    async def _listen(self, connection: Connection, request: FakeRequest) -> None:
        queue: asyncio.Queue[Json] = asyncio.Queue()
        self._listeners.append(queue)
        stream = _Stream(connection)
        await stream.start()
        meta = {f"{_META}subscriptionId": request.id}
        honored = {"toolsListChanged": True}
        await stream.notify("notifications/subscriptions/acknowledged", {"notifications": honored, "_meta": meta})
        try:
            while True:
                method, params = await queue.get()
                await stream.notify(method, {**params, "_meta": meta})
        finally:
            self._listeners.remove(queue)

    async def _stream_of(self, connection: Connection, session: _Session) -> None:
        stream = _Stream(connection)
        await stream.start()
        session.has_stream = True
        while True:
            method, params = await session.outgoing.get()
            await stream.notify(method, params)


class _Stream:
    """An event stream on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def start(self) -> None:
        await self._connection.start_response(200, {"content-type": "text/event-stream"}, length=None)

    async def send(self, message: Json) -> None:
        await self._connection.send_body(b"event: message\ndata: " + msgspec.json.encode(message) + b"\n\n")

    async def notify(self, method: str, params: Json) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})


async def _send(connection: Connection, status: int, body: Json, headers: Mapping[str, str] | None = None) -> None:
    data = b"" if body is None else msgspec.json.encode(body)
    kind = {} if body is None else {"content-type": "application/json"}
    await connection.start_response(status, {**kind, **(headers or {})}, length=len(data))
    await connection.send_body(data)


def _error(request_id: Json, code: int, message: str, data: Json = None) -> Json:
    error = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


async def hang(request: FakeRequest) -> Json:
    """A behavior that never answers. It ends when the client disconnects."""
    await request.connection.gone.wait()


def answer_with(body: bytes, *, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Behavior:
    """Return a behavior that answers with these bytes."""

    async def answer(request: FakeRequest) -> Json:
        kind = {"content-type": "application/json", **dict(headers)}
        await request.connection.start_response(status, kind, length=len(body))
        await request.connection.send_body(body)

    return answer
