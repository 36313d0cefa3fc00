"""MCP servers: those of the deployment, a user's own, the catalog, tests, and logins by OAuth.

Secrets are write-only: a response shows only whether there is one. The callback of a login has no session key, because
another site sends the browser there, and such a request has only cookies. Its state must equal that of a cookie which
the start of the login has set, and belongs to the user who started the login.
"""

from __future__ import annotations

import asyncio
import html
import secrets
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from pydantic import Field, SecretStr
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from rookery.api import headers, mcp_cookies
from rookery.api.caller import Caller
from rookery.api.errors import ApiError
from rookery.api.middleware import is_secure
from rookery.api.request_bodies import SLUG, Body
from rookery.api.routes import PREFIX, Items, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Role
from rookery.domain.mcp import server as rules
from rookery.domain.mcp.catalog import CATALOG, CatalogEntry
from rookery.domain.mcp.oauth import LoginError, NotOAuth, ServerChanged, StateRejected
from rookery.domain.mcp.server import AuthType, Availability, McpServer, Transport
from rookery.runtime.secret_str import SecretStr as StoredSecret
from rookery.store.authorized.mcp_servers import SeenServer
from rookery.store.mcp import logins
from rookery.store.mcp.logins import Login, LoginState
from rookery.store.mcp.servers import ServerDraft, ServerPatch

TEST_SECONDS = 30.0
_MAX_SECRET = 8192


