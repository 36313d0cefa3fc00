"""Fenced reads of a worker's step: the chat, and as much of its history as decision and prompt need.

Everything comes from one snapshot (`Machine.read`), so chat and rows match; nothing is locked. Parsed rows are cached
between steps: a step fetches only rows with a newer revision, whatever the length of the history. That is complete,
because a message never changes, it is only deleted, and both give it the revision of their bundle.

A step needs the rows since the newest boundary and since the turn began, of any visibility, and before those only the
prompt's permanent rows (system rows). `floor` is where that begins; a history that was never compacted has all rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from sys import getsizeof
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat import prompt
from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.errors import StaleFence
from rookery.domain.chat.messages import ChatId, Message, MessageId, Role, Visibility
from rookery.domain.chat.parts import ContentError, Part, WorkspaceContext
from rookery.domain.chat.prompt import PromptRow
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock
from rookery.store.chats import chat_delta, messages
from rookery.store.chats import labels as stored_labels
from rookery.store.db.pool import Connection
from rookery.store.machine.bundle import CHAT_COLUMNS
from rookery.store.machine.lock import Machine

MAX_CACHE_BYTES = 64 * 1024 * 1024
# Chosen: the memory of a history besides its rows.
_BASE_BYTES = 2048
PAGE_ROWS = 1000
ROWS_PER_TURN = 200  # parsed in one go, before other tasks of the event loop run

# The fields of `Chat`, then those of `ChatMeta`, each in its order: one row, one round trip.
_ROW_COLUMNS = f"""
    {CHAT_COLUMNS},
    title, labels, workspace_id, mode, plan_mode, mcp_server_ids, dynamic_tools, client_type, summary,
    summary_generated_at, last_turn_summary, meta_version, workspace_generation, context_hash,
    context_workspace_id, context_generation, context_dirty_since,
    coalesce((SELECT u.status = 'active' FROM users u WHERE u.id = chats.owner_id), true), context_servers,
    generate_summaries, title_tries,
    CASE WHEN refused_history_version = history_version THEN refused_tokens END, clock_timestamp()
"""
READ_ROW = f"SELECT {_ROW_COLUMNS} FROM chats WHERE id = $1"
GLANCE = chat_delta.statement(_ROW_COLUMNS)

# Where the needed rows begin. The range of one chat, ordered by it, keeps the planner on the chat's own indexes here
# and below: store/chats/messages.py explains why.
FLOOR = """
    SELECT CASE WHEN boundary_id IS NULL THEN 0 ELSE least(boundary_id, coalesce(turn_id, 0)) END
      FROM (SELECT (SELECT b.id
                      FROM chat_messages b
                     WHERE b.chat_id >= $1 AND b.chat_id <= $1
                       AND b.compressed
                       AND b.visibility = 'model'
                       AND NOT b.deleted
                     ORDER BY b.chat_id DESC, b.id DESC
                     LIMIT 1) AS boundary_id,
                   (SELECT u.id
                      FROM chat_messages u
                     WHERE u.chat_id >= $1 AND u.chat_id <= $1
                       AND u.role = 'user'
                       AND NOT u.deleted
                       AND NOT u.compressed
                       AND u.visibility <> 'model'
                     ORDER BY u.chat_id, u.role, u.id DESC
                     LIMIT 1) AS turn_id
            OFFSET 0) found
"""
SYSTEM_BELOW = f"""
    SELECT {messages.COLUMNS}, {messages.FIGURES}
      FROM chat_messages m
     WHERE m.chat_id = $1
       AND m.role = 'system'
       AND m.id < $2
       AND NOT m.compressed
       AND NOT m.deleted
       AND coalesce(m.visibility, 'user') <> 'user'
     ORDER BY m.chat_id, m.role, m.id
"""
# Index messages_live. In pages: only a limit makes the planner follow the index instead of collecting the whole chat.
PAGE = f"""
    SELECT {messages.COLUMNS}, {messages.FIGURES}
      FROM chat_messages m
     WHERE m.chat_id >= $1 AND m.chat_id <= $1
       AND (m.chat_id, m.id) >= ($1, $2)
       AND NOT m.deleted
     ORDER BY m.chat_id, m.id
     LIMIT {PAGE_ROWS}
