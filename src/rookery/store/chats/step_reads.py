"""Reads for a step of a worker: the chat, checked against the fence, and the part of its history that the step needs.

All rows are read from one snapshot, so chat and rows are consistent; nothing is locked. Parsed rows are cached between
steps. A step reads only rows with a newer revision, even if the history is long. No change is missed: messages are only
inserted and deleted, and both set the revision.

A step needs the rows, of any visibility, since the newest boundary and since the last message of a user, and all system
rows of the prompt. `floor` is the first id of these rows. In a history without a boundary, it is 0. A notice about a
subagent is not a message of a user: limits count from before it.
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
from rookery.domain.chat.history import is_from_user
from rookery.domain.chat.messages import ChatId, Message, MessageId, Role, StepFigures, Visibility
from rookery.domain.chat.parts import ContentError, Part, WorkspaceContext
from rookery.domain.chat.permission_mode import PermissionMode
from rookery.domain.chat.prompt import PromptRow
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock
from rookery.store.chats import chat_delta, chat_rows, messages
from rookery.store.db.pool import Connection
from rookery.store.debug import recording_state as debug_state
from rookery.store.machine.bundle import CHAT_COLUMNS
from rookery.store.machine.bundle_runner import Machine

MAX_CACHE_BYTES = 64 * 1024 * 1024
# Chosen: an estimate of the memory of a history without its rows.
_BASE_BYTES = 2048
PAGE_ROWS = 1000
ROWS_PER_SLICE = 200  # rows that are parsed before other tasks of the event loop may run

# The fields of `Chat`, then those of `ChatMeta`, in their order.
_ROW_COLUMNS = f"""
    {CHAT_COLUMNS},
    title, labels, workspace_id, mode, plan_mode, mcp_server_ids, dynamic_tools, client_type, summary,
    summary_generated_at, last_turn_summary, meta_version, workspace_generation, context_hash,
    context_workspace_id, context_generation, context_dirty_since,
    coalesce((SELECT u.status = 'active' FROM users u WHERE u.id = chats.owner_id), true), context_servers,
    generate_summaries, title_tries,
    CASE WHEN refused_history_version = history_version THEN refused_tokens END,
    parent_chat_id IS NULL AND EXISTS (SELECT FROM chats k WHERE k.parent_chat_id = chats.id),
    parent_chat_id IS NULL AND EXISTS (
      SELECT FROM subagent_ends e WHERE e.parent_chat_id = chats.id AND e.told_at IS NULL),
    CASE WHEN parent_chat_id IS NOT NULL THEN (
      SELECT jsonb_build_object('kind', s.kind, 'tools', s.tools, 'budget_micros', s.budget_micros)::text
        FROM subagents s WHERE s.chat_id = chats.id) END,
    coalesce((SELECT r.permission_mode FROM chats r WHERE r.id = chats.root_chat_id), permission_mode),
    {debug_state.WANTS_DEBUG},
    clock_timestamp()
"""
READ_ROW = f"SELECT {_ROW_COLUMNS} FROM chats WHERE id = $1"
CHAT_DELTA = chat_delta.statement(_ROW_COLUMNS)

# The first id of the rows that a step needs. Here and below, the chat is given as a range: store/chats/messages.py
# explains why.
FLOOR = """
    SELECT CASE WHEN boundary_id IS NULL THEN 0 ELSE least(boundary_id, coalesce(asked_id, 0)) END
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
                       AND (u.created_by IS NOT NULL OR NOT u.content @> '[{"type": "agent-notice"}]')
                     ORDER BY u.chat_id, u.role, u.id DESC
                     LIMIT 1) AS asked_id
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
# Index messages_live. The rows are read in pages, because the planner uses the index only with a LIMIT; otherwise it
# sorts the whole chat.
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


