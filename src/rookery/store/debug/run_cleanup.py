"""Heartbeats of open debug runs, the end of stale runs, and the deletion of old runs.

No statement waits for a row while it holds others. Locked rows are skipped, and the next execution handles them.
Therefore heartbeats, the cleanup and deletions cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection
from rookery.store.debug.runs import SUMMARIZED

# The time of four missed beats.
SILENT_AFTER = timedelta(seconds=120)

BEAT = """
    WITH runs AS MATERIALIZED (
         SELECT id
           FROM chat_debug_runs
          WHERE id = ANY ($1::uuid[])
            AND finished_at IS NULL
            FOR UPDATE SKIP LOCKED),
         bumped AS (
         UPDATE chat_debug_runs r SET updated_at = clock_timestamp() FROM runs WHERE r.id = runs.id
         RETURNING r.id)
    UPDATE chat_debug_steps s
       SET updated_at = clock_timestamp()
      FROM bumped
     WHERE s.run_id = bumped.id
       AND s.finished_at IS NULL
"""
# A step ends with its run. The time of the last beat is the best known time of the end.
END_STALE = """
    WITH stale AS MATERIALIZED (
         SELECT r.id
           FROM chat_debug_runs r
          WHERE r.finished_at IS NULL
            AND (r.updated_at < clock_timestamp() - $1::interval
                 OR NOT EXISTS (SELECT FROM replicas p WHERE p.id = r.replica_id))
          LIMIT $2
            FOR UPDATE SKIP LOCKED),
         ended AS (
         UPDATE chat_debug_steps s
            SET status = 'interrupted', finished_at = greatest(s.started_at, s.updated_at),
                updated_at = clock_timestamp()
           FROM stale
          WHERE s.run_id = stale.id
            AND s.finished_at IS NULL)
    UPDATE chat_debug_runs r
       SET status = 'interrupted', finished_at = greatest(r.started_at, r.updated_at), updated_at = clock_timestamp()
      FROM stale
     WHERE r.id = stale.id
    RETURNING r.id, r.chat_id
"""
SUM_UP = f"UPDATE chat_debug_runs r SET summary = {SUMMARIZED} WHERE r.id = ANY ($1::uuid[])"
# Ends a step that was inserted while its run ended.
END_LEFT_STEPS = """
    WITH found AS MATERIALIZED (
         SELECT s.id
           FROM chat_debug_steps s
           JOIN chat_debug_runs r ON r.id = s.run_id
          WHERE s.finished_at IS NULL
            AND r.finished_at IS NOT NULL
          LIMIT $1
            FOR UPDATE OF r, s SKIP LOCKED)
    UPDATE chat_debug_steps s
       SET status = 'interrupted', finished_at = greatest(s.started_at, s.updated_at), updated_at = clock_timestamp()
      FROM found
     WHERE s.id = found.id
    RETURNING s.run_id
"""
PURGE = """
    DELETE FROM chat_debug_runs
     WHERE id IN (SELECT id
                    FROM chat_debug_runs
                   WHERE updated_at < clock_timestamp() - $1::interval
                   ORDER BY updated_at
                   LIMIT $2
                     FOR UPDATE SKIP LOCKED)
    RETURNING id
"""


class EndedRun(msgspec.Struct, frozen=True):
    id: UUID
    chat_id: ChatId


async def beat(conn: Connection, run_ids: Sequence[UUID]) -> None:
    """Record that these runs are still written by this process."""
    await conn.execute(BEAT, run_ids)


async def end_stale(conn: Connection, *, silent_after: timedelta = SILENT_AFTER, limit: int = 1000) -> list[EndedRun]:
    """End open runs that have no beats or whose replica no longer exists, with their steps. Return the runs."""
    async with conn.transaction():
        ended = [EndedRun(*record) for record in await conn.fetch(END_STALE, silent_after, limit)]
        left = [record["run_id"] for record in await conn.fetch(END_LEFT_STEPS, limit)]
        if changed := [*(run.id for run in ended), *left]:
            await conn.execute(SUM_UP, changed)
    return ended


async def purge(conn: Connection, *, older_than: timedelta, batch: int) -> int:
    """Delete at most `batch` old runs, the oldest first. Open runs are included. Return their number."""
    return len(await conn.fetch(PURGE, older_than, batch))
