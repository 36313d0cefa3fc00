"""Database errors: every exception that an unavailable database may cause in code that goes on without it."""

from __future__ import annotations

import asyncpg

from rookery.runtime.clock import DeadlineExceeded
from rookery.store.db.errors import StoreError

# asyncpg raises InternalClientError for a statement between the server's shutdown message and the connection's end.
DATABASE_ERRORS = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    StoreError,
    DeadlineExceeded,
)
