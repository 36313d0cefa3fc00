"""HTTP requests and responses, and the parser of requests.

The parser refuses ambiguous requests, such as those with two lengths, folded headers or a bare newline. Two programs
could parse them differently, which allows request smuggling.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from rookery.workspaces.agent.errors import AgentError, invalid

MAX_HEAD_BYTES = 16 * 1024
MAX_HEADERS = 64
MAX_JSON_BYTES = 1024 * 1024
MAX_KEY_CHARS = 200
_CHUNK_BYTES = 64 * 1024
_READ_S = 30.0  # the time limit for the next piece of a body
_MAX_TRAILER_LINES = 16

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(;[^\r\n]*)?\r\n")
_DIGITS = re.compile(r"[0-9]{1,15}")
_INTEGER = re.compile(r"-?[0-9]{1,15}")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_CHAT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = re.compile(rf"[\x21-\x7e]{{1,{MAX_KEY_CHARS}}}")
_MAX_ANCESTORS = 16

REASONS = {
    100: "Continue",
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    413: "Content Too Large",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
    507: "Insufficient Storage",
}


@dataclass(frozen=True)
class ChatHeaders:
    """The chat that a request is made for, and its ancestors. Requests of the server itself have no chat."""

    chat_id: str | None = None
    ancestor_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Head:
    """The request line and the headers of a request. Header names are in lower case."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    keep_alive: bool
    length: int | None  # None: chunked

    @property
    def expects_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"


class Reader(asyncio.StreamReader):
    """A stream reader with deadlines.

    `gone` is set as soon as the client has disconnected, even if no handler reads.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        self.gone.set()
        super().feed_eof()

    def set_exception(self, exc: Any) -> None:
        self.gone.set()
        super().set_exception(exc)

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Set a time limit. After it, the current read and all later reads raise a timeout."""
        # Before Python 3.12, `wait_for` creates a task for each read.
        timer = asyncio.get_running_loop().call_later(seconds, lambda: self.set_exception(asyncio.TimeoutError()))
        try:
            yield
        finally:
            timer.cancel()


class Body:
    """The body of one request. It is read from the connection on demand, and never beyond its end."""

    def __init__(self, reader: Reader, length: int | None, on_read: Callable[[], None]) -> None:
        self._reader = reader
        self._left = length  # None: chunked
        self._on_read = on_read
        self.begun = False
        self.complete = length == 0
        self._broken = False

    def left_at_most(self, size: int) -> bool:
        """Return whether the rest of the body has at most this size, or an unknown size and no error."""
        return not self._broken and (self._left is None or self._left <= size)

    async def chunks(self, max_bytes: int) -> AsyncIterator[bytes]:
        """Stream the rest of the body. Raise 413 if it has more than `max_bytes`."""
        if self._left is not None and self._left > max_bytes:
            raise _too_large(max_bytes)
        if not self.begun and not self.complete:
            self.begun = True
            self._on_read()
        source = self._of_known_length() if self._left is not None else self._chunked()
        seen = 0
        try:
            async for chunk in source:
                seen += len(chunk)
                if seen > max_bytes:
                    raise _too_large(max_bytes)
                yield chunk
        except AgentError:
            self._broken = True  # the beginning of the next request is unknown
            raise

    async def _of_known_length(self) -> AsyncIterator[bytes]:
        while self._left:
            chunk = await self._piece(self._left)
            self._left -= len(chunk)
            self.complete = self._left == 0
            yield chunk

    async def _chunked(self) -> AsyncIterator[bytes]:
        while not self.complete:
            size = await self._chunk_size()
            if size == 0:
                await self._skip_trailers()
                self.complete = True
                return
            while size:
                chunk = await self._piece(size)
                size -= len(chunk)
                yield chunk
            if await self._line() != b"\r\n":
                raise malformed("a chunk of the body is longer than its size")

    async def _chunk_size(self) -> int:
        found = _CHUNK_SIZE.fullmatch(await self._line())
        if found is None:
            raise malformed("a chunk of the body has no size")
        return int(found.group(1), 16)

    async def _skip_trailers(self) -> None:
        for _ in range(_MAX_TRAILER_LINES):
            if await self._line() == b"\r\n":
                return
        raise malformed("the body has too many trailers")

    async def _piece(self, most: int) -> bytes:
        try:
            with self._reader.deadline(_READ_S):
                chunk = await self._reader.read(min(most, _CHUNK_BYTES))
        except asyncio.TimeoutError:
            raise _too_slow() from None
        if not chunk:
            raise ConnectionResetError("the client left in the middle of a body")
        return chunk

    async def _line(self) -> bytes:
        try:
            with self._reader.deadline(_READ_S):
                line = await self._reader.readuntil(b"\r\n")
        except asyncio.TimeoutError:
            raise _too_slow() from None
        except asyncio.LimitOverrunError:
            raise malformed("a line of the body is too long") from None
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the client left in the middle of a body") from None
        return line


