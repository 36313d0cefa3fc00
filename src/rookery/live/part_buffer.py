"""The part buffer: live parts of running steps, numbered, merged and bounded.

Streams read it, and the interrupt task saves its drafts. It is in memory and used on the event loop's thread only;
adding a part never waits. If it is lost, the preview and the unsaved output of interrupted steps are lost, but nothing
committed. The creator of an episode must close it; open episodes are never dropped.

Deltas that can be merged share one number. The first delta of a block, and the first after a tick without text, is
published immediately; the deltas after it are collected until the next tick. This keeps episodes small and tokens
cheap, see benchmarks/live_parts.py.

    PartBufferError
    ├── EpisodeExists, EpisodeNotFound, EpisodeClosed
    ├── EpisodeFull      the size limit was reached; no more parts are published
    └── BufferClosed     this process is stopping
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from sys import getsizeof
from threading import get_ident
from typing import NamedTuple

from rookery.domain.chat import parts
from rookery.domain.chat.interrupted_step import LivePart
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import Part, ToolResult
from rookery.live import deltas
from rookery.live.feeds import EndReason, Feed, Subscription, Take
from rookery.runtime.clock import Clock
from rookery.runtime.shared_tick import SharedTick
from rookery.telemetry.log import get_logger

log = get_logger("live.part_buffer")

# The interval of the sweep, which finds stalled readers. A pass reads a few hundred episodes.
SWEEP_SECONDS = 1.0


class EpisodeKey(NamedTuple):
    """Identifies one attempt at one step of a chat. Attempts are counted from 1."""

    chat_id: ChatId
    history_version: int
    generation_attempt: int


class PartBufferError(Exception):
    """Base class of the part buffer's errors. A generation continues after these errors."""


class EpisodeExists(PartBufferError):
    def __init__(self, key: EpisodeKey) -> None:
        self.key = key
        super().__init__(f"The {_name(key)} already exists; its attempt has begun or was interrupted.")


class EpisodeNotFound(PartBufferError):
    def __init__(self, key: EpisodeKey) -> None:
        self.key = key
        super().__init__(f"There is no {_name(key)} in this process.")


class EpisodeClosed(PartBufferError):
    def __init__(self, key: EpisodeKey) -> None:
        self.key = key
        super().__init__(f"The {_name(key)} is closed; nothing can be added to it.")


class EpisodeFull(PartBufferError):
    def __init__(self, key: EpisodeKey) -> None:
        self.key = key
        super().__init__(f"The {_name(key)} is full; the rest is shown when it is committed.")


class BufferClosed(PartBufferError):
    def __init__(self) -> None:
        super().__init__("This process is stopping; its part buffer is closed.")


