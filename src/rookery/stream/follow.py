"""The stream of one chat to one client: takes hints and live parts, and produces frames.

Everything except database reads happens in `take`, in the task that writes to the client. For a slow client `take` is
not called, and pending data waits in bounded places: hints merge into one, and parts stay in their feed, where a reader
is only a cursor. While the database is unreachable, parts continue to flow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Protocol
from uuid import UUID

from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId
from rookery.live.deltas import PartEvent
from rookery.live.feeds import EndReason, Subscription, Take
from rookery.live.part_buffer import EpisodeKey, PartBufferError
from rookery.runtime.clock import Clock
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import MiscHint
from rookery.store.db.pubsub import Bus
from rookery.store.db.pubsub import Subscription as BusSubscription
from rookery.stream import events, snapshots
from rookery.stream.errors import CloseCode, StreamEnded
from rookery.stream.events import DebugUpdate, Hello
from rookery.stream.hint_inbox import Inbox, Registry
from rookery.stream.outbox import Frame, Outbox
from rookery.stream.query_parameters import StreamParams
from rookery.stream.session import Inbound, SendNow
from rookery.stream.snapshots import BEGUN_LATER, Opening, Reader, Snapshot
from rookery.stream.viewer import ClientView, HintEffect, Step, Target, ViewStats
from rookery.telemetry.log import get_logger

log = get_logger("stream.follow")

READ_RETRY_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.0)
LAST_READ_RETRY_SECONDS = 2.0
READ_PATIENCE_SECONDS = 30.0
LAGGED_SECONDS = 1.0
# A client loads recorded calls itself, so the newest hints are enough for a slow client.
MAX_DEBUG_PENDING = 64
DELETED = "This chat was deleted."


class PartSource(Protocol):
    """The source of one replica's parts: its own buffer, or a mirror of it."""

    def subscribe(
        self, key: EpisodeKey, from_seq: int = 1, *, wake: Callable[[], None] | None = None, take: Take | None = None
    ) -> Subscription: ...


class PartSources(Protocol):
    def source(self, worker_id: UUID) -> PartSource | None:
        """Return the source of that replica's parts; None if the replica cannot be reached."""


