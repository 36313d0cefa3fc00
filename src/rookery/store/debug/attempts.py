"""Writes of attempts, the HTTP exchanges of a step. Bodies are compressed by the caller."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection
from rookery.store.debug.record_rows import AttemptStatus

# A second record of an attempt replaces the first. A deleted step has no attempts.
UPSERT = """
    INSERT INTO chat_debug_attempts (
           step_id, number, chat_id, status, generation_attempt, method, url, path, request_headers, request_body,
           response_status, response_headers, response_body, body_meta, error, ttfb_ms, duration_ms, started_at,
           finished_at)
    SELECT s.id, $2, s.chat_id, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19
      FROM chat_debug_steps s
     WHERE s.id = $1
       AND s.chat_id = $3
       FOR KEY SHARE
    ON CONFLICT (step_id, number) DO UPDATE
       SET status = excluded.status, response_status = excluded.response_status,
           response_headers = excluded.response_headers, response_body = excluded.response_body,
           body_meta = excluded.body_meta, error = excluded.error, ttfb_ms = excluded.ttfb_ms,
           duration_ms = excluded.duration_ms, finished_at = excluded.finished_at
    RETURNING step_id
"""


class NewAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt without secrets. Headers and `body_meta` are JSON."""

    number: int
    status: AttemptStatus
    generation_attempt: int
    method: str
    url: str
    path: str
    request_headers: str
    request_body: bytes | None
    response_status: int | None
    response_headers: str
    response_body: bytes | None
    body_meta: str
    error: str | None
    ttfb_ms: int | None
    duration_ms: int
    started_at: datetime
    finished_at: datetime

    @property
    def size_bytes(self) -> int:
        bodies = len(self.request_body or b"") + len(self.response_body or b"")
        return bodies + len(self.request_headers) + len(self.response_headers)


async def write_attempt(conn: Connection, step_id: UUID, chat_id: ChatId, attempt: NewAttempt) -> bool:
    """Insert or replace an attempt. Return False if its step no longer exists."""
    found = await conn.fetchval(
        UPSERT,
        step_id,
        attempt.number,
        chat_id,
        attempt.status,
        attempt.generation_attempt,
        attempt.method,
        attempt.url,
        attempt.path,
        attempt.request_headers,
        attempt.request_body,
        attempt.response_status,
        attempt.response_headers,
        attempt.response_body,
        attempt.body_meta,
        attempt.error,
        attempt.ttfb_ms,
        attempt.duration_ms,
        attempt.started_at,
        attempt.finished_at,
    )
    return found is not None
