"""The base of all fake providers: scripted answers over ASGI or a real socket, with pacing and faults.

    fake = FakeServer(api_key="sk-test")
    fake.enqueue(
        Scenario(events=[("ping", {"n": 1}), b"data: {broken\\n\\n"]),
        failure(429, "Slow down.", retry_after="2"),
        Scenario(events=[("", {"n": 1})], fault=Fault.RESET, after_bytes=5),
    )
    async with fake.listening() as base_url:  # or hand `fake` itself to an ASGI client
        ...
    assert fake.requests[0].body["stream"] is True

Each request takes the next scenario. A fake provider implements its protocol in `validate` (refuses a request like the
real server) and `respond` (creates an answer if the queue is empty). The package has its own socket server, because no
HTTP library lets a test break the framing. Over ASGI, a broken connection is an exception.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from rookery.testing.fake_socket import Connection, serve

# A JSON value in Python.
Json: TypeAlias = Any

# A named event (the name may be empty) with its payload, raw bytes, or an event to wait for.
ScriptedEvent: TypeAlias = tuple[str, Json] | bytes | asyncio.Event
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MALFORMED = b'data: {"broken": \n\n'
_AUTH_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


class Fault(StrEnum):
    """A fault of the connection after `after_bytes` of the body."""

    RESET = "reset"  # TCP reset
    CUT = "cut"  # closed in the middle of the answer, so that the HTTP response is incomplete
    END = "end"  # closed as if the answer were complete; only the stream format shows that it is not
    STALL = "stall"  # nothing more is sent until the client disconnects


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One answer: events, or one document in `body`.

    With `events_per_second`, groups of `burst` events are sent at that average rate. `packet_bytes` splits the body
    into pieces of that size. With `after_bytes=None`, a fault occurs before the status line; with 0, after the headers.
    """

    events: Sequence[ScriptedEvent] = ()
    body: Json = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None
    events_per_second: float | None = None
    burst: int = 1
    packet_bytes: int | None = None
    fault: Fault | None = None
    after_bytes: int | None = 0

    def response_headers(self) -> dict[str, str]:
        usual = "text/event-stream; charset=utf-8" if self.body is None else "application/json"
        return {"content-type": self.content_type or usual, **{k.lower(): v for k, v in self.headers.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A received request. The key is separate, so that `headers` can be printed and compared."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    auth_header: str | None
    api_key: str | None
    raw: bytes
    body: Json
    left: asyncio.Event = field(default_factory=asyncio.Event, compare=False)
    """Set when the client disconnects before the answer is complete (real sockets only)."""


Validate: TypeAlias = Callable[[RecordedRequest], tuple[int, Json] | None]
Respond: TypeAlias = Callable[[RecordedRequest], Scenario | None]
ErrorBody: TypeAlias = Callable[[int, str], Json]


def failure(status: int, message: str, *, retry_after: str | None = None, code: str | None = None) -> Scenario:
    """Return an error response in the format of most providers."""
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Scenario(status=status, body=error_body(status, message, code=code), headers=headers)


def error_body(status: int, message: str, *, code: str | None = None) -> Json:
    kind = "authentication_error" if status == 401 else "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def count_tokens(request: RecordedRequest, bytes_per_token: float) -> int:
    """Return the number of tokens of a request: the size of its body, divided by `bytes_per_token`."""
    return int(len(request.raw) / bytes_per_token)


def encode_event(event: tuple[str, Json] | bytes) -> bytes:
    """Encode a server-sent event. A payload of text or bytes is sent unchanged, any other as JSON."""
    if isinstance(event, bytes):
        return event
    name, payload = event
    data = payload.encode() if isinstance(payload, str) else payload
    data = data if isinstance(data, bytes) else msgspec.json.encode(data)
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + data + b"\n\n"


class FakeServer:
    """Answers requests from a queue of scenarios and records the requests. Also an ASGI application.

    A request is recorded first. Then come the check of the key, `pages` (fixed answers by "GET /path"), `validate`, the
    queue, and `respond`. A refused request takes no scenario from the queue.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        validate: Validate | None = None,
        respond: Respond | None = None,
        error_body: ErrorBody = error_body,
        request_id_header: str = "x-request-id",
    ) -> None:
        self.api_key = api_key
        self.requests: list[RecordedRequest] = []
        self.pages: dict[str, Scenario] = {}
        self._validate = validate
        self._respond = respond
        self._error_body = error_body
        self._request_id_header = request_id_header
        self._queue: deque[Scenario] = deque()
        self._arrived = asyncio.Condition()

    def enqueue(self, *scenarios: Scenario) -> None:
        self._queue.extend(scenarios)

    @property
    def remaining(self) -> int:
        """Return the number of scenarios that were not used yet."""
        return len(self._queue)

    async def received(self, count: int = 1) -> None:
        """Wait until this many requests have arrived in total."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on a free port of the loopback interface; yields the base URL. All connections end with the block."""
        async with serve(self._serve_connection) as port:
            yield f"http://127.0.0.1:{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        assert scope["type"] == "http", f"This fake speaks HTTP, not {scope['type']}."
        request = _recorded(
            scope["method"],
            scope["path"],
            query=scope["query_string"].decode("latin-1"),
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]],
            raw=await _read_body(receive),
        )
        scenario, headers = await self._take(request)
        await _answer_asgi(scenario, headers, receive=receive, send=send)

    async def _serve_connection(self, connection: Connection) -> None:
        while (head := await connection.read_request()) is not None:
            path, _, query = head.target.partition("?")
            request = _recorded(head.method, path, query=query, headers=head.headers, raw=head.body)
            scenario, headers = await self._take(request)
            answer = asyncio.ensure_future(_answer_socket(scenario, headers, connection=connection))
            gone = asyncio.ensure_future(connection.gone.wait())
            try:
                await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    request.left.set()
                    return
                if not await answer:
                    return
            except ConnectionError:
                request.left.set()
                return
            finally:
                answer.cancel()
                gone.cancel()
                await asyncio.gather(answer, gone, return_exceptions=True)

    async def _take(self, request: RecordedRequest) -> tuple[Scenario, dict[str, str]]:
        self.requests.append(request)
        number = len(self.requests)
        async with self._arrived:
            self._arrived.notify_all()
        scenario = self._choose(request)
        return scenario, {self._request_id_header: f"req_{number}", **scenario.response_headers()}

    def _choose(self, request: RecordedRequest) -> Scenario:
        if self.api_key is not None and request.api_key != self.api_key:
            return Scenario(status=401, body=self._error_body(401, "Incorrect API key provided."))
        if page := self.pages.get(f"{request.method} {request.path}"):
            return page
        if self._validate is not None and (refusal := self._validate(request)) is not None:
            status, body = refusal
            return Scenario(status=status, body=body)
        if self._queue:
            return self._queue.popleft()
        answer = self._respond(request) if self._respond is not None else None
        # Not retryable, because with retries a forgotten scenario would make the test hang.
        return answer or Scenario(
            status=500,
            body=self._error_body(500, "The fake server has no scenario left for this request."),
            headers={"x-should-retry": "false"},
        )