class AgentTerms(msgspec.Struct, frozen=True):
    """The terms under which a subagent works. `tools` is an allow list; None allows all tools of subagents."""

    kind: str
    tools: frozenset[str] | None = None
    budget_micros: int | None = None


_terms = msgspec.json.Decoder(AgentTerms)


class ChatMeta(msgspec.Struct, frozen=True):
    """The fields of the chat that a step needs besides its execution state. `dynamic_tools` is the stored JSON.

    `refused_tokens` is the approximate size of the smallest request with this history that a provider refused as too
    long. `has_untold_ends`: subagents have ended, and the history has no notice about it yet. `agent` is set for a
    subagent. `wants_debug`: the family, or else its owner, wants debug records; False if
    the family must never be recorded, None if neither has chosen. `permission_mode` is that of the root.
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
    has_children: bool = False
    has_untold_ends: bool = False
    agent: AgentTerms | None = None
    permission_mode: str = PermissionMode.AUTO
    wants_debug: bool | None = None

    @property
    def has_captured_context(self) -> bool:
        """Return whether the context of the chat's current workspace is captured."""
        return self.context_hash is not None and self.context_workspace_id == self.workspace_id


class FencedRow(msgspec.Struct, frozen=True):
    """The chat, after its fence was checked. `now` is the time of the database, which leases and deadlines use."""

    chat: Chat
    meta: ChatMeta
    now: datetime


class ParsedMessage(Message, frozen=True, gc=False):
    """A message with its parsed parts, so that later steps do not parse it again. Parts are immutable."""

    parsed: tuple[Part, ...] | None = None

    def parts(self) -> tuple[Part, ...]:
        # A message that cannot be parsed raises `ContentError` here, as it would without the cache.
        return Message.parts(self) if self.parsed is None else self.parsed


class LoadedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one history version, in ascending order.

    `rows` are for the decision (`domain.chat.history.read`): of any visibility, without deleted rows. `prompt` are the
    rows for the model, as in `messages.list_prompt`. `model_config_ids` are the models that wrote the answers in the
    prompt, and `file_ids` the files whose bytes it needs. `traced` is the newest recorded workspace context.
    `size_bytes` is an estimate of the memory of the rows.
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
        """Return the rows that are visible to users."""
        return tuple(row for row in self.rows if row.message.visibility is not Visibility.MODEL)

    def with_answer(self, answer: Message, figures: StepFigures | None) -> LoadedHistory:
        """Return this history with the answer that ended its turn. The content is not in its stored form."""
        row = PromptRow(answer, figures or StepFigures())
        return msgspec.structs.replace(
            self, history_version=answer.revision, rows=(*self.rows, row), prompt=(*self.prompt, row)
        )


class Step(msgspec.Struct, frozen=True):
    """The input of a step, from one snapshot. `fetched` is the number of rows that were not in the cache."""

    chat: Chat
    meta: ChatMeta
    now: datetime
    history: LoadedHistory
    fetched: int


_Record: TypeAlias = asyncpg.Record | tuple[Any, ...]
# The chat, the cached history that the records extend (None if they are the whole history), and the records.
_Found: TypeAlias = tuple[FencedRow, LoadedHistory | None, Sequence[_Record]]


class HistoryStats(msgspec.Struct, frozen=True):
    chats: int
    size_bytes: int
    hits: int
    misses: int
    rows_fetched: int


