"""Daily usage: sums of the ledger that stay small, for reports over long periods.

Days are in UTC. A day is recomputed while calls of it may still be added; then it is final.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from rookery.store.db.pool import Connection

LOCK_KEY = 0x726F6F6B_75736167  # "rookusag"; the one-key space of advisory locks
RECOMPUTED_DAYS = 2

LOCK = "SELECT pg_advisory_xact_lock($1)"
FORGET = "DELETE FROM usage_daily WHERE day >= $1"
# Index model_usage_at.
COMPUTE = """
    INSERT INTO usage_daily (day, user_id, model_config_id, provider, model, purpose, key_source, input_tokens,
                             cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens, cost_micros,
                             unpriced_requests, requests, runtime_ms)
    SELECT (u.at AT TIME ZONE 'UTC')::date, u.owner_id, u.model_config_id, coalesce(p.name, u.provider_id::text),
           u.model, u.purpose, u.key_source, coalesce(sum(u.input_tokens), 0), coalesce(sum(u.cache_read_tokens), 0),
           coalesce(sum(u.cache_write_tokens), 0), coalesce(sum(u.output_tokens), 0),
           coalesce(sum(u.reasoning_tokens), 0), coalesce(sum(u.cost_micros), 0), count(*) FILTER (WHERE NOT u.priced),
           count(*), coalesce(sum(u.runtime_ms), 0)
      FROM model_usage u
      LEFT JOIN model_providers p ON p.id = u.provider_id
     WHERE u.at >= $1
     GROUP BY 1, 2, 3, 4, 5, 6, 7
    RETURNING day
"""


async def roll_up(conn: Connection, *, now: datetime, days: int = RECOMPUTED_DAYS) -> int:
    """Recompute the last `days` days, including today. Returns how many rows they have now."""
    first = first_day(now, days)
    start = datetime(first.year, first.month, first.day, tzinfo=UTC)
    async with conn.transaction():
        # Two concurrent runs would both delete what they see and then collide.
        await conn.execute(LOCK, LOCK_KEY)
        await conn.execute(FORGET, first)
        return len(await conn.fetch(COMPUTE, start))


def first_day(now: datetime, days: int) -> date:
    return now.astimezone(UTC).date() - timedelta(days=days - 1)
