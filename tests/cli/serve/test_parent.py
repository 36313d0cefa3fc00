"""Restarts of replicas by the parent, and when it gives up, with fake children and a fake clock."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from rookery.cli.exit_codes import Exit
from rookery.cli.serve.parent import (
    FORGIVEN_SECONDS,
    LAST_RESTART_SECONDS,
    READY_SECONDS,
    SETTLED_SECONDS,
    UNSERVED_RESTART_SECONDS,
    UNSERVED_SECONDS,
    CannotServe,
    ReplicaSupervisor,
    Restarts,
)
from rookery.cli.serve.replica_messages import STOP, Child, Orders, Ready
from rookery.cli.serve.stop_signals import Stop
from rookery.metrics.merge import MergedMetrics
from rookery.runtime import replica_slots
from rookery.runtime.replica_slots import SlotState
from rookery.settings import settings
from rookery.testing import FakeClock
from tests.eventually import until

KILLED = -signal.SIGKILL


class Puppet(Child):
    """A child without a process. The test decides when it is ready and when it ends."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.ready: Ready | None = None
        self.told: list[str] = []
        self._is_ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def serve(self) -> None:
        self._is_ready.set_result(True)

    def die(self, code: int = KILLED) -> None:
        if not self._is_ready.done():
            self._is_ready.set_result(False)
        self._ended.set_result(code)

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    async def wait_ready(self) -> bool:
        if await self._is_ready:
            self.ready = Ready(replica_id=uuid4(), internal=None)
        return self.ready is not None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def tell(self, word: str) -> None:
        self.told.append(word)
        if not self._ended.done():
            self.die(0)

    def kill(self) -> None:
        self.die()


class Stage:
    """The supervisor with its fake children. Each of the next starts raises one of `troubles`."""

    def __init__(
        self,
        supervisor: ReplicaSupervisor,
        stop: Stop,
        clock: FakeClock,
        *,
        born: dict[int, list[Puppet]],
        troubles: list[OSError],
    ) -> None:
        self.supervisor = supervisor
        self.stop = stop
        self.clock = clock
        self.born = born
        self.troubles = troubles
        self.told_ready: list[int] = []  # how many served at that time
        self.running = asyncio.create_task(
            supervisor.run(stop, on_ready=lambda: self.told_ready.append(len(supervisor.serving())))
        )

    async def child(self, index: int, number: int) -> Puppet:
        """Return the n-th child of a slot."""
        await until(lambda: len(self.born[index]) >= number)
        return self.born[index][number - 1]

    async def serve(self, index: int, number: int) -> Puppet:
        child = await self.child(index, number)
        child.serve()
        await until(lambda: child.ready is not None)
        return child


@asynccontextmanager
async def open_stage(home: Path, *, replicas: int = 3, is_ready: bool = True) -> AsyncIterator[Stage]:
    """Start a supervisor whose children are all ready, or all starting."""
    (home / "data").mkdir(mode=0o700)
    flags = {"data_dir": str(home / "data"), "replicas": str(replicas)}
    config = settings.load(flags, {"HOME": str(home)}).settings
    born: dict[int, list[Puppet]] = defaultdict(list)
    troubles: list[OSError] = []
    clock, stop = FakeClock(), Stop(1e9)

    async def start(orders: Orders, _: socket.socket) -> Child:
        if troubles:
            raise troubles.pop()
        child = Puppet(orders.index)
        born[orders.index].append(child)
        return child

    with socket.socket() as listening:
        supervisor = ReplicaSupervisor(config, "postgresql://nowhere", listening, clock=clock, start=start)
        stage = Stage(supervisor, stop, clock, born=born, troubles=troubles)
        if is_ready:
            for index in range(replicas):
                await stage.serve(index, 1)
            await until(lambda: stage.told_ready)
        try:
            yield stage
        finally:
            is_serving = stop.serving
            stop.ask()
            if not is_serving:
                stage.running.cancel()  # as a signal does
            await asyncio.wait([stage.running])


