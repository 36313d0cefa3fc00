"""Classification of library exceptions by type, status, codes and text.

Model clients convert expected errors to `ProviderError`; this module handles all others. It is pure, and classifies
every exception. It reads status, codes and text from the exception; the table in `llm/errors.py` defines their meaning.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import re
import socket
import ssl
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from rookery.llm import error_bodies, errors
from rookery.llm.types import ErrorKind

# Limit of a text or body that is examined.
MAX_TEXT = 64 * 1024


class Description(StrEnum):
    """A text about the failure, if its `kind` alone is not specific enough."""

    CANCELLED = "cancelled"
    MISMATCH = "mismatch"
    CLOSED_EARLY = "closed_early"
    UNKNOWN = "unknown"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The classification of an exception.

    `detail` may still contain secrets; it is empty if none of it may be shown.
    """

    kind: ErrorKind
    retryable: bool
    description: Description | None = None
    detail: str = ""
    status: int | None = None
    retry_after: timedelta | None = None
    chain_broken: bool = False
    guessed_provider: str | None = None


def judge(failure: BaseException, *, now: datetime | None = None) -> Verdict:
    """Classify one exception. `now` is used only for a Retry-After that is a date."""
    seen = _read(failure, now)
    verdict = _first_match(seen)
    return msgspec.structs.replace(
        verdict,
        detail=_detail(seen, verdict),
        status=seen.status,
        retry_after=seen.retry_after,
        guessed_provider=_guess_provider(seen.text),
    )


# Reading an exception


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The facts read from an exception.

    `own` is the exception's text, `said` is the provider's text inside it, and `text` is both in lower case.
    """

    own: str
    said: str
    text: str
    status: int | None
    codes: tuple[str, ...]
    retry_after: timedelta | None
    is_transport: bool
    is_cancelled: bool


_STREAM_ID = re.compile(r"\bstream[ _]?id\W*\d+", re.IGNORECASE)
_NAMED_STATUS = re.compile(r"\b(?:status(?:[ _-]?code)?|http(?:/\d(?:\.\d)?)?)\s*[:=]?\s*(\d{3})\b", re.IGNORECASE)
# Excludes ports and pieces of longer numbers, names or paths.
_BARE_STATUS = re.compile(r"(?<![\w:.,/-])(401|403|408|429|500|502|503|504|529)(?![\w/-]|[.,]\w)")


def _read(failure: BaseException, now: datetime | None) -> _Seen:
    own = _text(failure)
    codes, said = _read_body(failure)
    wrapped = error_bodies.unwrap(said or own)
    if wrapped is not None:
        codes, said = (*codes, *wrapped.codes), wrapped.text or said
    named = (_attribute(failure, "code"), _attribute(failure, "type"), *codes)
    return _Seen(
        own=own,
        said=said,
        text=f"{own}\n{said}".lower(),
        status=_find_status(failure) or (wrapped.status if wrapped else _status_in_text(own)),
        codes=tuple(code.lower() for code in named if isinstance(code, str) and code),
        retry_after=error_bodies.parse_retry_after(_headers(failure), now),
        is_transport=_is_transport(failure),
        is_cancelled=isinstance(failure, asyncio.CancelledError),
    )


def _text(failure: BaseException) -> str:
    try:
        return str(failure)[:MAX_TEXT]
    except Exception:
        return type(failure).__name__


def _attribute(holder: object, name: str) -> Any:
    """Return an attribute of a library's exception; None if computing it raises."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _read_body(failure: BaseException) -> tuple[tuple[object, ...], str]:
    """Return the codes and the text of a provider's response, which libraries store parsed or raw."""
    body = _attribute(failure, "body")
    if isinstance(body, str):
        body = body.encode("utf-8", "replace")
    if isinstance(body, bytes):
        if len(body) > MAX_TEXT:
            return (), ""
        return error_bodies.read_body(body, _headers(failure).get("content-type", ""))
    return error_bodies.read_envelope(body) if isinstance(body, Mapping) else ((), "")


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


def _status_in_text(text: str) -> int | None:
    text = _STREAM_ID.sub("", text)
    match = _NAMED_STATUS.search(text) or _BARE_STATUS.search(text)
    return int(match[1]) if match else None


# These mean that an exchange broke, not that it was refused. They are matched by name, because the libraries may not be
# installed.
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


# Verdicts

_INTERRUPTED = ("chat interrupted", "request interrupted", "operation interrupted")
_CONTINUITY = re.compile(
    r"no tool output found for function call|was provided without its required ['\"`]?reasoning['\"`]? item"
)


def _first_match(seen: _Seen) -> Verdict:
    if any(words in seen.text for words in _INTERRUPTED):
        return Verdict(kind=ErrorKind.GENERIC, retryable=False, description=Description.CANCELLED)
    if _CONTINUITY.search(seen.text):
        return Verdict(kind=ErrorKind.GENERIC, retryable=False, description=Description.MISMATCH)
    rule = errors.find_rule(
        seen.status, seen.codes, text=seen.text, own=seen.own.lower(), is_transport=seen.is_transport
    )
    if rule is not None:
        return Verdict(
            kind=rule.kind,
            retryable=rule.retry,
            description=_describe(rule, seen),
            chain_broken=rule is errors.CHAIN_BROKEN,
        )
    if seen.is_cancelled and seen.status is None:
        return Verdict(kind=ErrorKind.TIMEOUT, retryable=True)
    return Verdict(kind=ErrorKind.GENERIC, retryable=False, description=_describe(None, seen))


def _describe(rule: errors.Rule | None, seen: _Seen) -> Description | None:
    if rule is errors.CLOSED_EARLY:
        return Description.CLOSED_EARLY
    is_known = rule is not None and (rule.retry or rule.kind is not ErrorKind.GENERIC)
    return None if is_known or seen.status is not None else Description.UNKNOWN


def _detail(seen: _Seen, verdict: Verdict) -> str:
    """Return the provider's text, or if there is none, the exception's text.

    A text about credentials is left out, because it may quote them.
    """
    if seen.said:
        return error_bodies.bare_urls(seen.said)
    return "" if verdict.kind is ErrorKind.AUTH else error_bodies.bare_urls(seen.own)


# The order matters, because many servers name the provider whose interface they imitate.
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
