"""MCP servers with an address that files of workspaces name: their rows, consent, names, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.mcp_consent import Entry, McpDecision
from rookery.domain.mcp.server import AuthType, McpServer, Transport
from rookery.store.mcp import project_servers, servers
from rookery.store.mcp.servers import ServerDraft
from rookery.store.models.errors import KeysMissing
from rookery.store.settings import settings
from rookery.store.workspaces import context, mcp_consents
from rookery.store.workspaces.context import ContextResource, Snapshot
from tests.eventually import until
from tests.store.models.provider_rows import RING, ModelRows, open_nest

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = {"Authorization": "Bearer key-secret"}
DOCS = Entry(name="docs", folder="/p", url="https://docs.test/mcp", type="http", headers=("Authorization",))
OPEN = Entry(name="open", folder="/p", url="https://open.test/mcp", type="auto")


@dataclass
class Project:
    """A workspace with files that name servers."""

    nest: ModelRows
    owner: UUID
    workspace: UUID
    version: int = 0

    async def name(self, *entries: Entry) -> bool:
        """Set the entries of the files. Return whether this has enabled or disabled a server."""
        self.version += 1
        resources = tuple(
            ContextResource(ordinal=place, kind="mcp_server", source=each.name, entry=each)
            for place, each in enumerate(entries)
        )
        snapshot = Snapshot(self.workspace, 1, self.version, "h", None, resources, NOW)
        async with self.nest.conn.transaction():
            await context.write_snapshot(self.nest.conn, snapshot)
            return await project_servers.follow(self.nest.conn, snapshot)

    async def answer(self, entry: Entry, decision: McpDecision = McpDecision.AGREE) -> None:
        await mcp_consents.write(self.nest.conn, self.workspace, entry, decision, by=self.owner)
        await project_servers.delete_without_consent(self.nest.conn, self.workspace)

    async def write(self, entry: Entry, headers: dict[str, str] | None = None) -> bool:
        return await project_servers.write(self.nest.conn, self.workspace, entry, headers or {}, ring=RING)

    async def use(self, entry: Entry, headers: dict[str, str] | None = None) -> McpServer:
        """Name the entry, agree to it, and return its server."""
        await self.name(entry)
        await self.answer(entry)
        await self.write(entry, headers)
        return (await self.rows())[-1]

    async def rows(self) -> tuple[McpServer, ...]:
        return await project_servers.list_of_workspace(self.nest.conn, self.workspace)

    async def usable(self) -> list[str]:
        """Return the slugs of the servers that a chat in the workspace can use."""
        return [each.slug for each in await servers.list_usable(self.nest.conn, self.owner, self.workspace)]


@pytest.fixture
async def nest(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as nest:
        yield nest


@pytest.fixture
async def project(nest: ModelRows) -> Project:
    return await make_project(nest, await nest.user())


async def make_project(nest: ModelRows, owner: UUID) -> Project:
    workspace = await nest.conn.fetchval(
        "INSERT INTO workspaces (owner_id, name) VALUES ($1, $2) RETURNING id", owner, f"w-{uuid4().hex[:8]}"
    )
    return Project(nest, owner, workspace)


async def add(nest: ModelRows, slug: str, owner: UUID | None = None) -> McpServer:
    draft = ServerDraft(slug=slug, url="https://other.test/mcp")
    return await servers.create_server(nest.conn, draft, ring=RING, by=None, owner_id=owner)


async def test_server_of_an_agreed_entry_has_its_address_and_sealed_headers(project: Project) -> None:
    made = await project.use(DOCS, KEY)
    stored = await project.nest.conn.fetchval("SELECT string_agg(s::text, ' ') FROM mcp_servers s")

    assert (made.url, made.transport, made.auth_type) == (DOCS.url, Transport.STREAMABLE_HTTP, AuthType.CUSTOM_HEADERS)
    assert (made.owner_id, made.workspace_id, made.entry_hash) == (project.owner, project.workspace, DOCS.hash)
    assert servers.open_headers(made, RING) == KEY
    assert "key-secret" not in stored
    assert await project.usable() == ["docs"]
    assert not made.forward_identity
    assert not made.allow_in_plan_mode


async def test_server_is_for_chats_of_its_workspace_alone(project: Project) -> None:
    await project.use(DOCS, KEY)
    other = await make_project(project.nest, project.owner)
    stranger = await project.nest.user()

    assert await other.usable() == []
    assert await servers.list_usable(project.nest.conn, project.owner) == ()
    assert await servers.list_usable(project.nest.conn, stranger, project.workspace) == ()


@pytest.mark.parametrize("state", ["not asked", "denied", "other entry", "not in the file"])
async def test_nothing_is_written_without_consent_to_what_the_file_names(project: Project, state: str) -> None:
    await project.name(*([] if state == "not in the file" else [DOCS]))
    if state == "denied":
        await project.answer(DOCS, McpDecision.DENY)
    elif state == "other entry":
        await project.answer(OPEN)
    elif state == "not in the file":
        await project.answer(DOCS)

    assert not await project.write(DOCS, KEY)
    assert await project.rows() == ()


async def test_another_answer_deletes_the_server_with_its_headers(project: Project) -> None:
    changed = Entry(name="docs", folder="/p", url="https://evil.test/mcp", type="http")

    for end in ("withdraw", "deny", "change"):
        await project.use(DOCS, KEY)
        assert len(await project.rows()) == 1
        if end == "withdraw":
            await mcp_consents.withdraw(project.nest.conn, project.workspace, DOCS)
            assert await project.usable() == [], "the consent counts, even before the row is gone"
            await project_servers.delete_without_consent(project.nest.conn, project.workspace)
        elif end == "deny":
            await project.answer(DOCS, McpDecision.DENY)
        else:
            await project.name(changed)
            await project.answer(changed)
        assert await project.rows() == ()


async def test_server_rests_while_the_file_names_another_entry_and_keeps_its_login(project: Project) -> None:
    made = await project.use(OPEN)
    await project.nest.conn.execute("UPDATE mcp_servers SET auth_type = 'oauth2'")

    assert await project.name()
    assert await project.usable() == []
    assert not await project_servers.is_agreed(project.nest.conn, made.id)
    assert await project.name(OPEN)
    assert not await project.name(OPEN)

    assert await project.usable() == ["open"]
    assert (await project.rows())[0].id == made.id
    assert await project_servers.is_agreed(project.nest.conn, made.id)


async def test_new_values_replace_the_headers_and_the_connections(project: Project) -> None:
    made = await project.use(DOCS, KEY)

    assert not await project.write(DOCS, KEY)
    assert await project.write(DOCS, {"Authorization": "Bearer new"})

    (changed,) = await project.rows()
    assert changed.id == made.id
    assert servers.open_headers(changed, RING) == {"Authorization": "Bearer new"}
    assert changed.config_version > made.config_version


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("docs", "docs"),
        ("My Docs!", "my-docs"),
        ("d\N{CYRILLIC SMALL LETTER O}cs", "d-cs"),
        ("\N{HIRAGANA LETTER A}", "server"),
        ("x" * 64, "x" * 40),
        ("a\u202eb", "a-b"),
    ],
)
async def test_any_name_gives_a_slug(project: Project, name: str, slug: str) -> None:
    made = await project.use(Entry(name=name, folder="/p", url=OPEN.url, type="auto"))

    assert made.slug == slug
    assert "\u202e" not in made.display_name


async def test_names_of_projects_give_way_to_servers_with_more_rights(project: Project) -> None:
    """Rules name tools by slugs. A project must not get the permissions of another server by its name."""
    await add(project.nest, "docs")
    await add(project.nest, "open", project.owner)
    first = await project.use(DOCS, KEY)
    await project.name(DOCS, OPEN)
    await project.answer(OPEN)
    await project.write(OPEN)

    assert [first.slug, *[each.slug for each in await project.rows()]] == ["docs-2", "docs-2", "open-2"]
    await add(project.nest, "open-2", project.owner)
    await add(project.nest, "docs-2")
    assert sorted(each.slug for each in await project.rows()) == ["docs-2-2", "open-2-2"]
    found = await project.usable()
    assert len(found) == len(set(found)) == 6


async def test_two_names_of_one_project_with_one_slug_are_both_usable(project: Project) -> None:
    twin = Entry(name="Docs", folder="/p", url=OPEN.url, type="auto")
    await project.name(DOCS, twin)
    for entry, headers in ((DOCS, KEY), (twin, {})):
        await project.answer(entry)
        await project.write(entry, headers)

    assert await project.usable() == ["docs", "docs-2"]


async def test_two_projects_of_one_user_have_equal_names(project: Project) -> None:
    other = await make_project(project.nest, project.owner)
    await project.use(DOCS, KEY)
    await other.use(DOCS, {"Authorization": "other"})

    assert [await each.usable() for each in (project, other)] == [["docs"], ["docs"]]


@pytest.mark.parametrize("value", ["a\r\nX-Evil: b", "", " a", "a\N{EURO SIGN}", "a\0b"])
async def test_header_that_cannot_be_sent_is_refused_without_its_value(project: Project, value: str) -> None:
    await project.name(DOCS)
    await project.answer(DOCS)

    with pytest.raises(InvalidInput) as refused:
        await project.write(DOCS, {"Authorization": value})

    assert "X-Evil" not in str(refused.value)
    assert await project.rows() == ()


async def test_headers_need_a_key_ring(project: Project) -> None:
    await project.name(DOCS, OPEN)
    for entry in (DOCS, OPEN):
        await project.answer(entry)

    with pytest.raises(KeysMissing):
        await project_servers.write(project.nest.conn, project.workspace, DOCS, KEY, ring=None)
    assert await project_servers.write(project.nest.conn, project.workspace, OPEN, {}, ring=None)


async def test_servers_of_projects_are_not_used_if_users_may_have_none(project: Project) -> None:
    await project.use(OPEN)
    await settings.write_setting(project.nest.conn, servers.SETTING, value={"allow_user_servers": False})

    assert await project.usable() == []


async def test_login_is_expected_once_and_only_where_nothing_else_is_set(project: Project) -> None:
    with_headers = await project.use(DOCS, KEY)
    await project.name(DOCS, OPEN)
    await project.answer(OPEN)
    await project.write(OPEN)
    without = next(each for each in await project.rows() if each.entry_hash == OPEN.hash)
    of_deployment = await add(project.nest, "plain")

    assert await project_servers.expect_login(project.nest.conn, without.id)
    assert not await project_servers.expect_login(project.nest.conn, without.id)
    assert not await project_servers.expect_login(project.nest.conn, with_headers.id)
    assert not await project_servers.expect_login(project.nest.conn, of_deployment.id)
    assert not await project.write(OPEN), "a new look at the file does not end the login"
    assert {each.auth_type for each in await project.rows()} == {AuthType.OAUTH2, AuthType.CUSTOM_HEADERS}


async def test_servers_end_with_their_workspace(project: Project) -> None:
    await project.use(DOCS, KEY)

    await project_servers.delete_of_workspace(project.nest.conn, project.workspace)

    assert await project.rows() == ()


async def test_a_withdrawal_during_the_write_wins(project: Project) -> None:
    """Whichever is first: in the end there is no server without consent."""
    await project.name(DOCS)
    await project.answer(DOCS)
    async with project.nest.connection() as other:
        withdrawal = other.transaction()
        await withdrawal.start()
        await mcp_consents.withdraw(other, project.workspace, DOCS)
        writing = asyncio.create_task(project.write(DOCS, KEY))

        async with project.nest.connection() as third:

            async def is_blocked() -> bool:
                waiting: bool = await third.fetchval(
                    "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                    " AND datname = current_database())"
                )
                return waiting

            await until(is_blocked)
        await project_servers.delete_without_consent(other, project.workspace)
        await withdrawal.commit()

        assert not await writing
    assert await project.rows() == ()
