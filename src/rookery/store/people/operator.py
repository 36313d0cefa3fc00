"""The operator: the user to whom the chats belong that are started by commands on the machine itself.

An ordinary row, so that limits, costs and lists work as for everybody; nobody can log in with it, because it has no
password.
"""

from __future__ import annotations

from uuid import UUID

from rookery.store.db.pool import Connection

USERNAME = "operator"

FIND = "SELECT id FROM users WHERE lower(username) = lower($1)"
# Two commands may start at once in a fresh database: the one that comes late finds the row of the other.
INSERT = """
    INSERT INTO users (username)
    VALUES ($1)
        ON CONFLICT ((lower(username))) DO NOTHING
"""


async def ensure_operator(conn: Connection) -> UUID:
    """The id of the operator, who is made at the first use."""
    found: UUID | None = await conn.fetchval(FIND, USERNAME)
    if found is None:
        await conn.execute(INSERT, USERNAME)
        found = await conn.fetchval(FIND, USERNAME)
        assert found is not None
    return found
