"""Errors between Rookery and its database, apart from a chat's own refusals.

StoreError
├── DatabaseUnreachable     exit 4: no server answers, or the login is refused
├── DatabaseUnsuitable      exit 2: answers, but cannot be used (too old, a transaction pooler in front)
├── SchemaUnusable          exit 3: newer than this version can use, or an applied migration was edited
├── EmbeddedServerError     exit 1: the embedded server cannot be set up or started
│   └── DataDirInUse
├── LockTimeout             a chat stayed locked through every retry; try again
├── DatabaseUnavailable     no connection, no answer or no time; nothing was changed, try again
└── CommitOutcomeUnknown    the connection died during COMMIT: the change may or may not have happened
"""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """Base class. The message is one sentence for users and says what to do."""


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
        super().__init__(
            f"{data_dir} is in use by {who}. Stop that one first, or choose another directory with --data-dir."
        )


class LockTimeout(StoreError):
    """Raised if the row stayed locked, or kept deadlocking, through every retry."""


class DatabaseUnavailable(StoreError):
    """Raised if the connection was lost before the commit, or the statement took too long. Nothing was changed."""


class CommitOutcomeUnknown(StoreError):
    """Raised if the connection was lost during COMMIT. Read the state again, or repeat with the same
    idempotency key.
    """
