"""What can go wrong with a model call, and the one table that turns what a provider said into a `ProviderError`.

LlmError
├── TransportError    no answer, or only a piece of it: `reason` says what happened to the connection
├── EventTooLarge     one server-sent event beyond all reason
├── CallFailed        `generate` met an error; the `ProviderError` is in `error`
└── NoObject          `generate_object` got an answer that is not the object it asked for

Nobody above `llm/` reads status codes: kinds and the retry flag are decided here. Whatever is shown to people passes
`hide`, because providers like to repeat the key they refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

from rookery.llm import refusals
from rookery.llm.refusals import Hide
from rookery.llm.types import ErrorKind, FinishReason, ProviderError, ReplayFault, Usage
from rookery.redaction import hide_secrets

# Longer waits are not made: a person can decide better what to do meanwhile (models.md, "Retry-After").
MAX_RETRY_AFTER = timedelta(seconds=600)
_MAX_CODE = 100
_NO_HEADERS: Mapping[str, str] = {}


class LlmError(Exception):
    """Base of everything this package raises on purpose."""


class Broken(StrEnum):
    """What happened to a connection."""

    CONNECT = "connect"
    CERTIFICATE = "certificate"
    WRITE = "write"
    CUT = "cut"
    REQUEST = "request"


class TransportError(LlmError):
    """No answer, or only a piece of it. The text never holds headers, userinfo or a query."""

    def __init__(self, reason: Broken, detail: str) -> None:
        self.reason = reason
        self.detail = refusals.bare_urls(detail)
        super().__init__(self.detail)


class EventTooLarge(LlmError):
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        super().__init__(f"A server-sent event is larger than {max_bytes} bytes.")


class CallFailed(LlmError):
    """A call that `generate` drained ended in an error. `usage` is what was reported until then, all tries together."""

    def __init__(self, error: ProviderError, usage: Usage) -> None:
        self.error = error
        self.usage = usage
        super().__init__(error.message)


class NoObject(LlmError):
    """The model answered twice, and neither answer was the object. `usage` is that of both tries."""

    def __init__(self, raw_text: str, usage: Usage, *, finish_reason: FinishReason) -> None:
        self.raw_text = raw_text
        self.usage = usage
        self.finish_reason = finish_reason
        super().__init__(
            f"The model did not answer with the object it was asked for (it stopped with {finish_reason})."
        )


# The table


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One row: matches by any of status, code or text. Codes and texts are compared in lower case."""

    kind: ErrorKind
    retry: bool
    message: str
    statuses: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    code_parts: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    unless_status: int | None = None

    def matches(self, status: int | None, codes: tuple[str, ...], text: str) -> bool:
        if self.unless_status is not None and status == self.unless_status:
            return False
        return (
            status in self.statuses
            or any(code in self.codes for code in codes)
            or any(part in code for part in self.code_parts for code in codes)
            or any(words in text for words in self.texts)
        )


def _codes(*codes: str) -> frozenset[str]:
    return frozenset(codes)


