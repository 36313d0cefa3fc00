"""MCP servers in the database: sealing, slugs, changes that end logins, and the servers of a chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from rookery.domain.access.rights import Role
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.mcp.oauth import ClientAuth
from rookery.domain.mcp.server import AuthType, Availability, McpServer
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.secret_str import SecretStr
from rookery.store.mcp import logins, servers, tool_lists
from rookery.store.mcp.logins import NewLogin
from rookery.store.mcp.servers import ServerDraft, ServerPatch
from rookery.store.models import key_rotation
from rookery.store.models.errors import KeysMissing
from rookery.store.people.errors import AlreadyExists, Disabled, QuotaExceeded
from rookery.store.settings import settings
from tests.store.models.provider_rows import RING, ModelRows, open_nest

URL = "https://mcp.test/mcp"


@pytest.fixture
async def nest(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as nest:
        yield nest


async def create(nest: ModelRows, *, owner: UUID | None = None, **fields: Any) -> McpServer:
    fields.setdefault("slug", f"s{uuid4().hex[:20]}")
    fields.setdefault("url", URL)
    return await servers.create_server(nest.conn, ServerDraft(**fields), ring=RING, by=None, owner_id=owner)


async def update(nest: ModelRows, server: McpServer, **fields: Any) -> McpServer:
    return await servers.update_server(nest.conn, server.id, ServerPatch(**fields), ring=RING)


async def log_in(nest: ModelRows, server: McpServer, user: UUID) -> None:
    login = NewLogin(
        server_id=server.id,
        user_id=user,
        issuer="https://auth.test",
        resource=URL,
        token_url="https://auth.test/token",
        revocation_url=None,
        client_id="c",
        client_secret="client-secret",
        token_auth_method=ClientAuth.BASIC,
        access_token="access-secret",
        refresh_token="refresh-secret",
        scopes=(),
        expires_at=datetime(2030, 1, 1, tzinfo=UTC),
    )
    await logins.write_login(nest.conn, login, ring=RING)


def keyed(**fields: Any) -> dict[str, Any]:
    return {"auth_type": AuthType.API_KEY, "api_key_header": "X-Key", "api_key": SecretStr("key-secret"), **fields}


async def test_secrets_are_stored_sealed_and_open_with_the_ring(nest: ModelRows) -> None:
    with_key = await create(nest, **keyed())
    with_headers = await create(nest, auth_type=AuthType.CUSTOM_HEADERS, headers={"X-A": SecretStr("header-secret")})
    stored = await nest.conn.fetchval("SELECT string_agg(s::text, ' ') FROM mcp_servers s")

    assert "key-secret" not in stored
    assert "header-secret" not in stored
    assert servers.open_headers(with_key, RING) == {"X-Key": "key-secret"}
    assert servers.open_headers(with_headers, RING) == {"X-A": "header-secret"}
    assert with_headers.header_names == ("X-A",)
    assert servers.open_headers(with_key, None) == {}


async def test_secret_needs_a_ring(nest: ModelRows) -> None:
    with pytest.raises(KeysMissing):
        await servers.create_server(nest.conn, ServerDraft(slug="a", url=URL, **keyed()), ring=None, by=None)


async def test_every_sealed_value_moves_to_another_key_of_the_ring(nest: ModelRows) -> None:
    await create(nest, **keyed())
    server, user = await create(nest, auth_type=AuthType.OAUTH2), await nest.user()
    await log_in(nest, server, user)
    old = new_key("old")
    both = KeyRing.parse(f"{new_key('new')},{old}")
    assert sum((await key_rotation.count_by_key_id(nest.conn, both)).values()) == 4

    sealed = {
        (column.table, column.column) for column in key_rotation.SEALED_COLUMNS if column.table.startswith("mcp_")
    }
    columns = await nest.conn.fetch(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_name LIKE 'mcp\\_%' AND column_name LIKE '%\\_enc'"
    )
    assert sealed == {(row[0], row[1]) for row in columns}


async def test_slug_of_the_deployment_is_taken_once_and_renames_those_of_users(nest: ModelRows) -> None:
    ada, eve = await nest.user(), await nest.user()
    await create(nest, slug="docs-2", owner=ada)
    own, other = await create(nest, slug="docs", owner=ada), await create(nest, slug="docs", owner=eve)
    await create(nest, slug="docs")

    assert (await servers.get_server(nest.conn, own.id)).slug == "docs-3"
    assert (await servers.get_server(nest.conn, other.id)).slug == "docs-2"
    for owner in (None, ada):
        with pytest.raises(AlreadyExists) as raised:
            await create(nest, slug="docs", owner=owner)
        assert raised.value.field == "slug"
    with pytest.raises(AlreadyExists):
        await update(nest, own, slug="docs")


async def test_new_authentication_removes_the_other_secrets(nest: ModelRows) -> None:
    server = await create(nest, **keyed())

    changed = await update(nest, server, auth_type=AuthType.NONE)

    assert (changed.api_key_enc, changed.api_key_header) == (None, None)
    assert changed.config_version == server.config_version + 1
    with pytest.raises(InvalidInput) as raised:
        await update(nest, changed, auth_type=AuthType.CUSTOM_HEADERS)
    assert raised.value.field == "headers"


async def test_secrets_are_never_sent_to_another_host(nest: ModelRows) -> None:
    server = await create(nest, **keyed())
    headed = await create(nest, auth_type=AuthType.CUSTOM_HEADERS, headers={"X-A": SecretStr("a")})

    for each in (server, headed):
        with pytest.raises(InvalidInput, match="another host"):
            await update(nest, each, url="https://evil.test/mcp")
    with pytest.raises(InvalidInput, match="another host"):
        await update(nest, headed, url="https://evil.test/mcp", headers={"X-A": SecretStr("***")})
    moved = await update(nest, server, url="https://mcp.test/v2")
    assert servers.open_headers(moved, RING) == {"X-Key": "key-secret"}
    moved = await update(nest, server, url="https://new.test/mcp", api_key=SecretStr("new"))
    assert servers.open_headers(moved, RING) == {"X-Key": "new"}


async def test_masked_header_keeps_its_value(nest: ModelRows) -> None:
    secrets = {"X-A": SecretStr("1"), "X-B": SecretStr("2")}
    server = await create(nest, auth_type=AuthType.CUSTOM_HEADERS, headers=secrets)

    changed = await update(nest, server, headers={"x-a": SecretStr("***"), "X-C": SecretStr("3")})

    assert servers.open_headers(changed, RING) == {"x-a": "1", "X-C": "3"}
    with pytest.raises(InvalidInput, match="there is none"):
        await update(nest, server, headers={"X-D": SecretStr("***")})


async def test_changed_address_ends_logins_and_lists_and_other_changes_do_not(nest: ModelRows) -> None:
    server, user = await create(nest, auth_type=AuthType.OAUTH2), await nest.user()
    await log_in(nest, server, user)
    await tool_lists.write_list(nest.conn, server.id, user, [{"name": "a\x00"}], config_version=1)

    changed = await update(nest, server, description="New", oauth_scopes=["read"])
    assert changed.config_version == 1
    assert await logins.find_login(nest.conn, server.id, user) is not None
    found = await tool_lists.find_list(nest.conn, server.id, user, config_version=1)
    assert found is not None
    assert found.tools == ({"name": "a\x00"},)

    changed = await update(nest, server, url="https://other.test/mcp")
    assert changed.config_version == 2
    assert await logins.find_login(nest.conn, server.id, user) is None
    assert await nest.conn.fetchval("SELECT count(*) FROM mcp_tool_lists") == 0
    # A list that was asked for before the change is not stored after it.
    await tool_lists.write_list(nest.conn, server.id, user, [], config_version=1)
    assert await tool_lists.find_list(nest.conn, server.id, user, config_version=1) is None


async def test_deleted_server_leaves_all_chats(nest: ModelRows) -> None:
    first, second = await create(nest), await create(nest)
    provider = await nest.provider()
    chat = await nest.chat(await nest.user(), await nest.config(provider))
    await nest.conn.execute("UPDATE chats SET mcp_server_ids = $2 WHERE id = $1", chat, [first.id, second.id])

    await servers.delete_server(nest.conn, first.id)

    assert await nest.conn.fetchval("SELECT mcp_server_ids FROM chats WHERE id = $1", chat) == [second.id]
    assert await servers.find_server(nest.conn, first.id) is None


async def test_user_gets_enabled_and_allowed_servers_and_own_ones(nest: ModelRows) -> None:
    ada, eve = await nest.user(), await nest.user()
    open_, own = await create(nest, slug="a"), await create(nest, slug="b", owner=ada)
    for_ada = await create(nest, slug="c", allowed_users=[ada])
    await create(nest, slug="d", allowed_users=[eve])
    await create(nest, slug="e", allowed_roles=[Role.ADMIN])
    await create(nest, slug="f", enabled=False)
    await create(nest, slug="g", owner=eve)

    assert [each.id for each in await servers.list_usable(nest.conn, ada)] == [open_.id, own.id, for_ada.id]
    await settings.write_setting(nest.conn, servers.SETTING, value={"allow_user_servers": False}, by=None)
    assert [each.id for each in await servers.list_usable(nest.conn, ada)] == [open_.id, for_ada.id]
    with pytest.raises(Disabled):
        await create(nest, owner=ada)


async def test_unknown_user_cannot_be_allowed(nest: ModelRows) -> None:
    with pytest.raises(InvalidInput) as raised:
        await create(nest, allowed_users=[uuid4()])

    assert raised.value.field == "allowed_users"


async def test_number_of_own_servers_is_limited(nest: ModelRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookery.domain.mcp.server.MAX_OWN_SERVERS", 2)
    ada = await nest.user()
    for _ in range(2):
        await create(nest, owner=ada)

    with pytest.raises(QuotaExceeded):
        await create(nest, owner=ada)


async def test_new_chat_gets_default_servers_and_a_choice_gets_the_forced_ones(nest: ModelRows) -> None:
    ada = await nest.user()
    forced = await create(nest, slug="a", availability=Availability.FORCE_ON)
    default = await create(nest, slug="b", availability=Availability.DEFAULT_ON)
    plain = await create(nest, slug="c")

    assert await servers.choose_for_chat(nest.conn, ada, None) == (forced.id, default.id)
    assert await servers.choose_for_chat(nest.conn, ada, []) == (forced.id,)
    assert await servers.choose_for_chat(nest.conn, ada, [plain.id, plain.id]) == (plain.id, forced.id)
    await update(nest, plain, enabled=False)
    stored = [plain.id]
    assert await servers.choose_for_chat(nest.conn, ada, stored, stored=stored) == (plain.id, forced.id)
    with pytest.raises(InvalidInput, match=str(plain.id)):
        await servers.choose_for_chat(nest.conn, ada, stored)


async def test_unreadable_settings_count_as_the_defaults(nest: ModelRows) -> None:
    await settings.write_setting(nest.conn, servers.SETTING, value={"tool_search": "perhaps"}, by=None)

    assert await servers.read_settings(nest.conn) == servers.McpSettings()
