"""The middleware around the routers: checks every request and completes every response.

The order of checks: size, host, rate limit, set-up, credentials, origin. Requests and the opening of streams pass the
same checks. An exception that gets this far is a bug: it is logged, and the client gets the request id.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from rookery.api import cookies, download_links
from rookery.api.caller import Caller
from rookery.api.errors import NO_STORE, ApiError, explain, internal
from rookery.api.host_and_origin import host_name, is_loopback
from rookery.api.rate_limits import Limit
from rookery.api.routes import PREFIX
from rookery.api.services import ApiServices
from rookery.domain.access.rights import UserActor
from rookery.server.unauthenticated_connections import address_key
from rookery.store.people import first_admin, sessions, tokens
from rookery.store.people.audit import RequestInfo
from rookery.store.people.errors import SessionCookieRequired, SessionKeyRequired, Unauthenticated
from rookery.store.people.sessions import AuthenticatedSession
from rookery.store.people.users import User
from rookery.stream import ws
from rookery.telemetry import http_stats
from rookery.telemetry.http_stats import HttpStats
from rookery.telemetry.log import bind, get_logger
from rookery.telemetry.tracing import names, spans
from rookery.telemetry.tracing.spans import NO_SPAN, Kind, Span

log = get_logger("api")

SESSION_KEY = "rookery-session-key"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SHARED_METHODS = "GET, POST, PUT, PATCH, DELETE"
SHARED_HEADERS = (
    "Authorization, Content-Type, Content-Disposition, Idempotency-Key, If-Match, Last-Event-ID, Rookery-Break-Glass, "
    "Rookery-Session-Key, Traceparent, X-Request-Id"
)
SHOWN_HEADERS = "X-Request-Id, Retry-After, Location, Idempotency-Replayed"
MAX_URL_BYTES = 8 * 1024
MAX_HEADER_BYTES = 32 * 1024
# One year. Subdomains are not included, because they may belong to other servers.
STRICT_TRANSPORT = "max-age=31536000"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Paths without a login: downloads have a signature in their URL, the API page itself asks for a token, and the end of a
# login at an MCP server has a state that belongs to a cookie. Authorization servers read the metadata of the client.
_OPEN = re.compile(rf"{PREFIX}/(files/[^/]+/download|docs(/[^/]+)?|mcp-servers/[^/]+/oauth/(callback|client-metadata))")
_STREAM = re.compile(rf"{PREFIX}/chats/(watch|[^/]+/(stream|git))")
_SETUP = f"{PREFIX}/setup"
# Requests that create a login; they have no user yet.
_LOGIN = frozenset({_SETUP, f"{PREFIX}/auth/login", f"{PREFIX}/auth/link"})
# Codes of refusals because of a missing right. Refusals because of the origin have other codes.
_DENIED = frozenset({"forbidden", "owner_only", "scope", "disabled"})
# Load balancers send requests by address, not by host name. The responses contain nothing that DNS rebinding could
# misuse.
_ANY_HOST = frozenset({"/healthz", "/readyz"})


class ApiMiddleware:
    """The ASGI middleware of the public port."""

    def __init__(self, application: ASGIApp, services: ApiServices) -> None:
        self._application = application
        self.services = services
        self._is_set_up = not services.requires_setup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._application(scope, receive, send)
            return
        is_head = scope.get("method") == "HEAD"
        if is_head:
            # HEAD is handled as GET, and the body is dropped from the response. The server keeps its own scope.
            scope = {**scope, "method": "GET"}
        connection = Request(scope, receive) if scope["type"] == "http" else WebSocket(scope, receive, send)
        given = connection.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope["rookery.request_id"] = request_id
        answer = _ResponseSender(scope, send, request_id, is_head=is_head)
        if answer.is_api:
            answer.build = self.services.web.build
        answer.strict_transport = _is_strict(connection, self.services)
        scope["rookery.refuse"] = answer.refuse
        started = time.perf_counter()
        span = _start_span(connection, request_id) if answer.is_api else NO_SPAN
        if _is_stream(connection):
            # A stream may be open for days, and no span should be.
            answer.on_start = lambda: _end_span(span, scope, answer)
        with bind(request_id=request_id), spans.active(span):
            try:
                await self._serve(connection, receive, answer)
            finally:
                _end_span(span, scope, answer)
                seconds = time.perf_counter() - started
                _count(self.services.stats, scope, answer, seconds)
                if self.services.log_access:
                    _log(scope, answer, seconds)

    async def _serve(self, connection: HTTPConnection, receive: Receive, answer: _ResponseSender) -> None:
        scope = connection.scope
        try:
            _check_size(scope)
            self._check_host(connection)
            self._allow_cross_origin(connection, answer)
            if answer.shared_origin is not None and _is_preflight(connection):
                await answer.allow_shared()
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

    def _check_host(self, connection: HTTPConnection) -> None:
        if connection.scope["path"] in _ANY_HOST:
            return
        hosts = connection.headers.getlist("host")
        if len(hosts) != 1 or not self.services.origins.accepts_host(hosts[0]):
            raise ApiError(
                400,
                "invalid_host",
                "This server does not accept requests for this host name. Set `external_url` or "
                "`allowed_hosts` if it should.",
            )

    def _allow_cross_origin(self, connection: HTTPConnection, answer: _ResponseSender) -> None:
        """Allow pages of listed origins to read the response.

        The header `Vary` tells caches that it depends on the origin.
        """
        origins = self.services.origins
        origin = connection.headers.get("origin")
        answer.varies_by_origin = bool(origins.allowed_origins)
        answer.shared_origin = origin if origin is not None and origins.shares_with(origin) else None

    async def _admit(self, connection: HTTPConnection, answer: _ResponseSender) -> None:
        scope, limits = connection.scope, self.services.limits
        path: str = scope["path"]
        if not path.startswith(f"{PREFIX}/"):
            return
        info = RequestInfo(
            ip=connection.client.host if connection.client else None,
            user_agent=sessions.storable_user_agent(connection.headers.get("user-agent")),
            request_id=scope["rookery.request_id"],
        )
        scope["rookery.info"] = info
        if path in _LOGIN:
            is_safe = scope.get("method") in SAFE_METHODS
            limits.take(Limit.API if is_safe else Limit.LOGIN, address_key(info.ip))
            if not is_safe:
                self._check_origin(connection, needs_one=False)
            if path != _SETUP:
                await self._require_setup(info)
            return
        await self._require_setup(info)
        if _OPEN.fullmatch(path):
            # Attempts to guess signatures are counted by address.
            limits.take(Limit.API, address_key(info.ip))
            return
        caller = await self._authenticate(connection, info, answer)
        if (known := scope.get("rookery.known")) is not None:
            known()  # the connection no longer counts as unauthenticated
        limits.take(Limit.API, str(caller.user.id))
        scope["rookery.caller"] = caller

    async def _require_setup(self, info: RequestInfo) -> None:
        """Raise until the server is set up.

        Asks the database each time, so that every replica notices a set-up by another one.
        """
        if self._is_set_up:
            return
        self.services.limits.take(Limit.API, address_key(info.ip))
        async with self.services.pool.acquire() as conn:
            self._is_set_up = not await first_admin.is_setup_needed(conn)
        if not self._is_set_up:
            raise ApiError(
                503,
                "setup_required",
                "This server has no administrator yet. Open the address that the server printed when it started.",
                headers={"Retry-After": "5"},
            )

    async def _authenticate(self, connection: HTTPConnection, info: RequestInfo, answer: _ResponseSender) -> Caller:
        """Authenticate by the bearer token alone if there is one, else by the cookie together with the session key.

        A signed link replaces the session key for addresses that the browser loads without one.
        """
        now, changes = self.services.clock.now(), self.services.streams.access.changes
        try:
            sent, cookie, secure = bearer(connection), "", is_secure(connection, self.services)
            key, link = None, None
            if sent is None:
                # Checked before a database connection is taken, because unauthenticated requests must not use up the
                # pool.
                cookie = cookies.find_session(connection.headers.get("cookie"), secure=secure) or ""
                key = session_key(connection)
                link = download_links.find_signed(connection.scope) if key is None else None
                if not cookie:
                    raise Unauthenticated if key is None else SessionCookieRequired
                if key is None and link is None:
                    raise SessionKeyRequired
            async with self.services.pool.acquire() as conn:
                if sent is not None:
                    token = await tokens.authenticate(conn, sent, now=now)
                    if _is_stream(connection) and "origin" in connection.headers:
                        self._check_origin(connection, needs_one=True)
                    return self._caller(connection, info, token.user, token.actor, token.token.id, changes=changes)
                found = await sessions.authenticate(conn, cookie, link or key or "", now=now)
        except Unauthenticated:
            # Failed credentials are counted by address. Authenticated users have a separate limit.
            self.services.limits.take(Limit.API, address_key(info.ip))
            raise
        if _needs_origin(connection):
            self._check_origin(connection, needs_one=True)
        if found.renewed:
            answer.cookie = cookies.set_header(found.session, cookie, secure=secure)
        if link is not None:
            download_links.remove_signature(connection.scope)
        return self._caller(
            connection,
            info,
            found.user,
            found.actor,
            found.session.id,
            session=found,
            is_by_link=link is not None,
            changes=changes,
        )

    def _caller(
        self,
        connection: HTTPConnection,
        info: RequestInfo,
        user: User,
        actor: UserActor,
        credential_id: UUID,
        *,
        session: AuthenticatedSession | None = None,
        is_by_link: bool = False,
        changes: int,
    ) -> Caller:
        services = self.services
        return Caller(
            user=user,
            actor=actor,
            credential_id=credential_id,
            session_id=None if session is None else session.session.id,
            links=None if session is None else session.links,
            is_by_link=is_by_link,
            info=info,
            connection=connection,
            store=services.store,
            limits=services.limits,
            clock=services.clock,
            access_changes=changes,
            max_body=services.max_body,
            read_seconds=services.read_seconds,
        )

    def _check_origin(self, connection: HTTPConnection, *, needs_one: bool) -> None:
        """Refuse requests from pages of other sites. Only browsers send `Origin` and `Sec-Fetch-Site`."""
        headers, scope = connection.headers, connection.scope
        sent, site = headers.getlist("origin"), headers.get("sec-fetch-site")
        if sent:
            accepted = len(sent) == 1 and self.services.origins.accepts_origin(
                sent[0], scheme=scope.get("scheme", "http"), host=headers.get("host", "")
            )
        else:
            accepted = site == "same-origin" or (not needs_one and site is None)
        if not accepted:
            raise ApiError(
                403,
                "origin_rejected",
                "This request comes from a page of another site. If that page may use this server, list its "
                "origin in `allowed_origins`. Programs send an API token and no `Origin`.",
            )


class _ResponseSender:
    """Sends the response, adds the headers common to all responses, and records the result for the log."""

    def __init__(self, scope: Scope, send: Send, request_id: str, *, is_head: bool) -> None:
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self.is_head = is_head
        self.shared_origin: str | None = None
        self.varies_by_origin = False
        self.cookie: str | None = None
        self.build: str | None = None
        self.strict_transport = False
        self.is_api = scope["path"].startswith(f"{PREFIX}/")
        self.status: int | None = None
        self.size = 0
        self.on_start: Callable[[], None] = _nothing

    async def send(self, message: Message) -> None:
        match message["type"]:
            case "http.response.start" | "websocket.http.response.start":
                self.status = message["status"]
                message["headers"] = self._complete(message.get("headers", ()))
            case "websocket.accept":
                self.status = 101
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._request_id.encode())]
            case "http.response.body":
                if self.is_head:
                    return
                self.size += len(message.get("body", b""))
        await self._send(message)
        if message["type"] != "http.response.body":
            self.on_start()
        if self.is_head:
            # The response ends here. For a handler that continues to send, such as a stream, its client has
            # disconnected.
            await self._send({"type": "http.response.body", "body": b""})

    async def allow_shared(self) -> None:
        """Answer the CORS preflight request of a page of a listed origin."""
        headers = [
            (b"access-control-allow-methods", SHARED_METHODS.encode()),
            (b"access-control-allow-headers", SHARED_HEADERS.encode()),
            (b"access-control-max-age", b"600"),
        ]
        await self.send({"type": "http.response.start", "status": 204, "headers": headers})
        await self.send({"type": "http.response.body", "body": b""})

    async def refuse(self, receive: Receive, error: ApiError) -> None:
        """Send an error. A WebSocket gets an ordinary response instead of the upgrade."""
        self._scope["rookery.error"] = error.code
        response = error.response(self._request_id)
        kind = "http.response"
        if self._scope["type"] == "websocket":
            kind = "websocket.http.response"
            if (await receive())["type"] != "websocket.connect":
                return
        headers = [(name, value) for name, value in response.raw_headers]
        with suppress(OSError):  # a client that has disconnected needs no response
            await self.send({"type": f"{kind}.start", "status": error.status, "headers": headers})
            await self.send({"type": f"{kind}.body", "body": bytes(response.body)})

    def _complete(self, raw: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        headers = MutableHeaders(raw=list(raw))
        headers["X-Request-Id"] = self._request_id
        if self.build is not None:
            # A page of another build then offers to reload.
            headers["X-Rookery-Build"] = self.build
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("Cache-Control", NO_STORE)
        headers.setdefault("Referrer-Policy", "no-referrer")
        if self.strict_transport:
            headers["Strict-Transport-Security"] = STRICT_TRANSPORT
        if self.is_api:
            # Pages on other ports belong to the same site. Without this header, they could embed resources of this
            # server.
            headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        if self.cookie is not None and "set-cookie" not in headers:
            headers.append("Set-Cookie", self.cookie)
        if self.varies_by_origin:
            headers.add_vary_header("Origin")
        if self.shared_origin is not None:
            headers["Access-Control-Allow-Origin"] = self.shared_origin
            headers["Access-Control-Expose-Headers"] = SHOWN_HEADERS
        return headers.raw


def is_secure(connection: HTTPConnection, services: ApiServices) -> bool:
    return services.origins.is_secure or connection.scope.get("scheme") in ("https", "wss")


def _is_strict(connection: HTTPConnection, services: ApiServices) -> bool:
    """Return whether browsers should use only https from now on.

    False for a loopback name, because the rule would apply to every other program on the user's machine.
    """
    name = host_name(connection.headers.get("host", ""))
    return name is not None and not is_loopback(name) and is_secure(connection, services)


def _check_size(scope: Scope) -> None:
    """Refuse oversized URLs and headers. Browsers and other clients stay far below these limits."""
    if len(scope.get("raw_path") or b"") + len(scope.get("query_string", b"")) > MAX_URL_BYTES:
        raise ApiError(414, "url_too_long", f"The URL is longer than {MAX_URL_BYTES // 1024} KiB.")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
        raise ApiError(431, "headers_too_large", f"The headers are larger than {MAX_HEADER_BYTES // 1024} KiB.")


def _is_preflight(connection: HTTPConnection) -> bool:
    return connection.scope.get("method") == "OPTIONS" and "access-control-request-method" in connection.headers


def _needs_origin(connection: HTTPConnection) -> bool:
    """Return whether an `Origin` is required: for writes, and for streams, which pages of other sites can open."""
    follows = "text/event-stream" in connection.headers.get("accept", "")
    return follows or _is_stream(connection) or connection.scope.get("method") not in SAFE_METHODS


def _is_stream(connection: HTTPConnection) -> bool:
    scope = connection.scope
    return scope["type"] == "websocket" or _STREAM.fullmatch(scope["path"]) is not None


def bearer(connection: HTTPConnection) -> str | None:
    """Return the bearer token; raise for any other scheme."""
    header = Headers(scope=connection.scope).get("authorization")
    if header is not None:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("Send an API token as `Authorization: Bearer rk_...`.")
        return token.strip()
    return ws.bearer_token(connection.scope) if connection.scope["type"] == "websocket" else None


def session_key(connection: HTTPConnection) -> str | None:
    """Return the session key: a header, or a subprotocol of a browser's WebSocket, which cannot send headers."""
    header = Headers(scope=connection.scope).get(SESSION_KEY)
    if header is None and connection.scope["type"] == "websocket":
        return ws.session_key(connection.scope)
    return header


