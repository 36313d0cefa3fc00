"""Consistent snapshots of a chat for its viewers. Concurrent identical reads are shared.

Nothing is locked, so viewers never delay a transition. Message ids alone show which messages a client already has. Rows
never change after they were written, an edit removes only the end of a history, and ids grow in commit order. If a
client's last message still exists, all its messages exist, and all messages that it lacks have a greater id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.domain.chat.prompt import PromptRow
from rookery.domain.chat.states import Status
from rookery.store.chats import stream_reads
from rookery.store.chats.messages import WINDOW_MAX_BYTES
from rookery.store.chats.stream_reads import PendingCall
from rookery.store.db.hints import ChatHint
from rookery.store.machine import Machine, View
from rookery.stream import events, views
from rookery.stream.events import HistoryReset, QueueUpdate

# A client that lacks more than this, or more than 8 MiB, gets a window instead.
MAX_DELTA_MESSAGES = 1000
# Greater than every snapshot version. It requires a read that begins later.
BEGUN_LATER = 2**63

Resume = Literal["window", "delta", "none"]


class ClientPosition(NamedTuple):
    """A client's position in a chat's history and queue. Clients at the same position share reads."""

    chat_id: ChatId
    history_version: int
    queue_version: int
    last_message_id: int
    tail: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Encoded `message` events in order, after a `history_reset` if there is one.

    `last_message_id` is the highest id that the client has after this batch.
    """

    messages: tuple[bytes, ...]
    last_message_id: int
    reset: bytes | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A chat at one version. `batch` and `queue_update` are None if the client is up to date."""

    chat: Chat
    batch: Batch | None = None
    queue_update: bytes | None = None
    pending_calls: tuple[PendingCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Opening:
    """The first snapshot of a connection, and its relation to the client's earlier state."""

    snapshot: Snapshot
    resume: Resume


@dataclass(slots=True)
class SyncStats:
    """Counters of reads. `shared` counts reads that were answered by the read of another viewer."""

    reads: int = 0
    shared: int = 0


