"""What an exception of a library means for a step, from its type, its status, its codes and its words.

Clients of models turn all they expect into `ProviderError`; this is for what they do not expect, and for servers that
only resemble the known ones. Pure, and never surprised: every exception gets a verdict. First match wins.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from rookery.llm import refusals
from rookery.llm.types import ErrorKind

# Of a text or a body; beyond that, nobody wrote it to be read.
MAX_TEXT = 64 * 1024


class Story(StrEnum):
    """What happened, where the kind does not say it."""

    CANCELLED = "cancelled"
    MISMATCH = "mismatch"
    CLOSED_EARLY = "closed_early"
    UNKNOWN = "unknown"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`detail` is not cleaned of secrets yet; it is empty where nothing of it may be shown."""

    kind: ErrorKind
    retryable: bool
    story: Story | None = None
    detail: str = ""
    status: int | None = None
    retry_after: timedelta | None = None
    chain_broken: bool = False
    guessed_provider: str | None = None


def judge(failure: BaseException, *, now: datetime | None = None) -> Verdict:
    """The verdict on one exception. `now` matters only for a Retry-After that is a date."""
    seen = _read(failure, now)
    verdict = _first_match(seen)
    return msgspec.structs.replace(
        verdict,
        detail=_detail(seen, verdict),
        status=seen.status,
        retry_after=seen.retry_after,
        guessed_provider=_guess_provider(seen.text),
    )


def is_chain_broken(codes: Iterable[str], text: str) -> bool:
    """Whether the provider forgot the answer that a request built on. Codes and text are in lower case."""
    forgotten = "previous response with id" in text and "not found" in text
    return forgotten or "previous_response_not_found" in codes or "previous_response_not_found" in text


# What is known of an exception


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """`own` is the exception's text, `said` what the provider said in it; `text` is both, in lower case."""

    own: str
    said: str
    text: str
    status: int | None
    codes: tuple[str, ...]
    retry_after: timedelta | None
    is_transport: bool
    is_cancelled: bool


_WRAPPED = re.compile(r'\b[A-Z]+ "[^"]*": (?P<status>\d{3})\b[^{]*(?P<body>\{.*\})', re.DOTALL)
_STREAM_ID = re.compile(r"\bstream[ _]?id\W*\d+", re.IGNORECASE)
_NAMED_STATUS = re.compile(r"\b(?:status(?:[ _-]?code)?|http(?:/\d(?:\.\d)?)?)\s*[:=]?\s*(\d{3})\b", re.IGNORECASE)
# Not a port, not a piece of a longer number, name or path.
_BARE_STATUS = re.compile(r"(?<![\w:.,/-])(401|403|408|429|500|502|503|504|529)(?![\w/-]|[.,]\w)")


def _read(failure: BaseException, now: datetime | None) -> _Seen:
    own = _text(failure)
    codes, said = _read_body(failure)
    wrapped = _WRAPPED.search(said or own)
    if wrapped is not None:
        inner_codes, inner = refusals.read_body(wrapped["body"].encode("utf-8", "replace"), "")
        codes, said = (*codes, *inner_codes), inner or said
    named = (_attribute(failure, "code"), _attribute(failure, "type"), *codes)
    return _Seen(
        own=own,
        said=said,
        text=f"{own}\n{said}".lower(),
        status=_find_status(failure) or _status_in_text(own, wrapped),
        codes=tuple(code.lower() for code in named if isinstance(code, str) and code),
        retry_after=refusals.parse_retry_after(_headers(failure), now),
        is_transport=_is_transport(failure),
        is_cancelled=isinstance(failure, asyncio.CancelledError),
    )


def _text(failure: BaseException) -> str:
    try:
        return str(failure)[:MAX_TEXT]
    except Exception:
        return type(failure).__name__


