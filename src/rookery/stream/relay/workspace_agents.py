"""Workspace agents for replicas on other machines: requests are forwarded to the agent's socket on this machine.

The endpoint checks the sending replica and the workspace, but not the request itself. The agent checks its own token,
and bodies are forwarded unchanged in both directions.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
from starlette.types import Receive, Scope, Send
from yarl import URL

from rookery.runtime.clock import Clock
from rookery.store.db import replica_presence
from rookery.store.db.replica_presence import ReplicaState
from rookery.stream.relay import dial_tokens
from rookery.stream.relay.dial_tokens import TokenCheck, TokenRefused
from rookery.stream.relay.link import NoAddress, check_url
from rookery.stream.ws import Refusal
from rookery.telemetry.log import get_logger
from rookery.telemetry.tracing import spans
from rookery.telemetry.tracing.spans import Kind
from rookery.workspaces.agent_protocol import AgentLimits, AgentUnixConnector
from rookery.workspaces.drivers.driver_interface import Connector, DriverError
from rookery.workspaces.relayed_connector import PATH, REFUSED_HEADER, TOKEN_HEADER, Peer

log = get_logger("stream.relay")

CONNECT_SECONDS = 10.0
MAX_LIMITS = 4096
# Finds the connection to the agent of a workspace on this machine; None when no agent runs.
FindAgent = Callable[[UUID], Awaitable[Connector | None]]
# Called for an agent that broke the protocol, with the workspace, its boot number and the reason.
OnCutOff = Callable[[UUID, int, str], None]

_REFUSED = {REFUSED_HEADER: "1"}
_UNAUTHENTICATED = Refusal(
    status=401, code="unauthenticated", message="This address is for replicas of Rookery.", headers=_REFUSED
)
_NO_AGENT = Refusal(
    status=404, code="not_running", message="The workspace does not run on this machine.", headers=_REFUSED
)
_SILENT = Refusal(
    status=502, code="agent_unreachable", message="The workspace agent cannot be reached.", headers=_REFUSED
)
# Headers that belong to one connection or to the replicas. They are not forwarded.
_DROPPED = frozenset(
    {b"host", b"connection", b"transfer-encoding", b"content-length", b"accept-encoding", TOKEN_HEADER.lower().encode()}
)
_KEPT = ("content-type", "content-length", "idempotent-replay")


class AgentPeers:
    """Replicas on other machines, for requests to agents there."""

    def __init__(
        self, replica_id: UUID, *, key: bytes, pool: asyncpg.Pool, clock: Clock, tls: ssl.SSLContext | None
    ) -> None:
        self._replica_id = replica_id
        self._key = key
        self._pool = pool
        self._clock = clock
        self._tls = tls

    @property
    def tls(self) -> ssl.SSLContext | None:
        return self._tls

    async def of_node(self, node: str) -> Sequence[Peer]:
        async with self._pool.acquire() as conn:
            found = await replica_presence.list_replicas(conn)
        return [
            Peer(each.replica.id, _address(each.replica.relay_url))
            for each in found
            if each.replica.host_id == node and each.state is ReplicaState.ALIVE
        ]

    def mint(self, peer: Peer) -> str:
        return dial_tokens.mint(self._key, src=self._replica_id, dst=peer.id, clock=self._clock)


def _address(url: str | None) -> str | None:
    """Return the HTTP address of the same listener. Connections to other machines are always encrypted."""
    try:
        check_url(url or "")
    except NoAddress:
        return None
    return None if url is None else "http" + url.removeprefix("ws").rstrip("/")


class AgentEndpoint:
    """The ASGI application below `PATH`."""

    def __init__(self, find: FindAgent, check: TokenCheck, on_cut_off: OnCutOff | None = None) -> None:
        self._find = find
        self._check = check
        self._on_cut_off = on_cut_off
        # The agents by start of a workspace. The least recently used entries are dropped first.
        self._limits: OrderedDict[tuple[UUID, int], AgentLimits] = OrderedDict()
        self.passed = 0

    @staticmethod
    def takes(scope: Scope) -> bool:
        return bool(scope["type"] == "http" and scope["path"].startswith(f"{PATH}/"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._is_peer(scope):
            await _refuse(send, _UNAUTHENTICATED)
            return
        named, _, tail = _raw_path(scope).removeprefix(f"{PATH}/").partition("/")
        connector = await self._found(named)
        if connector is None or connector.unix_path is None:
            await _refuse(send, _NO_AGENT)
            return
        self.passed += 1
        try:
            limits = self._limits_of(UUID(named), scope)
            if limits.reason is not None:
                await _refuse(send, _SILENT)
                return
            with spans.Active(_start_span(scope), ends=True):
                await _ForwardedRequest(scope, receive, send, limits).run(connector.unix_path, f"/{tail}")
        finally:
            await connector.close()

    def _limits_of(self, workspace_id: UUID, scope: Scope) -> AgentLimits:
        """Return the usage and cut-off state of the agent. An agent answers only requests that name its boot."""
        sent = dict(scope["headers"]).get(b"x-rookery-generation", b"")
        key = (workspace_id, int(sent) if sent.isdigit() and len(sent) < 10 else 0)
        if key not in self._limits:
            told = None if self._on_cut_off is None else partial(self._on_cut_off, *key)
            self._limits[key] = AgentLimits(told)
            if len(self._limits) > MAX_LIMITS:
                self._limits.popitem(last=False)
        self._limits.move_to_end(key)
        return self._limits[key]

    async def _is_peer(self, scope: Scope) -> bool:
        try:
            await self._check.check(dict(scope["headers"]).get(TOKEN_HEADER.lower().encode(), b"").decode("latin-1"))
        except TokenRefused as error:
            log.warning("relay_request_refused", reason=str(error))
            return False
        return True

    async def _found(self, named: str) -> Connector | None:
        try:
            connector = await self._find(UUID(named))
            if connector is not None:
                await connector.prepare()
        except (ValueError, DriverError, OSError) as error:
            log.info("relay_finds_no_agent", error=str(error))
            return None
        return connector


class _ForwardedRequest:
    """One request that is being forwarded."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: AgentLimits) -> None:
        self._scope = scope
        self._limits = limits
        self._receive = receive
        self._send = send
        self._is_begun = False
        self._has_body = asyncio.Event()

    async def run(self, socket_path: str, path: str) -> None:
        """Run until the response is complete or the client has disconnected.

        The connection to the agent is closed at the end.
        """
        passing = asyncio.create_task(self._forward(socket_path, path), name="relay-agent")
        leaving = asyncio.create_task(self._left(), name="relay-agent-left")
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (passing, leaving):
                task.cancel()
            await asyncio.wait({passing, leaving})
        error = None if passing.cancelled() else passing.exception()
        if error is None:
            return
        log.info("relay_agent_failed", error=str(error) or type(error).__name__)
        if self._is_begun:
            raise ConnectionError("The agent's answer broke off.") from error
        await _refuse(self._send, _SILENT)

    async def _forward(self, socket_path: str, path: str) -> None:
        scope = self._scope
        query = scope["query_string"].decode("latin-1")
        url = URL(f"http://agent{path}{'?' + query if query else ''}", encoded=True)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        if (traceparent := spans.traceparent()) is not None:
            headers = [*(each for each in headers if each[0].lower() != spans.HEADER), (spans.HEADER, traceparent)]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        async with aiohttp.ClientSession(
            connector=AgentUnixConnector(socket_path, self._limits, force_close=True),
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        ) as session:
            asked = session.request(
                scope["method"],
                url,
                headers=[each for each in headers if each[0].lower().encode() not in _DROPPED],
                data=await self._body(),
                allow_redirects=False,
            )
            async with asked as response:
                await self._answer(response)

    async def _body(self) -> AsyncIterator[bytes] | None:
        first = await self._receive()
        if first["type"] != "http.request":
            raise ConnectionError("the client has left")
        if not first.get("body") and not first.get("more_body"):
            self._has_body.set()
            return None
        return self._chunks(first)

    async def _chunks(self, message: Any) -> AsyncIterator[bytes]:
        while True:
            if message["type"] != "http.request":
                raise ConnectionError("the client has left")
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                self._has_body.set()
                return
            message = await self._receive()

    async def _answer(self, response: aiohttp.ClientResponse) -> None:
        kept = [(name, response.headers[name]) for name in _KEPT if name in response.headers]
        raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in kept]
        self._is_begun = True
        await self._send({"type": "http.response.start", "status": response.status, "headers": raw})
        async for chunk in response.content.iter_any():
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def _left(self) -> None:
        await self._has_body.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _start_span(scope: Scope) -> spans.Span:
    """Start the span of a forwarded request, below the span of the replica that sent it."""
    sent = dict(scope["headers"]).get(spans.HEADER.encode(), b"").decode("latin-1")
    return spans.start_root("relay agent", Kind.SERVER, parent=spans.parse_traceparent(sent))


def _raw_path(scope: Scope) -> str:
    """Return the path undecoded, because a process id may contain a slash and must stay one segment."""
    raw: bytes | None = scope.get("raw_path")
    return str(scope["path"]) if raw is None else raw.decode("latin-1").partition("?")[0]


async def _refuse(send: Send, refusal: Refusal) -> None:
    await send({"type": "http.response.start", "status": refusal.status, "headers": refusal.raw_headers()})
    await send({"type": "http.response.body", "body": refusal.body()})
