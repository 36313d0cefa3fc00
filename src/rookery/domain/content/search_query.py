"""The query language of chat search (`q`), and the snippets that show why a chat was found. Pure.

A query consists of words and `key:value` terms. Terms are separated by spaces and must all hold. A value with spaces
or colons is quoted, with `\\"` for a quote inside. Terms without a key form a full-text search. The database parses its
syntax (phrases, OR, -word). A snippet is an approximation: it looks for the words of the query and ignores its logic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar
from uuid import UUID

import msgspec

from rookery.domain.chat import labels
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import check_storable
from rookery.domain.chat.states import Status

FIELD = "q"
MAX_CHARS = 1_000
ME = "me"

E = TypeVar("E", bound=StrEnum)


class Source(StrEnum):
    """The reason why a chat is in the list of a user."""

    CREATED_BY_ME = "created_by_me"
    SHARED_WITH_ME = "shared_with_me"


class Archived(StrEnum):
    NO = "false"
    YES = "true"
    ANY = "any"


class Client(StrEnum):
    """The client with which a chat was created."""

    UI = "ui"
    API = "api"
    CLI = "cli"


class Activity(StrEnum):
    """The states of a chat as clients show them: `NEEDS_YOU` comes before the others."""

    IDLE = "idle"
    WORKING = "working"
    NEEDS_YOU = "needs_you"
    FAILED = "failed"


class _Truth(StrEnum):
    YES = "true"
    NO = "false"


class ChatQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions on the chats to list. None and an empty tuple mean no condition.

    Each entry of `search` is a separate full-text search. `owner`, `folder`, `workspace` and `model` are an id or a
    name; `owner` may be `ME`.
    """

    search: tuple[str, ...] = ()
    title: tuple[str, ...] = ()
    repo: tuple[str, ...] = ()
    branch: tuple[str, ...] = ()
    archived: Archived = Archived.NO
    has_unread: bool | None = None
    pinned: bool | None = None
    status: frozenset[Status | Activity] | None = None
    source: frozenset[Source] | None = None
    owner: UUID | str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    folder: UUID | str | None = None
    workspace: UUID | str | None = None
    model: UUID | str | None = None
    client: Client | None = None
    active_after: datetime | None = None
    active_before: datetime | None = None


class _Term(msgspec.Struct, frozen=True):
    """A term as written, the ranges of its quoted pieces, and the index of the first colon outside of quotes."""

    text: str
    quoted: tuple[tuple[int, int], ...]
    colon: int

    @property
    def key(self) -> str:
        return self.text[: self.colon].lower()

    def refused(self, rule: str) -> InvalidInput:
        return InvalidInput(FIELD, f"The search term {_shown(self.text)} is not valid: {rule}")


class _Value(msgspec.Struct, frozen=True):
    """The value after the colon of a term, without its quotes."""

    term: _Term
    text: str

    def refused(self, rule: str) -> InvalidInput:
        return self.term.refused(rule)


def parse(query: str) -> ChatQuery:
    """Parse the query. Raises `InvalidInput`, whose message quotes the term."""
    if len(query) > MAX_CHARS:
        raise InvalidInput(
            FIELD, f"A search can have at most {MAX_CHARS:,} characters; this one has {len(query):,}. Shorten it."
        )
    words: list[str] = []
    found: dict[str, list[object]] = {}
    for term in _terms(query):
        if term.colon < 0:
            words.append(term.text.replace('\\"', " "))
            continue
        key, value = _read(term)
        if key in found and key not in _REPEATED:
            raise term.refused(f"{key} is given twice. Give it once.")
        found.setdefault(key, []).append(value)
    given: dict[str, object] = {
        _FIELDS.get(key, key): tuple(values) if key in _REPEATED else values[0] for key, values in found.items()
    }
    if words:
        given["search"] = (" ".join(words), *found.get("search", []))
    return ChatQuery(**given)  # type: ignore[arg-type]


def parse_label(text: str) -> tuple[str, str]:
    """Parse the query parameter `label`, which is `key:value`."""
    key, colon, value = text.partition(":")
    if not (key and colon and value):
        raise InvalidInput("label", f"The label {_shown(text)} is not of the form key:value.")
    try:
        labels.validate({key: value})
    except InvalidInput as error:
        raise InvalidInput("label", str(error)) from None
    return key, value