"""

# Index messages_revision.
DELTA = f"""
    SELECT {messages.MARKED_COLUMNS}, {messages.FIGURES}
      FROM chat_messages m
     WHERE m.chat_id >= $1 AND m.chat_id <= $1
       AND (m.chat_id, m.revision) > ($1, $2)
     ORDER BY m.chat_id, m.revision, m.id
"""


class ChatMeta(msgspec.Struct, frozen=True):
    """The fields of the chat that a step needs beside its execution state. `dynamic_tools` is the stored JSON.

    `refused_tokens` is the approximate size of the smallest request that a provider refused as too long for this
    history.
    """

    title: str
    labels: dict[str, str]
    workspace_id: UUID | None
    mode: str | None
    plan_mode: bool
    mcp_server_ids: tuple[UUID, ...]
    dynamic_tools: str | None
    client_type: str
    summary: str | None
    summary_generated_at: datetime | None
    last_turn_summary: str | None
    meta_version: int
    workspace_generation: int | None = None
    context_hash: str | None = None
    context_workspace_id: UUID | None = None
    context_generation: int | None = None
    context_dirty_since: datetime | None = None
    owner_is_active: bool = True
    context_servers: int = 0
    generate_summaries: bool | None = None
    title_tries: int = 0
    refused_tokens: int | None = None

    @property
    def has_pin(self) -> bool:
        """Whether context of the chat's own workspace is captured; context of another one never counts."""
        return self.context_hash is not None and self.context_workspace_id == self.workspace_id


class FencedRow(msgspec.Struct, frozen=True):
    """The chat as its task may see it. `now` is the database's clock, which leases and deadlines use."""

    chat: Chat
    meta: ChatMeta
    now: datetime


class ParsedMessage(Message, frozen=True, gc=False):
    """A message that keeps its parts, so that no step parses it again. Parts are immutable values."""

    parsed: tuple[Part, ...] | None = None

    def parts(self) -> tuple[Part, ...]:
        # A row that cannot be read fails each time it is requested, as it would without the cache.
        return Message.parts(self) if self.parsed is None else self.parsed


class LoadedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one history version, ascending.

    `rows` are for the decision (`domain.chat.history.read`), of any visibility and none of them deleted; `prompt` is
    what the model is sent, the same rows as `messages.list_prompt`. `model_config_ids` wrote the answers in the prompt,
    `file_ids` are those whose bytes it needs. `traced` is the newest row's record of the workspace context in effect.
    `size_bytes` is an estimate of the rows' memory.
    """

    chat_id: ChatId
    history_version: int
    rows: tuple[PromptRow, ...]
    prompt: tuple[PromptRow, ...]
    boundary_id: MessageId | None
    size_bytes: int
    model_config_ids: frozenset[UUID] = frozenset()
    file_ids: frozenset[UUID] = frozenset()
    traced: WorkspaceContext | None = None

    @property
    def visible(self) -> tuple[PromptRow, ...]:
        """The rows that are visible to people."""
        return tuple(row for row in self.rows if row.message.visibility is not Visibility.MODEL)


class Step(msgspec.Struct, frozen=True):
    """Everything a step starts from, of one snapshot. `fetched` rows came from the database, the others from
    the cache.
    """

    chat: Chat
    meta: ChatMeta
    now: datetime
    history: LoadedHistory
    fetched: int


_Record: TypeAlias = asyncpg.Record | tuple[Any, ...]
# The chat, the cached history that the records continue if there is one, and the records.
_Found: TypeAlias = tuple[FencedRow, LoadedHistory | None, Sequence[_Record]]


class HistoryStats(msgspec.Struct, frozen=True):
    chats: int
    size_bytes: int
    hits: int
    misses: int
    rows_fetched: int


class HistoryCache:
    """A cache of the histories of chats this process works on.

    A history that is missing, or cannot be continued, is loaded whole. Entries are values, so steps of two runners of
    one chat may use it at the same time.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES, *, clock: Clock | None = None) -> None:
        self.entries: Cache[UUID, LoadedHistory] = Cache(
            "histories", max_bytes=max_bytes, max_age_seconds=CHAT_SECONDS, clock=clock
        )
        self._hits = self._misses = self._rows_fetched = 0

    def find(self, chat_id: UUID) -> LoadedHistory | None:
        return self.entries.find(chat_id)

    def keep(self, history: LoadedHistory) -> None:
        """Cache it in place of an older one."""
        known = self.entries.peek(history.chat_id)
        if known is None or known.history_version <= history.history_version:
            self.entries.keep(history.chat_id, history, size_bytes=history.size_bytes + _BASE_BYTES)

    def count(self, *, fetched: int, is_hit: bool) -> None:
        self._rows_fetched += fetched
        self._hits += is_hit
        self._misses += not is_hit

    def stats(self) -> HistoryStats:
        """The counters of the cache. `hits` could be continued; an entry that was found and could not counts as
        a miss.
        """
        return HistoryStats(len(self.entries), self.entries.size_bytes, self._hits, self._misses, self._rows_fetched)


