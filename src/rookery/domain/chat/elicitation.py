"""Questions of MCP servers to the user during a tool call: a form, or an address to open. Pure.

A server describes a form by a flat JSON schema. It is read once, when the server asks; what is stored and shown are the
fields. A form must not ask for a secret, because answers are stored with the chat and are sent to the server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from rookery.domain.chat.errors import InvalidInput

MAX_QUESTIONS = 10
MAX_FIELDS = 50
MAX_OPTIONS = 500
MAX_TEXT = 4000
MAX_NAME = 200
MAX_URL = 2048
# The limit of one text in an answer.
MAX_ANSWER_CHARS = 20_000
FIELD = "answers.responses"

_SECRET_WORDS = frozenset(
    {"password", "passwd", "pwd", "passphrase", "secret", "token", "apikey", "credential", "credentials", "cvv", "cvc"}
)
_SECRET_PHRASE = re.compile(
    r"\b(?:pass(?:word|phrase)|(?:api|access|secret|private|recovery)[ _-]?(?:key|token|code)|client[ _-]?secret"
    r"|card[ _-]number|one[- ]time code)\b",
    re.IGNORECASE,
)
_words = re.compile(r"[^\W_]+")
_humps = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


class Request(Protocol):
    """A question as a server asks it."""

    @property
    def id(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def schema(self) -> Mapping[str, Any] | None: ...
    @property
    def url(self) -> str | None: ...


class FieldKind(StrEnum):
    """`choice` is one of the options, and `choices` are several of them."""

    TEXT = "text"
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    CHOICES = "choices"


class FormOption(msgspec.Struct, frozen=True, omit_defaults=True):
    value: str
    title: str = ""


class FormField(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A field of a form. `minimum` and `maximum` limit a number, the length of a text, or the number of choices.

    `format` of a text is `email`, `uri`, `date` or `date-time`.
    """

    name: str
    kind: FieldKind
    title: str = ""
    description: str = ""
    required: bool = False
    options: tuple[FormOption, ...] = ()
    default: str | bool | float | tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    format: str = ""


class ServerQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question: a form with fields, or, with `url`, an address that the user opens before the call continues."""

    id: str
    message: str = ""
    fields: tuple[FormField, ...] = ()
    url: str = ""


class Elicitation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The questions that a call waits for. `server` is the name of the server that asks."""

    server: str
    questions: tuple[ServerQuestion, ...] = ()


class Given(msgspec.Struct, frozen=True):
    """The stored answer of a user: by question, the action and the values for the server."""

    responses: dict[str, dict[str, Any]]


class Unusable(Exception):
    """Raised for questions that users must not or cannot be asked. The message is for the model."""


# Reading a server's questions


def read(server: str, requests: Sequence[Request]) -> Elicitation:
    """Return the questions of a server. Raise `Unusable` if one of them cannot be asked."""
    if not 0 < len(requests) <= MAX_QUESTIONS:
        raise Unusable(f"{server} asked {len(requests)} questions at once; 1 to {MAX_QUESTIONS} are possible.")
    if len({each.id for each in requests}) < len(requests):
        raise Unusable(f"{server} asked two questions with the same id.")
    return Elicitation(server, tuple(_question(server, each) for each in requests))


def _question(server: str, request: Request) -> ServerQuestion:
    message = request.message[:MAX_TEXT]
    if request.mode == "url":
        return ServerQuestion(id=request.id, message=message, url=_address(server, request.url or ""))
    if request.mode != "form":
        raise Unusable(f"{server} asked in a way that is not known here ({request.mode[:40]!r}).")
    schema = request.schema or {}
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    if len(properties) > MAX_FIELDS:
        raise Unusable(f"{server} asked with a form of {len(properties)} fields; at most {MAX_FIELDS} are possible.")
    required = schema.get("required")
    needed = (
        frozenset(each for each in required if isinstance(each, str)) if isinstance(required, list) else frozenset()
    )
    fields = tuple(_field(server, name, each, name in needed) for name, each in properties.items())
    return ServerQuestion(id=request.id, message=message, fields=fields)