def _attribute(holder: object, name: str) -> Any:
    """What libraries put on their exceptions. Some of it is computed, and fails in its own ways."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _read_body(failure: BaseException) -> tuple[tuple[object, ...], str]:
    """Codes and words of a provider's answer, as libraries keep it: parsed, or as it came."""
    body = _attribute(failure, "body")
    if isinstance(body, str):
        body = body.encode("utf-8", "replace")
    if isinstance(body, bytes):
        if len(body) > MAX_TEXT:
            return (), ""
        try:
            decoded = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return refusals.read_body(body, _headers(failure).get("content-type", ""))
        body = decoded
    if not isinstance(body, Mapping):
        return (), ""
    if isinstance(body.get("error"), str) and isinstance(body.get("message"), str):
        # `{"error": "Bad Request", "message": "why"}`: the title says nothing that the status does not.
        body = {**body, "error": None}
    return refusals.read_envelope(body)


def _headers(failure: BaseException) -> dict[str, str]:
    headers = _attribute(failure, "headers")
    if headers is None:
        headers = _attribute(_attribute(failure, "response"), "headers")
    return {str(name).lower(): str(value) for name, value in headers.items()} if isinstance(headers, Mapping) else {}


def _find_status(failure: BaseException) -> int | None:
    for holder in (failure, _attribute(failure, "response")):
        for name in ("status_code", "status"):
            value = _attribute(holder, name)
            if isinstance(value, int) and 100 <= value < 600:
                return value
    return None


def _status_in_text(text: str, wrapped: re.Match[str] | None) -> int | None:
    if wrapped is not None:
        return int(wrapped["status"])
    text = _STREAM_ID.sub("", text)
    match = _NAMED_STATUS.search(text) or _BARE_STATUS.search(text)
    return int(match[1]) if match else None


# Libraries that may be absent are known by name. All of these mean that an exchange broke, not that it was refused.
_TRANSPORT_NAMES = frozenset(
    {
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("anthropic", "APIConnectionError"),
        ("httpcore", "NetworkError"),
        ("httpcore", "ProtocolError"),
        ("httpcore", "TimeoutException"),
        ("httpx", "TransportError"),
        ("httpx2", "TransportError"),
        ("openai", "APIConnectionError"),
    }
)
_TRANSPORT_TYPES = (
    ConnectionError,
    TimeoutError,
    EOFError,
    asyncio.IncompleteReadError,
    http.client.HTTPException,
    socket.gaierror,
    ssl.SSLError,
)
_TRANSPORT_NUMBERS = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN})


def _is_transport(failure: BaseException) -> bool:
    if isinstance(failure, _TRANSPORT_TYPES) or _attribute(failure, "errno") in _TRANSPORT_NUMBERS:
        return True
    return any((cls.__module__.partition(".")[0], cls.__name__) in _TRANSPORT_NAMES for cls in type(failure).__mro__)


# What it means