class Reader:
    """Reads chats for all streams of this process. Close it at the end, because shared reads run in its own tasks."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._shared_reads: dict[ClientPosition, asyncio.Task[Snapshot]] = {}
        self._stats = SyncStats()

    def stats(self) -> SyncStats:
        return self._stats

    async def open(self, chat_id: ChatId, *, after_id: int, tail: int) -> Opening:
        """Return the first snapshot of a new connection; `after_id` 0 means that the client has no messages."""

        async def read(view: View) -> Opening:
            resume, batch = await _opening_batch(view, after_id=after_id, tail=tail)
            # An empty queue is a change only for a client that was connected before.
            tells_queue = view.chat.queue_len or (after_id and view.chat.queue_version)
            queue = await _queue_update(view) if tells_queue else None
            return Opening(Snapshot(view.chat, batch, queue, await _pending_calls(view)), resume)

        self._stats.reads += 1
        return await self._machine.read(chat_id, read)

    async def reload(self, position: ClientPosition) -> Snapshot:
        """Read everything again, for a client that requested it."""

        async def read(view: View) -> Snapshot:
            batch = await _window(view, position.tail)
            return Snapshot(view.chat, batch, await _queue_update(view), await _pending_calls(view))

        self._stats.reads += 1
        return await self._machine.read(position.chat_id, read)

    async def read(self, position: ClientPosition, *, at_least: int = 0, expects_rows: bool = True) -> Snapshot:
        """Read the changes since the client's position. `at_least` is the snapshot version of a hint, or BEGUN_LATER.

        A shared read may have begun before the commit of the hint; the next read begins after it. If messages and queue
        are not expected to have changed, only the chat is read. If they have changed, everything is read.
        """
        task = self._shared_reads.get(position)
        if task is not None:
            self._stats.shared += 1
            snapshot = await asyncio.shield(task)
            if snapshot.chat.snapshot_version >= at_least:
                return snapshot
        task = self._shared_reads.get(position) or self._start(position, expects_rows)
        return await asyncio.shield(task)

    async def close(self) -> None:
        tasks = tuple(self._shared_reads.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, position: ClientPosition, expects_rows: bool) -> asyncio.Task[Snapshot]:
        self._stats.reads += 1
        task = asyncio.create_task(self._read_shared(position, expects_rows), name="stream-sync")
        self._shared_reads[position] = task
        task.add_done_callback(lambda _: self._on_read_done(position, task))
        return task

    def _on_read_done(self, position: ClientPosition, task: asyncio.Task[Snapshot]) -> None:
        del self._shared_reads[position]
        if not task.cancelled():
            task.exception()  # retrieved, because all callers may have ended

    async def _read_shared(self, position: ClientPosition, expects_rows: bool) -> Snapshot:
        if not expects_rows and not has_rows(chat := await self._machine.peek(position.chat_id), position):
            return Snapshot(chat)
        news = await stream_reads.read_delta(self._machine, position.chat_id, seen=position.history_version)
        if (snapshot := _with_news(position, news)) is not None:
            return snapshot

        async def read(view: View) -> Snapshot:
            chat = view.chat
            batch = await _batch(view, position) if chat.history_version > position.history_version else None
            queue = await _queue_update(view) if chat.queue_version > position.queue_version else None
            return Snapshot(chat, batch, queue, await _pending_calls(view))

        return await self._machine.read(position.chat_id, read)


def has_rows(state: Chat | ChatHint, position: ClientPosition) -> bool:
    """Return whether more than the chat has to be read: messages, the queue, or calls that wait for an action."""
    return (
        state.history_version > position.history_version
        or state.queue_version > position.queue_version
        or state.status == Status.REQUIRES_ACTION
    )


def is_cut(rows: Iterable[PromptRow], last_message_id: int) -> bool:
    """Return whether an edit removed messages that the client has. Messages that it never received do not matter."""
    return any(row.message.deleted and row.message.id <= last_message_id for row in rows)


def _with_news(position: ClientPosition, news: stream_reads.VisibleDelta) -> Snapshot | None:
    """Return the snapshot with a few more messages.

    Return None if the client needs more than messages, or all of them.
    """
    chat, rows = news.chat, news.rows
    has_more = chat.queue_version > position.queue_version or chat.status == Status.REQUIRES_ACTION
    if has_more or not news.is_complete or is_cut(rows, position.last_message_id) or _is_long(rows):
        return None
    if chat.history_version <= position.history_version:
        return Snapshot(chat)
    return Snapshot(chat, _delta(_live(rows), position.last_message_id))


async def _batch(view: View, position: ClientPosition) -> Batch:
    rows = await stream_reads.list_delta(
        view.conn, view.chat.id, seen=position.history_version, limit=MAX_DELTA_MESSAGES + 1
    )
    if is_cut(rows, position.last_message_id) or _is_long(rows):
        return await _window(view, position.tail)
    return _delta(_live(rows), position.last_message_id)


async def _opening_batch(view: View, *, after_id: int, tail: int) -> tuple[Resume, Batch]:
    if not after_id:
        if tail:
            return "window", await _window(view, tail)
        return "none", Batch((), await stream_reads.find_newest_id(view.conn, view.chat.id) or 0)
    if not await stream_reads.is_live(view.conn, view.chat.id, message_id=after_id):
        return "window", await _window(view, tail)
    held = MessageId(after_id)
    limit = MAX_DELTA_MESSAGES + 1
    missing = await stream_reads.measure_after(view.conn, view.chat.id, after_id=held, limit=limit)
    if missing.count >= limit or missing.size_bytes > WINDOW_MAX_BYTES:
        return "window", await _window(view, tail)
    rows = await stream_reads.list_after(view.conn, view.chat.id, after_id=held, limit=limit) if missing.count else ()
    return "delta", _delta(rows, after_id)


def _is_long(rows: Sequence[PromptRow]) -> bool:
    if len(rows) > MAX_DELTA_MESSAGES:
        return True
    return sum(len(row.message.content) for row in rows) > WINDOW_MAX_BYTES


def _live(rows: Iterable[PromptRow]) -> tuple[PromptRow, ...]:
    return tuple(row for row in rows if not row.message.deleted)


def _delta(rows: Sequence[PromptRow], last_message_id: int) -> Batch:
    return Batch(_encoded(rows), rows[-1].message.id if rows else last_message_id)


async def _window(view: View, tail: int) -> Batch:
    page = await stream_reads.list_window(view.conn, view.chat.id, tail=tail)
    first = page.rows[0].message.id if page.rows else None
    # A client without a window still needs a position, so that later edits of the history reach it.
    last = page.rows[-1].message.id if page.rows else await stream_reads.find_newest_id(view.conn, view.chat.id) or 0
    reset = events.encode(HistoryReset(len(page.rows), page.has_more, first))
    return Batch(_encoded(page.rows), last, reset)


def _encoded(rows: Iterable[PromptRow]) -> tuple[bytes, ...]:
    return tuple(events.encode_message(views.message(row)) for row in rows)


async def _queue_update(view: View) -> bytes:
    queue = await stream_reads.list_queue(view.conn, view.chat.id)
    return events.encode(QueueUpdate(views.queued_messages(queue)))


async def _pending_calls(view: View) -> tuple[PendingCall, ...]:
    if view.chat.status != Status.REQUIRES_ACTION:
        return ()
    return await stream_reads.list_pending_calls(view.conn, view.chat.id)
