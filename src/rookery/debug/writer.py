"""The writer: one task per replica that writes operations in order, over a separate connection.

A turn never waits for it. Values are prepared in one thread. The queue is bounded: if it is full, bodies of attempts
are dropped first, then requests and new runs; ends of steps and runs are always accepted. Failures are counted and
logged, and are not raised to callers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import asyncpg

from rookery.debug.recorder import Room, Run
from rookery.debug.stats import DebugStats, Dropped, Result
from rookery.debug.writer_operations import BeginCall, OpenRun, Operation, WriteAttempt
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.db.errors import StoreError
from rookery.store.db.hints import Hint
from rookery.store.debug import recording_state
from rookery.telemetry.log import get_logger

log = get_logger("debug.writer")

MAX_BYTES = 64 * 1024 * 1024
MAX_OPERATIONS = 4096
OPERATION_SECONDS = 5.0
STATEMENT_SECONDS = 4.5
FLUSH_SECONDS = 5.0
# While the database is unavailable, operations wait this long. A restart takes seconds.
AWAY_SECONDS = 30.0
RECONNECT_SECONDS = 1.0
# At most one warning in this time, with the number of operations that were lost since the last warning.
WARNING_SECONDS = 60.0
# At most four hints per second and run.
HINT_SECONDS = 0.25
CLOSE_SECONDS = 2.0

_UNREACHABLE = (
    OSError,
    StoreError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InternalClientError,
)

Connect = Callable[[], Awaitable[asyncpg.Connection]]
Publish = Callable[[Sequence[Hint]], None]


def _ignore(hints: Sequence[Hint]) -> None:
    """The default of `publish`, which does nothing."""


class Writer:
    """Writes operations. `connect` opens the connection, which happens at the first operation."""

    def __init__(
        self,
        connect: Connect,
        *,
        clock: Clock,
        publish: Publish = _ignore,
        stats: DebugStats | None = None,
        max_bytes: int = MAX_BYTES,
        max_operations: int = MAX_OPERATIONS,
    ) -> None:
        self.stats = stats or DebugStats()
        self._connect = connect
        self._clock = clock
        self._publish = publish
        self._max_bytes = max_bytes
        self._max_operations = max_operations
        self._queue: deque[Operation] = deque()
        self._with_bodies: deque[WriteAttempt] = deque()
        self._bytes = 0
        self._has_work = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_closed = False
        self._is_running = False
        self._thread: ThreadPoolExecutor | None = None
        self._conn: asyncpg.Connection | None = None
        self._away_since: float | None = None
        self._warned_at = float("-inf")
        self._unwarned = 0
        self._due: dict[Run, str] = {}
        self._hint_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, operation: Operation) -> bool:
        """Queue an operation. Return False if it is refused."""
        if self._is_closed:
            self.stats.dropped[Dropped.SHUTDOWN] += 1
            return False
        if self._is_over(operation.size_bytes) and not self._has_room_after_relief(operation):
            return False
        if isinstance(operation, WriteAttempt):
            self._with_bodies.append(operation)
        self._queue.append(operation)
        self._count_bytes(operation.size_bytes)
        self._is_idle.clear()
        self._has_work.set()
        return True

    def room(self) -> Room:
        """Return the space that the queue has if only bodies of attempts are dropped."""
        bodies = sum(attempt.freeable_bytes for attempt in self._with_bodies if not attempt.is_taken)
        return Room(
            bytes=max(self._max_bytes - self._bytes + bodies, 0),
            operations=max(self._max_operations - len(self._queue), 0),
        )

    async def run(self) -> NoReturn:
        """Write operations until cancelled."""
        self._is_running = True
        try:
            while True:
                await self._has_work.wait()
                while self._queue:
                    await self._process(self._queue.popleft())
                self._has_work.clear()
                self._is_idle.set()
        finally:
            self._is_running = False
            await self._release()

    async def flush(self) -> None:
        """Wait until the queue is empty. Used by tests."""
        await self._is_idle.wait()

    async def close(self) -> None:
        """Accept no more operations, and wait up to `FLUSH_SECONDS` until the queue is written."""
        self._is_closed = True
        if self._is_running:
            try:
                async with self._clock.deadline(FLUSH_SECONDS, "debug-flush"):
                    await self._is_idle.wait()
            except DeadlineExceeded:
                pass
        if self._queue:
            self.stats.dropped[Dropped.SHUTDOWN] += len(self._queue)
            log.warning("debug_not_recorded", operations=len(self._queue), reason="The process is stopping.")
            self._queue.clear()
            self._count_bytes(-self._bytes)
        self._send_due_hints()
        if self._hint_timer is not None:
            self._hint_timer.cancel()

    # The bounds of the queue

    def _is_over(self, more_bytes: int) -> bool:
        return self._bytes + more_bytes > self._max_bytes or len(self._queue) >= self._max_operations

    def _has_room_after_relief(self, operation: Operation) -> bool:
        """Make room for an operation. Return False if the operation must be dropped."""
        self._strip_bodies(operation.size_bytes)
        if self._is_over(operation.size_bytes) and isinstance(operation, WriteAttempt) and operation.strip():
            self.stats.dropped[Dropped.ATTEMPT_BODY] += 1
        if self._is_over(operation.size_bytes) and isinstance(operation, OpenRun):
            self.stats.dropped[Dropped.RUN] += 1
            self._warn(operation, "The queue is full.")
            return False
        if self._is_over(operation.size_bytes) and isinstance(operation, BeginCall) and operation.strip():
            self.stats.dropped[Dropped.REQUEST] += 1
        if len(self._queue) >= 2 * self._max_operations and not operation.is_final:
            self.stats.dropped[Dropped.OPERATION] += 1
            operation.lost()
            self._warn(operation, "The queue is full.")
            return False
        return True

    def _strip_bodies(self, more_bytes: int) -> None:
        """Drop the bodies of queued attempts, the oldest first, until there is room."""
        while self._with_bodies and self._bytes + more_bytes > self._max_bytes:
            attempt = self._with_bodies.popleft()
            if not attempt.is_taken and (freed := attempt.strip()):
                self._count_bytes(-freed)
                self.stats.dropped[Dropped.ATTEMPT_BODY] += 1

    def _count_bytes(self, more: int) -> None:
        self._bytes += more
        self.stats.queue_bytes = self._bytes

    # Writing

    async def _process(self, operation: Operation) -> None:
        operation.is_taken = True
        size = operation.size_bytes
        while self._with_bodies and self._with_bodies[0].is_taken:
            self._with_bodies.popleft()
        try:
            if operation.run.is_detached:
                self.stats.dropped[Dropped.DETACHED] += 1
                return
            result = await self._written(operation)
            self.stats.operations[operation.name, result] += 1
            if result is Result.OK and operation.hint is not None:
                self._announce(operation.run, operation.hint)
        except Exception as error:
            # A bug in one operation must not end the recording of the others.
            self.stats.operations[operation.name, Result.FAILED] += 1
            log.exception("debug_operation_failed", error, operation=operation.name, run_id=operation.run.id)
            operation.lost()
        finally:
            self._count_bytes(-size)
            operation.release()

    async def _written(self, operation: Operation) -> Result:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "debug-writer")
        await loop.run_in_executor(self._thread, operation.prepare)
        while True:
            try:
                async with self._clock.deadline(OPERATION_SECONDS, "debug-operation"):
                    conn = await self._connection()
                    result = await operation.write(conn)
                self._away_since = None
                return result
            except (DeadlineExceeded, asyncpg.QueryCanceledError):
                await self._close_connection()
                return self._lost(operation, Result.TIMEOUT, f"The database did not answer in {OPERATION_SECONDS:g} s.")
            except (*_UNREACHABLE, asyncpg.InterfaceError) as error:
                self._drop_connection()
                if not await self._may_retry():
                    return self._lost(operation, Result.FAILED, str(error) or type(error).__name__)
            except asyncpg.PostgresError as error:
                # For example, the disk is full. The detail of the error may quote the row.
                return self._lost(operation, Result.FAILED, str(error.args[0]) if error.args else type(error).__name__)

    async def _may_retry(self) -> bool:
        """Wait, and return whether the operation may be tried again."""
        now = self._clock.monotonic()
        if self._away_since is None:
            self._away_since = now
        if self._is_closed or now - self._away_since > AWAY_SECONDS:
            return False
        await self._clock.sleep(RECONNECT_SECONDS, "debug-reconnect")
        return True

    def _lost(self, operation: Operation, result: Result, reason: str) -> Result:
        operation.lost()
        self._warn(operation, reason)
        return result

    def _warn(self, operation: Operation, reason: str) -> None:
        """Log a failure to record, at most once per minute."""
        now = self._clock.monotonic()
        self._unwarned += 1
        if now - self._warned_at < WARNING_SECONDS:
            return
        log.warning(
            "debug_not_recorded",
            operation=operation.name,
            chat_id=operation.run.facts.chat_id,
            run_id=operation.run.id,
            step=operation.step_number,
            operations=self._unwarned,
            reason=reason,
        )
        self._warned_at, self._unwarned = now, 0

    # The connection

    async def _connection(self) -> asyncpg.Connection:
        if self._conn is None or self._conn.is_closed():
            self._conn = await self._connect()
            # A record need not survive a crash of the database. The server ends a slow statement before the client
            # gives up, so that it cannot write later.
            await self._conn.execute(
                f"SET synchronous_commit = off; SET statement_timeout = {round(STATEMENT_SECONDS * 1000)}"
            )
        return self._conn

    def _drop_connection(self) -> None:
        if self._conn is not None:
            self._conn.terminate()
            self._conn = None

    async def _close_connection(self) -> None:
        """Close the connection. This also cancels a statement that still runs."""
        conn, self._conn = self._conn, None
        if conn is not None:
            try:
                await conn.close(timeout=CLOSE_SECONDS)
            except Exception:
                conn.terminate()

    async def _release(self) -> None:
        await self._close_connection()
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    # Hints

    def _announce(self, run: Run, kind: str) -> None:
        """Announce a change of a run, at most once per `HINT_SECONDS`. The end of a run is announced immediately."""
        now = self._clock.monotonic()
        if kind == "finalize" or now - run.announced >= HINT_SECONDS:
            run.announced = now
            self._due.pop(run, None)
            self._send_hint(run, kind)
            return
        self._due[run] = kind
        if self._hint_timer is None:
            loop = asyncio.get_running_loop()
            self._hint_timer = loop.call_later(HINT_SECONDS, self._send_due_hints)

    def _send_due_hints(self) -> None:
        self._hint_timer = None
        due, self._due = self._due, {}
        for run, kind in due.items():
            run.announced = self._clock.monotonic()
            self._send_hint(run, kind)

    def _send_hint(self, run: Run, kind: str) -> None:
        self._publish([recording_state.update_hint(run.facts.chat_id, kind, run.id)])
