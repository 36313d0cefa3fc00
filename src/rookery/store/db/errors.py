"""What can go wrong between Rookery and its database, apart from a chat's own refusals.

StoreError
├── DatabaseUnreachable     exit 4: nobody answers, or the login is refused
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
    """Base. The message is one sentence for people that says what to do."""


class DatabaseUnreachable(StoreError):
    """Nobody answers at the address, or the login is refused."""


class DatabaseUnsuitable(StoreError):
    """A server answers, but Rookery cannot work with it."""


class SchemaUnusable(StoreError):
    """The schema in the database is not one this version can use."""


class EmbeddedServerError(StoreError):
    """The embedded PostgreSQL cannot be set up, started or stopped."""


class DataDirInUse(EmbeddedServerError):
    def __init__(self, data_dir: Path, pid: int | None) -> None:
        self.data_dir = data_dir
        self.pid = pid
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{data_dir} is in use by {who}. Stop that one first, or choose another directory with --data-dir."
        )


class LockTimeout(StoreError):
    """The row stayed locked, or kept deadlocking, through every retry."""


class DatabaseUnavailable(StoreError):
    """The database could not do it now: the connection was lost before the commit, or it took too long."""


class CommitOutcomeUnknown(StoreError):
    """The connection was lost during COMMIT. Read the state again, or repeat with the same idempotency key."""
