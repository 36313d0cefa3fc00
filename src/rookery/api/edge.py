"""What every request passes before a router sees it, and what every answer passes on its way out.

In this order: host, rate limit, whether the server is set up, who asks, and from which page. Requests and the opening
of streams go the same way. An exception that gets this far is a bug: it is logged, and the client gets its id.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from uuid import UUID

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from rookery.api import cookies
from rookery.api.caller import Caller
from rookery.api.errors import NO_STORE, ApiError, explain, internal
from rookery.api.limits import Limit, address_key
from rookery.api.parts import ApiParts
from rookery.chat.rights import UserActor
from rookery.log import bind, get_logger
from rookery.store import sessions, setup, tokens
from rookery.store.access_errors import Unauthenticated
from rookery.store.audit import RequestInfo
from rookery.store.users import User
from rookery.stream import ws

log = get_logger("api")

PREFIX = "/api/v1"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SHARED_METHODS = "GET, POST, PUT, PATCH, DELETE"
SHARED_HEADERS = "Authorization, Content-Type, Content-Disposition, Idempotency-Key, If-Match, Last-Event-ID"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DOWNLOAD = re.compile(rf"{PREFIX}/files/[^/]+/download")
_STREAM = re.compile(rf"{PREFIX}/chats/(watch|[^/]+/stream)")
_SETUP = f"{PREFIX}/setup"
# Whoever asks for these is nobody yet.
_LOGIN = frozenset({_SETUP, f"{PREFIX}/auth/login", f"{PREFIX}/auth/link"})


class Edge:
    """The outermost layer of the public port."""

    def __init__(self, application: ASGIApp, parts: ApiParts) -> None:
        self._application = application
        self._parts = parts
        self._is_set_up = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._application(scope, receive, send)
            return
        connection = Request(scope) if scope["type"] == "http" else WebSocket(scope, receive, send)
        given = connection.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope["rookery.request_id"] = request_id
        answer = _Answer(scope, send, request_id, self._shared_origin(connection))
        scope["rookery.refuse"] = answer.refuse
        started = time.perf_counter()
        with bind(request_id=request_id):
            try:
                await self._serve(connection, receive, answer)
            finally:
                if self._parts.log_access:
                    _log(scope, answer, time.perf_counter() - started)

    async def _serve(self, connection: HTTPConnection, receive: Receive, answer: _Answer) -> None:
        scope = connection.scope
        try:
            if await self._answered_preflight(connection, answer):
                return
            await self._admit(connection, answer)
            await self._application(scope, receive, answer.send)
        except Exception as error:
            explained = explain(error)
            if explained is None:
                log.exception("request_failed", error, route=_route(scope))
                explained = internal()
            if answer.status is None:
                await answer.refuse(receive, explained)

    async def _admit(self, connection: HTTPConnection, answer: _Answer) -> None:
        parts, path = self._parts, connection.scope["path"]
        host = connection.headers.get("host", "")
        if not parts.origins.accepts_host(host):
            raise ApiError(
                400,
                "invalid_host",
                "This server does not go by that name. Set `external_url` or `allowed_hosts` if it should.",
            )
        if not path.startswith(f"{PREFIX}/"):
            return
        info = RequestInfo(
            ip=connection.client.host if connection.client else None,
            user_agent=connection.headers.get("user-agent"),
            request_id=connection.scope["rookery.request_id"],
        )
        if path in _LOGIN:
            if connection.scope.get("method") not in SAFE_METHODS:
                parts.limits.take(Limit.LOGIN, address_key(info.ip))
                self._check_origin(connection, needs_one=False)
            if path == _SETUP:
                return
        await self._require_setup()
        if path in _LOGIN or _DOWNLOAD.fullmatch(path):
            return
        caller = await self._authenticate(connection, info, answer)
        parts.limits.take(Limit.API, str(caller.user.id))
        connection.scope["rookery.caller"] = caller

    async def _require_setup(self) -> None:
        if self._is_set_up:
            return
        async with self._parts.pool.acquire() as conn:
            self._is_set_up = not await setup.is_setup_needed(conn)
        if not self._is_set_up:
            raise ApiError(
                503,
                "setup_required",
                "This server has no administrator yet. Open the address that it printed when it started.",
                headers={"Retry-After": "5"},
            )

    async def _authenticate(self, connection: HTTPConnection, info: RequestInfo, answer: _Answer) -> Caller:
        """Who asks: by bearer token alone if there is one, else by the cookie."""
        now = self._parts.clock.now()
        bearer = _bearer(connection)
        try:
            async with self._parts.pool.acquire() as conn:
                if bearer is not None:
                    token = await tokens.authenticate(conn, bearer, now=now)
                    return self._caller(connection, info, token.user, token.actor, token.token.id, session=None)
                secure = is_secure(connection, self._parts)
                cookie = cookies.find(connection.headers.get("cookie"), secure=secure)
                if cookie is None:
                    raise Unauthenticated
                found = await sessions.authenticate(conn, cookie, now=now)
        except Unauthenticated:
            # Guessing costs; somebody who is logged in pays from another purse.
            self._parts.limits.take(Limit.API, address_key(info.ip))
            raise
        is_stream = connection.scope["type"] == "websocket" or "text/event-stream" in connection.headers.get(
            "accept", ""
        )
        if is_stream or connection.scope.get("method") not in SAFE_METHODS:
            self._check_origin(connection, needs_one=True)
        if found.renewed:
            answer.cookie = cookies.keep(found.session, cookie, secure=secure)
        session = found.session.id
        return self._caller(connection, info, found.user, found.actor, session, session=session)

    def _caller(
        self,
        connection: HTTPConnection,
        info: RequestInfo,
        user: User,
        actor: UserActor,
        credential_id: UUID,
        *,
        session: UUID | None,
    ) -> Caller:
        parts = self._parts
        return Caller(
            user=user,
            actor=actor,
            credential_id=credential_id,
            session_id=session,
            info=info,
            connection=connection,
            store=parts.store,
            limits=parts.limits,
            max_body=parts.max_body,
        )

    def _check_origin(self, connection: HTTPConnection, *, needs_one: bool) -> None:
        """Refuse what a page of another site sends. Programs that are no browser send neither header."""
        headers, scope = connection.headers, connection.scope
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None:
            accepted = self._parts.origins.accepts_origin(
                origin, scheme=scope.get("scheme", "http"), host=headers.get("host", "")
            )
        else:
            accepted = site == "same-origin" or (not needs_one and site is None)
        if not accepted:
            raise ApiError(
                403, "origin_rejected", "This request comes from a page of another site. Programs send an API token."
            )

    def _shared_origin(self, connection: HTTPConnection) -> str | None:
        origin = connection.headers.get("origin")
        return origin if origin is not None and self._parts.origins.shares_with(origin) else None

    async def _answered_preflight(self, connection: HTTPConnection, answer: _Answer) -> bool:
        """Browsers ask before a page of a listed origin sends what is not simple."""
        scope = connection.scope
        is_asked = scope.get("method") == "OPTIONS" and "access-control-request-method" in connection.headers
        if not is_asked or answer.shared_origin is None:
            return False
        headers = [
            (b"access-control-allow-methods", SHARED_METHODS.encode()),
            (b"access-control-allow-headers", SHARED_HEADERS.encode()),
            (b"access-control-max-age", b"600"),
        ]
        await answer.send({"type": "http.response.start", "status": 204, "headers": headers})
        await answer.send({"type": "http.response.body", "body": b""})
        return True


class _Answer:
    """Sends, adds what every answer carries, and remembers what was sent for the log."""

    def __init__(self, scope: Scope, send: Send, request_id: str, shared_origin: str | None) -> None:
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self.shared_origin = shared_origin
        self.cookie: str | None = None
        self.status: int | None = None
        self.size = 0

    async def send(self, message: Message) -> None:
        match message["type"]:
            case "http.response.start" | "websocket.http.response.start":
                self.status = message["status"]
                message["headers"] = self._complete(message.get("headers", ()))
            case "websocket.accept":
                self.status = 101
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._request_id.encode())]
            case "http.response.body":
                self.size += len(message.get("body", b""))
        await self._send(message)

    async def refuse(self, receive: Receive, error: ApiError) -> None:
        """Answer with an error; a WebSocket gets an ordinary response in place of the upgrade."""
        response = error.response(self._request_id)
        kind = "http.response"
        if self._scope["type"] == "websocket":
            kind = "websocket.http.response"
            if (await receive())["type"] != "websocket.connect":
                return
        headers = [(name, value) for name, value in response.raw_headers]
        await self.send({"type": f"{kind}.start", "status": error.status, "headers": headers})
        await self.send({"type": f"{kind}.body", "body": bytes(response.body)})

    def _complete(self, raw: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        headers = MutableHeaders(raw=list(raw))
        headers["X-Request-Id"] = self._request_id
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("Cache-Control", NO_STORE)
        headers.setdefault("Referrer-Policy", "no-referrer")
        if self.cookie is not None and "set-cookie" not in headers:
            headers.append("Set-Cookie", self.cookie)
        if self.shared_origin is not None:
            headers["Access-Control-Allow-Origin"] = self.shared_origin
            headers["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After, Location, Idempotency-Replayed"
            headers.add_vary_header("Origin")
        return headers.raw


def is_secure(connection: HTTPConnection, parts: ApiParts) -> bool:
    return parts.origins.is_secure or connection.scope.get("scheme") in ("https", "wss")


def _bearer(connection: HTTPConnection) -> str | None:
    header = Headers(scope=connection.scope).get("authorization")
    if header is not None:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("Send an API token as `Authorization: Bearer rk_...`.")
        return token.strip()
    return ws.bearer_token(connection.scope) if connection.scope["type"] == "websocket" else None


def _route(scope: Scope) -> str | None:
    return getattr(scope.get("route"), "path", None)


def _log(scope: Scope, answer: _Answer, seconds: float) -> None:
    """One line per request: never the path's values or the query."""
    caller = scope.get("rookery.caller")
    log.info(
        "request",
        method=scope.get("method", "WEBSOCKET"),
        route=_route(scope),
        status=answer.status,
        ms=round(seconds * 1000, 1),
        bytes=answer.size,
        user_id=str(caller.user.id) if isinstance(caller, Caller) else None,
    )
