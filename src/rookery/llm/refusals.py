"""Reading what a refusal says: its body, its headers, the numbers in its text. Pure, and never surprised.

Everything here comes from outside: what cannot be read is simply not there, and what is shown to people is cut to one
bounded line without secrets.
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
from rookery.redaction import hide_secrets, printable

# Takes secrets out of a text. It has to see all of the text: half a secret is not recognised.
Hide = Callable[[str], str]
by_look: Hide = hide_secrets


def read_body(body: bytes, content_type: str) -> tuple[tuple[object, ...], str]:
    """Codes and text of a refusal. Pages of HTML have neither: what they say is not meant for a chat."""
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
    """`{"error": {...}}`, `{"error": "text"}` or the fields at the top, as providers and gateways have them."""
    error = document.get("error")
    if isinstance(error, str) and error:
        return (document.get("code"),), _shown(error)
    inner = error if isinstance(error, dict) else {}
    texts = (inner.get("message"), document.get("message"), document.get("detail"))
    text = next((said for said in texts if isinstance(said, str) and said.strip()), "")
    kind = None if document.get("type") == "error" else document.get("type")
    codes = (inner.get("code"), inner.get("type"), inner.get("status"), document.get("code"), kind)
    return codes, _shown(text)


def _shown(text: str) -> str:
    return "" if text.lstrip()[:1] == "<" else text


def parse_retry_after(headers: Mapping[str, str], now: datetime | None = None) -> timedelta | None:
    """How long the provider wants to be left alone; milliseconds beat seconds and dates. Nonsense is no answer."""
    milliseconds = _float(headers.get("retry-after-ms"))
    if milliseconds is not None:
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
    # A date without a zone is one of HTTP's old forms, which are all meant in GMT.
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return _wait((aware - (now or datetime.now(UTC))).total_seconds())


def _float(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) else None


def _wait(seconds: float) -> timedelta:
    # A year stands for everything longer: it is never waited for, and dates beyond it may not exist.
    return timedelta(seconds=min(max(seconds, 0.0), 31_536_000.0))


def find_request_id(headers: Mapping[str, str], hide: Hide = by_look) -> str | None:
    """The provider's own name for this request, for people who ask its support."""
    value = headers.get("request-id") or headers.get("x-request-id")
    return printable(hide(value))[:200] if value else None


_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)([^\s\"'<>/?#]*)([^\s\"'<>?#]*)[^\s\"'<>]*")


def bare_urls(text: str) -> str:
    """The text with userinfo, query and fragment of every URL taken out: keys hide in all three."""
    return _URL.sub(lambda match: match[1] + match[2].rpartition("@")[2] + match[3], text)


def clean_detail(text: str, hide: Hide = hide_secrets, *, max_chars: int = MAX_DETAIL) -> str | None:
    """One bounded line that may be shown: no secrets, no control characters."""
    line = printable(" ".join(hide(text).split()))
    if not line:
        return None
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


_USED_OVER_MAX = re.compile(r"(\d[\d,]*)\s*tokens?\s*>\s*(\d[\d,]*)")
_MAX_THEN_USED = re.compile(
    r"maximum context length (?:is|of) (\d[\d,]*).{0,80}?(?:requested|resulted in|contains?|has)[^\d]{0,40}?(\d[\d,]*)",
    re.DOTALL,
)
_MAX_ONLY = re.compile(r"(?:maximum context length (?:is|of)|maximum of|limit of) (\d[\d,]*)")


def find_context_numbers(text: str) -> tuple[int | None, int | None]:
    """The tokens used and the most that are allowed, as far as the text says."""
    lowered = text.lower()
    if match := _USED_OVER_MAX.search(lowered):
        return _number(match[1]), _number(match[2])
    if match := _MAX_THEN_USED.search(lowered):
        return _number(match[2]), _number(match[1])
    if match := _MAX_ONLY.search(lowered):
        return None, _number(match[1])
    return None, None


def _number(digits: str) -> int | None:
    plain = digits.replace(",", "")
    return int(plain) if len(plain) < 16 else None
