"""The operator: the user who owns chats that are started by commands on the machine itself.

An ordinary row, so that limits, costs and lists work as for other users. It has no password, so a login with it is
impossible.
"""

from __future__ import annotations

from uuid import UUID

from rookery.store.db.pool import Connection

USERNAME = "operator"

FIND = "SELECT id FROM users WHERE lower(username) = lower($1)"
# Two commands may start concurrently in a new database: the later one finds the row of the other.
INSERT = """
    INSERT INTO users (username)
    VALUES ($1)
        ON CONFLICT ((lower(username))) DO NOTHING
"""


async def ensure_operator(conn: Connection) -> UUID:
    """Return the id of the operator, who is created at the first use."""
    found: UUID | None = await conn.fetchval(FIND, USERNAME)
    if found is None:
        await conn.execute(INSERT, USERNAME)
        found = await conn.fetchval(FIND, USERNAME)
        assert found is not None
    return found
