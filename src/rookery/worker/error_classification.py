"""Classification of step failures for the retry rule, the user and the administrator.

Model clients classify the errors of providers (`llm/errors.py`), and that classification is kept. This module
classifies all other failures of a step: our own errors by type, and library exceptions with `library_errors`. Texts
pass through `hide`, because they may contain a key; texts about refused credentials are never shown.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from rookery.domain.chat.chat import LastError, RetryState
from rookery.domain.chat.errors import ChatError
from rookery.llm import error_bodies, errors
from rookery.llm.error_bodies import Hide
from rookery.llm.errors import MAX_RETRY_AFTER, TransportError, TransportFault
from rookery.llm.types import ErrorKind, ProviderError
from rookery.llm.wire import PromptInvalid
from rookery.models.key_ring import SecretsError
from rookery.runtime.clock import DeadlineExceeded
from rookery.store.models.errors import ModelUnusable, NoDefaultModel, SpendLimitReached, Unusable
from rookery.telemetry.redaction import hide_secrets
from rookery.worker import library_errors
from rookery.worker.library_errors import Description

HISTORY_MISMATCH = "history_mismatch"
_TOO_LARGE = 413
_BYTE_LIMIT_CODES = frozenset({"request_too_large", "string_too_long"})


class Classified(msgspec.Struct, frozen=True, kw_only=True):
    """A classified failure. `provider` is the display name of the provider; None if it is unknown.

    - `chain_broken`: the provider has forgotten a stored answer that the request refers to. Send the whole history.
    - `context_overflow`: the prompt is too long for the model. A summary may help.
    - `context_max`: the model's window, if the provider reported it.
    - `byte_limit`: the request has too many bytes for a server on the path. This does not indicate the model's window.
    """

    kind: ErrorKind
    message: str
    retryable: bool
    detail: str | None = None
    provider: str | None = None
    status_code: int | None = None
    retry_after: timedelta | None = None
    chain_broken: bool = False
    context_overflow: bool = False
    context_max: int | None = None
    byte_limit: bool = False


class StepFailed(Exception):
    """Raised with a failure that is already classified."""

    def __init__(self, failure: Classified) -> None:
        self.failure = failure
        super().__init__(failure.message)


# Messages for users

_MESSAGES: Mapping[ErrorKind, str] = {
    ErrorKind.OVERLOADED: "{provider} has no capacity right now.",
    ErrorKind.RATE_LIMIT: "{provider} accepts no more requests for now.",
    ErrorKind.TIMEOUT: "{provider} cannot be reached at the moment.",
    ErrorKind.STREAM_SILENCE_TIMEOUT: "{provider} stopped sending data.",
    ErrorKind.AUTH: "{provider} refused our credentials. Check key and permissions.",
    ErrorKind.MISSING_KEY: "No API key for {provider}. Add one and send the message again.",
    ErrorKind.CONFIG: "{provider} does not accept this model configuration. Check model and provider settings.",
    ErrorKind.CONTEXT_OVERFLOW: (
        "The chat is longer than this model can read at once. Compact it, or use a model with a larger window."
    ),
    ErrorKind.BUDGET: "The subagent has reached its budget.",
    ErrorKind.USAGE_LIMIT: "The account at {provider} has reached its limit. Add credit, or ask an administrator.",
    ErrorKind.INVALID_TOOL_CALL: "The model made a tool call that {provider} refused as invalid.",
    ErrorKind.PROVIDER_DISABLED: "{provider} is switched off on this server.",
    ErrorKind.CONTENT_FILTER: "{provider} blocked this answer under its content policy{category}.",
    ErrorKind.GENERIC: "{provider} reported an unexpected error.",
}
_TOOK_TOO_LONG = "The request took too long and was stopped."
_MISMATCH = "The conversation state no longer matches the provider's. This is not a billing or configuration problem."
_DESCRIPTIONS: Mapping[Description, str] = {
    Description.CANCELLED: "The request was canceled.",
    Description.MISMATCH: _MISMATCH,
    Description.CLOSED_EARLY: "{provider} ended the stream before the answer was complete.",
    Description.UNKNOWN: "The chat request failed unexpectedly.",
}
_RETRIED = frozenset({ErrorKind.OVERLOADED, ErrorKind.RATE_LIMIT, ErrorKind.TIMEOUT, ErrorKind.STREAM_SILENCE_TIMEOUT})


def of_kind(
    kind: ErrorKind, provider: str | None = None, *, detail: str | None = None, category: str | None = None
) -> Classified:
    """Return a failure of a known kind, such as a silent stream or a missing key."""
    return Classified(
        kind=kind,
        message=_format_message(_MESSAGES[kind], provider, category=category),
        retryable=kind in _RETRIED,
        detail=error_bodies.clean_detail(detail) if detail else None,
        provider=provider,
        context_overflow=kind is ErrorKind.CONTEXT_OVERFLOW,
    )


def _format_message(sentence: str, provider: str | None, *, category: str | None = None) -> str:
    said = sentence.format(provider=provider or "the AI provider", category=f" ({category})" if category else "")
    return said if provider else said[0].upper() + said[1:]


# Stored forms


def last_error(failure: Classified) -> LastError:
    """Return the value of `chats.last_error` for a turn that ended with this failure."""
    return LastError(
        message=failure.message,
        retryable=failure.retryable,
        detail=failure.detail,
        kind=str(failure.kind),
        provider=failure.provider,
        status_code=failure.status_code,
    )


def retry_state(failure: Classified, *, attempt: int, delay: timedelta, now: datetime) -> RetryState:
    """Return the value of `chats.retry_state`. Its text names no remedy, because the user need not act."""
    return RetryState(
        attempt=attempt,
        delay_ms=round(delay / timedelta(milliseconds=1)),
        error=_format_message(_MESSAGES[failure.kind], failure.provider),
        retrying_at=now + delay,
        kind=str(failure.kind),
        provider=failure.provider,
        status_code=failure.status_code,
    )


def without_retry(failure: Classified, *, now: datetime) -> Classified:
    """Return the failure as final, because the provider requires too long a wait. The detail contains the time."""
    until = now + (failure.retry_after or timedelta())
    detail = f"Possible again at {until:%Y-%m-%d %H:%M} UTC. {failure.detail or ''}"
    return msgspec.structs.replace(failure, retryable=False, detail=error_bodies.clean_detail(detail))


# Classification


def classify(
    failure: BaseException | ProviderError,
    provider: str | None = None,
    *,
    now: datetime | None = None,
    hide: Hide = hide_secrets,
) -> Classified:
    """Classify a failure. `provider` is the name of the configured provider; without it, the name is guessed.

    Never pass the cancellation of the current task, which is not a failure. `now` is used only for a Retry-After that
    is a date.
    """
    if isinstance(failure, ProviderError):
        return _of_provider(failure, provider)
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    for cause in _causes(failure):
        if isinstance(cause, StepFailed):
            return msgspec.structs.replace(cause.failure, provider=provider or cause.failure.provider)
        carried = getattr(cause, "error", None)
        if isinstance(carried, ProviderError):
            return _of_provider(carried, provider)
    own = _of_own_error(failure, provider, hide)
    return own if own is not None else _of_unknown(failure, provider, now=now, hide=hide)


def _causes(failure: BaseException) -> Iterator[BaseException]:
    """Yield the exception and its explicit causes, but not those of `__context__`, which only occurred before it."""
    seen: set[int] = set()
    current: BaseException | None = failure
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def _of_provider(error: ProviderError, provider: str | None) -> Classified:
    """Convert the classification that a model client made."""
    plain = Classified(
        kind=error.kind,
        message=error.message,
        retryable=error.retryable,
        detail=error.detail,
        provider=provider or error.provider,
        status_code=error.status,
        retry_after=error.retry_after,
        chain_broken=errors.is_chain_broken(error),
        context_overflow=error.kind is ErrorKind.CONTEXT_OVERFLOW,
        context_max=error.context_max,
        byte_limit=error.status == _TOO_LARGE or (error.code or "").lower() in _BYTE_LIMIT_CODES,
    )
    if error.replay_fault is not None:
        # The provider's message names internal items, which mean nothing to users.
        return msgspec.structs.replace(plain, message=_MISMATCH, detail=HISTORY_MISMATCH)
    return plain


_UNUSABLE_KINDS: Mapping[Unusable | None, ErrorKind] = {
    None: ErrorKind.CONFIG,
    Unusable.UNKNOWN: ErrorKind.CONFIG,
    Unusable.DISABLED: ErrorKind.CONFIG,
    Unusable.PROVIDER_DISABLED: ErrorKind.PROVIDER_DISABLED,
    Unusable.MISSING_API_KEY: ErrorKind.MISSING_KEY,
    Unusable.USER_API_KEY_REQUIRED: ErrorKind.MISSING_KEY,
}


def _of_own_error(failure: BaseException, provider: str | None, hide: Hide) -> Classified | None:
    """Classify errors that this program raises on purpose or knows by type. Their texts are written for users."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        failure = TransportError(TransportFault.CERTIFICATE, str(failure))
    if isinstance(failure, TransportError):
        return _of_provider(errors.from_transport(provider or "The AI provider", failure, hide=hide), provider)
    if isinstance(failure, DeadlineExceeded):
        return Classified(kind=ErrorKind.TIMEOUT, message=_TOOK_TOO_LONG, retryable=False, provider=provider)
    if isinstance(failure, PromptInvalid):
        return Classified(
            kind=ErrorKind.GENERIC, message=_MISMATCH, retryable=False, detail=HISTORY_MISMATCH, provider=provider
        )
    kind: ErrorKind
    if isinstance(failure, ModelUnusable | NoDefaultModel):
        kind = _UNUSABLE_KINDS[failure.reason]
    elif isinstance(failure, SpendLimitReached):
        kind = ErrorKind.USAGE_LIMIT
    elif isinstance(failure, SecretsError):
        kind = ErrorKind.CONFIG
    elif isinstance(failure, ChatError):
        kind = ErrorKind.GENERIC
    else:
        return None
    return Classified(kind=kind, message=str(failure), retryable=False, provider=provider)


def _of_unknown(failure: BaseException, provider: str | None, *, now: datetime | None, hide: Hide) -> Classified:
    verdict = library_errors.judge(failure, now=now)
    name = provider or verdict.guessed_provider
    sentence = _MESSAGES[verdict.kind] if verdict.description is None else _DESCRIPTIONS[verdict.description]
    detail = (
        HISTORY_MISMATCH
        if verdict.description is Description.MISMATCH
        else error_bodies.clean_detail(verdict.detail, hide)
    )
    found = Classified(
        kind=verdict.kind,
        message=_format_message(sentence, name),
        retryable=verdict.retryable,
        detail=detail,
        provider=name,
        status_code=verdict.status,
        retry_after=verdict.retry_after,
        chain_broken=verdict.chain_broken,
        context_overflow=verdict.kind is ErrorKind.CONTEXT_OVERFLOW,
    )
    if verdict.retry_after is not None and verdict.retry_after > MAX_RETRY_AFTER:
        return without_retry(found, now=now or datetime.now(UTC))
    return found
