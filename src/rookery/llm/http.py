"""The HTTP client for model providers: opens a stream, reads chunks, closes. Only this module uses the HTTP library.

A token costs one read of the socket's buffer, see benchmarks/streaming.py, "paced". Closing is synchronous and drops
the socket immediately, so it works in a task that is being cancelled. All failures are `TransportError` without the
library's exception as context, because its text may contain the headers with the key.
"""

from __future__ import annotations

import asyncio
import io
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Protocol
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from rookery.llm.errors import TransportError, TransportFault
from rookery.runtime.shared_tick import SharedTick

# There is no read timeout, because a model may think for minutes. The silence limit of the loop ends a dead stream.
CONNECT_SECONDS = 10.0
POOL_SECONDS = 10.0
WRITE_SECONDS = 60.0
MAX_CONNECTIONS = 1000
# Longer than most tool calls between two steps, and shorter than the keep-alive of gateways.
IDLE_SECONDS = 60.0
# Gateways send long policies in headers, for which the library's default of 8 KiB is too small.
_MAX_HEADER_BYTES = 65_536
# A server that sends more than this in a tick does not stream word by word and is read without delay.
_MAX_TICK_BYTES = 16_384
_READ_BYTES = 65_536
# Time to wait for the end of the body after the last event, so that the connection can be used again.
_DRAIN_SECONDS = 0.05

_PROXY_NAMES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


class Tls(msgspec.Struct, frozen=True):
    """Certificate verification for a provider. `ca_file` replaces the default authorities."""

    ca_file: str | None = None
    verify: bool = True