def _address(server: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = None, ""
    if parts is None or parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or len(url) > MAX_URL:
        raise Unusable(f"{server} asked the user to open an address that cannot be opened safely.")
    if not url.isascii() or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise Unusable(f"{server} asked the user to open an address that cannot be opened safely.")
    return url


def _field(server: str, name: str, schema: Any, required: bool) -> FormField:
    if not isinstance(schema, Mapping) or not 0 < len(name) <= MAX_NAME:
        raise Unusable(f"{server} asked with a form that cannot be shown: the field {name[:80]!r} is not described.")
    title, description = _text(schema.get("title"), MAX_NAME), _text(schema.get("description"), MAX_TEXT)
    if _is_secret(name, title, description) or schema.get("format") == "password":
        raise Unusable(
            f"{server} asked for a secret in a form (the field {name[:80]!r}). The user was not asked, because "
            "secrets must not be given to a server in a chat. Tell the user, who can log in to the server instead."
        )
    made = _kind(schema)
    if made is None:
        raise Unusable(f"{server} asked with a form that cannot be shown: the field {name[:80]!r} is not a simple one.")
    kind, options = made
    low, high = _LIMITS[kind]
    return FormField(
        name=name,
        kind=kind,
        title=title,
        description=description,
        required=required,
        options=options,
        default=_default(schema.get("default"), kind, options),
        minimum=_number(schema.get(low)),
        maximum=_number(schema.get(high)),
        format=_text(schema.get("format"), 20) if kind is FieldKind.TEXT else "",
    )


_LIMITS = {
    FieldKind.TEXT: ("minLength", "maxLength"),
    FieldKind.NUMBER: ("minimum", "maximum"),
    FieldKind.INTEGER: ("minimum", "maximum"),
    FieldKind.BOOLEAN: ("", ""),
    FieldKind.CHOICE: ("", ""),
    FieldKind.CHOICES: ("minItems", "maxItems"),
}


def _kind(schema: Mapping[str, Any]) -> tuple[FieldKind, tuple[FormOption, ...]] | None:
    """Return the kind of a field, and its options; None if it is not a flat field of the protocol."""
    match schema.get("type"):
        case "string":
            options = _options(schema)
            return (FieldKind.CHOICE, options) if options else (FieldKind.TEXT, ())
        case "number":
            return FieldKind.NUMBER, ()
        case "integer":
            return FieldKind.INTEGER, ()
        case "boolean":
            return FieldKind.BOOLEAN, ()
        case "array":
            items = schema.get("items")
            options = _options(items) if isinstance(items, Mapping) else ()
            return (FieldKind.CHOICES, options) if options else None
        case _:
            options = _options(schema)
            return (FieldKind.CHOICE, options) if options else None


def _options(schema: Mapping[str, Any]) -> tuple[FormOption, ...]:
    values, titles = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, list):
        named = titles if isinstance(titles, list) and len(titles) == len(values) else [""] * len(values)
        pairs: Iterable[tuple[Any, Any]] = zip(values, named, strict=True)
    else:
        listed = schema.get("oneOf") or schema.get("anyOf")
        if not isinstance(listed, list):
            return ()
        pairs = ((each.get("const"), each.get("title")) for each in listed if isinstance(each, Mapping))
    found = tuple(
        FormOption(value[:MAX_NAME], _text(title, MAX_NAME))
        for value, title in pairs
        if isinstance(value, str) and value
    )
    return found if len(found) <= MAX_OPTIONS else ()


def _default(value: Any, kind: FieldKind, options: Sequence[FormOption]) -> str | bool | float | tuple[str, ...] | None:
    known = {each.value for each in options}
    match kind:
        case FieldKind.TEXT:
            return value[:MAX_TEXT] if isinstance(value, str) else None
        case FieldKind.CHOICE:
            return value if isinstance(value, str) and value in known else None
        case FieldKind.BOOLEAN:
            return value if isinstance(value, bool) else None
        case FieldKind.NUMBER | FieldKind.INTEGER:
            return _number(value)
        case FieldKind.CHOICES:
            if not isinstance(value, list):
                return None
            return tuple(each for each in value if isinstance(each, str) and each in known)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < 1e300 else None


