"""Errors of model calls, and the table that maps a provider's error response to a `ProviderError`.

LlmError
├── TransportError    no answer, or an incomplete one; `reason` says how the connection failed
├── EventTooLarge     a server-sent event above the size limit
├── CallFailed        a call ended with an error; `error` is the `ProviderError`
└── NoObject          `generate_object` got an answer that is not the requested object

Only this package reads status codes; other packages use `kind` and `retryable` of the `ProviderError`. Every text for
users passes `hide`, because providers often quote the key that they refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

from rookery.llm import error_bodies
from rookery.llm.error_bodies import Hide
from rookery.llm.types import ErrorKind, FinishReason, ProviderError, ReplayFault, Usage
from rookery.telemetry.redaction import hide_secrets

# A provider that requests a longer delay ends the turn with an error.
MAX_RETRY_AFTER = timedelta(seconds=600)
_MAX_CODE = 100
_NO_HEADERS: Mapping[str, str] = {}


class LlmError(Exception):
    """Base class of all exceptions that this package raises on purpose."""


class TransportFault(StrEnum):
    """The fault of a connection."""

    CONNECT = "connect"
    CERTIFICATE = "certificate"
    WRITE = "write"
    CUT = "cut"
    REQUEST = "request"


class TransportError(LlmError):
    """Raised when there is no answer or only a part of it. The text never contains headers, userinfo or a query."""

    def __init__(self, reason: TransportFault, detail: str) -> None:
        self.reason = reason
        self.detail = error_bodies.bare_urls(detail)
        super().__init__(self.detail)


class EventTooLarge(LlmError):
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        super().__init__(f"A server-sent event is larger than {max_bytes} bytes.")


class CallFailed(LlmError):
    """Raised when a call ends with an error. `usage` is the reported usage of all tries."""

    def __init__(self, error: ProviderError, usage: Usage) -> None:
        self.error = error
        self.usage = usage
        super().__init__(error.message)


class NoObject(LlmError):
    """Raised when neither of two answers is the requested object. `usage` is the usage of both."""

    def __init__(self, raw_text: str, usage: Usage, *, finish_reason: FinishReason) -> None:
        self.raw_text = raw_text
        self.usage = usage
        self.finish_reason = finish_reason
        super().__init__(f"The model did not answer with the requested object (finish reason: {finish_reason}).")


# The table


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table. It matches by status, code or words; codes and words are in lower case.

    The words do not match a response with a status in `unless_statuses`. With `own_text`, the provider's text is not
    searched.
    """

    kind: ErrorKind
    retry: bool
    message: str
    statuses: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    code_parts: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    unless_statuses: frozenset[int] = frozenset()
    own_text: bool = False

    def has_code(self, codes: Iterable[str]) -> bool:
        return any(code in self.codes or any(part in code for part in self.code_parts) for code in codes)

    def matches(self, status: int | None, text: str, own: str) -> bool:
        if status in self.statuses:
            return True
        if status in self.unless_statuses:
            return False
        searched = own if self.own_text else text
        return any(words in searched for words in self.texts) or (
            self.pattern is not None and self.pattern.search(searched) is not None
        )


def _statuses(*statuses: int) -> frozenset[int]:
    return frozenset(statuses)


def _codes(*codes: str) -> frozenset[str]:
    return frozenset(codes)


