"""A runner: runs one chat from its acquisition until the chat has no work or belongs to another replica.

The runner follows the chat's committed state and has at most one active task. States arrive from hints, from the sync
loop and from reads of the row, in any order and repeatedly; the version alone decides which state is new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from rookery.debug.turn_recording import DebugTurn, Recordings
from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.loop.tool import CancelReason
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.chats.subagents import Phase
from rookery.store.db.errors import StoreError
from rookery.store.db.hints import ChatHint, MiscHint, nudge_topic
from rookery.store.db.pubsub import Bus
from rookery.store.machine import ChatState, Machine
from rookery.store.machine.capacity import Slot
from rookery.store.machine.ownership import Activity, LeaseKey
from rookery.telemetry.log import get_logger
from rookery.worker.chat_release import SlotRequests
from rookery.worker.config import WorkerConfig
from rookery.worker.stats import WorkerStats
from rookery.worker.tasks import TaskHandle, TaskInput, TaskKind, TaskLoop, TaskRecord, Work

log = get_logger("worker.runner")

_KINDS = {
    Status.RUNNING: TaskKind.GENERATION,
    Status.INTERRUPTING: TaskKind.INTERRUPT,
    Status.REQUIRES_ACTION: TaskKind.ACTION_TIMEOUT,
}
_KNOWN = frozenset(Status)
# The phases of a task's states; other states have none.
_PHASES = {"streaming": Phase.MODEL, "retry_wait": Phase.MODEL, "tools": Phase.TOOL}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerServices:
    """Shared dependencies of all runners of a process.

    `work_of` returns the function that does the work of a kind of task. While `may_commit` returns False, commits wait,
    because peers may believe that this process is dead.
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
    slot_requests: SlotRequests = field(default_factory=SlotRequests)
    recordings: Recordings | None = None
    new_id: Callable[[], UUID] = uuid4