def _recorded(method: str, path: str, *, query: str, headers: Iterable[tuple[str, str]], raw: bytes) -> RecordedRequest:
    plain = {name.lower(): value for name, value in headers}
    auth_header = next((name for name in _AUTH_HEADERS if name in plain), None)
    api_key = plain.pop(auth_header).removeprefix("Bearer ") if auth_header else None
    return RecordedRequest(
        method=method,
        path=path,
        query=query,
        headers=plain,
        auth_header=auth_header,
        api_key=api_key,
        raw=raw,
        body=_parsed(raw),
    )


def _parsed(raw: bytes) -> Json:
    """Return the body as JSON; None if it is not JSON. Validators see `raw` too."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None


async def _pieces(scenario: Scenario) -> AsyncIterator[bytes]:
    """Yield the pieces of the body at their pace, up to the fault."""
    left = scenario.after_bytes if scenario.fault is not None else None
    async for data in _paced(scenario):
        size = scenario.packet_bytes or len(data) or 1
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            if left is not None:
                piece = piece[:left]
                left -= len(piece)
            if piece:
                yield piece
            if left == 0:
                return


async def _paced(scenario: Scenario) -> AsyncIterator[bytes]:
    if scenario.body is not None:
        yield _document(scenario.body)
        return
    loop = asyncio.get_running_loop()
    started = loop.time()
    sent = 0
    for event in scenario.events:
        if isinstance(event, asyncio.Event):
            await event.wait()
            continue
        if scenario.events_per_second and sent and sent % scenario.burst == 0:
            # Relative to the start, not to the last event, because a slow reader must not lower the rate permanently.
            await asyncio.sleep(max(0.0, started + sent / scenario.events_per_second - loop.time()))
        yield encode_event(event)
        sent += 1


def _document(body: Json) -> bytes:
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


async def _answer_socket(scenario: Scenario, headers: Mapping[str, str], *, connection: Connection) -> bool:
    """Send the answer. Return whether the connection can take another request."""
    if scenario.fault is not None and scenario.after_bytes is None:
        return await _strike(scenario.fault, connection)
    length = len(_document(scenario.body)) if scenario.body is not None else None
    if length is not None and scenario.fault is Fault.END:
        length = min(length, scenario.after_bytes or 0)
    await connection.start_response(scenario.status, headers, length=length)
    async for piece in _pieces(scenario):
        await connection.send_body(piece)
    if scenario.fault is not None and scenario.fault is not Fault.END:
        return await _strike(scenario.fault, connection)
    await connection.end_response()
    return True


async def _strike(fault: Fault, connection: Connection) -> bool:
    if fault is Fault.RESET:
        connection.reset()
    elif fault is Fault.STALL:
        await asyncio.get_running_loop().create_future()
    return False


async def _answer_asgi(scenario: Scenario, headers: Mapping[str, str], *, receive: Receive, send: Send) -> None:
    broken = scenario.fault in (Fault.RESET, Fault.CUT)
    if scenario.fault is not None and scenario.after_bytes is None:
        if broken:
            raise ConnectionResetError("The fake server closed the connection before it answered.")
        await _client_leaves(receive)
        return
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": scenario.status, "headers": encoded})
    async for piece in _pieces(scenario):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    if broken:
        raise ConnectionResetError("The fake server closed the connection in the middle of its answer.")
    if scenario.fault is Fault.STALL:
        await _client_leaves(receive)
        return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


async def _live(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
