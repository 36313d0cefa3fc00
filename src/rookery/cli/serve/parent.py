"""`rookery serve --replicas N`: the process that owns the database and the port, and supervises the replicas.

It serves nothing itself. Each replica is a separate process that accepts connections on the port it was given. Replicas
receive messages of this process through their stdin, and end when it is closed. If this process is killed, its replicas
therefore end as well.

A replica that dies is started again after a pause, so that a slot whose replicas cannot work does not keep the machine
busy with starts:

- It doubles with each death, up to half a minute.
- Each few seconds for which a replica served undo one doubling. Replicas that work well until they are killed are
  therefore replaced soon, even if that happens often.
- It is long only while other replicas serve. When none does, every slot is tried within a second.

When the parent ends:

- Before any replica has been ready, it ends as soon as each slot has lost a replica. Shared problems, such as a wrong
  setting or a database that refuses connections, are reported immediately this way, with the exit code of the replica
  that failed first. As long as one slot has not failed, the others are tried again.
- Once a replica has been ready, it ends only when none has been ready for a minute.

The exit code of one replica alone does not end the parent. A slot may fail for its own reason, for instance because
another process holds its relay port for a while, and the same code would mean a wrong setting elsewhere. The server
reports that it is ready when one replica is and each slot has been tried.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

import msgspec

from rookery import __version__
from rookery.app import installation
from rookery.cli.exit_codes import Exit
from rookery.cli.output import Output
from rookery.cli.serve import first_account, metrics_port, port
from rookery.cli.serve.replica_messages import HURRY, STOP, Child, Orders
from rookery.cli.serve.stop_signals import Stop
from rookery.metrics.merge import Fetch, MergedMetrics
from rookery.runtime import replica_slots
from rookery.runtime.clock import Clock, DeadlineExceeded, SystemClock
from rookery.runtime.replica_slots import ReplicaSlot, SlotState
from rookery.settings.settings import Settings, is_in_the_clear
from rookery.store.db.embedded.data_dir import Use
from rookery.store.db.pool import Database
from rookery.telemetry import log

FIRST_RESTART_SECONDS, LAST_RESTART_SECONDS = 0.5, 30.0
# About the time of a start. After a replica has served this long, one doubling of the pause is undone.
FORGIVEN_SECONDS = 5.0
# After a replica that served this long, the deaths of its slot are counted from zero again.
SETTLED_SECONDS = 60.0
# The longest pause while no replica is ready.
UNSERVED_RESTART_SECONDS = 1.0
# A replica that is not ready after this time hangs and is killed. A start usually takes a few seconds.
READY_SECONDS = 120.0
# If no replica is ready for this long, this process ends, so that its supervisor can restart it.
UNSERVED_SECONDS = 60.0
# The time that a replica may take to end after the second request. Then it is killed.
HURRY_SECONDS = 10.0

_log = log.get_logger("serve")


class CannotServe(Exception):
    """Raised when the replicas cannot be kept running. `exit_code` is that of the replicas, if they had one."""

    def __init__(self, message: str, exit_code: int = Exit.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


async def serve(settings: Settings, out: Output, stop: Stop) -> None:
    """Serve with several replicas until a stop is requested."""
    async with installation.locked_data_dir(settings, out.progress) as lock:
        with port.bound(settings.listen) as listening, metrics_port.bound(settings) as scraped:
            async with installation.server_database_url(settings, lock, out.progress, ending=stop.requested) as url:
                token = await _prepare(settings, url)
                supervisor = ReplicaSupervisor(settings, url, listening)

                def on_ready() -> None:
                    lock.change_use(Use.SERVING)
                    _say_ready(settings, listening, token, serving=len(supervisor.serving()), out=out)
                    metrics_port.show(scraped, out)

                async with metrics_port.served(
                    settings, MergedMetrics(supervisor.processes, slots=lambda: supervisor.slots), scraped
                ):
                    await supervisor.run(stop, on_ready=on_ready)


async def _prepare(settings: Settings, url: str) -> str | None:
    """Do the work that all replicas share. Return the setup token if it is needed. No connection stays open."""
    async with await Database.connect(installation.database_config(settings, url)) as database:
        await installation.prepare_schema(settings, database)
        await installation.prepare_accounts(database)
        await installation.prepare_models(settings, database, os.environ, with_offline=True)
        await installation.apply_pins(database, os.environ, clock=SystemClock())
        return await first_account.find_token(settings, database)


def _say_ready(settings: Settings, listening: socket.socket, token: str | None, *, serving: int, out: Output) -> None:
    url = port.displayed_address(settings, listening)
    count = f"{settings.replicas}" if serving == settings.replicas else f"{serving} of {settings.replicas}"
    out.line(f"Rookery {__version__} is ready at {url} with {count} replicas (Ctrl-C stops it)")
    if is_in_the_clear(settings):
        _log.warning("served_in_the_clear", listen=str(settings.listen), external_url=settings.external_url)
    first_account.show(url, token, out)
    _log.info("ready", version=__version__, replicas=settings.replicas, serving=serving)


class Restarts:
    """The pause before the next replica of a slot is started.

    It is longer after each replica that served only briefly.
    """

    def __init__(self) -> None:
        self.deaths = 0
        self._doublings = 0.0

    def pause_after(self, served_seconds: float) -> float:
        """Return the pause before the next start, in seconds.

        `served_seconds` is the time for which the replica was ready; 0 if it never was.
        """
        self.deaths = 1 if served_seconds >= SETTLED_SECONDS else self.deaths + 1
        doublings = max(0.0, self._doublings - served_seconds / FORGIVEN_SECONDS)
        pause: float = min(FIRST_RESTART_SECONDS * 2.0**doublings, LAST_RESTART_SECONDS)
        # Limited to the count of the longest pause, so that a slot that has failed for weeks recovers as fast as any
        # other.
        self._doublings = min(doublings + 1.0, math.log2(LAST_RESTART_SECONDS / FIRST_RESTART_SECONDS))
        return pause


class ReplicaSupervisor:
    """Keeps one child in each slot, and reports the state of the slots.

    The pause before a restart grows if the children of a slot keep dying. The module docstring describes when the
    supervisor gives up. Tests pass a clock and a function that starts children.
    """

    def __init__(
        self,
        settings: Settings,
        url: str,
        listening: socket.socket,
        *,
        clock: Clock | None = None,
        start: Callable[[Orders, socket.socket], Awaitable[Child]] = Child.start,
    ) -> None:
        self._settings = settings
        self._url = url
        self._listening = listening
        self._clock = clock or SystemClock()
        self._start = start
        self._children: list[Child | None] = [None] * settings.replicas
        # Slots whose first child is neither ready nor dead yet.
        self._untried = set(range(settings.replicas))
        self._has_served = False
        self._failures: list[int | None] = []
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._codes: list[int] = []
        self.slots = [ReplicaSlot(index=index, state=SlotState.STARTING) for index in range(settings.replicas)]

    def serving(self) -> list[Child]:
        """The children that are ready."""
        return [child for child in self._children if child is not None and child.ready is not None]

    def processes(self) -> dict[str, Fetch]:
        """Return the metrics fetchers of the children that serve, by slot."""
        return {
            str(child.index): partial(metrics_port.fetch, child.ready.internal)
            for child in self.serving()
            if child.ready is not None and child.ready.internal is not None
        }

    async def run(self, stop: Stop, *, on_ready: Callable[[], None]) -> None:
        """Run until a stop is requested and all children have ended. Raise `CannotServe` when it gives up."""
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self._children)):
                    group.create_task(self._keep(index), name=f"replica-{index}")
                while not self._has_served:
                    await self._change()
                stop.serving = True
                watch = group.create_task(self._watch(), name="replicas-serve")
                telling = group.create_task(self._tell_ready(on_ready), name="tell-ready")
                await stop.requested.wait()
                watch.cancel()
                telling.cancel()
                self._stopping.set()
                self._changed.set()
                for child in filter(None, self._children):
                    child.tell(STOP)
        except ExceptionGroup as group:
            reasons = [error for error in group.exceptions if isinstance(error, CannotServe)]
            raise reasons[0] if reasons else group from None
        finally:
            await self._end_all()
            replica_slots.remove(self._settings.data_dir)
        # A child that was stopped while it started has nothing to end in order.
        if any(code not in (Exit.OK, Exit.INTERRUPTED) for code in self._codes):
            raise CannotServe("Some replicas did not stop in order. No committed data is lost.")

    async def _tell_ready(self, on_ready: Callable[[], None]) -> None:
        """Report readiness once, when a child serves and each slot has been tried."""
        while self._untried or not self.serving():
            await self._change()
        on_ready()

    async def _watch(self) -> None:
        """Give up when no slot has had a serving child for too long."""
        while True:
            if self.serving():
                await self._change()
                continue
            try:
                async with self._clock.deadline(UNSERVED_SECONDS, "no-replica-serves"):
                    while not self.serving():
                        await self._change()
            except DeadlineExceeded:
                raise CannotServe(f"No replica has been ready for {UNSERVED_SECONDS:g} seconds.") from None

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _keep(self, index: int) -> None:
        """Run one child after another, with a pause after each."""
        restarts = Restarts()
        while not self._stopping.is_set():
            code, served_seconds = await self._live(index)
            if self._stopping.is_set():
                if code is not None:
                    self._codes.append(code)
                return
            self._untried.discard(index)
            if not self._has_served:
                self._failures.append(code)
                if not self._untried:
                    # A child that was ended by a signal has no exit code to pass on.
                    codes = [failure for failure in self._failures if failure is not None and failure > 0]
                    raise CannotServe("No replica could start. Their messages are above.", (codes or [Exit.FAILED])[0])
            pause = restarts.pause_after(served_seconds)
            _log.warning(
                "replica_ended", index=index, code=code, deaths=restarts.deaths, again_in_seconds=round(pause, 1)
            )
            again_at = self._clock.now() + timedelta(seconds=pause)
            self._tell(
                index, state=SlotState.PAUSED, deaths=restarts.deaths, exit_code=code, again_at=again_at, is_death=True
            )
            await self._pause(index, pause)

    async def _pause(self, index: int, seconds: float) -> None:
        """Wait before the next child of a slot is started.

        The wait is short if no child serves, and skipped during a stop.
        """
        began = self._clock.monotonic()
        try:
            async with self._clock.deadline(seconds, "replica-restart"):
                while self.serving() and not self._stopping.is_set():
                    await self._change()
        except DeadlineExceeded:
            return
        left = min(seconds, UNSERVED_RESTART_SECONDS) - (self._clock.monotonic() - began)
        if left <= 0 or self._stopping.is_set():
            return
        self._tell(index, again_at=self._clock.now() + timedelta(seconds=left))
        with suppress(DeadlineExceeded):
            async with self._clock.deadline(left, "replica-restart"):
                await self._stopping.wait()

    async def _live(self, index: int) -> tuple[int | None, float]:
        """Run one child until it ends. Return its exit code and the time for which it served, in seconds.

        The code is None if the system could not start a process.
        """
        orders = Orders(
            index=index, settings=self._settings, database_url=self._url, descriptor=self._listening.fileno()
        )
        self._tell(index, state=SlotState.STARTING, again_at=None)
        try:
            child = self._children[index] = await self._start(orders, self._listening)
        except OSError as error:
            _log.warning("replica_not_started", index=index, error=str(error))
            return None, 0.0
        if self._stopping.is_set():
            child.tell(STOP)
        ready_at: float | None = None
        if await self._is_ready(child):
            ready_at = self._clock.monotonic()
            self._untried.discard(index)
            self._has_served = True
            self._tell(index, state=SlotState.READY)
        code = await child.wait()
        self._children[index] = None
        self._changed.set()
        return code, 0.0 if ready_at is None else self._clock.monotonic() - ready_at

    async def _is_ready(self, child: Child) -> bool:
        """Wait until the child serves. Return False if it ended before, or had to be killed."""
        try:
            async with self._clock.deadline(READY_SECONDS, "replica-ready"):
                return await child.wait_ready()
        except DeadlineExceeded:
            _log.warning("replica_not_ready", index=child.index, after_seconds=READY_SECONDS)
            child.kill()
            return False

    def _tell(self, index: int, *, is_death: bool = False, **changes: object) -> None:
        slot = self.slots[index]
        self.slots[index] = msgspec.structs.replace(slot, restarts=slot.restarts + is_death, **changes)
        self._changed.set()
        try:
            replica_slots.write(self._settings.data_dir, self.slots)
        except OSError as error:
            _log.warning("slots_not_written", error=str(error))

    async def _end_all(self) -> None:
        """End all children. Those that do not end in time are killed."""
        left = list(filter(None, self._children))
        for child in left:
            child.tell(HURRY)
        endings = [asyncio.ensure_future(child.wait()) for child in left]
        if not endings:
            return
        _, late = await asyncio.wait(endings, timeout=HURRY_SECONDS)
        if late:
            for child in left:
                child.kill()
            await asyncio.wait(endings)
