"""Hints over LISTEN and NOTIFY: `Bus` delivers them in the process, `Notifier` sends them, `Listener` receives them.

Hints are published after the commit, not in the transaction, because a NOTIFY in a transaction serializes the commits
of the whole server. Delivery is not reliable. A receiver that misses a hint reads the row at the next resync or poll.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from rookery.runtime.clock import Clock, DeadlineExceeded, SystemClock
from rookery.store.db.errors import StoreError
from rookery.store.db.hints import (
    CHANNELS,
    WIRE_VERSION,
    AccessHint,
    ChatHint,
    ConfigHint,
    Hint,
    MiscHint,
    OwnershipHint,
    WatchHint,
)
from rookery.store.db.pool import LAST_RECONNECT_SECONDS, ConnectionLost, raise_when_lost, reconnect_delays
from rookery.telemetry.histogram import Histogram, exponential
from rookery.telemetry.log import get_logger

log = get_logger("store.db.pubsub")

MAX_PAYLOAD_BYTES = 7900  # PostgreSQL refuses 8,000
MAX_BATCH = 256
SEND_TIMEOUT_SECONDS = 5.0
GATHER_SECONDS = 0.02  # chosen: about the time of the commits before the first token of an answer
CHECK_INTERVAL_SECONDS, CHECK_TIMEOUT_SECONDS = 10.0, 5.0
PROBE_INTERVAL_SECONDS, PROBE_TIMEOUT_SECONDS = 60.0, 5.0

# A hint need not survive a crash, so the commit of the notification does not wait for the disk.
NOTIFY = """
      WITH lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
    SELECT pg_notify(c, p)
      FROM lazily, unnest($1::text[], $2::text[]) AS hints(c, p)
