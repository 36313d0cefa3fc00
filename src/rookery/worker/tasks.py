"""Tasks of a runner: one kind of work on one chat, behind a fence, under a watchdog, and retried until it is done.

A task is done when it returns, when the chat was changed by another writer, or when its runner cancels it. Every other
outcome is retried, including bugs, so a failed task never leaves a chat without work.

    TaskError
    ├── TaskExit    the fence is lost, the chat is deleted, or another runner owns it: end quietly
    └── RetryTask   the infrastructure failed: run the whole task again
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import asyncpg

from rookery.debug.turn_recording import DebugTurn
from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.errors import ChatNotFound, StaleFence
from rookery.domain.chat.messages import ChatId, NewMessage
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import Transition
from rookery.loop.tool import Cancellation, CancelReason
from rookery.runtime import waits
from rookery.runtime.clock import Clock, Deadline, DeadlineExceeded
from rookery.runtime.nudge import Nudge
from rookery.store.db.errors import CommitOutcomeUnknown, DatabaseUnavailable, LockTimeout
from rookery.store.db.pool import Connection
from rookery.store.machine import ChatState, Machine, Slot, Tx, View, single_statement
from rookery.store.models import usage_ledger
from rookery.store.models.usage_ledger import Entry
from rookery.telemetry.log import bind, get_logger
from rookery.worker.config import WorkerConfig
from rookery.worker.stats import WorkerStats

log = get_logger("worker.tasks")

T = TypeVar("T")

# Counted instead of a transition if the fence refused a read.
READ = "read"


class TaskError(Exception):
    """Base class of the errors that end a run of a task on purpose."""


class TaskExit(TaskError):
    """Raised when the task has no more work: the chat was changed, was deleted, or belongs to another runner.

    `refused` names the transition or read that the fence refused, for the metrics; None if no fence was involved.
    `is_stored`: the task's own commit has changed the chat, although its response was lost.
    """

    refused: str | None = None
    is_stored = False


class RetryTask(TaskError):
    """Raised when the database or other infrastructure failed. The task is run again."""


class TaskKind(StrEnum):
    GENERATION = "generation"
    INTERRUPT = "interrupt"
    ACTION_TIMEOUT = "action_timeout"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInput:
    """The state that a task starts from. `requested_slot` is the chat's slot if its owner is asked to give it up."""

    task_id: UUID
    kind: TaskKind
    chat_id: ChatId
    worker_id: UUID
    runner_id: UUID
    history_version: int
    status: Status
    requested_slot: Slot | None = None

    @property
    def key(self) -> tuple[int, Status]:
        """The identity of the work. Only one task with a key may run at a time, because a second one would do the same
        work.
        """
        return self.history_version, self.status

    def fence(self, *, attempt: int | None = None) -> Fence:
        return Fence(
            worker_id=self.worker_id,
            runner_id=self.runner_id,
            status=self.status,
            history_version=self.history_version,
            generation_attempt=attempt,
            allow_archived=self.kind is TaskKind.ABANDON,
        )


class TaskCancellation(Cancellation):
    """The reason why a task's tools are cancelled. An expired watchdog, which sets no reason, counts as a timeout."""

    __slots__ = ("_given", "watchdog")

    def __init__(self) -> None:
        self.watchdog: Deadline | None = None
        self._given: CancelReason | None = None
        super().__init__()

    @property
    def reason(self) -> CancelReason | None:
        if self._given is None and self.watchdog is not None and self.watchdog.is_expired:
            return CancelReason.TIMEOUT
        return self._given

    @reason.setter
    def reason(self, reason: CancelReason | None) -> None:
        self._given = reason


_ABORT_REASONS = {
    CancelReason.USER: "user",
    CancelReason.SUPERSEDED: "user",
    CancelReason.LEASE_LOST: "lease_lost",
    CancelReason.TIMEOUT: "silence_timeout",
    CancelReason.SHUTDOWN: "shutdown",
}


