"""Workspaces, their templates, and the operations that change them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal
from uuid import UUID, uuid4

from rookery.client.http import Http, path
from rookery.client.models import Operation, RequestedWorkspace, Template, Workspace, WorkspaceMcpServer
from rookery.client.pages import Items, Page, walk

POLL_SECONDS = 0.5


class AsyncTemplates:
    """`client.templates`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self) -> tuple[Template, ...]:
        """Return the templates that the caller may use."""
        return (await self._http.read(Items[Template], "/templates")).items

    async def get(self, name: str) -> Template:
        """Return one template, with its README."""
        return await self._http.read(Template, path("templates", name))


class AsyncWorkspaces:
    """`client.workspaces`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(
        self,
        template: str,
        *,
        name: str | None = None,
        preset: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> RequestedWorkspace:
        """Create a workspace and start it. Use `wait` to wait for the operation of the response."""
        body = {"template": template, "name": name, "preset": preset, "parameters": parameters or {}}
        return await self._http.write(RequestedWorkspace, "POST", "/workspaces", body=body, key=str(uuid4()))

    async def list(self, *, limit: int = 50, cursor: str | None = None, owner: str | None = None) -> Page[Workspace]:
        """Return one page of workspaces, newest first. `owner` is for administrators: the id of a user, or `all`."""
        query = {"limit": limit, "cursor": cursor, "owner": owner}
        return await self._http.read(Page[Workspace], "/workspaces", query)

    async def iterate(self, *, owner: str | None = None) -> AsyncIterator[Workspace]:
        """Iterate over all workspaces, loaded page by page."""
        async for workspace in walk(lambda cursor: self.list(cursor=cursor, owner=owner)):
            yield workspace

    async def get(self, workspace_id: UUID | str) -> Workspace:
        return await self._http.read(Workspace, path("workspaces", workspace_id))

    async def update(
        self, workspace_id: UUID | str, *, name: str | None = None, idle_stop_after: int | None = None
    ) -> Workspace:
        """Rename the workspace, or change the idle time in seconds after which it is stopped; 0 means never."""
        given = {"name": name, "idle_stop_after": idle_stop_after}
        body = {key: value for key, value in given.items() if value is not None}
        return await self._http.write(Workspace, "PATCH", path("workspaces", workspace_id), body=body)

    async def start(
        self, workspace_id: UUID | str, *, parameters: Mapping[str, Any] | None = None
    ) -> RequestedWorkspace:
        """Start the workspace. If it already runs, the response has no operation."""
        body = {"parameters": parameters or {}}
        return await self._http.write(RequestedWorkspace, "POST", path("workspaces", workspace_id, "start"), body=body)

    async def mcp_servers(self, workspace_id: UUID | str) -> tuple[WorkspaceMcpServer, ...]:
        """Return the MCP servers that files of the workspace define.

        A server runs only after the owner has agreed to its entry.
        """
        return (await self._http.read(Items[WorkspaceMcpServer], path("workspaces", workspace_id, "mcp-servers"))).items

    async def answer_mcp_server(
        self, workspace_id: UUID | str, entry_hash: str, decision: Literal["agree", "deny"]
    ) -> tuple[WorkspaceMcpServer, ...]:
        """Agree to an entry, given by its `hash`, or deny it.

        A changed entry has another hash and needs a new answer.
        """
        target = path("workspaces", workspace_id, "mcp-servers", entry_hash)
        return (await self._http.write(Items[WorkspaceMcpServer], "PUT", target, body={"decision": decision})).items

    async def withdraw_mcp_server(self, workspace_id: UUID | str, entry_hash: str) -> tuple[WorkspaceMcpServer, ...]:
        """Withdraw an answer. The server is stopped, and the question is open again."""
        target = path("workspaces", workspace_id, "mcp-servers", entry_hash)
        return (await self._http.write(Items[WorkspaceMcpServer], "DELETE", target)).items

    async def stop(self, workspace_id: UUID | str) -> RequestedWorkspace:
        """Stop the workspace. Its files are kept."""
        return await self._http.write(RequestedWorkspace, "POST", path("workspaces", workspace_id, "stop"))

    async def delete(self, workspace_id: UUID | str, *, force: bool = False) -> RequestedWorkspace:
        """Delete the workspace with its files.

        With `force`, it is deleted even if a chat works in it or its machine is unreachable.
        """
        answer = await self._http.send("DELETE", path("workspaces", workspace_id), query={"force": force})
        return self._http.decode(RequestedWorkspace, answer)

    async def operation(self, operation_id: UUID | str) -> Operation:
        """Return the state of an operation."""
        return await self._http.read(Operation, path("operations", operation_id))

    async def log(self, operation_id: UUID | str) -> str:
        """Return the last 256 KiB of an operation's log so far, including the output of the startup script."""
        return (await self._http.send("GET", path("operations", operation_id, "log"))).body.decode(errors="replace")

    async def wait(self, operation_id: UUID | str) -> Operation:
        """Wait until the operation is over, with any result. Use your own timeout to end the wait earlier."""
        while True:
            found = await self.operation(operation_id)
            if found.finished_at is not None:
                return found
            await self._http.config.clock.sleep(POLL_SECONDS, "client-operation")
