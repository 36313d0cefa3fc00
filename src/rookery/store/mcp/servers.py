"""MCP servers: those of the deployment, of users, and of projects.

Secrets are stored sealed. Every write holds an advisory lock, so that slugs stay unique. The caller publishes a
`ConfigHint(kind="mcp")` after the commit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import asyncpg
import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.access.rights import Role
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.mcp import server as rules
from rookery.domain.mcp.server import AuthType, Availability, McpServer, Transport
from rookery.domain.mcp.tool_search import ToolSearch
from rookery.store.chats import subagents
from rookery.store.db.hints import ConfigHint
from rookery.store.db.pool import Connection
from rookery.store.models.errors import KeysMissing
from rookery.store.models.sealed_headers import MASK, Sealer, Secret
from rookery.store.people.errors import AlreadyExists, Disabled, Missing, QuotaExceeded
from rookery.store.settings import settings

TABLE = "mcp_servers"
SETTING = "mcp"
HINT = "mcp"  # the kind of `ConfigHint`
LOCK_KEY = 0x726F6F6B_6D637073  # "rookmcps"
LOCK = "SELECT pg_advisory_xact_lock($1)"

_FIELDS = McpServer.__struct_fields__
# Neither is ever written by a statement that writes the other fields.
_TIMES = ("created_at", "updated_at")
_WRITTEN = tuple(field for field in _FIELDS if field not in _TIMES)
COLUMNS = ", ".join(_FIELDS)
# A condition on the row `s` of a project's server.
HAS_CONSENT = """EXISTS (
    SELECT FROM workspace_mcp_consents c
     WHERE c.workspace_id = s.workspace_id
       AND c.entry_hash = s.entry_hash
       AND c.decision = 'agree')"""
FIND = f"SELECT {COLUMNS} FROM mcp_servers WHERE id = $1"
# The servers of a user's chats, with the user's role. Projects' servers are those of the chat's workspace.
LIST_FOR = f"""
    SELECT {", ".join(f"s.{field}" for field in _FIELDS)}, u.role
      FROM mcp_servers s
      JOIN users u ON u.id = $1
     WHERE s.enabled
       AND (s.owner_id IS NULL OR s.owner_id = $1)
       AND (s.workspace_id IS NULL OR (s.workspace_id = $2 AND {HAS_CONSENT}))
     ORDER BY s.slug, s.owner_id NULLS FIRST
"""
LIST_ENABLED = f"SELECT {COLUMNS} FROM mcp_servers WHERE enabled ORDER BY slug, owner_id NULLS FIRST, id"
ANY_ENABLED = "SELECT EXISTS (SELECT FROM mcp_servers WHERE enabled)"
LIST_OF_DEPLOYMENT = f"SELECT {COLUMNS} FROM mcp_servers WHERE owner_id IS NULL ORDER BY slug"
LIST_OF_USER = f"SELECT {COLUMNS} FROM mcp_servers WHERE owner_id = $1 AND workspace_id IS NULL ORDER BY slug"
LOCK_VERSION = "SELECT config_version FROM mcp_servers WHERE id = $1 FOR SHARE"
COUNT_OF_USER = "SELECT count(*) FROM mcp_servers WHERE owner_id = $1 AND workspace_id IS NULL"
FIND_ROLE = "SELECT role FROM users WHERE id = $1"
COUNT_USERS = "SELECT count(*) FROM users WHERE id = ANY($1::uuid[])"
FIND_CHAT = "SELECT owner_id, workspace_id, mode, mcp_server_ids FROM chats WHERE id = $1"
SLUG_OF_DEPLOYMENT = "SELECT true FROM mcp_servers WHERE owner_id IS NULL AND slug = $1"
# A server of the deployment takes a slug from users' servers, because rules of administrators name tools by it. For the
# same reason, a user's server takes it from those of the user's projects.
LIST_WITH_SLUG = "SELECT id, owner_id, workspace_id FROM mcp_servers WHERE owner_id IS NOT NULL AND slug = $1"
LIST_OF_PROJECTS_WITH_SLUG = """
    SELECT id, owner_id, workspace_id FROM mcp_servers WHERE owner_id = $2 AND workspace_id IS NOT NULL AND slug = $1
