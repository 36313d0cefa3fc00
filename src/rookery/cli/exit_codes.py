"""The exit codes of `rookery`, and which expected error ends with which."""

from __future__ import annotations

from enum import IntEnum

from rookery.settings.settings import SettingsError
from rookery.store.db import errors


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    SCHEMA = 3
    UNREACHABLE = 4
    NOT_ALLOWED = 5
    INTERRUPTED = 130


# The first class that fits decides. An error that is in no row is a bug, and is reported as one.
EXIT_CODES: tuple[tuple[type[Exception], Exit], ...] = (
    (SettingsError, Exit.USAGE),
    (errors.DatabaseUnreachable, Exit.UNREACHABLE),
    (errors.DatabaseUnsuitable, Exit.USAGE),
    (errors.SchemaUnusable, Exit.SCHEMA),
    (errors.StoreError, Exit.FAILED),
    (PermissionError, Exit.NOT_ALLOWED),
    (OSError, Exit.FAILED),
)


def exit_code(error: BaseException) -> Exit | None:
    """The exit code of an expected error; None for one that nobody expected."""
    if isinstance(error, OSError) and error.errno is None:
        return None  # raised by code, not by the operating system: a timeout that nobody handled
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), None)
