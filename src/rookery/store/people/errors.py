"""Errors of accounts, credentials and rights.

AccessError
├── Unauthenticated         no credentials, or unknown ones
│   ├── InvalidCredentials, SessionExpired, TokenExpired, LinkInvalid
│   └── SessionKeyRequired, SessionCookieRequired
├── Denied                  authenticated, but not allowed
│   ├── Forbidden, OwnerOnly, ScopeMissing, Disabled
│   └── WrongSetupToken
├── Missing                 does not exist, or the caller must not learn that it exists
│   └── UserNotFound, SessionNotFound, TokenNotFound, FileNotFound
├── Conflict                valid, but not possible now
│   ├── AlreadyExists, LastAdmin, InUse, QuotaExceeded, ArchiveFirst, AlreadySetUp
│   └── IdempotencyMismatch, IdempotencyInProgress
├── TooManyAttempts         wait `retry_after_seconds` before the next login
├── PasswordsBusy           too many passwords are being checked in this process
└── NoActor                 a bug: the store was called without an actor
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID


class AccessError(Exception):
    """The base class. `code` is for programs. The message is for users and says what to do."""

    code: ClassVar[str] = "invalid"


class Unauthenticated(AccessError):
    code = "unauthenticated"

    def __init__(self, message: str = "Log in, or send an API token.") -> None:
        super().__init__(message)


class InvalidCredentials(Unauthenticated):
    """Raised for every failed login, for all reasons."""

    code = "invalid_credentials"

    def __init__(self) -> None:
        super().__init__("The login or the password is wrong.")


class SessionExpired(Unauthenticated):
    code = "session_expired"

    def __init__(self) -> None:
        super().__init__("Your session has ended. Log in again.")


class SessionKeyRequired(Unauthenticated):
    code = "session_key_required"

    def __init__(self) -> None:
        super().__init__(
            "The cookie of a session is valid only with the session key. Send the key as `Rookery-Session-Key`, or log "
            "in again."
        )


class SessionCookieRequired(Unauthenticated):
    code = "session_cookie_required"

    def __init__(self) -> None:
        super().__init__("The session key is valid only with the cookie of the session. Log in again.")


class TokenExpired(Unauthenticated):
    code = "token_expired"

    def __init__(self) -> None:
        super().__init__("This API token has expired. Create a new one.")


class LinkInvalid(Unauthenticated):
    code = "invalid_credentials"

    def __init__(self) -> None:
        super().__init__("This link was used or replaced, or has expired. Ask an administrator for a new one.")


class Denied(AccessError):
    code = "forbidden"


class Forbidden(Denied):
    def __init__(self, message: str = "You may not do this.") -> None:
        super().__init__(message)


class OwnerOnly(Denied):
    code = "owner_only"

    def __init__(self) -> None:
        super().__init__("Only the owner of this chat may do this.")


class ScopeMissing(Denied):
    code = "scope"

    def __init__(self, scope: str) -> None:
        self.scope = scope
        super().__init__(f"This API token lacks the scope {scope}. Create a token that has it.")


class Disabled(Denied):
    code = "disabled"

    def __init__(self, message: str) -> None:
        super().__init__(message)


class WrongSetupToken(Denied):
    def __init__(self) -> None:
        super().__init__("This is not the setup token. The server printed the token when it was started.")


class Missing(AccessError):
    code = "not_found"


class UserNotFound(Missing):
    def __init__(self, user_id: UUID) -> None:
        self.user_id = user_id
        super().__init__(f"There is no user {user_id}.")


class SessionNotFound(Missing):
    def __init__(self) -> None:
        super().__init__("There is no such session. It may have ended.")


class TokenNotFound(Missing):
    def __init__(self) -> None:
        super().__init__("There is no such API token. It may have been deleted.")


class FileNotFound(Missing):
    def __init__(self, file_id: UUID) -> None:
        self.file_id = file_id
        super().__init__(f"There is no file {file_id}.")


class FolderNotFound(Missing):
    def __init__(self) -> None:
        super().__init__("You have no such folder. It may have been deleted.")


class SavedPromptNotFound(Missing):
    def __init__(self, name: str) -> None:
        super().__init__(f"There is no saved prompt {name!r}.")


class Conflict(AccessError):
    pass


class AlreadyExists(Conflict):
    code = "already_exists"

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)


class LastAdmin(Conflict):
    code = "last_admin"

    def __init__(self) -> None:
        super().__init__("This is the last active administrator. Make another user an administrator first.")


class InUse(Conflict):
    code = "in_use"

    def __init__(self, message: str) -> None:
        super().__init__(message)


class QuotaExceeded(Conflict):
    code = "quota_exceeded"

    def __init__(self, message: str) -> None:
        super().__init__(message)


class ArchiveFirst(Conflict):
    code = "archive_first"

    def __init__(self) -> None:
        super().__init__("Only an archived chat can be deleted. Archive it first.")


class AlreadySetUp(Conflict):
    code = "set_up"

    def __init__(self) -> None:
        super().__init__("This server is set up already. Log in.")


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"

    def __init__(self) -> None:
        super().__init__("This idempotency key was used for another request. Choose a new one.")


class IdempotencyInProgress(Conflict):
    code = "idempotency_in_progress"

    def __init__(self) -> None:
        super().__init__("The first request with this idempotency key is still in progress. Try again in a moment.")


class TooManyAttempts(AccessError):
    code = "rate_limited"

    def __init__(self, retry_after_seconds: int) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(f"Too many failed logins. Try again in {retry_after_seconds} s.")


class PasswordsBusy(AccessError):
    code = "unavailable"

    def __init__(self) -> None:
        super().__init__("Too many users are logging in at the same time. Try again in a moment.")


class NoActor(AccessError):
    code = "internal"

    def __init__(self) -> None:
        super().__init__("The store was called without an actor.")
