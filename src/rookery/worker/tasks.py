"""The contract of a runner's tasks: one kind of work on one chat, fenced, watched, tried again until it is through.

A task is done when it returns, when its chat has moved on, or when its runner cancels it. Everything else, bugs
included, is tried again: a chat is never left lying because a task failed.

TaskError
├── TaskExit    the fence is lost, the chat is gone, somebody else is right: end quietly
└── RetryTask   the infrastructure failed; run the whole task again
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import asyncpg

from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.errors import ChatNotFound, StaleFence
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import Transition
from rookery.loop.tool import Cancellation, CancelReason
from rookery.runtime import waits
from rookery.runtime.clock import Clock, Deadline, DeadlineExceeded
from rookery.store.db.errors import CommitOutcomeUnknown, DatabaseUnavailable, LockTimeout
from rookery.store.machine import ChatState, Machine, Slot, Tx, View, single_statement
from rookery.telemetry.log import bind, get_logger
from rookery.worker.config import WorkerConfig
from rookery.worker.stats import WorkerStats

log = get_logger("worker.tasks")

T = TypeVar("T")

# What a fence may refuse besides a transition.
READ = "read"


class TaskError(Exception):
    """Base of what ends a run of a task on purpose."""


class TaskExit(TaskError):
    """Nothing is left to do here: the chat moved on, went away, or belongs to somebody else.

    `refused` is what the fence refused, for the metrics: a transition, or a look at the chat. None where no fence did.
    """

    refused: str | None = None


class RetryTask(TaskError):
    """The database or the like failed. Nothing is wrong with the chat; run the task again."""


class TaskKind(StrEnum):
    GENERATION = "generation"
    INTERRUPT = "interrupt"
    ACTION_TIMEOUT = "action_timeout"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInput:
    """What a task starts from: the state its runner saw. `asked_for` is its slot, where somebody else may need it."""

    task_id: UUID
    kind: TaskKind
    chat_id: ChatId
    worker_id: UUID
    runner_id: UUID
    history_version: int
    status: Status
    asked_for: Slot | None = None

    @property
    def key(self) -> tuple[int, Status]:
        """Tasks with the same key would do the same work; only one of them may be inside at a time."""
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
    """Where a task's tools read why they are stopped. Knows of the watchdog, which cancels without asking anybody."""

    __slots__ = ("_told", "watchdog")

    def __init__(self) -> None:
        self.watchdog: Deadline | None = None
        self._told: CancelReason | None = None
        super().__init__()

    @property
    def reason(self) -> CancelReason | None:
        if self._told is None and self.watchdog is not None and self.watchdog.is_expired:
            return CancelReason.TIMEOUT
        return self._told

    @reason.setter
    def reason(self, reason: CancelReason | None) -> None:
        self._told = reason


def _ignore() -> None:
    """Nobody wants to know."""


def _always() -> bool:
    return True


