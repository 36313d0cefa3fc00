"""The columns with sealed values, and their rotation to a new ring key.

Rotation works in small batches and replaces a value only while it is still the one that was read, each separately: it
can be interrupted anywhere and run again, and runs beside servers. Values that a server with another ring saves
meanwhile are found by counting afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

import msgspec

from rookery.store.db.pool import Connection

BATCH = 500


CHECK_SETTING = "secret_check"  # the constant by which a start recognizes its ring


class Place(msgspec.Struct, frozen=True):
    """A column with sealed values. `row_id` is the SQL for what each is bound to, as text.

    `sealed` is the SQL for the value as text, None where there is none; `stored` for the column made from `$3`.
    """

    table: str
    column: str
    row_id: str
    sealed: str
    stored: str = "$3"


PLACES = (
    Place("model_providers", "api_key_enc", "id::text", sealed="api_key_enc"),
    Place("model_providers", "headers_enc", "id::text", sealed="headers_enc"),
    Place("user_provider_keys", "key_enc", "user_id || '/' || provider_id", sealed="key_enc"),
    Place("workspaces", "token_enc", "id::text", sealed="token_enc"),
    Place("workspaces", "secrets_enc", "id::text", sealed="secrets_enc"),
    Place("workspace_operations", "secrets_enc", "workspace_id::text", sealed="secrets_enc"),
    # Settings are JSON, and most of them are not secret.
    Place(
        "settings",
        "value",
        "key",
        sealed=f"CASE WHEN key = '{CHECK_SETTING}' THEN value #>> '{{}}' END",
        stored="to_jsonb($3::text)",
    ),
)

LIST = """
    SELECT {row_id}, {sealed}
      FROM {table}
     WHERE {sealed} IS NOT NULL
       AND {row_id} > $1
     ORDER BY 1
     LIMIT $2
"""
REPLACE = "UPDATE {table} SET {column} = {stored} WHERE {row_id} = $1 AND {sealed} = $2 RETURNING true"


class Rewrapper(Protocol):
    """The part of the key ring that rotation needs."""

    def rewrap(self, sealed: str, *, table: str, row_id: str, column: str, full: bool) -> str | None:
        """Return the value under the active key; None if it cannot be opened. Unchanged if it is there already."""
        ...

    def key_id(self, sealed: str) -> str: ...


class Rotation(msgspec.Struct, frozen=True):
    """The number of values under each ring key afterwards; a key with none may be removed from the ring."""

    by_key_id: Mapping[str, int]
    rewrapped: int
    unreadable: int


async def rotate(
    conn: Connection, ring: Rewrapper, *, full: bool = False, on_batch: Callable[[int], None] | None = None
) -> Rotation:
    """Bring every sealed value under the active key. `full` re-encrypts the values, not only their data keys.

    `on_batch` receives the number of values processed so far.
    """
    seen = rewrapped = unreadable = 0
    for place in PLACES:
        async for batch in _batches(conn, place):
            for row_id, sealed in batch:
                new = ring.rewrap(sealed, table=place.table, row_id=row_id, column=place.column, full=full)
                unreadable += new is None
                if new is not None and new != sealed:
                    rewrapped += await conn.fetchval(_sql(REPLACE, place), row_id, sealed, new) is not None
            seen += len(batch)
            if on_batch is not None:
                on_batch(seen)
    return Rotation(await count_by_key_id(conn, ring), rewrapped, unreadable)


async def count_by_key_id(conn: Connection, ring: Rewrapper) -> dict[str, int]:
    """Return the number of values under each ring key. Changes nothing."""
    counts: Counter[str] = Counter()
    for place in PLACES:
        async for batch in _batches(conn, place):
            counts.update(ring.key_id(sealed) for _, sealed in batch)
    return dict(counts)


async def _batches(conn: Connection, place: Place) -> AsyncIterator[list[tuple[str, str]]]:
    """Yield all sealed values of a column in batches of pairs (row id, sealed value), in the order of the row ids."""
    after = ""
    while batch := [(row[0], row[1]) for row in await conn.fetch(_sql(LIST, place), after, BATCH)]:
        yield batch
        after = batch[-1][0]


def _sql(statement: str, place: Place) -> str:
    return statement.format(**msgspec.structs.asdict(place))
