"""Consent for MCP servers of a project at the terminal."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from rookery.cli.chat import mcp_servers, prompt_loop
from rookery.cli.chat.approvals import Undecided
from rookery.cli.chat.chat_actions import NewChat
from rookery.cli.exit_codes import Exit, Refused
from rookery.client.models import WorkspaceMcpServer
from rookery.domain.chat.mcp_consent import Entry
from rookery.llm.scripted import Say
from rookery.store.workspaces import context
from rookery.store.workspaces.context import ContextResource, Snapshot
from tests.cli.chat.chat_rig import ChatRig, open_chat_desk, seated
from tests.cli.chat.test_approvals import Typed

DOCS = Entry(name="docs", folder="/p", command="npx", args=("a b", "x"), env=("TOKEN",))


async def chat_with_server(rig: ChatRig, entry: Entry = DOCS) -> UUID:
    """Create a chat with a stopped workspace that defines an MCP server."""
    database = rig.rig.database.api
    workspace = await database.fetchval(
        "INSERT INTO workspaces (owner_id, name) VALUES ($1, 'place') RETURNING id", rig.person.id
    )
    resource = ContextResource(ordinal=0, kind="mcp_server", source=entry.name, status="pending", entry=entry)
    async with database.acquire() as conn:
        now = rig.rig.clock.now()
        await context.write_snapshot(conn, Snapshot(workspace, 1, 1, "h", None, (resource,), now))
    return (await rig.client.chats.create("hello", workspace_id=workspace)).id


def test_a_server_is_asked_about_once_and_the_answer_is_kept(database_url: str, tmp_path: Path) -> None:
    person = Typed("what?", "y", "hello", "/quit")

    with seated(database_url, tmp_path, (Say("Good morning."),)) as (rig, runner):
        chat_id = runner.run(chat_with_server(rig))
        assert (
            prompt_loop.PromptLoop(rig.terminal(), runner, new_chat=NewChat(), chat_id=chat_id).run(person) == Exit.OK
        )
        left = runner.run(mcp_servers.find_waiting(rig.client, chat_id))

    assert person.prompts == [
        "Let docs run? [y/n] ",
        f"{mcp_servers.HOW}. Let docs run? [y/n] ",
        "> ",
        "> ",
    ]
    assert "  command: npx 'a b' x" in rig.notes
    assert "  with the variables: TOKEN" in rig.notes
    assert left is None


def test_user_who_does_not_answer_is_not_asked_at_every_prompt(database_url: str, tmp_path: Path) -> None:
    lines = iter([None, "hello", "/quit"])

    def read_line(prompt: str) -> str:
        line = next(lines)
        if line is None:
            raise EOFError
        return line

    with seated(database_url, tmp_path, (Say("Good morning."),)) as (rig, runner):
        chat_id = runner.run(chat_with_server(rig))
        assert (
            prompt_loop.PromptLoop(rig.terminal(), runner, new_chat=NewChat(), chat_id=chat_id).run(read_line)
            == Exit.OK
        )
        left = runner.run(mcp_servers.find_waiting(rig.client, chat_id))

    assert left is not None
    assert [each.state for each in left[1]] == ["asked"]


async def test_servers_are_shown_and_answered_about_by_name(database_url: str, tmp_path: Path) -> None:
    async with open_chat_desk(database_url, tmp_path) as rig:
        with rig.script((Say("Good morning."),)):
            chat_id = str(await chat_with_server(rig))
        states = []
        for answer in (None, "agree", "deny", "withdraw"):
            done = await mcp_servers.servers(
                rig.terminal(), chat_id, answer=answer, name=None if answer is None else "docs"
            )
            assert done == Exit.OK
            states.append(re.split(r"\s{2,}", rig.said.splitlines()[1])[1])
        with pytest.raises(Refused, match="names a server other"):
            await mcp_servers.servers(rig.terminal(), chat_id, answer="agree", name="other")

    assert states == ["asked", "agreed, not running", "denied", "asked"]


def test_a_changed_server_is_told_as_such_and_no_answer_is_none() -> None:
    server = WorkspaceMcpServer(
        name="docs",
        hash="0" * 64,
        state="changed",
        folder="/p",
        command="sh\\u202e",
        args=(),
        env=(),
        headers=(),
        running=False,
        tools=(),
    )

    def nobody(prompt: str) -> str:
        raise KeyboardInterrupt

    assert list(mcp_servers.question_lines(server)) == [
        "The project has changed its MCP server docs. It would run now:",
        "  command: 'sh\\u202e'",
        "  in: /p",
    ]
    with pytest.raises(Undecided):
        mcp_servers.ask(server, nobody)


def test_address_is_shown_with_the_names_of_what_is_sent() -> None:
    server = WorkspaceMcpServer(
        name="docs",
        hash="0" * 64,
        state="asked",
        folder="/p",
        args=(),
        env=("TOKEN",),
        url="https://docs.example/mcp",
        type="http",
        headers=("Authorization",),
        running=False,
        tools=(),
    )
    typed = iter(["maybe", "y"])
    prompts = []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        return next(typed)

    assert list(mcp_servers.question_lines(server)) == [
        "The project names an MCP server, docs. Rookery would connect:",
        "  to: https://docs.example/mcp",
        "  with the headers: Authorization",
        "  with the values of the variables: TOKEN",
    ]
    assert next(mcp_servers.question_lines(msgspec.structs.replace(server, state="changed"))) == (
        "The project has changed its MCP server docs. Rookery would connect now:"
    )
    assert mcp_servers.ask(server, read_line) == "agree"
    assert prompts == ["Connect to docs? [y/n] ", f"{mcp_servers.HOW}. Connect to docs? [y/n] "]


async def test_table_has_the_address(database_url: str, tmp_path: Path) -> None:
    url = "https://docs.example/mcp"
    entry = Entry(name="docs", folder="/p", url=url, type="http", headers=("X-Team",), env=("TEAM",))
    async with open_chat_desk(database_url, tmp_path) as rig:
        with rig.script((Say("Good morning."),)):
            chat_id = str(await chat_with_server(rig, entry))
        await mcp_servers.servers(rig.terminal(), chat_id, answer=None, name=None)
        row = re.split(r"\s{2,}", rig.said.splitlines()[1])

    assert row == ["docs", "asked", url, "X-Team", "TEAM"]
