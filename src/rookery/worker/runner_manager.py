"""The runner manager: starts and ends the runners of a process, and delivers chat states whose hints were lost.

All methods except the loops are synchronous and run on the event loop's thread. If this process acquires a chat again
that it has just lost, the chat briefly has two runners; their ids tell them apart.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NoReturn
from uuid import UUID

import asyncpg

from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId
from rookery.loop.tool import CancelReason
from rookery.runtime.clock import Clock
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.errors import StoreError
from rookery.store.machine import ChatState, states_of
from rookery.store.machine.capacity import Slot
from rookery.store.machine.leases import delete_leases
from rookery.store.machine.ownership import Activity, LeaseKey
from rookery.telemetry.log import get_logger
from rookery.worker.config import WorkerConfig
from rookery.worker.follow_up_work import FollowUpWork
from rookery.worker.runner import Runner, RunnerServices

log = get_logger("worker.runner_manager")


class RunnerManager:
    """All runners of a process. `on_free` is called when a runner has ended and its slot is free.

    `on_released` is called with the chat when its last runner here has ended.
    """

    def __init__(
        self,
        services: RunnerServices,
        *,
        pool: asyncpg.Pool,
        inflight: FollowUpWork,
        on_free: Callable[[], None],
        on_released: Callable[[ChatId], None] = lambda chat_id: None,
    ) -> None:
        self._services = services
        self._pool = pool
        self._inflight = inflight
        self._on_free = on_free
        self._on_released = on_released
        self._clock: Clock = services.clock
        self._config: WorkerConfig = services.config
        self._runners: dict[LeaseKey, Runner] = {}
        self._by_chat: dict[ChatId, set[LeaseKey]] = {}
        self._tasks: dict[LeaseKey, asyncio.Task[None]] = {}
        self._cleaning: set[LeaseKey] = set()
        self._is_closed = False
        self._is_draining = False
        self._is_fenced = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def worker_id(self) -> UUID:
        return self._services.worker_id

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_fenced(self) -> bool:
        """Whether all work is stopped because the leases may be lost."""
        return self._is_fenced

    def __len__(self) -> int:
        """Return the number of runners, including those that are ending."""
        return len(self._tasks)

    def keys(self) -> list[LeaseKey]:
        """Return the keys of the runners that keep their lease. Runners that are ending are left out."""
        return list(self._runners)

    def all_keys(self) -> list[LeaseKey]:
        return list(self._tasks)

    def chats(self) -> list[ChatId]:
        """Return the chats that have a runner here, including runners that are ending."""
        return list(self._by_chat)

    def drives(self, chat_id: ChatId) -> bool:
        """Return whether a runner of this process owns the chat. The answer may be stale."""
        return any(key in self._runners for key in self._by_chat.get(chat_id, ()))

    def runner(self, key: LeaseKey) -> Runner | None:
        return self._runners.get(key)

    @property
    def is_at_work(self) -> bool:
        """Whether a step runs now. Chats that wait for an attempt or for their client do not count."""
        return any(runner.is_at_work for runner in self._runners.values())

    def states(self) -> Counter[str]:
        """Count the runners by state."""
        return Counter(state for runner in self._runners.values() if (state := runner.state) is not None)

    def spawn(
        self, chat_id: ChatId, runner_id: UUID, *, acquired: ChatState | None = None, slot: Slot | None = None
    ) -> bool:
        """Start a runner for a chat that was just acquired. Return False if this process is closing."""
        key = (chat_id, runner_id)
        if self._is_closed:
            return False
        if key in self._tasks:
            log.error("runner_exists", chat_id=chat_id, runner_id=runner_id)
            return True
        runner = Runner(
            chat_id,
            runner_id,
            services=self._services,
            on_lost=lambda: self.request_cleanup(key),
            acquired=acquired,
            slot=slot,
        )
        self._runners[key] = runner
        self._by_chat.setdefault(chat_id, set()).add(key)
        task = self._tasks[key] = asyncio.create_task(self._run(runner), name=f"runner {chat_id}")
        self._idle.clear()
        task.add_done_callback(lambda _: self._left(key, has_lease=not runner.has_left))
        if self._is_fenced:
            runner.fence_off()
        if self._is_draining:
            runner.drain()
        return True

    def route(self, state: ChatState) -> None:
        for key in self._by_chat.get(state.chat_id, ()):
            if (runner := self._runners.get(key)) is not None:
                runner.deliver(state)

    def request_cleanup(self, key: LeaseKey, reason: CancelReason = CancelReason.LEASE_LOST) -> None:
        """Request the end of a runner and return immediately. The runner waits for its tasks."""
        if key in self._cleaning or key not in self._tasks:
            return
        self._cleaning.add(key)
        runner = self._runners.pop(key, None)
        if runner is not None:
            runner.cancel_tasks(reason)
        self._tasks[key].cancel()

    def activities(self) -> dict[LeaseKey, Activity]:
        """Return the activity of each runner, which is stored with its lease."""
        return {key: runner.activity for key, runner in self._runners.items()}

    def fence_off(self) -> None:
        """Stop all work, because leases were not renewed for too long and another replica may soon take the chats."""
        self._is_fenced = True
        for runner in self._runners.values():
            runner.fence_off()

    def resume(self, keys: Iterable[LeaseKey]) -> None:
        """Resume the runners of these renewed leases. Runners spawned meanwhile follow with the next renewal."""
        self._is_fenced = False
        for key in keys:
            if (runner := self._runners.get(key)) is not None:
                runner.resume()

    def request_slots(self, slots: Collection[Slot]) -> None:
        """Request the release of these slots: their owners hold more than their fair share while other owners wait."""
        self._services.slot_requests.replace(slots)
        if slots:
            for runner in tuple(self._runners.values()):
                runner.slots_requested()

    def drain(self) -> None:
        self._is_draining = True
        for runner in tuple(self._runners.values()):
            runner.drain()

    def close(self) -> None:
        """End all runners and start no others. The caller releases their leases (`all_keys`)."""
        self._is_closed = True
        for key in tuple(self._runners):
            self.request_cleanup(key, CancelReason.SHUTDOWN)

    async def wait_idle(self) -> None:
        await self._idle.wait()

    async def run_sync(self) -> NoReturn:
        """Read the states of all chats once per interval and deliver them, in case hints were lost."""
        async for _ in self._clock.ticker(self._config.sync_interval_seconds, "sync"):
            await self.sync()
        raise AssertionError("unreachable")

    async def sync(self) -> None:
        chats = {chat_id for chat_id, _ in self._runners}
        if not chats:
            return
        try:
            async with self._clock.deadline(self._config.database_seconds, "sync-query"), self._pool.acquire() as conn:
                states = await states_of(conn, chats)
        except DATABASE_ERRORS as error:
            log.warning("sync_failed", error=str(error) or type(error).__name__)
            return
        for state in states.values():
            self.route(state)
        for chat_id in chats - states.keys():
            for key in tuple(self._by_chat.get(ChatId(chat_id), ())):
                self.request_cleanup(key)

    async def _run(self, runner: Runner) -> None:
        try:
            await runner.run()
        except (StoreError, ChatNotFound) as error:
            # The chat could not be read. Its lease is deleted, so that a replica tries again.
            log.warning("runner_failed", chat_id=runner.chat_id, error=str(error))
        except Exception as error:
            log.exception("runner_failed", error, chat_id=runner.chat_id)

    def _left(self, key: LeaseKey, *, has_lease: bool) -> None:
        chat_id = ChatId(key[0])
        self._tasks.pop(key, None)
        self._runners.pop(key, None)
        self._cleaning.discard(key)
        keys = self._by_chat.get(chat_id, set())
        keys.discard(key)
        if not keys:
            self._by_chat.pop(chat_id, None)
            self._on_released(chat_id)
        if not self._tasks:
            self._idle.set()
        if has_lease and not self._is_closed:
            # While the process closes, the worker releases all leases together.
            self._inflight.start(
                lambda: self._delete_lease(key), name="delete-heartbeat", seconds=self._config.cleanup_seconds
            )
        self._on_free()

    async def _delete_lease(self, key: LeaseKey) -> None:
        async with self._pool.acquire() as conn:
            await delete_leases(conn, [key])
