"""Context windows of models as reported by providers and as learned from refused requests.

Shared by all replicas through the database. A learned window is dropped when the model config or the address of its
provider changes, on an administrator's request, and with time: numbers of a provider after `NAMED_DAYS`, guesses after
`GUESSED_DAYS`. The caller publishes a `ConfigHint(kind="model")` after the commit.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from rookery.domain.models.context_window import Learned, LearnedFrom
from rookery.store.db.pool import Connection

# Chosen: providers enlarge windows occasionally, and a guess that is too small would go unnoticed.
NAMED_DAYS = 30
GUESSED_DAYS = 1

_FRESH = (
    "learned_at > clock_timestamp() - make_interval("
    f"days => CASE learned_from WHEN 'provider' THEN {NAMED_DAYS} ELSE {GUESSED_DAYS} END)"
)
_COLUMNS = f"""
    model_config_id, reported_tokens, reported_at,
    CASE WHEN {_FRESH} THEN learned_tokens END,
    CASE WHEN {_FRESH} THEN learned_from END,
    CASE WHEN {_FRESH} THEN learned_at END
"""
LIST = f"SELECT {_COLUMNS} FROM model_windows"
FIND = f"SELECT {_COLUMNS} FROM model_windows WHERE model_config_id = $1"
# The smaller one stays: two chats may learn at the same time. A provider's number replaces every guess.
LEARN = f"""
    INSERT INTO model_windows AS w (model_config_id, learned_tokens, learned_from, learned_at)
    VALUES ($1, $2, $3, clock_timestamp())
        ON CONFLICT (model_config_id) DO UPDATE
       SET learned_tokens = excluded.learned_tokens,
           learned_from = excluded.learned_from,
           learned_at = excluded.learned_at
     WHERE w.learned_tokens IS NULL
        OR NOT ({_FRESH.replace("learned", "w.learned")})
        OR excluded.learned_tokens < w.learned_tokens
        OR (excluded.learned_from = 'provider' AND w.learned_from = 'halving')
    RETURNING true
"""
# An answer read more than the guess allowed: the guess was wrong, and the next one is twice that.
OUTGROW = """
    UPDATE model_windows
       SET learned_tokens = 2 * $2
     WHERE model_config_id = $1
       AND learned_from = 'halving'
       AND learned_tokens < $2
    RETURNING true
"""
REPORT = """
    INSERT INTO model_windows AS w (model_config_id, reported_tokens, reported_at)
    VALUES ($1, $2, clock_timestamp())
        ON CONFLICT (model_config_id) DO UPDATE
       SET reported_tokens = excluded.reported_tokens,
           reported_at = excluded.reported_at
     WHERE w.reported_tokens IS DISTINCT FROM excluded.reported_tokens
    RETURNING true
"""
FORGET = """
    UPDATE model_windows
       SET learned_tokens = NULL, learned_from = NULL, learned_at = NULL
     WHERE model_config_id = $1
       AND learned_tokens IS NOT NULL
    RETURNING true
"""
DROP = "DELETE FROM model_windows WHERE model_config_id = $1"
DROP_OF_PROVIDER = """
    DELETE FROM model_windows w
     USING model_configs c
     WHERE c.id = w.model_config_id
       AND c.provider_id = $1
"""


class ModelWindow(msgspec.Struct, frozen=True):
    """The known windows of one model beside its configuration."""

    model_config_id: UUID
    reported_tokens: int | None = None
    reported_at: datetime | None = None
    learned_tokens: int | None = None
    learned_from: LearnedFrom | None = None
    learned_at: datetime | None = None


async def list_windows(conn: Connection) -> dict[UUID, ModelWindow]:
    return {record[0]: _window(tuple(record)) for record in await conn.fetch(LIST)}


async def find_window(conn: Connection, model_config_id: UUID) -> ModelWindow | None:
    record = await conn.fetchrow(FIND, model_config_id)
    return None if record is None else _window(tuple(record))


async def learn(conn: Connection, model_config_id: UUID, learned: Learned) -> bool:
    """Store a window. Returns whether it changed."""
    return bool(await conn.fetchval(LEARN, model_config_id, learned.tokens, str(learned.source)))


async def outgrow(conn: Connection, model_config_id: UUID, *, read_tokens: int) -> bool:
    """Raise a guess that an answer has disproved. Returns whether there was one."""
    return bool(await conn.fetchval(OUTGROW, model_config_id, read_tokens))


async def report(conn: Connection, model_config_id: UUID, *, tokens: int) -> bool:
    """Store what the provider reports about its model. Returns whether it changed."""
    return bool(await conn.fetchval(REPORT, model_config_id, tokens))


async def forget(conn: Connection, model_config_id: UUID) -> bool:
    """Drop what was learned. Returns whether there was anything. The provider's report stays."""
    return bool(await conn.fetchval(FORGET, model_config_id))


async def drop(conn: Connection, model_config_id: UUID) -> None:
    """Drop everything known: the config now means another model, or another setup of it."""
    await conn.execute(DROP, model_config_id)


async def drop_of_provider(conn: Connection, provider_id: UUID) -> None:
    await conn.execute(DROP_OF_PROVIDER, provider_id)


def _window(values: tuple[Any, ...]) -> ModelWindow:
    config_id, reported, reported_at, learned, source, learned_at = values
    learned_from = None if source is None else LearnedFrom(source)
    return ModelWindow(config_id, reported, reported_at, learned, learned_from, learned_at)