class Runner:
    """One acquisition of one chat. `on_lost` is called when the runner no longer owns the chat.

    `acquired` is the chat's state after the acquisition, if the caller has it. `slot` is the slot that the chat holds
    and that other owners may request.
    """

    def __init__(
        self,
        chat_id: ChatId,
        runner_id: UUID,
        *,
        services: RunnerServices,
        on_lost: Callable[[], None],
        acquired: ChatState | None = None,
        slot: Slot | None = None,
    ) -> None:
        self.chat_id = chat_id
        self.runner_id = runner_id
        self._acquired = acquired
        self._slot = slot
        self._held_since = services.clock.monotonic()
        self._has_stepped = False
        self._services = services
        self._on_lost = on_lost
        self._accepted: ChatState | None = None
        self._pending_state: ChatState | None = None  # the newest unprocessed state
        self._wake = asyncio.Event()
        self._active: TaskRecord | None = None
        self._records: set[TaskRecord] = set()
        self._debug = DebugTurn(services.recordings)
        self._must_reread = False
        self._is_fenced = False
        self._is_draining = False
        self._is_ended = False
        self._stalls = 0
        self._has_left = False

    @property
    def key(self) -> LeaseKey:
        return self.chat_id, self.runner_id

    @property
    def active(self) -> TaskInput | None:
        return None if self._active is None or self._active.is_done else self._active.input

    @property
    def has_left(self) -> bool:
        """Whether a task's own commit has released the chat and deleted its lease."""
        return self._has_left

    @property
    def is_at_work(self) -> bool:
        """Whether a task runs and waits neither for a time nor for an answer."""
        active = self._active
        return active is not None and not active.is_done and not active.handle.is_waiting

    @property
    def state(self) -> str | None:
        """The state of its task, for the metrics; None without a task and for the abandon task."""
        if self._active is None or self._active.is_done:
            return None
        return self._active.handle.state

    @property
    def activity(self) -> Activity:
        """The activity of the runner's task, and the time since its last progress."""
        active = self._active
        if active is None or active.is_done:
            return Activity()
        handle = active.handle
        return Activity(self._services.clock.monotonic() - handle.progressed_at, _PHASES.get(handle.state or ""))

    async def run(self) -> None:
        """Follow the chat until cancelled; then wait for every task to end."""
        try:
            bus = self._services.bus
            with (
                bus.subscribe(ChatHint, self._on_hint, key=self.chat_id),
                bus.subscribe(MiscHint, self._on_nudge, key=nudge_topic(self.chat_id)),
            ):
                await self._begin()
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    await self._handle_wake()
        finally:
            self._cancel_active(CancelReason.SHUTDOWN)
            await self._wait_for_tasks()
            self._debug.close()
            # Tasks refer to their runner. Breaking the cycle frees their memory without the garbage collector.
            self._active = None

    async def _begin(self) -> None:
        """Process the first state directly, before states that arrive by hint.

        Such a state may be older than the acquisition and would look like a lost lease.
        """
        if self._acquired is None:
            self._process(await self._read())
            return
        self._process(self._acquired)
        if self._active is None or self._active.input.kind is not TaskKind.GENERATION:
            # The generation task needs no second read, because it begins by reading the chat behind its fence.
            await self._reread()

    async def _handle_wake(self) -> None:
        if (mail := self._pending_state) is not None:
            self._pending_state = None
            self._process(mail)
        if self._must_reread:
            self._must_reread = False
            # The pending state may already have started the next task.
            if self._is_idle:
                await self._reread()

    def deliver(self, state: ChatState) -> None:
        """Store a state for processing, unless a newer one is pending."""
        if self._pending_state is None or self._pending_state.snapshot_version < state.snapshot_version:
            self._pending_state = state
            self._wake.set()

    def cancel_tasks(self, reason: CancelReason) -> None:
        """Cancel all tasks for this reason and start no others. The caller then cancels the runner itself."""
        self._is_ended = True
        self._cancel_active(reason)

    def fence_off(self) -> None:
        """Stop all work, because another replica may own the chat. The runner stays until that is known."""
        self._is_fenced = True
        self._cancel_active(CancelReason.LEASE_LOST)

    def resume(self) -> None:
        """Read the chat and continue, because its lease was renewed."""
        if self._is_fenced:
            self._is_fenced = False
            self._request_reread()

    def drain(self) -> None:
        """Start no new task. Let the running task finish, but cancel it if it only waits."""
        self._is_draining = True
        if self._is_idle:
            self._request_reread()
        else:
            self._cancel_wait()

    def slots_requested(self) -> None:
        """Release the chat if it only waits and its slot was requested."""
        self._cancel_wait()

    def _cancel_wait(self) -> None:
        """Cancel a waiting task and release the chat if the process drains or the slot was requested.

        The end of the wait is stored, and the next runner of the chat waits out the rest.
        """
        active, accepted = self._active, self._accepted
        if active is None or accepted is None or not active.handle.is_waiting:
            return
        # A task that also runs during a drain would only be started again.
        is_draining = self._is_draining and self._kind_of(accepted) is not active.input.kind
        if is_draining or self._may_leave_wait(active):
            active.cancel(CancelReason.SHUTDOWN)
            self._request_reread()

    def _may_leave_wait(self, active: TaskRecord) -> bool:
        services = self._services
        return (
            active.input.kind is TaskKind.GENERATION
            and services.slot_requests.includes(self._slot)
            and services.clock.monotonic() - self._held_since >= services.config.slot_hold_seconds
        )

    @property
    def _is_idle(self) -> bool:
        return self._active is None or self._active.is_done or self._active.is_cancelled

    def _on_hint(self, hint: ChatHint) -> None:
        if hint.gone:
            self._report_lost()
            return
        self.deliver(ChatState.from_hint(hint))

    def _on_nudge(self, hint: MiscHint) -> None:
        """End the current wait of the active task. Without a wait, the nudge has no effect."""
        active = self._active
        if (
            active is not None
            and not active.is_done
            and hint.data.get("history_version") == active.input.history_version
        ):
            active.handle.nudge.send()

    async def _read(self) -> ChatState:
        return ChatState.of(await self._services.machine.peek(self.chat_id))

    def _process(self, state: ChatState, *, is_forced: bool = False) -> None:
        """Process a state: start the task for it, or report that the chat is lost.

        The method is synchronous, so the state cannot change while it is processed. With `is_forced`, a known state
        starts its task again.
        """
        accepted = self._accepted
        if self._is_ended or (accepted is not None and not _is_news(accepted, state, or_same=is_forced)):
            return
        self._accepted = state
        self._records = {record for record in self._records if not record.is_done}
        if not self._is_owned(state):
            self._report_lost()
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

    def _is_owned(self, state: ChatState) -> bool:
        """Return whether this runner owns the chat. A chat with an unknown status is left to a newer replica."""
        is_owner = (state.worker_id, state.runner_id) == (self._services.worker_id, self.runner_id)
        return is_owner and state.status in _KNOWN

    def _reason(self, state: ChatState) -> CancelReason:
        """Return the reason why the active task must end: its own commit superseded it, or another writer changed the
        chat.
        """
        if state.status != Status.INTERRUPTING and self._active is not None:
            own_commit_version = self._active.handle.own_commit_version
            if own_commit_version is not None and own_commit_version <= state.snapshot_version:
                return CancelReason.SUPERSEDED
        return CancelReason.USER

    def _spawn(self, state: ChatState, *, delay_seconds: float = 0.0, may_give_way: bool = False) -> None:
        kind = self._kind_of(state)
        services = self._services
        is_asked = may_give_way and kind is TaskKind.GENERATION and services.slot_requests.includes(self._slot)
        task = TaskInput(
            task_id=services.new_id(),
            kind=kind,
            chat_id=self.chat_id,
            worker_id=services.worker_id,
            runner_id=self.runner_id,
            history_version=state.history_version,
            status=Status(state.status),
            requested_slot=self._slot if is_asked else None,
        )
        handle = TaskHandle(
            task,
            machine=services.machine,
            clock=services.clock,
            config=services.config,
            route=self.deliver,
            on_wait=self._cancel_wait,
            may_commit=services.may_commit,
            debug=self._debug,
            stopped=tuple(self._records) if kind is TaskKind.INTERRUPT else (),
        )
        record = self._active = TaskRecord(handle, services.work_of(kind))
        after = [other for other in self._records if other.input.key == task.key and not other.is_done]
        self._records.add(record)
        record.start(
            lambda started: services.tasks.run(started, after=after, delay_seconds=delay_seconds), self._task_done
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
        """Read the chat again if the active task ended by itself, because it may have left the chat unchanged."""
        self._records.discard(record)
        self._has_left |= record.handle.has_left
        if record.is_cancelled:
            unwound = self._services.clock.monotonic() - record.cancelled_at
            self._services.stats.cancel_unwind_seconds.observe(record.input.kind, unwound)
        if record is not self._active or record.is_cancelled or self._is_ended:
            return
        if self._has_left:
            self._report_lost()
            return
        self._request_reread()

    def _request_reread(self) -> None:
        self._must_reread = True
        self._wake.set()

    async def _reread(self) -> None:
        """Read the row and process it, even if no new state was delivered."""
        try:
            state = await self._read()
        except ChatNotFound:
            self._report_lost()
            return
        except StoreError as error:
            log.warning("runner_cannot_read", chat_id=self.chat_id, error=str(error))
            await self._wait_before_reread()
            self._request_reread()
            return
        accepted = self._accepted
        assert accepted is not None
        if state.snapshot_version < accepted.snapshot_version:
            # The accepted state was read earlier and has a higher version: the database crashed and lost commits that
            # were not durable. Without this reset, every later version would look old.
            log.warning("database_went_back", chat_id=self.chat_id)
            self._accepted = None
            self._process(state)
        elif _is_news(accepted, state) and not _is_same_work(accepted, state):
            self._process(state)
        elif self._is_idle:
            self._restart_work(state)

    async def _wait_before_reread(self) -> None:
        """Wait before the next read. A delivered state ends the wait."""
        try:
            async with self._services.clock.deadline(self._services.config.stall_backoff_seconds, "runner-read"):
                await self._wake.wait()
        except DeadlineExceeded:
            pass

    def _restart_work(self, state: ChatState) -> None:
        """Start the task of this state again, with a growing delay if the last one left the chat unchanged."""
        active = self._active
        if self._is_fenced or self._is_ended:
            return
        if active is None or not self._is_stall(active, state):
            self._process(state, is_forced=True)
            return
        self._accepted = state
        config = self._services.config
        delay = min(config.stall_backoff_seconds * 2**self._stalls, config.stall_backoff_max_seconds)
        self._stalls += 1
        self._services.stats.task_stalls[active.input.kind] += 1
        log.warning("task_stalled", chat_id=self.chat_id, task=active.input.kind, delay_seconds=delay)
        self._spawn(state, delay_seconds=delay)

    def _is_stall(self, active: TaskRecord, state: ChatState) -> bool:
        """Return whether the task ended without being cancelled and left the chat unchanged."""
        if active.is_cancelled or not self._is_owned(state):
            return False
        is_same = active.input.key == (state.history_version, state.status)
        return is_same and self._kind_of(state) is active.input.kind

    def _report_lost(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._on_lost()

    async def _wait_for_tasks(self) -> None:
        for record in tuple(self._records):
            await record.wait_ended()


def _is_news(accepted: ChatState, state: ChatState, *, or_same: bool = False) -> bool:
    return state.snapshot_version - accepted.snapshot_version >= (0 if or_same else 1)


def _is_same_work(accepted: ChatState, state: ChatState) -> bool:
    """Return whether both states need the same task. Counted attempts and retries restart no task."""
    return (accepted.history_version, accepted.status, accepted.archived) == (
        state.history_version,
        state.status,
        state.archived,
    )
