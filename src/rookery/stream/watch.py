"""The watch stream: changes of the chats in a user's list, one event per chat.

A hint names only a chat and the kind of change. Each replica collects hints for a moment, loads the chats that are
watched here, and sends every watcher the current chat, with all kinds in one event. Nothing is replayed. After `ready`,
a client that loads the list misses no later change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn
from uuid import UUID

import asyncpg
from msgspec import UNSET

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.runtime.clock import Clock
from rookery.store.chats import chat_view_reads, chat_views, shares, stream_reads
from rookery.store.chats.chat_views import ActionCall, ChatView
from rookery.store.chats.stream_reads import Member
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import WatchHint, WatchKind
from rookery.store.db.pool import Connection
from rookery.store.db.pubsub import Bus
from rookery.stream import events
from rookery.stream.events import ChatChanged, ChatGone, ListResync, Ready
from rookery.stream.outbox import MAX_FRAME_BYTES, MAX_FRAME_EVENTS, Frame
from rookery.stream.session import Inbound, SendNow
from rookery.telemetry.log import get_logger

log = get_logger("stream.watch")

COLLECT_SECONDS = 0.03
MAX_PENDING = 256

# Kinds that have another name on the wire.
_WIRE = {str(WatchKind.STATUS): "status_change"}
# Changes that are sent only to the user who made them, for the user's other tabs.
_OWN = "read"
_UNSHARED = "unshared"

_RESYNC = events.encode(ListResync())


@dataclass(slots=True)
class _Collected:
    """Hints about one chat: all kinds, in order, and the users to notify if it is gone."""

    kinds: dict[str, None] = field(default_factory=dict)
    users: set[UUID] = field(default_factory=set)
    own: set[UUID] = field(default_factory=set)


@dataclass(slots=True)
class WatchStats:
    loads: int = 0
    sent: int = 0
    overflowed: int = 0
    failed: int = 0


class Watcher:
    """The source of one watch session."""

    __slots__ = ("_hub", "_pending", "_wake", "user_id")

    def __init__(self, hub: WatchHub, user_id: UUID) -> None:
        self._hub = hub
        self.user_id = user_id
        # The newest event of each chat. Other events have the key None.
        ready = events.encode(Ready(hub.clock.now()))
        self._pending: dict[UUID | None, tuple[ChatChanged | None, bytes]] = {None: (None, ready)}
        self._wake: Callable[[], None] = lambda: None

    def attach(self, wake: Callable[[], None], send_now: SendNow | None = None) -> None:
        self._wake = wake
        wake()

    def take(self) -> Frame | None:
        if not self._pending:
            return None
        taken: list[bytes] = []
        size = 0
        for key, (_, data) in tuple(self._pending.items()):
            size += len(data)
            if taken and (size > MAX_FRAME_BYTES or len(taken) == MAX_FRAME_EVENTS):
                break
            taken.append(data)
            del self._pending[key]
        return Frame(events.frame(taken))

    def tell(self, chat_id: UUID, changed: ChatChanged) -> None:
        """Queue an event. The kinds of an unsent event about the same chat are kept."""
        waiting = self._pending.get(chat_id)
        if waiting is not None and waiting[0] is not None:
            kinds = tuple(dict.fromkeys((*waiting[0].kinds, *changed.kinds)))
            changed = ChatChanged(kinds, changed.chat, changed.tool_calls)
        self._put(chat_id, changed, events.encode(changed))

    def tell_gone(self, chat_id: UUID, kind: str) -> None:
        self._put(chat_id, None, events.encode(ChatGone(chat_id, kind)))

    def resync(self) -> None:
        """Drop all waiting events, because the client loads its list again."""
        # An unsent greeting stays first.
        greeting = self._pending.get(None)
        self._pending.clear()
        data = _RESYNC if greeting is None or greeting[1] == _RESYNC else greeting[1] + b"," + _RESYNC
        self._pending[None] = (None, data)
        self._wake()

    async def handle(self, frame: Inbound) -> None:
        """Ignore frames of the client. A watch stream accepts none."""

    async def close(self) -> None:
        self._hub.leave(self)

    def _put(self, chat_id: UUID, changed: ChatChanged | None, data: bytes) -> None:
        if chat_id not in self._pending and len(self._pending) >= MAX_PENDING:
            self._hub.stats.overflowed += 1
            self.resync()
            return
        self._pending[chat_id] = (changed, data)
        self._wake()


class WatchHub:
    """All watchers of this process. `run` serves them until canceled."""

    def __init__(self, pool: asyncpg.Pool, bus: Bus, *, clock: Clock) -> None:
        self.clock = clock
        self.stats = WatchStats()
        self._pool = pool
        self._watchers: dict[UUID, dict[Watcher, None]] = {}
        self._collected: dict[UUID, _Collected] = {}
        self._wake = asyncio.Event()
        self._subscriptions = (bus.subscribe(WatchHint, self._on_hint), bus.on_resync(self._on_resync))

    def __len__(self) -> int:
        return sum(map(len, self._watchers.values()))

    def join(self, user_id: UUID) -> Watcher:
        """Return a watcher that misses no change from now on."""
        watcher = Watcher(self, user_id)
        self._watchers.setdefault(user_id, {})[watcher] = None
        return watcher

    def leave(self, watcher: Watcher) -> None:
        watchers = self._watchers.get(watcher.user_id, {})
        if watchers.pop(watcher, watcher) is None and not watchers:
            del self._watchers[watcher.user_id]

    async def run(self) -> NoReturn:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.clock.sleep(COLLECT_SECONDS, "watch-collect")
            collected, self._collected = self._collected, {}
            try:
                await self._serve(collected)
            except DATABASE_ERRORS as error:
                self.stats.failed += 1
                log.warning("watch_load_failed", chats=len(collected), error=str(error) or type(error).__name__)
                self._on_resync()
            except Exception as error:
                # A chat that cannot be shown is a bug, but must not end a process that serves other users.
                self.stats.failed += 1
                log.exception("watch_load_failed", error, chats=len(collected))
                self._on_resync()

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()

    def _on_hint(self, hint: WatchHint) -> None:
        if not self._watchers:
            return
        collected = self._collected.setdefault(hint.chat_id, _Collected())
        kind = _WIRE.get(str(hint.kind), str(hint.kind))
        if kind == _OWN:
            collected.own.update(hint.users or (hint.user_id,))
        else:
            collected.kinds[kind] = None
            collected.users.update((hint.user_id, *hint.users))
        self._wake.set()

    def _on_resync(self) -> None:
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.resync()

    async def _serve(self, collected: Mapping[UUID, _Collected]) -> None:
        if not self._watchers:
            return
        self.stats.loads += 1
        async with self._pool.acquire() as conn:
            members = {member.chat_id: member for member in await stream_reads.list_members(conn, list(collected))}
            readers = await shares.list_readers_of(conn, list({member.root_id for member in members.values()}))
            pairs = self._pairs(collected, members, readers)
            seen = await chat_view_reads.list_for_viewers(conn, pairs) if pairs else []
            calls = await self._calls(conn, [chat for _, chat in seen], collected)
        for user_id, chat in seen:
            self._tell(user_id, chat, collected[chat.id], calls=calls.get(chat.id))
        told = {(chat.id, user_id) for user_id, chat in seen}
        for chat_id, hints in collected.items():
            self._tell_gone(chat_id, hints, is_there=chat_id in members, told=told)

    def _pairs(
        self,
        collected: Mapping[UUID, _Collected],
        members: Mapping[ChatId, Member],
        readers: Mapping[UUID, Collection[UUID]],
    ) -> list[tuple[UUID, UUID]]:
        """Return pairs of watcher and chat to notify.

        The owner and the direct readers of each chat are notified, if they watch here.
        """
        return [
            (chat_id, user_id)
            for chat_id, member in members.items()
            for user_id in dict.fromkeys((member.owner_id, *readers.get(member.root_id, ())))
            if user_id in self._watchers and (collected[chat_id].kinds or user_id in collected[chat_id].own)
        ]

    async def _calls(
        self, conn: Connection, seen: Sequence[ChatView], collected: Mapping[UUID, _Collected]
    ) -> dict[UUID, tuple[ActionCall, ...]]:
        waiting = {
            chat.id
            for chat in seen
            if chat.status == Status.REQUIRES_ACTION and "action_required" in collected[chat.id].kinds
        }
        found: dict[UUID, tuple[ActionCall, ...]] = {}
        for chat_id in waiting:
            try:
                pending = await stream_reads.list_pending_calls(conn, chat_id)
            except chat_view_reads.UNREADABLE as error:
                # Unreadable content has no calls to show. The change is sent without calls.
                log.warning("watch_calls_unreadable", chat_id=chat_id, error=type(error).__name__)
                continue
            found[chat_id] = chat_views.action(pending, is_approval=False, deadline_at=None).tool_calls
        return found

    def _tell(self, user_id: UUID, chat: ChatView, hints: _Collected, *, calls: tuple[ActionCall, ...] | None) -> None:
        kinds = tuple(kind for kind in hints.kinds if kind != _UNSHARED)
        if user_id in hints.own:
            kinds = (*kinds, _OWN)
        if not kinds:
            return
        changed = ChatChanged(kinds, chat, UNSET if calls is None else calls)
        for watcher in tuple(self._watchers.get(user_id, ())):
            self.stats.sent += 1
            watcher.tell(chat.id, changed)

    def _tell_gone(
        self, chat_id: UUID, hints: _Collected, *, is_there: bool, told: Collection[tuple[UUID, UUID]]
    ) -> None:
        """Notify watchers of deleted chats (without a row) and unshared chats (no longer readable)."""
        if is_there and _UNSHARED not in hints.kinds:
            return
        for user_id in hints.users:
            if (chat_id, user_id) in told:
                continue
            for watcher in tuple(self._watchers.get(user_id, ())):
                watcher.tell_gone(chat_id, _UNSHARED if is_there else "deleted")
