"""The exception classes that a database failure can raise. Background loops catch them and try again.

They are not in `errors` because that module must not import asyncpg: the command line imports it at each start.
"""

from __future__ import annotations

import asyncpg

from rookery.runtime.clock import DeadlineExceeded
from rookery.store.db.errors import StoreError

# asyncpg raises InternalClientError if a statement is sent after the server's shutdown notice.
DATABASE_ERRORS = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    StoreError,
    DeadlineExceeded,
)