def _terms(query: str) -> Iterator[_Term]:
    """Yield the terms, which are separated by spaces outside of quotes. An unclosed quote is an ordinary character."""
    start = 0
    while start < len(query):
        if query[start].isspace():
            start += 1
            continue
        end, colon = start, -1
        quoted: list[tuple[int, int]] = []
        while end < len(query) and not query[end].isspace():
            if query[end] == ":" and colon < 0:
                colon = end - start
            close = _closing(query, end) if query[end] == '"' else -1
            if close > 0:
                quoted.append((end - start, close - start))
                end = close
            end += 1
        yield _Term(query[start:end], tuple(quoted), colon)
        start = end


def _closing(query: str, opening: int) -> int:
    """Return the index of the quote that closes this one, or -1."""
    at = query.find('"', opening + 1)
    while at > 0 and query[at - 1] == "\\":
        at = query.find('"', at + 1)
    return at


def _read(term: _Term) -> tuple[str, object]:
    text, colon = term.text, term.colon
    if colon == 0:
        raise term.refused("it starts with a colon. Put words with a colon in quotes.")
    if colon == len(text) - 1:
        raise term.refused("it ends with a colon. Add a value, or put the words in quotes.")
    read = _KEYS.get(term.key)
    if read is None:
        raise term.refused(f"there is no such key. Put words with a colon in quotes, or use one of {_NAMES}.")
    value = _Value(term, _unquoted(term))
    try:
        check_storable(FIELD, value.text)
    except InvalidInput:
        raise value.refused("it contains the character U+0000 or a lone surrogate.") from None
    if not value.text.strip():
        raise value.refused("the value is empty.")
    return term.key, read(value)


def _unquoted(term: _Term) -> str:
    """Return the value without its quotes. Raises `InvalidInput` for another quote or colon outside of them."""
    pieces = []
    at = term.colon + 1
    for opening, closing in (*term.quoted, (len(term.text), len(term.text))):
        plain = term.text[at:opening]
        if '"' in plain:
            raise term.refused("a quote is not closed.")
        if ":" in plain:
            raise term.refused("its value contains a colon. Put the value in quotes.")
        pieces += [plain, term.text[opening + 1 : closing].replace('\\"', '"')]
        at = closing + 1
    return "".join(pieces)


def _one_of(kind: type[E]) -> Callable[[_Value], E]:
    names = ", ".join(kind)

    def read(value: _Value) -> E:
        name = value.text.strip().lower()
        if name not in set(kind):
            raise value.refused(f"the value must be one of {names}.")
        return kind(name)

    return read


def _some_of(kind: type[E]) -> Callable[[_Value], frozenset[E]]:
    read = _one_of(kind)
    return lambda value: frozenset(read(_Value(value.term, each)) for each in value.text.split(","))


# Other words that people use for a state. `waiting`, `running` and `error` are stored states.
_STATUS_ALIASES: dict[str, Status | Activity] = {
    "done": Activity.IDLE,
    "finished": Activity.IDLE,
    "stopped": Activity.IDLE,
    "ready": Activity.IDLE,
    "busy": Activity.WORKING,
    "active": Activity.WORKING,
    "stopping": Status.INTERRUPTING,
    "needs": Activity.NEEDS_YOU,
    "needs_me": Activity.NEEDS_YOU,
    "asking": Activity.NEEDS_YOU,
    "blocked": Activity.NEEDS_YOU,
    "failure": Activity.FAILED,
    "errors": Activity.FAILED,
}
_STATUS_NAMES: dict[str, Status | Activity] = {
    **_STATUS_ALIASES,
    **{each.value: each for each in (*Activity, *Status)},
}


def _status(value: _Value) -> frozenset[Status | Activity]:
    """Return the states. A word may be written with a space or a hyphen: `needs you`.

    The refusal names only the words that clients show. The stored states are for programs.
    """
    found = [_STATUS_NAMES.get(re.sub(r"[\s-]+", "_", each.strip().lower())) for each in value.text.split(",")]
    known = frozenset(each for each in found if each is not None)
    if None in found:
        *first, last = Activity
        raise value.refused(f"status knows {', '.join(first)} and {last}.")
    return known


def _text(value: _Value) -> str:
    return value.text


