"""Release of chats by their runner: the abandon task, and giving way to owners below their fair share.

A released chat has no owner, and its slot is free. All of its output is committed, so the next runner continues from
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from rookery.domain.chat.transitions import Transition
from rookery.store.machine import Slot, Tx, find_receiver, give_way, leave
from rookery.store.machine.capacity import Limits
from rookery.telemetry.log import get_logger
from rookery.worker.stats import WorkerStats
from rookery.worker.tasks import TaskHandle

log = get_logger("worker.chat_release")


class AbandonWork:
    """The abandon task: releases a chat that has no work, or that another replica is to continue.

    The hint about the change tells replicas with waiting chats that a slot is free.
    """

    async def __call__(self, handle: TaskHandle) -> None:
        await handle.update(leave, transition=Transition.ABANDON)


class SlotRequests:
    """The owners who have to release slots, as this replica last read them. The list may be outdated, so `GiveWay`
    checks again.
    """

    def __init__(self) -> None:
        self._slots: frozenset[Slot] = frozenset()

    def replace(self, slots: Collection[Slot]) -> None:
        self._slots = frozenset(slots)

    def withdraw(self, slot: Slot) -> None:
        """Withdraw the request: this owner may keep its slots."""
        self._slots -= {slot}

    def includes(self, slot: Slot | None) -> bool:
        return slot in self._slots


class GiveWay:
    """Releases a chat before its next step, if its owner has to release slots."""

    def __init__(
        self, slot_requests: SlotRequests, limits: Callable[[], Awaitable[Limits]], stats: WorkerStats
    ) -> None:
        self._slot_requests = slot_requests
        self._limits = limits
        self._stats = stats

    async def __call__(self, handle: TaskHandle, slot: Slot) -> bool:
        """Release the chat if another owner still needs its slot. Return whether it was released."""
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
            self._slot_requests.withdraw(slot)
            return False
        except asyncio.CancelledError:
            # The runner cancels this task as soon as it learns of the commit.
            if is_done:
                self._count(slot)
            raise
        self._count(slot)
        return True

    def _count(self, slot: Slot) -> None:
        self._stats.gave_way[slot.pool] += 1
        log.info("gave_way", pool=slot.pool)


class _NotNeeded(Exception):
    """Raised to roll back the transaction: the slot is not needed, and the chat keeps it."""
