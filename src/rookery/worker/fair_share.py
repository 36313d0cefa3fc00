"""Fair share on a replica: which owners are asked to give up slots, and the step at which a chat does so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from rookery.domain.chat.transitions import Transition
from rookery.store.machine import Slot, Tx, find_receiver, give_way
from rookery.store.machine.capacity import Limits
from rookery.telemetry.log import get_logger
from rookery.worker.stats import WorkerStats
from rookery.worker.tasks import TaskHandle

log = get_logger("worker.fair_share")


class Askings:
    """The owners who were asked to give up slots when this replica last looked.

    May be stale: `GiveWay` checks again.
    """

    def __init__(self) -> None:
        self._slots: frozenset[Slot] = frozenset()

    def ask(self, slots: Collection[Slot]) -> None:
        self._slots = frozenset(slots)

    def settle(self, slot: Slot) -> None:
        """Withdraw the request: this owner may keep its slots."""
        self._slots -= {slot}

    def includes(self, slot: Slot | None) -> bool:
        return slot in self._slots


class GiveWay:
    """Releases a chat whose owner was asked to give up slots, in place of its next step.

    Everything the chat has is committed by then, so nothing is lost: its next runner goes on with that step.
    """

    def __init__(self, askings: Askings, limits: Callable[[], Awaitable[Limits]], stats: WorkerStats) -> None:
        self._askings = askings
        self._limits = limits
        self._stats = stats

    async def __call__(self, handle: TaskHandle, slot: Slot) -> bool:
        """Return whether the chat was released. It is not when its slot is no longer needed."""
        limits = await handle.read(self._limits)
        is_done = False

        async def run(tx: Tx) -> None:
            nonlocal is_done
            receiver = await find_receiver(tx, limits)
            if receiver is None:
                raise _NotNeeded
            await give_way(tx, to=receiver)
            is_done = True

        try:
            await handle.update(run, transition=Transition.GIVE_WAY)
        except _NotNeeded:
            self._askings.settle(slot)
            return False
        except asyncio.CancelledError:
            # The runner ends, and this task with it, as soon as it learns of the commit.
            if is_done:
                self._count(slot)
            raise
        self._count(slot)
        return True

    def _count(self, slot: Slot) -> None:
        self._stats.gave_way[slot.pool] += 1
        log.info("gave_way", pool=slot.pool)


class _NotNeeded(Exception):
    """Raised to roll the transaction back: the owner may keep its slots, and the chat goes on."""
