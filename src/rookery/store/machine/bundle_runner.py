"""The runner of bundles: locks chats, runs transitions, commits, and publishes hints.

One bundle is one database transaction. It may open several chats (the root first, then members). It allocates one
version per chat, and publishes one hint per chat after the commit. Deadlocks and lock timeouts are retried, so a
callback may run more than once. It must not call HTTP, a model, a tool or pubsub.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.errors import ChatNotFound, InvalidInput, InvariantViolation
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import Transition, is_legal
from rookery.runtime.clock import Clock, SystemClock
from rookery.runtime.waits import Uninterrupted, WithTimeout
from rookery.store.db.errors import CommitOutcomeUnknown, DatabaseUnavailable, LockTimeout
from rookery.store.db.hints import Hint
from rookery.store.machine.bundle import PEEK_CHAT, READ_CHAT, Bundle, Connection, Tx
from rookery.telemetry import log

T = TypeVar("T")

MAX_TRIES = 3
RETRY_DELAY_SECONDS = (0.02, 0.2)
COMMIT_TIMEOUT_SECONDS = 10.0
POOL_TIMEOUT_SECONDS = 30.0

# 40P01 deadlock, 40001 serialization failure, 55P03 lock timeout: the bundle changed nothing and may run again.
_RETRYABLE = frozenset({"40P01", "40001", "55P03"})
# Bugs of the caller: RK001 and RK002 are raised by our triggers, 23514 is a CHECK violation, 25P02 a statement after an
# error that was caught inside the transaction.
_BUGS = frozenset({"RK001", "RK002", "23514", "25P02"})

# The connection is lost, the server shuts down, or it canceled a statement that took too long. asyncpg raises
# InternalClientError if a statement is sent after the server's shutdown notice.
_LOST = (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InternalClientError)

# The input errors for missing rows, by the foreign key that detects them.
_MODEL = ("model_config_id", "There is no such model. Choose another one.")
_UNKNOWN_ROWS = {
    "chats_last_model_config_id_fkey": _MODEL,
    "chat_messages_model_config_id_fkey": _MODEL,
    "chat_queued_messages_model_config_id_fkey": _MODEL,
    "chats_workspace_id_fkey": ("workspace_id", "There is no such workspace. Choose another one, or none."),
    "chats_owner_id_fkey": ("owner_id", "There is no such user. The account may have been deleted."),
}

# Makes the planner use indexes. The planner cannot estimate that a turn is short, and with old statistics it cannot
# estimate how many messages are visible. Without these options it would read the whole history of a chat, or of all
# users, to find the end of one chat.
BY_INDEX = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off"
# One round trip begins the transaction, limits its waits, and sets the planner options.
_BEGIN = f"BEGIN; SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '15s'; {BY_INDEX}"
# For changes that no user relies on and that can be repeated: COMMIT does not wait for the disk. A crash of PostgreSQL,
# not of this process, may undo them and all later ones. The next commit that waits for the disk makes them durable.
_BEGIN_LAZY = f"{_BEGIN}; SET LOCAL synchronous_commit = off"
_BEGIN_READ = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {BY_INDEX}"

_LOCK = "SELECT FROM chats WHERE id = $1 FOR NO KEY UPDATE"

_CHAT_WIDTH = len(Chat.__struct_fields__)

_log = log.get_logger("store.machine")


class Publisher(Protocol):
    """Publishes hints about committed changes. `publish` must not block. Its errors are logged and ignored."""

    def publish(self, hints: Sequence[Hint]) -> None: ...


class View(msgspec.Struct, frozen=True):
    """A chat, and the connection that read it: in a consistent snapshot (`read`), or under its row lock (`lock`)."""

    conn: Connection
    chat: Chat


class StatementResult(msgspec.Struct, frozen=True):
    """The chat after a single-statement transition, and the other columns of the returned row."""

    chat: Chat
    rest: tuple[Any, ...]


class Machine:
    """Runs bundles on a pool. It has no state between calls and is cheap to create."""

    __slots__ = ("_clock", "_pool", "_publisher", "_rng")

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        publisher: Publisher,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._pool = pool
        self._publisher = publisher
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 -- jitter, not secrets

    def chat(self, chat_id: UUID) -> ChatMachine:
        return ChatMachine(self, chat_id)

    async def bundle(self, fn: Callable[[Bundle], Awaitable[T]], *, lazily: bool = False, first: str = "") -> T:
        """Run `fn` in one transaction, commit, and publish the hints. After an error nothing is changed or published.

        `first` is a statement without parameters that runs together with the BEGIN, for locks. With `lazily`, the
        commit does not wait for the disk. Use it for a worker's own records, which can be repeated.

        A cancellation before the COMMIT is sent rolls back. After that, the commit is awaited and its hints are
        published before the cancellation is raised, so every commit is published.
        """
        attempt, begin = 0, _BEGIN_LAZY if lazily else _BEGIN
        while True:
            try:
                return await self._try_bundle(fn, f"{begin}; {first}" if first else begin)
            except asyncpg.PostgresError as error:
                attempt += 1
                await self._before_retry(error, attempt)

    async def _try_bundle(self, fn: Callable[[Bundle], Awaitable[T]], begin: str) -> T:
        async with _Transaction(self._pool, begin) as conn:
            bundle = Bundle(conn, self._clock)
            try:
                result = await fn(bundle)
                if bundle.refused is not None:
                    raise bundle.refused
                hints = await bundle.hints()
            finally:
                bundle.close()
            cancelled = await _commit(conn)
            # Publish before the next await, even before the connection is released. A cancellation there would leave
            # the commit unpublished.
            self._publish(hints)
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                cancelled = None  # the error refers to this frame: a reference cycle
        return result

    async def _before_retry(self, error: asyncpg.PostgresError, attempt: int) -> None:
        """Sleep if a retry may succeed. Otherwise raise the error for the caller."""
        if error.sqlstate not in _RETRYABLE:
            _drop_detail(error)
            if (classified := _classify(error)) is not None:
                raise classified from error
            raise error
        if attempt == MAX_TRIES:
            raise LockTimeout("The chat is busy. Try again in a moment.") from error
        await self._clock.sleep(self._rng.uniform(*RETRY_DELAY_SECONDS), "machine-retry")

    def _publish(self, hints: Sequence[Hint]) -> None:
        try:
            self._publisher.publish(hints)
        except Exception as error:
            # The change is committed. A lost hint costs latency, not correctness.
            _log.warning("publish_failed", error=str(error), hints=len(hints))

    async def lock(self, chat_id: UUID, fn: Callable[[View], Awaitable[T]]) -> T:
        """Run `fn` under the lock of the chat's row, without a new version and without a hint.

        Use it to read and then change files or metadata. Like a bundle, it is retried after a lock timeout.
        """
        attempt = 0
        while True:
            try:
                return await self._try_lock(chat_id, fn)
            except asyncpg.PostgresError as error:
                attempt += 1
                await self._before_retry(error, attempt)

    async def _try_lock(self, chat_id: UUID, fn: Callable[[View], Awaitable[T]]) -> T:
        async with _Transaction(self._pool, _BEGIN) as conn:
            # Two statements: one statement that waits for the lock would see the lease from before the wait.
            await conn.execute(_LOCK, chat_id)
            result = await fn(await _view(conn, chat_id))
            cancelled = await _commit(conn)
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                cancelled = None  # the error refers to this frame: a reference cycle
        return result

    async def read(self, chat_id: UUID, fn: Callable[[View], Awaitable[T]]) -> T:
        """Run `fn` on a consistent snapshot of the chat, without a lock.

        The chat may change afterwards; the fence of a later commit detects it.
        """

        async def run(conn: Connection) -> T:
            return await fn(await _view(conn, chat_id))

        return await self.snapshot(run)

    async def run_statement(
        self, transition: Transition, statement: str, *args: object, status_before: Status | None = None
    ) -> StatementResult | None:
        """Run a transition of one chat that is one statement and its own transaction (see `run_statements`).

        Returns None if its conditions do not hold or the row is locked; then nothing has changed.
        """
        results = await self.run_statements(transition, statement, *args, status_before=status_before)
        return results[0] if results else None

    async def run_statements(
        self, transition: Transition, statement: str, *args: object, status_before: Status | None = None
    ) -> list[StatementResult]:
        """Run a transition of several chats that is one statement and its own transaction.

        The statement locks the chats, allocates their versions, and returns rows that begin with the chat's columns. It
        changes no column of the execution state, except the owner, and the status from `status_before`. Chats whose
        conditions do not hold have no row. As in `bundle`, a commit is published before a cancellation is raised.
        """
        async with _PooledConnection(self._pool) as conn:
            run = Uninterrupted(conn.fetch(statement, *args, timeout=COMMIT_TIMEOUT_SECONDS).__await__())
            try:
                records = await _answer(run)
            except Exception as error:
                _drop_detail(error)
                if run.cancelled is not None:
                    raise run.cancelled from error
                if not isinstance(error, asyncpg.PostgresError):
                    raise
                if error.sqlstate in _RETRYABLE:
                    return []
                if (classified := _classify(error)) is not None:
                    raise classified from error
                raise
            results = []
            for record in records:
                chat = Chat(*record[:_CHAT_WIDTH])
                before = chat if status_before is None else msgspec.structs.replace(chat, status=status_before)
                if not is_legal(transition, before.state, chat.state):
                    _log.error("transition_illegal", transition=transition, chat_id=chat.id, state=chat.state)
                tx = Bundle(conn, self._clock).enlist(chat, entered=before)
                tx.acquired = transition is Transition.ACQUIRE
                self._publish(tx.hints())
                tx.bundle.close()
                results.append(StatementResult(chat, record[_CHAT_WIDTH:]))
        if run.cancelled is not None:
            try:
                raise run.cancelled
            finally:
                del run  # as in `_try_bundle`
        return results

    async def peek(self, chat_id: UUID) -> Chat:
        """Return the chat's row in one round trip. `leased` is always False."""
        records = await self.fetch(PEEK_CHAT, chat_id)
        if not records:
            raise ChatNotFound(ChatId(chat_id))
        return Chat(*records[0])

    async def fetch(self, statement: str, *args: object) -> list[asyncpg.Record]:
        """Return the rows of one statement. The planner options of `BY_INDEX` do not apply."""
        async with _PooledConnection(self._pool) as conn:
            return await conn.fetch(statement, *args)

    async def snapshot(self, fn: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `fn` in a consistent snapshot, without a lock, to read a chat together with other rows."""
        attempt = 0
        while True:
            try:
                return await self._try_snapshot(fn)
            except asyncpg.PostgresError as error:
                attempt += 1
                await self._before_retry(error, attempt)

    async def _try_snapshot(self, fn: Callable[[Connection], Awaitable[T]]) -> T:
        async with _Transaction(self._pool, _BEGIN_READ) as conn:
            result = await fn(conn)
            await _roll_back(conn)
        return result


class ChatMachine:
    """The machine for one chat: `update` runs transitions; `lock` and `read` pass a view of the chat."""

    __slots__ = ("_machine", "chat_id")

    def __init__(self, machine: Machine, chat_id: UUID) -> None:
        self._machine = machine
        self.chat_id = chat_id

    async def update(self, fn: Callable[[Tx], Awaitable[T]], *, fence: Fence | None = None, lazily: bool = False) -> T:
        """Lock the chat, allocate its version, check the fence, run `fn`, commit, publish."""

        async def run(bundle: Bundle) -> T:
            return await fn(await bundle.open(self.chat_id, fence=fence))

        return await self._machine.bundle(run, lazily=lazily)

    async def lock(self, fn: Callable[[View], Awaitable[T]]) -> T:
        return await self._machine.lock(self.chat_id, fn)

    async def read(self, fn: Callable[[View], Awaitable[T]]) -> T:
        return await self._machine.read(self.chat_id, fn)


class _PooledConnection:
    """A connection of the pool, for `async with`.

    Database failures are raised as `DatabaseUnavailable`. Errors of the body are not changed.
    """

    __slots__ = ("_conn", "_pool")

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._pool = pool

    async def __aenter__(self) -> Connection:
        try:
            conn = self._conn = await WithTimeout(POOL_TIMEOUT_SECONDS, self._pool.acquire().__await__())
        except (OSError, asyncpg.TooManyConnectionsError, asyncpg.InterfaceError, *_LOST) as error:
            # Subclasses of InterfaceError report wrong calls; the class itself means that the pool is closing.
            if isinstance(error, asyncpg.InterfaceError) and type(error) is not asyncpg.InterfaceError:
                raise
            raise _unavailable(error) from error
        return conn

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is not None and _is_lost(error, self._conn):
                raise _unavailable(error) from error
        finally:
            await self._release()

    async def _release(self) -> None:
        try:
            await self._pool.release(self._conn)
        except Exception as error:
            # The pool discards such a connection. The work has ended, or its error is being raised.
            _log.warning("release_failed", error=str(error))


class _Transaction(_PooledConnection):
    """A connection with an open transaction. The body commits it or rolls it back; an error rolls it back."""

    __slots__ = ("_begin",)

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], begin: str) -> None:
        super().__init__(pool)
        self._begin = begin

    async def __aenter__(self) -> Connection:
        conn = await super().__aenter__()
        try:
            await conn.execute(self._begin)
        except BaseException as error:
            await self.__aexit__(None, error, None)
            if isinstance(error, OSError):
                raise _unavailable(error) from error
            raise
        return conn

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is not None:
                await _roll_back(self._conn)
                if _is_lost(error, self._conn):
                    raise _unavailable(error) from error
        finally:
            await self._release()


def _is_lost(error: BaseException, conn: Connection) -> bool:
    """Return whether the error is a failure of the database. Call it after the rollback.

    Timeouts and `InterfaceError` may come from the body. They are failures of the database if the connection is closed.
    """
    if isinstance(error, _LOST):
        return True
    return (isinstance(error, TimeoutError) or type(error) is asyncpg.InterfaceError) and _is_dead(conn)


def _is_dead(conn: Connection) -> bool:
    try:
        return conn.is_closed()
    except asyncpg.InterfaceError:
        return True  # a broken connection has been returned to its pool, and refuses calls


def _unavailable(error: BaseException) -> DatabaseUnavailable:
    _log.warning("database_unavailable", error=str(error) or type(error).__name__)
    return DatabaseUnavailable("The database did not answer. Nothing was changed; try again in a moment.")


def _classify(error: asyncpg.PostgresError) -> Exception | None:
    """Return the error for the caller: `InvariantViolation` for a bug, `InvalidInput`, or None for other errors."""
    if error.sqlstate in _BUGS:
        return InvariantViolation(str(error))
    if isinstance(error, asyncpg.ForeignKeyViolationError) and error.constraint_name in _UNKNOWN_ROWS:
        return InvalidInput(*_UNKNOWN_ROWS[error.constraint_name])
    return None


def _drop_detail(error: BaseException) -> None:
    """Remove the detail of a violation. It quotes the row with the user's content, which must not be logged."""
    if isinstance(error, asyncpg.PostgresError):
        error.detail = None


async def _view(conn: Connection, chat_id: UUID) -> View:
    record = await conn.fetchrow(READ_CHAT, chat_id)
    if record is None:
        raise ChatNotFound(ChatId(chat_id))
    return View(conn, Chat(*record))


async def _commit(conn: Connection) -> asyncio.CancelledError | None:
    """Send COMMIT and await its outcome. Returns a cancellation that arrived meanwhile, which the caller raises.

    A cancellation inside asyncpg's COMMIT would leave the outcome unknown.
    """
    commit = Uninterrupted(conn.execute("COMMIT", timeout=COMMIT_TIMEOUT_SECONDS).__await__())
    try:
        _check_committed(await _answer(commit))
    except Exception as error:
        if commit.cancelled is None:
            raise
        # The caller was cancelled. The failure is logged only, because it must not restart the bundle.
        _drop_detail(error)
        _log.warning("commit_failed", error=str(error))
        raise commit.cancelled from error
    return commit.cancelled


async def _answer(commit: Uninterrupted[T]) -> T:
    try:
        return await commit
    except asyncpg.PostgresError as error:
        # 080xx: connection failure. 57Pxx: the server shuts down. It may have committed before the error.
        if error.sqlstate and error.sqlstate[:3] in {"57P", "080"}:
            raise CommitOutcomeUnknown("The database shut down during the commit.") from error
        raise
    except (OSError, TimeoutError, asyncpg.InterfaceError, asyncio.CancelledError) as error:
        raise CommitOutcomeUnknown("The connection to the database was lost during the commit.") from error


def _check_committed(tag: str) -> None:
    if tag != "COMMIT":
        # PostgreSQL answers ROLLBACK if a statement of the transaction has failed.
        raise InvariantViolation("A statement failed inside the bundle, and its error was not raised.")


async def _roll_back(conn: Connection) -> None:
    """Roll back the transaction. If that fails, close the connection.

    Raises only cancellations, because the caller is about to raise the original error.
    """
    try:
        if not conn.is_closed():
            await conn.execute("ROLLBACK", timeout=COMMIT_TIMEOUT_SECONDS)
    except BaseException as error:
        # A broken connection has been returned to its pool, and refuses calls.
        with contextlib.suppress(asyncpg.InterfaceError):
            conn.terminate()
        if not isinstance(error, Exception):
            raise