CHAIN_BROKEN = Rule(
    kind=ErrorKind.GENERIC,
    retry=True,
    message="{provider} no longer knows the answer that this request builds on. Try again.",
    codes=_codes("previous_response_not_found"),
    texts=("previous_response_not_found",),
    pattern=re.compile(r"\A(?=.*previous response with id)(?=.*not found)", re.DOTALL),
)
CLOSED_EARLY = Rule(
    kind=ErrorKind.TIMEOUT,
    retry=True,
    message="The connection to {provider} broke before the answer was complete. Try again.",
    texts=("stream closed before", "stream ended before"),
)
_OVERLOADED = Rule(
    kind=ErrorKind.OVERLOADED,
    retry=True,
    message="{provider} is overloaded. Try again in a moment.",
    statuses=_statuses(529),
    codes=_codes("overloaded_error"),
    texts=("overloaded",),
)
_NO_CREDIT = "The account at {provider} has no credit or quota left. Check its billing, or use another key."
_USAGE = Rule(
    kind=ErrorKind.USAGE_LIMIT,
    retry=False,
    message=_NO_CREDIT,
    statuses=_statuses(402),
    codes=_codes("insufficient_quota", "billing_error"),
    texts=("insufficient_quota", "ai budget of"),
)
# A 429 that mentions a quota is a rate limit, because several providers call their requests per minute a quota.
_USAGE_WORDS = Rule(
    kind=ErrorKind.USAGE_LIMIT,
    retry=False,
    message=_NO_CREDIT,
    texts=("quota", "billing", "payment required"),
    unless_statuses=_statuses(429),
)
_AUTH = Rule(
    kind=ErrorKind.AUTH,
    retry=False,
    message="{provider} did not accept the API key. Check the key of this provider.",
    statuses=_statuses(401),
    codes=_codes("authentication_error", "invalid_api_key"),
    texts=("authentication", "unauthorized", "invalid api key", "invalid_api_key"),
)
_OVERFLOW = Rule(
    kind=ErrorKind.CONTEXT_OVERFLOW,
    retry=False,
    message="The chat is longer than this model can read at once. Compact it, or use a model with a larger window.",
    statuses=_statuses(413),
    codes=_codes(
        "context_length_exceeded",
        "context_exceeded",
        "request_too_large",
        "exceed_context_size_error",
        "string_too_long",
    ),
    texts=(
        *("context length exceeded", "context_length_exceeded", "context_exceeded", "maximum context length"),
        *("prompt is too long", "input is too long", "exceed context limit", "exceeds the context window"),
        *("exceeds the available context size", "maximum prompt length", "exceeds the maximum number of tokens"),
        *("exceed the context window", "reduce the length of the messages"),
    ),
)
_NO_MODEL = Rule(
    kind=ErrorKind.CONFIG,
    retry=False,
    message="{provider} does not offer this model. Check the model's name and whether the key may use it.",
    codes=_codes("model_not_found"),
    texts=("invalid model", "model not found", "model_not_found", "unsupported model"),
)
_REJECTED = Rule(
    kind=ErrorKind.CONFIG,
    retry=False,
    message="{provider} did not accept the request. Check the settings of this model and provider.",
    texts=(
        *("malformed config", "unable to locate credentials", "could not resolve credentials"),
        *("default credentials were not found", "could not find default credentials"),
    ),
)
_NOT_FOUND = Rule(
    kind=ErrorKind.CONFIG,
    retry=False,
    message="{provider} did not find the requested resource. Check the provider's base URL and the model's name.",
)
_FORBIDDEN = Rule(
    kind=ErrorKind.AUTH,
    retry=False,
    message="{provider} does not allow this with the API key in use. Check what the key may do.",
    statuses=_statuses(403),
    codes=_codes("permission_error"),
    texts=("forbidden",),
)
_RATE_LIMIT = Rule(
    kind=ErrorKind.RATE_LIMIT,
    retry=True,
    message="{provider} limits the rate of requests. Try again later, or raise the limit there.",
    statuses=_statuses(429),
    codes=_codes("rate_limit_error", "rate_limit_exceeded"),
    texts=("rate limit", "rate_limit", "rate-limited", "too many requests"),
    own_text=True,
)
_DISABLED = Rule(
    kind=ErrorKind.PROVIDER_DISABLED,
    retry=False,
    message="{provider} is switched off where this request was sent. Ask an administrator, or use another provider.",
    codes=_codes("provider_disabled"),
    texts=("provider_disabled",),
)
_POLICY = Rule(
    kind=ErrorKind.CONTENT_FILTER,
    retry=False,
    message="{provider} declined the request because of its content policy. Change the request and send it again.",
    codes=_codes("content_filter", "content_policy_violation", "responsibleaipolicyviolation"),
    code_parts=("_policy",),
)
_UNREACHABLE = Rule(
    kind=ErrorKind.TIMEOUT,
    retry=True,
    message="{provider} could not be reached, or did not answer in time. Try again.",
    statuses=_statuses(408, 502, 503, 504),
    codes=_codes("timeout_error"),
)
_SERVER = Rule(
    kind=ErrorKind.GENERIC,
    retry=True,
    message="{provider} failed to answer because of a fault on its side. Try again.",
    statuses=_statuses(500),
    codes=_codes("api_error", "server_error", "internal_error"),
    texts=("server error",),
    own_text=True,
)
_REDIRECT = Rule(
    kind=ErrorKind.GENERIC,
    retry=False,
    message="{provider} answered with a redirect, which is not followed. Check the base URL of this provider.",
)
_OTHER = Rule(
    kind=ErrorKind.GENERIC,
    retry=False,
    message="{provider} sent an unexpected answer. Check the detail and the base URL.",
)
_INVALID_CALL = Rule(
    kind=ErrorKind.INVALID_TOOL_CALL,
    retry=False,
    message="The model made an invalid tool call, which {provider} refused. Try again, or use another model.",
    codes=_codes("tool_use_failed"),
)
_REPLAY = Rule(
    kind=ErrorKind.GENERIC,
    retry=False,
    message="{provider} does not accept the history of this chat. Edit an earlier message, or use another model.",
)

