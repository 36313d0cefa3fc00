"""Parsing of error responses: codes and texts of the body, delays and ids of the headers, numbers in the text.

All functions are pure and never raise. An invalid field counts as missing. Text for users is cut to one line without
secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

import msgspec

from rookery.llm.types import MAX_DETAIL
from rookery.telemetry.redaction import hide_secrets, printable

# A function that removes secrets from a text. Pass the whole text before it is cut, because a partial secret is not
# recognized.
Hide = Callable[[str], str]
default_hide: Hide = hide_secrets
# Limit of an invalid tool call, which is sent to the model again.
MAX_FAILED_GENERATION = 4000


def read_body(body: bytes, content_type: str) -> tuple[tuple[object, ...], str]:
    """Return the codes and the text of an error response. HTML pages have neither, because they are not shown."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        plain = content_type.partition(";")[0].strip().lower() in ("text/plain", "")
        lines = body.decode("utf-8", "replace").strip().splitlines() if plain else []
        return (), _shown(lines[0]) if lines else ""
    if isinstance(document, list) and document:
        document = document[0]
    if isinstance(document, str):
        return (), _shown(document)
    return read_envelope(document) if isinstance(document, dict) else ((), "")


def read_envelope(document: Mapping[str, Any]) -> tuple[tuple[object, ...], str]:
    """Return the codes and the text of `{"error": {...}}`, `{"error": "text"}` or a document with top-level fields."""
    error = document.get("error")
    inner = error if isinstance(error, dict) else {}
    # In `{"error": "Bad Request", "message": "why"}`, the error is only a title, and perhaps a code.
    texts = (inner.get("message"), document.get("message"), error, document.get("detail"))
    text = next((said for said in texts if isinstance(said, str) and said.strip()), "")
    title = error if isinstance(error, str) and error != text and not re.search(r"\s", error) else None
    kind = None if document.get("type") == "error" else document.get("type")
    codes = (inner.get("code"), inner.get("type"), inner.get("status"), document.get("code"), kind, title)
    return codes, _shown(text)


def find_failed_generation(body: bytes) -> str | None:
    """Return the text of a tool call that the provider (Groq) could not parse, cut to `MAX_FAILED_GENERATION`."""
    if b'"failed_generation"' not in body:
        return None
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    error = document.get("error") if isinstance(document, dict) else None
    found = error.get("failed_generation") if isinstance(error, dict) else None
    return found[:MAX_FAILED_GENERATION] if isinstance(found, str) and found else None


def _shown(text: str) -> str:
    return "" if text.lstrip()[:1] == "<" else text


class Wrapped(msgspec.Struct, frozen=True):
    """The response of another server, which a gateway quotes. `text` is empty if the body has none."""

    status: int
    codes: tuple[str, ...]
    text: str


# Every group is bounded or stops at a quote, so that matching takes linear time.
_WRAPPED = re.compile(r'\b[A-Z]{3,7} "[^"]*": (\d{3})\b[^{]{0,100}(?=\{)')


def unwrap(text: str) -> Wrapped | None:
    """Return the quoted response in `METHOD "url": code text {json}`, the form that gateways and libraries use."""
    found = _WRAPPED.search(text)
    if found is None:
        return None
    body = text[found.end() : text.rfind("}") + 1]
    codes, said = read_body(body.encode("utf-8", "replace"), "application/json")
    return Wrapped(int(found[1]), tuple(code for code in codes if isinstance(code, str) and code), said)


def parse_retry_after(headers: Mapping[str, str], now: datetime | None = None) -> timedelta | None:
    """Return the delay that the provider requests.

    Milliseconds precede seconds and dates; invalid values are ignored.
    """
    milliseconds = _float(headers.get("retry-after-ms"))
    if milliseconds is not None and milliseconds > 0:
        return _wait(milliseconds / 1000)
    value = headers.get("retry-after")
    seconds = _float(value)
    if seconds is not None:
        return _wait(seconds)
    if value is None:
        return None
    try:
        moment = parsedate_to_datetime(value.strip())
    except (ValueError, IndexError, OverflowError):
        return None
    # A date without a zone has one of HTTP's old forms, which are all in GMT.
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return _wait((aware - (now or datetime.now(UTC))).total_seconds())