def _text(value: Any, most: int) -> str:
    return value[:most] if isinstance(value, str) else ""


def _is_secret(name: str, title: str, description: str) -> bool:
    words = {word.casefold() for text in (name, title) for word in _words.findall(_humps.sub(" ", text))}
    if words & _SECRET_WORDS:
        return True
    return any(_SECRET_PHRASE.search(text) for text in (name.replace("_", " "), title, description))


# Checking a user's answer


def check(asked: Elicitation, given: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return the answers for the server, by question. Raise `InvalidInput` for the first wrong value."""
    given = given or {}
    known = {question.id for question in asked.questions}
    for question_id in given:
        if question_id not in known:
            raise InvalidInput(FIELD, f"There is no question with the id {question_id[:80]!r}.")
    answers: dict[str, dict[str, Any]] = {}
    for question in asked.questions:
        answer: dict[str, Any] = {"action": "accept"}
        if not question.url:
            answer["content"] = _content(question, given.get(question.id) or {})
        answers[question.id] = answer
    return answers


def _content(question: ServerQuestion, given: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in question.fields}
    for name in given:
        if name not in known:
            raise InvalidInput(FIELD, f"The form has no field {name[:80]!r}.")
    content: dict[str, Any] = {}
    for field in question.fields:
        value = given.get(field.name)
        if value is None:
            value = list(field.default) if isinstance(field.default, tuple) else field.default
        if value is None or value == "":
            if field.required:
                raise _wrong(field, "a value is needed")
            continue
        content[field.name] = _checked(field, value)
    return content


def _checked(field: FormField, value: Any) -> Any:
    match field.kind:
        case FieldKind.TEXT:
            return _checked_text(field, value)
        case FieldKind.BOOLEAN:
            if not isinstance(value, bool):
                raise _wrong(field, "it is true or false")
            return value
        case FieldKind.NUMBER | FieldKind.INTEGER:
            return _checked_number(field, value)
        case FieldKind.CHOICE:
            if not isinstance(value, str) or value not in {each.value for each in field.options}:
                raise _wrong(field, "it is not one of the options")
            return value
        case FieldKind.CHOICES:
            options = {each.value for each in field.options}
            if not isinstance(value, list) or not all(isinstance(each, str) and each in options for each in value):
                raise _wrong(field, "it is a list of the options")
            _within(field, len(value), "options")
            return list(dict.fromkeys(value))


def _checked_text(field: FormField, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_ANSWER_CHARS:
        raise _wrong(field, f"it is a text of at most {MAX_ANSWER_CHARS} characters")
    _within(field, len(value), "characters")
    if field.format == "email" and not _EMAIL.fullmatch(value):
        raise _wrong(field, "it is an e-mail address")
    if field.format == "uri" and not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:\S+$", value):
        raise _wrong(field, "it is an address such as https://example.com")
    try:
        if field.format == "date":
            date.fromisoformat(value)
        elif field.format == "date-time":
            datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        raise _wrong(field, f"it is a {field.format} such as 2026-07-28") from None
    return value


def _checked_number(field: FormField, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(field, "it is a number")
    if field.kind is FieldKind.INTEGER:
        if value != int(value):
            raise _wrong(field, "it is a whole number")
        _within(field, value, "")
        return int(value)
    _within(field, value, "")
    return float(value) if isinstance(value, float) else value


def _within(field: FormField, size: float, unit: str) -> None:
    if field.minimum is not None and size < field.minimum:
        raise _wrong(field, f"at least {field.minimum:g} {unit}".strip())
    if field.maximum is not None and size > field.maximum:
        raise _wrong(field, f"at most {field.maximum:g} {unit}".strip())


def _wrong(field: FormField, why: str) -> InvalidInput:
    return InvalidInput(f"{FIELD}.{field.name}", f"This value cannot be used: {why}.")


def declined(server: str, reason: str) -> str:
    """Return the tool result for a question that the user did not answer."""
    told = reason.strip()
    then = f" The user says: {told}" if told else ""
    return f"The user declined to answer the question of {server}; the call was not completed.{then}"
