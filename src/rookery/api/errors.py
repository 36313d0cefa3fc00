"""API errors: one body for all of them, and one table from exceptions to responses.

Routers do not raise HTTP errors and do not catch exceptions of the store and of the domain rules. This module maps
these exceptions to responses. An exception that is not in the table is a bug; the client gets only the request id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

import asyncpg
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rookery.domain.chat import errors as chat_errors
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.states import State
from rookery.domain.chat.submitted_content import InvalidContent
from rookery.domain.chat.transitions import Transition
from rookery.store.authorized.settings import StaleSetting
from rookery.store.chats.shares import BadEntries
from rookery.store.db.errors import CommitOutcomeUnknown, DatabaseUnavailable, DatabaseUnreachable, LockTimeout
from rookery.store.models import errors as models_errors
from rookery.store.people import errors
from rookery.store.workspaces.lifecycle_requests import OperationInProgress, WorkspaceQuotaExceeded
from rookery.stream.errors import ReplicaDraining, TooManyStreams
from rookery.workspaces.errors import NotWatchable, TooManyWatches
from rookery.workspaces.template_errors import Invalid

NO_STORE = "no-store"
SOON = {"Retry-After": "1"}
LINGER_SECONDS = 2.0
# A body may break rules in thousands of places. The limit keeps the error response small.
MAX_FIELDS = 20

# The database is unreachable, restarting or too slow. Any other database error is a bug.
_DATABASE_AWAY = (
    ConnectionError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
)


class FieldError(msgspec.Struct, frozen=True):
    """One error in a request: the field and the rule that it breaks."""

    field: str
    message: str


class Quota(msgspec.Struct, frozen=True):
    """A limit on workspaces. `kind` is the name of its setting."""

    kind: str
    used: int
    limit: int


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every error response. Some codes add fields."""

    code: str
    message: str
    request_id: str
    detail: str | None = None
    fields: tuple[FieldError, ...] = ()
    status: str | None = None
    max: int | None = None
    spent_micros: int | None = None
    limit_micros: int | None = None
    resets_at: str | None = None
    quota: Quota | None = None
    operation_id: str | None = None


class ApiError(Exception):
    """An error response. `members` are the fields that its code adds to the body."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        fields: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, object] | None = None,
        lingers: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.fields = tuple(fields)
        self.headers = dict(headers or {})
        self.members = dict(members or {})
        self.lingers = lingers

    def body(self, request_id: str) -> bytes:
        shown: dict[str, object] = {"code": self.code, "message": self.message, **self.members}
        if self.fields:
            shown["fields"] = self.fields
        return msgspec.json.encode({**shown, "request_id": request_id})

    def response(self, request_id: str) -> Response:
        headers = {"Cache-Control": NO_STORE, **self.headers}
        kind = _Lingering if self.lingers else Response
        return kind(self.body(request_id), self.status, headers, media_type="application/json")


class _Lingering(Response):
    """A response to a client that is still sending. Received data is dropped for a moment before the connection is
    closed.

    If the connection were closed immediately, most clients would report a broken connection and never show the reason.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": bytes(self.body), "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class BadFields(ApiError):
    """Raised for a request with invalid values.

    Lists all errors up to `MAX_FIELDS`; the message has the number of the others.
    """

    def __init__(self, fields: Sequence[FieldError], *, code: str = "invalid") -> None:
        first = fields[0]
        more = f" ({len(fields) - 1} more)" if len(fields) > 1 else ""
        super().__init__(400, code, f"{first.field}: {first.message}{more}", fields=fields[:MAX_FIELDS])


def internal() -> ApiError:
    return ApiError(
        500, "internal", ("Something went wrong on the server. The server log has the details under the request id.")
    )


def explain(error: BaseException) -> ApiError | None:
    """Return the response to an exception, or None if it is unexpected."""
    match error:
        case ApiError():
            return error
        case NotWatchable():
            return ApiError(409, error.code, str(error))
        case TooManyWatches():
            return ApiError(429, "too_many_streams", str(error))
        case InvalidContent():
            return BadFields([FieldError(fault.field, fault.message) for fault in error.faults])
        case BadEntries():
            return BadFields([FieldError(field, message) for field, message in error.faults.items()])
        case InvalidInput():
            return _input_error(error)
        case chat_errors.ChatError():
            return _chat_error(error)
        case errors.AccessError():
            return _access_error(error)
        case models_errors.ModelError():
            return _model_error(error)
        case Invalid():
            return BadFields([FieldError(each.field, each.detail) for each in error.problems])
        case StaleSetting():
            return ApiError(412, error.code, str(error))
        case TooManyStreams():
            return ApiError(429, "too_many_streams", str(error))
        case ReplicaDraining() | LockTimeout() | CommitOutcomeUnknown() | DatabaseUnavailable() | DatabaseUnreachable():
            return ApiError(503, "unavailable", "The server is busy or restarting. Try again.", headers=SOON)
    if isinstance(error, _DATABASE_AWAY):
        return ApiError(503, "unavailable", "The database does not answer. Try again in a moment.", headers=SOON)
    return None


