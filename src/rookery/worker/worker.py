"""The worker of a replica: builds the parts that run chats, and starts, drains and closes them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from rookery.agents.advisor import AdvisorStats
from rookery.agents.subagent_monitor import SubagentMonitor
from rookery.debug.turn_recording import Recordings
from rookery.domain.chat.retry_policy import DEFAULT_POLICY, RetryPolicy
from rookery.domain.models.options import DEFAULT_MAX_OUTPUT_TOKENS
from rookery.live.part_buffer import PartBuffer, PartLimits
from rookery.loop.config import LoopConfig
from rookery.loop.tool_batch import UnfinishedTools
from rookery.models.call_stats import CallStats
from rookery.models.connector import Connector
from rookery.models.directory import Directory
from rookery.runtime.cache import Cache
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.runtime.shared_tick import SharedTick
from rookery.store.chats.step_reads import HistoryCache
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.pubsub import Bus
from rookery.store.machine import Machine, Publisher, release_leases
from rookery.store.machine.capacity import Limits
from rookery.telemetry.log import get_logger
from rookery.tools.mcp_stats import McpUseStats
from rookery.tools.step_tools import Toolbox
from rookery.worker import billing
from rookery.worker.acquire import Acquirer
from rookery.worker.chat_release import AbandonWork, GiveWay, SlotRequests
from rookery.worker.client_tool_timeout import ActionTimeoutWork
from rookery.worker.config import WorkerConfig
from rookery.worker.disabled_users import DisabledUsers
from rookery.worker.follow_up_work import FollowUpWork
from rookery.worker.generation import GenerationWork
from rookery.worker.housekeeping import Housekeeping, make_jobs
from rookery.worker.interrupt import InterruptWork
from rookery.worker.leases import LeaseKeeper
from rookery.worker.memory_upkeep import Memory
from rookery.worker.runner import RunnerServices
from rookery.worker.runner_manager import RunnerManager
from rookery.worker.search_indexer import SearchIndexer
from rookery.worker.stats import WorkerStats
from rookery.worker.step_actions import StepServices
from rookery.worker.step_preparation import Preparer
from rookery.worker.tasks import TaskKind, TaskLoop, Work
from rookery.worker.turn_end_effects import Effects
from rookery.worker.turn_traces import RELEASED, TurnTraces

log = get_logger("worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerServices:
    """The dependencies of a worker.

    `connect` opens a database connection that is not shared; its argument names the connection. `may_acquire` returns
    whether this process may take more chats: it holds its presence lock, and its event loop is not late. `may_commit`
    returns whether it holds its presence lock; if not, peers may soon take over its chats. `caches` are the caches of
    the toolbox, which are swept together with the worker's own. Without `recordings`, there are no debug records.
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
    advisor_stats: AdvisorStats = field(default_factory=AdvisorStats)
    mcp_stats: McpUseStats = field(default_factory=McpUseStats)
    call_stats: CallStats = field(default_factory=CallStats)
    recordings: Recordings | None = None
    part_limits: PartLimits = field(default_factory=PartLimits)
    tick: SharedTick = field(default_factory=SharedTick)
    new_id: Callable[[], UUID] = uuid4