_OVERLOADED = Rule(
    kind=ErrorKind.OVERLOADED,
    retry=True,
    message="{provider} is overloaded. Try again in a moment.",
    statuses=frozenset({529}),
    codes=_codes("overloaded_error"),
    texts=("overloaded",),
)
_NO_CREDIT = "The account at {provider} has no credit or quota left. Check its billing, or use another key."
_USAGE_CODES = Rule(
    kind=ErrorKind.USAGE_LIMIT,
    retry=False,
    message=_NO_CREDIT,
    statuses=frozenset({402}),
    codes=_codes("insufficient_quota", "billing_error"),
)
# A 429 that talks of quota is a rate limit: several providers call their requests per minute so.
_USAGE_TEXTS = Rule(
    kind=ErrorKind.USAGE_LIMIT,
    retry=False,
    message=_NO_CREDIT,
    texts=("quota", "billing", "payment required"),
    unless_status=429,
)
_OVERFLOW = Rule(
    kind=ErrorKind.CONTEXT_OVERFLOW,
    retry=False,
    message="The chat is longer than this model can read at once. Compact it, or use a model with a larger window.",
    codes=_codes("context_length_exceeded"),
    texts=("prompt is too long", "maximum context length", "input is too long"),
)
_AUTH = Rule(
    kind=ErrorKind.AUTH,
    retry=False,
    message="{provider} did not accept the API key. Check the key of this provider.",
    statuses=frozenset({401}),
    codes=_codes("authentication_error", "invalid_api_key"),
    texts=("unauthorized",),
)
_NO_MODEL = Rule(
    kind=ErrorKind.CONFIG,
    retry=False,
    message="{provider} does not offer this model. Check the model's name and whether the key may use it.",
    codes=_codes("model_not_found"),
    texts=("invalid model", "unsupported model"),
)
_FORBIDDEN = Rule(
    kind=ErrorKind.AUTH,
    retry=False,
    message="{provider} does not allow this with the API key in use. Check what the key may do.",
    statuses=frozenset({403}),
    codes=_codes("permission_error"),
    texts=("forbidden",),
)
_RATE_LIMIT = Rule(
    kind=ErrorKind.RATE_LIMIT,
    retry=True,
    message="{provider} limits how often it can be asked. Try again later, or raise the limit there.",
    statuses=frozenset({429}),
    codes=_codes("rate_limit_error", "rate_limit_exceeded"),
)
_POLICY = Rule(
    kind=ErrorKind.CONTENT_FILTER,
    retry=False,
    message="{provider} declined the request because of its content policy. Change the request and send it again.",
    codes=_codes("content_filter", "content_policy_violation", "responsibleaipolicyviolation"),
    code_parts=("_policy",),
)
_REJECTED = Rule(
    kind=ErrorKind.CONFIG,
    retry=False,
    message="{provider} did not accept the request. Check the settings of this model and provider.",
    statuses=frozenset({400, 404, 413, 422}),
)
_UNREACHABLE = Rule(
    kind=ErrorKind.TIMEOUT,
    retry=True,
    message="{provider} could not be reached, or did not answer in time. Try again.",
    statuses=frozenset({408, 409, 502, 503, 504}),
    codes=_codes("timeout_error"),
)
_SERVER = Rule(
    kind=ErrorKind.GENERIC,
    retry=True,
    message="{provider} failed to answer because of a fault on its side. Try again.",
    statuses=frozenset(range(500, 600)),
    codes=_codes("api_error", "server_error", "internal_error"),
)
_REDIRECT = Rule(
    kind=ErrorKind.GENERIC,
    retry=False,
    message="{provider} answered with a redirect, which is not followed. Check the base URL of this provider.",
    statuses=frozenset(range(300, 400)),
)
_OTHER = Rule(
    kind=ErrorKind.GENERIC,
    retry=False,
    message="{provider} answered in a way that is not understood. Look at the detail, and at the base URL.",
)
_REPLAY = Rule(
    kind=ErrorKind.GENERIC,
    retry=False,
    message="{provider} does not accept the history of this chat. Edit an earlier message, or use another model.",
)

# First match wins. "400 otherwise" stands behind every row that a code or a text decides, because those know more.
RULES: tuple[Rule, ...] = (
    _AUTH,
    _NO_MODEL,
    _FORBIDDEN,
    _RATE_LIMIT,
    _POLICY,
    _REJECTED,
    _UNREACHABLE,
    _SERVER,
    _REDIRECT,
)
_BEFORE_REPLAY: tuple[Rule, ...] = (_OVERLOADED, _USAGE_CODES, _USAGE_TEXTS, _OVERFLOW)


# Replay faults (models.md, "Replay ladder"). Backquotes are taken out of the text first.
_FAULT_CODES = {"invalid_encrypted_content": ReplayFault.UNPROVEN_REASONING}
_FAULT_TEXTS: tuple[tuple[re.Pattern[str], ReplayFault], ...] = (
    (re.compile(r"bound to a different conversation"), ReplayFault.STALE_THINKING),
    (
        re.compile(
            r"signature.*thinking|thinking.*signature|invalid_encrypted_content|item with id .*not found"
            r"|without its required '?reasoning'? item|without its required following item",
            re.DOTALL,
        ),
        ReplayFault.UNPROVEN_REASONING,
    ),
    (
        re.compile(
            r"no tool (output|call) found for (function|custom tool|computer) call"
            r"|tool_use ids were found without tool_result"
            r"|tool_use ids must be unique|multiple tool_result blocks with id|unexpected tool_use_id found"
            r"|duplicate item found with id|duplicate (tool|call|item)\w* ids?"
            r"|tool_calls'? must be followed by tool messages|'?tool'? must be a response to a prece"
        ),
        ReplayFault.BROKEN_PAIRS,
    ),
)
# 404 because that is how a stored item that is gone is answered; no status and 200 are errors inside a stream.
_FAULT_STATUSES = frozenset({None, 200, 400, 404})


def find_replay_fault(status: int | None, codes: Iterable[str], text: str) -> ReplayFault | None:
    """Which rung of the ladder answers this refusal, if it is about the replayed history at all."""
    if status not in _FAULT_STATUSES:
        return None
    for code in codes:
        if code in _FAULT_CODES:
            return _FAULT_CODES[code]
    plain = text.replace("`", "").lower()
    return next((fault for pattern, fault in _FAULT_TEXTS if pattern.search(plain)), None)


