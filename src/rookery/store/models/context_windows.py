"""Context windows of models: the sizes that providers report and those learned from refused requests.

All replicas share the rows. A learned window is deleted when the model config or the address of its provider changes,
and when an administrator asks for it. It expires after `NAMED_DAYS` if the provider named the number, and after
`GUESSED_DAYS` if it is a guess. The caller publishes a `ConfigHint(kind="model")` after the commit.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from rookery.domain.models.context_window import Learned, LearnedFrom
from rookery.store.db.pool import Connection
from rookery.store.machine import Tx

# Chosen. Windows expire because providers sometimes enlarge them, and a guess that is too small would never be noticed.
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
# The smaller number stays, because two chats may learn at the same time. A provider's number replaces every guess.
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
# The model has read $2 tokens, more than the guess. The guess was too small; the new guess is twice that number.
RAISE_GUESS = """
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
RECORD_REFUSED = """
    UPDATE chats
       SET refused_tokens = CASE WHEN refused_history_version = history_version THEN least(refused_tokens, $2)
                                 ELSE $2 END,
           refused_history_version = history_version
     WHERE id = $1
"""


class ModelWindow(msgspec.Struct, frozen=True):
    """The reported and the learned window of one model config. An expired learned window is None."""

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
    """Store a learned window. Returns whether the row changed."""
    return bool(await conn.fetchval(LEARN, model_config_id, learned.tokens, str(learned.source)))


async def raise_guess(conn: Connection, model_config_id: UUID, *, read_tokens: int) -> bool:
    """Raise a guess that is below the number of tokens that the model has read.

    Returns whether there was such a guess.
    """
    return bool(await conn.fetchval(RAISE_GUESS, model_config_id, read_tokens))


async def report(conn: Connection, model_config_id: UUID, *, tokens: int) -> bool:
    """Store the window that the provider reports for its model. Returns whether it changed."""
    return bool(await conn.fetchval(REPORT, model_config_id, tokens))


async def forget(conn: Connection, model_config_id: UUID) -> bool:
    """Delete the learned window and keep the reported one. Returns whether there was a learned window."""
    return bool(await conn.fetchval(FORGET, model_config_id))


async def drop(conn: Connection, model_config_id: UUID) -> None:
    """Delete both windows, because the config now names another model or other limits or options."""
    await conn.execute(DROP, model_config_id)


async def drop_of_provider(conn: Connection, provider_id: UUID) -> None:
    await conn.execute(DROP_OF_PROVIDER, provider_id)


def _window(values: tuple[Any, ...]) -> ModelWindow:
    config_id, reported, reported_at, learned, source, learned_at = values
    learned_from = None if source is None else LearnedFrom(source)
    return ModelWindow(config_id, reported, reported_at, learned, learned_from, learned_at)


async def record_refused(tx: Tx, *, estimated_tokens: int) -> None:
    """Record on the chat that a provider refused a request of about this size as too long, so that it is not resent.

    The transaction must hold the lock of the chat's row. The record applies to the current `history_version` only. Of
    several refusals of one version, the smallest size stays.
    """
    await tx.conn.execute(RECORD_REFUSED, tx.chat.id, max(estimated_tokens, 1))
