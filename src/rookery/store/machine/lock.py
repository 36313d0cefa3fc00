"""The locking protocol: how a bundle of transitions takes a chat, commits, and is announced.

One bundle is one database transaction. It may open several chats (root first, then members), allocates one
version per chat, and publishes one hint per chat after the commit. Callbacks may run more than once (deadlocks and
lock timeouts are retried), so they must be free of outside effects: no HTTP, model, tool or pubsub call inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar
from uuid import UUID

import asyncpg
import msgspec
from asyncpg.pool import PoolConnectionProxy

from rookery import log
from rookery.chat.chats import Chat, Fence
from rookery.chat.errors import (
    ChatArchived,
    ChatNotFound,
    InvalidState,
    InvariantViolation,
    StaleFence,
    TransitionNotAllowed,
)
from rookery.chat.messages import ChatId
from rookery.chat.states import State, Status
from rookery.chat.transitions import ALLOWED_WHEN_INVALID, TABLE, Transition, is_legal
from rookery.clock import Clock, SystemClock
from rookery.store.errors import CommitOutcomeUnknown, LockTimeout
from rookery.store.hints import ChatHint, Hint, OwnershipHint, WatchHint, WatchKind

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
P = ParamSpec("P")

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"

MAX_TRIES = 3
RETRY_DELAY_SECONDS = (0.02, 0.2)
COMMIT_TIMEOUT_SECONDS = 10.0
POOL_TIMEOUT_SECONDS = 30.0

# 40P01 deadlock, 40001 serialization failure, 55P03 lock timeout: the bundle did nothing and may run again.
_RETRYABLE = frozenset({"40P01", "40001", "55P03"})
# Our own guards, CHECK violations, and statements after a swallowed error: the caller's code is wrong, not the user.
_BUGS = frozenset({"RK001", "RK002", "23514", "25P02"})

# One round trip opens the transaction, bounds every wait in it, and holds the planner to the indexes: it cannot guess
# how short a turn is, and would otherwise read a chat's whole history, or everybody's, to find its end.
_BEGIN = (
    "BEGIN; SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '15s';"
    " SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off"
)
_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

# The columns of `Chat`, in its order. `leased` is judged here, inside the transaction and by the database clock:
# the pair is set, its heartbeat is fresh, and the owner's process is still known to its peers.
CHAT_COLUMNS = """
    id, owner_id, parent_chat_id, root_chat_id, status, archived, worker_id, runner_id, last_error, retry_state,
    requires_action_deadline_at, compaction_requested_at, compaction_resume, runnable_since,
    snapshot_version, history_version, queue_version, retry_state_version, generation_attempt, queue_len,
    last_model_config_id, last_reasoning_effort, created_at, updated_at,
    runner_id IS NOT NULL AND EXISTS (
      SELECT FROM chat_heartbeats h
        JOIN replicas r ON r.id = chats.worker_id
       WHERE h.chat_id = chats.id
         AND h.runner_id = chats.runner_id
         AND h.heartbeat_at > clock_timestamp() - lease_ttl()) AS leased
"""

# Takes the row lock, allocates the version and returns the row in one round trip. The lock is the UPDATE's FOR NO
# KEY UPDATE, never SELECT ... FOR UPDATE: foreign-key checks of heartbeats and file links must not queue behind it.
_LOCK_AND_BUMP = f"""
    UPDATE chats
       SET snapshot_version = snapshot_version + (NOT in_transition(id))::int
     WHERE id = $1
    RETURNING {CHAT_COLUMNS}