"""

H = TypeVar("H", bound=Hint)
Key = UUID | str
Group = tuple[type[msgspec.Struct], Key | None]
Callbacks = dict[int, Callable[[Any], None]]  # in the order of subscription; removed in constant time

KINDS: dict[str, type[Hint]] = {channel: kind for kind, channel in CHANNELS.items()}
DECODERS = {channel: msgspec.json.Decoder(kind) for channel, kind in KINDS.items()}
LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
ENCODER = msgspec.json.Encoder()


class OversizedHint(ValueError):
    """Raised if a single hint is too long for a notification. Its definition is wrong."""


class Subscription:
    """A subscription. `close` ends it, and may be called more than once and in the callback."""

    __slots__ = ("_close",)

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


class Bus:
    """Delivers hints to subscribers in this process.

    Callbacks run in the task of the publisher or listener, so they must not block: they store the hint or set an event.
    The cost of a hint depends only on the number of its subscribers.
    """

    def __init__(self) -> None:
        self._subscribers: dict[Group, Callbacks] = {}
        self._resync: Callbacks = {}
        self._numbers = count()

    def subscribe(self, kind: type[H], callback: Callable[[H], None], *, key: Key | None = None) -> Subscription:
        """Subscribe to hints of one kind. If `key` is given, only to those with this key (see `keys_of`)."""
        number = next(self._numbers)
        group: Group = (kind, key)
        self._subscribers.setdefault(group, {})[number] = callback

        def close() -> None:
            callbacks = self._subscribers.get(group, {})
            # Empty groups are removed, because there is one for each chat.
            if callbacks.pop(number, None) is not None and not callbacks:
                del self._subscribers[group]

        return Subscription(close)

    def on_resync(self, callback: Callable[[], None]) -> Subscription:
        """Subscribe to resyncs. After a resync, all rows have to be read again, because hints may have been lost."""
        number = next(self._numbers)
        self._resync[number] = lambda _: callback()

        def close() -> None:
            self._resync.pop(number, None)

        return Subscription(close)

    def dispatch(self, hint: Hint) -> None:
        kind = type(hint)
        for key in (None, *keys_of(hint)):
            if callbacks := self._subscribers.get((kind, key)):
                self._call(callbacks, hint)

    def resync(self) -> None:
        self._call(self._resync, None)

    def stats(self) -> dict[str, int]:
        """Return the number of subscriptions of each kind."""
        totals: Counter[str] = Counter(resync=len(self._resync))
        for (kind, _), callbacks in self._subscribers.items():
            totals[kind.__name__] += len(callbacks)
        return dict(totals)

    def _call(self, callbacks: Callbacks, hint: Hint | None) -> None:
        for callback in tuple(callbacks.values()):  # a copy, because callbacks subscribe and unsubscribe
            try:
                callback(hint)
            except Exception as error:
                log.exception("hint_callback_failed", error, kind=type(hint).__name__)


def keys_of(hint: Hint) -> Sequence[Key]:
    """Return the keys of a hint: its chat, the users to notify, its topic, or its kind."""
    match hint:
        case ChatHint(chat_id=chat_id) | OwnershipHint(chat_id=chat_id):
            return (chat_id,)
        case WatchHint(user_id=user_id, users=users):
            return (user_id, *(user for user in dict.fromkeys(users) if user != user_id)) if users else (user_id,)
        case MiscHint(topic=topic):
            return (topic,)
        case ConfigHint(kind=kind) | AccessHint(kind=kind):
            return (kind,)


def decode(channel: str, payload: str) -> tuple[list[Hint], int]:
    """Return the hints of a notification, and the number of entries that cannot be decoded and are skipped.

    Other versions of Rookery and other clients of the database may write to these channels.
    """
    decoder = DECODERS.get(channel)
    if decoder is None:
        return [], 1
    try:
        entries = LIST_DECODER.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return [], 1
    found: list[Hint] = []
    for entry in entries:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            hint = decoder.decode(entry)
            if hint.v == WIRE_VERSION:
                found.append(hint)
    return found, len(entries) - len(found)


def split_payloads(hints: Iterable[bytes]) -> Iterator[str]:
    """Yield JSON lists of encoded hints, each short enough for one notification, in the given order."""
    batch: list[bytes] = []
    size = 1  # two brackets, less one comma
    for hint in hints:
        if batch and size + len(hint) + 1 > MAX_PAYLOAD_BYTES:
            yield _as_list(batch)
            batch, size = [], 1
        batch.append(hint)
        size += len(hint) + 1
    if batch:
        yield _as_list(batch)


def _as_list(hints: Sequence[bytes]) -> str:
    return f"[{b','.join(hints).decode()}]"


@dataclass(slots=True)
class NotifierStats:
    published: int = 0
    coalesced: int = 0  # replaced by a newer hint of the same chat before they were sent
    sent: int = 0
    statements: int = 0
    failed: int = 0  # hints in statements that failed
    oversized: int = 0
    sent_by_channel: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    batch_sizes: Histogram = field(default_factory=lambda: Histogram(exponential(1, 2, 9)))  # hints in a statement


class Notifier:
    """Publishes the hints of this process. `publish` does not block. Hints that are published while a statement runs
    are sent by the next one.

    If `is_alone` returns True, no other replica waits for the hints. They are collected for a moment, so that a turn
    needs one or two statements, not one for each commit.

    With `strict`, for tests, a hint that is too long raises an error. Otherwise it is logged and dropped.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        bus: Bus,
        *,
        strict: bool = False,
        is_alone: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self._pool = pool
        self._bus = bus
        self._strict = strict
        self._is_alone = is_alone
        self._clock = clock or SystemClock()
        self._pending: dict[UUID | int, tuple[str, bytes, int]] = {}  # channel, encoded hint, snapshot version
        self._numbers = count()
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._sending = asyncio.Lock()
        self._closed = False
        self._stats = NotifierStats()

    def publish(self, hints: Iterable[Hint], *, local: bool = True) -> None:
        """Deliver hints in this process immediately, and send them to all replicas soon. Call it after the commit.

        It does not block, and does not raise. PostgreSQL also returns the hints to this process; receivers compare
        versions. Without `local`, hints are delivered only by PostgreSQL, and are sent without delay.
        """
        hints = tuple(hints)
        for hint in hints:
            if local:
                self._bus.dispatch(hint)
        for hint in hints:
            self._enqueue(hint)
        if not local:
            self._hurry.set()
        if self._pending:
            self._wake.set()

    async def run(self) -> None:
        """Send hints until `close` is called."""
        while not self._closed:
            await self._wake.wait()
            if self._is_alone() and not self._closed:
                await self._gather()
            await self.flush()

    async def _gather(self) -> None:
        with contextlib.suppress(DeadlineExceeded):
            async with self._clock.deadline(GATHER_SECONDS, "gather-hints"):
                await self._hurry.wait()

    async def flush(self) -> None:
        """Wait until all published hints have been sent or have failed."""
        async with self._sending:
            while batch := self._take():
                await self._send(batch)

    async def close(self) -> None:
        """Send the pending hints and end `run`. Later hints are delivered in this process only."""
        self._closed = True
        self._hurry.set()
        self._wake.set()
        await self.flush()

    def stats(self) -> NotifierStats:
        return self._stats

    def _enqueue(self, hint: Hint) -> None:
        if self._closed:
            return
        encoded = ENCODER.encode(hint)
        if len(encoded) + 2 > MAX_PAYLOAD_BYTES:
            self._stats.oversized += 1
            if self._strict:
                raise OversizedHint(f"{type(hint).__name__} takes {len(encoded)} bytes, too many for a notification.")
            log.error("hint_too_long", kind=type(hint).__name__, bytes=len(encoded))
            return
        self._stats.published += 1
        key: UUID | int = next(self._numbers)
        version = 0
        if isinstance(hint, ChatHint):
            key, version = hint.chat_id, hint.snapshot_version
            if waiting := self._pending.get(key):
                self._stats.coalesced += 1
                # Hints of two commits may arrive in the wrong order. The newer hint replaces the older one.
                if waiting[2] > version:
                    return
        self._pending[key] = (CHANNELS[type(hint)], encoded, version)

    def _take(self) -> list[tuple[str, bytes]]:
        self._wake.clear()
        self._hurry.clear()
        keys = [key for key, _ in zip(self._pending, range(MAX_BATCH), strict=False)]
        return [self._pending.pop(key)[:2] for key in keys]

    async def _send(self, batch: Sequence[tuple[str, bytes]]) -> None:
        by_channel: dict[str, list[bytes]] = {}
        for channel, encoded in batch:
            by_channel.setdefault(channel, []).append(encoded)
        messages = [(channel, payload) for channel, hints in by_channel.items() for payload in split_payloads(hints)]
        channels, payloads = zip(*messages, strict=True)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                await self._pool.execute(NOTIFY, channels, payloads)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            # Not raised: the changes are committed, and pollers find them.
            self._stats.failed += len(batch)
            log.warning("hints_not_sent", hints=len(batch), error=str(error) or type(error).__name__)
            return
        self._stats.sent += len(batch)
        self._stats.statements += 1
        self._stats.batch_sizes.observe(len(batch))
        self._stats.sent_bytes += sum(map(len, payloads))
        for channel, hints in by_channel.items():
            self._stats.sent_by_channel[channel] += len(hints)


