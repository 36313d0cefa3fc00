"""Bundles: one database transaction with the chats that it has locked, and the hints to publish after its commit.

A transition works on a `Tx`, which is one locked chat. `Tx` checks the state before and after each transition against
the table of transitions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.errors import (
    ChatArchived,
    ChatNotFound,
    InvalidState,
    InvariantViolation,
    StaleFence,
    TransitionNotAllowed,
)
from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import ALLOWED_WHEN_INVALID, TABLE, Transition, is_legal
from rookery.runtime.clock import Clock
from rookery.store.db.hints import ChatHint, Hint, OwnershipHint, WatchHint, WatchKind
from rookery.store.debug import recording_state as debug_state

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
P = ParamSpec("P")

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"

# The fields of `Chat`, in their order. `leased` is evaluated in the transaction, by the database clock: worker_id and
# runner_id are set, the heartbeat is fresh, and the replica of the owner still has its row.
_CHAT_COLUMNS = """
    id, owner_id, parent_chat_id, root_chat_id, status, archived, worker_id, runner_id, last_error, retry_state,
    requires_action_deadline_at, compaction_requested_at, compaction_resume, runnable_since,
    snapshot_version, history_version, queue_version, retry_state_version, generation_attempt, queue_len,
    last_model_config_id, last_reasoning_effort, created_at, updated_at,
    {leased} AS leased,
    awaits_approval
"""
CHAT_COLUMNS = _CHAT_COLUMNS.format(
    leased="""runner_id IS NOT NULL AND EXISTS (
      SELECT FROM chat_heartbeats h
        JOIN replicas r ON r.id = chats.worker_id
       WHERE h.chat_id = chats.id
         AND h.runner_id = chats.runner_id
         AND h.heartbeat_at > clock_timestamp() - r.lease_ttl)"""
)
# The same columns for a statement that inserts the heartbeat itself and therefore cannot read it.
CHAT_COLUMNS_AT_BEAT = _CHAT_COLUMNS.format(leased="EXISTS (SELECT FROM replicas r WHERE r.id = chats.worker_id)")

# Locks the row, allocates the version and returns the row in one round trip. An UPDATE takes the lock FOR NO KEY
# UPDATE. FOR UPDATE would block the foreign-key checks of heartbeats and file links.
_LOCK_AND_BUMP = f"""
    UPDATE chats
       SET snapshot_version = snapshot_version + (NOT in_transition(id))::int
     WHERE id = $1
    RETURNING {CHAT_COLUMNS}
"""
# The same for a chat of one owner. A chat of another user is not locked, and the statement does not wait for its lock.
_LOCK_OWN = f"""
    UPDATE chats
       SET snapshot_version = snapshot_version + (NOT in_transition(id))::int
     WHERE id = $1
       AND owner_id = $2
    RETURNING {CHAT_COLUMNS}