# Names and numbers of RFC 9113. After one of these resets by the peer, a retry may succeed; other resets are permanent.
_PASSING_RESETS = r"(?:no_error|internal_error|refused_stream|cancel|enhance_your_calm)"
_PASSING_NUMBERS = rf"(?:errorcodes\.)?(?:{_PASSING_RESETS}|0|2|7|8|11), remote_reset:true"
# A reset of an HTTP/2 stream, as the libraries of Go and Python print it. Its code decides, even if the text mentions a
# timeout.
_LASTING_RESET = msgspec.structs.replace(
    _OTHER,
    pattern=re.compile(
        rf"stream error: stream id \d+; (?!{_PASSING_RESETS}\W+received from peer)"
        rf"|<streamreset stream_id:\d+, error_code:(?!{_PASSING_NUMBERS})"
    ),
)
# These words do not count if the request is invalid: such responses quote it, and tools often have a parameter
# "timeout".
_UNREACHABLE_WORDS = msgspec.structs.replace(
    _UNREACHABLE,
    statuses=frozenset(),
    codes=frozenset(),
    pattern=re.compile(
        r"timeout|timed out|unavailable|connection reset|connection refused|\beof\b|broken pipe|bad gateway|client conn"
        r"|goaway|http2 stream closed|http2: stream closed|closed network connection"
        rf"|\b{_PASSING_RESETS}\W+received from peer|error_code:{_PASSING_NUMBERS}"
    ),
    unless_statuses=_statuses(400, 404, 422),
)

# The first match wins; a code precedes all statuses and words. Configuration errors are before more general rows,
# because some servers report a missing model with 403, 429 or 503.
_BEFORE_CODES: tuple[Rule, ...] = (CHAIN_BROKEN, CLOSED_EARLY)
_RULES: tuple[Rule, ...] = (
    _OVERLOADED,
    _USAGE,
    _USAGE_WORDS,
    _AUTH,
    _OVERFLOW,
    _NO_MODEL,
    _REJECTED,
    _FORBIDDEN,
    _RATE_LIMIT,
    _DISABLED,
    _POLICY,
    _UNREACHABLE,
    _LASTING_RESET,
    _UNREACHABLE_WORDS,
    _SERVER,
)