class TaskHandle:
    """A task as its work sees it: what it may do to the chat, and how it shows that it is alive.

    One for all tries of a task. `claimed` is the version by which this task itself is moving the chat on, or has: by
    it the runner tells the task's own commit from somebody else's. `on_wait` hears when the task begins to wait.
    While `may_commit` says no, what the task wants to commit waits: peers may take this process for dead.
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
    ) -> None:
        self.input = task
        self.cancellation = TaskCancellation()
        self.claimed: int | None = None
        self.is_waiting = False
        self._machine = machine
        self._clock = clock
        self._config = config
        self._route = route
        self._on_wait = on_wait
        self._may_commit = may_commit
        self._watchdog: Deadline | None = None
        self._tools_until: float | None = None

    async def update(
        self,
        fn: Callable[[Tx], Awaitable[T]],
        *,
        transition: Transition,
        attempt: int | None = None,
        lazily: bool = False,
    ) -> T:
        """Apply transitions behind the task's fence. The committed row reaches the runner before this returns.

        `transition` is the one that matters among them, by which a lost fence is counted. `lazily`: without waiting
        for the disk, for what a task can do again.
        """
        written: list[Chat] = []
        result: list[T] = []

        async def run(tx: Tx) -> T:
            self.claimed = None
            outcome = await fn(tx)
            if (tx.chat.history_version, tx.chat.status) != self.input.key:
                # Not for attempts and retries: after them, whoever moves the chat on is still somebody else.
                self.claimed = tx.chat.snapshot_version
            written[:], result[:] = [tx.chat], [outcome]
            return outcome

        await self._until_allowed()
        try:
            return await self._machine.chat(self.input.chat_id).update(
                run, fence=self.input.fence(attempt=attempt), lazily=lazily
            )
        except CommitOutcomeUnknown as error:
            if written and await self._is_committed(written[0]):
                self._route(ChatState.of(written[0]))
                return result[0]
            self.claimed = None
            raise RetryTask(str(error)) from error
        except Exception as error:
            self.claimed = None
            _raise_normalised(error, transition)

    async def count_attempt(self, max_attempts: int) -> int | None:
        """Count an attempt in one statement and return its number. None when it needs the long way, by `update`.

        One whose commit was never answered may be counted for nothing; the next try makes another.
        """
        await self._until_allowed()
        try:
            chat = await single_statement.count_attempt(
                self._machine, self.input.chat_id, fence=self.input.fence(), max_attempts=max_attempts
            )
        except Exception as error:
            _raise_normalised(error, Transition.RECORD_GENERATION_ATTEMPT)
        return None if chat is None else chat.generation_attempt

    async def read(self, fn: Callable[[], Awaitable[T]]) -> T:
        """Run a read of the store; what it raises means the same as in `update`."""
        self.progress()
        try:
            return await fn()
        except Exception as error:
            _raise_normalised(error, READ)

    async def wait(self, seconds: float, tag: str) -> None:
        """A wait that is planned: the watchdog knows of it, and a drain need not sit it out."""
        self.progress(seconds + self._config.task_grace_seconds)
        try:
            with self.waiting():
                await self._clock.sleep(seconds, tag)
        finally:
            self.progress()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait, so that the runner knows that nothing is lost if it does not end."""
        self.is_waiting = True
        try:
            self._on_wait()
            yield
        finally:
            self.is_waiting = False

    def progress(self, seconds: float | None = None) -> None:
        """Something moved. From now on, silence of this many seconds (else the usual) means that the task hangs."""
        if self._watchdog is not None:
            self._watchdog.reset(self._patience_seconds() if seconds is None else seconds)

    def tool_progress(self, latest_deadline: float | None) -> None:
        """Like `progress`, as the loop tells it: until when (monotonic) its tools may be silent; None: none runs."""
        self._tools_until = latest_deadline
        self.progress()

    @property
    def state(self) -> str | None:
        """What the task is at, in a word for the metrics."""
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
        """Run the work under the watchdog; `DeadlineExceeded` when it has shown no life for too long."""
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
                # Work that takes any cancellation for a reason to leave. Nobody asked it to: it hung.
                raise DeadlineExceeded(f"task-idle-{self.input.kind}", self._config.task_idle_seconds) from exit_
            raise

    def _patience_seconds(self) -> float:
        """A running tool may be silent until its deadline, whatever else of the task shows life meanwhile."""
        idle = self._config.task_idle_seconds
        if self._tools_until is None:
            return idle
        return max(idle, self._tools_until - self._clock.monotonic() + self._config.task_grace_seconds)

    async def _is_committed(self, written: Chat) -> bool:
        """Whether the COMMIT whose answer was lost has happened: then the row is the one that was written."""
        try:
            found = await self._machine.chat(self.input.chat_id).read(_row)
        except ChatNotFound:
            return False
        except Exception as error:
            self.claimed = None
            _raise_normalised(error, READ)
        return ChatState.of(found) == ChatState.of(written)

    async def _until_allowed(self) -> None:
        """Before a commit: wait until peers can see again that this process lives. What the task has made is kept
        meanwhile, and its fence decides whether it still counts. Who sees a commit through does not feel that it is
        cancelled, so that is looked for here."""
        self.progress()
        while not self._may_commit():
            if self.cancellation.reason is not None:
                raise TaskExit("This task was told to leave.")
            await self._clock.sleep(self._config.presence_look_seconds, "presence-wait")