class HttpStream(Protocol):
    """A response whose body is still arriving. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]: ...

    async def gathered(self) -> bytes:
        """Return what arrived until the next tick. Words that come after a silence are returned immediately."""
        ...

    async def read(self, limit: int) -> bytes:
        """Return the body, cut to `limit` bytes."""
        ...

    async def finish(self) -> bytes:
        """Keep the connection for the next request if the body ends immediately, else close it.

        Return the rest of the body, as far as it was read.
        """
        ...

    def close(self) -> None:
        """Drop the connection now, unless the body was read to its end. Idempotent."""
        ...

    def unread(self) -> bytes:
        """Return the bytes that arrived and were not read. Nothing is awaited; it also works after `close`."""
        ...


class HttpClient(Protocol):
    """The HTTP interface of the driver in `model`."""

    async def open(self, url: str, *, headers: Mapping[str, str], body: bytes) -> HttpStream:
        """POST the body and wait for the status and headers. Redirects are returned like any other response."""
        ...


class HttpClients:
    """The connections of a process to providers: one pool per base URL and TLS configuration."""

    def __init__(
        self,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        write_seconds: float = WRITE_SECONDS,
        tick: SharedTick | None = None,
    ) -> None:
        self._connect_seconds = connect_seconds
        self._write_seconds = write_seconds
        self._tick = tick or SharedTick()
        self._clients: dict[tuple[str, Tls], _Client] = {}
        self._is_closed = False

    def client(self, base_url: str, tls: Tls = Tls()) -> HttpClient:  # noqa: B008 - frozen
        return self._client(base_url, tls)

    async def get(self, base_url: str, path: str, *, headers: Mapping[str, str], tls: Tls = Tls()) -> HttpStream:  # noqa: B008
        """GET a document below a base URL, with the pool of that URL."""
        url = base_url.rstrip("/") + path
        return await self._client(base_url, tls).request("GET", url, headers=headers, body=b"")

    async def close(self) -> None:
        """Close all pools permanently. Open streams end with a `TransportError`."""
        self._is_closed = True
        for client in list(self._clients.values()):
            await client.close()

    def _client(self, base_url: str, tls: Tls) -> _Client:
        key = (base_url.rstrip("/"), tls)
        if key not in self._clients:
            self._clients[key] = _Client(
                tls,
                connect_seconds=self._connect_seconds,
                write_seconds=self._write_seconds,
                tick=self._tick,
                is_closed=self._is_closed,
            )
        return self._clients[key]


class _Client:
    """One pool. The session is created with the first request, because it belongs to the running event loop."""

    def __init__(
        self, tls: Tls, *, connect_seconds: float, write_seconds: float, tick: SharedTick, is_closed: bool = False
    ) -> None:
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._write_seconds = write_seconds
        self._tick = tick
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._is_closed = is_closed
        self._streams: WeakSet[_Stream] = WeakSet()

    async def open(self, url: str, *, headers: Mapping[str, str], body: bytes) -> HttpStream:
        return await self.request("POST", url, headers=headers, body=body)

    async def request(self, method: str, url: str, *, headers: Mapping[str, str], body: bytes) -> HttpStream:
        session = await self._get_session()
        socket = _Socket(self._write_seconds, len(body))
        token = _socket.set(socket)
        try:
            response = await session.request(
                method,
                url,
                # The library would write a bytes body in one piece, and warns about that from 1 MiB on.
                data=io.BytesIO(body) if body else None,
                headers=headers,
                allow_redirects=False,
                proxy=_find_proxy(url),
                upload_tracker=socket.upload,
            )
            stream = _Stream(response, socket, self._tick)
            self._streams.add(stream)
            return stream
        except BaseException as error:
            socket.abort()
            failure = socket.failure or _failure(error, is_gone=self._is_closed, connect_seconds=self._connect_seconds)
            if failure is None:
                raise
        finally:
            socket.stop_watching()
            _socket.reset(token)
        raise failure  # outside the handler, so that the library's exception is not its context

    async def close(self) -> None:
        self._is_closed = True
        # The library does not wake waiting readers when it closes their connection.
        for stream in list(self._streams):
            stream.close()
        async with self._opening:
            if self._session is not None:
                await self._session.close()

    async def _get_session(self) -> aiohttp.ClientSession:
        if self._session is not None and not self._is_closed:
            return self._session
        async with self._opening:
            if self._is_closed:
                raise TransportError(TransportFault.CONNECT, "This server is shutting down.")
            if self._session is None:
                self._session = _session(await _ssl_context(self._tls), self._connect_seconds)
            return self._session


def _session(tls: ssl.SSLContext | bool, connect_seconds: float) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(limit=MAX_CONNECTIONS, keepalive_timeout=IDLE_SECONDS, ssl=tls),
        timeout=aiohttp.ClientTimeout(total=None, connect=POOL_SECONDS + connect_seconds, sock_connect=connect_seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        # `trust_env` would also read .netrc, and then refuse requests that set their own key.
        trust_env=False,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        # Compressed streams arrive in bursts.
        headers={"accept-encoding": "identity"},
        skip_auto_headers=("user-agent",),
    )


async def _ssl_context(tls: Tls) -> ssl.SSLContext | bool:
    if not tls.verify:
        return False
    if tls.ca_file is None:
        return True
    failure: TransportError
    try:
        # Loading certificates takes tens of milliseconds.
        return await asyncio.to_thread(ssl.create_default_context, cafile=tls.ca_file)
    except (OSError, ssl.SSLError) as error:
        failure = TransportError(TransportFault.CERTIFICATE, f"The file of trusted authorities cannot be read: {error}")
    raise failure


def _find_proxy(url: str) -> str | None:
    """Return the proxy that the environment sets for this URL."""
    # `getproxies` reads the whole environment, which is slow.
    if not any(name in os.environ for name in _PROXY_NAMES):
        return None
    proxies = getproxies()
    parsed = URL(url)
    if not parsed.host or proxy_bypass(f"{parsed.host}:{parsed.port}"):
        return None
    return proxies.get(parsed.scheme) or proxies.get("all")


class _Socket:
    """The connection of one request. It is aborted if the request cannot be written in time."""

    __slots__ = ("_handle", "_last", "_seconds", "_size", "_transport", "failure", "upload")

    def __init__(self, write_seconds: float, size: int) -> None:
        self.upload = aiohttp.UploadTracker()
        self.failure: TransportError | None = None
        self._transport: asyncio.Transport | None = None
        self._seconds = write_seconds
        self._size = size
        self._last: tuple[int, int] | None = None
        self._handle: asyncio.TimerHandle | None = None

    def connected(self, transport: asyncio.Transport | None) -> None:
        self._transport = transport
        self._watch()

    def abort(self) -> None:
        """Drop the socket without waiting for unwritten data or for the peer's TLS close."""
        self.stop_watching()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def release(self) -> None:
        self._transport = None

    def stop_watching(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _watch(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._check)

    def _check(self) -> None:
        if self._transport is None:
            return
        written, buffered = self.upload.bytes_written, self._transport.get_write_buffer_size()
        if written >= self._size and buffered == 0:
            return
        if (written, buffered) == self._last or (self._last is None and written == 0):
            self.failure = TransportError(
                TransportFault.WRITE, f"The request could not be sent within {self._seconds:g} s."
            )
            self.abort()
            return
        self._last = (written, buffered)
        self._watch()


# The connector passes the connection to its request in this variable, because both run in the same task.
_socket: ContextVar[_Socket] = ContextVar("rookery_llm_socket")


class _Handler(ResponseHandler):
    """A protocol that resumes reading only if it was paused.

    The library resumes after every read, which was a tenth of the cost of a token.
    """

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:
            super().resume_reading(resume_parser)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, *, limit: int, keepalive_timeout: float, ssl: ssl.SSLContext | bool) -> None:
        super().__init__(limit=limit, keepalive_timeout=keepalive_timeout, ssl=ssl)
        # The library has no other way to replace the protocol.
        self._factory = partial(_Handler, loop=asyncio.get_running_loop())  # type: ignore[assignment]  # a subclass

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        _socket.get().connected(connection.transport)
        return connection


