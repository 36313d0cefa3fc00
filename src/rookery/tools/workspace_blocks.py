"""The workspace blocks of a prompt: captured instruction files and skills.

Read from the database and cached by identity: a chat whose captured context did not change costs no query.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from sys import getsizeof
from uuid import UUID

import asyncpg

from rookery.domain.chat import system_blocks
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.parts import ContextFile, WorkspaceContext
from rookery.domain.chat.system_blocks import InstructionFile, Skill
from rookery.domain.content import prompt_text, skills
from rookery.domain.content.skills import WORKSPACE, SkillFile
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock
from rookery.store.chats.step_reads import ChatMeta
from rookery.store.workspaces import context
from rookery.store.workspaces.context import ContextResource, Pin
from rookery.store.workspaces.workspaces import Workspace
from rookery.telemetry.log import get_logger

log = get_logger("tools.workspace_blocks")

MAX_CACHE_BYTES = 16 * 1024 * 1024
# Chosen: size of a captured context and of each of its resources, besides their texts.
_BASE_BYTES, _RESOURCE_BYTES = 1024, 1024
# Limit of the unusable resources that are listed for the user.
MAX_PROBLEMS = 10
MAX_PROBLEM_CHARS = 300


@dataclass(frozen=True, slots=True)
class Pinned:
    """A captured context. `key` changes with every new capture, `servers_version` whenever its MCP servers change."""

    key: tuple[UUID, int, str]
    resources: tuple[ContextResource, ...]
    skills: tuple[SkillFile, ...]
    servers_version: int = 0

    def servers(self) -> tuple[ContextResource, ...]:
        """Return the MCP servers that an owner may agree to."""
        return tuple(each for each in self.resources if each.is_server)

    def block(self, workspace: Workspace | None, agreed: Collection[str] = ()) -> str:
        files = [
            InstructionFile(each.source, each.body, each.status == "truncated")
            for each in self.resources
            if each.kind == "instruction_file" and each.body
        ]
        held = [each.source for each in self.servers() if each.entry is not None and each.entry.hash not in agreed]
        return system_blocks.workspace_context(
            (workspace.os if workspace else None) or "",
            (workspace.directory if workspace else None) or "",
            files=files,
            held_servers=[_line(name) for name in held],
        )

    def trace(self) -> WorkspaceContext:
        """Return what was captured, for the transcript: names and sizes, no texts."""
        files = [
            ContextFile(each.source, each.size, each.hash, each.status == "truncated")
            for each in self.resources
            if each.kind == "instruction_file" and each.body
        ]
        servers = [each.source for each in self.resources if each.kind == "mcp_server" and each.status == "ok"]
        return WorkspaceContext(
            *self.key, files=tuple(files), skills=tuple(each.name for each in self.skills), mcp_servers=tuple(servers)
        )

    def problems(self) -> str:
        """Return the unusable resources of the workspace as a text for the user; empty when all can be used."""
        found = [each for each in self.resources if each.error and each.status not in ("ok", "truncated")]
        lines = [f"- {_line(each.source)}: {_line(each.error or '')}" for each in found[:MAX_PROBLEMS]]
        if len(found) > len(lines):
            lines.append(f"- and {len(found) - len(lines)} more")
        return "\n".join(("Some of what this workspace offers the model cannot be used:", *lines)) if lines else ""

    def index(self) -> tuple[Skill, ...]:
        return tuple(Skill(each.name, each.description, each.source) for each in self.skills)


class Pins:
    """The captured contexts of the chats this process works on."""

    def __init__(self, pool: asyncpg.Pool, *, clock: Clock | None = None) -> None:
        self._pool = pool
        self.entries: Cache[ChatId, Pinned] = Cache(
            "workspace_contexts", max_bytes=MAX_CACHE_BYTES, max_age_seconds=CHAT_SECONDS, clock=clock
        )

    async def load(self, chat_id: ChatId, meta: ChatMeta) -> Pinned | None:
        """Return the captured context that the step's own snapshot of the chat names."""
        if not meta.has_pin or meta.workspace_id is None or meta.context_hash is None:
            return None
        key = meta.workspace_id, meta.context_generation or 0, meta.context_hash
        return await self._load(chat_id, key, meta.context_servers)

    async def load_newest(self, chat_id: ChatId) -> Pinned | None:
        """Return the captured context as it is now, after it was written."""
        async with self._pool.acquire() as conn:
            pin = await context.read_pin(conn, chat_id)
        if pin.hash is None or pin.workspace_id is None or pin.pinned_workspace_id != pin.workspace_id:
            return None
        return await self._load(chat_id, _key(pin, pin.workspace_id, pin.hash), pin.servers)

    async def _load(self, chat_id: ChatId, key: tuple[UUID, int, str], servers: int) -> Pinned:
        known = self.entries.find(chat_id)
        if known is not None and (known.key, known.servers_version) == (key, servers):
            return known
        async with self._pool.acquire() as conn:
            resources = tuple(await context.list_resources(conn, chat_id))
        pinned = Pinned(key, resources, skill_files(resources), servers)
        # The texts are held twice: as resources, and as the skills made of them.
        size = sum(_RESOURCE_BYTES + 2 * getsizeof(each.body or "") for each in resources)
        self.entries.keep(chat_id, pinned, size_bytes=_BASE_BYTES + size)
        return pinned


def _line(text: str) -> str:
    """Return untrusted text on one line."""
    return " ".join(prompt_text.clean(text).split())[:MAX_PROBLEM_CHARS]


def _key(pin: Pin, workspace_id: UUID, found: str) -> tuple[UUID, int, str]:
    return workspace_id, pin.pinned_generation or 0, found


def skill_files(resources: Sequence[ContextResource]) -> tuple[SkillFile, ...]:
    """Return the skills among the usable resources. Unreadable rows are left out, and counted."""
    found = [each for each in resources if each.kind == "skill" and each.name and each.body]
    usable = [
        SkillFile(
            each.name or "",
            each.description or "",
            skills.body_text(each.body or ""),
            WORKSPACE,
            posixpath.dirname(each.source),
        )
        for each in found
        if skills.is_name(each.name or "")
    ]
    if len(usable) < len(found):
        log.warning("skills_left_out", count=len(found) - len(usable))
    return tuple(usable)
