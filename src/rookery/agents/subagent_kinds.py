"""Kinds of subagents: the built-in kinds, and the precedence of kinds from several sources.

A kind never gives a subagent more than its parent has. Its tools are an allow list within the tools of subagents.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from sys import getsizeof
from typing import Any, Protocol
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.messages import Effort
from rookery.domain.content import agent_kinds as definitions
from rookery.domain.content.agent_kinds import KindDefinition, KindProblem
from rookery.models.directory import Directory
from rookery.runtime.cache import Cache
from rookery.runtime.clock import Clock
from rookery.runtime.time_slices import in_pieces
from rookery.store.chats.subagents import KindSource
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import ConfigHint
from rookery.store.db.pubsub import Bus
from rookery.store.settings import agent_kinds
from rookery.store.settings.agent_kinds import HINT, StoredKind
from rookery.store.workspaces.context import ContextResource
from rookery.telemetry.log import get_logger

log = get_logger("agents.subagent_kinds")

# Chosen: the size of an entry without its prompts.
KIND_BYTES = 1024
MAX_CACHE_BYTES = 4 * 1024 * 1024
MAX_AGE_SECONDS = 600.0
# Chosen: the list of kinds is part of every prompt of a chat that can spawn. With these limits it has at most about
# 3,000 tokens, for any number of kinds that the deployment, the user and the workspace define.
MAX_LIST_BYTES = 8 * 1024
MAX_LISTED_DESCRIPTION_CHARS = 300
MAX_NAMES_BYTES = 2 * 1024


class AgentKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of subagent. `prompt` is added to the system prompt of its chats. `tools` are the allowed tools; None
    allows all.

    A `read_only` kind changes nothing: its chats have the mode `explore`.
    """

    name: str
    description: str
    source: KindSource = KindSource.BUILTIN
    prompt: str = ""
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None
    tools: tuple[str, ...] | None = None
    read_only: bool = False
    max_minutes: int | None = None


GENERAL = AgentKind(
    name="general",
    description="Substantial, independent work: a change, a check, or research over many files.",
)
EXPLORE = AgentKind(
    name="explore",
    description="Searches the repository for something and reports it. Changes nothing.",
    read_only=True,
)
BUILTIN = (GENERAL, EXPLORE)


class HiddenKind(msgspec.Struct, frozen=True):
    """A kind that is hidden by another kind with the same name."""

    name: str
    source: KindSource
    hidden_by: KindSource


class KindList(msgspec.Struct, frozen=True):
    """The kinds that can be spawned now, and the kinds that are hidden by others."""

    kinds: tuple[AgentKind, ...]
    hidden: tuple[HiddenKind, ...] = ()

    def find(self, name: str) -> AgentKind | None:
        return next((kind for kind in self.kinds if kind.name == name), None)


class KindCatalog(Protocol):
    async def list_kinds(self, owner_id: UUID, resources: Sequence[ContextResource]) -> KindList:
        """Return the kinds that chats of this owner with these resources can spawn.

        It never raises: kinds that cannot be read are left out.
        """


class BuiltinKinds:
    """The catalog that has only the built-in kinds."""

    async def list_kinds(self, owner_id: UUID, resources: Sequence[ContextResource]) -> KindList:
        return KindList(BUILTIN)


