"""Consent to MCP servers that files of a workspace name: only its owner sees their commands and decides whether they
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from rookery.domain.access.rights import Action, Resource
from rookery.domain.chat.mcp_consent import McpDecision
from rookery.store.authorized.rights import Grant, How, Part, Via, authz
from rookery.store.db.hints import WatchHint, WatchKind
from rookery.store.people.audit import Event
from rookery.store.people.errors import Missing
from rookery.store.workspaces import context, mcp_consents
from rookery.store.workspaces.mcp_consents import NamedServer


class McpServerNotFound(Missing):
    """Raised if no file of the workspace names this entry, or no longer does."""

    def __init__(self, workspace_id: UUID, entry_hash: str) -> None:
        self.workspace_id = workspace_id
        self.entry_hash = entry_hash
        super().__init__("No file of this workspace names this server any more, or its entry has changed. Look again.")


class McpServers(Part):
    __slots__ = ()

    @authz(Resource.WORKSPACE, Action.UPDATE, via=Via.WORKSPACE)
    async def list(self, at: Grant, workspace_id: UUID) -> Sequence[NamedServer]:
        """List the servers that the workspace named when last seen, with the answers."""
        return await _list(at, workspace_id)

    @authz(Resource.WORKSPACE, Action.UPDATE, via=Via.WORKSPACE, how=How.WRITE)
    async def answer(
        self, at: Grant, workspace_id: UUID, entry_hash: str, decision: McpDecision
    ) -> Sequence[NamedServer]:
        """Allow or deny exactly this entry, until it changes or the answer is withdrawn."""
        server = await _find(at, workspace_id, entry_hash)
        await mcp_consents.write(at.conn, workspace_id, server.entry, decision, by=at.by)
        await _tell(at, workspace_id, f"workspace.mcp_{decision.value}", server)
        return await _list(at, workspace_id)

    @authz(Resource.WORKSPACE, Action.UPDATE, via=Via.WORKSPACE, how=How.WRITE)
    async def withdraw(self, at: Grant, workspace_id: UUID, entry_hash: str) -> Sequence[NamedServer]:
        """Withdraw an answer: the server is asked about again, and does not run."""
        server = await _find(at, workspace_id, entry_hash)
        if await mcp_consents.withdraw(at.conn, workspace_id, server.entry):
            await _tell(at, workspace_id, "workspace.mcp_withdraw", server)
        return await _list(at, workspace_id)


async def _list(at: Grant, workspace_id: UUID) -> tuple[NamedServer, ...]:
    snapshot = await context.find_snapshot(at.conn, workspace_id)
    return mcp_consents.named_servers(snapshot, await mcp_consents.list_consents(at.conn, workspace_id))


async def _find(at: Grant, workspace_id: UUID, entry_hash: str) -> NamedServer:
    for each in await _list(at, workspace_id):
        if each.entry.hash == entry_hash:
            return each
    raise McpServerNotFound(workspace_id, entry_hash)


async def _tell(at: Grant, workspace_id: UUID, action: str, server: NamedServer) -> None:
    """Log it without the command, which may be confidential, and notify the chats of the workspace."""
    extra = {"server": server.entry.name, "entry_hash": server.entry.hash}
    await at.log(Event(action=action, resource_type=Resource.WORKSPACE, resource_id=str(workspace_id), extra=extra))
    for marked in await context.bump_servers(at.conn, workspace_id):
        at.tell(
            WatchHint(
                user_id=marked.owner_id,
                kind=WatchKind.CONTEXT,
                chat_id=marked.chat_id,
                snapshot_version=marked.snapshot_version,
            )
        )