def _name(key: EpisodeKey) -> str:
    return f"episode of chat {key.chat_id}, history version {key.history_version}, attempt {key.generation_attempt}"


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Limits of the part buffer: size and age of episodes, and the merging of deltas."""

    episode_max_bytes: int = 4 * 1024 * 1024
    episode_retention_seconds: float = 15.0
    # Limit of all closed episodes together. The oldest episodes without readers are dropped first.
    closed_max_bytes: int = 64 * 1024 * 1024
    subscriber_stall_seconds: float = 10.0
    merge_chars: int = 512


@dataclass(frozen=True, slots=True)
class PartBufferStats:
    """Numbers of the part buffer. `episodes` includes awaited and closed ones.

    `dropped` counts the parts that were not published, and `evicted` the readers that stalled, since the start of the
    process.
    """

    episodes: int
    open_episodes: int
    subscribers: int
    size_bytes: int
    dropped: int
    evicted: int


class _State(Enum):
    AWAITED = "awaited"  # has subscribers only
    OPEN = "open"
    CLOSED = "closed"


class Episode:
    """The parts of one attempt, made by `PartBuffer.create_episode`.

    `_live` holds the complete parts, which an interruption saves. The feed holds the events that clients may see.
    """

    __slots__ = (
        "_buffer",
        "_chars",
        "_feed",
        "_is_collecting",
        "_is_full",
        "_last_seq",
        "_limits",
        "_live",
        "_merge_base",
        "_pending",
        "_role",
        "_size_bytes",
        "_state",
        "_thread",
        "_unshown_bytes",
        "_was_created",
        "closed_at",
        "key",
        "model_invoked_at",
    )

    def __init__(self, key: EpisodeKey, buffer: PartBuffer) -> None:
        self.key = key
        self.model_invoked_at: datetime | None = None
        self.closed_at: float | None = None
        self._buffer = buffer
        self._limits = buffer._limits
        self._thread = buffer._thread
        # Copies of the feed's values, because they are read for every token.
        self._last_seq = 0
        self._size_bytes = 0
        self._is_full = False
        self._unshown_bytes = 0
        # The callback gets the key. A reference to the episode would be a reference cycle, which the garbage collector
        # would free much later.
        self._feed = Feed(buffer._clock, partial(buffer._on_last_unsubscribed, key))
        self._live: list[LivePart] = []
        self._state = _State.AWAITED
        self._was_created = False
        # The unnumbered pieces, and the part that they are merged with. That is the first of them, or the last
        # published piece if there are none. They are collected from a published piece until the next tick.
        self._is_collecting = False
        self._pending: list[str] = []
        self._chars = 0
        self._merge_base: Part | None = None
        self._role = Role.ASSISTANT

    def add_part(self, role: Role, part: Part) -> int:
        """Publish the part, now or at the next tick, and return its number.

        Merged pieces have the same number. Raise `EpisodeClosed`, `EpisodeFull` or `BufferClosed`. A generation
        continues after these errors.
        """
        assert get_ident() == self._thread, "the part buffer belongs to the event loop's thread"
        if self._state is not _State.OPEN:
            raise self._refusal()
        text = deltas.piece(part)
        if text is None:
            self._add_whole(role, part)
        elif role is self._role and self._merge_base is not None and deltas.continues(self._merge_base, part):
            self._collect(part, text)
        else:
            self.flush()
            # An empty piece only announces a block. The first text after it is published without delay.
            self._merge_base = part if text else None
            self._role = role
            self._publish(role, part, shown=part)
        if self._is_full:
            self._buffer._dropped += 1
            raise EpisodeFull(self.key)
        return self._last_seq + 1 if self._pending else self._last_seq

    def flush(self) -> None:
        """Number and publish the collected pieces."""
        if not self._pending:
            return
        assert self._merge_base is not None, "pending pieces have a first one"
        part = self._merge_base if len(self._pending) == 1 else deltas.joined(self._merge_base, "".join(self._pending))
        self._pending.clear()
        self._chars = 0
        self._publish(self._role, part, shown=part)

    def draft(self) -> tuple[LivePart, ...] | None:
        """Return all parts so far; None if no generation of this process created the episode."""
        self.flush()
        return tuple(self._live) if self._was_created else None

    @property
    def held_bytes(self) -> int:
        """The approximate size in memory of the parts and their encoded form."""
        return 2 * self._size_bytes + self._unshown_bytes

    def _open(self) -> None:
        if self._state is not _State.AWAITED:
            raise EpisodeExists(self.key)
        self._state = _State.OPEN
        self._was_created = True

    def _close(self, at: float) -> None:
        if self._state is _State.CLOSED:
            return
        self.flush()
        self._stop()
        self.closed_at = at
        self._feed.finish(EndReason.CLOSED)

    def _cut(self) -> None:
        self._stop()
        self._feed.cut(EndReason.SHUTDOWN)

    def _stop(self) -> None:
        self._state = _State.CLOSED
        if self._is_collecting:
            self._is_collecting = False
            self._buffer._tick.forget(self._on_tick)

    def _refusal(self) -> PartBufferError:
        if self._buffer._is_closed:
            return BufferClosed()
        return EpisodeClosed(self.key) if self._state is _State.CLOSED else EpisodeNotFound(self.key)

    def _collect(self, part: Part, text: str) -> None:
        if not self._pending:
            self._merge_base = part
            if not self._is_collecting:
                self._publish(self._role, part, shown=part)
                return
        self._pending.append(text)
        self._chars += len(text)
        if self._chars >= self._limits.merge_chars:
            self.flush()

    def _on_tick(self) -> None:
        self._is_collecting = False
        self.flush()

    def _add_whole(self, role: Role, part: Part) -> None:
        self.flush()
        self._merge_base = None
        for shown in parts.client_view((part,)):
            self._publish(role, part, shown=shown)

    def _publish(self, role: Role, part: Part, *, shown: Part) -> None:
        if not self._is_collecting and self._state is _State.OPEN:
            self._is_collecting = True
            self._buffer._tick.at_next(self._on_tick)
        if self._is_full:
            # The draft still grows, because an interruption saves it. The live output of tools is left out, because it
            # is unlimited and never saved.
            if not (isinstance(part, ToolResult) and part.result_delta is not None):
                self._live.append(LivePart(role, part))
                self._unshown_bytes += getsizeof(deltas.piece(part) or "")
            return
        self._live.append(LivePart(role, part))
        seq = self._last_seq + 1
        data = deltas.encode(seq, role, shown)
        size = self._size_bytes + len(data)
        if size > self._limits.episode_max_bytes:
            log.warning("episode_full", chat_id=str(self.key.chat_id), parts=seq - 1, size_bytes=self._size_bytes)
            self._is_full = True
            self._feed.finish(EndReason.TRUNCATED)
            return
        self._last_seq = seq
        self._size_bytes = size
        self._feed.append((seq, 1, data))


class PartBuffer:
    """All episodes of a process. Create it on the event loop, run `run` in a task, and `close` it at the end."""

    def __init__(self, clock: Clock, *, limits: PartLimits | None = None, tick: SharedTick | None = None) -> None:
        self._clock = clock
        self._limits = limits or PartLimits()
        self._tick = tick or SharedTick()
        self._thread = get_ident()
        self._episodes: dict[EpisodeKey, Episode] = {}
        # Closed episodes, in the order of their end.
        self._closed: dict[EpisodeKey, Episode] = {}
        self._is_closed = False
        self._dropped = 0
        self._evicted = 0

    def create_episode(self, key: EpisodeKey) -> Episode:
        """Open an episode, which may already have subscribers. Raise `EpisodeExists` if it is open or was closed."""
        self._check()
        self._collect()
        episode = self._episodes.get(key) or self._add(key)
        episode._open()
        return episode

    def add_part(self, key: EpisodeKey, role: Role, *, part: Part) -> int:
        """Call `Episode.add_part` by key."""
        return self._get(key).add_part(role, part)

    def close_episode(self, key: EpisodeKey) -> tuple[LivePart, ...] | None:
        """Close the episode and return its draft; None if no generation of this process created it. Idempotent.

        An unknown key is closed as well, so that a late generation cannot open it.
        """
        self._check()
        episode = self._episodes.get(key) or self._add(key)
        if episode.closed_at is None:
            self._closed[key] = episode
            episode._close(self._clock.monotonic())
        return episode.draft()

    def get_parts(self, key: EpisodeKey) -> tuple[LivePart, ...]:
        """Return the merged parts of an episode so far."""
        self._check()
        self._collect()
        draft = self._get(key).draft()
        return draft or ()

    def start_model_invocation(self, key: EpisodeKey) -> None:
        """Record that the model's stream is being opened now."""
        episode = self._get(key)
        if episode._state is not _State.OPEN:
            raise episode._refusal()
        episode.model_invoked_at = self._clock.now()

    def model_invoked_at(self, key: EpisodeKey) -> datetime | None:
        """Return when the model's stream was opened; None if it was not. Call this before the episode is closed."""
        self._check()
        episode = self._episodes.get(key)
        return None if episode is None else episode.model_invoked_at

    def subscribe(
        self, key: EpisodeKey, from_seq: int = 1, *, wake: Callable[[], None] | None = None, take: Take | None = None
    ) -> Subscription:
        """Replay an episode from a number on, and then follow it. The episode need not exist yet.

        See `Feed.subscribe`. Always close the subscription: an episode that was never created is dropped with its last
        subscriber.
        """
        self._check()
        known = self._episodes.get(key)
        episode = known or Episode(key, self)
        subscription = episode._feed.subscribe(from_seq, wake=wake, take=take)
        if known is None:
            self._episodes[key] = episode
        return subscription

    async def run(self) -> None:
        """Sweep until the buffer is closed."""
        while not self._is_closed:
            await self._clock.sleep(SWEEP_SECONDS, "part-sweep")
            if not self._is_closed:
                self.sweep()

    def sweep(self) -> None:
        """End the subscriptions of stalled readers. Drop closed episodes that are too old or exceed the size limit."""
        self._check()
        before = self._clock.monotonic() - self._limits.subscriber_stall_seconds
        for episode in tuple(self._episodes.values()):
            self._evicted += episode._feed.evict_stalled(before)
        self._collect()
        excess = sum(episode.held_bytes for episode in self._closed.values()) - self._limits.closed_max_bytes
        for episode in tuple(self._closed.values()):
            if excess <= 0:
                break
            if not episode._feed.subscriber_count:
                excess -= episode.held_bytes
                self._drop(episode)

    def close(self) -> None:
        """End all subscriptions. Later calls of other methods raise `BufferClosed`."""
        if self._is_closed:
            return
        self._check()
        self._is_closed = True
        for episode in tuple(self._episodes.values()):
            episode._cut()
        self._episodes.clear()
        self._closed.clear()

    def stats(self) -> PartBufferStats:
        episodes = self._episodes.values()
        return PartBufferStats(
            episodes=len(episodes),
            open_episodes=sum(episode._state is _State.OPEN for episode in episodes),
            subscribers=sum(episode._feed.subscriber_count for episode in episodes),
            size_bytes=sum(episode._feed.size_bytes for episode in episodes),
            dropped=self._dropped,
            evicted=self._evicted,
        )

    def _check(self) -> None:
        assert get_ident() == self._thread, "the part buffer belongs to the event loop's thread"
        if self._is_closed:
            raise BufferClosed

    def _add(self, key: EpisodeKey) -> Episode:
        episode = self._episodes[key] = Episode(key, self)
        return episode

    def _get(self, key: EpisodeKey) -> Episode:
        self._check()
        episode = self._episodes.get(key)
        if episode is None or episode._state is _State.AWAITED:
            raise EpisodeNotFound(key)
        return episode

    def _collect(self) -> None:
        before = self._clock.monotonic() - self._limits.episode_retention_seconds
        for episode in tuple(self._closed.values()):
            if episode.closed_at is not None and episode.closed_at > before:
                return  # the episodes after this one were closed later
            if not self._is_kept(episode):
                self._drop(episode)

    def _is_kept(self, episode: Episode) -> bool:
        if episode._feed.subscriber_count:
            return True
        if episode.closed_at is None:
            return episode._state is _State.OPEN
        return self._clock.monotonic() - episode.closed_at < self._limits.episode_retention_seconds

    def _on_last_unsubscribed(self, key: EpisodeKey) -> None:
        """Drop the episode if it is not needed without subscribers."""
        episode = self._episodes.get(key)
        if episode is not None and not self._is_kept(episode):
            self._drop(episode)

    def _drop(self, episode: Episode) -> None:
        if self._episodes.get(episode.key) is episode:
            del self._episodes[episode.key]
            self._closed.pop(episode.key, None)
