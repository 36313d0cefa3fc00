"""Acquisition of runnable chats: one pass at a time, triggered by hints, timers and free slots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import NoReturn
from uuid import UUID, uuid4

import asyncpg

from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.errors import CommitOutcomeUnknown
from rookery.store.db.hints import OwnershipHint
from rookery.store.db.pubsub import Bus, Subscription
from rookery.store.machine import (
    ChatState,
    Machine,
    Slot,
    Tx,
    capacity,
    find_donors,
    list_candidates,
    try_abandon,
    try_acquire,
)
from rookery.store.machine.capacity import Limits
from rookery.store.machine.ownership import Candidate, Takeover, find_takeover, has_peers
from rookery.store.machine.single_statement import take_free
from rookery.telemetry.log import get_logger
from rookery.worker.background_tasks import BackgroundTasks
from rookery.worker.config import WorkerConfig
from rookery.worker.manager import RunnerManager
from rookery.worker.stats import WorkerStats

log = get_logger("worker.acquire")


class Acquirer:
    """Finds runnable chats and takes them. Passes never overlap; several triggers lead to one pass.

    `may_acquire` returns whether this process may take more; `limits` returns those of the deployment.
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
        inflight: BackgroundTasks,
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
        self._wanted = asyncio.Event()
        self._named: set[ChatId] = set()  # by hints since the last pass
        self._must_list = False
        self._has_peers = False
        self._is_put_off = False
        self._is_short = False  # whether slots were short in the last pass

    def wake(self) -> None:
        """Ask for a pass now: a slot is free, or a peer is gone."""
        self._must_list = True
        self._wanted.set()

    async def run(self) -> NoReturn:
        """Run a pass at the start, one per interval, and one whenever it is asked for."""
        subscriptions: list[Subscription] = [
            self._bus.subscribe(OwnershipHint, self._hinted),
            self._bus.on_resync(self.wake),
        ]
        try:
            self.wake()
            while True:
                await self._until_wanted()
                await self._let_idle_ones_go_first()
                named, self._named = self._named, set()
                must_list, self._must_list = self._must_list, False
                self._wanted.clear()
                if self._put_off():
                    # The next pass must list chats: the hints that named these are not repeated.
                    self._must_list = True
                    continue
                # Where slots are short, waiting chats are ranked: a new chat must not overtake them.
                if not must_list and len(named) == 1 and not self._is_short:
                    await self._take_named(*named)
                    continue
                await self.run_pass()
                if not named:
                    await self._look_for_peers()
        finally:
            for subscription in subscriptions:
                subscription.close()

    def _put_off(self) -> bool:
        """Return whether the pass must wait because this process is not fit for it.

        It then looks again soon: the trigger may have been a hint, and hints are not repeated.
        """
        self._is_put_off = not self._may_take()
        return self._is_put_off

    async def _take_named(self, chat_id: ChatId) -> None:
        """Take the one chat that was named, without listing others: they have their own hints, and the timer.

        If several are named they are ranked, so that one owner's burst does not come before another owner's first chat.
        """
        has_room = len(self._manager) < self._config.max_runners
        if self._manager.drives(chat_id) or not has_room or not self._may_take():
            return
        try:
            async with self._clock.deadline(self._config.database_seconds, "read-limits"):
                limits = await self._limits()
        except DATABASE_ERRORS as error:
            log.warning("acquire_failed", error=str(error) or type(error).__name__)
            return
        outcome = await self._take_one(chat_id, limits)
        self._stats.acquired[outcome] += 1
        if outcome == "full":
            self._is_short = True
            await self._ask_for_slots(limits)
        if outcome == "lost":
            # Another replica has it, or it is at rest. In the second case its hint means that a slot is free for
            # another chat.
            await self.run_pass()

    async def run_pass(self) -> int:
        """Take runnable chats in order of rank. Return the number of chats taken."""
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
            # Other replicas may have room for waiting chats, and lack only slots that chats here hold.
            await self._ask_for_slots(limits)
            return 0
        return await self._take(candidates, limits, room)

    async def _take(self, candidates: list[Candidate], limits: Limits, room: int) -> int:
        full: set[bool] = set()  # full pools, True for the pool of root chats
        won = lost = 0
        for candidate in candidates:
            if won == room or self._put_off():
                break
            if candidate.is_root in full and candidate.status == "running":
                continue
            outcome = await self._take_one(candidate.chat_id, limits)
            self._stats.acquired[outcome] += 1
            won += outcome == "won"
            lost += outcome == "lost"
            if outcome == "full":
                full.add(candidate.is_root)
            if won >= self._config.acquire_turn and self._named:
                break  # a chat came meanwhile that may rank before those on this list
        self._is_short = bool(full)
        if full or lost:
            # Another replica may be refused a slot that a chat here holds.
            await self._ask_for_slots(limits)
        if won and (won == room or lost or self._named):
            # There may be more chats than this list showed. Not after a pass that took nothing: it would repeat itself.
            self.wake()
        return won

    async def _ask_for_slots(self, limits: Limits) -> None:
        """Ask owners who hold more than their share to give up slots at the end of a step, because others wait."""
        try:
            async with self._clock.deadline(self._config.database_seconds, "find-donors"), self._pool.acquire() as conn:
                self._manager.ask_for_slots(await find_donors(conn, limits))
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
            chat = await take_free(
                self._machine, chat_id, worker_id=self._worker_id, runner_id=runner_id, limits=limits
            ) or await try_acquire(self._machine, chat_id, worker_id=self._worker_id, runner_id=runner_id, admit=admit)
        except (asyncio.CancelledError, CommitOutcomeUnknown) as error:
            # This process may own the chat by now, and would not drive it.
            self._abandon(chat_id, runner_id)
            if isinstance(error, asyncio.CancelledError):
                raise
            log.warning("acquire_failed", chat_id=chat_id, error=str(error))
            return "failed"
        except Exception as error:
            # One chat that cannot be taken must not keep the others from being taken.
            log.warning("acquire_failed", chat_id=chat_id, error=str(error) or type(error).__name__)
            return "failed"
        if chat is None:
            return "full" if is_refused else "lost"
        self._stats.chat_acquired(chat.runnable_since, self._clock.now())
        if taken_over is not None:
            self._stats.takeovers[taken_over] += 1
        if not self._manager.spawn(chat_id, runner_id, acquired=ChatState.of(chat), slot=Slot.of(chat)):
            self._abandon(chat_id, runner_id)
            return "closed"
        return "won"

    def _abandon(self, chat_id: ChatId, runner_id: UUID) -> None:
        self._inflight.start(
            lambda: try_abandon(self._machine, chat_id, worker_id=self._worker_id, runner_id=runner_id),
            name="abandon",
            seconds=self._config.cleanup_seconds,
        )

    def _may_take(self) -> bool:
        """Return whether this process may take chats: not while it is closed, fenced, or unable to keep what it has."""
        return not self._manager.is_closed and not self._manager.is_fenced and self._may_acquire()

    def _hinted(self, hint: OwnershipHint) -> None:
        self._named.add(ChatId(hint.chat_id))
        self._wanted.set()

    async def _until_wanted(self) -> None:
        config = self._config
        jitter = self._rng.uniform(1 - config.acquire_jitter, 1 + config.acquire_jitter)
        seconds = config.acquire_again_seconds if self._is_put_off else config.acquire_interval_seconds
        try:
            async with self._clock.deadline(seconds * jitter, "acquire"):
                await self._wanted.wait()
        except DeadlineExceeded:
            self._must_list = True

    async def _let_idle_ones_go_first(self) -> None:
        delay = self._config.acquire_delay_per_runner_seconds * len(self._manager)
        if self._named and self._has_peers and delay:
            await self._clock.sleep(min(delay, self._config.acquire_delay_max_seconds), "acquire-delay")

    async def _look_for_peers(self) -> None:
        """Read whether there are peers.

        Without any, passes need no delay. A late answer about a new peer does no harm.
        """
        try:
            async with self._clock.deadline(self._config.database_seconds, "has-peers"), self._pool.acquire() as conn:
                self._has_peers = await has_peers(conn, self._worker_id)
        except DATABASE_ERRORS as error:
            log.warning("peers_not_counted", error=str(error) or type(error).__name__)