"""
# Slugs that a server with this owner and workspace cannot have.
TAKEN_SLUGS = """
    SELECT slug
      FROM mcp_servers
     WHERE owner_id IS NULL
        OR (owner_id = $1 AND ($2::uuid IS NULL OR workspace_id IS NULL OR workspace_id = $2))
"""
RENAME = "UPDATE mcp_servers SET slug = $2, updated_at = clock_timestamp() WHERE id = $1"
INSERT = f"""
    INSERT INTO mcp_servers ({", ".join(_WRITTEN)})
    VALUES ({", ".join(f"${place}" for place in range(1, len(_WRITTEN) + 1))})
    RETURNING {COLUMNS}
"""
UPDATE = f"""
    UPDATE mcp_servers
       SET {", ".join(f"{field} = ${place}" for place, field in enumerate(_WRITTEN, start=1) if field != "id")},
           updated_at = clock_timestamp()
     WHERE id = $1
    RETURNING {COLUMNS}
"""
DELETE = "DELETE FROM mcp_servers WHERE id = $1"
REMOVE_FROM_CHATS = """
    UPDATE chats
       SET mcp_server_ids = array_remove(mcp_server_ids, $1)
     WHERE mcp_server_ids @> ARRAY[$1::uuid]
"""
DROP_LISTS = "DELETE FROM mcp_tool_lists WHERE server_id = $1"
DROP_LOGINS = "DELETE FROM mcp_oauth_tokens WHERE server_id = $1"
DROP_CLIENTS = "DELETE FROM mcp_oauth_clients WHERE server_id = $1"
DROP_FLOWS = "DELETE FROM mcp_oauth_flows WHERE server_id = $1"

Maybe: TypeAlias = UnsetType
# Fields on which connections and lists of tools depend, and fields on which logins depend.
_OF_CONNECTION = (
    *("url", "transport", "auth_type", "api_key_header", "api_key_enc", "header_names", "headers_enc"),
    "forward_identity",
)
_OF_LOGIN = (
    *("url", "auth_type", "oauth_client_id", "oauth_client_secret_enc", "oauth_authorization_url", "oauth_token_url"),
    *("oauth_revocation_url",),
)
_NULLABLE = frozenset(
    {"api_key_header", "oauth_client_id", "oauth_authorization_url", "oauth_token_url", "oauth_revocation_url"}
)


def hint() -> ConfigHint:
    """Return the hint that servers have changed."""
    return ConfigHint(kind=HINT)


class McpServerNotFound(Missing):
    def __init__(self, server_id: UUID) -> None:
        self.server_id = server_id
        super().__init__("There is no such MCP server. It may have been deleted, or is not for you.")


class McpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of MCP servers.

    `tool_search`: whether tools are found by a search and not sent with every request. `auto`: if their descriptions
    are too long. With `allow_private_addresses`, servers in private networks are reached.
    """

    allow_user_servers: bool = True
    tool_search: ToolSearch = ToolSearch.AUTO
    allow_private_addresses: bool = False


class ServerDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A server to create."""

    slug: str
    url: str
    display_name: str = ""
    description: str = ""
    icon: str = ""
    transport: Transport = Transport.AUTO
    enabled: bool = True
    availability: Availability = Availability.DEFAULT_OFF
    auth_type: AuthType = AuthType.NONE
    api_key_header: str | None = None
    api_key: Secret | None = None
    headers: Mapping[str, Secret] = {}
    oauth_client_id: str | None = None
    oauth_client_secret: Secret | None = None
    oauth_authorization_url: str | None = None
    oauth_token_url: str | None = None
    oauth_revocation_url: str | None = None
    oauth_scopes: Sequence[str] = ()
    allow_in_plan_mode: bool = False
    model_intent: bool = False
    forward_identity: bool = False
    tool_allow_list: Sequence[str] = ()
    tool_deny_list: Sequence[str] = ()
    allowed_users: Sequence[UUID] = ()
    allowed_roles: Sequence[Role] = ()
    call_timeout_seconds: int = 60


class ServerPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a server. A field that is UNSET keeps its value. A header with the value `***` keeps its value.

    A new authentication type removes the secrets of the other types. A new host removes all secrets: the old ones are
    never sent to it.
    """

    slug: str | Maybe = UNSET
    url: str | Maybe = UNSET
    display_name: str | Maybe = UNSET
    description: str | Maybe = UNSET
    icon: str | Maybe = UNSET
    transport: Transport | Maybe = UNSET
    enabled: bool | Maybe = UNSET
    availability: Availability | Maybe = UNSET
    auth_type: AuthType | Maybe = UNSET
    api_key_header: str | Maybe | None = UNSET
    api_key: Secret | Maybe | None = UNSET
    headers: Mapping[str, Secret] | Maybe = UNSET
    oauth_client_id: str | Maybe | None = UNSET
    oauth_client_secret: Secret | Maybe | None = UNSET
    oauth_authorization_url: str | Maybe | None = UNSET
    oauth_token_url: str | Maybe | None = UNSET
    oauth_revocation_url: str | Maybe | None = UNSET
    oauth_scopes: Sequence[str] | Maybe = UNSET
    allow_in_plan_mode: bool | Maybe = UNSET
    model_intent: bool | Maybe = UNSET
    forward_identity: bool | Maybe = UNSET
    tool_allow_list: Sequence[str] | Maybe = UNSET
    tool_deny_list: Sequence[str] | Maybe = UNSET
    allowed_users: Sequence[UUID] | Maybe = UNSET
    allowed_roles: Sequence[Role] | Maybe = UNSET
    call_timeout_seconds: int | Maybe = UNSET


async def find_server(conn: Connection, server_id: UUID) -> McpServer | None:
    record = await conn.fetchrow(FIND, server_id)
    return None if record is None else from_record(record)


async def get_server(conn: Connection, server_id: UUID) -> McpServer:
    found = await find_server(conn, server_id)
    if found is None:
        raise McpServerNotFound(server_id)
    return found


async def lock_version(conn: Connection, server_id: UUID) -> int | None:
    """Return the server's `config_version`, and prevent changes of it until the end of the transaction; None without
    the server.
    """
    version: int | None = await conn.fetchval(LOCK_VERSION, server_id)
    return version


async def list_enabled(conn: Connection) -> tuple[McpServer, ...]:
    """Return all enabled servers: those of the deployment, of all users, and of all projects."""
    return tuple(from_record(record) for record in await conn.fetch(LIST_ENABLED))


async def any_enabled(conn: Connection) -> bool:
    """Return whether any server is enabled. Workers cache the result, so that steps without servers need no query."""
    found: bool = await conn.fetchval(ANY_ENABLED)
    return found


async def list_of_deployment(conn: Connection) -> tuple[McpServer, ...]:
    return tuple(from_record(record) for record in await conn.fetch(LIST_OF_DEPLOYMENT))


async def list_of_user(conn: Connection, user_id: UUID) -> tuple[McpServer, ...]:
    """Return the user's own servers, without those of projects."""
    return tuple(from_record(record) for record in await conn.fetch(LIST_OF_USER, user_id))


async def list_usable(conn: Connection, user_id: UUID, workspace_id: UUID | None = None) -> tuple[McpServer, ...]:
    """Return the enabled servers that the user may use, in order of their slugs.

    The user's own servers are included only if the setting allows it, and servers of a project only for its workspace.
    """
    records = await conn.fetch(LIST_FOR, user_id, workspace_id)
    if not records:
        return ()
    allows_own = (await read_settings(conn)).allow_user_servers
    usable = []
    for record in records:
        each = from_record(record)
        if each.is_allowed_for(user_id, Role(record["role"])) and (allows_own or each.is_of_deployment):
            usable.append(each)
    return tuple(usable)


async def list_slugs(conn: Connection, owner_id: UUID, workspace_id: UUID | None) -> frozenset[str]:
    """Return the slugs that a new server of the user, or of a project of the user, cannot have."""
    return frozenset(record["slug"] for record in await conn.fetch(TAKEN_SLUGS, owner_id, workspace_id))


async def find_role(conn: Connection, user_id: UUID) -> Role | None:
    role = await conn.fetchval(FIND_ROLE, user_id)
    return None if role is None else Role(role)


