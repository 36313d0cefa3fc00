"""The context resources of workspaces (instructions, skills, MCP servers): fetched from agents, stored, and captured.

A chat keeps its captured context while the workspace is stopped. Its prompt changes only when the context is captured
again. A failure here never fails a turn: the stored copy is used instead.
"""

from __future__ import annotations

import posixpath
from collections.abc import Generator, Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.mcp_consent import Entry
from rookery.domain.chat.messages import ChatId
from rookery.domain.content import skills
from rookery.domain.content.skills import SkillProblem
from rookery.domain.mcp import server as server_rules
from rookery.runtime.clock import Clock
from rookery.runtime.time_slices import in_pieces
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import WatchHint, WatchKind
from rookery.store.db.pool import atomic
from rookery.store.machine import Publisher
from rookery.store.mcp import project_servers, servers
from rookery.store.workspaces import context, mcp_consents
from rookery.store.workspaces.context import ContextChange, ContextResource, Snapshot
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_messages import ContextSnapshot, Resource
from rookery.workspaces.errors import WorkspaceError
from rookery.workspaces.project_servers import ProjectServers

log = get_logger("workspaces.context")

# A fetched copy is current for FRESH_SECONDS. A turn waits FETCH_SECONDS for a newer one.
FRESH_SECONDS = 30.0
FETCH_SECONDS = 2.0
# Chosen: more workspaces than one process serves.
MAX_REMEMBERED = 4096
MAX_TOOLS = 500

_KINDS = frozenset({"instruction_file", "skill", "agent_kind", "mcp_config", "mcp_server"})
_STATUSES = frozenset({"ok", "truncated", "oversize", "unreadable", "invalid", "excluded", "pending"})
# Shown for an MCP server that the owner has not agreed to, and for one whose agent does not report its entry.
NOT_AGREED = "It starts only after the owner of the workspace has agreed to it."
OLD_AGENT = "The agent of this workspace is of an older version. Restart the workspace to use this server."
UNUSABLE = "Rookery cannot connect to this server. {problem}"
# The wait for starting MCP servers: of a turn, and of a user who has just agreed to one.
TURN_SETTLE_SECONDS = 1.0
SETTLE_SECONDS = 10.0
_WITH_BODY = frozenset({"ok", "truncated"})


async def snapshot_of(workspace_id: UUID, generation: int, answer: ContextSnapshot, *, now: datetime) -> Snapshot:
    """Convert the response of an agent to its stored form. Unknown kinds are dropped, and skills are parsed.

    A workspace may have hundreds of files that are slow to parse, so other tasks run between two files.
    """
    found = await in_pieces(_stored_resources(answer.resources))
    return Snapshot(workspace_id, generation, answer.version, answer.hash, _text(answer.error), found, now)


def _stored_resources(resources: Iterable[Resource]) -> Generator[None, None, tuple[ContextResource, ...]]:
    found: list[ContextResource] = []
    names: set[str] = set()
    for each in resources:
        yield
        if each.kind in _KINDS:
            found.append(_stored_resource(each, len(found), names))
    return tuple(found)


def _stored_resource(resource: Resource, ordinal: int, names: set[str]) -> ContextResource:
    status = resource.status if resource.status in _STATUSES else "invalid"
    has_body = status in _WITH_BODY and resource.kind in ("instruction_file", "skill", "agent_kind")
    stored = ContextResource(
        ordinal=ordinal,
        kind=resource.kind,
        source=_text(resource.source) or "",
        body=_text(resource.body) if has_body else None,
        hash=resource.hash,
        size=resource.size,
        status=status,
        error=_text(resource.error),
        tools=_tools(resource.tools) if resource.kind == "mcp_server" and status == "ok" else None,
    )
    if resource.kind == "mcp_server":
        return _with_entry(stored, resource.entry)
    return _named(stored, names) if resource.kind == "skill" and has_body else stored


def _with_entry(stored: ContextResource, entry: object) -> ContextResource:
    """Return the resource of an MCP server with the entry that the owner is asked about, or with status invalid."""
    try:
        found = msgspec.convert(entry, type=Entry)
    except msgspec.ValidationError:
        found = None
    if found is None or found.name != stored.source or b"\\u0000" in msgspec.json.encode(found):
        return msgspec.structs.replace(stored, status="invalid", error=OLD_AGENT, tools=None)
    if found.url is not None:
        try:
            server_rules.check_url("url", found.url)
            for name in found.headers:
                server_rules.check_header("headers", name)
        except InvalidInput as problem:
            # The entry is not stored, because a secret in its URL would be shown.
            return msgspec.structs.replace(stored, status="invalid", error=UNUSABLE.format(problem=problem), tools=None)
    error = NOT_AGREED if stored.status == "pending" else stored.error
    return msgspec.structs.replace(stored, entry=found, error=error)


def _named(stored: ContextResource, names: set[str]) -> ContextResource:
    """Set the name and description of a skill from its front matter. An invalid or repeated skill gets an error."""
    folder = posixpath.basename(posixpath.dirname(stored.source))
    try:
        name, description, _ = skills.read(stored.body or "", folder=folder)
    except SkillProblem as error:
        return msgspec.structs.replace(stored, status="invalid", error=str(error), body=None)
    if name in names:
        reason = "An earlier skill has the same name."
        return msgspec.structs.replace(stored, name=name, status="excluded", error=reason, body=None)
    names.add(name)
    return msgspec.structs.replace(stored, name=name, description=description)