async def read_fenced(machine: Machine, chat_id: ChatId, *, fence: Fence) -> FencedRow:
    """Return the chat alone, if it still is what the task saw. Raises `StaleFence` otherwise."""

    async def run(conn: Connection) -> FencedRow:
        return await _fenced(conn, chat_id, fence)

    return await machine.snapshot(run)


async def load_step(machine: Machine, chat_id: ChatId, *, fence: Fence, cache: HistoryCache) -> Step:
    """Return the chat with its history, of one snapshot, if it still is what the task saw. Raises `StaleFence`
    otherwise.
    """
    known = cache.find(chat_id)

    async def run(conn: Connection) -> _Found:
        row = await _fenced(conn, chat_id, fence)
        base = known if known is not None and known.history_version <= row.chat.history_version else None
        if base is not None and base.history_version == row.chat.history_version:
            return row, base, []
        if base is not None:
            records = await conn.fetch(DELTA, chat_id, base.history_version)
            if not _cuts_boundary(base, records):
                return row, base, records
        return row, None, await _fetch_all(conn, chat_id)

    found = None if known is None else await _glance(machine, chat_id, fence, known)
    row, base, records = await machine.snapshot(run) if found is None else found
    cache.count(fetched=len(records), is_hit=base is not None)
    history = await _continued(base, records, row.chat)
    if history is not known:
        cache.keep(history)
    return Step(row.chat, row.meta, row.now, history, len(records))


async def _glance(machine: Machine, chat_id: ChatId, fence: Fence, known: LoadedHistory) -> _Found | None:
    """Return the new rows if they are few and complete; else None."""
    seen = await chat_delta.look(machine, GLANCE, chat_id, seen=known.history_version)
    if seen is None:
        raise StaleFence(chat_id, "chat")
    row = _fenced_row(chat_id, fence, seen.chat)
    if known.history_version > row.chat.history_version or not seen.is_all or _cuts_boundary(known, seen.rows):
        return None
    return row, known, seen.rows


async def _fetch_all(conn: Connection, chat_id: ChatId) -> list[asyncpg.Record]:
    """Return every needed row, in order."""
    floor: int = await conn.fetchval(FLOOR, chat_id)
    records = await conn.fetch(SYSTEM_BELOW, chat_id, floor) if floor else []
    start = floor
    while True:
        page = await conn.fetch(PAGE, chat_id, start)
        records.extend(page)
        if len(page) < PAGE_ROWS:
            return records
        start = page[-1]["id"] + 1


async def _fenced(conn: Connection, chat_id: ChatId, fence: Fence) -> FencedRow:
    record = await conn.fetchrow(READ_ROW, chat_id)
    if record is None:
        raise StaleFence(chat_id, "chat")
    return _fenced_row(chat_id, fence, record)


def _fenced_row(chat_id: ChatId, fence: Fence, record: _Record) -> FencedRow:
    chat = Chat(*record[:_CHAT_WIDTH])
    if (field := fence.find_mismatch(chat)) is not None:
        raise StaleFence(chat_id, field)
    *meta, now = record[_CHAT_WIDTH:]
    return FencedRow(chat, _meta(meta), now)


def _cuts_boundary(base: LoadedHistory, records: Sequence[_Record]) -> bool:
    """Return whether rows from before `base` are in the prompt again: an edit deleted the summary that replaced
    them.
    """
    if base.boundary_id is None:
        return False
    return any(record[_DELETED] and record[_ID] <= base.boundary_id for record in records)