"""
READ_CHAT = f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = $1"
# The same columns without the query for `leased`, for readers that only show the chat.
PEEK_CHAT = f"SELECT {_CHAT_COLUMNS.format(leased='false')} FROM chats WHERE id = $1"

_CHAT_WIDTH = len(Chat.__struct_fields__)


class Tx:
    """One chat, locked by this bundle. `chat` and `state` are the values after the last statement.

    Use `conn` for checks and writes of metadata that must be atomic with a transition.
    """

    __slots__ = (
        "_entered",
        "_source",
        "acquired",
        "bundle",
        "chat",
        "gone",
        "has_left",
        "lease_is_current",
        "moved_with_family",
        "readers",
        "removed_records",
        "successor",
    )

    def __init__(self, bundle: Bundle, chat: Chat, *, entered: Chat | None) -> None:
        self.bundle = bundle
        self.chat = chat
        self.gone = False
        # Users to notify besides the owner when the chat is deleted. After the deletion they cannot be looked up.
        self.readers: tuple[UUID, ...] = ()
        # The chat was acquired in this bundle. No hint asks for a worker, even if the replica of the new owner has no
        # row.
        self.acquired = False
        # The worker released the chat, and its lease was deleted.
        self.has_left = False
        # The chat that gets this chat's slot. The hint names it instead of this chat.
        self.successor: OwnershipHint | None = None
        # False after the locking statement, because that statement may have waited and still shows the leases from
        # before the wait.
        self.lease_is_current = False
        # The chat was archived or unarchived with its family, even if its own flag did not change.
        self.moved_with_family = False
        # Debug records of the chat were marked as removed, and can be deleted after the commit.
        self.removed_records = False
        self._entered = entered
        self._source = State.N

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
        """Check that the table allows the transition from the current state, and return that state."""
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
        """Run the UPDATE that ends a transition.

        The returned row becomes `chat`, and the table must allow its state.
        """
        self._finish(transition, await self.conn.fetchrow(_closing(assignments), self.chat.id, *args))

    async def settle_by(self, transition: Transition, statement: str, *args: object) -> asyncpg.Record | None:
        """End a transition with a statement that also does other work. The returned row begins with the chat's columns.

        Return None if the statement returned no row; in this case nothing has changed.
        """
        record = await self.conn.fetchrow(statement, *args)
        if record is not None:
            self._finish(transition, record)
        return record

    async def reload(self, transition: Transition) -> None:
        """End a transition by reading the row, if triggers have made all assignments of the transition."""
        self._finish(transition, await self.conn.fetchrow(READ_CHAT, self.chat.id))

    async def refresh_lease(self) -> None:
        """Read `leased` again, if a hint depends on it and no statement has read it since the chat was locked."""
        if self.lease_is_current or self.gone or not self.chat.state.is_runnable:
            return
        record = await self.conn.fetchrow(READ_CHAT, self.chat.id)
        if record is None:
            raise InvariantViolation(f"Chat {self.chat.id} vanished under its lock.")
        self.chat = Chat(*record)

    async def remove_records(self, *, delete_from: int) -> None:
        """Mark the debug records of messages from `delete_from` on as removed; 0 means all records."""
        self.removed_records |= await debug_state.mark_removed(
            self.conn, self.chat.id, floor=self.chat.snapshot_version, delete_from=delete_from
        )

    def _finish(self, transition: Transition, record: asyncpg.Record | None) -> None:
        if record is None:
            raise InvariantViolation(f"{transition}: chat {self.chat.id} vanished under its lock")
        self.chat = Chat(*record[:_CHAT_WIDTH])
        self.lease_is_current = True
        if not is_legal(transition, self._source, self.chat.state):
            raise InvariantViolation(f"{transition} took chat {self.chat.id} from {self._source} to {self.chat.state}")

    def hints(self) -> list[Hint]:
        """Return the hints to publish about this chat after the commit."""
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
        if chat.state.is_runnable and not chat.is_parked and not self.gone and not is_held:
            itself = OwnershipHint(chat_id=chat.id, snapshot_version=chat.snapshot_version)
            # Only a running chat gives way. Other work, such as an interrupt, still needs a worker for this chat.
            hints.append((self.successor if chat.status == Status.RUNNING else None) or itself)
        if kind := self._watch_kind():
            hints.append(
                WatchHint(
                    user_id=chat.owner_id,
                    kind=kind,
                    chat_id=chat.id,
                    snapshot_version=chat.snapshot_version,
                    users=self.readers,
                )
            )
        if (root := self._root_of_question()) is not None:
            # A subagent's question is shown at its root. The version of the root is not known here; receivers do not
            # use it.
            told = WatchKind.ACTION_REQUIRED if chat.awaits_approval else WatchKind.STATUS
            hints.append(WatchHint(user_id=chat.owner_id, kind=told, chat_id=root, snapshot_version=0))
        if self.removed_records and not self.gone:
            hints += debug_state.removed_hints(chat.id)
        return hints

    def _root_of_question(self) -> UUID | None:
        """Return the root chat if a subagent started or stopped waiting for an approval in this bundle."""
        before = self._entered is not None and self._entered.awaits_approval
        return self.chat.root_chat_id if before != self.chat.awaits_approval and not self.gone else None

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
    """One transaction over one or more chats. Only `Machine.bundle` creates it."""

    __slots__ = ("_open", "_own", "clock", "conn", "refused")

    def __init__(self, conn: Connection, clock: Clock) -> None:
        self.conn = conn
        self.clock = clock
        self.refused: BaseException | None = None
        self._open: dict[UUID, Tx] = {}
        self._own: Tx | None = None  # locked by `lock_own` and not yet opened

    async def lock_own(self, chat_id: UUID, owner_id: UUID) -> Chat | None:
        """Lock the chat if it belongs to this owner, in one round trip. Call `open` next.

        Return None if the chat does not exist or belongs to another user; in this case nothing is locked.
        """
        record = await self.conn.fetchrow(_LOCK_OWN, chat_id, owner_id)
        if record is None:
            return None
        chat = Chat(*record)
        self._own = self.enlist(chat, entered=chat)
        return chat

    async def open(self, chat_id: UUID, *, fence: Fence | None = None) -> Tx:
        """Lock the chat and allocate its version. A second call in the same bundle returns the same `Tx` and version.

        Lock order of several chats: the root first, then members by (`created_at`, `id`). Never lock a parent after a
        child.
        """
        own, self._own = self._own, None
        if own is not None and own.chat.id == chat_id and fence is None:
            return own
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

    async def acquire(self, statement: str, *args: object) -> list[tuple[Tx, tuple[Any, ...]]]:
        """Acquire chats by one statement. Returns each chat with the other columns of its row."""
        acquired = []
        for record in await self.conn.fetch(statement, *args):
            chat = Chat(*record[:_CHAT_WIDTH])
            tx = self.enlist(chat, entered=chat)
            tx.acquired = tx.lease_is_current = True
            acquired.append((tx, record[_CHAT_WIDTH:]))
        return acquired

    def refuse(self, error: E) -> E:
        """Mark the bundle as failed. It cannot commit any more, even if the callback catches the error."""
        self.refused = error
        return error

    def enlist(self, chat: Chat, *, entered: Chat | None) -> Tx:
        """Add a row that is already locked, because this transaction created it or another statement locked it."""
        tx = self._open[chat.id] = Tx(self, chat, entered=entered)
        return tx

    async def hints(self) -> list[Hint]:
        """Return the hints to publish. Called at the end of the transaction, before the commit."""
        for tx in self._open.values():
            await tx.refresh_lease()
        return [hint for tx in self._open.values() for hint in tx.hints()]

    def close(self) -> None:
        """Drop the references to the chats. The chats refer to the bundle, so they form a reference cycle with it."""
        self._open.clear()
        self._own = self.refused = None


def transition(
    fn: Callable[Concatenate[Tx, P], Coroutine[None, None, T]],
) -> Callable[Concatenate[Tx, P], Coroutine[None, None, T]]:
    """Decorate a transition: if it raises, the bundle is marked as failed and cannot commit any more."""

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
    # Cached: the driver looks up prepared statements by their text, which is faster with an identical string object.
    return f"UPDATE chats SET {assignments} WHERE id = $1 RETURNING {CHAT_COLUMNS}"
