"""MCP servers with an address that files of a workspace name.

Such a server has a row from the consent of the workspace's owner until another answer. The row is enabled while the
file names exactly the entry that the owner agreed to, so that a branch without the file ends no login.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from rookery.domain.chat.mcp_consent import Entry, visible
from rookery.domain.mcp import server as rules
from rookery.domain.mcp.server import AuthType, McpServer, Transport
from rookery.runtime.secret_str import SecretStr
from rookery.store.db.pool import Connection, atomic
from rookery.store.mcp import servers
from rookery.store.mcp.servers import COLUMNS, ServerDraft, ServerPatch, from_record
from rookery.store.models.sealed_headers import Sealer
from rookery.store.workspaces import context
from rookery.store.workspaces.context import Snapshot

_LISTED = ", ".join(f"s.{field}" for field in McpServer.__struct_fields__)
LIST_OF_WORKSPACE = f"SELECT {COLUMNS} FROM mcp_servers WHERE workspace_id = $1 ORDER BY slug"
LIST_OF_USER = f"""
    SELECT {_LISTED}
      FROM mcp_servers s
     WHERE s.owner_id = $1
       AND s.workspace_id IS NOT NULL
       AND s.enabled
       AND {servers.HAS_CONSENT}
     ORDER BY s.slug, s.id
"""
IS_AGREED = f"SELECT true FROM mcp_servers s WHERE s.id = $1 AND s.enabled AND {servers.HAS_CONSENT}"
FIND = f"SELECT {COLUMNS} FROM mcp_servers WHERE workspace_id = $1 AND entry_hash = $2"
# The consent and the snapshot are locked, so that neither a withdrawal nor a change of the file is missed.
LOCK_OWNER = """
    SELECT w.owner_id
      FROM workspace_mcp_consents c
      JOIN workspaces w ON w.id = c.workspace_id
     WHERE c.workspace_id = $1
       AND c.entry_hash = $2
       AND c.decision = 'agree'
       AND w.status <> 'deleted'
       FOR SHARE
"""
LOCK_SNAPSHOT = "SELECT true FROM workspace_context WHERE workspace_id = $1 FOR SHARE"
FOLLOW = """
    UPDATE mcp_servers
       SET enabled = NOT enabled, updated_at = clock_timestamp()
     WHERE workspace_id = $1
       AND enabled <> (entry_hash = ANY($2::text[]))
    RETURNING id
"""
LIST_WITHOUT_CONSENT = f"SELECT s.id FROM mcp_servers s WHERE s.workspace_id = $1 AND NOT {servers.HAS_CONSENT}"
EXPECT_LOGIN = """
    UPDATE mcp_servers
       SET auth_type = 'oauth2', config_version = config_version + 1, updated_at = clock_timestamp()
     WHERE id = $1
       AND workspace_id IS NOT NULL
       AND auth_type = 'none'
    RETURNING id
"""
_TRANSPORTS = {"auto": Transport.AUTO, "http": Transport.STREAMABLE_HTTP, "sse": Transport.SSE}


async def list_of_workspace(conn: Connection, workspace_id: UUID) -> tuple[McpServer, ...]:
    return tuple(from_record(record) for record in await conn.fetch(LIST_OF_WORKSPACE, workspace_id))


async def list_of_user(conn: Connection, user_id: UUID) -> tuple[McpServer, ...]:
    """Return the servers that the files of the user's workspaces name now, and to which the user has agreed."""
    return tuple(from_record(record) for record in await conn.fetch(LIST_OF_USER, user_id))


async def is_agreed(conn: Connection, server_id: UUID) -> bool:
    """Return whether the file still names the entry, and the owner still agrees to it."""
    return await conn.fetchval(IS_AGREED, server_id) is not None


async def write(
    conn: Connection, workspace_id: UUID, entry: Entry, headers: Mapping[str, str], *, ring: Sealer | None
) -> bool:
    """Create the server of an agreed entry, or give it new headers. Return whether anything has changed.

    Nothing is written if the owner has withdrawn the consent meanwhile, or the file has changed. Raises `InvalidInput`
    for headers that cannot be sent.
    """
    if entry.url is None or entry.type is None:
        raise ValueError("The entry has no address.")
    async with atomic(conn):
        # These rows are locked before the lock of all servers is taken, as transactions that answer do.
        owner_id = await conn.fetchval(LOCK_OWNER, workspace_id, entry.hash)
        if owner_id is None or not await _is_named(conn, workspace_id, entry):
            return False
        await servers.hold(conn)
        record = await conn.fetchrow(FIND, workspace_id, entry.hash)
        if record is not None:
            return await _update(conn, from_record(record), headers, ring)
        taken = await servers.list_slugs(conn, owner_id, workspace_id)
        draft = ServerDraft(
            slug=rules.free_slug(rules.slug_of(entry.name), taken),
            url=entry.url,
            display_name=visible(entry.name)[: rules.MAX_DISPLAY_NAME],
            description=f"Named in {visible(entry.folder)}/.mcp.json"[: rules.MAX_DESCRIPTION],
            transport=_TRANSPORTS[entry.type],
            auth_type=AuthType.CUSTOM_HEADERS if headers else AuthType.NONE,
            headers={name: SecretStr(value) for name, value in headers.items()},
        )
        await servers.create_server(
            conn,
            draft,
            ring=ring,
            by=owner_id,
            owner_id=owner_id,
            workspace_id=workspace_id,
            entry_hash=entry.hash,
        )
        return True


async def follow(conn: Connection, snapshot: Snapshot) -> bool:
    """Enable exactly the servers that the files of the workspace name now. Return whether one has changed.

    The caller has written the snapshot in the same transaction.
    """
    named = [each.entry.hash for each in snapshot.resources if each.entry is not None]
    return bool(await conn.fetch(FOLLOW, snapshot.workspace_id, named))


async def delete_without_consent(conn: Connection, workspace_id: UUID) -> None:
    """Delete the servers whose entry the owner no longer agrees to, with their headers and logins."""
    async with atomic(conn):
        for record in await conn.fetch(LIST_WITHOUT_CONSENT, workspace_id):
            await servers.delete_server(conn, record["id"])


async def delete_of_workspace(conn: Connection, workspace_id: UUID) -> None:
    """Delete the servers of a workspace that is deleted."""
    async with atomic(conn):
        for server in await list_of_workspace(conn, workspace_id):
            await servers.delete_server(conn, server.id)


async def expect_login(conn: Connection, server_id: UUID) -> bool:
    """Let the owner log in at a server that has refused a request without a login. Return whether that is new.

    A file does not say whether its server needs a login.
    """
    return await conn.fetchval(EXPECT_LOGIN, server_id) is not None


async def _is_named(conn: Connection, workspace_id: UUID, entry: Entry) -> bool:
    await conn.execute(LOCK_SNAPSHOT, workspace_id)
    snapshot = await context.find_snapshot(conn, workspace_id)
    return snapshot is not None and any(each.entry == entry for each in snapshot.resources)


async def _update(conn: Connection, server: McpServer, headers: Mapping[str, str], ring: Sealer | None) -> bool:
    if not headers or servers.open_headers(server, ring) == dict(headers):
        return False
    changed = ServerPatch(headers={name: SecretStr(value) for name, value in headers.items()})
    await servers.update_server(conn, server.id, changed, ring=ring)
    return True