# Error codes of transitions that the chat's state does not allow. Archived and invalid chats have their own codes.
_NOT_NOW: Mapping[Transition, str] = {
    Transition.SEND_MESSAGE_QUEUE: "chat_not_accepting_messages",
    Transition.SEND_MESSAGE_STEER: "chat_not_accepting_messages",
    Transition.SEND_MESSAGE_INTERRUPT: "chat_not_accepting_messages",
    Transition.EDIT_MESSAGE: "chat_not_editable",
    Transition.INTERRUPT: "not_interruptible",
    Transition.COMPLETE_REQUIRES_ACTION: "not_waiting_for_results",
    Transition.ANSWER_APPROVALS: "not_waiting_for_approval",
    Transition.REQUEST_COMPACTION: "busy_cannot_compact",
    Transition.RECONCILE_INVALID_STATE: "not_invalid",
    Transition.SET_ARCHIVED: "chat_busy_cannot_archive",
    Transition.RETRY_TURN: "nothing_to_retry",
}
_OF_QUEUE = frozenset(
    {
        Transition.DELETE_QUEUED_MESSAGE,
        Transition.PROMOTE_QUEUED_MESSAGE,
        Transition.CLEAR_QUEUE,
        Transition.REORDER_QUEUE,
        Transition.EDIT_QUEUED_MESSAGE,
    }
)


def _input_error(error: InvalidInput) -> ApiError:
    return BadFields([FieldError(error.field, str(error))], code=error.code)


def _chat_error(error: chat_errors.ChatError) -> ApiError | None:
    message = str(error)
    match error:
        case chat_errors.ChatNotFound():
            return ApiError(404, "chat_not_found", message)
        case chat_errors.MessageNotFound():
            return ApiError(404, "message_not_found", message)
        case chat_errors.QueuedMessageNotFound():
            return ApiError(404, "queued_message_not_found", message)
        case chat_errors.ChatArchived() | chat_errors.ParentArchived():
            return ApiError(409, "chat_archived", message)
        case chat_errors.TransitionNotAllowed():
            return _state_error(error)
        case chat_errors.InvalidState():
            return ApiError(409, "chat_invalid_state", message)
        case chat_errors.ChatBusy():
            return ApiError(409, "chat_busy_cannot_archive", message)
        case chat_errors.QueueFull():
            return ApiError(429, "queue_full", message, members={"max": error.maximum})
        case chat_errors.QueueChanged():
            return ApiError(409, "queue_changed", message)
        case chat_errors.NothingToCompact():
            return ApiError(409, "nothing_to_compact", message)
        case chat_errors.TooManySubagents():
            return ApiError(409, "too_many_subagents", message)
    return None


def _state_error(error: chat_errors.TransitionNotAllowed) -> ApiError:
    if error.from_state is State.INVALID:
        return ApiError(409, "chat_invalid_state", str(error))
    if error.cause == "exists":
        return ApiError(409, "already_exists", str(error))
    code = "queue_empty" if error.transition in _OF_QUEUE else _NOT_NOW.get(error.transition, "chat_invalid_state")
    return ApiError(409, code, str(error))


_ACCESS: Sequence[tuple[type[errors.AccessError], int]] = (
    (errors.Unauthenticated, 401),
    (errors.Denied, 403),
    (errors.Missing, 404),
    (errors.AlreadySetUp, 410),
    (errors.Conflict, 409),
    (errors.TooManyAttempts, 429),
    (errors.PasswordsBusy, 503),
)


def _access_error(error: errors.AccessError) -> ApiError | None:
    status = next((status for kind, status in _ACCESS if isinstance(error, kind)), None)
    if status is None:
        return None
    headers: dict[str, str] = {}
    fields: list[FieldError] = []
    if isinstance(error, errors.TooManyAttempts):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif isinstance(error, errors.PasswordsBusy):
        headers.update(SOON)
    elif isinstance(error, errors.AlreadyExists):
        fields.append(FieldError(error.field, str(error)))
    return ApiError(status, error.code, str(error), headers=headers, fields=fields, members=_members(error))


def _members(error: errors.AccessError) -> dict[str, object]:
    match error:
        case WorkspaceQuotaExceeded():
            return {"quota": Quota(error.kind, error.used, error.limit)}
        case OperationInProgress():
            return {"operation_id": str(error.operation.id)}
    return {}


_MODEL: Mapping[type[models_errors.ModelError], int] = {
    models_errors.ProviderNotFound: 404,
    models_errors.ModelConfigNotFound: 404,
    models_errors.UserKeyNotFound: 404,
    models_errors.NameTaken: 409,
    models_errors.ProviderReadOnly: 409,
    models_errors.ProviderUnavailable: 412,
    models_errors.KeysMissing: 412,
    models_errors.UserKeysDisabled: 403,
}


def _model_error(error: models_errors.ModelError) -> ApiError | None:
    if isinstance(error, models_errors.SpendLimitReached):
        members = {
            "spent_micros": error.spent_micros,
            "limit_micros": error.limit_micros,
            "resets_at": error.resets_at,
        }
        return ApiError(409, "usage_limit", str(error), members=members)
    status = _MODEL.get(type(error))
    return None if status is None else ApiError(status, error.code, str(error))
