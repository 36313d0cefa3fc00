"""MCP servers that files of a workspace define: their commands and addresses, and the owner's consent to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

import msgspec
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import Items, Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.chat.mcp_consent import McpDecision, McpState, visible
from rookery.domain.mcp.server import AuthType
from rookery.store.authorized.workspaces import ProjectServer
from rookery.store.mcp import logins
from rookery.store.mcp.logins import LoginState

# The wait for the first list of tools, when a user has just agreed to a server with a URL.
LOOK_SECONDS = 10.0
REFUSED = "An administrator has disabled MCP servers of users and projects."
NOT_PREPARED = "It is prepared while the workspace runs. If that fails, the log of Rookery says why."


class WorkspaceMcpServerView(msgspec.Struct, frozen=True, kw_only=True):
    r"""A server that a file of the workspace defines: a `command`, which runs in the workspace, or a `url`.

    `hash` is that of its entry: the command, its arguments, its working folder, and the names (never the values) of its
    variables; or the URL, its type, the names of its headers, and those of the variables whose values are in headers.
    `server` is the id of an agreed server with a URL among the MCP servers, and `login` is the owner's login there, or
    null if it needs none. `state` is asked, agreed, denied or changed (the answer was about another entry of this
    name). In all texts, characters that could hide or reorder the displayed text are escaped, such as `\u202e`. `error`
    is the reason why an agreed server does not run. `tools` are the names of its tools while it runs. A server with a
    URL is running if chats of the workspace use it.
    """

    name: str
    hash: str
    state: McpState
    folder: str
    command: str | None
    args: tuple[str, ...]
    env: tuple[str, ...]
    url: str | None
    type: str | None
    headers: tuple[str, ...]
    server: UUID | None
    login: LoginState | None
    running: bool
    error: str | None
    tools: tuple[str, ...]
    decided_at: datetime | None


class McpAnswerBody(Body):
    """The decision whether the server may run with exactly this entry from now on."""

    decision: McpDecision


def router(services: ApiServices) -> Routes:
    routes = Routes("workspaces")

    @routes.get(
        "/workspaces/{workspace}/mcp-servers", "mcp_servers.list", returns=Items[WorkspaceMcpServerView], errors=(404,)
    )
    async def list_servers(caller: Caller, workspace: UUID) -> Response:
        """List the MCP servers that files of the workspace define.

        A server is run or connected to only after the owner has agreed to its entry.
        """
        return answer(_views(await caller.store.workspace_mcp_servers.list(workspace)))

    @routes.put(
        "/workspaces/{workspace}/mcp-servers/{entry_hash}",
        "mcp_servers.answer",
        body=McpAnswerBody,
        returns=Items[WorkspaceMcpServerView],
        errors=(404,),
    )
    async def answer_server(caller: Caller, workspace: UUID, entry_hash: str) -> Response:
        """Agree to an entry or deny it. A running workspace starts or stops the server accordingly.

        A server with a URL is asked for its tools at once, for at most 10 seconds, and gets the headers of the file.
        404 if the file now has another entry. Then list the servers again.
        """
        body = await caller.read(McpAnswerBody, may=lambda: caller.store.workspaces.require_update(workspace))
        await caller.store.workspace_mcp_servers.answer(workspace, entry_hash, body.decision)
        await services.workspaces.run_agreed_servers(workspace)
        await look_at(caller, workspace, entry_hash)
        return answer(_views(await caller.store.workspace_mcp_servers.list(workspace)))

    @routes.delete(
        "/workspaces/{workspace}/mcp-servers/{entry_hash}",
        "mcp_servers.withdraw",
        returns=Items[WorkspaceMcpServerView],
        errors=(404,),
    )
    async def withdraw(caller: Caller, workspace: UUID, entry_hash: str) -> Response:
        """Withdraw an answer. The server is stopped, and the question is open again."""
        await caller.store.workspace_mcp_servers.withdraw(workspace, entry_hash)
        await services.workspaces.run_agreed_servers(workspace)
        return answer(_views(await caller.store.workspace_mcp_servers.list(workspace)))

    async def look_at(caller: Caller, workspace: UUID, entry_hash: str) -> None:
        """Ask an agreed server with a URL for its tools, so that its owner sees them, or that it needs a login."""
        for each in await caller.store.workspace_mcp_servers.list(workspace):
            if each.server is not None and each.named.entry.hash == entry_hash and not each.is_refused:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await services.mcp.probe(each.server, caller.user.id)

    return routes


def _views(found: Sequence[ProjectServer]) -> Items[WorkspaceMcpServerView]:
    return Items(tuple(_view(each) for each in found))


def _view(server: ProjectServer) -> WorkspaceMcpServerView:
    named = server.named
    entry, resource = named.entry, named.resource
    is_agreed = named.state is McpState.AGREED
    if entry.url is None:
        running = is_agreed and resource.status == "ok"
        names = tuple(str(tool.get("name", "")) for tool in resource.tools or ())
    else:
        running = server.server is not None and server.server.enabled and not server.is_refused
        names = server.tools
    has_login = server.server is not None and server.server.auth_type is AuthType.OAUTH2
    return WorkspaceMcpServerView(
        name=visible(entry.name),
        hash=entry.hash,
        state=named.state,
        folder=visible(entry.folder),
        command=None if entry.command is None else visible(entry.command),
        args=tuple(map(visible, entry.args)),
        env=tuple(map(visible, entry.env)),
        url=None if entry.url is None else visible(entry.url),
        type=entry.type,
        headers=tuple(map(visible, entry.headers)),
        server=None if server.server is None else server.server.id,
        login=logins.state_of(server.login) if has_login else None,
        running=running,
        error=_error(server) if is_agreed and not running else None,
        tools=tuple(map(visible, names)) if running else (),
        decided_at=named.decided_at,
    )


def _error(server: ProjectServer) -> str | None:
    """Return the reason why an agreed server does not run; None if it has only not been started yet."""
    resource = server.named.resource
    if resource.status not in ("ok", "pending"):
        return visible(resource.error or "")
    if server.is_refused:
        return REFUSED
    return NOT_PREPARED if server.named.entry.url is not None and resource.status == "ok" else None
