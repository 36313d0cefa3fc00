"""The worker of a replica: wires everything that drives chats, and starts, drains and closes it in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from rookery.domain.chat.retry_policy import DEFAULT_POLICY, RetryPolicy
from rookery.domain.models.options import DEFAULT_MAX_OUTPUT_TOKENS
from rookery.live.limits import PartLimits
from rookery.live.part_buffer import PartBuffer
from rookery.loop.config import LoopConfig
from rookery.loop.unfinished_tools import Stragglers
from rookery.models.connect import Connector
from rookery.models.directory import Directory
from rookery.runtime.cache import Cache
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.chats.step_reads import HistoryCache
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.pubsub import Bus
from rookery.store.machine import Machine, Publisher, release_leases
from rookery.store.machine.capacity import Limits
from rookery.telemetry.log import get_logger
from rookery.tools.step_tools import Toolbox
from rookery.worker import billing
from rookery.worker.abandon import AbandonWork
from rookery.worker.acquire import Acquirer
from rookery.worker.background_tasks import BackgroundTasks
from rookery.worker.client_tool_timeout import ActionTimeoutWork
from rookery.worker.config import WorkerConfig
from rookery.worker.disabled_users import DisabledUsers
from rookery.worker.effects import Effects
from rookery.worker.fair_share import Askings, GiveWay
from rookery.worker.generation import GenerationWork
from rookery.worker.housekeeping import Housekeeping, make_jobs
from rookery.worker.interrupt import InterruptWork
from rookery.worker.leases import LeaseKeeper
from rookery.worker.manager import RunnerManager
from rookery.worker.memory import Memory
from rookery.worker.prepare import Preparer
from rookery.worker.runner import RunnerParts
from rookery.worker.stats import WorkerStats
from rookery.worker.step_actions import ActParts
from rookery.worker.tasks import TaskKind, TaskLoop, Work

log = get_logger("worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerServices:
    """The dependencies of a worker. `connect` opens a connection that is not shared, named after its purpose.

    `may_acquire` returns whether the process may take more chats: it holds its presence, and its event loop is not
    late. `may_commit` returns whether it holds its presence; if not, peers may be about to take over its chats.
    `caches` are the caches of the toolbox, which are swept together with the worker's own.
    """

    worker_id: UUID
    machine: Machine
    pool: asyncpg.Pool
    connect: Callable[[str], Awaitable[asyncpg.Connection]]
    bus: Bus
    publisher: Publisher
    directory: Directory
    connector: Connector
    toolbox: Toolbox
    clock: Clock
    rng: Random
    may_acquire: Callable[[], bool] = lambda: True
    may_commit: Callable[[], bool] = lambda: True
    config: WorkerConfig = field(default_factory=WorkerConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    retry: RetryPolicy = DEFAULT_POLICY
    max_steps: int = 1200
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    caches: Sequence[Cache[Any, Any]] = ()
    part_limits: PartLimits = field(default_factory=PartLimits)
    new_id: Callable[[], UUID] = uuid4


class Worker:
    """The worker. `run` drives chats; `drain` and `close` end it. `buffer` holds the live parts of its chats."""

    def __init__(self, parts: WorkerServices) -> None:
        self._parts = parts
        self._clock, self._config = parts.clock, parts.config
        self._is_draining = False
        self._is_closed = False
        self.stats = WorkerStats()
        self.buffer = PartBuffer(parts.clock, limits=parts.part_limits)
        # Keeps histories of chats whose runner has ended: the next message usually comes soon, and to the same replica.
        self.cache = HistoryCache(clock=parts.clock)
        self._inflight = BackgroundTasks(parts.clock)
        self._stragglers = Stragglers()
        self._preparer = Preparer(
            parts.directory,
            parts.connector,
            parts.toolbox,
            pool=parts.pool,
            clock=parts.clock,
            max_steps=parts.max_steps,
            max_output_tokens=parts.max_output_tokens,
        )
        self.caches: tuple[Cache[Any, Any], ...] = (
            self.cache.entries,
            *self._preparer.caches,
            *parts.connector.caches,
            *parts.caches,
        )
        self.memory = Memory(
            self.caches,
            clock=parts.clock,
            running_chats=lambda: self.manager.chats(),
            count_turns=self.stats.turns.total,
            is_busy=lambda: self.manager.is_at_work,
        )
        self.effects = Effects(
            pool=parts.pool,
            publisher=parts.publisher,
            directory=parts.directory,
            connector=parts.connector,
            inflight=self._inflight,
            clock=parts.clock,
            rng=parts.rng,
            config=parts.config,
            retry=parts.retry,
            stats=self.stats.calls,
        )
        askings = Askings()
        work = self._work(askings)
        self.manager = RunnerManager(
            RunnerParts(
                worker_id=parts.worker_id,
                machine=parts.machine,
                bus=parts.bus,
                clock=parts.clock,
                config=parts.config,
                stats=self.stats,
                tasks=TaskLoop(clock=parts.clock, config=parts.config, stats=self.stats),
                work_of=work.__getitem__,
                may_commit=parts.may_commit,
                askings=askings,
                new_id=parts.new_id,
            ),
            pool=parts.pool,
            inflight=self._inflight,
            on_free=self.wake,
        )
        self.leases = LeaseKeeper(
            self.manager, self._connect_leases, clock=parts.clock, config=parts.config, stats=self.stats
        )
        self._acquirer = Acquirer(
            self.manager,
            parts.machine,
            worker_id=parts.worker_id,
            pool=parts.pool,
            bus=parts.bus,
            clock=parts.clock,
            rng=parts.rng,
            config=parts.config,
            stats=self.stats,
            inflight=self._inflight,
            limits=self._limits,
            may_acquire=self._may_acquire,
            new_id=parts.new_id,
        )
        jobs = make_jobs(
            parts.machine,
            parts.pool,
            lambda: parts.connect("housekeeping"),
            publisher=parts.publisher,
            clock=parts.clock,
            config=parts.config,
            stats=self.stats,
        )
        self.housekeeping = Housekeeping(
            jobs,
            replica_id=parts.worker_id,
            pool=parts.pool,
            clock=parts.clock,
            rng=parts.rng,
            stats=self.stats,
        )

        self.disabled_users = DisabledUsers(
            parts.machine,
            parts.pool,
            publisher=parts.publisher,
            clock=parts.clock,
            every_seconds=parts.config.disabled_interval_seconds,
        )

    @property
    def inflight_tasks(self) -> int:
        """Return the number of background effects that are running."""
        return len(self._inflight)

    def wake(self) -> None:
        """Look for chats now: a slot is free, or a peer has died."""
        self._acquirer.wake()

    async def run(self) -> None:
        """Run all loops until cancelled. If one loop fails, the others end with it, and so does the process."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._acquirer.run(), name="acquire")
            group.create_task(self.manager.run_sync(), name="sync")
            group.create_task(self.leases.run(), name="leases")
            group.create_task(self.leases.run_watch(), name="self-fence")
            group.create_task(self.buffer.run(), name="part-buffer")
            group.create_task(self.memory.run(), name="memory")
            group.create_task(self.housekeeping.run(), name="housekeeping")
            group.create_task(self.disabled_users.run(), name="disabled-users")

    def stop_acquiring(self) -> None:
        """Take no more chats; the chats that run here go on."""
        self._is_draining = True

    async def drain(self) -> None:
        """Take no more chats and let running steps end, for at most `drain_seconds`. Cancel it to stop waiting."""
        self.stop_acquiring()
        self.manager.drain()
        try:
            async with self._clock.deadline(self._config.drain_seconds, "drain"):
                await self.manager.wait_idle()
        except DeadlineExceeded:
            log.info("drain_cut", runners=len(self.manager))

    async def close(self) -> None:
        """Stop the remaining runners and release their chats, so that other replicas can take them. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = self._is_draining = True
        keys = self.manager.all_keys()
        self.manager.close()
        if keys:
            # Release before the runners have ended: they may take a while, and their chats are free already.
            self._inflight.start(lambda: self._release(keys), name="release", seconds=self._config.cleanup_seconds)
        try:
            async with self._clock.deadline(2 * self._config.cleanup_seconds, "close-runners"):
                await self.manager.wait_idle()
        except DeadlineExceeded:
            # Tasks that ignore their cancellation end with the process; their commits fail at the fence.
            log.warning("runners_left", runners=len(self.manager))
        await self._inflight.close(self._config.cleanup_seconds)
        await self._stragglers.close(self._clock, self._config.cleanup_seconds)
        self.buffer.close()

    async def wait_idle(self) -> None:
        """Return when no runner and no background effect is left; for tests."""
        await self.manager.wait_idle()
        await self._inflight.wait_idle()

    def _work(self, askings: Askings) -> dict[TaskKind, Work]:
        parts = self._parts
        meters = billing.Meters()
        acts = ActParts(
            preparer=self._preparer,
            buffer=self.buffer,
            pool=parts.pool,
            clock=parts.clock,
            effects=self.effects,
            ledger=billing.Ledger(parts.pool, self._inflight),
            meters=meters,
            stragglers=self._stragglers,
            stats=self.stats,
            loop=parts.loop,
            retry=parts.retry,
            new_id=parts.new_id,
            step_stats=self.stats.calls,
            tool_stats=self.stats.tools,
        )
        leave = AbandonWork(parts.publisher, self._limits)
        return {
            TaskKind.GENERATION: GenerationWork(
                parts.machine,
                acts,
                cache=self.cache,
                config=parts.config,
                rng=parts.rng,
                give_way=GiveWay(askings, self._limits, self.stats),
            ),
            TaskKind.INTERRUPT: InterruptWork(
                parts.machine,
                self.buffer,
                meters=meters,
                cache=self.cache,
                clock=parts.clock,
                effects=self.effects,
                stats=self.stats,
            ),
            TaskKind.ACTION_TIMEOUT: ActionTimeoutWork(parts.machine, leave),
            TaskKind.ABANDON: leave,
        }

    async def _limits(self) -> Limits:
        return (await self._preparer.chat_settings()).limits

    def _may_acquire(self) -> bool:
        return not self._is_draining and not self.leases.is_fenced and self._parts.may_acquire()

    async def _connect_leases(self) -> asyncpg.Connection:
        """Lease renewals need not survive a database crash: the next one follows within seconds."""
        connection = await self._parts.connect("leases")
        await connection.execute("SET synchronous_commit = off")
        return connection

    async def _release(self, keys: Sequence[tuple[UUID, UUID]]) -> None:
        try:
            async with self._parts.pool.acquire() as conn:
                hints = await release_leases(conn, keys)
        except DATABASE_ERRORS as error:
            log.warning("leases_not_released", leases=len(keys), error=str(error) or type(error).__name__)
            return
        self._parts.publisher.publish(hints)
