"""A rig for runners: real leases, runners and tasks on a real database.

Tests define the work, and there is no model.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from uuid import UUID, uuid4

import asyncpg

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import Transition
from rookery.loop.tool import CancelReason
from rookery.store.db.hints import Hint
from rookery.store.db.pubsub import Bus, Listener, Notifier
from rookery.store.machine import Machine, Tx, leave, try_acquire
from rookery.store.machine.capacity import Limits
from rookery.store.machine.ownership import LeaseKey
from rookery.testing.clock import FakeClock
from rookery.worker.acquire import Acquirer
from rookery.worker.config import WorkerConfig
from rookery.worker.follow_up_work import FollowUpWork
from rookery.worker.leases import LeaseKeeper
from rookery.worker.runner import Runner, RunnerServices
from rookery.worker.runner_manager import RunnerManager
from rookery.worker.stats import WorkerStats
from rookery.worker.tasks import TaskHandle, TaskKind, TaskLoop, Work
from tests.eventually import until
from tests.store.machine.machine_rig import Rig, add_replica, make_rig

UNLIMITED = Limits(running_roots=0, running_subagents=0)


class Run:
    """One try of a task's work. It waits for an instruction of the test or for its cancellation."""

    def __init__(self, handle: TaskHandle) -> None:
        self.handle = handle
        self.is_over = False
        self.is_cancelled = False
        self.reason: CancelReason | None = None  # the reason that a tool reads when it is cancelled
        self.is_stubborn = False  # keeps the work running after its cancellation, until `let_go` is set
        self.let_go = asyncio.Event()
        self._todo: asyncio.Future[Work] = asyncio.get_running_loop().create_future()

    @property
    def kind(self) -> TaskKind:
        return self.handle.input.kind

    def end(self) -> None:
        """Return without changing the chat."""
        self.do(_nothing)

    def fail(self, error: BaseException) -> None:
        if not self._todo.done():
            self._todo.set_exception(error)

    def do(self, work: Work) -> None:
        self._todo.set_result(work)

    def commit(self, fn: Callable[[Tx], Awaitable[object]]) -> None:
        """Apply a transition and return."""

        async def update(handle: TaskHandle) -> None:
            await handle.update(fn, transition=Transition.COMMIT_STEP)

        self.do(update)

    async def __call__(self) -> None:
        try:
            work = await self._todo
            await work(self.handle)
        except asyncio.CancelledError:
            self.is_cancelled = True
            self.reason = self.handle.cancellation.reason
            if self.is_stubborn:
                await self.let_go.wait()
            raise
        finally:
            self.is_over = True


async def _nothing(_: TaskHandle) -> None:
    """Work that does not change the chat."""


async def let_go(handle: TaskHandle) -> None:
    """The work of an abandon task, without its hint."""
    await handle.update(leave, transition=Transition.ABANDON)