def find_rule(
    status: int | None, codes: Iterable[str], *, text: str, own: str | None = None, is_transport: bool = False
) -> Rule | None:
    """Return the row for a failure; None if no row matches. Codes and texts are in lower case.

    `own` is the text without the quoted response of the provider. With `is_transport`, the type of the exception shows
    that the connection broke.
    """
    own, named = text if own is None else own, tuple(codes)
    for rule in _BEFORE_CODES:
        if rule.has_code(named) or rule.matches(status, text, own):
            return rule
    for rule in _RULES:
        if rule.has_code(named):
            return rule
    for rule in _RULES:
        if rule.matches(status, text, own) or (is_transport and rule is _UNREACHABLE_WORDS):
            return rule
    return None


def _by_status(status: int | None) -> Rule:
    """Return the row for a status, for responses without a known code or word."""
    match status:
        case 400 | 422:
            return _REJECTED
        case 404:
            return _NOT_FOUND
        case 409:
            return _UNREACHABLE
        case int() if 300 <= status < 400:
            return _REDIRECT
        case int() if 500 <= status < 600:
            return _SERVER
    return _OTHER


def classify(
    provider: str,
    status: int | None = None,
    *,
    codes: Iterable[object] = (),
    text: str = "",
    headers: Mapping[str, str] = _NO_HEADERS,
    now: datetime | None = None,
    failed_generation: str | None = None,
    hide: Hide = hide_secrets,
) -> ProviderError:
    """Classify an error response by its status, its codes (most specific first) and its text.

    Errors inside a stream have no status. `headers` have lowercase names. `provider` is the display name for the
    message.
    """
    named = tuple(code for code in codes if isinstance(code, str) and code)
    detail = text
    if wrapped := error_bodies.unwrap(text):
        # A gateway quotes the response of another server. The status of the gateway is used if it is an error.
        status = wrapped.status if status in (None, 200) else status
        named, detail = (*named, *wrapped.codes), wrapped.text or text
    folded = tuple(code.lower() for code in named)
    lowered = text.lower()
    fault = find_replay_fault(status, folded, lowered)
    rule = _rule(fault) or find_rule(status, folded, text=lowered) or _by_status(status)
    used, maximum = error_bodies.find_context_numbers(text) if rule is _OVERFLOW else (None, None)
    retryable = {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower(), rule.retry)
    retry_after = error_bodies.parse_retry_after(headers, now)
    if retry_after is not None and retry_after > MAX_RETRY_AFTER:
        retryable = False
        until = (now or datetime.now(UTC)) + retry_after
        detail = f"Possible again at {until:%Y-%m-%d %H:%M} UTC. {detail}"
    return ProviderError(
        kind=rule.kind,
        message=rule.message.format(provider=provider),
        retryable=retryable,
        provider=provider,
        detail=error_bodies.clean_detail(detail, hide),
        status=status,
        code=error_bodies.clean_detail(named[0], hide, max_chars=_MAX_CODE) if named else None,
        retry_after=retry_after,
        request_id=error_bodies.find_request_id(headers, hide),
        context_used=used,
        context_max=maximum,
        replay_fault=fault,
        failed_generation=failed_generation,
    )


def _rule(fault: ReplayFault | None) -> Rule | None:
    if fault is None:
        return None
    return _INVALID_CALL if fault is ReplayFault.INVALID_CALL else _REPLAY


def is_chain_broken(error: ProviderError) -> bool:
    """Return whether the provider no longer has the answer that the request refers to. A full request helps."""
    said = (error.detail or "").lower()
    return CHAIN_BROKEN.has_code(((error.code or "").lower(),)) or CHAIN_BROKEN.matches(None, said, said)


_TRANSPORT_RULES: Mapping[TransportFault, Rule] = {
    TransportFault.CONNECT: _UNREACHABLE,
    TransportFault.WRITE: _UNREACHABLE,
    TransportFault.CUT: CLOSED_EARLY,
    # A retry does not help for the following two.
    TransportFault.CERTIFICATE: Rule(
        kind=ErrorKind.CONFIG,
        retry=False,
        message="The certificate of {provider} could not be verified. Check its base URL and the trusted authorities.",
    ),
    TransportFault.REQUEST: Rule(
        kind=ErrorKind.CONFIG,
        retry=False,
        message="No request could be made for {provider}. Check its base URL, its headers and its key.",
    ),
}