class _Stream:
    """One response. It uses the library's cheapest read, which returns everything that is buffered.

    From the second tick on, the event loop does not watch the socket between ticks. A word then costs neither a wake-up
    nor a system call of its own. A silence longer than a tick gives the socket back to the event loop.
    """

    __slots__ = (
        "__weakref__",
        "_fd",
        "_has_ticked",
        "_is_fast",
        "_loop",
        "_pause",
        "_paused",
        "_read",
        "_response",
        "_socket",
        "_tick",
        "headers",
        "status",
    )

    def __init__(self, response: aiohttp.ClientResponse, socket: _Socket, tick: SharedTick) -> None:
        self._response = response
        self._socket = socket
        self._tick = tick
        self._read = response.content.readany
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.Future[None] | None = None
        # The protocol of the connection while the event loop does not watch its socket.
        self._paused: ResponseHandler | None = None
        self._fd: int | None = None
        self._has_ticked = False
        self._is_fast = False
        self.status = response.status
        headers: dict[str, str] = {}
        for name, value in response.headers.items():
            lower = name.lower()
            headers[lower] = f"{headers[lower]}, {value}" if lower in headers else value
        self.headers: Mapping[str, str] = MappingProxyType(headers)

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._read()
        except BaseException as error:
            is_gone = self._response.closed or self._response.connection is None
            self.close()
            failure = _failure(error, is_gone=is_gone)
            if failure is None:
                raise
        else:
            if chunk:
                return chunk
            self._socket.release()
            raise StopAsyncIteration
        raise failure

    async def gathered(self) -> bytes:
        content = self._response.content
        if self._is_fast or content.is_eof():
            # A fast sender always has more data. Without this, other tasks would not run.
            await asyncio.sleep(0)
        else:
            if self._has_ticked:
                self._pause_reading()
            else:
                # An answer that ends within its first tick is not delayed.
                content.on_eof(self._on_eof)
            await self._wait_for_tick()
        chunk = self._take() or await self.__anext__()
        self._is_fast = len(chunk) >= _MAX_TICK_BYTES
        return chunk

    def _take(self) -> bytes:
        """Return the bytes that have arrived, or nothing; then the event loop watches the socket again.

        This also returns what arrived before the connection broke, which may contain the end of the answer.
        """
        content = self._response.content
        if self._paused is not None:
            if self._fd is not None:
                self._read_socket(self._paused, self._fd)
            else:
                self._resume_reading()
        if self._response.closed and content.exception() is not None:
            return b""
        chunk = content._read_nowait(-1)
        if not chunk or len(chunk) >= _MAX_TICK_BYTES:
            self._resume_reading()
        return chunk

    def _read_socket(self, protocol: ResponseHandler, fd: int) -> None:
        # The number of a closed socket may already belong to another connection.
        if protocol.transport is None or protocol.transport.is_closing():
            return
        try:
            data = os.read(fd, _READ_BYTES)
        except OSError:
            return
        if data:
            protocol.data_received(data)

    def _pause_reading(self) -> None:
        """Let data wait in the socket. TLS data is also received meanwhile, but not decrypted."""
        if self._paused is not None:
            return
        connection = self._response.connection
        if connection is None or connection.protocol is None:
            return
        transport = connection.transport
        if transport is None or transport.is_closing():
            return
        if self._fd is None and transport.get_extra_info("sslcontext") is None:
            self._fd = transport.get_extra_info("socket").fileno()
        transport.pause_reading()
        self._paused = connection.protocol

    def _resume_reading(self) -> None:
        protocol, self._paused = self._paused, None
        if protocol is not None and protocol.transport is not None and not protocol.transport.is_closing():
            protocol.transport.resume_reading()

    async def _wait_for_tick(self) -> None:
        self._pause = self._loop.create_future()
        self._tick.at_next(self._end_pause)
        try:
            await self._pause
        except BaseException:
            self._tick.forget(self._end_pause)
            raise
        finally:
            self._pause = None
        self._has_ticked = True

    def _end_pause(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    def _on_eof(self) -> None:
        # The connection is in the pool again. Its next request must be able to read.
        self._resume_reading()
        self._tick.forget(self._end_pause)
        self._end_pause()

    async def read(self, limit: int) -> bytes:
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) >= limit:
                break
        return bytes(body[:limit])

    async def finish(self) -> bytes:
        self._resume_reading()
        rest = b""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                rest = await self._read()
                # At most one more read. A server that sends more has not ended the body.
                if rest and not self._response.content.is_eof():
                    rest += await self._read()
        except (TimeoutError, aiohttp.ClientError, OSError, RuntimeError):
            pass
        finally:
            self.close()
        return rest

    def unread(self) -> bytes:
        return self._response.content._read_nowait(-1)

    def close(self) -> None:
        self._tick.forget(self._end_pause)
        self._end_pause()
        if self._response.content.is_eof():
            # The whole body has arrived, so the connection is in the pool again and may serve another request.
            self._socket.release()
            self._response.release()
            return
        self._socket.abort()
        self._response.close()