async def read_settings(conn: Connection) -> McpSettings:
    stored = await settings.find_setting(conn, SETTING)
    try:
        return McpSettings() if stored is None else msgspec.convert(stored, McpSettings)
    except msgspec.ValidationError:
        return McpSettings()


async def choose_for_chat(
    conn: Connection,
    owner_id: UUID,
    given: Sequence[UUID] | None,
    *,
    stored: Collection[UUID] = (),
    workspace_id: UUID | None = None,
) -> tuple[UUID, ...]:
    """Return the ids to store for a chat. None stands for the servers that new chats use by default.

    Raise `InvalidInput` with the ids that cannot be used. Ids in `stored` are always allowed.
    """
    usable = await list_usable(conn, owner_id, workspace_id)
    if given is None:
        return tuple(each.id for each in usable if each.availability is not Availability.DEFAULT_OFF)
    ids, unknown = rules.chosen(given, usable, stored=stored)
    if unknown:
        raise InvalidInput(
            "mcp_server_ids",
            "These MCP servers do not exist, are disabled, or are not for you: "
            f"{', '.join(str(each) for each in unknown)}.",
        )
    return ids


async def change_for_chat(conn: Connection, chat_id: UUID, given: Sequence[UUID]) -> tuple[UUID, ...]:
    """Return the ids to store for a chat that already has servers. An exploring subagent cannot get additional ones."""
    chat = await conn.fetchrow(FIND_CHAT, chat_id)
    if chat is None or chat["mode"] == "explore":
        await subagents.check_servers(conn, chat_id, given)
        return rules.unique(given)
    return await choose_for_chat(
        conn, chat["owner_id"], given, stored=chat["mcp_server_ids"], workspace_id=chat["workspace_id"]
    )


async def create_server(
    conn: Connection,
    draft: ServerDraft,
    *,
    ring: Sealer | None,
    by: UUID | None,
    owner_id: UUID | None = None,
    workspace_id: UUID | None = None,
    entry_hash: str | None = None,
) -> McpServer:
    """Create a server of the deployment or, with `owner_id`, of a user. Projects' servers have all three ids."""
    server_id = uuid4()
    made = unsaved(
        draft,
        server_id=server_id,
        owner_id=owner_id,
        ring=ring,
        by=by,
        workspace_id=workspace_id,
        entry_hash=entry_hash,
    )
    async with _held(conn):
        await _check_users(conn, made)
        if owner_id is not None and workspace_id is None:
            await _check_own(conn, owner_id)
        await _keep_slugs_apart(conn, made)
        return await _write(conn, INSERT, made)


def unsaved(
    draft: ServerDraft,
    *,
    server_id: UUID,
    owner_id: UUID | None,
    ring: Sealer | None,
    by: UUID | None = None,
    workspace_id: UUID | None = None,
    entry_hash: str | None = None,
) -> McpServer:
    """Return the server that this draft would create. Raise `InvalidInput` in the same cases as a creation."""
    given = {name: value for name, value in msgspec.structs.asdict(draft).items() if name in _FIELDS}
    sealed = _sealed(server_id, msgspec.structs.asdict(draft), {}, auth_type=draft.auth_type, ring=ring)
    made = McpServer(
        id=server_id,
        owner_id=owner_id,
        workspace_id=workspace_id,
        entry_hash=entry_hash,
        created_by=by,
        **_plain(given),
        **sealed,
    )
    rules.check(made)
    return made


async def update_server(conn: Connection, server_id: UUID, patch: ServerPatch, *, ring: Sealer | None) -> McpServer:
    """Change a server. If its address or authentication changes, all logins at it end."""
    async with _held(conn):
        current = await get_server(conn, server_id)
        changed = _patched(current, patch, ring=ring)
        rules.check(changed)
        await _check_users(conn, changed)
        if changed.slug != current.slug:
            await _keep_slugs_apart(conn, changed)
        if _differs(current, changed, _OF_CONNECTION + _OF_LOGIN):
            changed = msgspec.structs.replace(changed, config_version=current.config_version + 1)
            await conn.execute(DROP_LISTS, server_id)
        if _differs(current, changed, _OF_LOGIN):
            for statement in (DROP_LOGINS, DROP_CLIENTS, DROP_FLOWS):
                await conn.execute(statement, server_id)
        return await _write(conn, UPDATE, changed)


