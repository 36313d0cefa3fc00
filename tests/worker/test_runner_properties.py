"""For any order of states, at most one task runs, and it is the task of the newest state."""

from __future__ import annotations

import asyncio
from typing import cast
from uuid import UUID

import asyncpg
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.loop.tool import CancelReason
from rookery.store.db.pubsub import Bus
from rookery.store.machine import ChatState, Machine
from rookery.testing.clock import FakeClock
from rookery.worker.config import WorkerConfig
from rookery.worker.runner import Runner, RunnerServices
from rookery.worker.stats import WorkerStats
from rookery.worker.tasks import TaskHandle, TaskKind, TaskLoop, Work
from tests.store.machine.machine_rig import Recorder

CHAT, WORKER, RUNNER, STRANGER = ChatId(UUID(int=1)), UUID(int=2), UUID(int=3), UUID(int=4)
OWNERS = {
    "own": (WORKER, RUNNER),
    "former self": (WORKER, STRANGER),
    "stranger": (STRANGER, STRANGER),
    "nobody": (None, None),
}

states = st.builds(
    lambda version, history, attempt, status, archived, owner: ChatState(
        CHAT, *OWNERS[owner], version, history, attempt, status, archived
    ),
    version=st.integers(1, 12),
    history=st.integers(1, 3),
    attempt=st.integers(0, 2),
    status=st.sampled_from([*map(str, Status), "of a newer version"]),
    archived=st.sampled_from([False, False, False, True]),
    owner=st.sampled_from(["own"] * 8 + ["former self", "stranger", "nobody"]),
)
moves = st.one_of(
    st.tuples(st.just("process"), states),
    st.tuples(st.just("process"), states),
    st.tuples(st.just("look"), states),
    st.tuples(st.sampled_from(["repeat", "fence", "resume", "drain", "end", "turn", "release"]), st.none()),
)


class Watched:
    """A runner whose work only waits, and a record of all its tasks."""

    def __init__(self) -> None:
        clock, config, stats = FakeClock(), WorkerConfig(), WorkerStats()
        self.stats = stats
        self.lost = 0
        self.inside: dict[tuple[int, Status], int] = {}
        self.ends = asyncio.Event()  # their tasks end by themselves
        self.leaves = asyncio.Event()  # cancelled tasks end
        self.runner = Runner(
            CHAT,
            RUNNER,
            services=RunnerServices(
                worker_id=WORKER,
                machine=Machine(cast("asyncpg.Pool", None), Recorder()),  # nothing reads or writes here
                bus=Bus(),
                clock=clock,
                config=config,
                stats=stats,
                tasks=TaskLoop(clock=clock, config=config, stats=stats),
                work_of=self._work_of,
            ),
            on_lost=self._lost,
        )

    def _lost(self) -> None:
        # The manager does the same.
        self.lost += 1
        self.runner.cancel_tasks(CancelReason.LEASE_LOST)

    def _work_of(self, _: TaskKind) -> Work:
        return self._stay

    async def _stay(self, handle: TaskHandle) -> None:
        key = handle.input.key
        self.inside[key] = self.inside.get(key, 0) + 1
        assert self.inside[key] == 1, "two tasks of one key are inside"
        try:
            await self.ends.wait()
        except asyncio.CancelledError:
            await self.leaves.wait()
            raise
        finally:
            self.inside[key] -= 1

    async def make(self, move: str, state: ChatState | None) -> None:
        runner = self.runner
        match move:
            case "process":
                assert state is not None
                runner._process(state)
            case "look":
                # The same as `_reread` with a row, which is never older than the known states.
                assert state is not None
                accepted = runner._accepted
                if accepted is not None and runner._is_idle and state.snapshot_version >= accepted.snapshot_version:
                    if state.snapshot_version == accepted.snapshot_version:
                        state = accepted
                    active, stalls = runner._active, self.stats.task_stalls.total()
                    runner._restart_work(state)
                    if self.stats.task_stalls.total() > stalls:
                        assert active is not None
                        assert not active.is_cancelled
                        assert active.input.key == (state.history_version, state.status), "it had moved the chat"
            case "repeat" if runner._accepted is not None:
                runner._process(runner._accepted)
            case "fence":
                runner.fence_off()
            case "resume":
                runner.resume()
            case "drain":
                runner.drain()
            case "end":
                self.ends.set()
                await turns()
                self.ends.clear()
            case "release":
                self.leaves.set()
                await turns()
                self.leaves.clear()
            case "turn":
                await turns()

    def check(self, before: ChatState | None) -> None:
        runner = self.runner
        live = [record for record in runner._records if not record.is_done and not record.is_cancelled]
        accepted = runner._accepted
        assert len(live) <= 1
        if before is not None:
            assert accepted is not None
            assert accepted.snapshot_version >= before.snapshot_version
        if accepted is None:
            assert live == []
            return
        is_ours = (accepted.worker_id, accepted.runner_id) == OWNERS["own"] and accepted.status in set(Status)
        assert self.lost == int(runner._is_ended)
        if not is_ours:
            assert self.lost == 1
        if self.lost or runner._is_fenced:
            assert live == []
        for record in live:
            assert runner._active is record
            assert record.input.key == (accepted.history_version, accepted.status)
            assert record.input.kind in (runner._kind_of(accepted), _kind_without_drain(accepted))

    async def close(self) -> None:
        self.runner.cancel_tasks(CancelReason.SHUTDOWN)
        self.leaves.set()
        self.ends.set()
        await self.runner._wait_for_tasks()


def _kind_without_drain(state: ChatState) -> TaskKind:
    kinds = {
        "running": TaskKind.GENERATION,
        "interrupting": TaskKind.INTERRUPT,
        "requires_action": TaskKind.ACTION_TIMEOUT,
    }
    return TaskKind.ABANDON if state.archived else kinds.get(state.status, TaskKind.ABANDON)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def _play(script: list[tuple[str, ChatState | None]]) -> None:
    watched = Watched()
    try:
        for move, state in script:
            before = watched.runner._accepted
            await watched.make(move, state)
            watched.check(before)
    finally:
        await watched.close()
    assert all(record.is_done for record in watched.runner._records)


@settings(max_examples=400)
@given(st.lists(moves, max_size=25))
def test_at_most_one_task_is_at_work_and_it_is_that_of_the_newest_state(
    script: list[tuple[str, ChatState | None]],
) -> None:
    asyncio.run(_play(script))


@settings(max_examples=200)
@given(st.lists(states, max_size=12))
def test_every_order_of_the_same_states_ends_with_the_work_of_the_newest(heard: list[ChatState]) -> None:
    """All states have this owner and different versions, because of two states with one version the first counts."""
    unique = {
        state.snapshot_version: state
        for state in heard
        if (state.worker_id, state.runner_id) == OWNERS["own"] and state.status in set(Status)
    }

    async def play(order: list[ChatState]) -> tuple[object, ...] | None:
        watched = Watched()
        for state in order:
            watched.runner._process(state)
            await turns()
        active = watched.runner.active
        await watched.close()
        return None if active is None else (active.kind, *active.key)

    versions = sorted(unique)
    ends = {asyncio.run(play([unique[version] for version in order])) for order in (versions, versions[::-1])}

    expected = None
    if versions:
        newest = unique[versions[-1]]
        expected = (_kind_without_drain(newest), newest.history_version, newest.status)
    assert ends == {expected}
