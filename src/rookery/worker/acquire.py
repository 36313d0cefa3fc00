"""Acquisition: takes runnable chats in passes. Hints, a timer and free slots trigger a pass."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import NoReturn
from uuid import UUID, uuid4

import asyncpg

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.errors import CommitOutcomeUnknown
from rookery.store.db.hints import ChatHint, OwnershipHint
from rookery.store.db.pubsub import Bus, Subscription
from rookery.store.machine import (
    ChatState,
    Machine,
    Slot,
    Tx,
    capacity,
    find_donors,
    list_candidates,
    single_statement,
    try_abandon,
    try_acquire,
)
from rookery.store.machine.capacity import Limits
from rookery.store.machine.ownership import Candidate, Takeover, find_takeover, has_peers, has_takeable
from rookery.telemetry.log import get_logger
from rookery.worker.config import WorkerConfig
from rookery.worker.follow_up_work import FollowUpWork
from rookery.worker.runner_manager import RunnerManager
from rookery.worker.stats import WorkerStats

log = get_logger("worker.acquire")

MAX_TAKEN = 4096


class Acquirer:
    """Finds runnable chats and takes them. Passes never overlap, and triggers that arrive together cause one pass.

    `may_acquire` returns whether this process may take more chats. `limits` returns the limits of the deployment.
    """

    def __init__(
        self,
        manager: RunnerManager,
        machine: Machine,
        *,
        worker_id: UUID,
        pool: asyncpg.Pool,
        bus: Bus,
        clock: Clock,
        rng: Random,
        config: WorkerConfig,
        stats: WorkerStats,
        inflight: FollowUpWork,
        limits: Callable[[], Awaitable[Limits]],
        may_acquire: Callable[[], bool],
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self._manager = manager
        self._machine = machine
        self._worker_id = worker_id
        self._pool = pool
        self._bus = bus
        self._clock = clock
        self._rng = rng
        self._config = config
        self._stats = stats
        self._inflight = inflight
        self._limits = limits
        self._may_acquire = may_acquire
        self._new_id = new_id
        self._pass_requested = asyncio.Event()
        self._hinted_chats: dict[ChatId, None] = {}  # the chats that were hinted since the last pass, in order
        # The newest version at which this process took each chat. PostgreSQL returns the hints of this process, and a
        # short turn may have ended by then.
        self._taken_at: OrderedDict[UUID, int] = OrderedDict()
        self._must_list = False
        self._has_peers = False
        self._is_deferred = False
        self._is_full = False  # whether the last pass left chats waiting, because a pool or this process was full
        self._was_freed = False  # whether a slot was freed since the beginning of the pass

    def wake(self) -> None:
        """Request a pass now, because a peer has died or candidates may be left."""
        self._must_list = True
        self._pass_requested.set()

    def slot_freed(self) -> None:
        """Request a pass if the last one lacked a slot, here or in a pool."""
        self._was_freed = True
        if self._is_full:
            self.wake()

    async def run(self) -> NoReturn:
        """Run a pass at the start, once per interval, and on request."""
        subscriptions: list[Subscription] = [
            self._bus.subscribe(OwnershipHint, self._on_hint),
            self._bus.subscribe(ChatHint, self._on_change),
            self._bus.on_resync(self.wake),
        ]
        try:
            self.wake()
            while True:
                await self._wait_for_trigger()
                await self._delay_for_idle_peers()
                hinted, self._hinted_chats = list(self._hinted_chats), {}
                must_list, self._must_list = self._must_list, False
                self._pass_requested.clear()
                if self._must_defer():
                    # The next pass must list all candidates, because the hints that are dropped here are not repeated.
                    self._must_list = True
                    continue
                self._was_freed = False
                # If a pool is full, waiting chats are ranked, and a new chat must not overtake them. Many chats are
                # ranked as well, so that one owner's burst does not precede another owner's first chat.
                if not must_list and not self._is_full and len(hinted) <= self._config.acquire_batch:
                    await self._take_hinted(hinted)
                else:
                    await self.run_pass()
                    if not hinted:
                        await self._check_peers()
                if self._is_full and self._was_freed:
                    self.wake()  # the slot was freed after the pass had found none
        finally:
            for subscription in subscriptions:
                subscription.close()

    def _must_defer(self) -> bool:
        """Return whether this process may not take chats now.

        The pass is then repeated soon, because hints are not repeated.
        """
        self._is_deferred = not self._may_take()
        return self._is_deferred

    async def _take_hinted(self, hinted: Sequence[ChatId]) -> None:
        """Take the chats that hints named, without listing other candidates."""
        wanted = [chat_id for chat_id in hinted if not self._manager.drives(chat_id)]
        room = self._config.max_runners - len(self._manager)
        if len(wanted) > room:
            self._is_full = True  # a pass ranks them when there is room again
            return
        if not wanted:
            return
        try:
            async with self._clock.deadline(self._config.database_seconds, "read-limits"):
                limits = await self._limits()
        except DATABASE_ERRORS as error:
            log.warning("acquire_failed", error=str(error) or type(error).__name__)
            return
        taken = await self._take_together(wanted, limits)
        left = [chat_id for chat_id in wanted if chat_id not in taken]
        # Most chats that are left belong to another replica by now.
        if left and await self._has_takeable(left):
            self._must_list = True
            self._pass_requested.set()
        self._stats.acquired["lost"] += len(left)

    async def _has_takeable(self, chat_ids: Sequence[ChatId]) -> bool:
        try:
            async with (
                self._clock.deadline(self._config.database_seconds, "find-takeable"),
                self._pool.acquire() as conn,
            ):
                return await has_takeable(conn, chat_ids)
        except DATABASE_ERRORS as error:
            log.warning("acquire_failed", error=str(error) or type(error).__name__)
            return True

    async def run_pass(self) -> int:
        """Take runnable chats in the order of their rank. Return the number of chats taken."""
        room = min(self._config.acquire_batch, self._config.max_runners - len(self._manager))
        if not self._may_take():
            return 0
        candidates: list[Candidate] = []
        try:
            async with self._clock.deadline(self._config.database_seconds, "list-candidates"):
                limits = await self._limits()
                if room > 0:
                    async with self._pool.acquire() as conn:
                        candidates = await list_candidates(conn, room * 2)
        except DATABASE_ERRORS as error:
            log.warning("acquire_failed", error=str(error) or type(error).__name__)
            return 0
        if room <= 0:
            self._is_full = True
            # Another replica may have room for a waiting chat, and lack only a slot that a chat here holds.
            await self._request_slots(limits)
            return 0
        return await self._take(candidates, limits, room)

    async def _take(self, candidates: Sequence[Candidate], limits: Limits, room: int) -> int:
        full: set[bool] = set()  # full pools; True is the pool of root chats
        won = lost = 0
        first = candidates[:room]
        taken = await self._take_together([candidate.chat_id for candidate in first], limits) if first else {}
        won += list(taken.values()).count("won")
        for candidate in candidates:
            if won >= room or self._must_defer():
                break
            if candidate.chat_id in taken or (candidate.is_root in full and candidate.status == "running"):
                continue
            outcome = await self._take_one(candidate.chat_id, limits)
            self._stats.acquired[outcome] += 1
            won += outcome == "won"
            lost += outcome == "lost"
            if outcome == "full":
                full.add(candidate.is_root)
            if won >= self._config.acquire_reread_after and self._hinted_chats:
                break  # a chat that arrived meanwhile may rank before the rest of this list
        self._is_full = bool(full)
        if full or lost:
            # Waiting chats may lack only slots that chats here hold.
            await self._request_slots(limits)
        if won and (won >= room or lost or self._hinted_chats):
            # There may be more candidates than were listed. A pass that took nothing would only repeat itself.
            self.wake()
        return won

    async def _take_together(self, chat_ids: Sequence[ChatId], limits: Limits) -> dict[UUID, str]:
        """Take those of the chats that one statement can take. Return the outcomes of these chats.

        The other chats were not changed. They start in the given order.
        """
        wanted: dict[UUID, UUID] = {chat_id: self._new_id() for chat_id in chat_ids}
        outcomes: dict[UUID, str] = {}
        try:
            taken = await single_statement.take(
                self._machine, wanted, worker_id=self._worker_id, limits=limits, has_peers=self._has_peers
            )
        except (asyncio.CancelledError, CommitOutcomeUnknown) as error:
            # This process may own the chats now, but no runner would run them.
            for chat_id, runner_id in wanted.items():
                self._abandon(ChatId(chat_id), runner_id)
            if isinstance(error, asyncio.CancelledError):
                raise
            log.warning("acquire_failed", chats=len(wanted), error=str(error))
            outcomes = dict.fromkeys(wanted, "failed")
        except Exception as error:
            # Nothing was changed. One chat that cannot be taken must not block the others, which are taken one by one.
            log.warning("acquire_failed", chats=len(wanted), error=str(error) or type(error).__name__)
        else:
            by_id = {each.chat.id: each for each in taken}
            for chat_id, runner_id in wanted.items():
                if (each := by_id.get(ChatId(chat_id))) is not None:
                    outcomes[chat_id] = self._spawn(each.chat, runner_id, each.takeover)
        self._stats.acquired.update(outcomes.values())
        return outcomes

    async def _request_slots(self, limits: Limits) -> None:
        """Request slots from owners who hold more than their fair share while other owners wait."""
        try:
            async with self._clock.deadline(self._config.database_seconds, "find-donors"), self._pool.acquire() as conn:
                self._manager.request_slots(await find_donors(conn, limits))
        except DATABASE_ERRORS as error:
            log.warning("donors_not_found", error=str(error) or type(error).__name__)

    async def _take_one(self, chat_id: ChatId, limits: Limits) -> str:
        is_refused = False
        taken_over: Takeover | None = None

        async def admit(tx: Tx) -> bool:
            nonlocal is_refused, taken_over
            is_refused = not await capacity.admit(tx, limits)
            taken_over = None if is_refused else await find_takeover(tx)
            return not is_refused

        runner_id = self._new_id()
        try:
            chat = await try_acquire(
                self._machine, chat_id, worker_id=self._worker_id, runner_id=runner_id, admit=admit
            )
        except (asyncio.CancelledError, CommitOutcomeUnknown) as error:
            # This process may own the chat now, but no runner would run it.
            self._abandon(chat_id, runner_id)
            if isinstance(error, asyncio.CancelledError):
                raise
            log.warning("acquire_failed", chat_id=chat_id, error=str(error))
            return "failed"
        except Exception as error:
            # One chat that cannot be taken must not block the others.
            log.warning("acquire_failed", chat_id=chat_id, error=str(error) or type(error).__name__)
            return "failed"
        if chat is None:
            return "full" if is_refused else "lost"
        return self._spawn(chat, runner_id, taken_over)

    def _spawn(self, chat: Chat, runner_id: UUID, taken_over: Takeover | None) -> str:
        self._taken_at[chat.id] = chat.snapshot_version
        self._taken_at.move_to_end(chat.id)
        if len(self._taken_at) > MAX_TAKEN:
            self._taken_at.popitem(last=False)
        self._stats.chat_acquired(chat.runnable_since, self._clock.now())
        if taken_over is not None:
            self._stats.takeovers[taken_over] += 1
        if not self._manager.spawn(chat.id, runner_id, acquired=ChatState.of(chat), slot=Slot.of(chat)):
            self._abandon(chat.id, runner_id)
            return "closed"
        return "won"

    def _abandon(self, chat_id: ChatId, runner_id: UUID) -> None:
        self._inflight.start(
            lambda: try_abandon(self._machine, chat_id, worker_id=self._worker_id, runner_id=runner_id),
            name="abandon",
            seconds=self._config.cleanup_seconds,
        )

    def _may_take(self) -> bool:
        """Return whether this process may take chats: it is neither closed nor fenced off, and `may_acquire` agrees."""
        return not self._manager.is_closed and not self._manager.is_fenced and self._may_acquire()

    def _on_hint(self, hint: OwnershipHint) -> None:
        if hint.snapshot_version < self._taken_at.get(hint.chat_id, 0):
            return
        self._hinted_chats[ChatId(hint.chat_id)] = None
        self._pass_requested.set()

    def _on_change(self, hint: ChatHint) -> None:
        """Note a chat without a worker that needs none: it may have had a slot, here or on another replica."""
        if hint.runner_id is None and (hint.gone or hint.status != Status.RUNNING):
            self.slot_freed()

    async def _wait_for_trigger(self) -> None:
        config = self._config
        jitter = self._rng.uniform(1 - config.acquire_jitter, 1 + config.acquire_jitter)
        seconds = config.acquire_again_seconds if self._is_deferred else config.acquire_interval_seconds
        try:
            async with self._clock.deadline(seconds * jitter, "acquire"):
                await self._pass_requested.wait()
        except DeadlineExceeded:
            self._must_list = True

    async def _delay_for_idle_peers(self) -> None:
        delay = self._config.acquire_delay_per_runner_seconds * len(self._manager)
        if self._hinted_chats and self._has_peers and delay:
            await self._clock.sleep(min(delay, self._config.acquire_delay_max_seconds), "acquire-delay")

    async def _check_peers(self) -> None:
        """Read whether there are peers. Without peers, passes need no delay. An outdated answer does no harm."""
        try:
            async with self._clock.deadline(self._config.database_seconds, "has-peers"), self._pool.acquire() as conn:
                self._has_peers = await has_peers(conn, self._worker_id)
        except DATABASE_ERRORS as error:
            log.warning("peers_not_counted", error=str(error) or type(error).__name__)