def _float(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) else None


def _wait(seconds: float) -> timedelta:
    # Delays are limited to a year, because later dates may not be representable.
    return timedelta(seconds=min(max(seconds, 0.0), 31_536_000.0))


def find_request_id(headers: Mapping[str, str], hide: Hide = default_hide) -> str | None:
    """Return the provider's id of the request, which its support needs."""
    value = headers.get("request-id") or headers.get("x-request-id")
    return printable(hide(value))[:200] if value else None


_URL = re.compile(r"(?<=[A-Za-z0-9+.-])(://)([^\s\"'<>/?#]*)([^\s\"'<>?#]*)[^\s\"'<>]*")


def bare_urls(text: str) -> str:
    """Return the text without the userinfo, query and fragment of URLs, which may contain keys."""
    return _URL.sub(lambda match: match[1] + match[2].rpartition("@")[2] + match[3], text)


def clean_detail(text: str, hide: Hide = hide_secrets, *, max_chars: int = MAX_DETAIL) -> str | None:
    """Return the text as one line of at most `max_chars`, without secrets and control characters; None if empty."""
    line = printable(" ".join(hide(text).split()))
    if not line:
        return None
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


# The pattern begins at the first digit, because a search from every digit of a long number would be slow.
_DIGITS = r"(?<![\d,])(\d[\d,]{0,30})"
_USED_OVER_MAX = re.compile(rf"{_DIGITS}\s{{0,5}}tokens?\s{{0,5}}>\s{{0,5}}{_DIGITS}")
# Anthropic, if prompt and answer together are too long: `188240 + 21333 > 200000`.
_SUM_OVER_MAX = re.compile(rf"{_DIGITS} \+ {_DIGITS} > {_DIGITS}")
_WINDOW = r"(?:maximum (?:context|prompt|input) length|context (?:window|size|limit))"
_MAX_THEN_USED = re.compile(
    rf"{_WINDOW} (?:is|of) {_DIGITS}.{{0,80}}?(?:requested|resulted in|contains?|has)[^\d]{{0,40}}?{_DIGITS}",
    re.DOTALL,
)
# Google: `The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)`.
_COUNT_OVER_MAX = re.compile(rf"token count \(?{_DIGITS}\)? exceeds the maximum[^\d]{{0,60}}{_DIGITS}")
# Mistral: `Prompt contains 40000 tokens ..., too large for model with 32768 maximum context length`.
_CONTAINS_OVER_MAX = re.compile(
    rf"contains {_DIGITS} tokens.{{0,120}}?model with {_DIGITS} maximum context length", re.DOTALL
)
_MAX_ONLY = re.compile(rf"(?:{_WINDOW} (?:is|of)|maximum of|limit of|available context size) ?\(?{_DIGITS}")


def find_context_numbers(text: str) -> tuple[int | None, int | None]:
    """Return the number of used tokens and the maximum, if the text contains them."""
    lowered = text.lower()
    if match := _USED_OVER_MAX.search(lowered):
        return _number(match[1]), _number(match[2])
    if match := _SUM_OVER_MAX.search(lowered):
        prompt, answer = _number(match[1]), _number(match[2])
        return None if prompt is None or answer is None else prompt + answer, _number(match[3])
    if match := _MAX_THEN_USED.search(lowered):
        return _number(match[2]), _number(match[1])
    if match := _COUNT_OVER_MAX.search(lowered) or _CONTAINS_OVER_MAX.search(lowered):
        return _number(match[1]), _number(match[2])
    if match := _MAX_ONLY.search(lowered):
        return None, _number(match[1])
    return None, None


def _number(digits: str) -> int | None:
    plain = digits.replace(",", "")
    return int(plain) if len(plain) < 16 else None
