"""Idempotency keys: the first answer to a request is stored for 24 hours and returned to repeats.

The answer is stored in the transaction of the change. While that transaction is open, it holds an advisory lock, and a
repeat is refused immediately.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import check_storable
from rookery.store.db.pool import Connection
from rookery.store.people.errors import IdempotencyInProgress, IdempotencyMismatch

LIFETIME = timedelta(hours=24)
MAX_KEY_CHARS = 255

# If two keys have the same hash at the same moment, one of the requests is refused and has to be retried.
TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended($1::uuid::text || '/' || $2::text, 20041))"
FIND = "SELECT request_hash, answer FROM idempotency_keys WHERE user_id = $1 AND key = $2 AND created_at > $3"
STORE = """
    INSERT INTO idempotency_keys (user_id, key, request_hash, answer, created_at)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (user_id, key) DO UPDATE
       SET request_hash = excluded.request_hash, answer = excluded.answer, created_at = excluded.created_at
"""
PURGE = "DELETE FROM idempotency_keys WHERE created_at <= $1"


class Request(msgspec.Struct, frozen=True):
    """A request that may be repeated: its user, its key, and its content."""

    user_id: UUID
    key: str
    operation: str
    body: bytes

    def __post_init__(self) -> None:
        if not 1 <= len(self.key) <= MAX_KEY_CHARS:
            raise InvalidInput("Idempotency-Key", f"An idempotency key must have 1 to {MAX_KEY_CHARS} characters.")
        check_storable("Idempotency-Key", self.key)

    @property
    def hash(self) -> bytes:
        return hashlib.sha256(self.operation.encode() + b"\0" + self.body).digest()


async def find_answer(conn: Connection, request: Request, *, now: datetime) -> bytes | None:
    """Return the stored answer to this request. If it is None, call `store_answer` in the same transaction.

    Locks the key until the transaction ends. Raises `IdempotencyInProgress` if another transaction has locked it, and
    `IdempotencyMismatch` if the key was used for another request.
    """
    if not await conn.fetchval(TRY_LOCK, request.user_id, request.key):
        raise IdempotencyInProgress
    record = await conn.fetchrow(FIND, request.user_id, request.key, now - LIFETIME)
    if record is None:
        return None
    if record["request_hash"] != request.hash:
        raise IdempotencyMismatch
    answer: bytes = record["answer"]
    return answer


async def store_answer(conn: Connection, request: Request, *, answer: bytes, now: datetime) -> None:
    await conn.execute(STORE, request.user_id, request.key, request.hash, answer, now)


async def purge_answers(conn: Connection, *, now: datetime) -> int:
    return int((await conn.execute(PURGE, now - LIFETIME)).split()[-1])
