"""Users' logins at MCP servers: start, callback, request headers, refresh and deletion.

A login is refreshed once at a time, across all replicas. Within a replica, callers share one task. Between replicas,
the row of the login is locked and read again, and the refresh token is redeemed only if the version of the row is
unchanged. The task continues if its callers are cancelled, so that new tokens are always stored.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import TypeAlias
from uuid import UUID

import asyncpg
import httpx2
import msgspec

from rookery.domain.mcp import oauth as rules
from rookery.domain.mcp.oauth import (
    ClientAuth,
    LoginError,
    NotOAuth,
    ServerChanged,
    ServerMetadata,
    StateRejected,
)
from rookery.domain.mcp.server import AuthType, McpServer
from rookery.mcp.errors import McpError, Problem, ProblemKind
from rookery.mcp.oauth import discovery, guarded_requests
from rookery.mcp.oauth.discovery import Discovered
from rookery.mcp.oauth.guarded_requests import Refusal, Unanswered
from rookery.mcp.server_config import Unauthorized
from rookery.runtime.clock import Clock
from rookery.store.db.hints import ConfigHint
from rookery.store.db.pool import Connection
from rookery.store.machine import Publisher
from rookery.store.mcp import logins, servers
from rookery.store.mcp.logins import Flow, Login, NewLogin, OAuthClient
from rookery.store.models.sealed_headers import Sealer
from rookery.telemetry.log import get_logger

log = get_logger("mcp.oauth.logins")

FLOW_MINUTES = 10
REFRESH_SECONDS = 15.0
REVOKE_SECONDS = 10.0
BEGIN_SECONDS = 30.0
# Refreshes that wait for an answer hold a connection of the pool.
MAX_REFRESHES = 4
# A token of this age is not refreshed because of a 401: the request had the token before it.
YOUNG = timedelta(seconds=10)
# After a refresh that failed, no other one begins for this time.
PAUSE_SECONDS = 5.0

Http: TypeAlias = Callable[[], AbstractAsyncContextManager[httpx2.AsyncClient]]


class Begun(msgspec.Struct, frozen=True):
    """A login that has been started. `state` is stored in a cookie of the browser that opens the address."""

    authorization_url: str
    state: str
    expires_at: datetime


class Callback(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of the redirect with which the authorization server returns to this server."""

    state: str
    code: str | None = None
    iss: str | None = None
    error: str | None = None
    error_description: str | None = None


class Revocation(msgspec.Struct, frozen=True):
    """The result of a disconnection. `revoked` is None if the authorization server supports no revocation, or if there
    was no login.
    """

    revoked: bool | None
    error: str | None = None