"""
_LOCK = "SELECT FROM chats WHERE id = $1 FOR NO KEY UPDATE"
_READ = f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = $1"

_CHAT_WIDTH = len(Chat.__struct_fields__)

_log = log.get_logger("store.machine")


class Publisher(Protocol):
    """Takes hints after a commit. Never blocks; what it raises is logged and forgotten."""

    def publish(self, hints: Sequence[Hint]) -> None: ...


class Tx:
    """One chat, locked for this bundle. `chat` and `state` always reflect the last statement.

    `conn` is for validation reads and metadata writes that must be atomic with a transition.
    """

    __slots__ = ("_entered", "_source", "acquired", "bundle", "chat", "gone", "lease_is_current", "moved_with_family")

    def __init__(self, bundle: Bundle, chat: Chat, *, entered: Chat | None) -> None:
        self.bundle = bundle
        self.chat = chat
        self.gone = False
        # Acquired in this bundle, by a worker whose process its peers may not know (any more): no owner is asked for.
        self.acquired = False
        # The statement that locks may have waited, and it sees leases as they were before the wait.
        self.lease_is_current = False
        # Archived or unarchived as one of a family, whether or not its own flag had to change.
        self.moved_with_family = False
        self._entered = entered
        self._source = chat.state if entered else State.N

    @property
    def conn(self) -> Connection:
        return self.bundle.conn

    @property
    def clock(self) -> Clock:
        return self.bundle.clock

    @property
    def state(self) -> State:
        return self.chat.state

    def require(self, transition: Transition) -> State:
        """Check that the table allows the transition from here, and return the state it starts in."""
        source = self.chat.state
        if source is State.INVALID and transition not in ALLOWED_WHEN_INVALID:
            raise InvalidState(self.chat.id)
        if source not in TABLE[transition]:
            if source.is_archived:
                raise ChatArchived(transition, source)
            raise TransitionNotAllowed(transition, source, cause="state")
        self._source = source
        return source

    async def settle(self, transition: Transition, assignments: str, *args: object) -> None:
        """The closing UPDATE of a transition. Its row becomes `chat`, and must be where the table says."""
        self._landed(transition, await self.conn.fetchrow(_closing(assignments), self.chat.id, *args))

    async def settle_by(self, transition: Transition, statement: str, *args: object) -> asyncpg.Record | None:
        """Like `settle`, by a statement that does more; its row begins with the chat's columns.

        None when it found a reason to do nothing; then nothing has happened.
        """
        record = await self.conn.fetchrow(statement, *args)
        if record is not None:
            self._landed(transition, record)
        return record

    async def reload(self, transition: Transition) -> None:
        """In place of `settle`, for transitions that assign nothing themselves: triggers have done it all."""
        self._landed(transition, await self.conn.fetchrow(_READ, self.chat.id))

    async def judge_lease(self) -> None:
        """Look at the lease again where that decides about a hint and no statement has done so under the lock."""
        if self.lease_is_current or self.gone or not self.chat.state.is_runnable:
            return
        record = await self.conn.fetchrow(_READ, self.chat.id)
        if record is None:
            raise InvariantViolation(f"Chat {self.chat.id} vanished under its lock.")
        self.chat = Chat(*record)

    def _landed(self, transition: Transition, record: asyncpg.Record | None) -> None:
        if record is None:
            raise InvariantViolation(f"{transition}: chat {self.chat.id} vanished under its lock")
        self.chat = Chat(*record[:_CHAT_WIDTH])
        self.lease_is_current = True
        if not is_legal(transition, self._source, self.chat.state):
            raise InvariantViolation(f"{transition} took chat {self.chat.id} from {self._source} to {self.chat.state}")

    def hints(self) -> list[Hint]:
        """What to announce about this chat once the bundle is committed."""
        chat = self.chat
        hints: list[Hint] = [
            ChatHint(
                chat_id=chat.id,
                snapshot_version=chat.snapshot_version,
                history_version=chat.history_version,
                queue_version=chat.queue_version,
                retry_state_version=chat.retry_state_version,
                generation_attempt=chat.generation_attempt,
                status=chat.status,
                archived=chat.archived,
                worker_id=chat.worker_id,
                runner_id=chat.runner_id,
                gone=self.gone,
            )
        ]
        is_held = chat.leased or (self.acquired and chat.runner_id is not None)
        if chat.state.is_runnable and not self.gone and not is_held:
            hints.append(OwnershipHint(chat_id=chat.id, snapshot_version=chat.snapshot_version))
        if kind := self._watch_kind():
            hints.append(
                WatchHint(user_id=chat.owner_id, kind=kind, chat_id=chat.id, snapshot_version=chat.snapshot_version)
            )
        return hints

    def _watch_kind(self) -> WatchKind | None:
        before, after = self._entered, self.chat
        if self.gone:
            return WatchKind.DELETED
        if before is None:
            return WatchKind.CREATED
        if self.moved_with_family or before.archived != after.archived:
            return WatchKind.ARCHIVED if after.archived else WatchKind.UNARCHIVED
        if before.status == after.status:
            return None
        return WatchKind.ACTION_REQUIRED if after.status == Status.REQUIRES_ACTION else WatchKind.STATUS


class Bundle:
    """One transaction over one or more chats. Made by `Machine.bundle`; a callback never makes its own."""

    __slots__ = ("_open", "clock", "conn", "refused")

    def __init__(self, conn: Connection, clock: Clock) -> None:
        self.conn = conn
        self.clock = clock
        self.refused: BaseException | None = None
        self._open: dict[UUID, Tx] = {}

    async def open(self, chat_id: UUID, *, fence: Fence | None = None) -> Tx:
        """Lock the chat and allocate its version. Opening it again in the same bundle shares both.

        Order of several chats: the root first, then members by (`created_at`, `id`); never a parent after a child.
        """
        record = await self.conn.fetchrow(_LOCK_AND_BUMP, chat_id)
        if record is None:
            raise self.refuse(StaleFence(chat_id, "chat") if fence else ChatNotFound(chat_id))
        chat = Chat(*record)
        if fence is not None and (field := fence.find_mismatch(chat)):
            raise self.refuse(StaleFence(chat_id, field))
        if (tx := self._open.get(chat_id)) is not None:
            tx.chat = chat
            return tx
        return self.enlist(chat, entered=chat)

    def refuse(self, error: E) -> E:
        """Spoil the bundle: it cannot commit any more, even if the callback swallows the error."""
        self.refused = error
        return error

    def enlist(self, chat: Chat, *, entered: Chat | None) -> Tx:
        """Take a row that is locked already (just created, or locked by another statement) into the bundle."""
        tx = self._open[chat.id] = Tx(self, chat, entered=entered)
        return tx

    async def hints(self) -> list[Hint]:
        """What to announce, judged inside the transaction as its last act."""
        for tx in self._open.values():
            await tx.judge_lease()
        return [hint for tx in self._open.values() for hint in tx.hints()]


class View(msgspec.Struct, frozen=True):
    """A chat as one consistent snapshot shows it, or as a plain lock holds it."""

    conn: Connection
    chat: Chat


class Machine:
    """Runs bundles on a pool. Cheap; keeps nothing between calls."""

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

    async def bundle(self, fn: Callable[[Bundle], Awaitable[T]]) -> T:
        """Run `fn` in one transaction, commit, publish. On any error nothing is changed and nothing published.

        Cancelling before the COMMIT is sent rolls back. Once it is sent the commit is waited for and announced, and
        only then is the cancellation passed on: what is committed is never unannounced.
        """
        return await self._retry(functools.partial(self._try_bundle, fn))

    async def _try_bundle(self, fn: Callable[[Bundle], Awaitable[T]]) -> T:
        async with self._pool.acquire(timeout=POOL_TIMEOUT_SECONDS) as conn:
            try:
                await conn.execute(_BEGIN)
                bundle = Bundle(conn, self._clock)
                result = await fn(bundle)
                if bundle.refused is not None:
                    raise bundle.refused
                hints = await bundle.hints()
                cancelled = await _commit(conn)
            except BaseException:
                await _roll_back(conn)
                raise
            # Before anything is awaited, the return of the connection included: a cancellation that strikes there
            # would leave the commit unannounced.
            self._publish(hints)
        if cancelled is not None:
            raise cancelled
        return result

    async def _retry(self, run: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                return await run()
            except asyncpg.PostgresError as error:
                if error.sqlstate in _BUGS:
                    raise InvariantViolation(str(error)) from error
                if error.sqlstate not in _RETRYABLE:
                    raise
                if attempt == MAX_TRIES:
                    raise LockTimeout("The chat is busy. Try again in a moment.") from error
            await self._clock.sleep(self._rng.uniform(*RETRY_DELAY_SECONDS), "machine-retry")
        raise AssertionError("unreachable")

    def _publish(self, hints: Sequence[Hint]) -> None:
        try:
            self._publisher.publish(hints)
        except Exception as error:
            # The change is committed; a lost hint costs latency, never correctness.
            _log.warning("publish_failed", error=str(error), hints=len(hints))

    async def lock(self, chat_id: UUID, fn: Callable[[View], Awaitable[T]]) -> T:
        """Hold the row lock, without a version and without a hint: for read-then-act on files or metadata.

        Like a bundle it is tried again when only the lock was in the way.
        """
        return await self._retry(functools.partial(self._try_lock, chat_id, fn))

    async def _try_lock(self, chat_id: UUID, fn: Callable[[View], Awaitable[T]]) -> T:
        async with self._pool.acquire(timeout=POOL_TIMEOUT_SECONDS) as conn:
            try:
                await conn.execute(_BEGIN)
                # Two statements: one that waits for the lock would see the lease as it was before the wait.
                await conn.execute(_LOCK, chat_id)
                result = await fn(await _view(conn, chat_id))
                cancelled = await _commit(conn)
            except BaseException:
                await _roll_back(conn)
                raise
        if cancelled is not None:
            raise cancelled
        return result

    async def read(self, chat_id: UUID, fn: Callable[[View], Awaitable[T]]) -> T:
        """One consistent view that blocks nobody. Correctness of what follows comes from the fence at commit."""
        async with self._pool.acquire(timeout=POOL_TIMEOUT_SECONDS) as conn:
            try:
                await conn.execute(_BEGIN_READ)
                return await fn(await _view(conn, chat_id))
            finally:
                await _roll_back(conn)


class ChatMachine:
    """The machine for one chat: `update` for transitions, `lock` and `read` for looking."""

    __slots__ = ("_machine", "chat_id")

    def __init__(self, machine: Machine, chat_id: UUID) -> None:
        self._machine = machine
        self.chat_id = chat_id

    async def update(self, fn: Callable[[Tx], Awaitable[T]], *, fence: Fence | None = None) -> T:
        """Lock, allocate the version, check the fence, run `fn`, commit, publish. An empty `fn` still does the rest."""

        async def run(bundle: Bundle) -> T:
            return await fn(await bundle.open(self.chat_id, fence=fence))

        return await self._machine.bundle(run)

    async def lock(self, fn: Callable[[View], Awaitable[T]]) -> T:
        return await self._machine.lock(self.chat_id, fn)

    async def read(self, fn: Callable[[View], Awaitable[T]]) -> T:
        return await self._machine.read(self.chat_id, fn)


def transition(
    fn: Callable[Concatenate[Tx, P], Coroutine[None, None, T]],
) -> Callable[Concatenate[Tx, P], Coroutine[None, None, T]]:
    """Marks a transition: when it raises, the whole bundle is spoiled and cannot commit any more."""

    @functools.wraps(fn)
    async def run(tx: Tx, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await fn(tx, *args, **kwargs)
        except BaseException as error:
            tx.bundle.refuse(error)
            raise

    return run


@functools.cache
def _closing(assignments: str) -> str:
    # Made once: the driver finds a prepared statement by its text, and a text that is the same object is found faster.
    return f"UPDATE chats SET {assignments} WHERE id = $1 RETURNING {CHAT_COLUMNS}"


async def _view(conn: Connection, chat_id: UUID) -> View:
    record = await conn.fetchrow(_READ, chat_id)
    if record is None:
        raise ChatNotFound(ChatId(chat_id))
    return View(conn, Chat(*record))


async def _commit(conn: Connection) -> asyncio.CancelledError | None:
    """Send COMMIT and see it through. Returns the cancellation that arrived meanwhile, for the caller to pass on.

    Cancelling a task inside asyncpg's COMMIT could roll it back or not, unseen; so it runs in a task of its own.
    """
    commit = asyncio.ensure_future(conn.execute("COMMIT", timeout=COMMIT_TIMEOUT_SECONDS))
    cancelled: asyncio.CancelledError | None = None
    while not commit.done():
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break  # looked at below
    try:
        _check_committed(commit)
    except Exception as error:
        if cancelled is None:
            raise
        # Nobody waits for the failure any more; least of all may it start the bundle again.
        _log.warning("commit_failed", error=str(error))
        raise cancelled from error
    return cancelled


def _check_committed(commit: asyncio.Future[str]) -> None:
    try:
        tag = commit.result()
    except asyncpg.PostgresError as error:
        # 08*: connection trouble, 57P*: the server is going down. It may have committed before it said so.
        if error.sqlstate and error.sqlstate[:3] in {"57P", "080"}:
            raise CommitOutcomeUnknown("The database went away during the commit.") from error
        raise
    except (OSError, TimeoutError, asyncpg.InterfaceError, asyncio.CancelledError) as error:
        raise CommitOutcomeUnknown("The connection to the database was lost during the commit.") from error
    if tag != "COMMIT":
        # PostgreSQL answers ROLLBACK to the COMMIT of a transaction in which an error was swallowed.
        raise InvariantViolation("A statement failed inside the bundle and its error was not passed on.")


async def _roll_back(conn: Connection) -> None:
    """End the transaction of a failed bundle; a connection that cannot is thrown away.

    Raises nothing but a cancellation: the caller is about to raise the error that matters.
    """
    try:
        if not conn.is_closed():
            await conn.execute("ROLLBACK", timeout=COMMIT_TIMEOUT_SECONDS)
    except BaseException as error:
        # A broken connection goes back to its pool by itself, and then refuses every call.
        with contextlib.suppress(asyncpg.InterfaceError):
            conn.terminate()
        if not isinstance(error, Exception):
            raise