async def _continued(base: LoadedHistory | None, records: Sequence[_Record], chat: Chat) -> LoadedHistory:
    """Return `base` with the changes since; without one, just the records."""
    if base is not None and base.history_version == chat.history_version:
        return base
    added = await _parse([record for record in records if not record[_DELETED]])
    if base is None:
        return _arranged(added, chat)
    deleted = {record[_ID] for record in records if record[_DELETED]}
    if deleted or any(_is_boundary(row.message) for row in added):
        return _arranged([*(row for row in base.rows if row.message.id not in deleted), *added], chat)
    told = [row for row in added if _is_told(row.message, base.boundary_id or 0)]
    return msgspec.structs.replace(
        base,
        history_version=chat.history_version,
        rows=(*base.rows, *added),
        prompt=(*base.prompt, *told),
        model_config_ids=base.model_config_ids | prompt.model_config_ids(told),
        file_ids=base.file_ids | prompt.list_files(told),
        traced=_newest_trace(added) or base.traced,
        size_bytes=base.size_bytes + sum(map(_size, added)),
    )


async def _parse(records: Sequence[_Record]) -> list[PromptRow]:
    rows: list[PromptRow] = []
    for place, record in enumerate(records, start=1):
        rows.append(_parsed(messages.prompt_row(record)))
        if place % ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
    return rows


def _parsed(row: PromptRow) -> PromptRow:
    try:
        parsed = row.message.parts()
    except ContentError:
        parsed = None
    fields: tuple[Any, ...] = (*msgspec.structs.astuple(row.message), parsed)
    return PromptRow(ParsedMessage(*fields), row.figures)


def _arranged(rows: Sequence[PromptRow], chat: Chat) -> LoadedHistory:
    """Return the needed part of these rows. A new boundary drops the rows that it replaces."""
    boundary = next((row.message.id for row in reversed(rows) if _is_boundary(row.message)), None)
    floor = 0 if boundary is None else min(boundary, _turn_id(rows))
    wanted = [row for row in rows if row.message.id >= floor or _is_told(row.message, floor)]
    told = tuple(row for row in wanted if _is_told(row.message, boundary or 0))
    return LoadedHistory(
        chat_id=chat.id,
        history_version=chat.history_version,
        rows=tuple(wanted),
        prompt=told,
        boundary_id=boundary,
        model_config_ids=prompt.model_config_ids(told),
        file_ids=prompt.list_files(told),
        traced=_newest_trace(wanted),
        size_bytes=sum(map(_size, wanted)),
    )


def _newest_trace(rows: Sequence[PromptRow]) -> WorkspaceContext | None:
    """Return the newest trace; unreadable rows are skipped."""
    for row in reversed(rows):
        message = row.message
        if message.role is Role.SYSTEM and isinstance(message, ParsedMessage):
            for part in message.parsed or ():
                if isinstance(part, WorkspaceContext):
                    return part
    return None


def _turn_id(rows: Sequence[PromptRow]) -> int:
    """Return the live visible user row that began the turn; 0 if there is none, and all rows are its turn."""
    for row in reversed(rows):
        message = row.message
        if message.role is Role.USER and message.visibility is not Visibility.MODEL and not message.compressed:
            return message.id
    return 0


def _is_boundary(message: Message) -> bool:
    return message.compressed and message.visibility is Visibility.MODEL


def _is_told(message: Message, boundary_id: int) -> bool:
    """Return whether the row is in a prompt whose newest summary is `boundary_id`; 0 if there is none."""
    if message.compressed:
        return message.id == boundary_id
    if message.visibility is Visibility.USER:
        return False
    return message.role is Role.SYSTEM or message.id > boundary_id


def _size(row: PromptRow) -> int:
    """Estimate the memory: the stored text, the same again as parts, and the objects around it."""
    return 2 * getsizeof(row.message.content) + 1024


def _meta(values: list[Any]) -> ChatMeta:
    values[_LABELS] = stored_labels.decode(values[_LABELS])
    values[_SERVERS] = tuple(values[_SERVERS])
    return ChatMeta(*values)


_LABELS, _SERVERS = (ChatMeta.__struct_fields__.index(name) for name in ("labels", "mcp_server_ids"))
_ID, _DELETED = (Message.__struct_fields__.index(name) for name in ("id", "deleted"))
_CHAT_WIDTH = len(Chat.__struct_fields__)
