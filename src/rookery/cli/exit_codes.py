"""The exit codes of `rookery`, refusals of commands, and the table of expected errors."""

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


class Refused(Exception):
    """Raised when a command cannot be executed as it was given. The message says what to do."""

    def __init__(self, message: str, *, code: Exit = Exit.FAILED) -> None:
        self.code = code
        super().__init__(message)


# The first matching class decides. An error without a row is a bug, and is reported as one.
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
    """Return the exit code of an expected error; None for an unexpected one."""
    if isinstance(error, OSError) and error.errno is None:
        return None  # the error comes from code, not from the operating system: an unhandled timeout
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), None)
