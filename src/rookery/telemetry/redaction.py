"""Redaction: hides secrets by name, by value and by pattern, and escapes control characters.

The log, the command line and all recordings use these rules.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_plus, urlsplit

REDACTED = "[REDACTED]"


class SecretRegistry:
    """The secrets that this process knows by value. They are hidden in all texts."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def add(self, name: str, value: str) -> None:
        """Add a secret. Values under 8 characters are ignored, because ordinary text may contain them."""
        if len(value) < 8:
            return
        # The objects are replaced, because another thread may read them. Longer values are first, so that a secret that
        # begins with another secret is hidden as a whole.
        names = {**self._names, value: name}
        pattern = re.compile("|".join(re.escape(text) for text in sorted(names, key=len, reverse=True)))
        self._names, self._pattern = names, pattern

    def hide(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: f"[REDACTED:{self._names[match[0]]}]", text)


# Values under names that contain "token" are hidden as well, unless they are numbers or counters of providers.
_HIDDEN_NAMES = frozenset(
    {"token", "cookie", "set-cookie", "private_key", "privatekey", "signing_key", "signingkey", "signature"}
)
_HIDDEN_PARTS = (
    "secret",
    "password",
    "authorization",
    "credential",
    "api-key",
    "api_key",
    "apikey",
    "session-key",
    "session_key",
    "bearer",
)
_SHOWN_NAMES = re.compile(
    r"anthropic-(ratelimit-(requests|(input-|output-)?tokens)|(priority|fast)-(input|output)-tokens)-(limit|remaining|reset)"
    r"|x-ratelimit-(limit|remaining|reset)-(requests|tokens)"
)
_SECRET_TEXTS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?i:bearer)\s+[A-Za-z0-9._~+/=-]{8,}"
    r"|\bsk-[A-Za-z0-9_-]{8,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\brk_[A-Za-z0-9_]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*",
    re.DOTALL,
)
_URLS = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")


def is_secret_name(name: str, value: object = None) -> bool:
    """Return whether to hide the value under this name. Numbers under names with "token" are counters and are shown."""
    folded = name.casefold()
    if folded in _HIDDEN_NAMES or any(part in folded for part in _HIDDEN_PARTS):
        return True
    return "token" in folded and not isinstance(value, int | float) and not _SHOWN_NAMES.fullmatch(folded)


def hide_secrets(text: str, secrets: SecretRegistry | None = None) -> str:
    """Hide known secrets, secrets in URLs, and text that matches the pattern of a key."""
    if secrets is not None:
        text = secrets.hide(text)
    if "://" in text:
        text = _URLS.sub(lambda match: _hide_in_url(match[0]), text)
    return _SECRET_TEXTS.sub(REDACTED, text)


def _hide_in_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "[REDACTED_URL]"
    host = parts.netloc.rpartition("@")[2]
    if ":" in host and "@" in parts.path + parts.query + parts.fragment:
        # The password contains an unescaped / ? or #, so the parsed host and port may be a part of it.
        return "[REDACTED_URL]"
    query, fragment = _hide_in_query(parts.query), _hide_in_query(parts.fragment)
    return parts._replace(netloc=host, query=query, fragment=fragment).geturl()


def _hide_in_query(query: str) -> str:
    pairs = [item.partition("=") for item in query.split("&")]
    return "&".join(
        f"{name}={quote(REDACTED)}" if is_secret_name(unquote_plus(name), value) and value else name + equals + value
        for name, equals, value in pairs
    )


# Characters that move a cursor, end a line or change the writing direction, and halves of surrogate pairs.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_SURROGATES = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that it cannot affect other text on a terminal."""
    return _CONTROLS.sub(_escape, text)


def encodable(text: str) -> str:
    """Return the text with halves of surrogate pairs escaped, so that it can be encoded."""
    return _SURROGATES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return "\\n" if match[0] == "\n" else f"\\u{ord(match[0]):04x}"