@dataclass(slots=True)
class ListenerStats:
    received: Counter[str]  # hints by channel
    ignored: int = 0
    connections: int = 0
    received_bytes: int = 0


class Listener:
    """Receives the hints of all replicas on its own connection, and reconnects after a failure.

    After each connect, all subscribers resync, because hints may have been lost before.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        bus: Bus,
        *,
        clock: Clock,
        rng: Random,
        check_timeout_seconds: float = CHECK_TIMEOUT_SECONDS,
    ) -> None:
        self._connect = connect
        self._check_timeout_seconds = check_timeout_seconds
        self._bus = bus
        self._clock = clock
        self._rng = rng
        self._up = asyncio.Event()
        self._down_since = clock.monotonic()
        self._stats = ListenerStats(Counter())

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    def down_seconds(self) -> float:
        """Return the time since the connection was lost; 0 while connected."""
        return 0.0 if self.connected else self._clock.monotonic() - self._down_since

    async def wait_connected(self) -> None:
        await self._up.wait()

    def stats(self) -> ListenerStats:
        return self._stats

    async def run(self) -> NoReturn:
        """Receive hints until cancelled."""
        delays = reconnect_delays(self._rng)
        while True:
            started = self._clock.monotonic()
            try:
                await self._listen()
            except* (ConnectionLost, StoreError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as group:
                first = group.exceptions[0]
                log.warning("listener_lost", error=str(first) or type(first).__name__)
            if self._clock.monotonic() - started > LAST_RECONNECT_SECONDS:
                delays = reconnect_delays(self._rng)
            await self._clock.sleep(next(delays), "listen-reconnect")

    async def _listen(self) -> None:
        connection = await self._connect()
        lost = asyncio.Event()

        def mark_down(_: object = None) -> None:
            lost.set()
            if self._up.is_set():
                self._up.clear()
                self._down_since = self._clock.monotonic()

        connection.add_termination_listener(mark_down)
        try:
            for channel in KINDS:
                await connection.add_listener(channel, self._receive)
            self._up.set()
            self._stats.connections += 1
            self._bus.resync()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._check(connection), name="listener-check")
                group.create_task(raise_when_lost(lost), name="listener-lost")
        finally:
            mark_down()
            connection.terminate()

    async def _check(self, connection: asyncpg.Connection) -> NoReturn:
        """Send a query from time to time. A lost network is noticed only by a missing answer."""
        while True:
            await self._clock.sleep(CHECK_INTERVAL_SECONDS, "listen-check")
            await connection.execute("SELECT 1", timeout=self._check_timeout_seconds)

    def _receive(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        hints, ignored = decode(channel, str(payload))
        self._stats.received[channel] += len(hints)
        self._stats.received_bytes += len(str(payload))
        if ignored:
            self._stats.ignored += ignored
            log.debug("hints_ignored", channel=channel, count=ignored)
        for hint in hints:
            self._bus.dispatch(hint)


class NotifyProbe:
    """Sends a hint to itself through PostgreSQL every minute and measures its latency.

    `deaf`: the hint did not arrive, although the connections seem to work. Pollers then poll more often, and the probe
    is sent every five seconds. When hints arrive again, all subscribers resync.
    """

    def __init__(self, notifier: Notifier, bus: Bus, *, replica_id: UUID, clock: Clock) -> None:
        self.deaf = False
        self.latency_seconds: float | None = None
        self.latencies = Histogram()
        self._notifier = notifier
        self._bus = bus
        self._clock = clock
        self._topic = f"probe:{replica_id}"
        self._number = 0
        self._sent_at: float | None = None  # None after the last probe was received

    async def run(self) -> NoReturn:
        """Send probes until cancelled."""
        with self._bus.subscribe(MiscHint, self._receive, key=self._topic):
            while True:
                self._send()
                await self._clock.sleep(PROBE_TIMEOUT_SECONDS, "notify-probe-answer")
                if self._sent_at is not None:
                    if not self.deaf:
                        log.warning("replica_is_deaf", seconds=PROBE_TIMEOUT_SECONDS)
                    self.deaf = True
                    continue
                await self._clock.sleep(PROBE_INTERVAL_SECONDS - PROBE_TIMEOUT_SECONDS, "notify-probe")

    def _send(self) -> None:
        self._number += 1
        self._sent_at = self._clock.monotonic()
        # Not `local`, because the path through PostgreSQL is measured.
        self._notifier.publish([MiscHint(topic=self._topic, data={"number": self._number})], local=False)

    def _receive(self, hint: MiscHint) -> None:
        if hint.data.get("number") != self._number or self._sent_at is None:
            return
        self.latency_seconds = self._clock.monotonic() - self._sent_at
        self.latencies.observe(self.latency_seconds)
        self._sent_at = None
        if self.deaf:
            self.deaf = False
            log.info("replica_hears_again")
            self._bus.resync()
