"""Redaction of debug records: hides secrets in headers, URLs, texts and bodies, and shortens long bodies.

The names and patterns of secrets are in `telemetry/redaction`. This module applies them to each type of body. A body
that cannot be checked is replaced by a marker. Everything here is pure and may run in any thread.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw

from rookery.telemetry import redaction
from rookery.telemetry.redaction import MIN_SECRET_CHARS, REDACTED, SecretRegistry, hide_secrets, is_secret_name

T = TypeVar("T")

BODY_BYTES = 65_536
TAIL_BYTES = 16_384
# A response in JSON must be complete to be checked. A longer one is dropped.
MAX_JSON_BYTES = 1_048_576
MAX_REQUEST_BYTES = 4_194_304
NOT_JSON = '{"error": "body is not valid JSON, redacted"}'

_LONG_STRING = 2048
_STRING_HEAD = 1024
_STRING_TAIL = 256
# Media, signatures and encrypted reasoning. Shorter runs may be words and paths.
_BASE64_CHARS = 256
_BASE64 = re.compile(rf"[A-Za-z0-9+/_-]{{{_BASE64_CHARS},}}={{0,2}}")
# The results that are kept.
_MAX_KEPT = 1024
# The length of texts that are checked together. A check of more would delay the event loop.
_CHECKED_CHARS = 8192
# The arrays of messages in the requests of the wires.
_HISTORIES = ("messages", "input", "contents")
# A margin for the marker of elided messages and for commas.
_MARKER_BYTES = 256

# Numbers keep their digits: the encoder writes `Raw` as it was read.
_decoder = msgspec.json.Decoder(float_hook=lambda digits: Raw(digits.encode()))
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_is_secret_key = lru_cache(maxsize=4096)(redaction.is_secret_key)


def _is_empty(value: Any) -> bool:
    """Return whether the value of a secret key is empty, so that nothing has to be hidden."""
    return value is None or value == "" or type(value) is bool


def _may_be_document(text: str) -> bool:
    return text[:1].isspace() or text[:1] in ("{", "[", '"')


def _decoded(text: str) -> Any:
    """Return the value of a text that is a JSON document; None if it is not one."""
    if not _may_be_document(text):
        return None
    try:
        return _decoder.decode(text)
    except _UNREADABLE:
        return None


class CapturedBody(msgspec.Struct, frozen=True, kw_only=True):
    """The captured bytes of a body. If there is a hash, bytes between `head` and `tail` were dropped."""

    head: bytes
    tail: bytes = b""
    size: int
    dropped_sha256: str | None = None

    @property
    def is_whole(self) -> bool:
        return self.dropped_sha256 is None


class RedactedBody(msgspec.Struct, frozen=True, kw_only=True):
    """A body in its stored form: a text without secrets. `size` is the original size in bytes.

    `is_truncated`: a part of the text was left out. `is_replaced`: a marker replaces the whole body.
    """

    data: bytes
    size: int
    encoding: Literal["utf-8"] = "utf-8"
    is_truncated: bool = False
    is_replaced: bool = False


class BodyMeta(msgspec.Struct, frozen=True, kw_only=True):
    """A `RedactedBody` without its text."""

    size: int
    encoding: str = "utf-8"
    is_truncated: bool = False
    is_replaced: bool = False


class Redactor:
    """Hides secrets in recorded data. `header_names` are the headers that administrators configured.

    `pause` is called between two texts. In a thread, it lets the event loop run.
    """

    def __init__(
        self,
        secrets: SecretRegistry | None = None,
        header_names: Collection[str] = (),
        *,
        body_bytes: int = BODY_BYTES,
        pause: Callable[[], None] | None = None,
    ) -> None:
        self._pause = pause
        self._secrets = secrets or SecretRegistry()
        self._header_names = frozenset(name.lower() for name in header_names)
        self.body_bytes = body_bytes
        self._kept: dict[tuple[str, bytes], tuple[object, Any]] = {}

    def kept(self, kind: str, item: object, make: Callable[[], T]) -> T:
        """Return the result of `make` for this content, and cache it until the secrets change.

        Most chats have the same tools, but as different objects.
        """
        try:
            digest = hashlib.sha256(msgspec.json.encode(item)).digest()
        except UnicodeEncodeError:  # half of a surrogate pair
            return make()
        key, version = (kind, digest), self._secrets.version
        found = self._kept.get(key)
        if found is not None and found[0] is version:
            result: T = found[1]
            return result
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        made = make()
        self._kept[key] = (version, made)
        return made

    def headers(self, headers: Mapping[str, str], configured: Collection[str] = ()) -> dict[str, str]:
        """Return the headers. Values of `configured` headers are always hidden."""
        hidden = self._header_names.union(name.lower() for name in configured)
        return {
            self.text(name): REDACTED if name.lower() in hidden or is_secret_name(name) else self.text(value)
            for name, value in headers.items()
        }

    def url(self, url: str) -> str:
        return self.text(redaction.hide_in_url(url))

    def text(self, text: str) -> str:
        """Hide secrets in a text: known values, patterns of keys, URLs, and JSON values under secret keys."""
        if self._pause is not None:
            self._pause()
        return _hide_json_values(hide_secrets(text, self._secrets))

    def json_text(self, text: str) -> str:
        """Hide secrets in a text that may be a JSON document. A text without secrets is returned unchanged."""
        if _may_be_document(text):
            try:
                return self._document(text)
            except _UNREADABLE:
                pass
        return self.text(text)

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets. If there are none, the same object is returned. Base64 is kept."""
        return self._redacted(value, path=None)

    def schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Hide secrets in the texts of a JSON schema. Its keys are names of parameters."""
        source = msgspec.json.encode(schema).decode()
        redacted: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(self._value(_decoder.decode(source), path=(), in_schema=True))
        )
        return redacted

    def body(self, data: bytes, content_type: str | None) -> RedactedBody:
        """Redact and shorten the body of a request."""
        if len(data) > MAX_REQUEST_BYTES:
            return _replaced(_dropped(len(data), _sha256(data)), len(data))
        if _kind(content_type) != "json" or not data:
            return self.captured(CapturedBody(head=data, size=len(data)), content_type)
        try:
            text = data.decode()
            value = _decoder.decode(text)
            redacted = self._redacted(value, path=())
            shortened = _shortened(redacted, self.body_bytes)
            if shortened is redacted:
                stored = self._same_or_encoded(text, value, redacted).encode()
            else:
                stored = msgspec.json.encode(shortened)
        except _UNREADABLE:
            return _replaced(NOT_JSON, len(data))
        tail = min(TAIL_BYTES, self.body_bytes // 4)
        cut = _cut(stored, self.body_bytes - tail, tail)
        return RedactedBody(data=cut, size=len(data), is_truncated=cut is not stored or shortened is not redacted)

    def captured(self, body: CapturedBody, content_type: str | None) -> RedactedBody:
        """Redact and shorten a body of which the middle may be missing."""
        kind = _kind(content_type)
        if kind == "binary":
            return _replaced(f"[BINARY {body.size} bytes sha256:{_sha256(body.head + body.tail)}]", body.size)
        if kind == "json" and not body.is_whole:
            return _replaced(_dropped(body.size, body.dropped_sha256 or ""), body.size)
        if not body.head and not body.tail:
            return RedactedBody(data=b"", size=body.size)
        match kind:
            case "json":
                return self._captured_json(body)
            case "events":
                return self._captured_lines(body, self._event_lines)
            case "lines":
                return self._captured_lines(body, self._json_lines)
        return self._captured_text(body, content_type, is_form=kind == "form")

    # By type of body

    def _captured_json(self, body: CapturedBody) -> RedactedBody:
        try:
            text = self._document(body.head.decode(), path=())
        except _UNREADABLE:
            return _replaced(NOT_JSON, body.size)
        return self._stored(text, body.size)

    def _captured_lines(self, body: CapturedBody, redact: Any) -> RedactedBody:
        if body.is_whole:
            (lines,) = redact([body.head.decode("utf-8", "replace").split("\n")])
            return self._stored("\n".join(lines), body.size)
        # A line that was cut is not complete JSON and could not be checked.
        head = body.head.decode("utf-8", "replace").split("\n")[:-1]
        tail = body.tail.decode("utf-8", "replace").split("\n")[1:]
        before, after = redact([head, tail])
        dropped = body.size - len(body.head) - len(body.tail)
        marker = _dropped(dropped, body.dropped_sha256 or "")
        text = "\n".join([*before, marker, *after])
        return RedactedBody(data=text.encode("utf-8", "replace"), size=body.size, is_truncated=True)

    def _captured_text(self, body: CapturedBody, content_type: str | None, *, is_form: bool) -> RedactedBody:
        charset = _charset(content_type)
        head, tail = body.head.decode(charset, "replace"), body.tail.decode(charset, "replace")
        if "\0" in head or "\0" in tail:
            return _replaced(f"[BINARY {body.size} bytes sha256:{_sha256(body.head + body.tail)}]", body.size)
        if is_form:
            head, tail = redaction.hide_in_query(head), redaction.hide_in_query(tail.partition("&")[2])
        if body.is_whole:
            return self._stored(_without_base64(self.text(head)), body.size)
        # A partial word may be a part of a secret.
        head, tail = head[: _last_space(head)], tail[_first_space(tail) :]
        before = self._secrets.hide_cut(self.text(head), at_end=True)
        after = self._secrets.hide_cut(_hide_key_end(self.text(tail)), at_start=True)
        marker = _dropped(body.size - len(body.head) - len(body.tail), body.dropped_sha256 or "")
        text = f"{_without_base64(before)}\n{marker}\n{_without_base64(after)}"
        return RedactedBody(data=text.encode("utf-8", "replace"), size=body.size, is_truncated=True)

    def _json_lines(self, sections: list[list[str]]) -> list[list[str]]:
        return [[self._line(line) for line in lines] for lines in sections]

    def _line(self, line: str) -> str:
        if not line.strip():
            return line
        try:
            return self._document(line, path=())
        except _UNREADABLE:
            return NOT_JSON

    def _event_lines(self, sections: list[list[str]]) -> list[list[str]]:
        """Redact the lines of an event stream. A secret may be split over the deltas of several events."""
        events = [[_EventLine(line) for line in lines] for lines in sections]
        for lines, section in zip(sections, events, strict=True):
            # One check of all lines is much faster than a check of each string, but does not look inside escapes.
            whole = "\n".join(lines)
            is_clean = self.text(whole) == whole
            for line in section:
                self._redact_event(line, is_clean=is_clean and "\\" not in line.source)
        self._hide_split_secrets(events)
        return [[line.text() for line in section] for section in events]

    def _redact_event(self, line: _EventLine, *, is_clean: bool) -> None:
        if not line.is_data:
            if line.source:
                line.source = _without_base64(self.text(line.source))
            return
        try:
            line.value = _decoder.decode(line.payload)
            if is_clean and not (len(line.payload) >= _BASE64_CHARS and _BASE64.search(line.payload)):
                return
            redacted = self._value(line.value, path=())
        except _UNREADABLE:
            line.payload = line.payload if line.payload.strip() in ("", "[DONE]") else NOT_JSON
            return
        line.payload = self._same_or_encoded(line.payload, line.value, redacted)
        line.value = redacted

    def _hide_split_secrets(self, sections: list[list[_EventLine]]) -> None:
        for number, section in enumerate(sections):
            channels: dict[object, list[_Piece]] = {}
            for line in section:
                if line.value is not None:
                    for channel, holder, key in _deltas(line.value, ()):
                        channels.setdefault(channel, []).append((line, holder, key))
            for pieces in channels.values():
                joined = "".join(holder[key] for _, holder, key in pieces)
                hidden = self.json_text(joined) if len(pieces) > 1 else joined
                # The events between two sections were dropped.
                if number + 1 < len(sections):
                    hidden = self._secrets.hide_cut(hidden, at_end=True)
                if number > 0:
                    hidden = self._secrets.hide_cut(_hide_key_end(hidden), at_start=True)
                if hidden != joined:
                    _put(pieces, hidden)

    # JSON

    def _document(self, text: str, *, path: tuple[str, ...] | None = None) -> str:
        """Redact one JSON document. Raise an error of `_UNREADABLE` if the text is not exactly one."""
        value = _decoder.decode(text)
        return self._same_or_encoded(text, value, self._redacted(value, path=path))

    def _same_or_encoded(self, source: str, value: Any, redacted: Any) -> str:
        """Return the source if nothing changed, otherwise the encoded value.

        With a repeated key, the source contains more than its value. In this case the value is always encoded.
        """
        if redacted is value and self.text(source) == source:
            return source
        return msgspec.json.encode(redacted).decode()

    def _redacted(self, value: Any, *, path: tuple[str, ...] | None) -> Any:
        """Redact the top value of a body, or a value outside of a body. Most values contain no secret."""
        return value if self._is_clean(value, allows_base64=path is None) else self._value(value, path=path)

    def _is_clean(self, value: Any, *, allows_base64: bool) -> bool:
        """Return whether `_value` would change nothing. If this is uncertain, return False.

        All strings are checked together, which is several times faster than checking them one by one. A secret inside
        one string is also found in the joined text.
        """
        pending, strings, size = [value], list[str](), 0
        while pending:
            item = pending.pop()
            kind = type(item)
            if kind is str and len(item) >= MIN_SECRET_CHARS:
                strings.append(item)
                size += len(item)
                if (inner := _decoded(item)) is not None:
                    pending.append(inner)
            elif kind is list:
                pending.extend(item)
            elif kind is dict:
                for key, inner in item.items():
                    if _is_secret_key(key) and not _is_empty(inner):
                        return False
                    if len(key) >= MIN_SECRET_CHARS:
                        strings.append(key)
                        size += len(key)
                    pending.append(inner)
            if size > _CHECKED_CHARS:
                if not self._are_clean(strings, allows_base64=allows_base64):
                    return False
                strings, size = [], 0
        return self._are_clean(strings, allows_base64=allows_base64)

    def _are_clean(self, strings: list[str], *, allows_base64: bool) -> bool:
        text = "\n".join(strings)
        return self.text(text) == text and (
            allows_base64 or not any(len(each) >= _BASE64_CHARS and _BASE64.search(each) for each in strings)
        )

    def _value(self, value: Any, *, path: tuple[str, ...] | None, in_schema: bool = False) -> Any:
        """Redact a JSON value. `path` is its position in a body; None for a value that cannot contain a schema."""
        if type(value) is str:
            return self._string(value, has_base64=path is None)
        if type(value) is list:
            items = [self._value(item, path=path, in_schema=in_schema) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        if type(value) is not dict:
            return value
        result: dict[str, Any] = {}
        is_changed = False
        for key, item in value.items():
            if not in_schema and _is_secret_key(key) and not _is_empty(item):
                new: Any = REDACTED
            elif path is None:
                new = self._value(item, path=None)
            else:
                place = (*path, key)
                new = self._value(item, path=place, in_schema=in_schema or _is_schema(place))
            name = key if len(key) < MIN_SECRET_CHARS else self.text(key)
            is_changed = is_changed or new is not item or name != key
            result[name] = new
        return result if is_changed else value

    def _string(self, text: str, *, has_base64: bool) -> str:
        if len(text) < MIN_SECRET_CHARS:
            return text
        hidden = self.json_text(text)
        if not has_base64:
            hidden = _without_base64(hidden)
        return text if hidden == text else hidden

    def _stored(self, text: str, size: int) -> RedactedBody:
        data = text.encode("utf-8", "replace")
        cut = _cut(data, self.body_bytes, TAIL_BYTES)
        return RedactedBody(data=cut, size=size, is_truncated=cut is not data)


# Content types

_TEXT_TYPES = ("application/xml", "application/javascript", "application/problem+xml")
_CHARSETS = {"iso-8859-1": "latin-1", "latin-1": "latin-1", "windows-1252": "cp1252", "utf-16": "utf-16"}


def _kind(content_type: str | None) -> Literal["json", "events", "lines", "form", "text", "binary"]:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type in ("", "application/json") or media_type.endswith("+json"):
        return "json"
    if media_type == "text/event-stream":
        return "events"
    if media_type in ("application/x-ndjson", "application/ndjson", "application/jsonl"):
        return "lines"
    if media_type == "application/x-www-form-urlencoded":
        return "form"
    if media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith("+xml"):
        return "text"
    return "binary"


def is_json(content_type: str | None) -> bool:
    """Return whether a body of this type is one JSON document. A body without a type counts as JSON."""
    return _kind(content_type) == "json"


def is_event_stream(content_type: str | None) -> bool:
    return _kind(content_type) == "events"


def _charset(content_type: str | None) -> str:
    found = re.search(r"charset=\"?([\w-]+)", content_type or "", re.IGNORECASE)
    return _CHARSETS.get(found[1].lower(), "utf-8") if found else "utf-8"


# Event streams

# Fields that distinguish the deltas of different blocks, and fields that are repeated in every event.
_MARKS = ("index", "output_index", "content_index", "summary_index", "item_id")
_ROOT_MARKS = (*_MARKS, "type")
_ALL_MARKS = frozenset(_ROOT_MARKS)
_LABELS = frozenset({"id", "type", "object", "model", "role", "item_id", "response_id", "system_fingerprint", "name"})
_Piece = tuple["_EventLine", Any, Any]


class _EventLine:
    """One line of an event stream. `value` is the decoded payload of a `data` line; None if there is none."""

    __slots__ = ("is_data", "payload", "prefix", "source", "value")

    def __init__(self, source: str) -> None:
        self.source = source
        self.value: Any = None
        self.is_data = source.startswith("data:")
        start = 5 + (source[5:6] == " ")
        self.prefix, self.payload = (source[:start], source[start:]) if self.is_data else ("", "")

    def text(self) -> str:
        return self.prefix + self.payload if self.is_data else self.source


def _deltas(value: Any, channel: tuple[object, ...]) -> list[tuple[object, Any, Any]]:
    """Return the strings of an event that may continue those of earlier events: their channel, their holder and key."""
    found: list[tuple[object, Any, Any]] = []
    _add_deltas(value, channel, found)
    return found


def _add_deltas(value: Any, channel: tuple[object, ...], found: list[tuple[object, Any, Any]]) -> None:
    if type(value) is dict:
        marks: tuple[object, ...] | None = None
        for key, item in value.items():
            kind = type(item)
            if kind is str:
                if key in _LABELS:
                    continue
            elif kind is not dict and kind is not list:
                continue
            if marks is None:
                marks = _marks(value, _MARKS if channel else _ROOT_MARKS)
            if kind is str:
                found.append(((*channel, marks, key), value, key))
            else:
                _add_deltas(item, (*channel, marks, key), found)
    elif type(value) is list:
        for position, item in enumerate(value):
            if type(item) is str:
                found.append(((*channel, position), value, position))
            else:
                # Elements with an index are distinguished by it, because later events contain only some of them.
                is_marked = type(item) is dict and "index" in item
                _add_deltas(item, channel if is_marked else (*channel, position), found)


def _marks(value: dict[str, Any], names: tuple[str, ...]) -> tuple[object, ...]:
    """Return the fields that tell the blocks of an event apart, in the order of `names`."""
    if _ALL_MARKS.isdisjoint(value):
        return ()
    return tuple((name, value[name]) for name in names if type(value.get(name)) in (int, str))


def _put(pieces: list[_Piece], text: str) -> None:
    """Put the text into the first piece, and empty the other pieces."""
    for number, (line, holder, key) in enumerate(pieces):
        holder[key] = text if number == 0 else ""
        line.payload = msgspec.json.encode(line.value).decode()


# JSON values inside texts

_KEY = re.compile(r'"([^"\\]{1,100})(\\*)"\s*:\s*')
_BRACKETS = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPED_BRACKETS = re.compile(r"[{}\[\]]")
_SCALAR = re.compile(r"[^\s,{}\[\]\"\\]+")
_HARMLESS = ("null", "true", "false", "None", "True", "False")


def _hide_json_values(text: str) -> str:
    """Hide the values under secret keys in a text that contains JSON, which may be incomplete or escaped."""
    if '"' not in text or not redaction.may_have_secret_keys(text):
        return text
    shown: list[str] = []
    copied = position = 0
    while match := _KEY.search(text, position):
        position = match.end()
        if not _is_secret_key(match[1]):
            # The quote after text that is not a key may begin a key.
            position = match.end(1) if match[2] else match.end()
            continue
        end = _value_end(text, position, escape=match[2])
        if end > position and text[position:end] not in _HARMLESS:
            shown += (text[copied:position], f'{match[2]}"{REDACTED}{match[2]}"')
            copied = position = end
    return "".join([*shown, text[copied:]]) if shown else text


def _value_end(text: str, start: int, *, escape: str) -> int:
    """Return the end of a JSON value; the end of the text if the value is incomplete. `escape` precedes its quotes."""
    quote = escape + '"'
    if text.startswith(quote, start):
        end = start + len(quote)
        while (end := text.find(quote, end)) >= 0:
            before = end
            while text[before - 1] == "\\":
                before -= 1
            if (end - before) % 2 == 0 if not escape else end == before:
                return end + len(quote)
            end += 1
        return len(text)
    if text[start : start + 1] not in ("{", "["):
        found = _SCALAR.match(text, start)
        return found.end() if found else start
    depth = 0
    for match in (_ESCAPED_BRACKETS if escape else _BRACKETS).finditer(text, start):
        depth += (match[0] in ("{", "[")) - (match[0] in ("}", "]"))
        if depth == 0 and match[0] in ("}", "]"):
            return match.end()
    return len(text)


def _is_schema(path: tuple[str, ...]) -> bool:
    """Return whether the value at this path of a body is a JSON schema, whose keys are names of parameters."""
    place = path[1:] if path[0] == "response" else path
    if not place:
        return False
    if place[0] == "tools":
        return place[-1] in ("input_schema", "parameters")
    return place[0] in ("response_format", "text", "output_config", "output_format") and place[-1] == "schema"


# Shortening


def _shortened(value: Any, max_bytes: int) -> Any:
    """Return a request with long strings shortened, and with fewer messages if it is still too long."""
    value = _with_short_strings(value)
    encoded = msgspec.json.encode(value)
    if len(encoded) <= max_bytes or type(value) is not dict:
        return value
    for name in _HISTORIES:
        if type(value.get(name)) is list:
            rest = len(encoded) - len(msgspec.json.encode(value[name])) + _MARKER_BYTES
            return {**value, name: _without_middle(value[name], max_bytes - rest)}
    return value


def _with_short_strings(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        if len(value) <= _LONG_STRING:
            return value
        left_out = len(value) - _STRING_HEAD - _STRING_TAIL
        return f"{value[:_STRING_HEAD]}[... {left_out} characters ...]{value[-_STRING_TAIL:]}"
    if kind is not list and kind is not dict:
        return value
    changed: dict[Any, Any] = {}
    for key, item in enumerate(value) if kind is list else value.items():
        if (short := _with_short_strings(item)) is not item:
            changed[key] = short
    if not changed:
        return value
    if kind is list:
        return [changed.get(index, item) for index, item in enumerate(value)]
    return value | changed


def _without_middle(items: list[Any], max_bytes: int) -> list[Any]:
    """Return the first and the last items that fit, with a marker between them. The newest messages are the most
    important.
    """
    encoded = [msgspec.json.encode(item) for item in items]
    start, end = 0, len(items)
    left = max_bytes // 4
    while start < end and left >= len(encoded[start]) + 1:
        left -= len(encoded[start]) + 1
        start += 1
    left += max_bytes - max_bytes // 4
    while end > start and left >= len(encoded[end - 1]) + 1:
        left -= len(encoded[end - 1]) + 1
        end -= 1
    dropped = b",".join(encoded[start:end])
    if not dropped:
        return items
    marker = f"[TRUNCATED {end - start} messages, {len(dropped)} bytes sha256:{_sha256(dropped)}]"
    return [*items[:start], marker, *items[end:]]


def _cut(data: bytes, head: int, tail: int) -> bytes:
    """Return the first and the last bytes of a text that is too long, on the borders of code points."""
    if len(data) <= head + tail:
        return data
    dropped = data[head:-tail]
    first = data[:head].decode("utf-8", "ignore")
    last = data[-tail:].decode("utf-8", "ignore")
    return f"{first}{_dropped(len(dropped), _sha256(dropped))}{last}".encode()


def _without_base64(text: str) -> str:
    if len(text) < _BASE64_CHARS:
        return text
    return _BASE64.sub(lambda match: f"[base64 {len(match[0].rstrip('=')) * 3 // 4} bytes]", text)


_KEY_END = re.compile(r"\A.*?-----END [A-Z ]*PRIVATE KEY-----|\A[A-Za-z0-9_+/=.-]{8,}", re.DOTALL)


def _hide_key_end(text: str) -> str:
    """Hide the rest of a key at the start of a text whose beginning is missing."""
    return _KEY_END.sub(REDACTED, text, count=1)


def _first_space(text: str) -> int:
    found = re.search(r"\s", text)
    return found.start() if found else len(text)


def _last_space(text: str) -> int:
    return max(text.rfind(" "), text.rfind("\n"), text.rfind("\t"), 0)


def _dropped(size: int, sha256: str) -> str:
    return f"[TRUNCATED {size} bytes sha256:{sha256}]"


def _replaced(marker: str, size: int) -> RedactedBody:
    return RedactedBody(data=marker.encode(), size=size, is_truncated=marker != NOT_JSON, is_replaced=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
