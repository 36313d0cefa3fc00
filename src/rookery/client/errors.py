"""The exceptions of the client.

RookeryError
├── Unreachable              no server answers, or the connection broke before there was a response
├── TimedOut                 there was no response in time; whether the server did it is unknown
├── UnexpectedAnswer         the response does not come from a server that this client understands
├── ApiError                 the server refuses: `status`, `code`, `request_id`
│   ├── Invalid              400, 413, 415; `fields` name what is wrong
│   ├── Unauthenticated      401
│   ├── Forbidden            403
│   ├── NotFound             404
│   ├── Conflict             409: understood, and not possible now
│   │   └── UsageLimitReached
│   ├── AlreadySetUp         410
│   ├── PreconditionFailed   412
│   ├── RateLimited          429; `retry_after`
│   │   ├── QueueFull        waiting does not help, but a turn that ends does
│   │   └── TooManyStreams
│   └── ServerError          5xx
│       └── Unavailable      503; `retry_after`
│           └── SetupRequired
├── StreamEnded              a stream ended permanently: `close_code`, `reason`
│   ├── LoggedOut            4401
│   ├── AccessWithdrawn      4403
│   └── ChatDeleted          4404
└── TurnNotFinished          a turn ended without an answer
    ├── TurnFailed           `error` says why
    └── ActionRequired       it waits for results of tools that this program runs
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class RookeryError(Exception):
    """Base class of all exceptions. The message is a sentence for users."""


class Unreachable(RookeryError):
    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"Nothing answers at {url}: {reason}.")


class TimedOut(RookeryError):
    def __init__(self, what: str, seconds: float) -> None:
        self.what = what
        self.seconds = seconds
        super().__init__(f"{what} was not answered within {seconds:g} s.")


class UnexpectedAnswer(RookeryError):
    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"The program at {url} is not a server that this client supports: {reason}.")


class FieldError(msgspec.Struct, frozen=True):
    """One value that breaks a rule."""

    field: str
    message: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response."""

    code: str
    message: str
    detail: str | None = None
    fields: tuple[FieldError, ...] = ()
    request_id: str | None = None


class ApiError(RookeryError):
    """Raised when the server refuses a request.

    `members` are extra members of the body; `retry_after` is in seconds.
    """

    def __init__(
        self,
        status: int,
        body: ErrorBody,
        *,
        retry_after: float | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        self.status = status
        self.code = body.code
        self.message = body.message
        self.detail = body.detail
        self.fields = body.fields
        self.request_id = body.request_id
        self.retry_after = retry_after
        self.members = dict(members or {})
        super().__init__(body.message)


class Invalid(ApiError):
    """Raised when values break rules. `fields` lists all of them."""

    def __str__(self) -> str:
        if len(self.fields) < 2:
            return self.message
        return " ".join(f"{each.field}: {each.message}" for each in self.fields)


class Unauthenticated(ApiError):
    """Raised when there is no token, or it is no longer valid."""


class Forbidden(ApiError):
    """Raised when the caller is known, but not allowed."""


class NotFound(ApiError):
    """Raised when the object is missing, or not visible to the caller."""


class Conflict(ApiError):
    """Raised when the request is not possible in the current state."""


class UsageLimitReached(Conflict):
    """Raised when the budget is spent: `members` has `spent_micros`, `limit_micros` and `resets_at`."""


class AlreadySetUp(ApiError):
    """Raised when the first account already exists."""


class PreconditionFailed(ApiError):
    """Raised when an object that the request needs is missing, or has changed meanwhile."""


class RateLimited(ApiError):
    """Raised when there are too many requests. Nothing was done."""


class QueueFull(RateLimited):
    """Raised when the chat has the maximum number of queued messages."""


class TooManyStreams(RateLimited):
    """Raised when the caller has the maximum number of open streams."""


class ServerError(ApiError):
    """Raised when the server failed; its log has the request id."""


class Unavailable(ServerError):
    """Raised when the server is unavailable. The change may or may not have been made."""


class SetupRequired(Unavailable):
    """Raised when the server has no account yet."""


class StreamEnded(RookeryError):
    """Raised when the server ended the stream, and a new connection would be refused."""

    def __init__(self, close_code: int, reason: str) -> None:
        self.close_code = close_code
        self.reason = reason
        super().__init__(reason or f"The server closed the stream with code {close_code}.")


class LoggedOut(StreamEnded):
    """Raised when the stream was closed because the session or the token is no longer valid."""


class AccessWithdrawn(StreamEnded):
    """Raised when the caller may no longer read the chat."""


class ChatDeleted(StreamEnded):
    """Raised when the chat was deleted."""


class TurnNotFinished(RookeryError):
    """Raised when a turn did not end with an answer."""


class TurnFailed(TurnNotFinished):
    def __init__(self, error: Mapping[str, Any]) -> None:
        self.error = error
        super().__init__(str(error.get("message") or "The turn failed."))


class ActionRequired(TurnNotFinished):
    def __init__(self, action: Mapping[str, Any]) -> None:
        self.action = action
        names = ", ".join(sorted({str(call.get("tool_name")) for call in action.get("tool_calls", ())}))
        if action.get("kind") == "approval":
            super().__init__(f"The chat asks whether {names or 'tools'} may run. Answer it, or interrupt it.")
        else:
            super().__init__(f"The chat waits for results of {names or 'tools'}. Submit them, or interrupt it.")


_BY_CODE: Mapping[str, type[ApiError]] = {
    "usage_limit": UsageLimitReached,
    "queue_full": QueueFull,
    "too_many_streams": TooManyStreams,
    "setup_required": SetupRequired,
}
_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: AlreadySetUp,
    412: PreconditionFailed,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: RateLimited,
    503: Unavailable,
}
_BY_CLOSE_CODE: Mapping[int, type[StreamEnded]] = {4401: LoggedOut, 4403: AccessWithdrawn, 4404: ChatDeleted}


def api_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError | None:
    """Return the error of a response; None for a response that does not come from a Rookery server."""
    try:
        members: object = msgspec.json.decode(body)
        decoded = msgspec.convert(members, ErrorBody)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    assert isinstance(members, dict)
    if decoded.request_id is None:
        decoded = msgspec.structs.replace(decoded, request_id=headers.get("x-request-id"))
    kind = _BY_CODE.get(decoded.code) or _BY_STATUS.get(status) or (ServerError if status >= 500 else ApiError)
    more = {name: value for name, value in members.items() if name not in ErrorBody.__struct_fields__}
    return kind(status, decoded, retry_after=retry_after(headers), members=more)


def stream_ended(close_code: int, reason: str) -> StreamEnded:
    return _BY_CLOSE_CODE.get(close_code, StreamEnded)(close_code, reason)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the delay that the server asks for, in seconds.

    Dates are ignored, because Rookery servers never send them.
    """
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None
