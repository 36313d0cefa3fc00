"""A feed: numbered, encoded parts that any number of readers follow, each at its own pace.

A reader is a cursor, not a queue: the writer never waits, and a slow reader costs its own subscription and no
additional memory. The part buffer keeps one feed for each episode; a replica that mirrors another's episode keeps the
same. Used on the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType

from rookery.live import deltas
from rookery.live.deltas import PartEvent
from rookery.runtime.clock import Clock

# A reader further behind than this gets neighboring parts merged.
MERGE_ABOVE_PARTS = 64
# One frame of a link or a socket. Also bounds the work of one merge: at most about 4,000 parts.
MAX_BATCH_BYTES = 256 * 1024


class EndReason(StrEnum):
    """Why a subscription ended: all was read, the feed reached its cap, the reader stalled, or the process stops."""

    CLOSED = "closed"
    TRUNCATED = "truncated"
    EVICTED = "evicted"
    SHUTDOWN = "shutdown"


class Feed:
    """Events in order of `seq`, and their readers. `on_empty` is called when the last reader has left."""

    __slots__ = ("_clock", "_end", "_events", "_idle", "_offsets", "_on_empty", "_seqs", "_subscriptions")

    def __init__(self, clock: Clock, on_empty: Callable[[], None] | None = None) -> None:
        self._clock = clock
        self._on_empty = on_empty
        self._events: list[PartEvent] = []
        self._seqs: list[int] = []
        # Bytes before each event, and after the last.
        self._offsets = [0]
        self._subscriptions: dict[Subscription, None] = {}
        # Readers that have read everything. Only they are woken: the others know that there is more.
        self._idle: dict[Subscription, None] = {}
        self._end: EndReason | None = None

    @property
    def last_seq(self) -> int:
        return self._seqs[-1] if self._seqs else 0

    @property
    def size_bytes(self) -> int:
        return self._offsets[-1]

    @property
    def end(self) -> EndReason | None:
        """The reason of the end, set once nothing more will be added."""
        return self._end

    @property
    def subscriber_count(self) -> int:
        return len(self._subscriptions)

    def append(self, event: PartEvent) -> None:
        """Add the next event and wake waiting readers. The caller numbers events without gaps."""
        self._events.append(event)
        self._seqs.append(event[0])
        self._offsets.append(self._offsets[-1] + len(event[2]))
        if self._idle:
            now = self._clock.monotonic()
            idle, self._idle = self._idle, {}
            for subscription in idle:
                subscription._has_more(now)

    def finish(self, reason: EndReason) -> None:
        """Mark the feed as complete. Readers get the rest, then the reason. The first call counts."""
        if self._end is not None:
            return
        self._end = reason
        for subscription in tuple(self._idle):
            subscription._finish(reason)

    def cut(self, reason: EndReason) -> None:
        """End every subscription now, whether or not it has read everything."""
        self._end = self._end or reason
        for subscription in tuple(self._subscriptions):
            subscription._finish(reason)

    def evict_stalled(self, before: float) -> int:
        """End the subscriptions that have had something to read since `before` and did not read."""
        stalled = [each for each in self._subscriptions if each._is_stalled(before)]
        for subscription in stalled:
            subscription._finish(EndReason.EVICTED)
        return len(stalled)

    def subscribe(self, from_seq: int = 1, *, wake: Callable[[], None] | None = None) -> Subscription:
        """Read from `from_seq` on. Close the subscription after use: `with feed.subscribe() as events`.

        `wake` serves a reader that waits for other things too: it is called, from inside `append`, when there is
        something to `pull` after a pull that emptied the feed, and when the subscription ends.
        """
        if from_seq < 1:
            raise ValueError(f"Parts are numbered from 1; there is no part {from_seq}.")
        subscription = Subscription(self, from_seq, wake)
        self._subscriptions[subscription] = None
        subscription._settle(self._index(from_seq), self._clock.monotonic())
        return subscription

    def _index(self, seq: int) -> int:
        """Return the index of the event that contains this number, or will."""
        return bisect_left(self._seqs, seq)

    def _take(self, start: int) -> tuple[list[PartEvent], int]:
        """Return what to read next from `start`, and where to go on after it."""
        events = self._events
        behind = len(events) - start
        limit = self._offsets[start] + MAX_BATCH_BYTES
        if behind <= MERGE_ABOVE_PARTS and self._offsets[-1] <= limit:
            return events[start:], len(events)
        # A single event over the limit is returned alone.
        stop = max(start + 1, bisect_right(self._offsets, limit) - 1)
        taken = events[start:stop]
        return (deltas.merged(taken) if behind > MERGE_ABOVE_PARTS else taken), stop

    def _remove(self, subscription: Subscription) -> None:
        self._idle.pop(subscription, None)
        del self._subscriptions[subscription]
        if not self._subscriptions and self._on_empty is not None:
            self._on_empty()


class Subscription:
    """One reader: an async iterator of batches, or `pull` for a reader that does its own waiting.

    A wait may be cancelled and repeated; nothing is lost, because only a returned batch moves the cursor.
    """

    __slots__ = ("_end", "_feed", "_is_open", "_next_seq", "_pending_since", "_waiter", "_wake")

    def __init__(self, feed: Feed, from_seq: int, wake: Callable[[], None] | None) -> None:
        self._feed = feed
        self._next_seq = from_seq
        self._wake = wake
        self._waiter: asyncio.Future[None] | None = None
        self._is_open = True
        self._end: EndReason | None = None
        self._pending_since: float | None = None

    @property
    def end(self) -> EndReason | None:
        """Why it ended; None while it goes on, and when the reader closed it."""
        return self._end

    @property
    def has_more(self) -> bool:
        """Whether the last `pull` left something; in that case no wake-up follows."""
        return self._pending_since is not None

    @property
    def next_seq(self) -> int:
        """The number of the first unread part: where a new subscription would go on."""
        return self._next_seq

    def pull(self) -> list[PartEvent]:
        """Return everything to read, up to about 256 KiB; empty when there is nothing now, or nothing more (`end`)."""
        if not self._is_open:
            return []
        feed = self._feed
        batch, stop = feed._take(feed._index(self._next_seq))
        if batch:
            self._next_seq = batch[-1][0] + 1
        self._settle(stop, None)
        return batch

    async def __anext__(self) -> list[PartEvent]:
        while True:
            if batch := self.pull():
                return batch
            if not self._is_open:
                raise StopAsyncIteration
            await self._wait()

    def __aiter__(self) -> Subscription:
        return self

    def close(self) -> None:
        """Leave the feed. A task that waits for this subscription is woken and gets no more parts."""
        self._leave(None)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("A subscription has one reader; subscribe again for another.")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _settle(self, position: int, now: float | None) -> None:
        """Note whether there is more to read at `position`, and end when there never will be."""
        feed = self._feed
        if position < len(feed._events):
            self._pending_since = feed._clock.monotonic() if now is None else now
        elif feed._end is not None:
            self._leave(feed._end)
        else:
            self._pending_since = None
            feed._idle[self] = None

    def _has_more(self, now: float) -> None:
        self._pending_since = now
        self._rouse()

    def _is_stalled(self, before: float) -> bool:
        return self._pending_since is not None and self._pending_since <= before

    def _finish(self, reason: EndReason) -> None:
        if self._is_open:
            self._leave(reason)
            self._rouse()

    def _leave(self, reason: EndReason | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._end = reason
        self._feed._remove(self)
        if reason is None:
            self._wake = None
            self._rouse()

    def _rouse(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._wake is not None:
            self._wake()