def _ignore() -> None:
    """Default for `on_wait`."""


def _always() -> bool:
    return True


class TaskHandle:
    """The interface that a task's code uses while it runs: fenced access to the chat, and progress reports to the
    watchdog.

    One handle serves all tries of a task. `own_commit_version` is the chat's version after this task's commit; it tells
    the runner whether a change came from this task or from another writer. `on_wait` is called when the task begins to
    wait. While `may_commit` returns False, commits wait, because peers may believe that this process is dead.
    `debug` records the turn. `stopped` are the cancelled tasks of the same runner that have not ended yet.
    """

    def __init__(
        self,
        task: TaskInput,
        *,
        machine: Machine,
        clock: Clock,
        config: WorkerConfig,
        route: Callable[[ChatState], None],
        on_wait: Callable[[], None] = _ignore,
        may_commit: Callable[[], bool] = _always,
        debug: DebugTurn | None = None,
        stopped: Sequence[TaskRecord] = (),
    ) -> None:
        self.input = task
        self.debug = debug or DebugTurn(None)
        self.cancellation = TaskCancellation()
        self.own_commit_version: int | None = None
        self.is_waiting = False
        self.nudge = Nudge()
        # This task's own commit has released the chat and deleted its lease.
        self.has_left = False
        # The longest silence that the options of the step's model allow; 0 if they say nothing.
        self.model_patience_seconds = 0.0
        self._machine = machine
        self._clock = clock
        self._config = config
        self._route = route
        self._on_wait = on_wait
        self._may_commit = may_commit
        self._stopped = stopped
        self._watchdog: Deadline | None = None
        self._tools_until: float | None = None
        # The monotonic time of the task's last progress.
        self.progressed_at = clock.monotonic()

    async def update(
        self,
        fn: Callable[[Tx], Awaitable[T]],
        *,
        transition: Transition,
        attempt: int | None = None,
        lazily: bool = False,
    ) -> T:
        """Apply transitions behind the task's fence. The runner receives the committed row before this returns.

        A lost fence is counted under the name of `transition`, the main one. With `lazily`, the commit does not wait
        for the disk; use it for changes that the task can repeat.
        """
        written: list[Chat] = []
        result: list[T] = []

        has_left = False

        async def run(tx: Tx) -> T:
            nonlocal has_left
            self.own_commit_version = None
            outcome = await fn(tx)
            has_left = tx.has_left
            if (tx.chat.history_version, tx.chat.status) != self.input.key:
                # Attempts and retries do not set it: after them, the next change comes from another writer.
                self.own_commit_version = tx.chat.snapshot_version
            written[:], result[:] = [tx.chat], [outcome]
            return outcome

        await self._wait_until_commit_allowed()
        try:
            outcome = await self._machine.chat(self.input.chat_id).update(
                run, fence=self.input.fence(attempt=attempt), lazily=lazily
            )
            self.has_left = has_left
            return outcome
        except CommitOutcomeUnknown as error:
            if written and await self._is_committed(written[0]):
                self._route(ChatState.of(written[0]))
                return result[0]
            self.own_commit_version = None
            raise RetryTask(str(error)) from error
        except Exception as error:
            self.own_commit_version = None
            _raise_task_error(error, transition)

    async def count_attempt(self, max_attempts: int) -> int | None:
        """Count an attempt in one statement and return its number; None if `update` must count it.

        If the response to the commit is lost, the attempt may be counted although it does not run.
        """
        await self._wait_until_commit_allowed()
        try:
            chat = await single_statement.count_attempt(
                self._machine, self.input.chat_id, fence=self.input.fence(), max_attempts=max_attempts
            )
        except Exception as error:
            _raise_task_error(error, Transition.RECORD_GENERATION_ATTEMPT)
        return None if chat is None else chat.generation_attempt

    async def end_turn(
        self, answer: NewMessage, bill: Entry, *, attempt: int, label: str | None
    ) -> single_statement.EndedTurn | None:
        """Commit an answer that ends its turn, and release the chat, in one statement.

        Return None if nothing was changed, and `update` must commit the answer.
        """
        await self._wait_until_commit_allowed()
        try:
            ended = await single_statement.end_turn(
                self._machine,
                self.input.chat_id,
                answer,
                bill,
                fence=self.input.fence(attempt=attempt),
                label=label,
            )
        except CommitOutcomeUnknown as error:
            if await self._is_billed(bill):
                stored = TaskExit("The turn has ended, although the response to its commit was lost.")
                stored.is_stored = True
                raise stored from error
            raise RetryTask(str(error)) from error
        except Exception as error:
            _raise_task_error(error, Transition.FINISH_TURN)
        self.has_left = ended is not None
        return ended

    async def read(self, fn: Callable[[], Awaitable[T]]) -> T:
        """Read from the store. Errors are translated as in `update`."""
        return await self._with_task_errors(fn)

    async def run_tools(self, batch: Callable[[], Awaitable[T]]) -> T:
        """Run a batch of tools. Errors of its ledger are translated as in `update`.

        The batch reports the deadlines of its tools to `tool_progress`, so that the watchdog waits for them.
        """
        return await self._with_task_errors(batch)

    async def _with_task_errors(self, fn: Callable[[], Awaitable[T]]) -> T:
        self.progress()
        try:
            return await fn()
        except Exception as error:
            _raise_task_error(error, READ)

    async def wait(self, seconds: float, tag: str) -> None:
        """Wait this long. The watchdog is extended, and a drain may cancel the wait."""
        self.progress(seconds + self._config.task_grace_seconds)
        try:
            with self.waiting():
                await self._sleep(seconds, tag)
        finally:
            self.progress()

    async def wait_for_stopped(self, seconds: float) -> None:
        """Wait until the previously cancelled tasks have ended, but at most this long."""
        try:
            async with self._clock.deadline(seconds, "stopped-tasks"):
                for record in self._stopped:
                    await record.wait_ended()
        except DeadlineExceeded:
            log.info("stopped_task_left", chat_id=self.input.chat_id)
        self._stopped = ()

    async def _sleep(self, seconds: float, tag: str) -> None:
        """Sleep this long, or until a user nudges the task. A nudge that ended a model call skips the sleep."""
        if self.nudge.is_pending:
            self.nudge.is_pending = False
            return
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds, tag))
        try:
            with self.nudge.heard_by(sleeping.cancel):
                await asyncio.wait({sleeping})
        finally:
            if not sleeping.done():
                sleeping.cancel()
        if not sleeping.cancelled():
            sleeping.result()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait, during which the runner can cancel the task without losing work."""
        self.is_waiting = True
        try:
            self._on_wait()
            yield
        finally:
            self.is_waiting = False

    def progress(self, seconds: float | None = None) -> None:
        """Restart the watchdog. Without further progress, the task counts as hung after this many seconds.

        The default is the idle limit, extended to the latest deadline of a running tool.
        """
        self.progressed_at = self._clock.monotonic()
        if self._watchdog is not None:
            self._watchdog.reset(self._patience_seconds() if seconds is None else seconds)

    def note_life(self) -> None:
        """Note progress that does not concern the watchdog, such as output of a tool."""
        self.progressed_at = self._clock.monotonic()

    def tool_progress(self, latest_deadline: float | None) -> None:
        """Restart the watchdog for a batch of tools, which may be silent until this monotonic time.

        None means that no tool runs.
        """
        self._tools_until = latest_deadline
        self.progress()

    def abort_reason(self) -> str | None:
        """Return the reason why this task is being cancelled, for debug records; None if it is not.

        If the runner gave no reason, a time limit of this server cancels the task.
        """
        reason = self.cancellation.reason
        if reason is None:
            return "silence_timeout" if waits.cancelling() else None
        return _ABORT_REASONS[reason]

    @property
    def state(self) -> str | None:
        """The state of the task, for the metrics."""
        match self.input.kind:
            case TaskKind.INTERRUPT:
                return "interrupting"
            case TaskKind.ACTION_TIMEOUT:
                return "requires_action"
            case TaskKind.ABANDON:
                return None
        if self.is_waiting:
            return "retry_wait"
        return "streaming" if self._tools_until is None else "tools"

    async def watched(self, work: Callable[[TaskHandle], Awaitable[None]]) -> None:
        """Run the work under the watchdog. Raise `DeadlineExceeded` if it makes no progress for too long."""
        watchdog = self._clock.deadline(self._config.task_idle_seconds, f"task-idle-{self.input.kind}")
        self._tools_until = None
        try:
            async with watchdog:
                self._watchdog = self.cancellation.watchdog = watchdog
                try:
                    await work(self)
                finally:
                    self._watchdog = self.cancellation.watchdog = None
        except TaskExit as exit_:
            if watchdog.is_expired:
                # The work treats every cancellation as a request to exit. Here the watchdog cancelled it: it hung.
                raise DeadlineExceeded(f"task-idle-{self.input.kind}", self._config.task_idle_seconds) from exit_
            raise

    def _patience_seconds(self) -> float:
        """Return the watchdog's limit, which is never before the deadline of a running tool."""
        config = self._config
        idle = config.task_idle_seconds
        if self.model_patience_seconds:
            idle = max(idle, self.model_patience_seconds + config.task_grace_seconds)
        if self._tools_until is None:
            return idle
        return max(idle, self._tools_until - self._clock.monotonic() + config.task_grace_seconds)

    async def _is_committed(self, written: Chat) -> bool:
        """Return whether a COMMIT whose response was lost has happened, by comparing the stored and the written row."""
        try:
            found = await self._machine.chat(self.input.chat_id).read(_row)
        except ChatNotFound:
            return False
        except Exception as error:
            self.own_commit_version = None
            _raise_task_error(error, READ)
        return ChatState.of(found) == ChatState.of(written)

    async def _is_billed(self, bill: Entry) -> bool:
        """Return whether a COMMIT whose response was lost has happened, by looking for the bill that it stored."""

        async def find(conn: Connection) -> bool:
            return await usage_ledger.is_recorded(conn, bill)

        try:
            return await self._machine.snapshot(find)
        except Exception as error:
            _raise_task_error(error, READ)

    async def _wait_until_commit_allowed(self) -> None:
        """Wait before a commit until this process holds its presence lock.

        The task keeps its result meanwhile; the fence decides later whether the result is stored. A commit under
        `commit_shield` does not receive a cancellation, so the reason for one is checked here.
        """
        self.progress()
        while not self._may_commit():
            if self.cancellation.reason is not None:
                raise TaskExit("This task was cancelled.")
            await self._clock.sleep(self._config.presence_look_seconds, "presence-wait")