async def delete_server(conn: Connection, server_id: UUID) -> None:
    """Delete a server with its logins, and remove it from all chats."""
    async with _held(conn):
        await conn.execute(REMOVE_FROM_CHATS, server_id)
        await conn.execute(DELETE, server_id)


def open_headers(server: McpServer, ring: Sealer | None) -> dict[str, str]:
    """Return the authentication headers, decrypted; none if they cannot be decrypted."""
    if server.api_key_enc is not None and server.api_key_header is not None:
        opened = _open(server.id, "api_key_enc", server.api_key_enc, ring)
        return {} if opened is None else {server.api_key_header: opened}
    if server.headers_enc is not None:
        opened = _open(server.id, "headers_enc", server.headers_enc, ring)
        return {} if opened is None else msgspec.json.decode(opened, type=dict[str, str])
    return {}


def open_client_secret(server: McpServer, ring: Sealer | None) -> str | None:
    if server.oauth_client_secret_enc is None:
        return None
    return _open(server.id, "oauth_client_secret_enc", server.oauth_client_secret_enc, ring)


def from_record(record: asyncpg.Record) -> McpServer:
    values: dict[str, Any] = {name: record[name] for name in _FIELDS}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    values["transport"] = Transport(values["transport"])
    values["availability"] = Availability(values["availability"])
    values["auth_type"] = AuthType(values["auth_type"])
    values["allowed_roles"] = tuple(Role(role) for role in values["allowed_roles"])
    return McpServer(**values)


