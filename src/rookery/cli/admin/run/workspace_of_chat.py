"""The workspace of a chat that `rookery admin run` continues: consent to its MCP servers, and its stop after the turn.

A server stops idle workspaces. After this command, there may be no server that does this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from rookery.cli.chat import mcp_servers
from rookery.cli.exit_codes import Exit, Refused
from rookery.client import ApiError, AsyncRookery, NotFound

# Chosen: a workspace gets ten seconds to end its processes. The command does not wait longer.
STOP_SECONDS = 60.0


class WorkspaceBoot(NamedTuple):
    """A workspace and the time of its start; None if it is stopped."""

    workspace_id: UUID
    started_at: datetime | None


async def find_boot(client: AsyncRookery, chat_id: UUID) -> WorkspaceBoot | None:
    """Return the state of the chat's workspace; None if it has none."""
    workspace_id = (await client.chats.get(chat_id)).workspace_id
    if workspace_id is None:
        return None
    try:
        workspace = await client.workspaces.get(workspace_id)
    except NotFound:
        return None
    is_down = workspace.status == "stopped" and workspace.operation is None
    return WorkspaceBoot(workspace.id, None if is_down else workspace.started_at or workspace.created_at)


async def stop_started(
    client: AsyncRookery, chat_id: UUID, *, before: WorkspaceBoot | None, say: Callable[[str], None]
) -> None:
    """Stop the chat's workspace, unless it is stopped or ran before the turn."""
    boot = await find_boot(client, chat_id)
    if boot is None or boot.started_at is None or boot == before:
        return
    say("stopping the workspace")
    try:
        async with asyncio.timeout(STOP_SECONDS):
            # The turn may have been stopped while the workspace was being created.
            if (running := (await client.workspaces.get(boot.workspace_id)).operation) is not None:
                await client.workspaces.wait(running.id)
            if (stop := (await client.workspaces.stop(boot.workspace_id)).operation) is not None:
                await client.workspaces.wait(stop.id)
    except TimeoutError:
        say("the workspace is still stopping; a running server will finish that")
    except ApiError as error:
        say(f"the workspace could not be stopped: {error}")


async def agree(client: AsyncRookery, workspace_id: UUID | None, hashes: Sequence[str]) -> None:
    """Store the consent to these entries. Each hash identifies one exact entry."""
    for each in hashes:
        try:
            if workspace_id is None:
                raise Refused("--agree: The chat has no workspace.", code=Exit.USAGE)
            await client.workspaces.answer_mcp_server(workspace_id, each, "agree")
        except NotFound:
            text = f"--agree: No file of the workspace names an MCP server whose entry has the hash {each}."
            raise Refused(text, code=Exit.USAGE) from None


async def waiting_servers(client: AsyncRookery, chat_id: UUID) -> Iterator[str]:
    """Return lines about MCP servers of the workspace that have no consent, with the argument that gives consent."""
    found = await mcp_servers.find_waiting(client, chat_id)
    lines: list[str] = []
    for server in () if found is None else found[1]:
        lines += mcp_servers.question_lines(server)
        lines.append(f"  to allow it: rookery admin run --workspace --chat {chat_id} --agree {server.hash} PROMPT")
    return iter(lines)