class _Details(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a login that are stored until its callback."""

    verifier: str
    redirect_uri: str
    issuer: str
    resource: str
    token_url: str
    revocation_url: str | None
    client_id: str
    client_secret: str | None
    token_auth_method: ClientAuth
    scopes: tuple[str, ...]
    needs_iss: bool
    is_registered: bool


class McpLogins:
    """The logins of this deployment. `http` returns a client with guarded addresses; each client is closed after
    use.
    """

    def __init__(
        self, pool: asyncpg.Pool, *, ring: Sealer | None, http: Http, clock: Clock, publisher: Publisher
    ) -> None:
        self._pool = pool
        self._ring = ring
        self._http = http
        self._clock = clock
        self._publisher = publisher
        self._refreshing: dict[UUID, asyncio.Task[str | None]] = {}
        self._failed: dict[UUID, tuple[float, str]] = {}
        self._slots = asyncio.Semaphore(MAX_REFRESHES)

    async def close(self) -> None:
        """Wait for running refreshes, because an authorization server accepts a refresh token only once."""
        if self._refreshing:
            await asyncio.wait(list(self._refreshing.values()), timeout=REFRESH_SECONDS)

    # -- requests of the worker

    def session(self, server: McpServer, user_id: UUID) -> ServerSession:
        """Return the callbacks that give a connection of this user its headers."""
        return ServerSession(self, server, user_id)

    async def headers_for(self, server: McpServer, user_id: UUID) -> dict[str, str]:
        """Return the headers that authenticate a request to the server.

        With OAuth, there are no headers if the user has no login or if the server has revoked it. Raise `McpError` if
        the access token has expired and cannot be refreshed.
        """
        if server.auth_type is not AuthType.OAUTH2:
            return servers.open_headers(server, self._ring)
        token = await self._access_token(server, user_id)
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    async def on_unauthorized(self, server: McpServer, user_id: UUID, *, status: int, challenge: str | None) -> bool:
        """Handle a refused request. Return whether it may be repeated with new headers.

        A token that was just issued is not refreshed again, because the refused request may still have used the
        previous token.
        """
        if server.auth_type is not AuthType.OAUTH2:
            return False
        async with self._pool.acquire() as conn:
            login = await logins.find_login(conn, server.id, user_id)
            if login is None or login.dead_at is not None:
                return False
            asked = rules.parse_challenge(challenge)
            if asked.is_insufficient_scope:
                if await logins.want_scopes(conn, login, asked.scopes):
                    self._tell(server.id)
                return False
        if status != 401:
            return False
        if self._clock.now() - (login.refreshed_at or login.connected_at) < YOUNG:
            return True
        try:
            return await self._refresh(login) is not None
        except McpError:
            return False

    async def _access_token(self, server: McpServer, user_id: UUID) -> str | None:
        async with self._pool.acquire() as conn:
            login = await logins.find_login(conn, server.id, user_id)
        if login is None or login.dead_at is not None:
            return None
        now = self._clock.now()
        token = logins.open_access_token(login, self._ring)
        if token is not None and not rules.is_due(login.expires_at, now):
            return token
        try:
            return await self._refresh(login)
        except McpError:
            # A token that is due may be valid for some seconds more.
            if token is not None and login.expires_at is not None and login.expires_at > now:
                return token
            raise

    # -- refresh

    async def _refresh(self, login: Login) -> str | None:
        """Return a new access token; None if the login was deleted. Callers of this replica share one refresh."""
        task = self._refreshing.get(login.id)
        if task is None:
            failed = self._failed.get(login.id)
            if failed is not None and self._clock.monotonic() < failed[0]:
                raise _unavailable(failed[1])
            task = asyncio.create_task(self._refresh_once(login), name=f"mcp-refresh-{login.id}")
            self._refreshing[login.id] = task
            task.add_done_callback(lambda done: self._refreshed(login.id, done))
        return await asyncio.shield(task)

    def _refreshed(self, login_id: UUID, task: asyncio.Task[str | None]) -> None:
        del self._refreshing[login_id]
        self._failed.pop(login_id, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, McpError):
            self._failed[login_id] = (self._clock.monotonic() + PAUSE_SECONDS, error.problem.text)
        while len(self._failed) > 1000:
            del self._failed[next(iter(self._failed))]

    async def _refresh_once(self, seen: Login) -> str | None:
        async with self._slots:
            try:
                token, changed = await self._redeem(seen)
            except (Unanswered, asyncpg.LockNotAvailableError) as error:
                why = str(error) if isinstance(error, Unanswered) else "The login is being renewed."
                log.warning("mcp_login_not_refreshed", server_id=str(seen.server_id), error=why)
                raise _unavailable(why) from None
        if changed:
            self._tell(seen.server_id)
        return token

    async def _redeem(self, seen: Login) -> tuple[str | None, bool]:
        """Redeem the refresh token under the lock of its row. Return the access token and whether it has changed."""
        async with self._pool.acquire() as conn, conn.transaction():
            login = await logins.lock_login(conn, seen.id)
            if login is None or login.dead_at is not None:
                return None, False
            if login.version != seen.version and not rules.is_due(login.expires_at, self._clock.now()):
                return logins.open_access_token(login, self._ring), False
            refresh_token = logins.open_refresh_token(login, self._ring)
            if refresh_token is None:
                await logins.mark_dead(conn, login, "The login has expired.")
                return None, True
            try:
                answer = await self._ask_for_refresh(login, refresh_token)
            except Refusal as error:
                await self._bury(conn, login, error)
                return None, True
            now = self._clock.now()
            await logins.write_refreshed(
                conn,
                login,
                access_token=answer.access_token,
                refresh_token=answer.refresh_token,
                expires_at=answer.expires_at,
                scopes=rules.granted(answer, login.scopes),
                now=now,
                ring=self._ring,
            )
            return answer.access_token, True

    async def _ask_for_refresh(self, login: Login, refresh_token: str) -> rules.TokenAnswer:
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": login.resource}
        try:
            async with asyncio.timeout(REFRESH_SECONDS), self._http() as http:
                body = guarded_requests.require_success(
                    await guarded_requests.post_as_client(
                        http,
                        login.token_url,
                        form,
                        client_id=login.client_id,
                        client_secret=logins.open_client_secret(login, self._ring),
                        auth=ClientAuth(login.token_auth_method),
                    )
                )
        except TimeoutError:
            raise Unanswered(
                f"{guarded_requests.origin_of(login.token_url)} does not answer: it took too long."
            ) from None
        except Refusal as error:
            if error.error in _FATAL:
                raise
            raise Unanswered(str(error)) from None
        except LoginError as error:
            raise Unanswered(str(error)) from None
        try:
            return rules.read_token_answer(body, now=self._clock.now())
        except LoginError as error:
            raise Unanswered(str(error)) from None

    async def _bury(self, conn: Connection, login: Login, error: Refusal) -> None:
        log.info("mcp_login_dead", server_id=str(login.server_id), user_id=str(login.user_id), error=error.error)
        if error.error in _CLIENT_GONE:
            await logins.delete_client(conn, login.server_id, login.issuer, login.client_id)
        await logins.mark_dead(conn, login, f"The login has ended: {error}")

    # -- the login flow

    async def begin(self, server: McpServer, user_id: UUID, *, redirect_uri: str, document_url: str | None) -> Begun:
        """Start a login. Raise `LoginError`, which names what the server does not support."""
        if server.auth_type is not AuthType.OAUTH2 or not server.enabled:
            raise NotOAuth
        async with self._pool.acquire() as conn:
            current = await logins.find_login(conn, server.id, user_id)
        stepped_up = () if current is None else current.wanted_scopes
        if server.is_discovered:
            try:
                async with asyncio.timeout(BEGIN_SECONDS), self._http() as http:
                    found = await discovery.discover(http, server.url)
                    client = await self._client(
                        http, server, found, redirect_uri=redirect_uri, document_url=document_url
                    )
            except TimeoutError:
                raise Unanswered(
                    f"{guarded_requests.origin_of(server.url)} does not answer: it took too long."
                ) from None
        else:
            found, client = self._configured(server)
        metadata = found.metadata
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(32)
        scopes = rules.wanted_scopes(
            configured=server.oauth_scopes,
            challenged=found.challenged,
            supported=found.supported,
            offered=metadata.scopes_supported,
            stepped_up=stepped_up,
        )
        expires_at = self._clock.now() + timedelta(minutes=FLOW_MINUTES)
        details = _Details(
            verifier=verifier,
            redirect_uri=redirect_uri,
            issuer=found.issuer,
            resource=found.resource,
            token_url=metadata.token_endpoint,
            revocation_url=metadata.revocation_endpoint,
            client_id=client.client_id,
            client_secret=client.client_secret,
            token_auth_method=client.token_auth_method,
            scopes=scopes,
            needs_iss=metadata.authorization_response_iss_parameter_supported,
            is_registered=server.is_discovered,
        )
        flow = Flow(
            server_id=server.id,
            user_id=user_id,
            config_version=server.config_version,
            details=msgspec.json.encode(details).decode(),
            expires_at=expires_at,
        )
        async with self._pool.acquire() as conn, conn.transaction():
            await logins.begin_flow(conn, state, flow, now=self._clock.now(), ring=self._ring)
        return Begun(_login_page(metadata, details, state), state, expires_at)

    async def _client(
        self,
        http: httpx2.AsyncClient,
        server: McpServer,
        found: Discovered,
        *,
        redirect_uri: str,
        document_url: str | None,
    ) -> OAuthClient:
        async def stored() -> OAuthClient | None:
            async with self._pool.acquire() as conn:
                client = await logins.find_client(conn, server.id, found.issuer, redirect_uri, ring=self._ring)
                if client is None:
                    return None
                if client.secret_expires_at is not None and client.secret_expires_at <= self._clock.now():
                    await logins.delete_client(conn, server.id, found.issuer, client.client_id)
                    return None
                return client

        client = await stored()
        if client is not None:
            return client
        made = await discovery.register(
            http, found, redirect_uri=redirect_uri, document_url=document_url, now=self._clock.now()
        )
        async with self._pool.acquire() as conn:
            await logins.write_client(conn, server.id, found.issuer, redirect_uri, made, ring=self._ring)
        return await stored() or made

    def _configured(self, server: McpServer) -> tuple[Discovered, OAuthClient]:
        """Return the login settings of a server that is configured by hand."""
        assert server.oauth_client_id is not None
        assert server.oauth_authorization_url is not None
        assert server.oauth_token_url is not None
        metadata = ServerMetadata(
            issuer=guarded_requests.origin_of(server.oauth_token_url),
            authorization_endpoint=server.oauth_authorization_url,
            token_endpoint=server.oauth_token_url,
            revocation_endpoint=server.oauth_revocation_url,
            token_endpoint_auth_methods_supported=(ClientAuth.POST, ClientAuth.BASIC),
        )
        secret = servers.open_client_secret(server, self._ring)
        client = OAuthClient(
            id=server.id,
            client_id=server.oauth_client_id,
            client_secret=secret,
            token_auth_method=rules.client_auth(metadata, has_secret=secret is not None),
            secret_expires_at=None,
        )
        resource = rules.canonical_resource(server.url)
        return Discovered(issuer=metadata.issuer, resource=resource, metadata=metadata), client

    async def finish(self, server_id: UUID, callback: Callback, *, cookie_state: str | None) -> UUID:
        """Complete a login with the parameters of its callback. Return the user.

        The state must equal that of the cookie, so that a login can be completed only in the browser that started it.
        """
        if cookie_state is None or not secrets.compare_digest(cookie_state.encode(), callback.state.encode()):
            raise StateRejected
        async with self._pool.acquire() as conn:
            flow = await logins.take_flow(conn, callback.state, now=self._clock.now(), ring=self._ring)
            if flow is None or flow.server_id != server_id:
                raise StateRejected
            server = await servers.find_server(conn, server_id)
        if server is None or not server.enabled or server.config_version != flow.config_version:
            raise ServerChanged
        details = msgspec.json.decode(flow.details, type=_Details)
        if details.is_registered:
            rules.check_issuer(callback.iss, issuer=details.issuer, is_required=details.needs_iss)
        if callback.error is not None:
            raise Refusal(
                guarded_requests.origin_of(details.issuer), callback.error, callback.error_description, status=400
            )
        if not callback.code:
            raise LoginError("The authorization server sent no code.")
        try:
            answer = await self._exchange(server, details, callback.code)
        except Refusal as error:
            # Servers that are configured by hand do not say which authentication of clients they take.
            if details.is_registered or error.error != "invalid_client" or details.client_secret is None:
                raise
            details = msgspec.structs.replace(details, token_auth_method=ClientAuth.POST)
            answer = await self._exchange(server, details, callback.code)
        login = NewLogin(
            server_id=server_id,
            user_id=flow.user_id,
            issuer=details.issuer,
            resource=details.resource,
            token_url=details.token_url,
            revocation_url=details.revocation_url,
            client_id=details.client_id,
            client_secret=details.client_secret,
            token_auth_method=details.token_auth_method,
            access_token=answer.access_token,
            refresh_token=answer.refresh_token,
            scopes=rules.granted(answer, details.scopes),
            expires_at=answer.expires_at,
        )
        async with self._pool.acquire() as conn, conn.transaction():
            current = await servers.lock_version(conn, server_id)
            if current != flow.config_version:
                raise ServerChanged
            await logins.write_login(conn, login, ring=self._ring)
        self._tell(server_id)
        return flow.user_id

    async def _exchange(self, server: McpServer, details: _Details, code: str) -> rules.TokenAnswer:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": details.redirect_uri,
            "code_verifier": details.verifier,
            "resource": details.resource,
        }
        try:
            async with self._http() as http:
                answer = await guarded_requests.post_as_client(
                    http,
                    details.token_url,
                    form,
                    client_id=details.client_id,
                    client_secret=details.client_secret,
                    auth=details.token_auth_method,
                )
            body = guarded_requests.require_success(answer)
        except Refusal as error:
            if error.error in _CLIENT_GONE and details.is_registered:
                async with self._pool.acquire() as conn:
                    await logins.delete_client(conn, server.id, details.issuer, details.client_id)
            raise
        return rules.read_token_answer(body, now=self._clock.now())

    # -- the end of a login

    async def disconnect(self, server_id: UUID, user_id: UUID) -> Revocation:
        """Delete a login, and revoke it at the authorization server. It is deleted even if that server does not
        answer.
        """
        async with self._pool.acquire() as conn, conn.transaction():
            login = await logins.delete_login(conn, server_id, user_id)
        if login is None:
            return Revocation(None)
        self._tell(server_id)
        if login.revocation_url is None:
            return Revocation(None)
        try:
            async with asyncio.timeout(REVOKE_SECONDS), self._http() as http:
                for hint, token in (
                    ("refresh_token", logins.open_refresh_token(login, self._ring)),
                    ("access_token", logins.open_access_token(login, self._ring)),
                ):
                    if token is not None:
                        await self._revoke(http, login, login.revocation_url, token, hint)
        except TimeoutError:
            return Revocation(False, f"{guarded_requests.origin_of(login.revocation_url)} does not answer.")
        except LoginError as error:
            return Revocation(False, str(error))
        return Revocation(True)

    async def _revoke(self, http: httpx2.AsyncClient, login: Login, url: str, token: str, hint: str) -> None:
        answer = await guarded_requests.post_as_client(
            http,
            url,
            {"token": token, "token_type_hint": hint},
            client_id=login.client_id,
            client_secret=logins.open_client_secret(login, self._ring),
            auth=ClientAuth(login.token_auth_method),
        )
        if answer.status not in (200, 204):
            guarded_requests.require_success(answer)

    def _tell(self, server_id: UUID) -> None:
        self._publisher.publish([ConfigHint(kind=servers.HINT, id=str(server_id))])


class ServerSession:
    """The two callbacks of a connection (`ServerConfig`)."""

    __slots__ = ("_logins", "_server", "_user_id")

    def __init__(self, logins: McpLogins, server: McpServer, user_id: UUID) -> None:
        self._logins = logins
        self._server = server
        self._user_id = user_id

    async def headers(self) -> Mapping[str, str]:
        return await self._logins.headers_for(self._server, self._user_id)

    async def on_unauthorized(self, refusal: Unauthorized) -> bool:
        return await self._logins.on_unauthorized(
            self._server, self._user_id, status=refusal.status, challenge=refusal.challenge
        )


# The authorization server no longer knows the grant, or the client; trying again does not help.
_CLIENT_GONE = frozenset({"invalid_client", "unauthorized_client"})
_FATAL = _CLIENT_GONE | {"invalid_grant"}


def _unavailable(why: str) -> McpError:
    text = f"The login cannot be renewed now. {why}"
    return McpError(Problem(ProblemKind.UNREACHABLE, text))


def _login_page(metadata: ServerMetadata, details: _Details, state: str) -> str:
    digest = hashlib.sha256(details.verifier.encode()).digest()
    parameters: dict[str, str] = {
        "response_type": "code",
        "client_id": details.client_id,
        "redirect_uri": details.redirect_uri,
        "state": state,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
        "resource": details.resource,
    }
    if details.scopes:
        parameters["scope"] = " ".join(details.scopes)
    if rules.OFFLINE in details.scopes:
        parameters["prompt"] = "consent"  # without it, servers of OpenID Connect ignore the scope
    return rules.authorization_url(metadata.authorization_endpoint, parameters)