class McpLoginView(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's login at a server. `reason` is the reason why a login has expired.

    `missing_scopes` are permissions that the server has requested since the login; connecting again asks the user for
    them.
    """

    state: LoginState
    scopes: tuple[str, ...] = ()
    missing_scopes: tuple[str, ...] = ()
    reason: str | None = None
    connected_at: datetime | None = None


class HeaderView(msgspec.Struct, frozen=True):
    """A header that is sent to the server. Its value is not shown."""

    name: str
    has_value: bool


class McpServerView(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server. The fields after `login` are null unless the caller may see the configuration.

    `is_own`: the caller's own server, which is for the caller's chats only. `workspace_id` is set if a file of that
    workspace names the server: it is for the caller's chats in the workspace, and only the file can change it.
    """

    id: UUID
    slug: str
    display_name: str
    description: str
    icon: str
    enabled: bool
    availability: Availability
    auth_type: AuthType
    is_own: bool
    workspace_id: UUID | None
    is_editable: bool
    connected: bool
    login: McpLoginView
    url: str | None = None
    transport: Transport | None = None
    api_key: HeaderView | None = None
    headers: tuple[HeaderView, ...] | None = None
    oauth_client_id: str | None = None
    has_oauth_client_secret: bool | None = None
    oauth_authorization_url: str | None = None
    oauth_token_url: str | None = None
    oauth_revocation_url: str | None = None
    oauth_scopes: tuple[str, ...] | None = None
    allow_in_plan_mode: bool | None = None
    model_intent: bool | None = None
    forward_identity: bool | None = None
    tool_allow_list: tuple[str, ...] | None = None
    tool_deny_list: tuple[str, ...] | None = None
    allowed_users: tuple[UUID, ...] | None = None
    allowed_roles: tuple[Role, ...] | None = None
    call_timeout_seconds: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class McpServerCreate(Body):
    """A new MCP server. Its secrets are sealed and never shown again.

    `api_key` and `api_key_header` belong to the authentication type `api_key`, `headers` to `custom_headers`, and the
    fields that begin with `oauth_` to `oauth2`. Without `oauth_client_id`, Rookery finds the addresses of the login and
    registers itself as a client.
    """

    slug: str = Field(min_length=1, max_length=rules.MAX_SLUG, pattern=SLUG)
    url: str = Field(min_length=1, max_length=rules.MAX_URL_BYTES)
    display_name: str = Field("", max_length=rules.MAX_DISPLAY_NAME)
    description: str = Field("", max_length=rules.MAX_DESCRIPTION)
    icon: str = Field("", max_length=rules.MAX_ICON)
    transport: Transport = Transport.AUTO
    enabled: bool = True
    availability: Availability = Availability.DEFAULT_OFF
    auth_type: AuthType = AuthType.NONE
    api_key_header: str | None = Field(None, min_length=1, max_length=200)
    api_key: SecretStr | None = Field(None, min_length=1, max_length=_MAX_SECRET)
    headers: dict[str, SecretStr] = Field(default_factory=dict, max_length=rules.MAX_HEADERS)
    oauth_client_id: str | None = Field(None, min_length=1, max_length=500)
    oauth_client_secret: SecretStr | None = Field(None, min_length=1, max_length=_MAX_SECRET)
    oauth_authorization_url: str | None = Field(None, max_length=rules.MAX_URL_BYTES)
    oauth_token_url: str | None = Field(None, max_length=rules.MAX_URL_BYTES)
    oauth_revocation_url: str | None = Field(None, max_length=rules.MAX_URL_BYTES)
    oauth_scopes: list[str] = Field(default_factory=list, max_length=rules.MAX_SCOPES)
    allow_in_plan_mode: bool = False
    model_intent: bool = False
    forward_identity: bool = False
    tool_allow_list: list[str] = Field(default_factory=list, max_length=rules.MAX_LISTED_TOOLS)
    tool_deny_list: list[str] = Field(default_factory=list, max_length=rules.MAX_LISTED_TOOLS)
    allowed_users: list[UUID] = Field(default_factory=list, max_length=rules.MAX_ALLOWED)
    allowed_roles: list[Role] = Field(default_factory=list, max_length=len(Role))
    call_timeout_seconds: int = Field(60, ge=1, le=rules.MAX_CALL_SECONDS)


class McpServerChange(Body):
    """Changes of an MCP server. Absent fields keep their values, and null clears one.

    `headers` are replaced as a whole; `***` keeps a stored value. A new authentication type removes the other types'
    secrets. A new host needs its secrets again. Both end all logins at the server.
    """

    slug: str = Field(default_factory=str, min_length=1, max_length=rules.MAX_SLUG, pattern=SLUG)
    url: str = Field(default_factory=str, min_length=1, max_length=rules.MAX_URL_BYTES)
    display_name: str = Field(default_factory=str, max_length=rules.MAX_DISPLAY_NAME)
    description: str = Field(default_factory=str, max_length=rules.MAX_DESCRIPTION)
    icon: str = Field(default_factory=str, max_length=rules.MAX_ICON)
    transport: Transport = Transport.AUTO
    enabled: bool = Field(default_factory=bool)
    availability: Availability = Availability.DEFAULT_OFF
    auth_type: AuthType = AuthType.NONE
    api_key_header: str | None = Field(None, min_length=1, max_length=200)
    api_key: SecretStr | None = Field(None, min_length=1, max_length=_MAX_SECRET)
    headers: dict[str, SecretStr] = Field(default_factory=dict, max_length=rules.MAX_HEADERS)
    oauth_client_id: str | None = Field(None, min_length=1, max_length=500)
    oauth_client_secret: SecretStr | None = Field(None, min_length=1, max_length=_MAX_SECRET)
    oauth_authorization_url: str | None = Field(None, max_length=rules.MAX_URL_BYTES)
    oauth_token_url: str | None = Field(None, max_length=rules.MAX_URL_BYTES)
    oauth_revocation_url: str | None = Field(None, max_length=rules.MAX_URL_BYTES)
    oauth_scopes: list[str] = Field(default_factory=list, max_length=rules.MAX_SCOPES)
    allow_in_plan_mode: bool = Field(default_factory=bool)
    model_intent: bool = Field(default_factory=bool)
    forward_identity: bool = Field(default_factory=bool)
    tool_allow_list: list[str] = Field(default_factory=list, max_length=rules.MAX_LISTED_TOOLS)
    tool_deny_list: list[str] = Field(default_factory=list, max_length=rules.MAX_LISTED_TOOLS)
    allowed_users: list[UUID] = Field(default_factory=list, max_length=rules.MAX_ALLOWED)
    allowed_roles: list[Role] = Field(default_factory=list, max_length=len(Role))
    call_timeout_seconds: int = Field(default_factory=int, ge=1, le=rules.MAX_CALL_SECONDS)


class McpToolView(msgspec.Struct, frozen=True):
    """A tool as its server describes it. `is_offered`: the allow and deny lists of the server permit it."""

    name: str
    description: str
    is_offered: bool


class McpToolsView(msgspec.Struct, frozen=True):
    """The tools of the server at the last request. `fetched_at` is null if there was no request yet."""

    items: tuple[McpToolView, ...]
    fetched_at: datetime | None


class McpTestError(msgspec.Struct, frozen=True):
    """The reason why a test failed. `needs_login`: the caller must connect first."""

    kind: str
    message: str
    needs_login: bool


class McpTestView(msgspec.Struct, frozen=True):
    """The result of a test: the tools of the server, or the problem."""

    ok: bool
    tools: tuple[McpToolView, ...]
    error: McpTestError | None
    protocol_version: str | None = None


class McpConnectView(msgspec.Struct, frozen=True):
    """The address at which the user logs in and agrees. It is valid until `expires_at`, in this browser only."""

    authorization_url: str
    expires_at: datetime


class McpDisconnectView(msgspec.Struct, frozen=True):
    """The result of a disconnection. `revoked` is null without support for revocation, or without a login."""

    revoked: bool | None
    error: str | None


class ClientDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of this deployment as a client of authorization servers."""

    client_id: str
    client_name: str
    redirect_uris: tuple[str, ...]
    grant_types: tuple[str, ...]
    response_types: tuple[str, ...]
    application_type: str
    token_endpoint_auth_method: str


def router(services: ApiServices) -> Routes:
    routes = Routes("mcp servers")

    @routes.get("/mcp-servers", "mcp.list", returns=Items[McpServerView])
    async def list_servers(caller: Caller) -> Response:
        """List the MCP servers that the caller may use, and the caller's own, also those of projects.

        Administrators and auditors see all of the deployment.
        """
        return answer(Items(tuple(_view(seen) for seen in await caller.store.mcp_servers.list())))

    @routes.get("/mcp-servers/catalog", "mcp.catalog", returns=Items[CatalogEntry])
    async def catalog(caller: Caller) -> Response:
        """List well-known MCP servers, for forms that add one."""
        return answer(Items(CATALOG))

    @routes.post(
        "/mcp-servers",
        "mcp.create",
        body=McpServerCreate,
        returns=McpServerView,
        status=201,
        errors=(409, 412),
        gives=[headers.LOCATION],
    )
    async def create(caller: Caller) -> Response:
        """Add a server of the deployment.

        409 if another one has the slug. A user's own server with this slug is renamed. 412 if a secret is given but
        the server has no encryption key.
        """
        body = await caller.read(McpServerCreate, may=caller.store.mcp_servers.require)
        return _created(await caller.store.mcp_servers.create(ServerDraft(**_given(body))))

    @routes.post(
        "/me/mcp-servers",
        "mcp.create_own",
        body=McpServerCreate,
        returns=McpServerView,
        status=201,
        errors=(409, 412),
        gives=[headers.LOCATION],
    )
    async def create_own(caller: Caller) -> Response:
        """Add a server for the caller's own chats. 403 if an administrator has disabled this."""
        user_id = caller.user.id
        body = await caller.read(McpServerCreate, may=lambda: caller.store.mcp_servers.require_own(user_id))
        return _created(await caller.store.mcp_servers.create_own(user_id, ServerDraft(**_given(body))))

    @routes.get("/mcp-servers/{mcp_server}", "mcp.get", returns=McpServerView, errors=(404,))
    async def get(caller: Caller, mcp_server: UUID) -> Response:
        """Return one server with the caller's login."""
        return answer(_view(await caller.store.mcp_servers.get(mcp_server)))

    @routes.get("/mcp-servers/{mcp_server}/tools", "mcp.tools", returns=McpToolsView, errors=(404,))
    async def list_tools(caller: Caller, mcp_server: UUID) -> Response:
        """List the tools that the server had at the last request."""
        seen = await caller.store.mcp_servers.get(mcp_server)
        found = await caller.store.mcp_servers.list_tools(mcp_server)
        if found is None:
            return answer(McpToolsView((), None))
        tools = tuple(
            _tool(seen.server, str(tool.get("name", "")), str(tool.get("description") or "")) for tool in found.tools
        )
        return answer(McpToolsView(tools, found.fetched_at))

    @routes.patch(
        "/mcp-servers/{mcp_server}",
        "mcp.update",
        body=McpServerChange,
        returns=McpServerView,
        errors=(404, 409, 412),
    )
    async def update(caller: Caller, mcp_server: UUID) -> Response:
        """Change a server of the deployment. The next step of every chat uses the change."""
        body = await caller.read(McpServerChange, may=lambda: caller.store.mcp_servers.require(mcp_server))
        return answer(_view(await caller.store.mcp_servers.update(mcp_server, ServerPatch(**_given(body)))))

    @routes.patch(
        "/me/mcp-servers/{own_server}",
        "mcp.update_own",
        body=McpServerChange,
        returns=McpServerView,
        errors=(404, 409, 412),
    )
    async def update_own(caller: Caller, own_server: UUID) -> Response:
        """Change a server of the caller."""
        user_id = caller.user.id
        may = caller.store.mcp_servers
        body = await caller.read(McpServerChange, may=lambda: may.require_own(user_id, own_server))
        patch = ServerPatch(**_given(body))
        return answer(_view(await caller.store.mcp_servers.update_own(user_id, own_server, patch)))

    @routes.delete("/mcp-servers/{mcp_server}", "mcp.delete", errors=(404,))
    async def delete(caller: Caller, mcp_server: UUID) -> Response:
        """Delete a server of the deployment with all logins. Chats no longer use it."""
        await caller.store.mcp_servers.delete(mcp_server)
        return nothing()

    @routes.delete("/me/mcp-servers/{own_server}", "mcp.delete_own", errors=(404,))
    async def delete_own(caller: Caller, own_server: UUID) -> Response:
        """Delete a server of the caller with its login."""
        await caller.store.mcp_servers.delete_own(caller.user.id, own_server)
        return nothing()

    @routes.post("/mcp-servers/{mcp_server}/test", "mcp.test", returns=McpTestView, errors=(404,))
    async def test(caller: Caller, mcp_server: UUID) -> Response:
        """Connect to a server of the deployment and list its tools, within 30 seconds.

        A server with OAuth is tested with the caller's login.
        """
        return answer(await _test(await caller.store.mcp_servers.record_test(mcp_server), caller))

    @routes.post("/me/mcp-servers/{own_server}/test", "mcp.test_own", returns=McpTestView, errors=(404,))
    async def test_own(caller: Caller, own_server: UUID) -> Response:
        """Connect to a server of the caller, or of a project of the caller, and list its tools, within 30 seconds."""
        server = await caller.store.mcp_servers.require_test(caller.user.id, own_server)
        return answer(await _test(server, caller))

    @routes.post(
        "/mcp-servers/{mcp_server}/oauth/connect",
        "mcp.connect",
        returns=McpConnectView,
        errors=(404, 412, 502),
    )
    async def connect(caller: Caller, request: Request, mcp_server: UUID) -> Response:
        """Start a login of the caller. Open `authorization_url` in the browser that sent this request.

        400 if the server does not use OAuth or is disabled. 502 if its authorization server lacks a required feature.
        """
        server = await caller.store.mcp_servers.record_connect(caller.user.id, mcp_server)
        base = _base(request)
        document = f"{base}{_path(mcp_server)}/client-metadata" if base.startswith("https:") else None
        try:
            begun = await services.mcp.logins.begin(
                server, caller.user.id, redirect_uri=f"{base}{_path(mcp_server)}/callback", document_url=document
            )
        except NotOAuth as error:
            raise ApiError(400, "invalid", str(error)) from None
        except LoginError as error:
            raise ApiError(502, "upstream_failed", str(error)) from None
        cookie = mcp_cookies.set_header(mcp_server, begun.state, secure=is_secure(request, services))
        return answer(McpConnectView(begun.authorization_url, begun.expires_at), Set_Cookie=cookie)

    @routes.get(
        "/mcp-servers/{mcp_server}/oauth/callback",
        "mcp.callback",
        returns=bytes,
        errors=(409, 502),
        media_type="text/html",
        is_public=True,
        allows_unknown=True,
    )
    async def callback(
        request: Request,
        mcp_server: UUID,
        state: str = "",
        code: str | None = None,
        iss: str | None = None,
        error: str | None = None,
        error_description: str | None = None,
    ) -> Response:
        """Complete a login: the authorization server sends the browser here. The response is a page for the user.

        400 if the login was not started in this browser, or has expired. 409 if the server was changed in the meantime.
        502 if the authorization server refuses.
        """
        from rookery.mcp.oauth.logins import Callback

        secure = is_secure(request, services)
        cookie_state = mcp_cookies.find_state(request.headers.get("cookie"), mcp_server, secure=secure)
        given = Callback(state=state, code=code, iss=iss, error=error, error_description=error_description)
        status, problem, message = 200, "", "You are connected. You can close this window."
        try:
            await services.mcp.logins.finish(mcp_server, given, cookie_state=cookie_state)
        except StateRejected as failure:
            status, problem, message = 400, "invalid", str(failure)
        except ServerChanged as failure:
            status, problem, message = 409, "version_mismatch", str(failure)
        except LoginError as failure:
            status, problem, message = 502, "upstream_failed", str(failure)
        cookie = mcp_cookies.delete_header(mcp_server, secure=secure)
        if status != 200 and "text/html" not in request.headers.get("accept", ""):
            raise ApiError(status, problem, message, headers={"Set-Cookie": cookie})
        return _page(mcp_server, status, message, cookie=cookie)

    @routes.get(
        "/mcp-servers/{mcp_server}/oauth/client-metadata",
        "mcp.client_metadata",
        returns=ClientDocument,
        is_public=True,
    )
    async def client_metadata(request: Request, mcp_server: UUID) -> Response:
        """Describe this deployment as a client, for authorization servers (Client ID Metadata Documents)."""
        from rookery.mcp.oauth.discovery import client_document

        base = f"{_base(request)}{_path(mcp_server)}"
        return answer(client_document(f"{base}/callback", f"{base}/client-metadata"))

    @routes.delete("/mcp-servers/{mcp_server}/oauth", "mcp.disconnect", returns=McpDisconnectView, errors=(404,))
    async def disconnect(caller: Caller, mcp_server: UUID) -> Response:
        """End the caller's login at a server and revoke it there. It works without the right to use the server."""
        await caller.store.mcp_servers.record_disconnect(caller.user.id, mcp_server)
        done = await services.mcp.logins.disconnect(mcp_server, caller.user.id)
        return answer(McpDisconnectView(done.revoked, done.error))

    async def _test(server: McpServer, caller: Caller) -> McpTestView:
        try:
            async with asyncio.timeout(TEST_SECONDS):
                probe = await services.mcp.probe(server, caller.user.id)
        except TimeoutError:
            return McpTestView(False, (), McpTestError("timeout", "The server did not answer in 30 s.", False))
        problem = probe.tools.problem
        tools = tuple(_tool(server, tool.name, tool.description) for tool in probe.tools.tools)
        error = None if problem is None else McpTestError(problem.kind, problem.text, problem.needs_login)
        return McpTestView(error is None, tools, error, probe.protocol_version)

    def _base(request: Request) -> str:
        """Return the address of this deployment. A server on one machine has several addresses, and cookies belong to
        one of them.
        """
        base = services.origins.external_url
        if base is None or rules.is_loopback(urlsplit(base).hostname or ""):
            base = f"{request.url.scheme}://{request.url.netloc}"
        return base.rstrip("/")

    return routes


def _path(server_id: UUID) -> str:
    return f"{PREFIX}/mcp-servers/{server_id}/oauth"


def _given(body: McpServerCreate | McpServerChange) -> dict[str, Any]:
    """Return the fields that were sent, with secrets in a type that is never printed."""
    given: dict[str, Any] = {name: getattr(body, name) for name in body.given}
    for name in ("api_key", "oauth_client_secret"):
        if isinstance(given.get(name), SecretStr):
            given[name] = StoredSecret(given[name].get_secret_value())
    if "headers" in given:
        given["headers"] = {name: StoredSecret(value.get_secret_value()) for name, value in body.headers.items()}
    return given


def _created(seen: SeenServer) -> Response:
    return answer(_view(seen), 201, Location=f"{PREFIX}/mcp-servers/{seen.server.id}")


def _tool(server: McpServer, name: str, description: str) -> McpToolView:
    return McpToolView(name, description, server.offers(name))


def _view(seen: SeenServer) -> McpServerView:
    server = seen.server
    view = McpServerView(
        id=server.id,
        slug=server.slug,
        display_name=server.display_name,
        description=server.description,
        icon=server.icon,
        enabled=server.enabled,
        availability=server.availability,
        auth_type=server.auth_type,
        is_own=server.owner_id is not None,
        workspace_id=server.workspace_id,
        is_editable=seen.is_editable,
        connected=server.auth_type is not AuthType.OAUTH2 or logins.state_of(seen.login) is LoginState.CONNECTED,
        login=_login(seen.login),
    )
    if not seen.is_shown:
        return view
    key = None
    if server.api_key_header is not None:
        key = HeaderView(server.api_key_header, server.api_key_enc is not None)
    return msgspec.structs.replace(
        view,
        url=server.url,
        transport=server.transport,
        api_key=key,
        headers=tuple(HeaderView(name, True) for name in server.header_names),
        oauth_client_id=server.oauth_client_id,
        has_oauth_client_secret=server.oauth_client_secret_enc is not None,
        oauth_authorization_url=server.oauth_authorization_url,
        oauth_token_url=server.oauth_token_url,
        oauth_revocation_url=server.oauth_revocation_url,
        oauth_scopes=server.oauth_scopes,
        allow_in_plan_mode=server.allow_in_plan_mode,
        model_intent=server.model_intent,
        forward_identity=server.forward_identity,
        tool_allow_list=server.tool_allow_list,
        tool_deny_list=server.tool_deny_list,
        allowed_users=server.allowed_users,
        allowed_roles=server.allowed_roles,
        call_timeout_seconds=server.call_timeout_seconds,
        created_at=server.created_at,
        updated_at=server.updated_at,
    )


def _login(login: Login | None) -> McpLoginView:
    if login is None:
        return McpLoginView(state=LoginState.NONE)
    return McpLoginView(
        state=logins.state_of(login),
        scopes=login.scopes,
        missing_scopes=login.missing_scopes,
        reason=login.dead_reason,
        connected_at=login.connected_at,
    )


# The opener is asked for its origin by the browser: the message reaches only pages of this server.
_SCRIPT = """
const told = {type: "rookery:mcp-login", server_id: %s, ok: %s, message: %s};
if (window.opener) {
  window.opener.postMessage(told, window.location.origin);
  if (told.ok) window.close();
}
"""


def _page(server_id: UUID, status: int, message: str, *, cookie: str) -> Response:
    """Return the page at the end of a login. It reports the result to the page that opened it, and closes itself after
    a success.
    """
    nonce = secrets.token_urlsafe(16)
    title = "Connected" if status == 200 else "Not connected"
    script = _SCRIPT % (
        _for_script(str(server_id)),
        "true" if status == 200 else "false",
        _for_script(message),
    )
    body = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title>"
        f'<style nonce="{nonce}">body{{font:16px/1.5 system-ui;margin:4rem auto;max-width:32rem;padding:0 1rem;'
        "color-scheme:light dark}</style></head>"
        f'<body><h1>{title}</h1><p role="status">{html.escape(message)}</p>'
        f'<script nonce="{nonce}">{script}</script></body></html>'
    )
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; frame-ancestors 'none'; "
        "base-uri 'none'; form-action 'none'"
    )
    return HTMLResponse(
        body,
        status,
        {
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "Set-Cookie": cookie,
        },
    )


def _for_script(text: str) -> str:
    """Return a JavaScript string that cannot end its script element."""
    return msgspec.json.encode(text).decode().replace("<", "\\u003c").replace("\u2028", "\\u2028")