def test_pauses_grow_to_half_a_minute_and_are_reset_after_long_service() -> None:
    restarts = Restarts()

    pauses = [restarts.pause_after(0.0) for _ in range(9)]

    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert restarts.pause_after(SETTLED_SECONDS) == 0.5
    assert restarts.deaths == 1
    assert [restarts.pause_after(0.0) for _ in range(5000)][-1] == LAST_RESTART_SECONDS
    assert restarts.pause_after(SETTLED_SECONDS) == 0.5


def test_pauses_stay_short_for_replicas_that_served_well_before_they_died() -> None:
    restarts = Restarts()

    pauses = [restarts.pause_after(1.5 * FORGIVEN_SECONDS) for _ in range(100)]

    assert set(pauses) == {0.5}
    assert restarts.deaths == 100


def test_pauses_grow_for_replicas_that_die_soon_after_they_were_ready() -> None:
    restarts = Restarts()

    pauses = [restarts.pause_after(0.5 * FORGIVEN_SECONDS) for _ in range(14)]

    assert pauses[:4] == [0.5, 0.5 * 2**0.5, 1.0, 2**0.5]
    assert pauses[-1] > 0.5 * LAST_RESTART_SECONDS


def test_time_that_a_replica_served_takes_pauses_back_by_and_by() -> None:
    restarts = Restarts()
    for _ in range(7):
        restarts.pause_after(0.0)

    pauses = [restarts.pause_after(2 * FORGIVEN_SECONDS) for _ in range(6)]

    assert pauses == pytest.approx([7.5, 3.75, 1.875, 0.9375, 0.5, 0.5])