class HistoryCache:
    """A cache of the histories of chats that this process runs.

    A history that is missing or cannot be extended is loaded as a whole. Entries are immutable, so two runners of one
    chat may use them at the same time.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES, *, clock: Clock | None = None) -> None:
        self.entries: Cache[UUID, LoadedHistory] = Cache(
            "histories", max_bytes=max_bytes, max_age_seconds=CHAT_SECONDS, clock=clock
        )
        self._hits = self._misses = self._rows_fetched = 0

    def find(self, chat_id: UUID) -> LoadedHistory | None:
        return self.entries.find(chat_id)

    def keep(self, history: LoadedHistory) -> None:
        """Cache a history, unless a newer one is cached."""
        known = self.entries.peek(history.chat_id)
        if known is None or known.history_version <= history.history_version:
            self.entries.keep(history.chat_id, history, size_bytes=history.size_bytes + _BASE_BYTES)

    def count(self, *, fetched: int, is_hit: bool) -> None:
        self._rows_fetched += fetched
        self._hits += is_hit
        self._misses += not is_hit

    def stats(self) -> HistoryStats:
        """Return the counters of the cache. An entry that was found but could not be extended counts as a miss."""
        return HistoryStats(len(self.entries), self.entries.size_bytes, self._hits, self._misses, self._rows_fetched)


async def read_fenced(machine: Machine, chat_id: ChatId, *, fence: Fence) -> FencedRow:
    """Return the chat without its history. Raises `StaleFence` if the fence does not match."""

    async def run(conn: Connection) -> FencedRow:
        return await _fenced(conn, chat_id, fence)

    return await machine.snapshot(run)


async def load_step(machine: Machine, chat_id: ChatId, *, fence: Fence, cache: HistoryCache) -> Step:
    """Return the chat with its history, from one snapshot. Raises `StaleFence` if the fence does not match."""
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

    if known is not None:
        found = await _read_delta(machine, chat_id, fence, known)
    elif fence.history_version <= chat_delta.MAX_ROWS:
        found = await _read_short(machine, chat_id, fence)
    else:
        found = None
    row, base, records = await machine.snapshot(run) if found is None else found
    cache.count(fetched=len(records), is_hit=base is not None)
    history = await _extend(base, records, row.chat)
    if history is not known:
        cache.keep(history)
    return Step(row.chat, row.meta, row.now, history, len(records))


async def _read_delta(machine: Machine, chat_id: ChatId, fence: Fence, known: LoadedHistory) -> _Found | None:
    """Return the new rows if they are few and extend `known`; otherwise None."""
    delta = await chat_delta.read_delta(machine, CHAT_DELTA, chat_id, seen=known.history_version)
    if delta is None:
        raise StaleFence(chat_id, "chat")
    row = _fenced_row(chat_id, fence, delta.chat)
    if known.history_version > row.chat.history_version or not delta.is_complete or _cuts_boundary(known, delta.rows):
        return None
    return row, known, delta.rows


async def _read_short(machine: Machine, chat_id: ChatId, fence: Fence) -> _Found | None:
    """Return all rows of a new chat by one statement; None if it has too many. Most versions add at most one row."""
    delta = await chat_delta.read_delta(machine, CHAT_DELTA, chat_id, seen=0)
    if delta is None:
        raise StaleFence(chat_id, "chat")
    row = _fenced_row(chat_id, fence, delta.chat)
    return (row, None, delta.rows) if delta.is_complete else None


async def _fetch_all(conn: Connection, chat_id: ChatId) -> list[asyncpg.Record]:
    """Return all rows that a step needs, in order."""
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
    """Return whether an edit deleted the boundary of `base`, so that older rows are in the prompt again."""
    if base.boundary_id is None:
        return False
    return any(record[_DELETED] and record[_ID] <= base.boundary_id for record in records)


async def _extend(base: LoadedHistory | None, records: Sequence[_Record], chat: Chat) -> LoadedHistory:
    """Return `base` with the changes in the records. Without a base, the records are the whole history."""
    if base is not None and base.history_version == chat.history_version:
        return base
    added = await _parse([record for record in records if not record[_DELETED]])
    if base is None:
        return _build_history(added, chat)
    deleted = {record[_ID] for record in records if record[_DELETED]}
    if deleted or any(_is_boundary(row.message) for row in added):
        return _build_history([*(row for row in base.rows if row.message.id not in deleted), *added], chat)
    sent = [row for row in added if _is_in_prompt(row.message, base.boundary_id or 0)]
    return msgspec.structs.replace(
        base,
        history_version=chat.history_version,
        rows=(*base.rows, *added),
        prompt=(*base.prompt, *sent),
        model_config_ids=base.model_config_ids | prompt.model_config_ids(sent),
        file_ids=base.file_ids | prompt.list_files(sent),
        traced=_newest_trace(added) or base.traced,
        size_bytes=base.size_bytes + sum(map(_size, added)),
    )


async def _parse(records: Sequence[_Record]) -> list[PromptRow]:
    rows: list[PromptRow] = []
    for place, record in enumerate(records, start=1):
        rows.append(_parsed(messages.prompt_row(record)))
        if place % ROWS_PER_SLICE == 0:
            await asyncio.sleep(0)
    return rows


def _parsed(row: PromptRow) -> PromptRow:
    try:
        parsed = row.message.parts()
    except ContentError:
        parsed = None
    fields: tuple[Any, ...] = (*msgspec.structs.astuple(row.message), parsed)
    return PromptRow(ParsedMessage(*fields), row.figures)


def _build_history(rows: Sequence[PromptRow], chat: Chat) -> LoadedHistory:
    """Return the history with the rows that a step needs. A new boundary drops the rows that it replaces."""
    boundary = next((row.message.id for row in reversed(rows) if _is_boundary(row.message)), None)
    floor = 0 if boundary is None else min(boundary, _asked_id(rows))
    wanted = [row for row in rows if row.message.id >= floor or _is_in_prompt(row.message, floor)]
    sent = tuple(row for row in wanted if _is_in_prompt(row.message, boundary or 0))
    return LoadedHistory(
        chat_id=chat.id,
        history_version=chat.history_version,
        rows=tuple(wanted),
        prompt=sent,
        boundary_id=boundary,
        model_config_ids=prompt.model_config_ids(sent),
        file_ids=prompt.list_files(sent),
        traced=_newest_trace(wanted),
        size_bytes=sum(map(_size, wanted)),
    )


def _newest_trace(rows: Sequence[PromptRow]) -> WorkspaceContext | None:
    """Return the newest recorded workspace context. Unreadable rows are skipped."""
    for row in reversed(rows):
        message = row.message
        if message.role is Role.SYSTEM and isinstance(message, ParsedMessage):
            for part in message.parsed or ():
                if isinstance(part, WorkspaceContext):
                    return part
    return None


def _asked_id(rows: Sequence[PromptRow]) -> int:
    """Return the id of the last message of a user; 0 if there is none."""
    return next((row.message.id for row in reversed(rows) if is_from_user(row.message)), 0)


def _is_boundary(message: Message) -> bool:
    return message.compressed and message.visibility is Visibility.MODEL


def _is_in_prompt(message: Message, boundary_id: int) -> bool:
    """Return whether the row is in the prompt of a history with this boundary; 0 means no boundary."""
    if message.compressed:
        return message.id == boundary_id
    if message.visibility is Visibility.USER:
        return False
    return message.role is Role.SYSTEM or message.id > boundary_id


def _size(row: PromptRow) -> int:
    """Estimate the memory of a row: its stored text, about the same for its parts, and the objects."""
    return 2 * getsizeof(row.message.content) + 1024


def _meta(values: list[Any]) -> ChatMeta:
    values[_LABELS] = chat_rows.decode_labels(values[_LABELS])
    values[_SERVERS] = tuple(values[_SERVERS])
    values[_AGENT] = None if values[_AGENT] is None else _terms.decode(values[_AGENT])
    return ChatMeta(*values)


_LABELS, _SERVERS, _AGENT = (ChatMeta.__struct_fields__.index(name) for name in ("labels", "mcp_server_ids", "agent"))
_ID, _DELETED = (Message.__struct_fields__.index(name) for name in ("id", "deleted"))
_CHAT_WIDTH = len(Chat.__struct_fields__)
