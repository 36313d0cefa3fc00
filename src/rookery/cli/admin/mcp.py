"""`rookery admin mcp`: the MCP servers of the deployment."""

from __future__ import annotations

import getpass
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec

from rookery.cli.admin import provider_input, secrets
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.domain.mcp.catalog import CATALOG
from rookery.domain.mcp.server import MAX_HEADER_BYTES, AuthType, Availability, McpServer, Transport
from rookery.mcp.server_access import McpAccess
from rookery.runtime.clock import SystemClock
from rookery.runtime.secret_str import SecretStr
from rookery.settings.settings import Settings
from rookery.store.db.pool import Connection, Database
from rookery.store.db.pubsub import Bus, Notifier
from rookery.store.mcp import servers
from rookery.store.mcp.servers import ServerDraft
from rookery.store.people.errors import AccessError
from rookery.store.settings import settings as stored_settings

# The user of a test. A server with OAuth is tested without a login.
_NO_USER = UUID(int=0)


class NewServer(msgspec.Struct, frozen=True, kw_only=True):
    """The command-line arguments for a new server."""

    slug: str
    url: str | None
    display_name: str
    auth: str | None
    header: str | None
    key_stdin: bool
    availability: str
    transport: str
    call_timeout: int


async def list_all(settings: Settings, out: Output) -> int:
    async with provider_input.opened(settings, out) as (_, conn):
        found = await servers.list_of_deployment(conn)
    if found:
        rows = [
            (each.slug, each.url, each.auth_type, each.availability, "enabled" if each.enabled else "disabled")
            for each in found
        ]
        out.table(("slug", "url", "auth", "availability", "state"), rows)
    else:
        out.line("There is no MCP server yet. `rookery admin mcp add SLUG URL` adds one.")
    out.result({"mcp_servers": [_document(each) for each in found]})
    return Exit.OK


def ask_key(new: NewServer) -> SecretStr | None:
    """Return the key of a new server, read from stdin or from a prompt; None if it needs none."""
    if _draft(new, None).auth_type is not AuthType.API_KEY:
        if new.key_stdin:
            raise Refused("--key-stdin needs --auth api_key.", code=Exit.USAGE)
        return None
    if new.key_stdin:
        piped = "" if sys.stdin is None else sys.stdin.read(MAX_HEADER_BYTES + 2).rstrip("\r\n")
        if not piped:
            raise Refused("There is no key on stdin.", code=Exit.USAGE)
        return SecretStr(piped)
    if sys.stdin is None or not sys.stdin.isatty():
        raise Refused("There is no terminal to ask for the key. Pipe it in with --key-stdin.", code=Exit.USAGE)
    typed = getpass.getpass(f"Value of the header for {new.slug}: ").strip()
    if not typed:
        raise Refused("No key was typed. Paste it at the prompt, or pipe it in with --key-stdin.", code=Exit.USAGE)
    return SecretStr(typed)


async def add(settings: Settings, out: Output, *, new: NewServer, key: SecretStr | None) -> int:
    with provider_input.refusals(out) as outcome:
        if key is not None:
            out.secrets.add("key", key.reveal())
        draft = _draft(new, key)
        async with _opened(settings, out) as (database, conn):
            ring = await secrets.load_checked_ring(settings, conn) if key is not None else None
            made = await servers.create_server(conn, draft, ring=ring, by=None)
            await provider_input.announce(database, servers.HINT, made.id)
        out.line(f"MCP server {made.slug} is added.")
        if made.auth_type is AuthType.OAUTH2:
            out.line("Each user connects to it in the settings, under Connections.")
        else:
            out.line(f"`rookery admin mcp test {made.slug}` connects to it and lists its tools.")
        out.result(_document(made))
    return outcome.code


async def test(settings: Settings, out: Output, *, slug: str) -> int:
    """Connect to a server and list its tools."""
    with provider_input.refusals(out) as outcome:
        async with _opened(settings, out) as (database, conn):
            server = await _get(conn, slug)
            stored = await stored_settings.find_setting(conn, servers.SETTING)
            needs_ring = server.api_key_enc is not None or server.headers_enc is not None
            ring = await secrets.load_checked_ring(settings, conn) if needs_ring else None

            async def setting() -> object:
                return stored

            notifier = Notifier(database.worker, Bus())
            access = McpAccess(
                database.worker,
                ring=ring,
                clock=SystemClock(),
                publisher=notifier,
                setting=setting,
                allow=settings.net_allow_private,
            )
            try:
                probe = await access.probe(server, _NO_USER)
            finally:
                await access.close()
                await notifier.close()
        problem, tools = probe.tools.problem, probe.tools.tools
        if problem is not None:
            out.line(f"{server.slug} cannot be used: {problem.text}")
        else:
            out.table(("tool", "description"), [(tool.name, _first_line(tool.description)) for tool in tools])
            out.line(f"{server.slug} answers with {len(tools)} tool(s).")
        out.result(
            {
                "ok": problem is None,
                "tools": [tool.name for tool in tools],
                "error": None if problem is None else problem.text,
            }
        )
        if problem is not None:
            outcome.code = Exit.FAILED
    return outcome.code


async def remove(settings: Settings, out: Output, *, slug: str, yes: bool) -> int:
    with provider_input.refusals(out) as outcome:
        async with _opened(settings, out) as (database, conn):
            server = await _get(conn, slug)
            if not yes:
                raise Refused(f"This also ends every login at {slug} and removes it from all chats. Add --yes.")
            await servers.delete_server(conn, server.id)
            await provider_input.announce(database, servers.HINT, server.id)
        out.line(f"MCP server {slug} is removed.")
        out.result({"removed": server.id, "slug": slug})
    return outcome.code


@asynccontextmanager
async def _opened(settings: Settings, out: Output) -> AsyncIterator[tuple[Database, Connection]]:
    try:
        async with provider_input.opened(settings, out) as opened:
            yield opened
    except AccessError as error:
        raise Refused(str(error)) from None


async def _get(conn: Connection, slug: str) -> McpServer:
    for each in await servers.list_of_deployment(conn):
        if each.slug == slug:
            return each
    raise Refused(f"There is no MCP server {slug}. `rookery admin mcp list` shows all servers.")


def _draft(new: NewServer, key: SecretStr | None) -> ServerDraft:
    """Return the server to add. Values that are not given come from the catalog, if it has a server with this slug."""
    known = next((entry for entry in CATALOG if entry.slug == new.slug), None)
    url = new.url or (None if known is None else known.url)
    if url is None:
        raise Refused(f"{new.slug} is not in the catalog, so it needs an address: SLUG URL.", code=Exit.USAGE)
    auth = AuthType(new.auth or (AuthType.NONE if known is None or new.url else known.auth_type))
    header = None
    if auth is AuthType.API_KEY:
        header = new.header or (known.api_key_header if known is not None else None) or "Authorization"
    return ServerDraft(
        slug=new.slug,
        url=url,
        display_name=new.display_name or ("" if known is None else known.name),
        description="" if known is None else known.description,
        transport=Transport(new.transport),
        availability=Availability(new.availability),
        auth_type=auth,
        api_key_header=header,
        api_key=key,
        call_timeout_seconds=new.call_timeout,
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:80]


def _document(server: McpServer) -> dict[str, object]:
    shown = ("id", "slug", "display_name", "url", "transport", "enabled", "availability", "auth_type")
    return {name: getattr(server, name) for name in shown}
