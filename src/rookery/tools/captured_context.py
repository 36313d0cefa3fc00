"""The captured contexts of chats: read from the database, cached, and formatted for prompts and transcripts.

A captured context that has not changed is read from the cache, without a query.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from sys import getsizeof
from uuid import UUID

import asyncpg

from rookery.domain.chat import system_blocks
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.parts import ContextFile, WorkspaceContext
from rookery.domain.chat.system_blocks import InstructionFile, Skill
from rookery.domain.content import invisible_characters, skills
from rookery.domain.content.skills import WORKSPACE, SkillFile
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock
from rookery.runtime.time_slices import in_pieces
from rookery.store.chats.step_reads import ChatMeta
from rookery.store.workspaces import context
from rookery.store.workspaces.context import CaptureState, ContextResource
from rookery.store.workspaces.workspaces import Workspace
from rookery.telemetry.log import get_logger

log = get_logger("tools.captured_context")

MAX_CACHE_BYTES = 16 * 1024 * 1024
# Chosen: the size of a captured context and of each resource, without their texts.
_BASE_BYTES, _RESOURCE_BYTES = 1024, 1024
# At most this many unusable resources are listed for the user.
MAX_PROBLEMS = 10
MAX_PROBLEM_CHARS = 300


@dataclass(frozen=True, slots=True)
class CapturedContext:
    """A captured context. `key` changes with every capture, and `servers_version` when its MCP servers change.

    `instructions` are the cleaned texts of its instruction files.
    """

    key: tuple[UUID, int, str]
    resources: tuple[ContextResource, ...] = ()
    skills: tuple[SkillFile, ...] = ()
    instructions: tuple[str, ...] = ()
    servers_version: int = 0

    def servers(self) -> tuple[ContextResource, ...]:
        """Return the MCP servers that the owner can agree to."""
        return tuple(each for each in self.resources if each.is_server)

    def block(self, workspace: Workspace | None, agreed: Collection[str] = ()) -> str:
        held = [each.source for each in self.servers() if each.entry is not None and each.entry.hash not in agreed]
        return system_blocks.workspace_context(
            (workspace.os if workspace else None) or "",
            (workspace.directory if workspace else None) or "",
            instructions=self.instructions,
            held_servers=[_line(name) for name in held],
        )

    def trace(self) -> WorkspaceContext:
        """Return the note for the transcript: names and sizes of the resources, without their texts."""
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
        """Return a text about unusable resources for the user; empty if all can be used."""
        found = [each for each in self.resources if each.error and each.status not in ("ok", "truncated")]
        lines = [f"- {_line(each.source)}: {_line(each.error or '')}" for each in found[:MAX_PROBLEMS]]
        if len(found) > len(lines):
            lines.append(f"- and {len(found) - len(lines)} more")
        return "\n".join(("Some context resources of this workspace cannot be used:", *lines)) if lines else ""

    def index(self) -> tuple[Skill, ...]:
        return tuple(Skill(each.name, each.description, each.source) for each in self.skills)


class CapturedContexts:
    """The captured contexts of the chats that this process runs."""

    def __init__(self, pool: asyncpg.Pool, *, clock: Clock | None = None) -> None:
        self._pool = pool
        self.entries: Cache[ChatId, CapturedContext] = Cache(
            "workspace_contexts", max_bytes=MAX_CACHE_BYTES, max_age_seconds=CHAT_SECONDS, clock=clock
        )

    async def load(self, chat_id: ChatId, meta: ChatMeta) -> CapturedContext | None:
        """Return the captured context of the chat's row as the step has read it."""
        if not meta.has_captured_context or meta.workspace_id is None or meta.context_hash is None:
            return None
        key = meta.workspace_id, meta.context_generation or 0, meta.context_hash
        return await self._load(chat_id, key, meta.context_servers)

    async def load_newest(self, chat_id: ChatId) -> CapturedContext | None:
        """Return the current captured context, read from the database."""
        async with self._pool.acquire() as conn:
            state = await context.read_capture_state(conn, chat_id)
        if state.hash is None or state.workspace_id is None or state.context_workspace_id != state.workspace_id:
            return None
        return await self._load(chat_id, _key(state, state.workspace_id, state.hash), state.servers)

    async def _load(self, chat_id: ChatId, key: tuple[UUID, int, str], servers: int) -> CapturedContext:
        known = self.entries.find(chat_id)
        if known is not None and (known.key, known.servers_version) == (key, servers):
            return known
        async with self._pool.acquire() as conn:
            resources = tuple(await context.list_resources(conn, chat_id))
        # Cleaning the texts takes long if there are many. It is done once, and other tasks run in between.
        skill_files = await in_pieces(_skill_files(resources))
        instructions = await in_pieces(_instructions(resources))
        captured = CapturedContext(key, resources, skill_files, instructions, servers)
        # Texts are in memory twice: as resources, and as skills or instructions.
        size = sum(_RESOURCE_BYTES + 2 * getsizeof(each.body or "") for each in resources)
        self.entries.keep(chat_id, captured, size_bytes=_BASE_BYTES + size)
        return captured


def _line(text: str) -> str:
    """Return untrusted text as one line of limited length."""
    return " ".join(invisible_characters.clean(text).split())[:MAX_PROBLEM_CHARS]


def _key(state: CaptureState, workspace_id: UUID, found: str) -> tuple[UUID, int, str]:
    return workspace_id, state.context_generation or 0, found


def _skill_files(resources: Sequence[ContextResource]) -> Generator[None, None, tuple[SkillFile, ...]]:
    """Return the skills among the resources. Skills with invalid names are left out."""
    usable: list[SkillFile] = []
    left_out = 0
    for each in resources:
        if each.kind != "skill" or not each.name or not each.body:
            continue
        yield
        if skills.is_name(each.name):
            body = skills.body_text(each.body)
            directory = posixpath.dirname(each.source)
            usable.append(SkillFile(each.name, each.description or "", body, WORKSPACE, directory))
        else:
            left_out += 1
    if left_out:
        log.warning("skills_left_out", count=left_out)
    return tuple(usable)


def _instructions(resources: Sequence[ContextResource]) -> Generator[None, None, tuple[str, ...]]:
    found: list[str] = []
    for each in resources:
        if each.kind != "instruction_file" or not each.body:
            continue
        yield
        text = system_blocks.instruction_text(InstructionFile(each.source, each.body, each.status == "truncated"))
        if text:
            found.append(text)
    return tuple(found)
