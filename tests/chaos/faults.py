"""Injects the faults of the schedule into a deployment, one after the other, until enough processes were killed."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from rookery.store.db.embedded.server import EmbeddedServer
from tests.chaos import deployment as towns
from tests.chaos.deployment import Deployment
from tests.chaos.postgres_proxy import Commit
from tests.chaos.schedule import Fault, Strike, strikes

# How long a fault waits for its moment. After that, the process is killed immediately.
MOMENT_SECONDS = 1.5
START_SECONDS = 5.0


class Faults:
    """`struck` counts the faults, `kills` the killed processes. `on_kill` is called for each kill."""

    def __init__(
        self, deployment: Deployment, server: EmbeddedServer, *, on_kill: Callable[[int], None] = lambda kills: None
    ) -> None:
        self._town = deployment
        self._server = server
        self._on_kill = on_kill
        self._rng = Random(f"{deployment.seed} fire")
        self._after: set[asyncio.Task[None]] = set()
        self._waiting_for: dict[int, asyncio.Event] = {}
        self.struck: Counter[str] = Counter()
        self.kills = 0
        deployment.effects.on_effect = self._effect_happened
        deployment.providers.on_request = self._model_asked

    async def inject(self, kills: int) -> None:
        """Inject faults until this many processes were killed. At the end, all replicas run and no fault is active."""
        for strike in strikes(self._town.seed, len(self._town.replicas)):
            if self.kills >= kills:
                break
            await asyncio.sleep(strike.pause_seconds)
            await self._strike(strike)
        await asyncio.gather(*self._after)

    @asynccontextmanager
    async def burning(self, kills: int) -> AsyncIterator[asyncio.Task[None]]:
        injecting = asyncio.create_task(self.inject(kills))
        try:
            yield injecting
        finally:
            for task in (injecting, *self._after):
                task.cancel()
            await asyncio.gather(injecting, *self._after, return_exceptions=True)

    async def _strike(self, strike: Strike) -> None:
        deployment, number = self._town, strike.replica
        self.struck[strike.fault.name] += 1
        match strike.fault:
            case Fault.KILL:
                await self._kill(number)
            case Fault.KILL_ALL:
                await asyncio.gather(*(self._kill(each) for each in range(len(deployment.replicas))))
            case Fault.KILL_BEFORE_COMMIT | Fault.KILL_AFTER_COMMIT:
                fate = Commit.LOST if strike.fault is Fault.KILL_BEFORE_COMMIT else Commit.DONE
                met = asyncio.Event()

                def die() -> None:
                    deployment.replicas[number].kill()
                    met.set()

                deployment.doors[number].meet_commit(fate, die)
                await self._moment(met)
                deployment.doors[number].forget_commit()
                await self._kill(number)
            case Fault.KILL_AT_EFFECT:
                await self._moment(self._waiting_for.setdefault(number, asyncio.Event()))
                await self._kill(number)
            case Fault.KILL_AT_REQUEST:
                # By any process, because the provider cannot see which one it is.
                await self._moment(self._waiting_for.setdefault(-1, asyncio.Event()))
                await self._kill(number)
            case Fault.SUSPEND:
                self._later(self._suspended(strike))
            case Fault.CUT:
                deployment.doors[number].cut(0.5, self._rng)
            case Fault.LOSE_COMMIT:
                deployment.doors[number].meet_commit(Commit.LOST, _nothing)
            case Fault.LOSE_COMMIT_ANSWER:
                deployment.doors[number].meet_commit(Commit.DONE, _nothing)
            case Fault.HANG:
                self._later(self._held_up(strike))
            case Fault.RESTART_DATABASE:
                how = signal.SIGQUIT if strike.seconds < 3.5 else signal.SIGKILL
                await towns.restart_database(self._server, how)

    async def _moment(self, met: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(MOMENT_SECONDS):
                await met.wait()
        except TimeoutError:
            self.struck["MOMENT_MISSED"] += 1
        self._waiting_for.clear()

    async def _kill(self, number: int) -> None:
        """Kill the replica and start the next one. Other faults may happen meanwhile."""
        replica = self._town.replicas[number]
        replica.kill()
        self.kills += 1
        self._on_kill(self.kills)
        await replica.ended()
        self._later(replica.start())
        # Not faster than processes can start, because a dead process cannot be killed.
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await replica.up.wait()

    async def _suspended(self, strike: Strike) -> None:
        replica = self._town.replicas[strike.replica]
        if not replica.is_up:
            return
        pid = replica.pid
        replica.send(signal.SIGSTOP)
        await asyncio.sleep(strike.seconds)
        if replica.pid == pid:
            replica.send(signal.SIGCONT)

    async def _held_up(self, strike: Strike) -> None:
        door = self._town.doors[strike.replica]
        door.shut()
        try:
            await asyncio.sleep(strike.seconds)
        finally:
            door.open()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._after.add(task)
        task.add_done_callback(self._after.discard)

    def _effect_happened(self, replica: int) -> None:
        if (waiting := self._waiting_for.get(replica)) is not None:
            self._town.replicas[replica].kill()
            waiting.set()

    def _model_asked(self, key: str) -> None:
        if (waiting := self._waiting_for.get(-1)) is not None:
            waiting.set()


def _nothing() -> None:
    """Do nothing more. The broken connection is the fault."""
