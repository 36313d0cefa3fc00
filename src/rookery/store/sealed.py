"""Where sealed values stand in the database, and how they get under a new ring key.

Rotation works in small batches and replaces a value only while it is still the one that was read: a key saved
meanwhile is sealed with the active ring key anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import msgspec

from rookery.store.pool import Connection

BATCH = 500


class Place(msgspec.Struct, frozen=True):
    """A column with sealed values. `row_id` is the SQL for what each is bound to, as text."""

    table: str
    column: str
    row_id: str


PLACES = (
    Place("model_providers", "api_key_enc", "id::text"),
    Place("user_provider_keys", "key_enc", "user_id || '/' || provider_id"),
)

LIST = """
    SELECT {row_id}, {column}
      FROM {table}
     WHERE {column} IS NOT NULL
       AND {row_id} > $1
     ORDER BY 1
     LIMIT $2
"""
REPLACE = "UPDATE {table} SET {column} = $3 WHERE {row_id} = $1 AND {column} = $2 RETURNING true"


class Rewrapper(Protocol):
    """The key ring, as far as rotation needs it."""

    def rewrap(self, sealed: str, *, table: str, row_id: str, column: str, full: bool) -> str | None:
        """The value under the active key; None when it cannot be opened. Unchanged when it is there already."""
        ...

    def key_id(self, sealed: str) -> str: ...


class Rotation(msgspec.Struct, frozen=True):
    """How many values are under which ring key afterwards; one with none may be removed from the ring."""

    by_key_id: Mapping[str, int]
    rewrapped: int
    unreadable: int


async def rotate(conn: Connection, ring: Rewrapper, *, full: bool = False) -> Rotation:
    """Bring every sealed value under the active key. `full` encrypts the values anew, not only their data keys."""
    counts: Counter[str] = Counter()
    rewrapped = unreadable = 0
    for place in PLACES:
        after = ""
        while batch := await conn.fetch(_sql(LIST, place), after, BATCH):
            for row_id, sealed in batch:
                new = ring.rewrap(sealed, table=place.table, row_id=row_id, column=place.column, full=full)
                unreadable += new is None
                if new is not None and new != sealed:
                    rewrapped += await conn.fetchval(_sql(REPLACE, place), row_id, sealed, new) is not None
                counts[ring.key_id(new or sealed)] += 1
            after = batch[-1][0]
    return Rotation(dict(counts), rewrapped, unreadable)


async def count_by_key_id(conn: Connection, ring: Rewrapper) -> dict[str, int]:
    """How many values are under which ring key. Changes nothing."""
    counts: Counter[str] = Counter()
    for place in PLACES:
        after = ""
        while batch := await conn.fetch(_sql(LIST, place), after, BATCH):
            counts.update(ring.key_id(sealed) for _, sealed in batch)
            after = batch[-1][0]
    return dict(counts)


def _sql(statement: str, place: Place) -> str:
    return statement.format(table=place.table, column=place.column, row_id=place.row_id)
