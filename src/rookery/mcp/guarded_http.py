"""The HTTP client for servers that users name: guarded addresses, bounded answers, and classified failures.

Each address is checked when it is dialed. The check therefore also covers redirects, DNS names that change their
address, and pooled connections. An answer that is not an event stream is read here, up to a limit. A failure is
converted to an answer with a JSON-RPC error, because an exception would end the connection for all calls that use it.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from functools import cache
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpcore2
import httpx2
import msgspec

from rookery.mcp import tool_lists
from rookery.mcp.errors import McpError, Problem, ProblemKind
from rookery.mcp.server_config import Headers, OnUnauthorized, Unauthorized, shown
from rookery.runtime.address_guard import CONNECT_SECONDS, Blocked, Guard, Lookups, Unreachable

MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
WRITE_SECONDS = 30.0
# How long a server may think about `server/discover`, which servers of the session era do not know.
DISCOVER_SECONDS = 4.0
KEEPALIVE_SECONDS = 60.0
# Lines of an event stream: so many at once, and so many in a second. A notification has three.
BURST_LINES = 3_000
LINES_PER_SECOND = 600.0

_ERROR_CODE = -32000
_PROBLEM = "rookery_problem"
_UNAUTHORIZED = (401, 403)
_REDIRECTS = (301, 302, 303, 307, 308)


class _Envelope(msgspec.Struct):
    method: str = ""


_envelope = msgspec.json.Decoder(_Envelope)


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Dials only addresses that the guard has checked. The caller performs the TLS handshake with the host name."""

    def __init__(self, guard: Guard, lookups: Lookups | None = None) -> None:
        self._guard = guard
        self._lookups = lookups
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        seconds = CONNECT_SECONDS if timeout is None else min(timeout, CONNECT_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._guard.find(host.strip("[]"), port, lookups=self._lookups)
                for address in addresses[:-1]:
                    try:
                        return await self._dial(str(address), port, seconds / len(addresses), socket_options)
                    except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                        continue
                return await self._dial(str(addresses[-1]), port, seconds, socket_options)
        except TimeoutError:
            raise httpcore2.ConnectTimeout("it did not answer in time") from None

    async def _dial(
        self, address: str, port: int, seconds: float, options: Iterable[Any] | None
    ) -> httpcore2.AsyncNetworkStream:
        return await self._backend.connect_tcp(address, port, timeout=seconds, socket_options=options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("no address of a server is a socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@cache
def shared_ssl_context() -> ssl.SSLContext:
    """Return one TLS context for all connections, because loading the certificates takes 20 ms and a megabyte."""
    return httpx2.create_ssl_context()


def guarded_transport(guard: Guard, *, lookups: Lookups | None = None) -> httpx2.AsyncHTTPTransport:
    """Return a transport that dials only checked addresses and ignores proxy settings in the environment."""
    context = shared_ssl_context()
    transport = httpx2.AsyncHTTPTransport(verify=context)
    # The transport has no parameter for the backend.
    transport._pool = httpcore2.AsyncConnectionPool(
        ssl_context=context,
        max_connections=100,
        max_keepalive_connections=10,
        keepalive_expiry=KEEPALIVE_SECONDS,
        network_backend=GuardedBackend(guard, lookups),
    )
    return transport


def guarded_client(
    guard: Guard, *, seconds: float = 30.0, lookups: Lookups | None = None, **options: Any
) -> httpx2.AsyncClient:
    """Return a client for single requests, such as those of OAuth. It does not follow redirects."""
    return httpx2.AsyncClient(
        transport=guarded_transport(guard, lookups=lookups),
        timeout=httpx2.Timeout(seconds, connect=CONNECT_SECONDS),
        trust_env=False,
        follow_redirects=False,
        **options,
    )


async def read_bounded(response: httpx2.Response, max_bytes: int) -> bytes:
    """Read a body. Raise `TooLarge` if it exceeds the limit, and `ValueError` if it is compressed, because its size is
    then unknown.
    """
    if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise ValueError("it is compressed")
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    chunks, size = [], 0
    async for chunk in stream:
        size += len(chunk)
        if size > max_bytes:
            raise TooLarge(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


class TooLarge(Exception):
    """Raised if an answer exceeds its size limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"more than {max_bytes // 1024} KiB")


class ServerAuth(httpx2.Auth):
    """Adds the user's headers to each request. Repeats a refused request once if the user has a newer login."""

    def __init__(self, headers: Headers, on_unauthorized: OnUnauthorized) -> None:
        self._headers = headers
        self._on_unauthorized = on_unauthorized

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        await self._add_headers(request)
        response = yield request
        if response.status_code in _UNAUTHORIZED:
            challenge = response.headers.get("www-authenticate", "")
            if await self._on_unauthorized(Unauthorized(response.status_code, challenge)):
                await self._add_headers(request)
                yield request

    async def _add_headers(self, request: httpx2.Request) -> None:
        try:
            request.headers.update(dict(await self._headers()))
            request.extensions.pop(_PROBLEM, None)
        except McpError as error:
            # The transport answers with it, so that only this request fails.
            request.extensions[_PROBLEM] = error.problem


class ServerTransport(httpx2.AsyncBaseTransport):
    """The transport of one connection. It never raises: a failure becomes an answer, in which `problem_in` finds the
    problem.

    While `is_opening`, the first problem answers all further requests, because other ways to connect would fail in the
    same way and only take time.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, url: str, *, on_lost_session: Callable[[], None]) -> None:
        self._inner = inner
        self._url = url
        self._on_lost_session = on_lost_session
        # Tells our errors from those of the server.
        self._token = secrets.token_hex(8)
        self.is_opening = True
        self._fatal: Problem | None = None
        # A server that wants a login may answer the next way to connect with another error.
        self.login_problem: Problem | None = None
        self.status: int | None = None

    def problem_in(self, data: object) -> Problem | None:
        """Return the problem in the data of a JSON-RPC error; None if the server created the error."""
        if not isinstance(data, dict) or data.get("token") != self._token:
            return None
        return msgspec.convert(data["problem"], Problem)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.is_opening and self._fatal is not None:
            return self._failure(self._fatal, 599)
        if (problem := request.extensions.get(_PROBLEM)) is not None:
            return self._failure(problem, 599)
        method = _method_of(request)
        request.headers["accept-encoding"] = "identity"
        try:
            limit = DISCOVER_SECONDS if method == "server/discover" else None
            async with asyncio.timeout(limit):
                response = await self._inner.handle_async_request(request)
        except TimeoutError:
            return self._failure(Problem(ProblemKind.TIMEOUT, "The server did not answer in time."), 599)
        except Blocked as error:
            # The address is not shown, because it would reveal names of the server's network.
            why = f"{error.host} leads to an address of this machine or of a private network, which is not allowed."
            return self._fatal_failure(Problem(ProblemKind.BLOCKED, why))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, Unreachable) as error:
            why = f"The server cannot be reached: {_why(error)}."
            return self._fatal_failure(Problem(ProblemKind.UNREACHABLE, why))
        except httpx2.LocalProtocolError:
            # Its text has the header in it, which may be a credential.
            return self._failure(Problem(ProblemKind.INVALID, "A header for this server cannot be sent."), 599)
        except httpx2.RequestError as error:
            why = f"The connection to the server broke: {_why(error)}."
            return self._failure(Problem(ProblemKind.UNREACHABLE, why, may_have_run=True), 599)
        return await self._bounded(request, response, method)

    async def _bounded(self, request: httpx2.Request, response: httpx2.Response, method: str) -> httpx2.Response:
        self.status = response.status_code
        most = tool_lists.MAX_LIST_BYTES if method == "tools/list" else MAX_ANSWER_BYTES
        if response.is_success and response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
                await response.aclose()
                return self._failure(Problem(ProblemKind.INVALID, "The server sent a compressed answer."), 599)
            response.stream = _Events(response.stream, most, is_list=method == "tools/list", fail=self._event)
            return response
        is_running = method == "tools/call"
        try:
            body = await read_bounded(response, most if response.is_success else MAX_ERROR_BYTES)
        except TooLarge as error:
            why = f"The server sent an answer of {error}."
            return self._failure(Problem(ProblemKind.TOO_LARGE, why, may_have_run=is_running), 599)
        except (httpx2.RequestError, ValueError) as error:
            why = f"The server's answer could not be read: {_why(error)}."
            return self._failure(Problem(ProblemKind.INVALID, why, may_have_run=is_running), 599)
        finally:
            await response.aclose()
        if (problem := self._problem_of(request, response, body)) is not None:
            # Only an error is read as the answer to the request.
            failure = self._failure(problem, max(response.status_code, 400))
            failure.headers.update({key: value for key, value in response.headers.items() if key == "www-authenticate"})
            return failure
        if method == "tools/list" and response.is_success:
            body = sanitized_list(body)
        kept = {
            key: value
            for key, value in response.headers.items()
            if key not in ("content-length", "transfer-encoding", "content-encoding")
        }
        return httpx2.Response(response.status_code, headers=kept, content=body, request=request)

    def _problem_of(self, request: httpx2.Request, response: httpx2.Response, body: bytes) -> Problem | None:
        """Return the problem of an answer for which the `mcp` package would report no error, or a less exact one."""
        status = response.status_code
        if status in _REDIRECTS:
            return self._redirect_problem(request, response)
        if status < 400:
            return None
        if status == 401:
            return self._kept(Problem(ProblemKind.UNAUTHORIZED, "The server wants a login.", status=status))
        if status == 403:
            return self._kept(
                Problem(ProblemKind.FORBIDDEN, "The server does not allow this to the login.", status=status)
            )
        if "mcp-session-id" in request.headers and (status == 404 or (status == 400 and b"session" in body.lower())):
            self._on_lost_session()
            return Problem(ProblemKind.SESSION, "The server has ended the session.", status=status)
        if _is_rpc_error(body):
            return None
        return Problem(ProblemKind.HTTP, f"The server answered with status {status}.", status >= 500, status)

    def _redirect_problem(self, request: httpx2.Request, response: httpx2.Response) -> Problem | None:
        target = urljoin(str(request.url), response.headers.get("location", ""))
        here, there = urlsplit(str(request.url)), urlsplit(target)
        is_upgrade = here.hostname == there.hostname and (here.scheme, there.scheme) == ("http", "https")
        if (here.scheme, here.netloc) == (there.scheme, there.netloc) or is_upgrade:
            return None  # the package decides
        origin = shown(f"{there.scheme}://{there.netloc}")
        why = f"The server redirects to {origin}, which is not followed. Use that address if it is the right one."
        return self._kept(Problem(ProblemKind.REDIRECTED, why, status=response.status_code))

    def _kept(self, problem: Problem) -> Problem:
        # A refused login is not repeated for each way to connect, but the server may see another login in between.
        if self.is_opening and problem.kind is not ProblemKind.UNAUTHORIZED:
            self._fatal = problem
        elif self.is_opening:
            self.login_problem = problem
        return problem

    def _fatal_failure(self, problem: Problem) -> httpx2.Response:
        self._fatal = problem
        return self._failure(problem, 599)

    def _failure(self, problem: Problem, status: int) -> httpx2.Response:
        return httpx2.Response(
            status, headers={"content-type": "application/json"}, content=msgspec.json.encode(self._error(problem))
        )

    def _event(self, problem: Problem) -> bytes:
        # What was received of the event is discarded, under a name that is not listened for.
        return b"\nevent: discarded\n\ndata: " + msgspec.json.encode(self._error(problem)) + b"\n\n"

    def _error(self, problem: Problem) -> dict[str, Any]:
        data = {"token": self._token, "problem": msgspec.to_builtins(problem)}
        return {"jsonrpc": "2.0", "id": None, "error": {"code": _ERROR_CODE, "message": problem.text, "data": data}}


class _Events(httpx2.AsyncByteStream):
    """An event stream with limits on the size and rate of its events. Results of `tools/list` are sanitized while they
    pass.
    """

    def __init__(
        self, inner: httpx2.AsyncByteStream, max_bytes: int, *, is_list: bool, fail: Callable[[Problem], bytes]
    ) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._is_list = is_list
        self._fail = fail

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        budget, since = float(BURST_LINES), loop.time()
        size, line = 0, b""
        async for chunk in self._inner:
            lines = chunk.count(b"\n") or chunk.count(b"\r")
            if lines:
                now = loop.time()
                budget = min(BURST_LINES, budget + (now - since) * LINES_PER_SECOND) - lines
                since = now
                if budget < 0:
                    await asyncio.sleep(-budget / LINES_PER_SECOND)
            end = max(chunk.rfind(b"\n\n"), chunk.rfind(b"\r\n\r\n"))
            size = size + len(chunk) if end < 0 else len(chunk) - end
            if size > self._max_bytes:
                why = f"The server sent an answer of {TooLarge(self._max_bytes)}."
                yield self._fail(Problem(ProblemKind.TOO_LARGE, why, may_have_run=not self._is_list))
                return
            if not self._is_list:
                yield chunk
                continue
            *whole, line = (line + chunk).split(b"\n")
            if whole:
                yield b"".join(_sanitized_line(each) + b"\n" for each in whole)
        if line:
            yield _sanitized_line(line)


def _sanitized_line(line: bytes) -> bytes:
    if not line.startswith(b"data:"):
        return line
    return b"data: " + sanitized_list(line[5:].strip())


def sanitized_list(body: bytes) -> bytes:
    """Return the message with its list of tools sanitized. Other messages are returned unchanged."""
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return body
    if not isinstance(message, dict) or not isinstance(result := message.get("result"), dict):
        return body
    if "tools" not in result or "content" in result:
        return body
    return msgspec.json.encode({**message, "result": tool_lists.sanitized(result)})


def _method_of(request: httpx2.Request) -> str:
    if request.method != "POST":
        return ""
    try:
        return _envelope.decode(request.content).method
    except (msgspec.DecodeError, httpx2.RequestNotRead):
        return ""


def _is_rpc_error(body: bytes) -> bool:
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(message, dict) and isinstance(message.get("error"), dict)


def _why(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
