"""HTTP connections: reads requests, authenticates them, calls the handler of the route, and sends the response.

Every request is authenticated before its path is looked up. A handler runs to its end even if its client disconnects,
so that no write is interrupted. Handlers that wait watch `Request.gone`.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import traceback
from collections.abc import Coroutine
from typing import Any

from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.server.http import (
    MAX_HEAD_BYTES,
    REASONS,
    Body,
    Head,
    Reader,
    Request,
    Response,
    chat_headers,
    malformed,
    parse_head,
)
from rookery.workspaces.agent.server.routing import Router, checked_query
from rookery.workspaces.agent.shared_state import Agent

MAX_CONNECTIONS = 128
# Chosen: longer than the five minutes after which the server closes an idle connection.
IDLE_S = 360.0
UNAUTHENTICATED_IDLE_S = 10.0  # before the first authenticated request
HEAD_S = 10.0
SEND_S = 60.0
# The connection is kept if the unread rest of a body is at most this large.
DRAIN_BYTES = 256 * 1024
LINGER_BYTES = 64 * 1024 * 1024
LINGER_S = 5.0


class Server:
    """Accepts connections and serves their requests."""

    def __init__(self, agent: Agent, router: Router) -> None:
        self._agent = agent
        self._router = router
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._refusals: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None

    async def listen_unix(self, path: str) -> None:
        """Listen on a Unix socket."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        self._server = await asyncio.get_running_loop().create_unix_server(self._protocol, sock=listener, backlog=256)

    async def listen_tcp(self, host: str, port: int) -> int:
        """Listen on a TCP port and return it."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._protocol, host=host, port=port, backlog=256)
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._connections.values(), *self._refusals]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(Reader(MAX_HEAD_BYTES), self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, Reader)
        if len(self._connections) >= MAX_CONNECTIONS and not self._close_idle():
            refusal = asyncio.ensure_future(Connection(self._agent, self._router, reader, writer).refuse())
            self._refusals.add(refusal)
            refusal.add_done_callback(self._refusals.discard)
            return
        connection = Connection(self._agent, self._router, reader, writer)
        task = asyncio.ensure_future(connection.run())
        self._connections[connection] = task
        task.add_done_callback(lambda _: self._forget(connection))

    def _forget(self, connection: Connection) -> None:
        # A task that is canceled before it begins never closes its connection, so it is closed here.
        self._connections.pop(connection, None)
        connection.close()

    def _close_idle(self) -> bool:
        """Close the connection that has been idle longest. Return False if none is idle."""
        idle = [connection for connection in self._connections if connection.idle_since is not None]
        if not idle:
            return False
        oldest = min(idle, key=lambda connection: connection.idle_since or 0.0)
        self._connections.pop(oldest).cancel()
        return True


class Connection:
    """One connection. It serves one request at a time."""

    def __init__(self, agent: Agent, router: Router, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self._agent = agent
        self._router = router
        self._reader = reader
        self._writer = writer
        self._is_authenticated = False
        self.idle_since: float | None = agent.clock.monotonic()

    async def run(self) -> None:
        """Serve requests until the client closes the connection, is idle for too long, or sends an invalid request."""
        await self._run_and_close(self._serve_all())

    async def refuse(self) -> None:
        """Respond with 503, because there are too many connections."""
        error = AgentError(503, "too_many_connections", f"The agent serves at most {MAX_CONNECTIONS} connections.")
        await self._run_and_close(self._send_last(error))

    async def _run_and_close(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # the client has disconnected, or did not read the response in time
        except Exception:
            self._agent.log(f"connection failed\n{traceback.format_exc()}")
        finally:
            self.close()

    def close(self) -> None:
        self._writer.close()

    async def _serve_all(self) -> None:
        while await self._serve_one():
            self.idle_since = self._agent.clock.monotonic()

    async def _send_last(self, error: AgentError) -> None:
        await self._send(Response.of_error(error), head=None, keep_alive=False)
        await self._linger()

    async def _serve_one(self) -> bool:
        """Serve one request. Return False when the connection must be closed."""
        try:
            data = await self._read_head()
            if data is None:
                return False
            self.idle_since = None
            head = parse_head(data)
        except AgentError as error:
            # The end of an invalid request is unknown, so the connection cannot be used again.
            await self._send_last(error)
            return False
        content = Body(self._reader, head.length, lambda: self._continue(head))
        response = await self._respond(head, content)
        # A client that expects `100 Continue` and did not get it may still send its body.
        body_may_follow = head.expects_continue and not content.begun and not content.complete
        keep_alive = head.keep_alive and not body_may_follow and content.left_at_most(DRAIN_BYTES)
        await self._send(response, head, keep_alive)
        if content.complete:
            return keep_alive
        if keep_alive and await self._drain(content):
            return True
        await self._linger()
        return False

    async def _read_head(self) -> bytes | None:
        """Return the head of the next request with its empty line; None if the client has closed the connection."""
        with self._reader.deadline(IDLE_S if self._is_authenticated else UNAUTHENTICATED_IDLE_S):
            first = await self._reader.read(1)
        if not first:
            return None
        try:
            with self._reader.deadline(HEAD_S):
                return first + await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            message = f"The first line and the headers are larger than {MAX_HEAD_BYTES} bytes."
            raise AgentError(431, "head_too_large", message) from None
        except asyncio.IncompleteReadError:
            raise malformed("it ends before its headers do") from None

    async def _respond(self, head: Head, content: Body) -> Response:
        try:
            self._authenticate(head)
            self._is_authenticated = True
            route, params = self._router.find(head)
            query = checked_query(route, head)
            request = Request(head, chat_headers(head.headers), params, query, content, self._reader.gone)
            return await route.handler(request)
        except AgentError as error:
            return Response.of_error(error)
        except ConnectionError:
            raise
        except Exception:
            self._agent.log(f"{head.method} {head.path} failed\n{traceback.format_exc()}")
            return Response.of_error(AgentError(500, "internal", "The workspace agent failed. Its log has the reason."))

    def _authenticate(self, head: Head) -> None:
        scheme, _, token = head.headers.get("authorization", "").partition(" ")
        good = hmac.compare_digest(token.strip().encode("latin-1"), self._agent.token.encode())
        if scheme.lower() != "bearer" or not good:
            raise AgentError(401, "unauthorized", "The token is missing, or is not the token of this workspace.")
        generation = self._agent.config.generation
        if head.headers.get("x-rookery-generation") != str(generation):
            message = f"This workspace is at generation {generation}. It was started again since you connected."
            raise AgentError(409, "generation", message)

    def _continue(self, head: Head) -> None:
        if head.expects_continue:
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _drain(self, content: Body) -> bool:
        """Read the rest of the body, so that the connection can be used again. Return False if that fails."""
        try:
            with self._reader.deadline(HEAD_S):
                async for _ in content.chunks(DRAIN_BYTES):
                    pass
        except (AgentError, OSError, asyncio.TimeoutError):
            return False
        return content.complete

    async def _linger(self) -> None:
        """Read for a moment before the close. A close with unread bytes would discard the response."""
        self._writer.write_eof()
        left = LINGER_BYTES
        with self._reader.deadline(LINGER_S):
            while left > 0:
                data = await self._reader.read(64 * 1024)
                if not data:
                    return
                left -= len(data)

    async def _send(self, response: Response, head: Head | None, keep_alive: bool) -> None:
        try:
            await self._send_parts(response, head, keep_alive)
        finally:
            # A stream may hold a file or a subscription, so it is closed even if nothing was sent.
            close = getattr(response.stream, "aclose", None)
            if close is not None:
                await close()

    async def _send_parts(self, response: Response, head: Head | None, keep_alive: bool) -> None:
        is_head = head is not None and head.method == "HEAD"
        self._writer.write(_encode(response, keep_alive=keep_alive, without_body=is_head))
        await self._flush()
        if response.stream is None or is_head:
            return
        chunked = response.length is None
        sent = 0
        async for chunk in response.stream:
            if not chunk:
                continue
            sent += len(chunk)
            self._writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
            await self._flush()
        if chunked:
            self._writer.write(b"0\r\n\r\n")
            await self._flush()
        elif sent != response.length:
            # The length was already announced, so only an early close can signal the error.
            raise ConnectionAbortedError("a stream does not have the announced length")

    async def _flush(self) -> None:
        timer = asyncio.get_running_loop().call_later(SEND_S, self._writer.transport.abort)
        try:
            await self._writer.drain()
        finally:
            timer.cancel()


def _encode(response: Response, *, keep_alive: bool, without_body: bool = False) -> bytes:
    """Return the head of a response, and its body unless that is a stream."""
    lines = [f"HTTP/1.1 {response.status} {REASONS.get(response.status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    if response.status not in (204, 304):
        if response.stream is None:
            lines.append(f"content-length: {len(response.body)}")
        elif response.length is None:
            lines.append("transfer-encoding: chunked")
        else:
            lines.append(f"content-length: {response.length}")
    lines.append(f"connection: {'keep-alive' if keep_alive else 'close'}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
    return head if without_body or response.stream is not None else head + response.body