async def _row(view: View) -> Chat:
    return view.chat


# Transient database failures that the store did not translate.
_TRANSIENT_ERRORS = (
    DatabaseUnavailable,
    CommitOutcomeUnknown,
    LockTimeout,
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InternalClientError,  # a statement between the server's shutdown message and the end of the connection
)


def as_task_error(error: Exception) -> Exception:
    """Convert a store error to a `TaskError`. A refused transition is not converted: it is a bug or a race."""
    if isinstance(error, TaskError):
        return error
    if isinstance(error, StaleFence | ChatNotFound):
        return TaskExit(str(error))
    # InterfaceError itself means a lost connection; its subclasses report programming errors.
    if isinstance(error, _TRANSIENT_ERRORS) or type(error) is asyncpg.InterfaceError:
        return RetryTask(str(error) or type(error).__name__)
    return error


def _raise_task_error(error: Exception, tried: str) -> NoReturn:
    meant = as_task_error(error)
    if isinstance(meant, TaskExit) and isinstance(error, StaleFence):
        meant.refused = tried
    try:
        if meant is error:
            raise error  # an error that is its own cause would make a walk along the causes endless
        raise meant from error
    finally:
        del error, meant  # both refer to this frame, and a reference back would be a cycle


Work = Callable[[TaskHandle], Awaitable[None]]


