"""The columns with sealed values, and their rotation to a new ring key.

Rotation replaces each value separately, and only if it is still the one that was read. It can therefore run while
servers are running, be interrupted at any time, and be run again. The count afterwards finds values that a server with
another ring saved meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

import msgspec

from rookery.store.db.pool import Connection

BATCH = 500


CHECK_SETTING = "secret_check"  # a sealed constant; a server that cannot open it at its start has the wrong ring


class SealedColumn(msgspec.Struct, frozen=True):
    """A column with sealed values, and SQL expressions to read and write them.

    `row_id` is the id that each value is bound to, as text. `sealed` is the value as text, or NULL where there is none.
    `stored` makes the column's value from the text `$3`.
    """

    table: str
    column: str
    row_id: str
    sealed: str
    stored: str = "$3"


SEALED_COLUMNS = (
    SealedColumn("model_providers", "api_key_enc", "id::text", sealed="api_key_enc"),
    SealedColumn("model_providers", "headers_enc", "id::text", sealed="headers_enc"),
    SealedColumn("model_configs", "headers_enc", "id::text", sealed="headers_enc"),
    SealedColumn("user_provider_keys", "key_enc", "user_id || '/' || provider_id", sealed="key_enc"),
    SealedColumn("workspaces", "token_enc", "id::text", sealed="token_enc"),
    SealedColumn("workspaces", "secrets_enc", "id::text", sealed="secrets_enc"),
    SealedColumn("workspace_operations", "secrets_enc", "workspace_id::text", sealed="secrets_enc"),
    SealedColumn("mcp_servers", "api_key_enc", "id::text", sealed="api_key_enc"),
    SealedColumn("mcp_servers", "headers_enc", "id::text", sealed="headers_enc"),
    SealedColumn("mcp_servers", "oauth_client_secret_enc", "id::text", sealed="oauth_client_secret_enc"),
    SealedColumn("mcp_oauth_clients", "client_secret_enc", "id::text", sealed="client_secret_enc"),
    SealedColumn("mcp_oauth_flows", "details_enc", "id::text", sealed="details_enc"),
    SealedColumn("mcp_oauth_tokens", "client_secret_enc", "id::text", sealed="client_secret_enc"),
    SealedColumn("mcp_oauth_tokens", "access_token_enc", "id::text", sealed="access_token_enc"),
    SealedColumn("mcp_oauth_tokens", "refresh_token_enc", "id::text", sealed="refresh_token_enc"),
    # Settings are JSON, and only the check setting is sealed.
    SealedColumn(
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
    """The methods of the key ring that rotation needs."""

    def rewrap(self, sealed: str, *, table: str, row_id: str, column: str, full: bool) -> str | None:
        """Return the value sealed with the active key, or None if no key opens it.

        A value that is already sealed with the active key is returned unchanged.
        """
        ...

    def key_id(self, sealed: str) -> str: ...


class Rotation(msgspec.Struct, frozen=True):
    """The result of a rotation. `by_key_id` counts values by ring key: a key without values may be removed."""

    by_key_id: Mapping[str, int]
    rewrapped: int
    unreadable: int


async def rotate(
    conn: Connection, ring: Rewrapper, *, full: bool = False, on_batch: Callable[[int], None] | None = None
) -> Rotation:
    """Seal every value with the active key. `full` encrypts the values again, not only their data keys.

    `on_batch` receives the number of values processed so far.
    """
    seen = rewrapped = unreadable = 0
    for column in SEALED_COLUMNS:
        async for batch in _batches(conn, column):
            for row_id, sealed in batch:
                new = ring.rewrap(sealed, table=column.table, row_id=row_id, column=column.column, full=full)
                unreadable += new is None
                if new is not None and new != sealed:
                    rewrapped += await conn.fetchval(_sql(REPLACE, column), row_id, sealed, new) is not None
            seen += len(batch)
            if on_batch is not None:
                on_batch(seen)
    return Rotation(await count_by_key_id(conn, ring), rewrapped, unreadable)


async def count_by_key_id(conn: Connection, ring: Rewrapper) -> dict[str, int]:
    """Return the number of values that each ring key seals."""
    counts: Counter[str] = Counter()
    for column in SEALED_COLUMNS:
        async for batch in _batches(conn, column):
            counts.update(ring.key_id(sealed) for _, sealed in batch)
    return dict(counts)


async def _batches(conn: Connection, column: SealedColumn) -> AsyncIterator[list[tuple[str, str]]]:
    """Yield the sealed values of a column as batches of (row id, sealed value), in order of the row ids."""
    after = ""
    while batch := [(row[0], row[1]) for row in await conn.fetch(_sql(LIST, column), after, BATCH)]:
        yield batch
        after = batch[-1][0]


def _sql(statement: str, column: SealedColumn) -> str:
    return statement.format(**msgspec.structs.asdict(column))
