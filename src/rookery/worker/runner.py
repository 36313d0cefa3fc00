"""A runner: drives one chat from its acquisition until another replica owns it or it has nothing to do.

It follows the chat's committed state and keeps at most one task at work on it. States come from several sources (hints,
the sync loop, the row itself), in any order and any number; only the version decides which of them is new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.loop.tool import CancelReason
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.db.errors import StoreError
from rookery.store.db.hints import ChatHint
from rookery.store.db.pubsub import Bus
from rookery.store.machine import ChatState, Machine
from rookery.store.machine.capacity import Slot
from rookery.store.machine.ownership import LeaseKey
from rookery.telemetry.log import get_logger
from rookery.worker.config import WorkerConfig
from rookery.worker.fair_share import Askings
from rookery.worker.stats import WorkerStats
from rookery.worker.tasks import TaskHandle, TaskInput, TaskKind, TaskLoop, TaskRecord, Work

log = get_logger("worker.runner")

_KINDS = {
    Status.RUNNING: TaskKind.GENERATION,
    Status.INTERRUPTING: TaskKind.INTERRUPT,
    Status.REQUIRES_ACTION: TaskKind.ACTION_TIMEOUT,
}
_KNOWN = frozenset(Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerParts:
    """Shared dependencies of all runners of a process.

    `work_of` returns the work for a kind of task; tests use their own.

    `may_commit` returns whether this process is known to be alive; if not, its commits wait.
    """

    worker_id: UUID
    machine: Machine
    bus: Bus
    clock: Clock
    config: WorkerConfig
    stats: WorkerStats
    tasks: TaskLoop
    work_of: Callable[[TaskKind], Work]
    may_commit: Callable[[], bool] = lambda: True
    askings: Askings = field(default_factory=Askings)
    new_id: Callable[[], UUID] = uuid4


class Runner:
    """One acquisition of one chat. `on_lost` is called when the runner no longer owns the chat.

    `acquired` is the chat as the acquisition left it, if the caller has it. `slot` is the slot it holds, which it may
    be asked to give up.
    """

    def __init__(
        self,
        chat_id: ChatId,
        runner_id: UUID,
        *,
        parts: RunnerParts,
        on_lost: Callable[[], None],
        acquired: ChatState | None = None,
        slot: Slot | None = None,
    ) -> None:
        self.chat_id = chat_id
        self.runner_id = runner_id
        self._acquired = acquired
        self._slot = slot
        self._held_since = parts.clock.monotonic()
        self._has_stepped = False
        self._parts = parts
        self._on_lost = on_lost
        self._accepted: ChatState | None = None
        self._mail: ChatState | None = None  # the newest state that has not been processed
        self._wake = asyncio.Event()
        self._active: TaskRecord | None = None
        self._records: set[TaskRecord] = set()
        self._must_look = False
        self._is_fenced = False
        self._is_draining = False
        self._is_through = False
        self._stalls = 0

    @property
    def key(self) -> LeaseKey:
        return self.chat_id, self.runner_id

    @property
    def active(self) -> TaskInput | None:
        return None if self._active is None or self._active.is_done else self._active.input

    @property
    def is_at_work(self) -> bool:
        """Whether its task does something, instead of waiting for a time or for an answer."""
        active = self._active
        return active is not None and not active.is_done and not active.handle.is_waiting

    @property
    def state(self) -> str | None:
        """The state of its task, for the metrics; None without a task, or with one that only lets go of the chat."""
        if self._active is None or self._active.is_done:
            return None
        return self._active.handle.state

    async def run(self) -> None:
        """Follow the chat until cancelled; then wait for every task to end."""
        try:
            with self._parts.bus.subscribe(ChatHint, self._heard, key=self.chat_id):
                await self._begin()
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    await self._turn()
        finally:
            self._cancel_active(CancelReason.SHUTDOWN)
            await self._see_out()
            # Its tasks refer to their runner: without this, what they held would wait for the garbage collector.
            self._active = None

    async def _begin(self) -> None:
        """Process the first state directly.

        A state that an older runner's subscription still delivers would look like a lost lease. With the row of the
        acquisition, work begins immediately; later changes are found afterwards.
        """
        if self._acquired is None:
            self._process(await self._read())
            return
        self._process(self._acquired)
        if self._active is None or self._active.input.kind is not TaskKind.GENERATION:
            # Generation needs no second look: it begins by reading the chat behind its fence.
            await self._look()

    async def _turn(self) -> None:
        if (mail := self._mail) is not None:
            self._mail = None
            self._process(mail)
        if self._must_look:
            self._must_look = False
            # The mailbox may have held the news already, and started the next task.
            if self._is_idle:
                await self._look()

    def deliver(self, state: ChatState) -> None:
        """Put a state in the mailbox, unless it holds a newer one."""
        if self._mail is None or self._mail.snapshot_version < state.snapshot_version:
            self._mail = state
            self._wake.set()

    def cancel_tasks(self, reason: CancelReason) -> None:
        """Cancel all tasks and start no others. Called before the runner itself is cancelled, with the reason."""
        self._is_through = True
        self._cancel_active(reason)

    def fence_off(self) -> None:
        """Stop all work: another replica may own the lease by now. The runner stays, in case none does."""
        self._is_fenced = True
        self._cancel_active(CancelReason.LEASE_LOST)

    def resume(self) -> None:
        """Go on after reading the chat again: its lease was renewed after all."""
        if self._is_fenced:
            self._is_fenced = False
            self._look_again()

    def drain(self) -> None:
        """Let the running task end, but start no other. A task that only waits is cancelled."""
        self._is_draining = True
        if self._is_idle:
            self._look_again()
        else:
            self._cut_wait()

    def asked(self) -> None:
        """Note that owners were asked to give up slots: a chat that only waits need not wait here."""
        self._cut_wait()

    def _cut_wait(self) -> None:
        """Cancel a waiting task when the process is stopping or its slot is asked for, and let go of the chat.

        The end of the wait is stored; the next runner of the chat waits out the rest.
        """
        active, accepted = self._active, self._accepted
        if active is None or accepted is None or not active.handle.is_waiting:
            return
        # Tasks that also run during a drain would only be started again.
        is_draining = self._is_draining and self._kind_of(accepted) is not active.input.kind
        if is_draining or self._may_leave_wait(active):
            active.cancel(CancelReason.SHUTDOWN)
            self._look_again()

    def _may_leave_wait(self, active: TaskRecord) -> bool:
        parts = self._parts
        return (
            active.input.kind is TaskKind.GENERATION
            and parts.askings.includes(self._slot)
            and parts.clock.monotonic() - self._held_since >= parts.config.slot_hold_seconds
        )

    @property
    def _is_idle(self) -> bool:
        return self._active is None or self._active.is_done or self._active.is_cancelled

    def _heard(self, hint: ChatHint) -> None:
        if hint.gone:
            self._lost()
            return
        self.deliver(ChatState.told(hint))

    async def _read(self) -> ChatState:
        return ChatState.of(await self._parts.machine.peek(self.chat_id))

    def _process(self, state: ChatState, *, is_forced: bool = False) -> None:
        """Process a state. Synchronous, so nothing can happen between looking at it and acting on it.

        With `is_forced`, a state that is known already starts its work again.
        """
        accepted = self._accepted
        if self._is_through or (accepted is not None and not _is_news(accepted, state, or_same=is_forced)):
            return
        self._accepted = state
        self._records = {record for record in self._records if not record.is_done}
        if not self._is_ours(state):
            self._lost()
            return
        if not is_forced and accepted is not None and _is_same_work(accepted, state):
            return
        if not is_forced:
            self._stalls = 0
        reason = self._reason(state)
        self._has_stepped |= reason is CancelReason.SUPERSEDED
        was_waiting = self._active is not None and self._active.was_waiting
        self._cancel_active(reason)
        if not self._is_fenced:
            self._spawn(state, may_give_way=self._has_stepped or was_waiting)

    def _is_ours(self, state: ChatState) -> bool:
        """Return whether this runner owns the chat.

        A status that this version does not know is left to a newer replica.
        """
        is_owner = (state.worker_id, state.runner_id) == (self._parts.worker_id, self.runner_id)
        return is_owner and state.status in _KNOWN

    def _reason(self, state: ChatState) -> CancelReason:
        """Return why the running task is no longer wanted: it has done its work, or the chat was changed by another
        writer."""
        if state.status != Status.INTERRUPTING and self._active is not None:
            claimed = self._active.handle.claimed
            if claimed is not None and claimed <= state.snapshot_version:
                return CancelReason.SUPERSEDED
        return CancelReason.USER

    def _spawn(self, state: ChatState, *, delay_seconds: float = 0.0, may_give_way: bool = False) -> None:
        kind = self._kind_of(state)
        parts = self._parts
        is_asked = may_give_way and kind is TaskKind.GENERATION and parts.askings.includes(self._slot)
        task = TaskInput(
            task_id=parts.new_id(),
            kind=kind,
            chat_id=self.chat_id,
            worker_id=parts.worker_id,
            runner_id=self.runner_id,
            history_version=state.history_version,
            status=Status(state.status),
            asked_for=self._slot if is_asked else None,
        )
        handle = TaskHandle(
            task,
            machine=parts.machine,
            clock=parts.clock,
            config=parts.config,
            route=self.deliver,
            on_wait=self._cut_wait,
            may_commit=parts.may_commit,
        )
        record = self._active = TaskRecord(handle, parts.work_of(kind))
        after = [other for other in self._records if other.input.key == task.key and not other.is_done]
        self._records.add(record)
        record.start(
            lambda started: parts.tasks.run(started, after=after, delay_seconds=delay_seconds), self._task_done
        )

    def _kind_of(self, state: ChatState) -> TaskKind:
        if state.archived:
            return TaskKind.ABANDON
        kind = _KINDS.get(Status(state.status), TaskKind.ABANDON)
        if self._is_draining and kind is not TaskKind.INTERRUPT:
            return TaskKind.ABANDON
        return kind

    def _cancel_active(self, reason: CancelReason) -> None:
        if self._active is not None:
            self._active.cancel(reason)

    def _task_done(self, record: TaskRecord) -> None:
        """Look at the chat when a task has ended and the chat has not moved: nothing else would."""
        self._records.discard(record)
        if record.is_cancelled:
            unwound = self._parts.clock.monotonic() - record.cancelled_at
            self._parts.stats.cancel_unwind_seconds.observe(record.input.kind, unwound)
        if record is not self._active or record.is_cancelled or self._is_through:
            return
        self._look_again()

    def _look_again(self) -> None:
        self._must_look = True
        self._wake.set()

    async def _look(self) -> None:
        """Read the row and act on it, although no news came."""
        try:
            state = await self._read()
        except ChatNotFound:
            self._lost()
            return
        except StoreError as error:
            log.warning("runner_cannot_read", chat_id=self.chat_id, error=str(error))
            await self._rest()
            self._look_again()
            return
        accepted = self._accepted
        assert accepted is not None
        if state.snapshot_version < accepted.snapshot_version:
            # The accepted state was seen before this read, yet its version is higher: the database crashed and lost
            # commits that were not promised to be durable. Every later version would look old.
            log.warning("database_went_back", chat_id=self.chat_id)
            self._accepted = None
            self._process(state)
        elif _is_news(accepted, state) and not _is_same_work(accepted, state):
            self._process(state)
        elif self._is_idle:
            self._revive(state)

    async def _rest(self) -> None:
        """Wait before the next try to read; news ends the wait."""
        try:
            async with self._parts.clock.deadline(self._parts.config.stall_backoff_seconds, "runner-read"):
                await self._wake.wait()
        except DeadlineExceeded:
            pass

    def _revive(self, state: ChatState) -> None:
        """Start the work of a state again whose task has ended."""
        active = self._active
        if self._is_fenced or self._is_through:
            return
        if active is None or not self._is_stall(active, state):
            self._process(state, is_forced=True)
            return
        self._accepted = state
        config = self._parts.config
        delay = min(config.stall_backoff_seconds * 2**self._stalls, config.stall_backoff_max_seconds)
        self._stalls += 1
        self._parts.stats.task_stalls[active.input.kind] += 1
        log.warning("task_stalled", chat_id=self.chat_id, task=active.input.kind, delay_seconds=delay)
        self._spawn(state, delay_seconds=delay)

    def _is_stall(self, active: TaskRecord, state: ChatState) -> bool:
        """Return whether the task ended without being cancelled and left the chat unchanged."""
        if active.is_cancelled or not self._is_ours(state):
            return False
        is_same = active.input.key == (state.history_version, state.status)
        return is_same and self._kind_of(state) is active.input.kind

    def _lost(self) -> None:
        if not self._is_through:
            self._is_through = True
            self._on_lost()

    async def _see_out(self) -> None:
        for record in tuple(self._records):
            await record.left()


def _is_news(accepted: ChatState, state: ChatState, *, or_same: bool = False) -> bool:
    return state.snapshot_version - accepted.snapshot_version >= (0 if or_same else 1)


def _is_same_work(accepted: ChatState, state: ChatState) -> bool:
    """Return whether the same task serves both states. Attempts and retries never restart work."""
    return (accepted.history_version, accepted.status, accepted.archived) == (
        state.history_version,
        state.status,
        state.archived,
    )
