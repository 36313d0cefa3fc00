"""The abandon task: lets go of a chat that has nothing to do, or that another replica is to continue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rookery.domain.chat.transitions import Transition
from rookery.store.db.hints import OwnershipHint
from rookery.store.machine import Publisher, Tx, leave
from rookery.store.machine.capacity import Limits
from rookery.worker.tasks import TaskHandle


class AbandonWork:
    """The abandon task. The runner ends when it learns that its chat has no owner; its slot is then free.

    Where slots are limited, a hint is published: a chat of another replica may have waited for this slot.
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
            # The runner ends, and this task with it, as soon as it learns of the commit. A superfluous hint costs one
            # query.
            if left is not None and (limits.running_roots or limits.running_subagents):
                self._publisher.publish([OwnershipHint(chat_id=handle.input.chat_id, snapshot_version=left)])