async def test_place_that_keeps_dying_waits_longer_each_time_while_the_others_serve(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        waited = []
        for number in range(1, 9):
            (await stage.child(0, number)).die()
            await stage.clock.until_waiting("replica-restart")
            (timer,) = stage.clock.waiting("replica-restart")
            waited.append(timer.due - stage.clock.monotonic())
            assert [child.index for child in stage.supervisor.serving()] == [1, 2]
            await stage.clock.fire("replica-restart")
        await stage.serve(0, 9)

        assert waited == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        assert len(stage.supervisor.serving()) == 3
        assert not stage.running.done()


async def test_places_are_told_of_in_the_file_and_in_the_metrics(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        (await stage.child(2, 1)).die(7)
        await stage.clock.until_waiting("replica-restart")

        slots = replica_slots.read(tmp_path / "data")
        _, text = await MergedMetrics(stage.supervisor.processes, slots=lambda: stage.supervisor.slots).scrape("")

        assert [slot.state for slot in slots] == [SlotState.READY, SlotState.READY, SlotState.PAUSED]
        assert (slots[2].deaths, slots[2].exit_code, slots[2].restarts) == (1, 7, 1)
        assert slots[2].again_at is not None
        assert b'rookery_replica_slots{state="ready"} 2\n' in text
        assert b'rookery_replica_slots{state="paused"} 1\n' in text
        assert b'rookery_replica_restarts_total{process="2"} 1\n' in text
    assert replica_slots.read(tmp_path / "data") == ()


async def test_server_ends_only_when_no_replica_has_served_for_a_minute(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replicas=2) as stage:
        for index in (0, 1):
            (await stage.child(index, 1)).die()
        await stage.clock.until_waiting("no-replica-serves")
        assert stage.clock.waiting("no-replica-serves")[0].due == UNSERVED_SECONDS
        await stage.clock.fire("replica-restart")
        await stage.serve(1, 2)
        await until(lambda: stage.clock.waiting("no-replica-serves") == [])
        assert not stage.running.done(), "one of them came back in time"

        (await stage.child(1, 2)).die()
        await stage.clock.until_waiting("no-replica-serves")
        await stage.clock.advance(UNSERVED_SECONDS)

        with pytest.raises(CannotServe, match="No replica has been ready for 60 seconds"):
            await stage.running


async def test_long_pause_ends_when_the_last_that_served_is_gone(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replicas=2) as stage:
        for number in range(1, 8):
            (await stage.child(0, number)).die()
            await stage.clock.until_waiting("replica-restart")
            if number < 7:
                await stage.clock.fire("replica-restart")
        (timer,) = stage.clock.waiting("replica-restart")
        assert timer.due - stage.clock.monotonic() == LAST_RESTART_SECONDS
        again_at = stage.supervisor.slots[0].again_at

        await stage.clock.advance(UNSERVED_RESTART_SECONDS)
        (await stage.child(1, 1)).die()
        started = await stage.serve(0, 8)

        assert started in stage.supervisor.serving()
        assert stage.clock.monotonic() < UNSERVED_SECONDS, "the pause was not waited for"
        assert again_at is not None
        assert again_at > stage.clock.now()


async def test_pause_that_begins_while_no_replica_serves_is_short(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replicas=2) as stage:
        (await stage.child(1, 1)).die()
        await stage.clock.until_waiting("replica-restart")
        for number in range(1, 8):
            (await stage.child(0, number)).die()
            await until(lambda n=number: stage.supervisor.slots[0].deaths == n)  # type: ignore[misc]
            await stage.clock.until_waiting("replica-restart")
            again_at = stage.supervisor.slots[0].again_at
            assert again_at is not None
            assert (again_at - stage.clock.now()).total_seconds() <= UNSERVED_RESTART_SECONDS
            await stage.clock.advance(UNSERVED_RESTART_SECONDS)
        await stage.serve(0, 8)

        assert not stage.running.done()


async def test_place_that_fails_at_the_first_start_does_not_end_the_others(tmp_path: Path) -> None:
    async with open_stage(tmp_path, is_ready=False) as stage:
        await stage.serve(1, 1)
        await until(lambda: stage.stop.serving)
        (await stage.child(0, 1)).die(Exit.USAGE)
        await stage.clock.until_waiting("replica-restart")
        assert stage.told_ready == [], "one place has not been tried yet"

        await stage.serve(2, 1)
        await until(lambda: stage.told_ready)
        await stage.clock.fire("replica-restart")
        await stage.serve(0, 2)
        await until(lambda: stage.supervisor.slots[0].state is SlotState.READY)

        assert stage.told_ready == [2]
        assert len(stage.supervisor.serving()) == 3
        assert (stage.supervisor.slots[0].deaths, stage.supervisor.slots[0].exit_code) == (1, Exit.USAGE)
        assert not stage.running.done()


async def test_places_that_fail_are_tried_again_for_as_long_as_another_has_not_failed(tmp_path: Path) -> None:
    async with open_stage(tmp_path, is_ready=False) as stage:
        for number in (1, 2, 3):
            for index in (0, 1):
                (await stage.child(index, number)).die(Exit.FAILED)
                await until(lambda i=index: stage.supervisor.slots[i].state is SlotState.PAUSED)  # type: ignore[misc]
            await stage.clock.advance(LAST_RESTART_SECONDS)
        assert not stage.running.done()

        await stage.serve(2, 1)
        await until(lambda: stage.told_ready)

        assert stage.told_ready == [1]


@pytest.mark.parametrize(
    ("codes", "exit_code"),
    [
        ((Exit.USAGE, Exit.USAGE, Exit.USAGE), Exit.USAGE),
        ((KILLED, Exit.UNREACHABLE, Exit.FAILED), Exit.UNREACHABLE),
        ((KILLED, Exit.OK, KILLED), Exit.FAILED),
    ],
)
async def test_server_ends_at_once_when_every_place_failed_before_any_was_ready(
    tmp_path: Path, codes: tuple[int, ...], exit_code: int
) -> None:
    async with open_stage(tmp_path, is_ready=False) as stage:
        for index, code in enumerate(codes):
            (await stage.child(index, 1)).die(code)
            await until(lambda i=index: stage.running.done() or stage.supervisor.slots[i].deaths)  # type: ignore[misc]

        with pytest.raises(CannotServe, match="No replica could start") as raised:
            await stage.running

        assert raised.value.exit_code == exit_code
        assert stage.clock.monotonic() == 0.0, "not a moment passed"
        assert not stage.stop.serving
        assert [len(stage.born[index]) for index in range(3)] == [1, 1, 1]


async def test_server_whose_only_ready_replica_died_in_the_first_start_has_a_minute_to_recover(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replicas=2, is_ready=False) as stage:
        (await stage.serve(0, 1)).die()
        (await stage.child(1, 1)).die(Exit.FAILED)
        await stage.clock.until_waiting("no-replica-serves")
        assert not stage.running.done()
        assert stage.told_ready == [], "nobody serves"

        await stage.clock.fire("replica-restart")
        await stage.serve(1, 2)
        await until(lambda: stage.told_ready)

        assert stage.told_ready == [1]
        assert stage.clock.waiting("no-replica-serves") == []


async def test_stop_while_a_place_still_starts_ends_those_that_serve_in_order(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replicas=2, is_ready=False) as stage:
        serving, starting = await stage.serve(0, 1), await stage.child(1, 1)
        await until(lambda: stage.stop.serving)

        stage.stop.ask()
        await stage.running

        assert [serving.told, starting.told] == [[STOP], [STOP]]
        assert stage.told_ready == []


async def test_start_that_the_system_refuses_counts_as_a_death_while_the_others_serve(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.troubles[:] = [OSError(errno.EAGAIN, "again"), OSError(errno.ENOMEM, "no memory")]
        (await stage.child(0, 1)).die()
        waited = []
        for _ in range(3):
            await stage.clock.until_waiting("replica-restart")
            (timer,) = stage.clock.waiting("replica-restart")
            waited.append(timer.due - stage.clock.monotonic())
            assert [child.index for child in stage.supervisor.serving()] == [1, 2]
            await stage.clock.fire("replica-restart")
        await stage.serve(0, 2)

        assert waited == [0.5, 1.0, 2.0]
        assert (stage.supervisor.slots[0].state, stage.supervisor.slots[0].restarts) == (SlotState.READY, 3)
        assert len(stage.supervisor.serving()) == 3


async def test_child_that_hangs_before_it_is_ready_is_killed_and_replaced(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        (await stage.child(0, 1)).die()
        await stage.clock.until_waiting("replica-restart")
        await stage.clock.fire("replica-restart")
        hung = await stage.child(0, 2)
        await stage.clock.until_waiting("replica-ready")

        await stage.clock.advance(READY_SECONDS - 1)
        assert not hung.has_ended
        await stage.clock.advance(1)
        assert hung.has_ended
        await stage.clock.until_waiting("replica-restart")
        assert (stage.supervisor.slots[0].state, stage.supervisor.slots[0].exit_code) == (SlotState.PAUSED, KILLED)
        await stage.clock.fire("replica-restart")
        await stage.serve(0, 3)

        assert len(stage.supervisor.serving()) == 3
        assert stage.clock.waiting("replica-ready") == [], "children that serve are not timed"


async def test_place_that_is_paused_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        (await stage.child(0, 1)).die()
        await stage.clock.until_waiting("replica-restart")

        stage.stop.ask()
        await stage.running

        assert [child.told for child in (await stage.child(1, 1), await stage.child(2, 1))] == [[STOP], [STOP]]
        assert len(stage.born[0]) == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"pid": "x", "slots": []}'])
def test_file_that_makes_no_sense_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / replica_slots.FILE_NAME).write_bytes(content)

    assert replica_slots.read(tmp_path) == ()


def test_file_that_a_killed_server_left_behind_is_not_believed(tmp_path: Path) -> None:
    file = replica_slots.SlotFile(2**22 + 1, (replica_slots.ReplicaSlot(index=0, state=SlotState.READY),))
    (tmp_path / replica_slots.FILE_NAME).write_bytes(msgspec.json.encode(file))

    assert replica_slots.read(tmp_path) == ()
