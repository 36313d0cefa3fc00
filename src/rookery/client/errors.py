"""What can go wrong for a program that talks to a server.

RookeryError
├── Unreachable              nothing answers, or the connection broke before there was an answer
├── TimedOut                 there was no answer in time; whether the server did it is unknown
├── UnexpectedAnswer         what answers is not a server that this client understands
├── ApiError                 the server says no: `status`, `code`, `request_id`
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
├── StreamEnded              a stream is over for good: `close_code`, `reason`
│   ├── LoggedOut            4401
│   ├── AccessWithdrawn      4403
│   └── ChatDeleted          4404
└── TurnNotFinished          a turn that was waited for did not end well
    ├── TurnFailed           `error` says why
    └── ActionRequired       it waits for results of tools that this program runs
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class RookeryError(Exception):
    """Base of all. The message is a sentence for people."""


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
        super().__init__(f"What answers at {url} is no server that this client understands: {reason}.")


class FieldError(msgspec.Struct, frozen=True):
    """One value that breaks a rule."""

    field: str
    message: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an answer that is an error."""

    code: str
    message: str
    detail: str | None = None
    fields: tuple[FieldError, ...] = ()
    request_id: str | None = None


class ApiError(RookeryError):
    """The server refuses. `members` are what the code adds to the body; `retry_after` is in seconds."""

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
    """A value breaks a rule; all of them are in `fields`."""

    def __str__(self) -> str:
        if len(self.fields) < 2:
            return self.message
        return " ".join(f"{each.field}: {each.message}" for each in self.fields)


class Unauthenticated(ApiError):
    """There is no token, or it is not valid any more."""


class Forbidden(ApiError):
    """Known, but not allowed."""


class NotFound(ApiError):
    """Missing, or not the caller's to know."""


class Conflict(ApiError):
    """Not possible in the state that things are in."""


class UsageLimitReached(Conflict):
    """The budget is spent: `members` has `spent_micros`, `limit_micros` and `resets_at`."""


class AlreadySetUp(ApiError):
    """The first account exists."""


class PreconditionFailed(ApiError):
    """Something that this needs is missing, or changed meanwhile."""


class RateLimited(ApiError):
    """Too much at once. Nothing was done."""


class QueueFull(RateLimited):
    """The chat has as many queued messages as it may have."""


class TooManyStreams(RateLimited):
    """The caller has as many open streams as it may have."""


class ServerError(ApiError):
    """The server failed; its log has the request id."""


class Unavailable(ServerError):
    """Not now; whether a change was made is unknown."""


class SetupRequired(Unavailable):
    """The server has no account yet."""


class StreamEnded(RookeryError):
    """The server ended the stream, and connecting again would not help."""

    def __init__(self, close_code: int, reason: str) -> None:
        self.close_code = close_code
        self.reason = reason
        super().__init__(reason or f"The server closed the stream with code {close_code}.")


class LoggedOut(StreamEnded):
    """The session or the token ended."""


class AccessWithdrawn(StreamEnded):
    """The chat is not the caller's to read any more."""


class ChatDeleted(StreamEnded):
    """The chat is gone."""


class TurnNotFinished(RookeryError):
    """A turn that was waited for did not end with an answer."""


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
    """The error of an answer; None for one that no server of ours would give."""
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
    """The seconds that the server asks to wait. Dates, which servers of ours never send, are not read."""
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None