class Works:
    """All work of a replica in the order of its start. `scripts` define the work of a kind; other kinds wait."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.scripts: dict[TaskKind, Work] = {TaskKind.ABANDON: let_go}

    def of(self, kind: TaskKind) -> Work:
        async def work(handle: TaskHandle) -> None:
            run = Run(handle)
            self.runs.append(run)
            if (script := self.scripts.get(kind)) is not None:
                run.do(script)
            await run()

        return work

    def live(self, chat_id: UUID | None = None) -> list[Run]:
        return [run for run in self.runs if not run.is_over and chat_id in (None, run.handle.input.chat_id)]

    def kinds(self, chat_id: UUID | None = None) -> list[TaskKind]:
        return [run.kind for run in self.runs if chat_id in (None, run.handle.input.chat_id)]

    def by_chat(self) -> dict[ChatId, list[Run]]:
        found: dict[ChatId, list[Run]] = defaultdict(list)
        for run in self.runs:
            found[run.handle.input.chat_id].append(run)
        return found

    async def started(self, count: int) -> Run:
        """Wait until this many have started in all. Return the last of them."""
        await until(lambda: len(self.runs) >= count)
        return self.runs[count - 1]


class Heard:
    """A publisher that records all hints and passes them on."""

    def __init__(self, notifier: Notifier) -> None:
        self.hints: list[Hint] = []
        self.is_silent = False  # drops all hints
        self._notifier = notifier

    def publish(self, hints: Sequence[Hint]) -> None:
        self.hints.extend(hints)
        if not self.is_silent:
            self._notifier.publish(hints)


class Replica:
    """The worker parts of one process, wired as in the composition root, with a clock that the test controls."""

    def __init__(
        self,
        rig: Rig,
        url: str,
        *,
        worker_id: UUID,
        config: WorkerConfig,
        limits: Limits = UNLIMITED,
        pool: asyncpg.Pool | None = None,
    ) -> None:
        self.rig = rig
        self.worker_id = worker_id
        self.config = config
        self.limits = limits
        self.clock = FakeClock()
        self.bus = Bus()
        self.pool = pool or rig.pool
        self.notifier = Notifier(rig.pool, self.bus, strict=True)
        self.published = Heard(self.notifier)
        self.machine = Machine(self.pool, self.published)
        self.stats = WorkerStats()
        self.works = Works()
        self.inflight = FollowUpWork(self.clock)
        self.is_fit = True
        self.is_cut_off = False
        self.frees = 0
        self._url = url
        self._loops: set[asyncio.Task[object]] = set()
        self.services = RunnerServices(
            worker_id=worker_id,
            machine=self.machine,
            bus=self.bus,
            clock=self.clock,
            config=config,
            stats=self.stats,
            tasks=TaskLoop(clock=self.clock, config=config, stats=self.stats),
            work_of=self.works.of,
        )
        self.manager = RunnerManager(self.services, pool=self.pool, inflight=self.inflight, on_free=self._freed)
        self.leases = LeaseKeeper(self.manager, self._connect, clock=self.clock, config=config, stats=self.stats)
        self.acquirer = Acquirer(
            self.manager,
            self.machine,
            worker_id=worker_id,
            pool=self.pool,
            bus=self.bus,
            clock=self.clock,
            rng=Random(7),
            config=config,
            stats=self.stats,
            inflight=self.inflight,
            limits=self._limits,
            may_acquire=lambda: self.is_fit,
        )

    # Actions

    def start(self, loop: Awaitable[object]) -> asyncio.Task[object]:
        task = asyncio.ensure_future(loop)
        self._loops.add(task)
        return task

    async def listen(self) -> None:
        """Exchange hints with other replicas."""
        listener = Listener(self._connect, self.bus, clock=self.clock, rng=Random(7))
        self.start(self.notifier.run())
        self.start(listener.run())
        await listener.wait_connected()

    async def acquire(self, chat_id: ChatId) -> LeaseKey:
        """Acquire the chat as a pass does, without starting a runner."""

        async def admit(_: Tx) -> bool:
            return True

        runner_id = uuid4()
        chat = await try_acquire(self.machine, chat_id, worker_id=self.worker_id, runner_id=runner_id, admit=admit)
        assert chat is not None
        return chat_id, runner_id

    async def drive(self, chat_id: ChatId) -> Runner:
        """Acquire the chat and start its runner."""
        key = await self.acquire(chat_id)
        assert self.manager.spawn(*key_of(key))
        runner = self.manager.runner(key)
        assert runner is not None
        return runner

    async def gone(self, runner: Runner) -> None:
        """Wait until the runner has ended and its heartbeat is deleted."""
        await until(lambda: runner.key not in self.manager.all_keys())
        await self.inflight.wait_idle()

    async def turns(self) -> None:
        """Run the event loop until all tasks wait for input or output."""
        await self.clock.advance(0)

    def cut_off(self) -> None:
        """Make the database unreachable for the leases, including the open connection."""
        self.is_cut_off = True
        self.leases._disconnect()

    async def close(self) -> None:
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self.leases._disconnect()
        for run in self.works.runs:
            run.let_go.set()
        self.manager.close()
        async with asyncio.timeout(10):
            await self.manager.wait_idle()
            await self.inflight.wait_idle()

    def _freed(self) -> None:
        self.frees += 1
        self.acquirer.wake()

    async def _limits(self) -> Limits:
        return self.limits

    async def _connect(self) -> asyncpg.Connection:
        if self.is_cut_off:
            return await asyncpg.connect(f"postgresql://rookery@127.0.0.1:{closed_port()}/none")
        return await asyncpg.connect(self._url)


def key_of(key: LeaseKey) -> tuple[ChatId, UUID]:
    return ChatId(key[0]), key[1]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RunnerRig:
    """A database, its chats, and the replicas that use it."""

    def __init__(self, rig: Rig, url: str) -> None:
        self.rig = rig
        self.url = url
        self.replicas: list[Replica] = []

    async def replica(
        self, *, limits: Limits = UNLIMITED, pool: asyncpg.Pool | None = None, **numbers: float
    ) -> Replica:
        async with self.rig.pool.acquire() as conn:
            worker_id = await add_replica(conn)
        config = WorkerConfig(**numbers)  # type: ignore[arg-type]
        made = Replica(self.rig, self.url, worker_id=worker_id, config=config, limits=limits, pool=pool)
        self.replicas.append(made)
        return made

    async def age_leases(self, seconds: float = 31.0, chat_id: UUID | None = None) -> None:
        """Age the leases by the clock of the database."""
        await self.rig.sql(
            "UPDATE chat_heartbeats SET heartbeat_at = heartbeat_at - make_interval(secs => $1)"
            " WHERE $2::uuid IS NULL OR chat_id = $2",
            seconds,
            chat_id,
        )

    async def heartbeats(self) -> set[LeaseKey]:
        async with self.rig.pool.acquire() as conn:
            return {tuple(record) for record in await conn.fetch("SELECT chat_id, runner_id FROM chat_heartbeats")}

    async def fresh(self) -> set[LeaseKey]:
        async with self.rig.pool.acquire() as conn:
            records = await conn.fetch(
                "SELECT chat_id, runner_id FROM chat_heartbeats"
                " WHERE heartbeat_at > clock_timestamp() - interval '20 seconds'"
            )
        return {tuple(record) for record in records}

    async def status(self, chat_id: UUID) -> Status:
        return Status((await self.rig.load(chat_id)).status)

    async def delete(self, chat_id: UUID) -> None:
        """Delete the row without a hint."""
        await self.rig.sql("DELETE FROM chats WHERE id = $1", chat_id)


@asynccontextmanager
async def make_site(url: str) -> AsyncIterator[RunnerRig]:
    async with make_rig(url) as rig:
        site = RunnerRig(rig, url)
        try:
            yield site
        finally:
            for replica in site.replicas:
                await replica.close()