_INTERRUPTED = ("chat interrupted", "request interrupted", "operation interrupted")
_CONTINUITY = re.compile(
    r"no tool output found for function call|was provided without its required ['\"`]?reasoning['\"`]? item"
)
_ENDED_EARLY = ("stream closed before", "stream ended before")
_OVERFLOW_TEXTS = (
    "context length exceeded",
    "context_length_exceeded",
    "context_exceeded",
    "maximum context length",
)
_CONFIG_TEXTS = (
    "invalid model",
    "model not found",
    "model_not_found",
    "unsupported model",
    "malformed config",
    "unable to locate credentials",
    "default credentials were not found",
    "could not find default credentials",
    "could not resolve credentials",
)
_TRANSPORT_TEXTS = re.compile(
    r"timeout|timed out|unavailable|connection reset|connection refused|\beof\b|broken pipe|bad gateway|client conn"
    r"|goaway|http2 stream closed|http2: stream closed|closed network connection"
    r"|\b(?:internal_error|refused_stream|cancel|enhance_your_calm|no_error)\W+received from peer"
)
# A reset of one HTTP/2 stream, as Go's and Python's libraries print it. Numbers and names are those of RFC 9113.
_RESET = re.compile(
    r"stream error: stream id \d+; (?P<name>\w+)(?P<peer>\W+received from peer)?"
    r"|<streamreset stream_id:\d+, error_code:(?:errorcodes\.)?(?P<code>\w+), remote_reset:(?P<remote>\w+)"
)
_RETRIED_RESETS = frozenset(
    {"no_error", "internal_error", "refused_stream", "cancel", "enhance_your_calm", "0", "2", "7", "8", "11"}
)


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: matches by status or words. `own_text`: what the provider said is not searched."""

    kind: ErrorKind
    statuses: frozenset[int] = frozenset()
    texts: tuple[str, ...] = ()
    unless_status: int | None = None
    unless_config: bool = False
    own_text: bool = False

    def matches(self, seen: _Seen, *, is_config: bool = False) -> bool:
        if (self.unless_config and is_config) or (self.unless_status is not None and seen.status == self.unless_status):
            return False
        searched = seen.own.lower() if self.own_text else seen.text
        return seen.status in self.statuses or any(words in searched for words in self.texts)


_BEFORE_TRANSPORT: tuple[_Row, ...] = (
    _Row(kind=ErrorKind.OVERLOADED, statuses=frozenset({529}), texts=("overloaded",)),
    _Row(kind=ErrorKind.USAGE_LIMIT, statuses=frozenset({402}), texts=("insufficient_quota", "ai budget of")),
    # A 429 that talks of quota is a rate limit: several providers call their requests per minute so.
    _Row(kind=ErrorKind.USAGE_LIMIT, texts=("quota", "billing", "payment required"), unless_status=429),
    _Row(
        kind=ErrorKind.AUTH,
        statuses=frozenset({401}),
        texts=("authentication", "unauthorized", "invalid api key", "invalid_api_key"),
    ),
    _Row(kind=ErrorKind.AUTH, statuses=frozenset({403}), texts=("forbidden",), unless_config=True),
    _Row(
        kind=ErrorKind.RATE_LIMIT,
        statuses=frozenset({429}),
        texts=("rate limit", "rate_limit", "rate-limited", "too many requests"),
        unless_config=True,
        own_text=True,
    ),
    # Before the transport: it travels as a 503.
    _Row(kind=ErrorKind.PROVIDER_DISABLED, texts=("provider_disabled",)),
)
_UNREACHABLE_STATUSES = frozenset({408, 502, 503, 504})
_CONFIG_ROWS: tuple[_Row, ...] = (
    _Row(kind=ErrorKind.CONTEXT_OVERFLOW, statuses=frozenset({413}), texts=_OVERFLOW_TEXTS),
    _Row(kind=ErrorKind.CONFIG, texts=_CONFIG_TEXTS),
)
_SERVER = _Row(kind=ErrorKind.GENERIC, statuses=frozenset({500}), texts=("server error",), own_text=True)

# Types and codes of providers say what they mean, so they come before all words.
_CODES: Mapping[str, ErrorKind] = {
    "overloaded_error": ErrorKind.OVERLOADED,
    "rate_limit_error": ErrorKind.RATE_LIMIT,
    "rate_limit_exceeded": ErrorKind.RATE_LIMIT,
    "authentication_error": ErrorKind.AUTH,
    "invalid_api_key": ErrorKind.AUTH,
    "permission_error": ErrorKind.AUTH,
    "billing_error": ErrorKind.USAGE_LIMIT,
    "insufficient_quota": ErrorKind.USAGE_LIMIT,
    "request_too_large": ErrorKind.CONTEXT_OVERFLOW,
    "context_length_exceeded": ErrorKind.CONTEXT_OVERFLOW,
    "model_not_found": ErrorKind.CONFIG,
    "timeout_error": ErrorKind.TIMEOUT,
    "api_error": ErrorKind.GENERIC,
    "server_error": ErrorKind.GENERIC,
}
_RETRIED_CODES = frozenset({ErrorKind.OVERLOADED, ErrorKind.RATE_LIMIT, ErrorKind.TIMEOUT, ErrorKind.GENERIC})
_RETRIED_ROWS = frozenset({ErrorKind.OVERLOADED, ErrorKind.RATE_LIMIT})


def _first_match(seen: _Seen) -> Verdict:
    if any(words in seen.text for words in _INTERRUPTED):
        return Verdict(kind=ErrorKind.GENERIC, retryable=False, story=Story.CANCELLED)
    if _CONTINUITY.search(seen.text):
        return Verdict(kind=ErrorKind.GENERIC, retryable=False, story=Story.MISMATCH)
    if is_chain_broken(seen.codes, seen.text):
        return Verdict(kind=ErrorKind.GENERIC, retryable=True, chain_broken=True)
    if any(words in seen.text for words in _ENDED_EARLY):
        return Verdict(kind=ErrorKind.TIMEOUT, retryable=True, story=Story.CLOSED_EARLY)
    for code in seen.codes:
        if code in _CODES:
            return Verdict(kind=_CODES[code], retryable=_CODES[code] in _RETRIED_CODES)
    is_config = any(row.matches(seen) for row in _CONFIG_ROWS)
    for row in _BEFORE_TRANSPORT:
        if row.matches(seen, is_config=is_config):
            return Verdict(kind=row.kind, retryable=row.kind in _RETRIED_ROWS)
    return _transport_verdict(seen, is_config=is_config) or _late_verdict(seen)


def _transport_verdict(seen: _Seen, *, is_config: bool) -> Verdict | None:
    if is_config:
        return None
    if seen.status in _UNREACHABLE_STATUSES:
        return Verdict(kind=ErrorKind.TIMEOUT, retryable=True)
    if reset := _RESET.search(seen.text):
        is_from_peer = bool(reset["peer"]) or reset["remote"] == "true"
        if is_from_peer and (reset["name"] or reset["code"]) in _RETRIED_RESETS:
            return Verdict(kind=ErrorKind.TIMEOUT, retryable=True)
        # Its code is the whole truth, even if the words beside it sound like a timeout.
        return Verdict(kind=ErrorKind.GENERIC, retryable=False, story=Story.UNKNOWN)
    if seen.is_transport or _TRANSPORT_TEXTS.search(seen.text):
        return Verdict(kind=ErrorKind.TIMEOUT, retryable=True)
    return None


def _late_verdict(seen: _Seen) -> Verdict:
    for row in _CONFIG_ROWS:
        if row.matches(seen):
            return Verdict(kind=row.kind, retryable=False)
    if _SERVER.matches(seen):
        return Verdict(kind=ErrorKind.GENERIC, retryable=True)
    if seen.is_cancelled and seen.status is None:
        return Verdict(kind=ErrorKind.TIMEOUT, retryable=True)
    story = Story.UNKNOWN if seen.status is None else None
    return Verdict(kind=ErrorKind.GENERIC, retryable=False, story=story)


def _detail(seen: _Seen, verdict: Verdict) -> str:
    """What the provider said; else what the exception says, unless it is about credentials: it may hold them."""
    if seen.said:
        return refusals.bare_urls(seen.said)
    return "" if verdict.kind is ErrorKind.AUTH else refusals.bare_urls(seen.own)


# The order matters: many servers name the one whose interface they imitate.
_PROVIDERS: tuple[tuple[str, str], ...] = (
    ("openai-compat", "OpenAI-compatible"),
    ("azure", "Azure"),
    ("openrouter", "OpenRouter"),
    ("bedrock", "Bedrock"),
    ("vercel", "Vercel"),
    ("anthropic", "Anthropic"),
    ("claude", "Anthropic"),
    ("google", "Google"),
    ("gemini", "Google"),
    ("vertex", "Google"),
    ("openai", "OpenAI"),
)


def _guess_provider(text: str) -> str | None:
    return next((name for word, name in _PROVIDERS if word in text), None)
