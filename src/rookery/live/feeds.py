"""A feed: numbered, encoded parts that any number of readers follow, each at its own pace.

A reader is a cursor and has no queue, so the writer never waits and a slow reader needs no memory. The part buffer has
one feed per episode, and a replica that relays an episode of another replica has one as well. Feeds are used on the
event loop's thread only.
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

# A reader with more unread parts than this receives them merged.
MERGE_ABOVE_PARTS = 64
# The size of one batch, which becomes one frame. It also limits one merge to about 4,000 parts.
MAX_BATCH_BYTES = 256 * 1024


# Offers an event to a reader that has read everything before it. Returns whether the reader took it. It must not change
# the subscriptions of the feed.
Take = Callable[[PartEvent], bool]


class EndReason(StrEnum):
    """The reason why a subscription ended.

    `closed`: everything was read. `truncated`: the feed reached its size limit. `evicted`: the reader stalled.
    `shutdown`: the process is stopping.
    """

    CLOSED = "closed"
    TRUNCATED = "truncated"
    EVICTED = "evicted"
    SHUTDOWN = "shutdown"


class Feed:
    """Events in the order of `seq`, and their readers. `on_empty` is called when the last reader has left."""

    __slots__ = ("_clock", "_end", "_events", "_idle", "_offsets", "_on_empty", "_seqs", "_subscriptions")

    def __init__(self, clock: Clock, on_empty: Callable[[], None] | None = None) -> None:
        self._clock = clock
        self._on_empty = on_empty
        self._events: list[PartEvent] = []
        self._seqs: list[int] = []
        # The number of bytes before each event; the last item is the total.
        self._offsets = [0]
        self._subscriptions: dict[Subscription, None] = {}
        # Readers that have read everything. Only they are notified of new events.
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
        """The reason of the end; None while events may be added."""
        return self._end

    @property
    def subscriber_count(self) -> int:
        return len(self._subscriptions)

    def append(self, event: PartEvent) -> None:
        """Add the next event and notify idle readers. The caller numbers the events without gaps."""
        self._events.append(event)
        self._seqs.append(event[0])
        self._offsets.append(self._offsets[-1] + len(event[2]))
        if self._idle:
            late = [subscription for subscription in self._idle if not subscription._takes(event)]
            if late:
                now = self._clock.monotonic()
                for subscription in late:
                    # An earlier one may have closed it.
                    if self._idle.pop(subscription, subscription) is None:
                        subscription._has_more(now)

    def finish(self, reason: EndReason) -> None:
        """Mark the feed as complete. Readers get the remaining events and then the reason. The first call counts."""
        if self._end is not None:
            return
        self._end = reason
        for subscription in tuple(self._idle):
            subscription._finish(reason)

    def cut(self, reason: EndReason) -> None:
        """End every subscription now, even if it has unread events."""
        self._end = self._end or reason
        for subscription in tuple(self._subscriptions):
            subscription._finish(reason)

    def evict_stalled(self, before: float) -> int:
        """End the subscriptions that have had unread events since `before`. Return their number."""
        stalled = [each for each in self._subscriptions if each._is_stalled(before)]
        for subscription in stalled:
            subscription._finish(EndReason.EVICTED)
        return len(stalled)

    def subscribe(
        self, from_seq: int = 1, *, wake: Callable[[], None] | None = None, take: Take | None = None
    ) -> Subscription:
        """Subscribe from `from_seq` on. Close the subscription after use: `with feed.subscribe() as events`.

        A reader that waits for several sources passes `wake`. It is called when a new event arrives after a `pull` that
        left nothing unread, and when the subscription ends. Before that, a single new event is offered to `take`. If it
        returns True, the event counts as read.
        """
        if from_seq < 1:
            raise ValueError(f"Parts are numbered from 1; there is no part {from_seq}.")
        subscription = Subscription(self, from_seq, wake, take)
        self._subscriptions[subscription] = None
        subscription._update_pending(self._index(from_seq), self._clock.monotonic())
        return subscription

    def _index(self, seq: int) -> int:
        """Return the index of the event that contains this number, or will contain it."""
        return bisect_left(self._seqs, seq)

    def _take(self, start: int) -> tuple[list[PartEvent], int]:
        """Return the next batch from index `start`, and the index after it."""
        events = self._events
        behind = len(events) - start
        limit = self._offsets[start] + MAX_BATCH_BYTES
        if behind <= MERGE_ABOVE_PARTS and self._offsets[-1] <= limit:
            return events[start:], len(events)
        # An event that alone exceeds the limit is returned alone.
        stop = max(start + 1, bisect_right(self._offsets, limit) - 1)
        taken = events[start:stop]
        return (deltas.merged(taken) if behind > MERGE_ABOVE_PARTS else taken), stop

    def _remove(self, subscription: Subscription) -> None:
        self._idle.pop(subscription, None)
        del self._subscriptions[subscription]
        if not self._subscriptions and self._on_empty is not None:
            self._on_empty()


class Subscription:
    """One reader of a feed: an async iterator of batches, or `pull` for a reader that waits by itself.

    A wait may be cancelled and repeated without loss, because only a returned batch moves the cursor.
    """

    __slots__ = ("_end", "_feed", "_is_open", "_next_seq", "_pending_since", "_take", "_waiter", "_wake")

    def __init__(self, feed: Feed, from_seq: int, wake: Callable[[], None] | None, take: Take | None) -> None:
        self._feed = feed
        self._next_seq = from_seq
        self._wake = wake
        self._take = take
        self._waiter: asyncio.Future[None] | None = None
        self._is_open = True
        self._end: EndReason | None = None
        self._pending_since: float | None = None

    @property
    def end(self) -> EndReason | None:
        """The reason of the end; None while the subscription is open, or if the reader closed it."""
        return self._end

    @property
    def has_more(self) -> bool:
        """Whether the last `pull` left unread events. If so, `wake` is not called for them."""
        return self._pending_since is not None

    @property
    def next_seq(self) -> int:
        """The number of the first unread part."""
        return self._next_seq

    def pull(self) -> list[PartEvent]:
        """Return the unread events, up to about 256 KiB. Empty if there are none; then check `end`."""
        if not self._is_open:
            return []
        feed = self._feed
        batch, stop = feed._take(feed._index(self._next_seq))
        if batch:
            self._next_seq = batch[-1][0] + 1
        self._update_pending(stop, None)
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
        """End the subscription. A task that waits for it is woken and gets no more parts."""
        self._end_with(None)

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

    def _update_pending(self, position: int, now: float | None) -> None:
        """Update whether there are unread events at `position`. End the subscription if the feed is complete."""
        feed = self._feed
        if position < len(feed._events):
            self._pending_since = feed._clock.monotonic() if now is None else now
        elif feed._end is not None:
            self._end_with(feed._end)
        else:
            self._pending_since = None
            feed._idle[self] = None

    def _takes(self, event: PartEvent) -> bool:
        if self._take is None or event[0] < self._next_seq or not self._take(event):
            return False
        self._next_seq = event[0] + 1
        return True

    def _has_more(self, now: float) -> None:
        self._pending_since = now
        self._notify()

    def _is_stalled(self, before: float) -> bool:
        return self._pending_since is not None and self._pending_since <= before

    def _finish(self, reason: EndReason) -> None:
        if self._is_open:
            self._end_with(reason)
            self._notify()

    def _end_with(self, reason: EndReason | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._end = reason
        self._feed._remove(self)
        if reason is None:
            self._wake = None
            self._take = None
            self._notify()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._wake is not None:
            self._wake()