def _route(scope: Scope) -> str | None:
    """Return the template of the path, or None if no route matches.

    The path itself is never returned, because it contains ids of chats and files.
    """
    path: str = scope["path"]
    if stream := _STREAM.fullmatch(path):
        return f"{PREFIX}/chats/watch" if stream[1] == "watch" else f"{PREFIX}/chats/{{chat}}/{stream[2]}"
    template: str | None = getattr(scope.get("route"), "path", None)
    return template


def _nothing() -> None:
    """Default for `on_start`."""


def _start_span(connection: HTTPConnection, request_id: str) -> Span:
    """Start the span of a request, below the caller's span if the caller sent a valid `traceparent`."""
    if not spans.is_on():
        return NO_SPAN
    scope, sent = connection.scope, connection.headers.getlist(spans.HEADER)
    method = scope.get("method", "WEBSOCKET")
    return spans.start_root(
        method,
        Kind.SERVER,
        {
            names.HTTP_METHOD: "GET" if scope["type"] == "websocket" else method,
            names.URL_SCHEME: scope.get("scheme"),
            names.REQUEST_ID: request_id,
        },
        parent=spans.parse_traceparent(sent[0]) if len(sent) == 1 else None,
    )


def _end_span(span: Span, scope: Scope, answer: _ResponseSender) -> None:
    """End the span of a request. Its name and attributes have the template of the path, never the path itself."""
    if not span.is_open:
        span.end()
        return
    route, caller = _route(scope), scope.get("rookery.caller")
    if route is not None:
        span.rename(f"{scope.get('method', 'WEBSOCKET')} {route}")
    span.set(
        {
            names.HTTP_ROUTE: route,
            names.HTTP_STATUS: answer.status,
            names.HTTP_RESPONSE_SIZE: answer.size or None,
            names.USER_ID: str(caller.user.id) if isinstance(caller, Caller) else None,
        }
    )
    if answer.status is None:
        span.fail(names.CANCELLED)
    elif answer.status >= 500:
        span.fail(str(answer.status))
    span.end()


def _count(stats: HttpStats, scope: Scope, answer: _ResponseSender, seconds: float) -> None:
    """Count every response, including refusals. If the response never began, the client has disconnected."""
    route, code = _route(scope), scope.get("rookery.error", "")
    if answer.status is None:
        return
    if answer.status == 101:
        stats.websocket_closed(route, seconds)
        return
    stats.observe("HEAD" if answer.is_head else scope.get("method", "GET"), route, answer.status, seconds)
    if answer.status in (413, 414, 431):
        stats.too_large(route, http_stats.BODY if answer.status == 413 else http_stats.OTHER)
    elif answer.status == 401:
        stats.auth_failure(code)
    elif code in _DENIED:
        # The stable name of the operation (`users.create`); None for a stream.
        resource, _, action = (getattr(scope.get("route"), "name", None) or "streams.open").partition(".")
        stats.authz_denied(resource, action)


def _log(scope: Scope, answer: _ResponseSender, seconds: float) -> None:
    """Log one line per request, without values from the path or the query."""
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
