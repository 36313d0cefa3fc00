"""Workspace context (instructions, skills, MCP servers): fetched from the agent, stored, and captured by chats.

A chat keeps its captured context while the workspace is down, and its prompt stays the same until the context is
refreshed. Nothing here ever fails a turn: without a response the stored copy is used.
"""

from __future__ import annotations

import posixpath
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.mcp_consent import Entry
from rookery.domain.chat.messages import ChatId
from rookery.domain.content import skills
from rookery.domain.content.skills import SkillProblem
from rookery.runtime.clock import Clock
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import WatchHint, WatchKind
from rookery.store.machine import Publisher
from rookery.store.workspaces import context, mcp_consents
from rookery.store.workspaces.context import ContextResource, Marked, Snapshot
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_messages import ContextSnapshot, Resource
from rookery.workspaces.errors import WorkspaceError

log = get_logger("workspaces.context")

# How long a copy counts as the newest, and how long a turn waits for a newer one.
FRESH_SECONDS = 30.0
FETCH_SECONDS = 2.0
# Chosen: more workspaces than one process ever refreshes.
MAX_REMEMBERED = 4096
MAX_TOOLS = 500

_KINDS = frozenset({"instruction_file", "skill", "mcp_config", "mcp_server"})
_STATUSES = frozenset({"ok", "truncated", "oversize", "unreadable", "invalid", "excluded", "pending"})
# The reasons shown for an MCP server that is not approved, and for one whose agent does not report what it would run.
NOT_AGREED = "It starts only after the owner of the workspace has agreed to it."
OLD_AGENT = "The agent of this workspace is of an older version. Restart the workspace to use this server."
# How long a turn, and a user who has just approved a server, wait for servers to start.
TURN_SETTLE_SECONDS = 1.0
SETTLE_SECONDS = 10.0
_WITH_BODY = frozenset({"ok", "truncated"})


def snapshot_of(workspace_id: UUID, generation: int, answer: ContextSnapshot, *, now: datetime) -> Snapshot:
    """Convert an agent's report to its stored form: kinds and states this version knows, skills parsed and named."""
    found: list[ContextResource] = []
    names: set[str] = set()
    for each in answer.resources:
        if each.kind in _KINDS:
            found.append(_kept(each, len(found), names))
    return Snapshot(workspace_id, generation, answer.version, answer.hash, _text(answer.error), tuple(found), now)


