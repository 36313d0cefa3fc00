"""MCP servers at the terminal: the consent to those of a chat's workspace, and the login to remote ones."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Literal
from uuid import UUID

from rookery.cli.chat import chat_actions
from rookery.cli.chat.approvals import Undecided
from rookery.cli.chat.chat_actions import Terminal
from rookery.cli.exit_codes import Exit, Refused
from rookery.client import AsyncRookery
from rookery.client.models import McpServer, WorkspaceMcpServer

CONNECTED = "connected"
WAITING = frozenset({"asked", "changed"})
HOW = "y allows it, n does not"

# A login in a browser takes a minute or two.
LOGIN_SECONDS = 600.0
LOOK_SECONDS = 2.0

Answer = Literal["agree", "deny", "withdraw"]
ReadLine = Callable[[str], str]


async def servers(at: Terminal, reference: str, *, answer: Answer | None, name: str | None) -> int:
    """Store an answer about an MCP server, if one is given. Then show the MCP servers of the chat's workspace."""
    workspace_id = (await at.client.chats.get(await chat_actions.find_chat(at.client, reference))).workspace_id
    if workspace_id is None:
        raise Refused("This chat has no workspace.", code=Exit.FAILED)
    found = await at.client.workspaces.mcp_servers(workspace_id)
    if answer is not None:
        server = next((each for each in found if each.name == name), None)
        if server is None:
            raise Refused(f"No file of the workspace names a server {name}.", code=Exit.USAGE)
        found = await send(at.client, workspace_id, server, answer)
    if not found:
        at.out.line("No file of the workspace names an MCP server.")
    else:
        rows = [
            [each.name, _status(each), _target(each), ", ".join(each.headers), ", ".join(each.env)] for each in found
        ]
        at.out.table(["server", "state", "command or address", "headers", "variables"], rows)
    at.out.result({"items": found})
    return Exit.OK


async def send(
    client: AsyncRookery, workspace_id: UUID, server: WorkspaceMcpServer, answer: Answer
) -> tuple[WorkspaceMcpServer, ...]:
    if answer == "withdraw":
        return await client.workspaces.withdraw_mcp_server(workspace_id, server.hash)
    return await client.workspaces.answer_mcp_server(workspace_id, server.hash, answer)


async def find_waiting(client: AsyncRookery, chat_id: UUID) -> tuple[UUID, list[WorkspaceMcpServer]] | None:
    """Return the chat's workspace and its MCP servers that wait for the user's consent; None if there are none."""
    found = await client.chats.get(chat_id)
    if found.workspace_id is None or found.my_role != "owner":
        return None
    named = await client.workspaces.mcp_servers(found.workspace_id)
    waiting = [each for each in named if each.state in WAITING]
    return (found.workspace_id, waiting) if waiting else None


def question_lines(server: WorkspaceMcpServer) -> Iterator[str]:
    """Return the lines of a question. The server has already escaped characters that could hide or reorder text."""
    has_changed = server.state == "changed"
    if server.url is not None:
        yield (
            f"The project has changed its MCP server {server.name}. Rookery would connect now:"
            if has_changed
            else f"The project names an MCP server, {server.name}. Rookery would connect:"
        )
        yield f"  to: {server.url}"
        if server.headers:
            yield f"  with the headers: {', '.join(server.headers)}"
        if server.env:
            yield f"  with the values of the variables: {', '.join(server.env)}"
        return
    if has_changed:
        yield f"The project has changed its MCP server {server.name}. It would run now:"
    else:
        yield f"The project names an MCP server, {server.name}. It would run:"
    yield f"  command: {_target(server)}"
    yield f"  in: {server.folder}"
    if server.env:
        yield f"  with the variables: {', '.join(server.env)}"


def asked(server: WorkspaceMcpServer) -> str:
    return f"Let {server.name} run?" if server.url is None else f"Connect to {server.name}?"


def ask(server: WorkspaceMcpServer, read_line: ReadLine) -> Literal["agree", "deny"]:
    """Prompt for the answer. Raise `Undecided` if the user does not answer."""
    prompt = f"{asked(server)} [y/n] "
    while True:
        try:
            word = read_line(prompt).strip().lower()
        except (EOFError, KeyboardInterrupt):
            raise Undecided from None
        if word in ("y", "yes"):
            return "agree"
        if word in ("n", "no"):
            return "deny"
        prompt = f"{HOW}. {asked(server)} [y/n] "


def _status(server: WorkspaceMcpServer) -> str:
    if server.state != "agreed":
        return server.state
    if server.error:
        return f"agreed, {server.error}"
    if server.running and server.login not in (None, CONNECTED):
        return "agreed, needs your login: /connect"
    return f"agreed, {len(server.tools)} tools" if server.running else "agreed, not running"


def _target(server: WorkspaceMcpServer) -> str:
    """Return the address, or the command and its arguments, quoted for a shell."""
    if server.url is not None:
        return server.url
    return " ".join(shlex.quote(each) for each in (server.command or "", *server.args))


async def find_logins(client: AsyncRookery) -> list[McpServer]:
    """Return the MCP servers to which the user can log in."""
    return [each for each in await client.mcp_servers.list() if each.auth_type == "oauth2"]


def login_lines(logins: Sequence[McpServer], name: str) -> Iterator[str]:
    """Yield the servers and their logins, with the reason if there is none of this name."""
    if name:
        yield f"There is no MCP server {name} with a login."
    elif not logins:
        yield "No MCP server needs a login."
    for each in logins:
        yield f"{each.slug}: {'connected' if each.login.state == CONNECTED else f'/connect {each.slug}'}"


def connect_line(base_url: str, server: McpServer) -> str:
    return f"Open {base_url}/settings/connections?server={server.id} and log in to {server.slug}. Waiting..."


async def wait_for_login(
    client: AsyncRookery, server_id: UUID, *, seconds: float = LOGIN_SECONDS, every: float = LOOK_SECONDS
) -> bool:
    """Wait until the user has logged in to the server elsewhere. Return whether that has happened."""
    for look in range(1 + round(seconds / every)):
        if look:
            await asyncio.sleep(every)
        if (await client.mcp_servers.get(server_id)).login.state == CONNECTED:
            return True
    return False
