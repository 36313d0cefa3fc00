"""Redaction: hides secrets by name, by value and by pattern, and escapes control characters.

The log, the command line and all recordings use these rules.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote, unquote_plus, urlsplit

REDACTED = "[REDACTED]"
# Shorter values are not registered, because ordinary text may contain them.
MIN_SECRET_CHARS = 8
_WORD = re.compile(r"[\w.]+")


class SecretRegistry:
    """The secrets that this process knows by value. They are hidden in all texts, also in their usual encodings."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        # The name of each encoded form. The matcher of all forms is made when it is needed.
        self._forms: dict[str, str] = {}
        self._matcher: _Matcher | None = None

    def add(self, name: str, value: str) -> None:
        """Add a secret. Values under `MIN_SECRET_CHARS` characters are ignored."""
        if len(value) < MIN_SECRET_CHARS or self._names.get(value) == name:
            return
        # A marker with a space or a quote would end the URL that it stands in, and hide the rest of it from the rule.
        shown = "-".join(_WORD.findall(name))
        # The objects are replaced, because another thread may read them.
        self._names = {**self._names, value: name}
        self._forms = {**self._forms, **dict.fromkeys(_encoded_forms(value), shown)}
        self._matcher = None

    @property
    def version(self) -> object:
        """An object that changes with the secrets, for results that are kept."""
        return self._forms

    def hide(self, text: str) -> str:
        forms, matcher = self._forms, self._matcher
        if not forms:
            return text
        if matcher is None or matcher.forms is not forms:
            self._matcher = matcher = _Matcher(forms)
        return matcher.hide(text)

    def hide_cut(self, text: str, *, at_start: bool = False, at_end: bool = False) -> str:
        """Hide a part of a secret at an end of a text that was cut there. Call `hide` first."""
        for form in self._forms:
            if at_end and (count := _overlap(text, form)):
                text = text[:-count] + REDACTED
            if at_start and (count := _overlap(form, text)):
                text = REDACTED + text[count:]
        return text


_BACKSLASH = "\\"
# A pattern of more forms takes longer than a search by their beginnings: 0.5 s for 4,000 forms in a text of 450 KB.
_MAX_PATTERN_FORMS = 100
_INDEX_CHARS = 6
_LONG_WORDS = re.compile(r"\S{8,}")


class _Matcher:
    """Finds secrets. Few are found by one pattern; many by an index of their beginnings.

    With an index, the pattern has only the forms that may be escaped in JSON, or that have spaces.
    """

    __slots__ = ("_index", "_names", "_pattern", "forms")

    def __init__(self, forms: dict[str, str]) -> None:
        self.forms = forms
        self._names = {form.replace(_BACKSLASH, ""): name for form, name in forms.items()}
        self._index: dict[str, list[str]] = {}
        # Longer values are first, so that a secret that begins with another secret is hidden as a whole.
        longest_first = sorted(forms, key=len, reverse=True)
        searched = longest_first
        if len(forms) > _MAX_PATTERN_FORMS:
            for form in longest_first:
                self._index.setdefault(form[:_INDEX_CHARS], []).append(form)
            searched = [form for form in longest_first if _SPECIAL.search(form)]
        self._pattern = re.compile("|".join(map(_pattern, searched))) if searched else None

    def hide(self, text: str) -> str:
        if self._index:
            text = self._hide_indexed(text)
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._marker(match[0]), text)

    def _hide_indexed(self, text: str) -> str:
        pieces: list[str] = []
        copied = 0
        index = self._index
        for word in _LONG_WORDS.finditer(text):
            start, last = word.start(), word.end() - MIN_SECRET_CHARS
            while start <= last:
                found = index.get(text[start : start + _INDEX_CHARS])
                form = None if found is None else next((each for each in found if text.startswith(each, start)), None)
                if form is None:
                    start += 1
                    continue
                pieces += (text[copied:start], self._marker(form))
                copied = start = start + len(form)
        return "".join([*pieces, text[copied:]]) if pieces else text

    def _marker(self, found: str) -> str:
        return f"[REDACTED:{self._names[found.replace(_BACKSLASH, '')]}]"


_SPECIAL = re.compile(r"[\s\"\\/]")


def _pattern(form: str) -> str:
    """Return a pattern that also matches the form inside JSON that was encoded several times."""
    return re.escape(form).replace("\\\\", r"\\+").replace('"', r"\\*" + '"').replace("/", r"\\*/")


def _overlap(left: str, right: str) -> int:
    """Return the length of the longest proper prefix of `right` that is a suffix of `left`; 0 if it is below 4."""
    for count in range(min(len(left), len(right) - 1), 3, -1):
        if left.endswith(right[:count]):
            return count
    return 0


