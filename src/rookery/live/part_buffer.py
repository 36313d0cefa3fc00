"""The part buffer: live parts of running steps, numbered, merged and bounded.

Viewers read it, and an interruption saves its drafts. It is in memory and used on the event loop's thread only; adding
a part never waits. Losing it costs the preview and the uncommitted output that an interruption would have saved, never
anything committed. The creator of an episode must close it, however its step ends: closed episodes are collected, open
ones are not.

Deltas that continue each other share one number: a delta after a silence is shown immediately, those after it are
collected for a moment. This keeps previews smooth, episodes small and tokens cheap: see benchmarks/part_buffer.py.

    PartBufferError
    ├── EpisodeExists, EpisodeNotFound, EpisodeClosed
    ├── EpisodeFull      the cap was reached; nothing more is shown
    └── BufferClosed     this process is stopping
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from sys import getsizeof
from threading import get_ident
from typing import NamedTuple, Protocol

from rookery.domain.chat import parts
from rookery.domain.chat.interrupted_step import LivePart
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import Part, ToolResult
from rookery.live import deltas
from rookery.live.feeds import EndReason, Feed, Subscription
from rookery.live.limits import PartLimits
from rookery.runtime.clock import Clock
from rookery.telemetry.log import get_logger

log = get_logger("live.part_buffer")

# Chosen: a stalled reader is found at most this much late, and a pass looks at a few hundred episodes.
SWEEP_SECONDS = 1.0
# Chosen: with their writes, a fraction of a millisecond.
FLUSHED_AT_ONCE = 8


class EpisodeKey(NamedTuple):
    """One attempt at one step of a chat; attempts count from 1."""

    chat_id: ChatId
    history_version: int
    generation_attempt: int


class PartBufferError(Exception):
    """Base of everything the part buffer raises on purpose. A generation goes on without preview."""


class EpisodeExists(PartBufferError):
    def __init__(self, key: EpisodeKey) -> None:
        self.key = key
        super().__init__(f"The {_name(key)} exists already; its attempt was taken or interrupted.")


class EpisodeNotFound(PartBufferError):
    def __init__(self, key: EpisodeKey) -> None:
        self.key = key
        super().__init__(f"There is no {_name(key)} in this process, or not any more.")


class EpisodeClosed(PartBufferError):
    def __init__(self, key: EpisodeKey) -> None:
        self.key = key
        super().__init__(f"The {_name(key)} is closed; nothing can be added to it.")


class EpisodeFull(PartBufferError):
    def __init__(self, key: EpisodeKey) -> None:
        self.key = key
        super().__init__(f"The {_name(key)} is full; nothing more of it is shown until it is committed.")


class BufferClosed(PartBufferError):
    def __init__(self) -> None:
        super().__init__("This process is stopping; its part buffer is closed.")


def _name(key: EpisodeKey) -> str:
    return f"episode of chat {key.chat_id}, history version {key.history_version}, attempt {key.generation_attempt}"


@dataclass(frozen=True, slots=True)
class PartBufferStats:
    """`episodes` includes awaited and closed ones. `dropped` and `evicted` count since the start of the process."""

    episodes: int
    open_episodes: int
    subscribers: int
    size_bytes: int
    dropped: int
    evicted: int


class Timer(Protocol):
    def cancel(self) -> object: ...


# `loop.call_later`, or a replacement that a test controls.
CallLater = Callable[[float, Callable[[], None]], Timer]


class _State(Enum):
    AWAITED = "awaited"  # has subscribers only
    OPEN = "open"
    CLOSED = "closed"


class Episode:
    """The parts of one attempt. Made by `PartBuffer.create_episode`; the generation keeps it and adds to it.

    `_live` is what an interruption saves: complete parts. The feed holds what clients may see of them.
    """

    __slots__ = (
        "_buffer",
        "_chars",
        "_feed",
        "_is_full",
        "_last_seq",
        "_limits",
        "_live",
        "_pending",
        "_role",
        "_shown_at",
        "_size_bytes",
        "_state",
        "_stretch",
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
        # Kept here as well as in the feed: they are read for every token.
        self._last_seq = 0
        self._size_bytes = 0
        self._is_full = False
        self._unshown_bytes = 0
        # By its key: a reference to the episode itself would form a cycle, and the garbage collector looks at such old
        # objects only after very many turns.
        self._feed = Feed(buffer._clock, partial(buffer._left, key))
        self._live: list[LivePart] = []
        self._state = _State.AWAITED
        self._was_created = False
        # The merge window: pieces without a number yet, and the first of them; when there are none, the piece before
        # them.
        self._pending: list[str] = []
        self._chars = 0
        self._stretch: Part | None = None
        self._role = Role.ASSISTANT
        self._shown_at = -math.inf

    def add_part(self, role: Role, part: Part) -> int:
        """Show the part, now or at the end of the merge window, and return its number.

        Pieces of text that are joined get the same number. Raises `EpisodeClosed`, `EpisodeFull` or `BufferClosed`;
        none of them is a reason to stop a generation.
        """
        assert get_ident() == self._thread, "the part buffer belongs to the event loop's thread"
        if self._state is not _State.OPEN:
            raise self._refusal()
        text = deltas.piece(part)
        if text is None:
            self._add_whole(role, part)
        elif role is self._role and self._stretch is not None and deltas.continues(self._stretch, part):
            self._collect(part, text)
        else:
            self.flush()
            # An empty piece only announces a block; the first text after it must be shown without delay.
            self._stretch = part if text else None
            self._role = role
            self._publish(role, part, shown=part)
        if self._is_full:
            self._buffer._dropped += 1
            raise EpisodeFull(self.key)
        return self._last_seq + 1 if self._pending else self._last_seq

    def flush(self) -> None:
        """Number and show the contents of the merge window."""
        if not self._pending:
            return
        assert self._stretch is not None, "pieces without a first one"
        part = self._stretch if len(self._pending) == 1 else deltas.joined(self._stretch, "".join(self._pending))
        self._pending.clear()
        self._chars = 0
        self._publish(self._role, part, shown=part)

    def draft(self) -> tuple[LivePart, ...] | None:
        """Return all parts so far, for `interrupted_step.rows`; None for an episode that was not created here."""
        self.flush()
        return tuple(self._live) if self._was_created else None

    @property
    def held_bytes(self) -> int:
        """Its size in memory: its parts, and their encoded form."""
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
        self._buffer._leave_window(self)

    def _refusal(self) -> PartBufferError:
        if self._buffer._is_closed:
            return BufferClosed()
        return EpisodeClosed(self.key) if self._state is _State.CLOSED else EpisodeNotFound(self.key)

    def _collect(self, part: Part, text: str) -> None:
        if not self._pending:
            self._stretch = part
            if self._buffer._clock.monotonic() >= self._shown_at + self._limits.quiet_ms / 1000:
                self._publish(self._role, part, shown=part)
                return
            self._buffer._enter_window(self)
        self._pending.append(text)
        self._chars += len(text)
        if self._chars >= self._limits.merge_chars:
            # The window's timer stays: the pieces that follow are only shown a little earlier.
            self.flush()

    def _add_whole(self, role: Role, part: Part) -> None:
        self.flush()
        self._stretch = None
        for shown in parts.client_view((part,)):
            self._publish(role, part, shown=shown)

    def _publish(self, role: Role, part: Part, *, shown: Part) -> None:
        self._shown_at = self._buffer._clock.monotonic()
        if self._is_full:
            # The draft outlives the preview: an interruption saves it, and the step holds the same text anyway. Only
            # the running output of tools is unbounded, and no interruption saves that.
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
    """All episodes of this process. Create it on the event loop, run `run` in a task, `close` it at the end."""

    def __init__(self, clock: Clock, *, limits: PartLimits | None = None, call_later: CallLater | None = None) -> None:
        self._clock = clock
        self._limits = limits or PartLimits()
        self._call_later: CallLater = call_later or asyncio.get_running_loop().call_later
        self._thread = get_ident()
        self._episodes: dict[EpisodeKey, Episode] = {}
        # In the order in which they were closed.
        self._closed: dict[EpisodeKey, Episode] = {}
        # One window for all: a timer for each episode would cost more than what it shows.
        self._in_window: dict[Episode, None] = {}
        self._window: Timer | None = None
        # Episodes whose window has ended and that were not flushed yet.
        self._due: dict[Episode, None] = {}
        self._turn: Timer | None = None
        self._is_closed = False
        self._dropped = 0
        self._evicted = 0

    def create_episode(self, key: EpisodeKey) -> Episode:
        """Open an episode and adopt earlier subscribers.

        Raises `EpisodeExists` when it is open, or was closed before.
        """
        self._check()
        self._collect()
        episode = self._episodes.get(key) or self._add(key)
        episode._open()
        return episode

    def add_part(self, key: EpisodeKey, role: Role, *, part: Part) -> int:
        """Call `Episode.add_part` by key."""
        return self._get(key).add_part(role, part)

    def close_episode(self, key: EpisodeKey) -> tuple[LivePart, ...] | None:
        """End the episode and return its draft; None when no generation here created it. Idempotent.

        An unknown key is closed all the same: a late generation must not be able to add anything.
        """
        self._check()
        episode = self._episodes.get(key) or self._add(key)
        if episode.closed_at is None:
            self._closed[key] = episode
            episode._close(self._clock.monotonic())
        return episode.draft()

    def get_parts(self, key: EpisodeKey) -> tuple[LivePart, ...]:
        """Return the parts of an episode so far, merged."""
        self._check()
        self._collect()
        draft = self._get(key).draft()
        return draft or ()

    def start_model_invocation(self, key: EpisodeKey) -> None:
        """Note that the model's stream is being opened now."""
        episode = self._get(key)
        if episode._state is not _State.OPEN:
            raise episode._refusal()
        episode.model_invoked_at = self._clock.now()

    def model_invoked_at(self, key: EpisodeKey) -> datetime | None:
        """Return when the model's stream was opened; None if never, or if the episode is unknown.

        Call it before closing.
        """
        self._check()
        episode = self._episodes.get(key)
        return None if episode is None else episode.model_invoked_at

    def subscribe(self, key: EpisodeKey, from_seq: int = 1, *, wake: Callable[[], None] | None = None) -> Subscription:
        """Replay an episode from a number on, then follow it. An episode that does not exist yet is waited for.

        See `Feed.subscribe`. Leave with `close`, or `with`, even after a cancellation: an episode that has only
        subscribers ends with the last of them.
        """
        self._check()
        known = self._episodes.get(key)
        episode = known or Episode(key, self)
        subscription = episode._feed.subscribe(from_seq, wake=wake)
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
        """End the subscriptions of stalled readers, and drop closed episodes that are too old or exceed the memory
        limit."""
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
                self._forget(episode)

    def close(self) -> None:
        """End all subscriptions; every later call raises `BufferClosed`, except this one."""
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

    def _enter_window(self, episode: Episode) -> None:
        """Show the contents of the episode when the window ends, which another episode may have begun."""
        if episode in self._due:
            return  # its flush is near, and includes this
        self._in_window[episode] = None
        if self._window is None:
            self._window = self._call_later(self._limits.merge_window_ms / 1000, self._window_ended)

    def _leave_window(self, episode: Episode) -> None:
        self._in_window.pop(episode, None)
        self._due.pop(episode, None)
        if self._window is not None and not self._in_window:
            self._window.cancel()
            self._window = None
        if self._turn is not None and not self._due:
            self._turn.cancel()
            self._turn = None

    def _window_ended(self) -> None:
        self._window = None
        self._due.update(self._in_window)
        self._in_window = {}
        if self._turn is None:
            self._flush_some()

    def _flush_some(self) -> None:
        """Flush some of the episodes that are due; the others follow after the event loop has run other callbacks.

        Every flush wakes the tasks that write to clients. Flushing all together would delay new messages, and the first
        token of each step, for as long as it takes to write to every client.
        """
        self._turn = None
        for _ in range(min(len(self._due), FLUSHED_AT_ONCE)):
            episode = next(iter(self._due))
            del self._due[episode]
            episode.flush()
        if self._due:
            self._turn = self._call_later(0, self._flush_some)

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
                return  # those after it were closed later
            if not self._is_kept(episode):
                self._forget(episode)

    def _is_kept(self, episode: Episode) -> bool:
        if episode._feed.subscriber_count:
            return True
        if episode.closed_at is None:
            return episode._state is _State.OPEN
        return self._clock.monotonic() - episode.closed_at < self._limits.episode_retention_seconds

    def _left(self, key: EpisodeKey) -> None:
        """Note that the last subscriber of an episode has left: the episode may be dropped."""
        episode = self._episodes.get(key)
        if episode is not None and not self._is_kept(episode):
            self._forget(episode)

    def _forget(self, episode: Episode) -> None:
        if self._episodes.get(episode.key) is episode:
            del self._episodes[episode.key]
            self._closed.pop(episode.key, None)