def _is_true(value: _Value) -> bool:
    return _truth(value) is _Truth.YES


_truth = _one_of(_Truth)


def _id_or_name(value: _Value) -> UUID | str:
    text = value.text.strip()
    try:
        found = UUID(text)
    except ValueError:
        return text
    # UUID() accepts other spellings as well, which may be names.
    return found if str(found) == text.lower() else text


def _label(value: _Value) -> tuple[str, str]:
    key, equals, label = value.text.partition("=")
    if not (key and equals and label):
        raise value.refused("a label must be key=value.")
    try:
        labels.validate({key: label})
    except InvalidInput as error:
        raise value.refused(str(error)) from None
    return key, label


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(rf"{_DATE.pattern}[Tt][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]+)?([Zz]|[+-][0-9]{{2}}:[0-9]{{2}})")


def _moment(value: _Value) -> datetime:
    """Return the time. A date means its start in UTC."""
    text = value.text.strip().upper()
    try:
        if _DATE.fullmatch(text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        if _MOMENT.fullmatch(text):
            return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise value.refused('the value must be a date (2026-05-01) or a time in quotes ("2026-05-01T09:30:00Z").')


_KEYS: dict[str, Callable[[_Value], object]] = {
    "title": _text,
    "repo": _text,
    "branch": _text,
    "search": _text,
    "archived": _one_of(Archived),
    "has_unread": _is_true,
    "pinned": _is_true,
    "status": _status,
    "source": _some_of(Source),
    "owner": _id_or_name,
    "label": _label,
    "folder": _id_or_name,
    "workspace": _id_or_name,
    "model": _id_or_name,
    "client": _one_of(Client),
    "active_after": _moment,
    "active_before": _moment,
}
_NAMES = ", ".join(_KEYS)
_REPEATED = frozenset({"title", "repo", "branch", "search", "label"})
_FIELDS = {"label": "labels"}


def _shown(text: str) -> str:
    """Return the text for an error message, with escapes for characters that are not printable."""
    return "'" + "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text) + "'"


# The number of characters that are searched for a match. If the match is later, the snippet is the text's beginning.
SOURCE_CHARS = 10_000
MAX_SNIPPET_CHARS = 160
_LEAD_CHARS = 60

_SPACES = re.compile(r"\s+")
# Terms that the search excludes: a minus, and the word or the phrase after it.
_NOT_WANTED = re.compile(r'(?:^|(?<=\s))-(?:"[^"]*"|\S+)')
_WORD = re.compile(r"\w+")
# Markdown that a line of plain text does not need: fences, headings, list marks, bold text and code.
_LINE_MARKS = re.compile(r"^[ \t]*(?:`{3,}[^`\n]*$|#{1,6}[ \t]|[-*+][ \t])", re.MULTILINE)
_PAIRED_MARKS = re.compile(r"\*\*([^*\n]+)\*\*|`([^`\n]+)`")


def snippet(text: str, queries: Iterable[str]) -> str:
    """Return the text around the first word that the queries look for. If there is none, return the beginning.

    The text is plain: marks of Markdown are removed.
    """
    shown = _SPACES.sub(" ", _plain(text[:SOURCE_CHARS])).strip()
    words = [word for query in queries for word in _WORD.findall(_NOT_WANTED.sub(" ", query)) if word.lower() != "or"]
    at = _first(shown, words)
    start = 0 if at <= _LEAD_CHARS else _word_start(shown, at - _LEAD_CHARS, before=at)
    end = start + MAX_SNIPPET_CHARS
    cut = shown[start:end].strip()
    return f"{'…' if start else ''}{cut}{'…' if end < len(shown) or len(text) > SOURCE_CHARS else ''}"


def _plain(text: str) -> str:
    return _PAIRED_MARKS.sub(lambda found: found[1] or found[2], _LINE_MARKS.sub("", text))


def _first(text: str, words: list[str]) -> int:
    if not words:
        return 0
    wanted = "|".join(re.escape(word) for word in words)
    found = re.search(rf"\b(?:{wanted})\b", text, re.IGNORECASE)
    return found.start() if found else 0


def _word_start(text: str, at: int, *, before: int) -> int:
    """Return the first start of a word in `at`..`before`; `at` if there is none."""
    space = text.find(" ", at, before)
    return space + 1 if space >= 0 else at
