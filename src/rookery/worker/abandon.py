"""The abandon task: lets go of a chat that has nothing to do, or that another replica shall go on with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rookery.domain.chat.transitions import Transition
from rookery.store.db.hints import OwnershipHint
from rookery.store.machine import Publisher, Tx, leave
from rookery.store.machine.capacity import Limits
from rookery.worker.tasks import TaskHandle


class AbandonWork:
    """The runner ends when it hears that nobody owns its chat any more; the slot it held is then free.

    Where slots are limited, everybody is told: a chat of another replica may have waited for this one.
    """

    def __init__(self, publisher: Publisher, limits: Callable[[], Awaitable[Limits]]) -> None:
        self._publisher = publisher
        self._limits = limits

    async def __call__(self, handle: TaskHandle) -> None:
        limits = await handle.read(self._limits)
        left: int | None = None

        async def abandon(tx: Tx) -> None:
            nonlocal left
            left = (await leave(tx)).snapshot_version

        try:
            await handle.update(abandon, transition=Transition.ABANDON)
        finally:
            # The runner ends, and this task with it, as soon as the commit is heard of. Said once too often, the hint
            # costs a look.
            if left is not None and (limits.running_roots or limits.running_subagents):
                self._publisher.publish([OwnershipHint(chat_id=handle.input.chat_id, snapshot_version=left)])