def _failure(error: BaseException, *, is_gone: bool, connect_seconds: float = CONNECT_SECONDS) -> TransportError | None:
    """Return the `TransportError` to raise instead; None if the original is a cancellation of this task or a bug."""
    if is_gone and isinstance(error, RuntimeError):
        return TransportError(TransportFault.CUT, "The connection was closed.")
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        # The socket was cancelled and not this task, so the connection is broken.
        return (
            None
            if task is None or task.cancelling()
            else TransportError(TransportFault.CUT, "The connection was cancelled.")
        )
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return TransportError(TransportFault.CONNECT, f"No connection within {connect_seconds:g} s.")
    for types, reason, describe in _FAILURES:
        if isinstance(error, types):
            return TransportError(reason, describe(error))
    return None


def _system_text(error: BaseException) -> str:
    cause = getattr(error, "os_error", error)
    return getattr(cause, "strerror", None) or str(cause) or type(error).__name__


# The first match wins. The library's texts are not used if they may contain the request.
_FAILURES: tuple[
    tuple[type[BaseException] | tuple[type[BaseException], ...], TransportFault, Callable[[BaseException], str]], ...
] = (
    ((aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError), TransportFault.REQUEST, lambda _: "The URL is not valid."),
    (
        (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError),
        TransportFault.CERTIFICATE,
        lambda error: str(getattr(error, "certificate_error", error)),
    ),
    (
        aiohttp.ClientHttpProxyError,
        TransportFault.CONNECT,
        lambda error: f"The proxy answered with status {getattr(error, 'status', 0)}.",
    ),
    (aiohttp.ClientConnectorError, TransportFault.CONNECT, _system_text),
    (
        aiohttp.ServerDisconnectedError,
        TransportFault.CUT,
        lambda _: "The server closed the connection without an answer.",
    ),
    (aiohttp.ClientPayloadError, TransportFault.CUT, lambda _: "The connection ended in the middle of the answer."),
    (aiohttp.ClientResponseError, TransportFault.CUT, lambda _: "The answer is not HTTP."),
    ((aiohttp.ClientOSError, OSError), TransportFault.CUT, _system_text),
    (aiohttp.ClientError, TransportFault.CUT, lambda error: type(error).__name__),
    # A header contains a line break, most often from a pasted key.
    (ValueError, TransportFault.REQUEST, lambda _: "A header or the URL is not valid."),
)
