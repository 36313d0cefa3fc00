"""The events for one client, derived from snapshots and live parts. Pure: no clock, no task, no socket.

Every durable event is derived from a snapshot of the database; a hint only announces that a new snapshot should be
read. Live state also follows hints: the replica that runs the chat, and its current attempt. Live parts are sent in
order and without gaps. Only parts of the attempt that was named last are sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.live.deltas import PartEvent
from rookery.live.part_buffer import EpisodeKey
from rookery.store.chats import chat_views
from rookery.store.db.hints import ChatHint
from rookery.stream import events, views
from rookery.stream.events import (
    ActionRequired,
    ErrorShown,
    PreviewReset,
    PreviewTruncated,
    RetryChanged,
    StatusChanged,
    Synced,
)
from rookery.stream.snapshots import ClientPosition, Snapshot

_SHOWS_PARTS = (Status.RUNNING, Status.INTERRUPTING)
_TRUNCATED = events.encode(PreviewTruncated())

# The limit per episode. One rebase is normal if a source returns with merged parts. With an inconsistent source,
# rebases would never end.
MAX_REBASES = 3


class HintEffect(Enum):
    """The effect of a hint on a stream."""

    IGNORE = "ignore"
    READ = "read"
    MOVED = "moved"  # only the owner or the attempt has changed: `move` needs no read
    GONE = "gone"


class Target(NamedTuple):
    """The replica and the episode whose parts are followed."""

    worker_id: UUID
    episode: EpisodeKey


class Step(Enum):
    """The next action after the accepted parts of a batch."""

    ON = "on"
    AGAIN = "again"  # subscribe again after the last accepted part
    REBASE = "rebase"  # subscribe again from the first part
    STOP = "stop"  # the source has lost parts: send no more parts of this episode


@dataclass(slots=True)
class ViewStats:
    """Counters over all streams of a process."""

    gaps: int = 0
    resets: Counter[str] = field(default_factory=Counter)


class ClientView:
    """One connection's view of one chat: the versions that were sent, and the episode that is shown."""

    __slots__ = (
        "_action_history_version",
        "_archived",
        "_error_key",
        "_gaps",
        "_has_retry",
        "_judged_version",
        "_rebases",
        "_stats",
        "_status",
        "_truncated",
        "chat_id",
        "episode",
        "generation_attempt",
        "history_version",
        "last_message_id",
        "last_seq",
        "queue_version",
        "retry_version",
        "shows_parts",
        "snapshot_version",
        "tail",
        "target",
        "worker_id",
    )

    def __init__(self, chat_id: ChatId, *, tail: int, shows_parts: bool, stats: ViewStats) -> None:
        self.chat_id = chat_id
        self.tail = tail
        self.shows_parts = shows_parts
        self.snapshot_version = self.history_version = self.queue_version = self.retry_version = 0
        self._judged_version = 0  # newer than the snapshot, but without changes
        self.last_message_id = 0
        self.worker_id: UUID | None = None
        self.generation_attempt = 0
        self.episode: EpisodeKey | None = None  # set while live
        self.target: Target | None = None
        self.last_seq = 0
        self._status: str | None = None
        self._archived = False
        self._has_retry = False
        self._error_key: tuple[int, str | None] | None = None
        self._action_history_version = 0
        self._gaps = self._rebases = 0  # in this episode
        self._truncated = False
        self._stats = stats

    @property
    def position(self) -> ClientPosition:
        return ClientPosition(self.chat_id, self.history_version, self.queue_version, self.last_message_id, self.tail)

    def effect_of(self, hint: ChatHint) -> HintEffect:
        """Return whether a hint announces a change that this client does not have. The change itself must be read."""
        if hint.gone:
            return HintEffect.GONE
        if hint.snapshot_version <= max(self.snapshot_version, self._judged_version):
            return HintEffect.IGNORE
        is_newer = (
            hint.history_version > self.history_version
            or hint.queue_version > self.queue_version
            or hint.retry_state_version > self.retry_version
        )
        is_other = (hint.status, hint.archived) != (self._status, self._archived)
        # Two hints about two different errors are equal.
        if is_newer or is_other or hint.status == Status.ERROR:
            return HintEffect.READ
        if (hint.worker_id, hint.generation_attempt) != (self.worker_id, self.generation_attempt):
            return HintEffect.MOVED
        # A hint that is older than this is late. A read would find no change.
        self._judged_version = hint.snapshot_version
        return HintEffect.IGNORE

    def move(self, hint: ChatHint) -> list[bytes]:
        """Return the events for a hint that was judged `MOVED`. Afterwards continue as after `apply`."""
        out: list[bytes] = []
        self._apply_episode(hint, out, has_retry=self._has_retry)
        self.snapshot_version = hint.snapshot_version
        self.generation_attempt = hint.generation_attempt
        self.worker_id = hint.worker_id
        if out:
            out.append(self._synced())
        return out

    def apply(self, snapshot: Snapshot, *, is_first: bool = False, is_resync: bool = False) -> list[bytes]:
        """Return the events that bring the client to this snapshot, in sending order. None for an older snapshot.

        `is_first` is for the first snapshot of a connection. `is_resync` is for one that a client requested: it has a
        whole window, and a running preview starts again after it. Afterwards `target` names the parts to follow, and
        `last_seq` the last one that was sent.
        """
        chat = snapshot.chat
        is_whole = is_first or is_resync
        if chat.snapshot_version <= self.snapshot_version and not is_whole:
            return []
        out: list[bytes] = []
        is_history_newer = chat.history_version > self.history_version
        if snapshot.batch is not None and (is_history_newer or is_whole):
            if snapshot.batch.reset is not None:
                out.append(snapshot.batch.reset)
                self._stats.resets["resync" if is_resync else "first" if is_first else "cut"] += 1
            out.extend(snapshot.batch.messages)
            self.last_message_id = snapshot.batch.last_message_id
        if snapshot.queue_update is not None and (chat.queue_version > self.queue_version or is_resync):
            out.append(snapshot.queue_update)
        if is_first or (chat.status, chat.archived) != (self._status, self._archived):
            out.append(events.encode(StatusChanged(chat.status, chat.archived)))
        self._apply_error(chat, out)
        self._apply_action(snapshot, out)
        if chat.retry_state_version > self.retry_version and (chat.retry_state is not None or not is_first):
            out.append(events.encode(RetryChanged(views.retry(chat.retry_state))))
        has_retry = chat.retry_state is not None
        self._apply_episode(chat, out, has_retry=has_retry, is_history_newer=is_history_newer, is_resync=is_resync)
        self._store(chat)
        if out or is_whole:
            out.append(self._synced())
        return out

    def accept(self, batch: Iterable[PartEvent], out: list[PartEvent]) -> Step:
        """Append to `out` the parts of this episode that the client gets, in order."""
        last = self.last_seq
        for event in batch:
            seq, n, _ = event
            if seq - n == last:
                out.append(event)
                last = seq
            elif seq > last:
                self.last_seq = last
                return self._broken(merged_across=seq - n < last)
        self.last_seq = last
        return Step.ON

    def accept_next(self, event: PartEvent) -> bool:
        """Accept a single part if it is the next one expected; otherwise return False and change nothing."""
        seq, n, _ = event
        if seq - n != self.last_seq:
            return False
        self.last_seq = seq
        return True

    def restart(self, reason: str) -> bytes:
        """Clear the preview. The same episode is sent again from its first part."""
        assert self.episode is not None, "only a live preview is restarted"
        self.last_seq = 0
        self._stats.resets[reason] += 1
        return _preview_reset(self.episode.history_version, self.episode.generation_attempt, reason)

    def truncate(self) -> bytes | None:
        """Return the event for an episode that exceeded the size of its buffer. It is returned only once."""
        if self._truncated or self.episode is None:
            return None
        self._truncated = True
        return _TRUNCATED

    def _broken(self, *, merged_across: bool) -> Step:
        if merged_across:
            self._rebases += 1
            return Step.REBASE if self._rebases <= MAX_REBASES else Step.STOP
        self._stats.gaps += 1
        self._gaps += 1
        return Step.AGAIN if self._gaps == 1 else Step.REBASE if self._gaps == 2 else Step.STOP

    def _apply_error(self, chat: Chat, out: list[bytes]) -> None:
        if chat.status != Status.ERROR:
            self._error_key = None
            return
        key = (chat.history_version, chat.last_error)
        if key != self._error_key:
            self._error_key = key
            out.append(events.encode(ErrorShown(chat_views.chat_error(chat.last_error or ""))))

    def _apply_action(self, snapshot: Snapshot, out: list[bytes]) -> None:
        chat = snapshot.chat
        if chat.status != Status.REQUIRES_ACTION or chat.history_version <= self._action_history_version:
            return
        self._action_history_version = chat.history_version
        action = chat_views.action(
            snapshot.pending_calls,
            is_approval=chat.awaits_approval,
            deadline_at=chat.requires_action_deadline_at,
        )
        out.append(events.encode(ActionRequired(action.kind, action.tool_calls, action.deadline_at)))

    def _apply_episode(
        self,
        chat: Chat | ChatHint,
        out: list[bytes],
        *,
        has_retry: bool,
        is_history_newer: bool = False,
        is_resync: bool = False,
    ) -> None:
        episode = None if has_retry else self._episode_of(chat)
        if episode is not None and episode != self.episode:
            reason = "history" if is_history_newer else "attempt"
        elif episode is not None and is_resync:
            # A client that requests everything may have lost parts as well. This also resumes a source that was
            # stopped.
            reason = "rebase"
        elif episode is None and self.episode is not None:
            reason = "history" if is_history_newer else "retry" if has_retry else "ended"
        else:
            reason = None
        if reason is not None:
            self.last_seq = 0
            self._gaps, self._rebases, self._truncated = 0, 0, False
            out.append(_preview_reset(chat.history_version, chat.generation_attempt, reason))
        self.episode = episode
        self.target = None if episode is None or chat.worker_id is None else Target(chat.worker_id, episode)

    def _episode_of(self, chat: Chat | ChatHint) -> EpisodeKey | None:
        is_shown = self.shows_parts and chat.status in _SHOWS_PARTS
        if not is_shown or chat.generation_attempt < 1:
            return None
        return EpisodeKey(self.chat_id, chat.history_version, chat.generation_attempt)

    def _store(self, chat: Chat) -> None:
        self.snapshot_version = chat.snapshot_version
        self.history_version = chat.history_version
        self.queue_version = chat.queue_version
        self.retry_version = chat.retry_state_version
        self.generation_attempt = chat.generation_attempt
        self.worker_id = chat.worker_id
        self._status, self._archived = chat.status, chat.archived
        self._has_retry = chat.retry_state is not None

    def _synced(self) -> bytes:
        return events.encode(
            Synced(self.snapshot_version, self.history_version, self.queue_version, self.last_message_id)
        )


def _preview_reset(history_version: int, generation_attempt: int, reason: str) -> bytes:
    return events.encode(PreviewReset(history_version, generation_attempt, reason))