def _encoded_forms(value: str) -> Iterator[str]:
    """Yield the value as it is, and as it appears in URLs, in JSON and inside base64."""
    yield value
    yield quote(value, safe="")
    yield json.dumps(value)[1:-1]
    try:
        data = value.encode()
    except UnicodeEncodeError:
        return
    for offset in range(3):
        # Base64 encodes groups of three bytes. Characters that also depend on neighbors of the secret are left out.
        first, last = -(-offset * 8 // 6), (offset + len(data)) * 8 // 6
        if last - first >= MIN_SECRET_CHARS:
            padded = bytes(offset) + data
            yield b64encode(padded).decode()[first:last]
            yield urlsafe_b64encode(padded).decode()[first:last]


# Names of headers, query parameters and log fields. Values under names that contain "token" are hidden as well, unless
# they are numbers or counters of providers.
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
# Parameters that carry a key or a signature only in URLs. Elsewhere these names are ordinary words.
_HIDDEN_PARAMETERS = frozenset({"key", "sig"})
# Keys of JSON objects, without `_` and `-`. "token" counts only at the end, because usage counters end with "tokens".
_HIDDEN_KEY_ENDS = ("token", "cookie")
_HIDDEN_KEY_PARTS = (
    "secret",
    "password",
    "passwd",
    "passphrase",
    "authorization",
    "credential",
    "apikey",
    "privatekey",
    "signingkey",
)
_SECRET_TEXTS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?i:bearer)\s+[A-Za-z0-9._~+/=-]{8,}"
    r"|\bsk-[A-Za-z0-9_-]{8,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\brk_[A-Za-z0-9_]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*",
    re.DOTALL,
)
# Every match begins with one of these. A search for them is a hundred times faster than the pattern.
_SECRET_STARTS = ("-----BEGIN ", "sk-", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "rk_", "eyJ")
_BEARER = "bearer"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")
_SCHEME_END = "://"
_SCHEME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+.-")


def is_secret_name(name: str, value: object = None) -> bool:
    """Return whether to hide the value under this name. Numbers under names with "token" are counters and are shown."""
    folded = name.casefold()
    if folded in _HIDDEN_NAMES or any(part in folded for part in _HIDDEN_PARTS):
        return True
    return "token" in folded and not isinstance(value, int | float) and not _SHOWN_NAMES.fullmatch(folded)


# Every text with a secret key contains one of these parts, or a key with one of the ends, in its folded form.
_FOLDED = str.maketrans("", "", "_-")
_KEY_END = re.compile(rf"(?:{'|'.join(_HIDDEN_KEY_ENDS)})\\*\"\s*:")


def may_have_secret_keys(text: str) -> bool:
    """Return whether a text may contain a secret key of a JSON object. This is much faster than looking at each key."""
    folded = text.casefold().translate(_FOLDED)
    if any(part in folded for part in _HIDDEN_KEY_PARTS):
        return True
    # The pattern is slow, and a key ends with a quote, which may be escaped.
    may_end = any(end + quote in folded for end in _HIDDEN_KEY_ENDS for quote in ('"', "\\"))
    return may_end and _KEY_END.search(folded) is not None


def is_secret_key(key: str) -> bool:
    """Return whether to hide the value under this key of a JSON object."""
    folded = key.casefold().replace("_", "").replace("-", "")
    return folded.endswith(_HIDDEN_KEY_ENDS) or any(part in folded for part in _HIDDEN_KEY_PARTS)


def hide_secrets(text: str, secrets: SecretRegistry | None = None) -> str:
    """Hide known secrets, secrets in URLs, and text that matches the pattern of a key."""
    if secrets is not None:
        text = secrets.hide(text)
    if _SCHEME_END in text:
        text = _replace_at(text, _url_starts(text), _URL, hide_in_url)
    starts = [start for hint in _SECRET_STARTS if hint in text for start in _occurrences(text, hint)]
    lowered = text.lower()
    if _BEARER in lowered:
        # Some characters have a longer lower case, which moves what follows.
        starts += _occurrences(lowered, _BEARER) if len(lowered) == len(text) else range(len(text))
    return _replace_at(text, sorted(starts), _SECRET_TEXTS, lambda _: REDACTED) if starts else text


def _occurrences(text: str, hint: str) -> Iterator[int]:
    start = text.find(hint)
    while start >= 0:
        yield start
        start = text.find(hint, start + 1)


def _url_starts(text: str) -> Iterator[int]:
    """Yield where URLs begin: the first letter of the characters of a scheme before `://`."""
    for end in _occurrences(text, _SCHEME_END):
        start = end
        while start > 0 and text[start - 1] in _SCHEME_CHARS:
            start -= 1
        while start < end and not text[start].isalpha():
            start += 1
        yield start


def _replace_at(text: str, starts: Iterable[int], pattern: re.Pattern[str], replace: Callable[[str], str]) -> str:
    """Replace the matches of a pattern that begin at these places, which are in order. Matches do not overlap."""
    pieces: list[str] = []
    copied = 0
    for start in starts:
        if start >= copied and (match := pattern.match(text, start)):
            pieces += (text[copied:start], replace(match[0]))
            copied = match.end()
    return "".join([*pieces, text[copied:]]) if pieces else text


def hide_in_url(url: str) -> str:
    """Remove user information from a URL, and hide the values of secret parameters. The path is kept."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "[REDACTED_URL]"
    host = parts.netloc.rpartition("@")[2]
    if ":" in host and "@" in parts.path + parts.query + parts.fragment:
        # The password contains an unescaped / ? or #, so the parsed host and port may be a part of it.
        return "[REDACTED_URL]"
    query, fragment = hide_in_query(parts.query), hide_in_query(parts.fragment)
    return parts._replace(netloc=host, query=query, fragment=fragment).geturl()


def hide_in_query(query: str) -> str:
    """Hide the values of secret parameters in a query or in a form."""
    pairs = [item.partition("=") for item in query.split("&")]
    return "&".join(
        f"{name}={quote(REDACTED)}" if value and _is_secret_parameter(unquote_plus(name)) else name + equals + value
        for name, equals, value in pairs
    )


def _is_secret_parameter(name: str) -> bool:
    folded = name.casefold()
    return folded in _HIDDEN_PARAMETERS or folded.endswith("signature") or is_secret_name(name) or is_secret_key(name)


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