class TaskRecord:
    """A task of a runner, from its start until it has ended."""

    def __init__(self, handle: TaskHandle, work: Work) -> None:
        self.handle = handle
        self.input = handle.input
        self.is_cancelled = False
        self.was_waiting = False  # at the time it was cancelled
        self.cancelled_at = 0.0  # monotonic time of the cancellation
        self._work = work
        self._task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        return self._task is None or self._task.done()

    def start(
        self, run: Callable[[TaskRecord], Coroutine[Any, Any, None]], on_done: Callable[[TaskRecord], None]
    ) -> None:
        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.exception("task_broken", error, chat_id=self.input.chat_id, task=self.input.kind)
            # A cancelled task keeps its error, whose frames refer to this record. The cycle would wait for the garbage
            # collector.
            self._task = None
            on_done(self)

        self._task = asyncio.create_task(run(self), name=f"{self.input.kind} {self.input.chat_id}")
        self._task.add_done_callback(done)

    def cancel(self, reason: CancelReason) -> None:
        """Cancel the task without waiting for its end. The first reason counts."""
        if self.is_cancelled or self.is_done:
            return
        self.is_cancelled = True
        self.was_waiting = self.handle.is_waiting
        self.cancelled_at = self.handle._clock.monotonic()
        self.handle.cancellation.reason = reason
        assert self._task is not None
        self._task.cancel()

    async def wait_ended(self) -> None:
        """Wait until the task has ended, with or without an error."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def run(self) -> None:
        await self.handle.watched(self._work)


class TaskLoop:
    """Runs a task until it is done. Shared by all tasks of a process."""

    def __init__(self, *, clock: Clock, config: WorkerConfig, stats: WorkerStats) -> None:
        self._clock = clock
        self._config = config
        self._stats = stats

    async def run(self, record: TaskRecord, *, after: Iterable[TaskRecord], delay_seconds: float) -> None:
        """Run the task until it is done. Raise only its cancellation.

        `after` are cancelled tasks with the same key, which must end first.
        """
        task = record.input
        with bind(
            chat_id=task.chat_id,
            runner_id=task.runner_id,
            task=task.kind,
            history_version=task.history_version,
        ):
            for predecessor in after:
                await predecessor.wait_ended()
            if delay_seconds:
                await self._pause(record, delay_seconds, f"task-stall-{task.kind}")
            delay = self._config.task_backoff_seconds
            while not await self._try(record):
                self._stats.task_retries[task.kind] += 1
                await self._pause(record, delay, f"task-retry-{task.kind}")
                delay = min(delay * 2, self._config.task_backoff_max_seconds)

    async def _pause(self, record: TaskRecord, seconds: float, tag: str) -> None:
        with record.handle.waiting():
            await self._clock.sleep(seconds, tag)

    async def _try(self, record: TaskRecord) -> bool:
        """Return whether the task is done."""
        try:
            await record.run()
        except TaskExit as exit_:
            if exit_.refused is not None:
                self._stats.fence_rejections[exit_.refused] += 1
            log.debug("task_exit", reason=str(exit_))
        except asyncio.CancelledError:
            if waits.cancelling():
                raise
            # A library raised the cancellation. The task itself was not cancelled.
            log.warning("task_retry", error="A library call was cancelled, but not this task.")
            return False
        except Exception as error:
            if not record.is_cancelled:
                _log_failure(error)
                return False
            # The error is a reaction to the cancellation, which alone counts.
            log.debug("task_left", error=str(error) or type(error).__name__)
        return True


def _log_failure(error: Exception) -> None:
    match error:
        case DeadlineExceeded():
            log.warning("task_hangs", error=str(error))
        case RetryTask():
            log.warning("task_retry", error=str(error))
        case _:
            log.exception("task_failed", error)