def classify(
    provider: str,
    status: int | None = None,
    *,
    codes: Iterable[object] = (),
    text: str = "",
    headers: Mapping[str, str] = _NO_HEADERS,
    now: datetime | None = None,
    hide: Hide = hide_secrets,
) -> ProviderError:
    """What a refusal means, from its status, its codes (most telling first) and its text.

    Errors inside a stream come here without a status. `headers` have lower-case names. `provider` is how people call
    it: it starts the message.
    """
    named = tuple(code for code in codes if isinstance(code, str) and code)
    folded = tuple(code.lower() for code in named)
    lowered = text.lower()
    fault, rule = _find_rule(status, folded, lowered)
    used, maximum = refusals.find_context_numbers(text) if rule is _OVERFLOW else (None, None)
    detail = text
    retryable = {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower(), rule.retry)
    retry_after = refusals.parse_retry_after(headers, now)
    if retry_after is not None and retry_after > MAX_RETRY_AFTER:
        retryable = False
        until = (now or datetime.now(UTC)) + retry_after
        detail = f"Possible again at {until:%Y-%m-%d %H:%M} UTC. {text}"
    return ProviderError(
        kind=rule.kind,
        message=rule.message.format(provider=provider),
        retryable=retryable,
        provider=provider,
        detail=refusals.clean_detail(detail, hide),
        status=status,
        code=refusals.clean_detail(named[0], hide, max_chars=_MAX_CODE) if named else None,
        retry_after=retry_after,
        request_id=refusals.find_request_id(headers, hide),
        context_used=used,
        context_max=maximum,
        replay_fault=fault,
    )


def _find_rule(status: int | None, codes: tuple[str, ...], text: str) -> tuple[ReplayFault | None, Rule]:
    for rule in _BEFORE_REPLAY:
        if rule.matches(status, codes, text):
            return None, rule
    if fault := find_replay_fault(status, codes, text):
        return fault, _REPLAY
    return None, next((rule for rule in RULES if rule.matches(status, codes, text)), _OTHER)


_TRANSPORT_RULES: Mapping[Broken, Rule] = {
    Broken.CONNECT: _UNREACHABLE,
    Broken.WRITE: _UNREACHABLE,
    Broken.CUT: msgspec.structs.replace(
        _UNREACHABLE, message="The connection to {provider} broke before the answer was complete. Try again."
    ),
    # Nothing of this gets better by itself.
    Broken.CERTIFICATE: Rule(
        kind=ErrorKind.CONFIG,
        retry=False,
        message="The certificate of {provider} could not be verified. Check its base URL and the trusted authorities.",
    ),
    Broken.REQUEST: Rule(
        kind=ErrorKind.CONFIG,
        retry=False,
        message="No request could be made for {provider}. Check its base URL, its headers and its key.",
    ),
}


def from_transport(provider: str, error: TransportError, *, hide: Hide = hide_secrets) -> ProviderError:
    """A connection that could not be made or broke."""
    return made(provider, _TRANSPORT_RULES[error.reason], error.detail, hide=hide)


def truncated(provider: str) -> ProviderError:
    """The stream ended in good order, but before the answer did."""
    return made(provider, _TRANSPORT_RULES[Broken.CUT], "stream closed before the response completed")


def unreadable(provider: str, detail: str, *, hide: Hide = hide_secrets) -> ProviderError:
    """An answer of status 200 that is not what this wire speaks: often a gateway's page, gone at the next try."""
    rule = Rule(
        kind=ErrorKind.GENERIC,
        retry=True,
        message="{provider} sent an answer that cannot be read. Try again; if it stays so, check the base URL.",
    )
    return made(provider, rule, detail, hide=hide)


def made(provider: str, rule: Rule, detail: str, *, hide: Hide = hide_secrets) -> ProviderError:
    return ProviderError(
        kind=rule.kind,
        message=rule.message.format(provider=provider),
        retryable=rule.retry,
        provider=provider,
        detail=refusals.clean_detail(detail, hide),
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
    """A refusal with a body: JSON in one of the usual envelopes, a line of text, or a page that is not shown."""
    codes, text = refusals.read_body(body, headers.get("content-type", ""))
    if not text and 300 <= status < 400:
        text = "Location: " + refusals.bare_urls(headers.get("location", "unknown"))
    return classify(provider, status, codes=codes, text=text, headers=headers, now=now, hide=hide)
