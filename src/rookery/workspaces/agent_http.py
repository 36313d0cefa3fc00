"""HTTP requests to the agent of one boot over kept connections, and the pools of these connections.

Responses are untrusted, so bodies are read up to a limit. Errors contain the agent's message without method, URL or
status, because they are for the model.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import aiohttp

from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.tracing import names, spans
from rookery.telemetry.tracing.spans import NO_SPAN, Kind, Span
from rookery.workspaces import agent_messages
from rookery.workspaces.agent_messages import BadAnswer, Problem
from rookery.workspaces.agent_protocol import AgentLimits, AgentTcpConnector, AgentUnixConnector, ProtocolBroken
from rookery.workspaces.drivers.driver_interface import Connector, DriverError
from rookery.workspaces.errors import AgentCutOff, AgentError, AgentUnreachable
from rookery.workspaces.relayed_connector import REFUSED_HEADER, RelayedConnector, Target

REQUEST_SECONDS = 30.0
UPLOAD_SECONDS = 120.0
# A request that waits on the agent gets this much time in addition to its wait.
WAIT_SLACK_SECONDS = 15.0
# The agent accepts 128 connections. A running command uses two, and a request to stop it must not wait for one.
MAX_CONNECTIONS = 64
POOL_IDLE_SECONDS = 300.0
# Shorter than the time after which the relaying replica closes an idle connection.
RELAY_IDLE_SECONDS = 15.0
# Larger than every JSON response of the protocol. The largest has a diff of 3 MiB.
MAX_JSON_BYTES = 8 * 1024 * 1024
_MAX_PROBLEM_BYTES = 256 * 1024
_HOST = "http://agent"


@dataclass(frozen=True, slots=True)
class ChatHeaders:
    """The chat that a request is made for, and its ancestors. The ids are opaque for the agent."""

    chat_id: UUID | None = None
    ancestor_ids: tuple[UUID, ...] = ()

    def as_headers(self) -> dict[str, str]:
        if self.chat_id is None:
            return {}
        headers = {"X-Rookery-Chat-Id": str(self.chat_id)}
        if self.ancestor_ids:
            headers["X-Rookery-Ancestor-Ids"] = json.dumps([str(each) for each in self.ancestor_ids])
        return headers


@dataclass(slots=True, kw_only=True)
class Request:
    """One request. A GET, or a request with a key, is repeated if a kept connection is dead.

    `result_name` is the name of the file for output that does not fit a view. Without `follows_links` the agent refuses
    paths with symbolic links.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    key: UUID | None = None
    result_name: str | None = None
    follows_links: bool = True
    seconds: float = REQUEST_SECONDS
    max_bytes: int = MAX_JSON_BYTES

    @property
    def may_repeat(self) -> bool:
        return self.method == "GET" or self.key is not None


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. With `is_replay` it is the repeated response of an earlier request with the same key."""

    status: int
    body: bytes
    is_replay: bool = False


class AgentHttp:
    """The connections of this replica to one boot of a workspace. They are opened on first use.

    If the agent breaks the protocol, `on_cut_off` is called with the reason, and all further requests fail.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        token: str,
        generation: int,
        clock: Clock,
        on_cut_off: Callable[[str], None] | None = None,
    ) -> None:
        self._connector = connector
        self._limits = AgentLimits(on_cut_off)
        self._identity = {"Authorization": f"Bearer {token}", "X-Rookery-Generation": str(generation)}
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False
        self.generation = generation
        self.open_requests = 0
        self.used_at = clock.monotonic()

    async def call(self, request: Request, chat: ChatHeaders) -> Answer:
        """Send a request and return its response. Raise `AgentError` or `AgentUnreachable` if it fails."""
        try:
            async with self._clock.deadline(request.seconds, "agent-request"), self._sent(request, chat) as response:
                data = await _read(response, request.max_bytes)
                _check(response.status, data)
                return Answer(response.status, data, response.headers.get("Idempotent-Replay") == "1")
        except DeadlineExceeded as error:
            raise _late(request.seconds) from error

    @asynccontextmanager
    async def stream(self, request: Request, chat: ChatHeaders) -> AsyncIterator[aiohttp.StreamReader]:
        """Stream the body of a response. `request.seconds` limits the wait for the head; the caller limits the rest."""
        async with self._sent(request, chat, head_seconds=request.seconds) as response:
            if response.status >= 400:
                _check(response.status, await _read(response, _MAX_PROBLEM_BYTES))
            try:
                yield response.content
            except aiohttp.ClientError as error:
                raise AgentUnreachable(f"The connection to the workspace agent broke: {_reason(error)}.") from error

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Count the time of a `with` block as event loop time of this workspace."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._limits.share.spend(time.perf_counter() - began)

    async def close(self) -> None:
        self._is_closed = True
        async with self._opening:
            if self._session is not None:
                await self._session.close()
                self._session = None
        await self._connector.close()

    @asynccontextmanager
    async def _sent(
        self, request: Request, chat: ChatHeaders, *, head_seconds: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        self.open_requests += 1
        span = _start_span(request)
        try:
            response = await self._send_within(request, chat, head_seconds, span)
            span.set({names.HTTP_STATUS: response.status})
            if head_seconds is not None:
                span.end()  # the body may be streamed for hours
            try:
                await self._check_relay(response)
                yield response
            finally:
                # A connection with unread bytes of a response must not be used again.
                response.release() if response.content.at_eof() else response.close()
        except BaseException as error:
            span.fail(spans.error_type(error))
            raise
        finally:
            span.end()
            self.open_requests -= 1
            self.used_at = self._clock.monotonic()

    async def _check_relay(self, response: aiohttp.ClientResponse) -> None:
        """Raise `AgentUnreachable` if the relaying replica, and not the agent, refused the request."""
        if isinstance(self._connector, RelayedConnector) and REFUSED_HEADER in response.headers:
            self._connector.failed()
            problem = _problem(await _read(response, _MAX_PROBLEM_BYTES))
            raise AgentUnreachable(problem.message or "The server of the workspace's machine refused the request.")

    async def _send_within(
        self, request: Request, chat: ChatHeaders, seconds: float | None, span: Span
    ) -> aiohttp.ClientResponse:
        if seconds is None:
            return await self._send_repeating(request, chat, span)
        try:
            async with self._clock.deadline(seconds, "agent-head"):
                return await self._send_repeating(request, chat, span)
        except DeadlineExceeded as error:
            raise _late(seconds) from error

    async def _send_repeating(self, request: Request, chat: ChatHeaders, span: Span) -> aiohttp.ClientResponse:
        is_repeated = is_prepared = False
        while True:
            seen = SimpleNamespace(is_reused=False)
            try:
                self._limits.check()
                return await self._send(request, chat, span, seen)
            except ProtocolBroken as error:
                if self._limits.reason is not None:
                    raise AgentCutOff(self._limits.reason) from error
                raise AgentUnreachable(f"The workspace does not answer properly: {error}.") from error
            except aiohttp.ClientConnectorError as error:
                # No byte of the request was sent, so every request may be repeated.
                if is_prepared or not await self._restore_path():
                    raise _unreachable(error) from error
                is_prepared = True
            except aiohttp.ClientConnectionError as error:
                if is_repeated or not (seen.is_reused and request.may_repeat):
                    raise _broken(error) from error
                is_repeated = True
            except aiohttp.ClientError as error:
                raise _broken(error) from error

    async def _restore_path(self) -> bool:
        """Restore the path to the agent after a refused connection. Return whether the request can be repeated.

        A lost tunnel is opened again. With a relay, the next request uses another replica.
        """
        if isinstance(self._connector, RelayedConnector):
            self._connector.failed()
            return False
        before = self._connector.unix_path
        async with self._opening:
            await self._prepare()
            if self._connector.unix_path != before and self._session is not None:
                await self._session.close()
                self._session = None
        return True

    async def _prepare(self) -> None:
        try:
            await self._connector.prepare()
        except (DriverError, OSError) as error:
            raise AgentUnreachable(f"The workspace cannot be reached: {error}") from error

    async def _send(
        self, request: Request, chat: ChatHeaders, span: Span, seen: SimpleNamespace
    ) -> aiohttp.ClientResponse:
        session = await self._get_session()
        base, headers = _HOST, {**self._identity, **chat.as_headers()}
        if isinstance(self._connector, RelayedConnector):
            target = await self._target(self._connector)
            base, headers = target.url, {**headers, **target.headers}
        if span.context is not None:
            headers[spans.HEADER] = span.context.traceparent
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if request.key is not None:
            headers["Idempotency-Key"] = str(request.key)
        if request.result_name is not None:
            headers["X-Rookery-Result"] = request.result_name
        if not request.follows_links:
            headers["X-Rookery-Links"] = "refuse"
        return await session.request(
            request.method,
            f"{base}{request.path}",
            params=dict(request.query),
            # Sent in pieces, because a large body in one piece would block other requests.
            data=None if request.body is None else io.BytesIO(request.body),
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=seen,
        )

    async def _target(self, connector: RelayedConnector) -> Target:
        try:
            return await connector.target()
        except (DriverError, OSError) as error:
            raise AgentUnreachable(f"The workspace cannot be reached: {error}") from error

    async def _get_session(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._is_closed:
                raise AgentUnreachable("The connection to the workspace was closed.")
            if self._session is None:
                self._session = await self._new_session()
            return self._session

    async def _new_session(self) -> aiohttp.ClientSession:
        await self._prepare()
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        return aiohttp.ClientSession(
            connector=self._transport(),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            trace_configs=[tracing],
            read_bufsize=256 * 1024,
        )

    def _transport(self) -> aiohttp.BaseConnector:
        if isinstance(self._connector, RelayedConnector):
            tls = self._connector.tls if self._connector.tls is not None else True
            return AgentTcpConnector(self._limits, ssl=tls, limit=MAX_CONNECTIONS, keepalive_timeout=RELAY_IDLE_SECONDS)
        path = self._connector.unix_path
        if path is None:
            raise AgentUnreachable("The workspace cannot be reached: its driver has no connection to its agent.")
        return AgentUnixConnector(path, self._limits, limit=MAX_CONNECTIONS, keepalive_timeout=POOL_IDLE_SECONDS)


class AgentPools:
    """The pools of this replica, one per workspace and boot. Idle pools are closed when others are requested.

    When an agent breaks the protocol, `on_cut_off` is called with the workspace, its boot and the reason.
    """

    def __init__(self, clock: Clock, on_cut_off: Callable[[UUID, int, str], None] | None = None) -> None:
        self._clock = clock
        self._on_cut_off = on_cut_off
        self._pools: dict[tuple[UUID, int], AgentHttp] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def get(self, workspace_id: UUID, generation: int, *, token: str, connector: Connector) -> AgentHttp:
        self._sweep(workspace_id, generation)
        key = (workspace_id, generation)
        if key not in self._pools:
            self._pools[key] = AgentHttp(
                connector,
                token=token,
                generation=generation,
                clock=self._clock,
                on_cut_off=None if self._on_cut_off is None else partial(self._on_cut_off, workspace_id, generation),
            )
        pool = self._pools[key]
        pool.used_at = self._clock.monotonic()
        return pool

    def find(self, workspace_id: UUID, generation: int) -> AgentHttp | None:
        return self._pools.get((workspace_id, generation))

    def drop(self, workspace_id: UUID, generation: int) -> None:
        """Close the connections of a boot that has ended."""
        if (pool := self._pools.pop((workspace_id, generation), None)) is not None:
            self._close_soon(pool)

    async def close(self) -> None:
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _sweep(self, workspace_id: UUID, generation: int) -> None:
        now = self._clock.monotonic()
        for (each_id, each_generation), pool in list(self._pools.items()):
            is_idle = not pool.open_requests and now - pool.used_at >= POOL_IDLE_SECONDS
            is_outdated = each_id == workspace_id and each_generation < generation and not pool.open_requests
            if is_idle or is_outdated:
                self.drop(each_id, each_generation)

    def _close_soon(self, pool: AgentHttp) -> None:
        task = asyncio.create_task(pool.close(), name="agent-pool-close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


# The id of a process, which is chosen by the model.
_PROCESS_ID = re.compile(r"(?<=/v1/processes/)[^/]+")


def _start_span(request: Request) -> Span:
    """Start the span of a request. The caller ends it. It has neither query nor body, which have paths and commands."""
    if not spans.is_on():
        return NO_SPAN
    template = _PROCESS_ID.sub("{id}", request.path)
    attributes = {names.HTTP_METHOD: request.method, names.URL_TEMPLATE: template}
    return spans.start(f"agent {request.method} {template}", Kind.CLIENT, attributes)


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, params: Any) -> None:
    context.trace_request_ctx.is_reused = True


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    chunks, size = [], 0
    try:
        while chunk := await response.content.readany():
            size += len(chunk)
            if size > max_bytes:
                raise AgentError(502, "bad_answer", f"The workspace agent's answer is larger than {max_bytes} bytes.")
            chunks.append(chunk)
    except aiohttp.ClientError as error:
        raise _broken(error) from error
    return b"".join(chunks)


def _late(seconds: float) -> AgentUnreachable:
    return AgentUnreachable(f"The workspace agent did not answer within {seconds:g} s.", timed_out=True)


def _check(status: int, data: bytes) -> None:
    """Raise `AgentError` if the status is an error or a redirect."""
    if status < 400 and status not in (301, 302, 303, 307, 308):
        return
    problem = _problem(data)
    message = problem.message.strip() or f"The workspace agent refused the request ({status})."
    raise AgentError(status, problem.code or "error", message, problem.fields)


def _problem(data: bytes) -> Problem:
    try:
        return agent_messages.decode(data, Problem)
    except BadAnswer:
        return Problem()


def _unreachable(error: aiohttp.ClientConnectorError) -> AgentUnreachable:
    return AgentUnreachable(f"The workspace agent cannot be reached: {error.os_error.strerror or 'no connection'}.")


def _broken(error: aiohttp.ClientError) -> AgentUnreachable:
    return AgentUnreachable(f"The connection to the workspace agent broke: {_reason(error)}.")


def _reason(error: aiohttp.ClientError) -> str:
    # Messages of the library contain the socket path, which must not be shown.
    return getattr(error, "strerror", None) or type(error).__name__
