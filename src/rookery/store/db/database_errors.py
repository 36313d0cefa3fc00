"""The errors of a failing database, which the loops of the worker survive."""

from __future__ import annotations

import asyncpg

from rookery.runtime.clock import DeadlineExceeded
from rookery.store.db.errors import StoreError

# asyncpg raises InternalClientError for a statement between the server's shutdown notice and the end of the connection.
DATABASE_ERRORS = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    StoreError,
    DeadlineExceeded,
)