class AllKinds:
    """The built-in kinds, those of the deployment and of the chat's owner, and those of its workspace.

    Stored kinds are cached per owner until a hint announces a change. A workspace file is parsed once for each content,
    because every step of a chat has the same files.
    """

    def __init__(self, pool: asyncpg.Pool, directory: Directory, *, bus: Bus, clock: Clock) -> None:
        self._pool = pool
        self._directory = directory
        # Part of the cache's keys. A change makes all older entries unreachable, and the sweep removes them.
        self._epoch = 0
        self._stored: Cache[tuple[int, UUID], tuple[StoredKind, ...]] = Cache(
            "agent_kinds", max_bytes=MAX_CACHE_BYTES, max_age_seconds=MAX_AGE_SECONDS, clock=clock
        )
        # The key is the whole text of a file, because the hash that a workspace reports cannot be trusted. The value is
        # the definition, or the problem with it.
        self._files: Cache[str, KindDefinition | str] = Cache(
            "agent_kind_files", max_bytes=MAX_CACHE_BYTES, max_age_seconds=MAX_AGE_SECONDS, clock=clock
        )
        self._subscriptions = [
            bus.subscribe(ConfigHint, lambda hint: self._forget(), key=HINT),
            bus.on_resync(self._forget),
        ]

    @property
    def caches(self) -> tuple[Cache[Any, Any], ...]:
        return self._stored, self._files

    async def list_kinds(self, owner_id: UUID, resources: Sequence[ContextResource]) -> KindList:
        stored = await self._list_stored(owner_id)
        models = await self._directory.snapshot()
        by_name = {config.model: config.id for config in models.configs.values() if config.enabled}
        return merged(
            BUILTIN,
            [_of_stored(kind) for kind in stored if kind.owner_id is None],
            [_of_stored(kind) for kind in stored if kind.owner_id is not None],
            [_of_file(kind, by_name) for kind in await in_pieces(self._definitions(resources))],
        )

    def _definitions(self, resources: Sequence[ContextResource]) -> Generator[None, None, list[KindDefinition]]:
        """Return the kinds that files of a workspace define.

        Other asyncio tasks run between two files, because parsing hundreds of files may be slow.
        """
        found: list[KindDefinition] = []
        for each in resources:
            yield
            if (kind := self._definition(each)) is not None:
                found.append(kind)
        return found

    def _definition(self, resource: ContextResource) -> KindDefinition | None:
        """Return the kind that a workspace file defines; None if it defines none."""
        if resource.kind != "agent_kind" or not resource.body:
            return None
        found = self._files.find(resource.body)
        if found is None:
            found = _read_file(resource.body)
            if isinstance(found, str):
                log.info("kind_unusable", source=resource.source, error=found)
            # The text is the key and contains the prompt.
            self._files.keep(resource.body, found, size_bytes=KIND_BYTES + 2 * getsizeof(resource.body))
        return found if isinstance(found, KindDefinition) else None

    def _forget(self) -> None:
        self._epoch += 1

    async def _list_stored(self, owner_id: UUID) -> tuple[StoredKind, ...]:
        key = self._epoch, owner_id
        if (known := self._stored.find(key)) is not None:
            return known
        try:
            async with self._pool.acquire() as conn:
                found = tuple(await agent_kinds.list_kinds(conn, owner_id))
        except DATABASE_ERRORS as error:
            log.warning("kinds_left_out", error=str(error) or type(error).__name__)
            return ()
        size = sum(KIND_BYTES + getsizeof(kind.prompt) for kind in found)
        self._stored.keep(key, found, size_bytes=KIND_BYTES + size)
        return found


def _of_stored(kind: StoredKind) -> AgentKind:
    return AgentKind(
        name=kind.name,
        description=kind.description,
        source=KindSource.DEPLOYMENT if kind.owner_id is None else KindSource.USER,
        prompt=kind.prompt,
        model_config_id=kind.model_config_id,
        reasoning_effort=kind.reasoning_effort,
        tools=kind.tools,
        read_only=kind.read_only,
        max_minutes=kind.max_minutes,
    )


def _read_file(text: str) -> KindDefinition | str:
    """Return the definition in a file, or the problem with it."""
    try:
        return definitions.read(text)
    except KindProblem as problem:
        return str(problem)


def _of_file(kind: KindDefinition, models: Mapping[str, UUID]) -> AgentKind:
    """Return the kind that a workspace file defines. The file may name a model by id or by name."""
    return AgentKind(
        name=kind.name,
        description=kind.description,
        source=KindSource.WORKSPACE,
        prompt=kind.prompt,
        model_config_id=_model_id(kind.model, models),
        reasoning_effort=kind.reasoning_effort,
        tools=kind.tools,
        read_only=kind.read_only,
        max_minutes=kind.max_minutes,
    )


def _model_id(named: str | None, models: Mapping[str, UUID]) -> UUID | None:
    if named is None:
        return None
    try:
        return UUID(named)
    except ValueError:
        return models.get(named)


def merged(*sources: Iterable[AgentKind]) -> KindList:
    """Return the kinds of several sources. If names are equal, the kind of the earlier source is used."""
    given = [kind for source in sources for kind in source]
    first = {kind.name: kind for kind in reversed(given)}
    hidden = [
        HiddenKind(kind.name, kind.source, first[kind.name].source) for kind in given if first[kind.name] is not kind
    ]
    return KindList(tuple(kind for kind in given if first[kind.name] is kind), tuple(hidden))


def listed(kinds: Sequence[AgentKind]) -> str:
    """Return the kinds as lines of the tool's description. Kinds beyond the size limit are only named, or only
    counted.
    """
    lines: list[str] = []
    room = MAX_LIST_BYTES
    for place, kind in enumerate(kinds):
        line = f"- {kind.name}: {_shortened(' '.join(kind.description.split()))}"
        room -= len(line.encode("utf-8", "replace")) + 1
        if room < 0:
            return "\n".join((*lines, f"More kinds, without descriptions: {named(kinds[place:])}"))
        lines.append(line)
    return "\n".join(lines)


def named(kinds: Sequence[AgentKind]) -> str:
    """Return the names of the kinds. Names beyond the size limit are only counted."""
    names: list[str] = []
    room = MAX_NAMES_BYTES
    for kind in kinds:
        room -= len(kind.name) + 2
        if room < 0:
            return f"{', '.join(names)}, and {len(kinds) - len(names)} more."
        names.append(kind.name)
    return f"{', '.join(names)}."


def _shortened(description: str) -> str:
    if len(description) <= MAX_LISTED_DESCRIPTION_CHARS:
        return description
    return f"{description[: MAX_LISTED_DESCRIPTION_CHARS - 3].rstrip()}..."