class Worker:
    """The worker. `run` runs chats until cancelled; `drain` and `close` end it. `buffer` holds their live parts."""

    def __init__(self, services: WorkerServices) -> None:
        self._services = services
        self._clock, self._config = services.clock, services.config
        self._is_draining = False
        self._is_closed = False
        self.stats = WorkerStats(calls=services.call_stats)
        self.buffer = PartBuffer(services.clock, limits=services.part_limits, tick=services.tick)
        # Histories stay cached after their runner has ended, because the next message often arrives soon.
        self.cache = HistoryCache(clock=services.clock)
        self._inflight = FollowUpWork(services.clock)
        self.traces = TurnTraces(services.worker_id, pool=services.pool, inflight=self._inflight)
        self._unfinished_tools = UnfinishedTools()
        self._preparer = Preparer(
            services.directory,
            services.connector,
            services.toolbox,
            pool=services.pool,
            clock=services.clock,
            max_steps=services.max_steps,
            max_output_tokens=services.max_output_tokens,
            search_stats=services.mcp_stats.search,
        )
        self.caches: tuple[Cache[Any, Any], ...] = (
            self.cache.entries,
            *self._preparer.caches,
            *services.connector.caches,
            *services.caches,
        )
        self.memory = Memory(
            self.caches,
            clock=services.clock,
            running_chats=lambda: self.manager.chats(),
            count_turns=self.stats.turns.total,
            is_busy=lambda: self.manager.is_at_work,
        )
        self.advisor_stats = services.advisor_stats
        self.mcp_stats = services.mcp_stats
        self.subagents = SubagentMonitor(
            services.machine,
            services.directory,
            pool=services.pool,
            clock=services.clock,
            every_seconds=services.config.subagent_interval_seconds,
        )
        self.effects = Effects(
            pool=services.pool,
            publisher=services.publisher,
            directory=services.directory,
            connector=services.connector,
            inflight=self._inflight,
            clock=services.clock,
            rng=services.rng,
            wake_parent=self.subagents.wake,
            config=services.config,
            retry=services.retry,
            stats=self.stats.calls,
            recordings=services.recordings,
        )
        slot_requests = SlotRequests()
        work = self._work(slot_requests)
        self.manager = RunnerManager(
            RunnerServices(
                worker_id=services.worker_id,
                machine=services.machine,
                bus=services.bus,
                clock=services.clock,
                config=services.config,
                stats=self.stats,
                tasks=TaskLoop(clock=services.clock, config=services.config, stats=self.stats),
                work_of=work.__getitem__,
                may_commit=services.may_commit,
                slot_requests=slot_requests,
                recordings=services.recordings,
                new_id=services.new_id,
            ),
            pool=services.pool,
            inflight=self._inflight,
            on_free=self._slot_freed,
            on_released=lambda chat_id: self.traces.end(chat_id, RELEASED),
        )
        self.leases = LeaseKeeper(
            self.manager, self._connect_leases, clock=services.clock, config=services.config, stats=self.stats
        )
        self._acquirer = Acquirer(
            self.manager,
            services.machine,
            worker_id=services.worker_id,
            pool=services.pool,
            bus=services.bus,
            clock=services.clock,
            rng=services.rng,
            config=services.config,
            stats=self.stats,
            inflight=self._inflight,
            limits=self._limits,
            may_acquire=self._may_acquire,
            new_id=services.new_id,
        )
        jobs = make_jobs(
            services.machine,
            services.pool,
            lambda: services.connect("housekeeping"),
            publisher=services.publisher,
            clock=services.clock,
            config=services.config,
            stats=self.stats,
        )
        self._search_indexer = SearchIndexer(services.pool, services.bus, clock=services.clock)
        self.housekeeping = Housekeeping(
            jobs,
            replica_id=services.worker_id,
            pool=services.pool,
            clock=services.clock,
            rng=services.rng,
            stats=self.stats,
        )

        self.disabled_users = DisabledUsers(
            services.machine,
            services.pool,
            publisher=services.publisher,
            clock=services.clock,
            every_seconds=services.config.disabled_interval_seconds,
        )

    @property
    def inflight_tasks(self) -> int:
        """Return the number of running background tasks."""
        return len(self._inflight)

    def wake(self) -> None:
        """Look for runnable chats now, because a slot is free or a peer has died."""
        self._acquirer.wake()

    async def run(self) -> None:
        """Run all loops until cancelled. If one loop fails, all end, and the process exits."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._acquirer.run(), name="acquire")
            group.create_task(self.manager.run_sync(), name="sync")
            group.create_task(self.leases.run(), name="leases")
            group.create_task(self.leases.run_watch(), name="self-fence")
            group.create_task(self.buffer.run(), name="part-buffer")
            group.create_task(self.memory.run(), name="memory")
            group.create_task(self.housekeeping.run(), name="housekeeping")
            group.create_task(self._search_indexer.run(), name="search-indexer")
            group.create_task(self.disabled_users.run(), name="disabled-users")
            group.create_task(self.subagents.run(), name="subagents")

    def stop_acquiring(self) -> None:
        """Take no more chats. Chats that run here continue."""
        self._is_draining = True

    async def drain(self) -> None:
        """Take no more chats, and wait at most `drain_seconds` until the running steps end."""
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
            # The leases are released before the runners have ended, so that other replicas need not wait for them.
            self._inflight.start(lambda: self._release(keys), name="release", seconds=self._config.cleanup_seconds)
        try:
            async with self._clock.deadline(2 * self._config.cleanup_seconds, "close-runners"):
                await self.manager.wait_idle()
        except DeadlineExceeded:
            # Tasks that ignore their cancellation end with the process. Their commits fail at the fence.
            log.warning("runners_left", runners=len(self.manager))
        await self._inflight.close(self._config.cleanup_seconds)
        await self._unfinished_tools.close(self._clock, self._config.cleanup_seconds)
        self.buffer.close()

    async def wait_idle(self) -> None:
        """Return when no runner and no background task is left. Used by tests."""
        await self.manager.wait_idle()
        await self._inflight.wait_idle()

    def _work(self, slot_requests: SlotRequests) -> dict[TaskKind, Work]:
        services = self._services
        meters = billing.Meters()
        actions = StepServices(
            preparer=self._preparer,
            buffer=self.buffer,
            pool=services.pool,
            clock=services.clock,
            effects=self.effects,
            ledger=billing.Ledger(services.pool, self._inflight),
            meters=meters,
            unfinished_tools=self._unfinished_tools,
            stats=self.stats,
            traces=self.traces,
            loop=services.loop,
            retry=services.retry,
            new_id=services.new_id,
            step_stats=self.stats.calls,
            tool_stats=self.stats.tools,
        )
        leave = AbandonWork()
        return {
            TaskKind.GENERATION: GenerationWork(
                services.machine,
                actions,
                cache=self.cache,
                config=services.config,
                rng=services.rng,
                give_way=GiveWay(slot_requests, self._limits, self.stats),
            ),
            TaskKind.INTERRUPT: InterruptWork(
                services.machine,
                self.buffer,
                meters=meters,
                cache=self.cache,
                clock=services.clock,
                effects=self.effects,
                stats=self.stats,
                traces=self.traces,
            ),
            TaskKind.ACTION_TIMEOUT: ActionTimeoutWork(services.machine, leave),
            TaskKind.ABANDON: leave,
        }

    def _slot_freed(self) -> None:
        self._acquirer.slot_freed()

    async def _limits(self) -> Limits:
        return (await self._preparer.chat_settings()).limits

    def _may_acquire(self) -> bool:
        return not self._is_draining and not self.leases.is_fenced and self._services.may_acquire()

    async def _connect_leases(self) -> asyncpg.Connection:
        # A renewal need not survive a crash of the database, because the next one follows within seconds.
        connection = await self._services.connect("leases")
        await connection.execute("SET synchronous_commit = off")
        return connection

    async def _release(self, keys: Sequence[tuple[UUID, UUID]]) -> None:
        try:
            async with self._services.pool.acquire() as conn:
                hints = await release_leases(conn, keys)
        except DATABASE_ERRORS as error:
            log.warning("leases_not_released", leases=len(keys), error=str(error) or type(error).__name__)
            return
        self._services.publisher.publish(hints)
