"""MCP servers that files of a workspace define: their commands, and the owner's consent to run them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import Items, Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.chat.mcp_consent import McpDecision, McpState, visible
from rookery.store.workspaces.mcp_consents import NamedServer


class WorkspaceMcpServerView(msgspec.Struct, frozen=True, kw_only=True):
    r"""A server that a file of the workspace defines.

    `hash` is that of its entry: the command, its arguments, its working folder, and the names (never the values) of its
    variables. `state` is asked, agreed, denied or changed (the answer was about another entry of this name). In all
    texts, characters that could hide or reorder the displayed text are escaped, such as `\u202e`. `error` is the reason
    why an agreed server does not run. `tools` are the names of its tools while it runs.
    """

    name: str
    hash: str
    state: McpState
    folder: str
    command: str
    args: tuple[str, ...]
    env: tuple[str, ...]
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

        A server runs only after the owner has agreed to its entry.
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

        404 if the file now has another entry. Then list the servers again.
        """
        body = await caller.read(McpAnswerBody, may=lambda: caller.store.workspaces.require_update(workspace))
        await caller.store.workspace_mcp_servers.answer(workspace, entry_hash, body.decision)
        await services.workspaces.run_agreed_servers(workspace)
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

    return routes


def _views(found: Sequence[NamedServer]) -> Items[WorkspaceMcpServerView]:
    return Items(tuple(_view(each) for each in found))


def _view(server: NamedServer) -> WorkspaceMcpServerView:
    entry, resource = server.entry, server.resource
    running = server.state is McpState.AGREED and resource.status == "ok"
    failed = server.state is McpState.AGREED and resource.status not in ("ok", "pending")
    names = [str(tool.get("name", "")) for tool in resource.tools or ()]
    return WorkspaceMcpServerView(
        name=visible(entry.name),
        hash=entry.hash,
        state=server.state,
        folder=visible(entry.folder),
        command=visible(entry.command),
        args=tuple(map(visible, entry.args)),
        env=tuple(map(visible, entry.env)),
        running=running,
        error=visible(resource.error or "") if failed else None,
        tools=tuple(map(visible, names)) if running else (),
        decided_at=server.decided_at,
    )