async def _row(view: View) -> Chat:
    return view.chat


# What a database that fails for a moment raises where nobody has judged it yet.
_PASSING = (
    DatabaseUnavailable,
    CommitOutcomeUnknown,
    LockTimeout,
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InternalClientError,  # a statement between the server's farewell and the end of the connection
)


def normalised(error: Exception) -> Exception:
    """An error of the store as what it means to a task. Refusals stay what they are: they are bugs or races."""
    if isinstance(error, TaskError):
        return error
    if isinstance(error, StaleFence | ChatNotFound):
        return TaskExit(str(error))
    # What the subclasses of InterfaceError report are our mistakes; itself it means a connection that is gone.
    if isinstance(error, _PASSING) or type(error) is asyncpg.InterfaceError:
        return RetryTask(str(error) or type(error).__name__)
    return error


def _raise_normalised(error: Exception, tried: str) -> NoReturn:
    meant = normalised(error)
    if isinstance(meant, TaskExit) and isinstance(error, StaleFence):
        meant.refused = tried
    try:
        if meant is error:
            raise error  # not "from" itself: whoever follows the causes would never come to an end
        raise meant from error
    finally:
        del error, meant  # both know this frame from now on, which must not know them


Work = Callable[[TaskHandle], Awaitable[None]]


class TaskRecord:
    """A task of a runner, from its start until it has really left."""

    def __init__(self, handle: TaskHandle, work: Work) -> None:
        self.handle = handle
        self.input = handle.input
        self.is_cancelled = False
        self.was_waiting = False  # when it was cancelled
        self.cancelled_at = 0.0  # on the monotonic clock, once it is cancelled
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
            # A task that was cancelled keeps the error and with it the frames that know this record: as a circle they
            # would wait for the garbage collector.
            self._task = None
            on_done(self)

        self._task = asyncio.create_task(run(self), name=f"{self.input.kind} {self.input.chat_id}")
        self._task.add_done_callback(done)

    def cancel(self, reason: CancelReason) -> None:
        """Ask it to leave; nobody waits for it here. The first reason is the one that counts."""
        if self.is_cancelled or self.is_done:
            return
        self.is_cancelled = True
        self.was_waiting = self.handle.is_waiting
        self.cancelled_at = self.handle._clock.monotonic()
        self.handle.cancellation.reason = reason
        assert self._task is not None
        self._task.cancel()

    async def left(self) -> None:
        """Return when the task has left, however it did."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def run(self) -> None:
        await self.handle.watched(self._work)


class TaskLoop:
    """Runs a task until it is through; what all tasks of a process share."""

    def __init__(self, *, clock: Clock, config: WorkerConfig, stats: WorkerStats) -> None:
        self._clock = clock
        self._config = config
        self._stats = stats

    async def run(self, record: TaskRecord, *, after: Iterable[TaskRecord], delay_seconds: float) -> None:
        """Never raises but for its cancellation. `after`: those of the same key, who have been told to leave."""
        task = record.input
        with bind(
            chat_id=task.chat_id,
            runner_id=task.runner_id,
            task=task.kind,
            history_version=task.history_version,
        ):
            for predecessor in after:
                await predecessor.left()
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
        """Whether the task is through."""
        try:
            await record.run()
        except TaskExit as exit_:
            if exit_.refused is not None:
                self._stats.fence_rejections[exit_.refused] += 1
            log.debug("task_exit", reason=str(exit_))
        except asyncio.CancelledError:
            if waits.cancelling():
                raise
            # Somebody's library cancelled itself into our task; nobody asked this task to stop.
            log.warning("task_retry", error="A call inside was cancelled by itself.")
            return False
        except Exception as error:
            if not record.is_cancelled:
                _log_failure(error)
                return False
            # Its way to say that it was cancelled. That it was asked to leave is all that counts.
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
