"""MCP servers with an address that a project names, in turns: whose chats use them, and when they end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4

from rookery.domain.chat.mcp_consent import Entry, McpDecision
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.permission_mode import PermissionMode
from rookery.llm.scripted import CallTool, Say
from rookery.llm.types import Call
from rookery.store.mcp import project_servers
from rookery.store.workspaces import context, mcp_consents
from rookery.store.workspaces.context import ContextResource, Snapshot
from rookery.testing.fake_mcp import FakeCall, FakeMcp, Json, text
from tests.tools.mcp_rig import McpHouse, open_mcp_house

DONE = (Say("done"),)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def sent(call: Call) -> list[str]:
    return [tool.name for tool in call.tools if "__" in tool.name]


def server() -> FakeMcp:
    fake = FakeMcp()

    async def look(call: FakeCall) -> Json:
        return text("found it")

    fake.tool("look", look)
    return fake


@dataclass
class Project:
    """A workspace whose files name one server with this address."""

    house: McpHouse
    workspace: UUID
    entry: Entry
    server: UUID

    async def withdraw(self) -> None:
        """Withdraw the consent, as another replica does: no hint has arrived yet."""
        async with self.house.worker.database.api.acquire() as conn:
            await mcp_consents.withdraw(conn, self.workspace, self.entry)
            await project_servers.delete_without_consent(conn, self.workspace)

    async def ask(self, words: str = "hello", **fields: object) -> ChatId:
        chat_id = await self.house.worker.ask(words, workspace_id=self.workspace, **fields)
        await self.house.worker.rested(chat_id)
        return chat_id


async def open_project(house: McpHouse, url: str, name: str = "docs") -> Project:
    """Create a workspace whose owner has agreed to the server of its file."""
    async with house.worker.database.api.acquire() as conn:
        workspace = await conn.fetchval(
            "INSERT INTO workspaces (owner_id, name) VALUES ($1, $2) RETURNING id",
            house.worker.user,
            f"w-{uuid4().hex[:8]}",
        )
        entry = Entry(name=name, folder="/p", url=url, type="auto")
        resource = ContextResource(ordinal=0, kind="mcp_server", source=name, entry=entry, status="ok")
        await context.write_snapshot(conn, Snapshot(workspace, 1, 1, "h", None, (resource,), NOW))
        await mcp_consents.write(conn, workspace, entry, McpDecision.AGREE, by=house.worker.user)
        assert await project_servers.write(conn, workspace, entry, {}, ring=None)
        (made,) = await project_servers.list_of_workspace(conn, workspace)
    house.announce(made.id)
    return Project(house, workspace, entry, made.id)


async def test_all_chats_of_the_workspace_use_it_and_no_others(database_url: str) -> None:
    fake = server()
    script = ((CallTool("docs__look", {}),), DONE, DONE, DONE)
    async with fake.listening() as url, open_mcp_house(database_url, *script) as house:
        project = await open_project(house, url)
        first = await project.ask()
        await project.ask("hello too")
        elsewhere = await house.worker.ask("hello from elsewhere")
        await house.worker.rested(elsewhere)

        assert [sent(call) for call in house.worker.calls] == [["docs__look"]] * 3 + [[]]
        assert await house.worker.results(first) == [{"output": "found it"}]


async def test_choosing_it_for_a_chat_elsewhere_gives_no_access(database_url: str) -> None:
    async with server().listening() as url, open_mcp_house(database_url, DONE) as house:
        project = await open_project(house, url)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(project.server,))
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[0]) == []


async def test_subagents_use_it_and_those_that_explore_do_not(database_url: str) -> None:
    fake = server()
    async with fake.listening() as url, open_mcp_house(database_url, DONE, DONE, DONE) as house:
        project = await open_project(house, url)
        parent = await project.ask()
        family = {"parent_chat_id": parent, "root_chat_id": parent}
        await project.ask("work", **family)
        await project.ask("look", mode="explore", mcp_server_ids=(project.server,), **family)

        # The end of a subagent may resume its parent, so only calls of subagents are compared.
        of_children = [call for call in house.worker.calls if call.cache_key != call.chat_id]
        assert [sent(call) for call in of_children] == [["docs__look"], []]


async def test_planning_and_reading_chats_do_not_use_it(database_url: str) -> None:
    fake = server()
    async with fake.listening() as url, open_mcp_house(database_url, DONE, DONE) as house:
        project = await open_project(house, url)
        await project.ask(plan_mode=True)
        await project.ask(permission_mode=PermissionMode.READ_ONLY)

        assert [sent(call) for call in house.worker.calls] == [[], []]
        assert fake.requests == []


async def test_withdrawal_counts_at_once_even_in_the_middle_of_a_turn(database_url: str) -> None:
    """The call is refused although this replica still offers the tool, because it has heard of nothing."""
    fake = server()
    script = ((CallTool("docs__look", {}),), (CallTool("docs__look", {}),), DONE)
    async with fake.listening() as url, open_mcp_house(database_url, *script) as house:
        project = await open_project(house, url)

        async def look(call: FakeCall) -> Json:
            await project.withdraw()
            return text("the last one")

        fake.tool("look", look)
        chat_id = await project.ask()

        first, second = await house.worker.results(chat_id)
        assert first == {"output": "the last one"}
        assert "has not agreed to the MCP server docs" in str(second)
        assert len(fake.calls) == 1


async def test_own_server_with_the_name_of_a_project_keeps_its_tools(database_url: str) -> None:
    mine, theirs = server(), server()
    async with mine.listening() as url, theirs.listening() as other, open_mcp_house(database_url, DONE) as house:
        own = await house.add_server("docs", url, owner_id=house.worker.user)
        project = await open_project(house, other)
        await project.ask(mcp_server_ids=(own,))

        assert sent(house.worker.calls[0]) == ["docs-2__look", "docs__look"]
        assert mine.requests
        assert theirs.requests


async def test_login_is_asked_for_once_the_server_wants_one(database_url: str) -> None:
    fake = FakeMcp(bearers={"token"})
    fake.tool("look")
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        project = await open_project(house, url)
        chat_id = await project.ask()

        notices = [words for role, words in await house.worker.story(chat_id) if role == "system"]
        assert notices == [
            "docs needs you to log in, so its tools are missing. Connect it under Settings > Connections, or with "
            "/connect docs in a terminal."
        ]
        assert await house.worker.sql("SELECT auth_type FROM mcp_servers WHERE id = $1", project.server) == "oauth2"