def _kept(resource: Resource, ordinal: int, names: set[str]) -> ContextResource:
    status = resource.status if resource.status in _STATUSES else "invalid"
    has_body = status in _WITH_BODY and resource.kind in ("instruction_file", "skill")
    kept = ContextResource(
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
        return _with_entry(kept, resource.entry)
    return _named(kept, names) if resource.kind == "skill" and has_body else kept


def _with_entry(kept: ContextResource, entry: object) -> ContextResource:
    """Return an MCP server with the entry its owner must approve. A server without one does not run."""
    if entry is None and kept.status == "unreadable":
        return kept
    try:
        found = msgspec.convert(entry, type=Entry)
    except msgspec.ValidationError:
        found = None
    if found is None or found.name != kept.source or b"\\u0000" in msgspec.json.encode(found):
        return msgspec.structs.replace(kept, status="invalid", error=OLD_AGENT, tools=None)
    error = NOT_AGREED if kept.status == "pending" else kept.error
    return msgspec.structs.replace(kept, entry=found, error=error)


def _named(kept: ContextResource, names: set[str]) -> ContextResource:
    """Name a skill by its front matter. An unusable one states the reason; the first of a name wins."""
    folder = posixpath.basename(posixpath.dirname(kept.source))
    try:
        name, description, _ = skills.read(kept.body or "", folder=folder)
    except SkillProblem as error:
        return msgspec.structs.replace(kept, status="invalid", error=str(error), body=None)
    if name in names:
        reason = "Another skill of this name comes first."
        return msgspec.structs.replace(kept, name=name, status="excluded", error=reason, body=None)
    names.add(name)
    return msgspec.structs.replace(kept, name=name, description=description)


def _tools(tools: object) -> list[dict[str, Any]]:
    """Return the valid tool definitions."""
    found = tools if isinstance(tools, list) else []
    kept = [each for each in found[:MAX_TOOLS] if isinstance(each, dict) and isinstance(each.get("name"), str)]
    # PostgreSQL accepts no zero bytes.
    encoded = msgspec.json.encode(kept).replace(b"\\u0000", b"\\ufffd")
    cleaned: list[dict[str, Any]] = msgspec.json.decode(encoded)
    return cleaned


def _text(text: str | None) -> str | None:
    # PostgreSQL accepts no zero bytes.
    return None if text is None else text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def hint_of(marked: Marked) -> WatchHint:
    """The hint for clients that have the chat in their list."""
    return WatchHint(
        user_id=marked.owner_id,
        kind=WatchKind.CONTEXT,
        chat_id=marked.chat_id,
        snapshot_version=marked.snapshot_version,
    )


class Contexts:
    """Fetches and stores contexts; one per process."""

    def __init__(self, pool: asyncpg.Pool, publisher: Publisher, *, clock: Clock) -> None:
        self._pool = pool
        self._publisher = publisher
        self._clock = clock
        self._looked_at: dict[tuple[UUID, int], float] = {}
        self._versions: dict[tuple[UUID, int], int] = {}

    def is_fresh(self, workspace_id: UUID, generation: int) -> bool:
        """Return whether this process has fetched this context a moment ago."""
        at = self._looked_at.get((workspace_id, generation))
        return at is not None and self._clock.monotonic() - at < FRESH_SECONDS

    def known_version(self, workspace_id: UUID, generation: int) -> int:
        """Return the context version that this process last fetched from this boot of the workspace; 0 if none."""
        return self._versions.get((workspace_id, generation), 0)

    def forget(self) -> None:
        """Forget all fetched versions, so that each is fetched again."""
        self._looked_at.clear()
        self._versions.clear()

    async def refresh(
        self, workspace_id: UUID, generation: int, conn: AgentConn, *, seconds: float = FETCH_SECONDS
    ) -> bool:
        """Fetch and store the agent's context; return whether there is a context to capture. Never raises."""
        if len(self._looked_at) >= MAX_REMEMBERED:
            self.forget()
        self._looked_at[workspace_id, generation] = self._clock.monotonic()
        try:
            async with self._clock.deadline(seconds, "workspace-context"):
                answer = await conn.context()
            # The agent reports nothing before the startup script has ended.
            if answer is None or answer.version <= 0:
                return False
            snapshot = snapshot_of(workspace_id, generation, answer, now=self._clock.now())
            await self.keep(snapshot)
            self._versions[workspace_id, generation] = answer.version
            await self.run_agreed(snapshot, conn, wait=TURN_SETTLE_SECONDS)
        except (WorkspaceError, *DATABASE_ERRORS) as error:
            log.info("workspace_context_not_fetched", workspace_id=workspace_id, error=str(error))
            return False
        return True

    async def run_agreed(self, snapshot: Snapshot, conn: AgentConn, *, wait: float = 0.0) -> None:
        """Make the agent run the MCP servers that the owner approved, and no others.

        The agent receives the approved entries themselves, so later changes of its files have no effect.
        """
        if not any(each.entry is not None for each in snapshot.resources):
            return
        async with self._pool.acquire() as db:
            agreed = await mcp_consents.list_agreed(db, snapshot.workspace_id)
        if not mcp_consents.must_be_told(snapshot, agreed):
            return
        await conn.run_mcp_servers(mcp_consents.agreed_entries(snapshot, agreed), wait=wait)
        answer = await conn.context()
        if answer is not None and answer.version > 0:
            now = self._clock.now()
            await self.keep(snapshot_of(snapshot.workspace_id, snapshot.generation, answer, now=now))

    async def keep(self, snapshot: Snapshot) -> None:
        """Store a snapshot unless a newer one exists, notify chats whose captured context it outdates, and capture it
        for chats that wait.
        """
        async with self._pool.acquire() as conn:
            before = mcp_consents.signature(await context.find_snapshot(conn, snapshot.workspace_id))
            if not await context.write_snapshot(conn, snapshot):
                return
            marked = await context.mark_dirty(
                conn, snapshot.workspace_id, context_hash=snapshot.hash, now=self._clock.now()
            )
            waiting = await context.list_unpinned(conn, snapshot.workspace_id)
            pinned = [await context.pin(conn, chat_id) for chat_id in waiting]
            has_news = mcp_consents.signature(snapshot) != before
            told = await context.add_servers(conn, snapshot) if has_news else []
        self._publisher.publish([hint_of(each) for each in (*marked, *pinned, *told) if each is not None])

    async def pin(self, chat_id: ChatId) -> bool:
        """Capture the stored context of the chat's workspace; return False when there is none. Never raises."""
        try:
            async with self._pool.acquire() as conn:
                pinned = await context.pin(conn, chat_id)
        except DATABASE_ERRORS as error:
            log.warning("context_not_pinned", chat_id=chat_id, error=str(error) or type(error).__name__)
            return False
        if pinned is not None:
            self._publisher.publish([hint_of(pinned)])
        return pinned is not None
