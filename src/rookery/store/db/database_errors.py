"""What a failing database looks like to the loops of the worker, which go on without it."""

from __future__ import annotations

import asyncpg

from rookery.runtime.clock import DeadlineExceeded
from rookery.store.db.errors import StoreError

# InternalClientError: what asyncpg says to a statement between the server's farewell and the end of the connection.
DATABASE_ERRORS = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    StoreError,
    DeadlineExceeded,
)