def _tools(tools: object) -> list[dict[str, Any]]:
    """Return the valid tool definitions."""
    found = tools if isinstance(tools, list) else []
    stored = [each for each in found[:MAX_TOOLS] if isinstance(each, dict) and isinstance(each.get("name"), str)]
    # PostgreSQL accepts no zero bytes.
    encoded = msgspec.json.encode(stored).replace(b"\\u0000", b"\\ufffd")
    cleaned: list[dict[str, Any]] = msgspec.json.decode(encoded)
    return cleaned


def _text(text: str | None) -> str | None:
    # PostgreSQL accepts no zero bytes.
    return None if text is None else text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def hint_of(marked: ContextChange) -> WatchHint:
    """Return the hint for clients that show the chat in their list."""
    return WatchHint(
        user_id=marked.owner_id,
        kind=WatchKind.CONTEXT,
        chat_id=marked.chat_id,
        snapshot_version=marked.snapshot_version,
    )


class Contexts:
    """Fetches and stores the contexts of workspaces. There is one object per process."""

    def __init__(
        self, pool: asyncpg.Pool, publisher: Publisher, *, clock: Clock, project_servers: ProjectServers
    ) -> None:
        self._pool = pool
        self._publisher = publisher
        self._clock = clock
        self._project_servers = project_servers
        self._fetched_at: dict[tuple[UUID, int], float] = {}
        self._versions: dict[tuple[UUID, int], int] = {}

    def is_fresh(self, workspace_id: UUID, generation: int) -> bool:
        """Return whether this process has fetched the context of this boot within the last 30 s."""
        at = self._fetched_at.get((workspace_id, generation))
        return at is not None and self._clock.monotonic() - at < FRESH_SECONDS

    def known_version(self, workspace_id: UUID, generation: int) -> int:
        """Return the context version that this process has last fetched from this boot; 0 if none."""
        return self._versions.get((workspace_id, generation), 0)

    def forget(self) -> None:
        """Forget all fetched versions, so that they are fetched again."""
        self._fetched_at.clear()
        self._versions.clear()

    async def refresh(
        self, workspace_id: UUID, generation: int, conn: AgentConn, *, seconds: float = FETCH_SECONDS
    ) -> bool:
        """Fetch and store the context. Return whether there is one. Errors are only logged."""
        if len(self._fetched_at) >= MAX_REMEMBERED:
            self.forget()
        self._fetched_at[workspace_id, generation] = self._clock.monotonic()
        try:
            async with self._clock.deadline(seconds, "workspace-context"):
                answer = await conn.context()
            # Version 0 means that the startup script has not ended yet.
            if answer is None or answer.version <= 0:
                return False
            snapshot = await snapshot_of(workspace_id, generation, answer, now=self._clock.now())
            await self.store_snapshot(snapshot)
            self._versions[workspace_id, generation] = answer.version
            await self.run_agreed(snapshot, conn, wait=TURN_SETTLE_SECONDS)
        except (WorkspaceError, *DATABASE_ERRORS) as error:
            log.info("workspace_context_not_fetched", workspace_id=workspace_id, error=str(error))
            return False
        return True

    async def run_agreed(self, snapshot: Snapshot, conn: AgentConn, *, wait: float = 0.0) -> None:
        """Make the agent run exactly the MCP servers that the owner has agreed to, and prepare those with an address.

        The agent gets the entries themselves, so later changes of files in the workspace start nothing else.
        """
        if not any(each.entry is not None for each in snapshot.resources):
            return
        async with self._pool.acquire() as db:
            agreed = await mcp_consents.list_agreed(db, snapshot.workspace_id)
        if mcp_consents.differs_from_consents(snapshot, agreed):
            await conn.run_mcp_servers(mcp_consents.agreed_entries(snapshot, agreed), wait=wait)
            answer = await conn.context()
            if answer is not None and answer.version > 0:
                now = self._clock.now()
                snapshot = await snapshot_of(snapshot.workspace_id, snapshot.generation, answer, now=now)
                await self.store_snapshot(snapshot)
        if await self._project_servers.prepare(snapshot, agreed, conn):
            async with self._pool.acquire() as db:
                notified = await context.bump_servers(db, snapshot.workspace_id)
            self._publisher.publish([hint_of(each) for each in notified])

    async def store_snapshot(self, snapshot: Snapshot) -> None:
        """Store a snapshot unless a newer one is stored.

        Chats whose captured context is outdated are marked, and chats without one capture it.
        """
        async with self._pool.acquire() as conn:
            before = mcp_consents.signature(await context.find_snapshot(conn, snapshot.workspace_id))
            async with atomic(conn):
                if not await context.write_snapshot(conn, snapshot):
                    return
                is_followed = await project_servers.follow(conn, snapshot)
            marked = await context.mark_dirty(
                conn, snapshot.workspace_id, context_hash=snapshot.hash, now=self._clock.now()
            )
            waiting = await context.list_uncaptured(conn, snapshot.workspace_id)
            captured = [await context.capture(conn, chat_id) for chat_id in waiting]
            has_changed = mcp_consents.signature(snapshot) != before
            notified = await context.add_servers(conn, snapshot) if has_changed else []
        self._publisher.publish([hint_of(each) for each in (*marked, *captured, *notified) if each is not None])
        if is_followed:
            self._publisher.publish([servers.hint()])

    async def capture(self, chat_id: ChatId) -> bool:
        """Capture the stored context of the chat's workspace. Return False if there is none. Errors are only logged."""
        try:
            async with self._pool.acquire() as conn:
                captured = await context.capture(conn, chat_id)
        except DATABASE_ERRORS as error:
            log.warning("context_not_pinned", chat_id=chat_id, error=str(error) or type(error).__name__)
            return False
        if captured is not None:
            self._publisher.publish([hint_of(captured)])
        return captured is not None