@dataclass
class Request:
    """A request as handlers see it. `gone` is set when the client has disconnected."""

    head: Head
    chat: ChatHeaders
    params: Mapping[str, str]
    query: Mapping[str, str]
    content: Body
    gone: asyncio.Event

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def headers(self) -> Mapping[str, str]:
        return self.head.headers

    @property
    def idempotency_key(self) -> str | None:
        key = self.headers.get("idempotency-key")
        if key is None:
            return None
        if _KEY.fullmatch(key) is None:
            raise invalid("Idempotency-Key", f"must be 1 to {MAX_KEY_CHARS} printable ASCII characters without spaces")
        return key

    @property
    def follows_links(self) -> bool:
        """Return whether paths of this request may contain symbolic links (header `X-Rookery-Links`)."""
        return self.headers.get("x-rookery-links") != "refuse"

    def text(self, name: str) -> str:
        """Return a required query parameter."""
        if not self.query.get(name):
            raise invalid(name, "is required")
        return self.query[name]

    def number(self, name: str, default: int, *, minimum: int = 0) -> int:
        """Return an integer query parameter, or the default if it is absent."""
        found = self.optional_number(name, minimum=minimum)
        return default if found is None else found

    def optional_number(self, name: str, *, minimum: int = 0) -> int | None:
        """Return an integer query parameter, or None when it is absent."""
        if name not in self.query:
            return None
        if _INTEGER.fullmatch(self.query[name]) is None:
            raise invalid(name, "must be a whole number")
        if int(self.query[name]) < minimum:
            raise invalid(name, f"must be at least {minimum}")
        return int(self.query[name])

    def seconds(self, name: str, *, cap: float) -> float:
        """Return a query parameter in seconds, at most `cap`; 0 if it is absent."""
        if name not in self.query:
            return 0.0
        if _SECONDS.fullmatch(self.query[name]) is None:
            raise invalid(name, "must be a number of seconds, 0 or more")
        return min(float(self.query[name]), cap)

    def body(self, max_bytes: int = MAX_JSON_BYTES) -> AsyncIterator[bytes]:
        """Stream the body. Raise 413 if it has more than `max_bytes`."""
        return self.content.chunks(max_bytes)

    async def read(self, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """Return the whole body."""
        return b"".join([chunk async for chunk in self.body(max_bytes)])

    async def json(self, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
        """Return the body as a JSON object. An empty body is an empty object."""
        return parse_object(await self.read(max_bytes))


@dataclass
class Response:
    """A response. A stream without a `length` is sent with chunked encoding."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    length: int | None = None

    @classmethod
    def json(cls, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        return cls(status, body, {"content-type": "application/json", **(headers or {})})

    @classmethod
    def streamed(
        cls, chunks: AsyncIterator[bytes], *, content_type: str, length: int | None = None, status: int = 200
    ) -> Response:
        return cls(status, b"", {"content-type": content_type}, chunks, length)

    @classmethod
    def of_error(cls, error: AgentError) -> Response:
        return cls.json(error.body(), error.status)


def malformed(what: str) -> AgentError:
    return AgentError(400, "malformed", f"The request is not valid HTTP: {what}.")


def _too_slow() -> AgentError:
    return AgentError(408, "too_slow", f"No part of the body arrived for {_READ_S:g} seconds.")


def _too_large(max_bytes: int) -> AgentError:
    return AgentError(413, "too_large", f"The body is larger than {max_bytes} bytes.")


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object from untrusted bytes. Raise 400 for invalid JSON, repeated keys, NaN and infinity."""
    if not data:
        return {}
    try:
        value = json.loads(
            data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_without_repeated_keys
        )
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise AgentError(400, "invalid", f"The body is not valid JSON: {reason}.") from None
    if not isinstance(value, dict):
        raise AgentError(400, "invalid", "The body must be a JSON object.")
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def parse_head(data: bytes) -> Head:
    """Parse the head of a request, with its empty line in `data`. Raise `AgentError` if it is invalid or ambiguous."""
    lines = data[:-4].decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or _TOKEN.fullmatch(parts[0]) is None:
        raise malformed("the first line is not a method, a target and a version")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise AgentError(505, "http_version", "Only HTTP/1.1 is supported.")
    headers = _parse_headers(lines[1:])
    path, query = _parse_target(target)
    connection = [token.strip().lower() for token in headers.get("connection", "").split(",")]
    keep_alive = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
    return Head(method, path, query, headers, keep_alive, _body_length(headers))


def _parse_headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise AgentError(431, "too_many_headers", f"A request has at most {MAX_HEADERS} headers.")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or _TOKEN.fullmatch(name) is None:
            raise malformed("a header has no valid name")
        if _CONTROL.search(value):
            raise malformed("a header has control characters")
        name = name.lower()
        if name in headers:
            raise malformed(f"the header {name} occurs twice")
        headers[name] = value.strip(" \t")
    return headers


def _parse_target(target: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    if not target.startswith("/") or "#" in target or any(not "\x21" <= char <= "\x7e" for char in target):
        raise malformed("the target is not a path")
    raw_path, mark, raw_query = target.partition("?")
    try:
        path = unquote(raw_path, errors="strict")
        query = parse_qsl(raw_query, keep_blank_values=True, strict_parsing=True, errors="strict") if raw_query else []
    except ValueError:
        raise malformed("the target is not encoded as UTF-8 with percent signs") from None
    if mark and not raw_query:
        query = []
    return path, tuple(query)


def _body_length(headers: Mapping[str, str]) -> int | None:
    encoding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if encoding is not None:
        if length is not None:
            raise malformed("it has both a length and an encoding")
        if encoding.lower() != "chunked":
            raise AgentError(501, "transfer_encoding", "The only supported transfer encoding is chunked.")
        return None
    if length is None:
        return 0
    if _DIGITS.fullmatch(length) is None:
        raise malformed("its length is not a number")
    return int(length)


def chat_headers(headers: Mapping[str, str]) -> ChatHeaders:
    """Return the chat ids of the headers. Invalid ids count as absent."""
    chat_id = headers.get("x-rookery-chat-id", "")
    if _CHAT_ID.fullmatch(chat_id) is None:
        return ChatHeaders()
    try:
        ancestors = json.loads(headers.get("x-rookery-ancestor-ids", "[]"))
    except (ValueError, RecursionError):
        ancestors = []
    if not isinstance(ancestors, list):
        ancestors = []
    good = [item for item in ancestors if isinstance(item, str) and _CHAT_ID.fullmatch(item) and item != chat_id]
    return ChatHeaders(chat_id, tuple(dict.fromkeys(good))[:_MAX_ANCESTORS])
