"""Errors of the database. Errors of a chat are in `domain.chat.errors`.

StoreError
├── DatabaseUnreachable     exit 4: no server answers, or the login is refused
├── DatabaseUnsuitable      exit 2: the server cannot be used (it is too old, or a transaction pooler)
├── SchemaUnusable          exit 3: the schema is newer than this version can use, or a migration was edited
├── EmbeddedServerError     exit 1: the embedded server cannot be set up or started
│   └── DataDirInUse
├── LockTimeout             a chat was locked at every retry; try again
├── DatabaseUnavailable     no connection, no answer or a timeout; nothing was changed, try again
└── CommitOutcomeUnknown    the connection was lost during COMMIT: the change may or may not have happened
"""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """The base class. The message is for users and says what to do."""


class DatabaseUnreachable(StoreError):
    """Raised if no server answers at the address, or the login is refused."""


class DatabaseUnsuitable(StoreError):
    """Raised if a server answers, but Rookery cannot work with it."""


class SchemaUnusable(StoreError):
    """Raised if this version cannot use the schema in the database."""


class EmbeddedServerError(StoreError):
    """Raised if the embedded PostgreSQL cannot be set up, started or stopped."""


class DataDirInUse(EmbeddedServerError):
    def __init__(self, data_dir: Path, pid: int | None) -> None:
        self.data_dir = data_dir
        self.pid = pid
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"{data_dir} is in use by {who}. Stop it first, or choose another directory with --data-dir.")


class LockTimeout(StoreError):
    """Raised if the row was locked, or a deadlock occurred, at every retry."""


class DatabaseUnavailable(StoreError):
    """Raised if the connection was lost before the commit, or the statement took too long. Nothing was changed."""


class CommitOutcomeUnknown(StoreError):
    """Raised if the connection was lost during COMMIT. Read the state, or repeat with the same idempotency key."""