def from_transport(provider: str, error: TransportError, *, hide: Hide = hide_secrets) -> ProviderError:
    """Return the error for a connection that broke or could not be opened."""
    return make_error(provider, _TRANSPORT_RULES[error.reason], error.detail, hide=hide)


def truncated(provider: str) -> ProviderError:
    """Return the error for a stream that was closed before the answer was complete."""
    return make_error(provider, _TRANSPORT_RULES[TransportFault.CUT], "stream closed before the response completed")


def unreadable(provider: str, detail: str, *, hide: Hide = hide_secrets) -> ProviderError:
    """Return the error for a response with status 200 in an unknown format.

    It is retryable, because it is often an HTML page of a gateway.
    """
    rule = Rule(
        kind=ErrorKind.GENERIC,
        retry=True,
        message="{provider} sent an answer that cannot be read. Try again; if it fails again, check the base URL.",
    )
    return make_error(provider, rule, detail, hide=hide)


def make_error(provider: str, rule: Rule, detail: str, *, hide: Hide = hide_secrets) -> ProviderError:
    return ProviderError(
        kind=rule.kind,
        message=rule.message.format(provider=provider),
        retryable=rule.retry,
        provider=provider,
        detail=error_bodies.clean_detail(detail, hide),
    )


def from_response(
    provider: str,
    status: int,
    *,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime | None = None,
    hide: Hide = hide_secrets,
) -> ProviderError:
    """Return the error for an error response. Its body may be JSON, a line of text, or an HTML page."""
    codes, text = error_bodies.read_body(body, headers.get("content-type", ""))
    if not text and 300 <= status < 400:
        text = "Location: " + error_bodies.bare_urls(headers.get("location", "unknown"))
    return classify(
        provider,
        status,
        codes=codes,
        text=text,
        headers=headers,
        now=now,
        failed_generation=error_bodies.find_failed_generation(body),
        hide=hide,
    )


# Refusals of the replayed history. Most providers report them only in their text.

_FAULT_CODES = {
    "invalid_encrypted_content": ReplayFault.UNPROVEN_REASONING,
    "tool_use_failed": ReplayFault.INVALID_CALL,
}
_FAULT_TEXTS: tuple[tuple[re.Pattern[str], ReplayFault], ...] = (
    (re.compile(r"bound to a different conversation"), ReplayFault.STALE_THINKING),
    (
        re.compile(
            r"\A(?=.*signature)(?=.*thinking)|invalid_encrypted_content|item with id .{1,200}not found"
            r"|without its required '?reasoning'? item|without its required following item",
            re.DOTALL,
        ),
        ReplayFault.UNPROVEN_REASONING,
    ),
    (
        re.compile(
            r"no tool (output|call) found for (function|custom tool|computer|tool) call"
            r"|tool_use ids were found without tool_result"
            r"|tool_use ids must be unique|multiple tool_result blocks with id|unexpected tool_use_id found"
            r"|duplicate item found with id|duplicate (tool|call|item)\w* ids?"
            r"|tool_calls'? must be followed by tool messages|'?tool'? must be a response to a prece"
        ),
        ReplayFault.BROKEN_PAIRS,
    ),
    # An item that the API has sent itself, with a field that it does not accept in a request.
    (re.compile(r"unknown parameter: '?input\[\d+\]"), ReplayFault.UNKNOWN_ITEM),
)
# 404 means that a stored item is gone. Errors inside a stream have no status or 200.
_FAULT_STATUSES = frozenset({None, 200, 400, 404})


def find_replay_fault(status: int | None, codes: Iterable[str], text: str) -> ReplayFault | None:
    """Return the fault that this refusal reports; None if it is not about the replayed history."""
    if status not in _FAULT_STATUSES:
        return None
    for code in codes:
        if code in _FAULT_CODES:
            return _FAULT_CODES[code]
    # Some providers quote names with backquotes, and others do not.
    plain = text.replace("`", "").lower()
    return next((fault for pattern, fault in _FAULT_TEXTS if pattern.search(plain)), None)