class ReadMarker(Protocol):
    """Moves the caller's own read cursor; None means the newest message. The marker logs its failures."""

    def __call__(self, chat_id: ChatId, message_id: int | None) -> Coroutine[None, None, None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContext:
    """The services that all chat streams of a process share."""

    replica_id: UUID
    reader: Reader
    registry: Registry
    sources: PartSources
    bus: Bus
    clock: Clock
    stats: ViewStats


async def open_chat(
    context: StreamContext, chat_id: ChatId, params: StreamParams, *, mark_read: ReadMarker
) -> ChatStream:
    """Read the chat for the first time and return its stream. Exceptions of the read are not caught.

    The inbox is registered before the read, so that every change is either in the read or in the inbox.
    """
    stream = ChatStream(context, chat_id, params, mark_read=mark_read)
    try:
        await stream._open()
    except BaseException:
        await stream.close()
        raise
    return stream


class ChatStream:
    """The source of a chat's session. Made by `open_chat`."""

    __slots__ = (
        "_context",
        "_debug",
        "_debug_pending",
        "_has_marked",
        "_inbox",
        "_is_at_rest",
        "_is_lagged",
        "_lagged_at",
        "_later",
        "_mark_read",
        "_marking",
        "_outbox",
        "_params",
        "_reading",
        "_reloads",
        "_send_now",
        "_subscription",
        "_target",
        "_view",
        "_wake",
    )

    def __init__(self, context: StreamContext, chat_id: ChatId, params: StreamParams, *, mark_read: ReadMarker) -> None:
        self._context = context
        self._params = params
        self._mark_read = mark_read
        self._view = ClientView(chat_id, tail=params.tail, shows_parts=params.parts, stats=context.stats)
        self._outbox = Outbox()
        self._wake: Callable[[], None] = _no_wake
        self._send_now: SendNow | None = None
        self._inbox = Inbox(chat_id, self._wake_session)
        self._debug: BusSubscription | None = None
        self._debug_pending: dict[DebugUpdate, None] = {}
        self._reading: asyncio.Task[_Applied] | None = None
        self._reloads = False
        self._target: Target | None = None
        self._subscription: Subscription | None = None
        # True while only parts can be new. `_wake_session` resets it.
        self._is_at_rest = False
        self._is_lagged = False
        self._lagged_at: float | None = None
        self._later: asyncio.Task[None] | None = None
        self._marking: asyncio.Task[None] | None = None
        self._has_marked = not params.mark_read

    @property
    def chat_id(self) -> ChatId:
        return self._view.chat_id

    def attach(self, wake: Callable[[], None], send_now: SendNow | None = None) -> None:
        self._wake = wake
        self._send_now = send_now
        wake()

    def take(self) -> Frame | None:
        """Return the next frame. Changes of the chat come before live parts, because parts of a new attempt need the
        new versions.
        """
        if self._is_at_rest:
            frame = self._take_part()
            if frame is not None or self._is_at_rest:
                return frame
        if self._inbox.is_gone:
            # Data that was already read is not sent either, because no user may see the chat any more.
            raise StreamEnded(CloseCode.DELETED, DELETED)
        if self._reading is not None and self._reading.done():
            self._apply(self._reading)
        if self._reading is None and self._outbox.is_durable_empty and (self._reloads or not self._inbox.is_empty):
            self._synchronize()
        if self._outbox.is_preview_empty:
            self._queue_debug()
            self._move_parts()
        frame = self._outbox.take()
        if frame is None:
            if not self._has_marked:
                self._mark_first()
            self._is_at_rest = self._reading is None and not self._is_lagged and self._inbox.is_empty
        return frame

    def _take_part(self) -> Frame | None:
        """Return a frame with one more part if nothing else is pending. This fast path runs for every few words of an
        answer.
        """
        subscription = self._subscription
        if subscription is None:
            return None
        batch = subscription.pull()
        is_over = subscription.end is not None
        if len(batch) == 1 and self._view.accept_next(batch[0]):
            return Frame(events.frame((batch[0][2],)), is_all=not is_over and not subscription.has_more)
        if batch or is_over:
            self._is_at_rest = False
            self._show(batch)
        return None

    async def handle(self, frame: Inbound) -> None:
        match frame.type:
            case "read" if frame.message_id is not None:
                await self._mark_read(self.chat_id, frame.message_id)
            case "resync":
                self._reloads = True
                self._wake_session()

    async def close(self) -> None:
        self._context.registry.remove(self._inbox)
        if self._debug is not None:
            self._debug.close()
        self._unsubscribe()
        tasks = [task for task in (self._reading, self._later) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._marking is not None:
            await self._marking
            await self._mark_read(self.chat_id, self._view.last_message_id)

    async def _open(self) -> None:
        context, params = self._context, self._params
        context.registry.add(self._inbox)
        if params.debug:
            self._debug = context.bus.subscribe(MiscHint, self._on_debug, key=f"debug:{self.chat_id}")
        opening = await context.reader.open(self.chat_id, after_id=params.after_id, tail=params.tail)
        self._outbox.put([self._hello(opening), *self._first(opening)], cursor=self._view.last_message_id)
        self._follow_target()

    def _first(self, opening: Opening) -> list[bytes]:
        return self._view.apply(opening.snapshot, is_first=True)

    def _hello(self, opening: Opening) -> bytes:
        context = self._context
        return events.encode(Hello(self.chat_id, context.replica_id, context.clock.now(), opening.resume))

    def _mark_first(self) -> None:
        """Mark the first synchronization as read once it was sent, if the client asked for it."""
        self._has_marked = True
        reading = self._mark_read(self.chat_id, self._view.last_message_id)
        self._marking = asyncio.create_task(reading, name="stream-mark-read")

    # Database reads

    def _synchronize(self) -> None:
        if self._reloads:
            self._reloads = False
            self._start(self._reload())
            return
        hint, is_forced = self._inbox.take()
        consequence = HintEffect.IGNORE if hint is None else self._view.effect_of(hint)
        if is_forced:
            self._start(self._read(BEGUN_LATER))
        elif hint is not None and consequence is HintEffect.READ:
            self._start(self._read(hint.snapshot_version, expects_rows=snapshots.has_rows(hint, self._view.position)))
        elif hint is not None and consequence is HintEffect.MOVED:
            shown = self._view.episode
            self._queue_durable(self._view.move(hint), is_void=self._view.episode != shown)
            self._follow_target()

    def _start(self, reading: Coroutine[None, None, _Applied]) -> None:
        self._reading = asyncio.create_task(reading, name="stream-read")
        self._reading.add_done_callback(lambda _: self._wake_session())

    async def _read(self, at_least: int, *, expects_rows: bool = True) -> _Applied:
        reader, position = self._context.reader, self._view.position
        snapshot = await self._read_with_retries(
            lambda: reader.read(position, at_least=at_least, expects_rows=expects_rows)
        )
        return _Applied(snapshot, is_resync=False)

    async def _reload(self) -> _Applied:
        reader, position = self._context.reader, self._view.position
        return _Applied(await self._read_with_retries(lambda: reader.reload(position)), is_resync=True)

    async def _read_with_retries(self, read: Callable[[], Awaitable[Snapshot]]) -> Snapshot:
        """Repeat the read until the database answers. After half a minute the stream is closed."""
        clock = self._context.clock
        give_up_at = clock.monotonic() + READ_PATIENCE_SECONDS
        for delay in chain(READ_RETRY_SECONDS, repeat(LAST_READ_RETRY_SECONDS)):
            try:
                return await read()
            except ChatNotFound:
                raise StreamEnded(CloseCode.DELETED, DELETED) from None
            except DATABASE_ERRORS as error:
                log.warning("stream_read_failed", chat_id=self.chat_id, error=str(error) or type(error).__name__)
                if clock.monotonic() + delay > give_up_at:
                    raise StreamEnded(CloseCode.NO_DATABASE, "The database does not answer.") from None
            await clock.sleep(delay, "stream-read-retry")
        raise AssertionError("delays never end")

    def _apply(self, reading: asyncio.Task[_Applied]) -> None:
        self._reading = None
        if reading.cancelled():
            raise StreamEnded(CloseCode.SHUTDOWN, "This server is about to stop.")
        applied = reading.result()
        shown = self._view.episode
        durable = self._view.apply(applied.snapshot, is_resync=applied.is_resync)
        self._queue_durable(durable, is_void=applied.is_resync or self._view.episode != shown)
        self._follow_target(from_start=applied.is_resync)

    def _queue_durable(self, durable: list[bytes], *, is_void: bool) -> None:
        """Queue durable events. `is_void`: the preview that was sent so far is invalid."""
        if durable:
            self._outbox.put(durable, cursor=self._view.last_message_id, clears_preview=is_void)
            self._is_lagged = self._is_lagged and not is_void

    # Live parts

    def _follow_target(self, *, from_start: bool = False) -> None:
        """Follow the episode that the last snapshot names. `from_start`: send its parts again from the first one."""
        target = self._view.target
        if target == self._target and not from_start:
            return
        self._target = target
        self._subscribe()

    def _subscribe(self) -> None:
        """Follow the target from the last part that was sent."""
        self._unsubscribe()
        if self._target is None:
            return
        source = self._context.sources.source(self._target.worker_id)
        if source is None:
            return
        try:
            self._subscription = source.subscribe(
                self._target.episode, self._view.last_seq + 1, wake=self._on_parts, take=self._send_part
            )
        except PartBufferError:
            # The owning process is stopping. Problems with the preview never end a stream.
            return

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _move_parts(self) -> None:
        """Move parts from the feed into the outbox.

        Call it only if the outbox is empty, because the feed merges waiting parts.
        """
        if self._is_lagged:
            self._catch_up()
        subscription = self._subscription
        if subscription is None:
            return
        self._show(subscription.pull())
        if subscription.end is not None and subscription is self._subscription:
            self._ended(subscription.end)

    def _show(self, batch: list[PartEvent]) -> None:
        if not batch:
            return
        accepted: list[PartEvent] = []
        step = self._view.accept(batch, accepted)
        self._outbox.show(accepted)
        if self._outbox.is_lagged:
            self._lag()
        elif step is not Step.ON:
            self._resubscribe(step)

    def _resubscribe(self, step: Step) -> None:
        if step is Step.STOP:
            # Subscribing again would find the same gap.
            self._ended(EndReason.TRUNCATED)
            return
        if step is Step.REBASE:
            self._outbox.mark(self._view.restart("rebase"))
        self._subscribe()
        self._wake_session()

    def _ended(self, reason: EndReason) -> None:
        self._unsubscribe()
        if reason is EndReason.TRUNCATED:
            if (event := self._view.truncate()) is not None:
                self._outbox.mark(event)
        elif reason is EndReason.EVICTED:
            self._lag()

    def _lag(self) -> None:
        self._unsubscribe()
        self._outbox.clear_preview()
        self._is_lagged = True
        self._wake_session()

    def _catch_up(self) -> None:
        """Send the merged episode again from its first part, at most once per second."""
        if not self._outbox.is_durable_empty or self._view.episode is None:
            return
        now = self._context.clock.monotonic()
        if self._lagged_at is not None and now - self._lagged_at < LAGGED_SECONDS:
            self._wake_session_later(self._lagged_at + LAGGED_SECONDS - now)
            return
        self._lagged_at = now
        self._is_lagged = False
        self._outbox.mark(self._view.restart("lagged"))
        self._subscribe()

    def _wake_session_later(self, seconds: float) -> None:
        async def rouse() -> None:
            await self._context.clock.sleep(seconds, "stream-lagged")
            self._later = None
            self._wake_session()

        if self._later is None:
            self._later = asyncio.create_task(rouse(), name="stream-lagged")

    def _on_debug(self, hint: MiscHint) -> None:
        run_id = hint.data.get("run_id")
        update = DebugUpdate(str(hint.data.get("kind")), None if run_id is None else str(run_id))
        self._debug_pending.pop(update, None)
        self._debug_pending[update] = None
        if len(self._debug_pending) > MAX_DEBUG_PENDING:
            del self._debug_pending[next(iter(self._debug_pending))]
        self._wake_session()

    def _queue_debug(self) -> None:
        for update in self._debug_pending:
            self._outbox.mark(events.encode(update))
        self._debug_pending.clear()

    def _on_parts(self) -> None:
        # `_wake_session` is not called: only parts are new, so the fast path is enough.
        self._wake()

    def _send_part(self, event: PartEvent) -> bool:
        """Send the next part now, without waking the session, if nothing else is pending and the client is not slow."""
        view, send_now = self._view, self._send_now
        if not self._is_at_rest or send_now is None or event[0] - event[1] != view.last_seq or not send_now(event[2]):
            return False
        view.last_seq = event[0]
        return True

    def _wake_session(self) -> None:
        self._is_at_rest = False
        self._wake()


@dataclass(frozen=True, slots=True)
class _Applied:
    snapshot: Snapshot
    is_resync: bool


def _no_wake() -> None:
    """Do nothing. This is the wake function until a session is attached."""