def _patched(current: McpServer, patch: ServerPatch, *, ring: Sealer | None) -> McpServer:
    given = {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
    auth_type = given.get("auth_type", current.auth_type)
    kept: dict[str, Any] = {name: getattr(current, name) for name in _SECRETS}
    url = given.get("url", current.url)
    if auth_type is not current.auth_type or rules.origin(url) != rules.origin(current.url):
        if auth_type is current.auth_type and auth_type in _NAMED_SECRET:
            field = _NAMED_SECRET[auth_type]
            if field not in given or (field == "headers" and _has_masks(given[field])):
                raise InvalidInput(field, "The address is on another host. Enter the secrets for it again.")
        kept = {name: None for name in _SECRETS}
        if auth_type is not current.auth_type:
            kept |= {"api_key_header": None, "oauth_scopes": (), **dict.fromkeys(_NULLABLE)}
    stored = {} if kept["headers_enc"] is None else open_headers(current, ring)
    sealed = _sealed(current.id, given, stored, auth_type=auth_type, ring=ring)
    if kept["headers_enc"] is None:
        kept["header_names"] = ()
    changes = {**kept, **_plain({name: value for name, value in given.items() if name in _FIELDS}), **sealed}
    return msgspec.structs.replace(current, **changes)


_SECRETS = ("api_key_enc", "headers_enc", "oauth_client_secret_enc")
_NAMED_SECRET = {AuthType.API_KEY: "api_key", AuthType.CUSTOM_HEADERS: "headers"}


def _sealed(
    server_id: UUID,
    given: Mapping[str, Any],
    stored: Mapping[str, str],
    *,
    auth_type: AuthType,
    ring: Sealer | None,
) -> dict[str, Any]:
    """Return the sealed columns of the secrets in `given`. `stored` are the headers that a mask stands for."""
    sealed: dict[str, Any] = {}
    if "api_key" in given:
        sealed["api_key_enc"] = None
        if given["api_key"] is not None:
            value = given["api_key"].reveal()
            rules.check_header("api_key", "X-Key", value)
            sealed["api_key_enc"] = _seal(server_id, "api_key_enc", value, ring)
    if "oauth_client_secret" in given:
        sealed["oauth_client_secret_enc"] = None
        if given["oauth_client_secret"] is not None:
            value = given["oauth_client_secret"].reveal()
            rules.check_header("oauth_client_secret", "X-Key", value)
            sealed["oauth_client_secret_enc"] = _seal(server_id, "oauth_client_secret_enc", value, ring)
    if "headers" in given:
        values = _unmasked({name: secret.reveal() for name, secret in given["headers"].items()}, stored)
        sealed["headers_enc"], sealed["header_names"] = None, ()
        if values or auth_type is AuthType.CUSTOM_HEADERS:
            rules.check_headers("headers", values)
            sealed["headers_enc"] = _seal(server_id, "headers_enc", msgspec.json.encode(values).decode(), ring)
            sealed["header_names"] = tuple(values)
    return sealed


def _unmasked(headers: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
    known = {name.lower(): value for name, value in stored.items()}
    values = {name: known.get(name.lower(), MASK) if value == MASK else value for name, value in headers.items()}
    if missing := [name for name, value in values.items() if value == MASK]:
        raise InvalidInput(f"headers.{missing[0]}", f"{MASK} means a saved value, but there is none. Enter one.")
    return values


def _has_masks(headers: Mapping[str, Secret]) -> bool:
    return any(secret.reveal() == MASK for secret in headers.values())


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, with sequences converted to tuples without duplicates."""
    return {name: rules.unique(value) if isinstance(value, (list, tuple)) else value for name, value in given.items()}


def _seal(server_id: UUID, column: str, value: str, ring: Sealer | None) -> str:
    if ring is None:
        raise KeysMissing
    return ring.seal(value, table=TABLE, row_id=str(server_id), column=column)


def _open(server_id: UUID, column: str, sealed: str, ring: Sealer | None) -> str | None:
    opened = None if ring is None else ring.open(sealed, table=TABLE, row_id=str(server_id), column=column)
    return None if opened is None else opened.reveal()


def _differs(before: McpServer, after: McpServer, fields: Sequence[str]) -> bool:
    return any(getattr(before, field) != getattr(after, field) for field in fields)


@asynccontextmanager
async def _held(conn: Connection) -> AsyncIterator[None]:
    """Hold the lock of all writes until the transaction ends."""
    async with conn.transaction():
        await hold(conn)
        yield


async def hold(conn: Connection) -> None:
    """Take the lock of all writes. The caller is in a transaction, whose end releases it."""
    await conn.execute(LOCK, LOCK_KEY)


async def _check_users(conn: Connection, server: McpServer) -> None:
    if server.allowed_users and await conn.fetchval(COUNT_USERS, server.allowed_users) != len(server.allowed_users):
        raise InvalidInput("allowed_users", "One of these users does not exist.")


async def _check_own(conn: Connection, owner_id: UUID) -> None:
    if not (await read_settings(conn)).allow_user_servers:
        raise Disabled("Own MCP servers are disabled. Ask an administrator.")
    if await conn.fetchval(COUNT_OF_USER, owner_id) >= rules.MAX_OWN_SERVERS:
        raise QuotaExceeded(f"You have {rules.MAX_OWN_SERVERS} MCP servers. Delete one first.")


async def _keep_slugs_apart(conn: Connection, server: McpServer) -> None:
    """Rename servers that have the slug of a server with more rights on it; refuse the reverse.

    The caller has chosen a free slug for a project's server.
    """
    if server.workspace_id is not None:
        return
    if server.owner_id is None:
        found = await conn.fetch(LIST_WITH_SLUG, server.slug)
    else:
        if await conn.fetchval(SLUG_OF_DEPLOYMENT, server.slug):
            raise _taken(server.slug)
        found = await conn.fetch(LIST_OF_PROJECTS_WITH_SLUG, server.slug, server.owner_id)
    for record in found:
        taken = await list_slugs(conn, record["owner_id"], record["workspace_id"])
        await conn.execute(RENAME, record["id"], rules.free_slug(server.slug, taken | {server.slug}))


async def _write(conn: Connection, statement: str, server: McpServer) -> McpServer:
    values = [getattr(server, field) for field in _WRITTEN]
    try:
        async with conn.transaction():
            record = await conn.fetchrow(statement, *values)
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name != "mcp_servers_slug":
            raise
        raise _taken(server.slug) from None
    assert record is not None
    return from_record(record)


def _taken(slug: str) -> AlreadyExists:
    return AlreadyExists("slug", f"There is already an MCP server with the slug {slug}. Choose another.")
