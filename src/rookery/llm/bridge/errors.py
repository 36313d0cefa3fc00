"""Maps exceptions of pydantic-ai to `ProviderError`, with the table that all wires use.

The library's categories count as codes. They cover cases that the table does not know, such as a provider's own text
for a prompt that is too long, or a gRPC status.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
from pydantic_ai import exceptions as library

from rookery.llm import error_bodies, errors
from rookery.llm.error_bodies import Hide
from rookery.llm.errors import Rule, TransportError, TransportFault
from rookery.llm.types import ErrorKind, ProviderError

# The first match wins, so subclasses are first.
_CATEGORY_CODES: tuple[tuple[type[Exception], str], ...] = (
    (library.ModelQuotaExceededError, "billing_error"),
    (library.ModelContextWindowExceededError, "context_length_exceeded"),
    (library.ModelOverloadedError, "overloaded_error"),
    (library.ModelRateLimitError, "rate_limit_error"),
    (library.ModelAuthenticationError, "authentication_error"),
    (library.ModelNotFoundError, "model_not_found"),
    (library.ModelUnavailableError, "timeout_error"),
    (library.ModelServerError, "server_error"),
    (library.ContentFilterError, "content_filter"),
)
_INVALID_REQUEST = Rule(
    kind=ErrorKind.CONFIG,
    retry=False,
    message="The request cannot be made for {provider}. Check the settings of this model and provider.",
)
_FAILED = Rule(
    kind=ErrorKind.GENERIC,
    retry=True,
    message="{provider} failed to answer. Try again; if it fails again, check the settings of this provider.",
)
_NO_CREDENTIALS = Rule(
    kind=ErrorKind.AUTH,
    retry=False,
    message="No usable credentials for {provider}. Set a key on this provider, or sign the machine in.",
)
# These exceptions are bugs of a package, so a retry does not help.
_FAULTS = (TypeError, AttributeError, LookupError, AssertionError, ValueError)
_CONNECTION_WORDS = ("timeout", "connect", "transport", "protocolerror", "streamerror")
# The packages for providers have no common exception classes. These are words in the usual names of such classes.
_SETTING_WORDS = ("configuration", "paramvalidation", "endpointresolution")
_CREDENTIAL_WORDS = ("credential", "refresherror", "noregion", "token", "ssoerror")


def explain(error: BaseException, *, provider: str, now: datetime, hide: Hide) -> ProviderError:
    """Return the error for an exception of the library. `hide` removes secrets from its texts."""
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return errors.from_transport(provider, TransportError(TransportFault.CERTIFICATE, str(cause)), hide=hide)
    match error:
        case library.ModelHTTPError():
            return _from_api_error(error, error.status_code, provider=provider, now=now, hide=hide)
        case library.ModelRequestTimeout() | library.ModelTimeoutError():
            return _broken(TransportFault.CONNECT, error, provider=provider, hide=hide)
        case library.ModelConnectionError():
            is_sent = error.phase == "read"
            return _broken(
                TransportFault.CUT if is_sent else TransportFault.CONNECT, error, provider=provider, hide=hide
            )
        case library.ModelAPIError():
            return _from_api_error(error, None, provider=provider, now=now, hide=hide)
        case library.ContentFilterError():
            return errors.classify(provider, codes=("content_filter",), text=error.message, hide=hide)
        case library.UnexpectedModelBehavior():
            return errors.unreadable(provider, error.message, hide=hide)
        case library.UserError() | NotImplementedError():
            return errors.make_error(provider, _INVALID_REQUEST, str(error), hide=hide)
        case asyncio.CancelledError():
            cancelled = TransportError(TransportFault.CUT, "The connection was cancelled.")
            return errors.from_transport(provider, cancelled, hide=hide)
        case TimeoutError() | OSError():
            return _broken(TransportFault.CONNECT, error, provider=provider, hide=hide)
    return _from_unknown(error, provider=provider, hide=hide)


def _from_api_error(
    error: library.ModelAPIError, status: int | None, *, provider: str, now: datetime, hide: Hide
) -> ProviderError:
    said_codes, text = _read(error.body)
    codes = tuple(
        code
        for code in (error.provider_error_code, error.provider_error_type, *said_codes)
        if isinstance(code, str) and code
    )
    category = _category_code(error)
    rejected = status is None and category is None and isinstance(error, library.ModelRequestRejectedError)
    hint = error.hint if isinstance(error, library.ModelHTTPError) else None
    classified = errors.classify(
        provider,
        400 if rejected else status,
        codes=(*codes, category),
        text=" ".join(filter(None, (text or (None if error.body else _bare_message(error)), hint))),
        headers=_headers(error),
        now=now,
        hide=hide,
    )
    if status is None and category is None and not codes and not rejected and not _is_known(classified):
        # There is no status, code, category or known word: the stream broke, or the answer is not JSON.
        return errors.unreadable(provider, text or error.message, hide=hide)
    changed = {"status": status} if rejected else {}
    return msgspec.structs.replace(classified, code=classified.code if codes else None, **changed)


def _is_known(error: ProviderError) -> bool:
    return error.kind is not ErrorKind.GENERIC or error.retryable or error.replay_fault is not None


def _category_code(error: Exception) -> str | None:
    return next((code for kind, code in _CATEGORY_CODES if isinstance(error, kind)), None)


def _bare_message(error: library.ModelAPIError) -> str:
    """Return the message; empty if it contains only the status and the model, which are shown anyway."""
    return "" if isinstance(error, library.ModelHTTPError) else error.message


def _read(body: object) -> tuple[tuple[object, ...], str]:
    """Return the codes and the text of a body, which is parsed, raw, or in the format of the AWS package."""
    if isinstance(body, str | bytes):
        return error_bodies.read_body(body.encode(errors="replace") if isinstance(body, str) else body, "")
    if not isinstance(body, Mapping):
        return (), ""
    cloud: Any = body.get("Error")
    if isinstance(cloud, Mapping):
        return (cloud.get("Code"),), str(cloud.get("Message") or "")
    return error_bodies.read_envelope(body)


def _headers(error: library.ModelAPIError) -> Mapping[str, str]:
    headers = dict(getattr(error, "headers", None) or {})
    if error.retry_after is not None and "retry-after" not in headers and "retry-after-ms" not in headers:
        headers["retry-after"] = str(error.retry_after)
    return headers


def _broken(reason: TransportFault, error: BaseException, *, provider: str, hide: Hide) -> ProviderError:
    text = str(error) or type(error).__name__
    return errors.from_transport(provider, TransportError(reason, text), hide=hide)


def _from_unknown(error: BaseException, *, provider: str, hide: Hide) -> ProviderError:
    """Return the error for an exception of a provider's package, by the name of its class."""
    names = " ".join(cls.__name__.lower() for cls in type(error).__mro__)
    detail = f"{type(error).__name__}: {error}"
    if any(word in names for word in _CREDENTIAL_WORDS):
        return errors.make_error(provider, _NO_CREDENTIALS, detail, hide=hide)
    if any(word in names for word in _SETTING_WORDS):
        return errors.make_error(provider, _INVALID_REQUEST, detail, hide=hide)
    if any(word in names for word in _CONNECTION_WORDS):
        return _broken(TransportFault.CUT, error, provider=provider, hide=hide)
    rule = msgspec.structs.replace(_FAILED, retry=not isinstance(error, _FAULTS))
    return errors.make_error(provider, rule, detail, hide=hide)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
