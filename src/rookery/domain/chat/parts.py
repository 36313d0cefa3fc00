"""Message parts: their types, their stored JSON, and the form that clients get.

Stored content is a JSON array of objects, distinguished by `type`. Three facts are not visible in the structs:

- `args` and `result` are opaque JSON. They are `msgspec.Raw`, so that they are not decoded while tokens are streamed,
  and numbers stay as written. A missing value is `UNSET`; `Raw(b"null")` is a null. Two `Raw`s are equal if their bytes
  are equal. jsonb changes spaces and the order of keys, so use `same` to compare values.
- jsonb refuses U+0000 and lone surrogates. In all strings and keys, `encode` writes U+0000 as U+E000 U+E001, and
  U+E000 as U+E000 U+E000; `decode` reverses both. A lone surrogate becomes U+FFFD permanently. Use `decode` only for
  stored text, not for text of clients and providers.
- During an upgrade, an older version may read rows of a newer one. Unknown fields are ignored; they are not lost,
  because rows are not rewritten. An unknown part type or content version is a `ContentError`, because a prompt without
  the part would differ from the chat.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, UnsetType

CONTENT_VERSION = 1

# Both limits are chosen so that every reader can read what is stored. Python can read JSON with a nesting of about 900,
# and PostgreSQL of about 10,000. Python reads integers of up to 4,300 digits, and jsonb writes 1e4000 as 4,001 digits.
MAX_DEPTH = 256
MAX_NUMBER_DIGITS = 4000

# A decoded JSON value.
Json: TypeAlias = Any


class ContentError(ValueError):
    """Raised if content cannot be stored, or if stored content cannot be read."""


class _PartBase(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", gc=False):
    """The base class of all parts. Fields with their default value are not written; the others are, in this order.

    The garbage collector does not track parts: they have no reference cycles, and long histories have many parts.
    """


class Text(_PartBase, frozen=True, tag="text"):
    text: str
    refusal: bool = False
    provider_meta: dict[str, Json] | None = None


class Reasoning(_PartBase, frozen=True, tag="reasoning"):
    text: str
    created_at: datetime | None = None
    completed_at: datetime | None = None
    provider_meta: dict[str, Json] | None = None


class ToolCall(_PartBase, frozen=True, tag="tool-call"):
    """A tool call. `args_delta` is used in live parts only. `parsed_commands` is set for shell text, if possible."""

    tool_call_id: str
    tool_name: str
    args: Raw | UnsetType = UNSET
    args_delta: str | None = None
    parsed_commands: tuple[tuple[str, ...], ...] | None = None
    mcp_server_id: UUID | None = None
    provider_executed: bool = False
    hook_rewritten: bool = False
    created_at: datetime | None = None
    provider_meta: dict[str, Json] | None = None


class ToolResult(_PartBase, frozen=True, tag="tool-result"):
    """A tool result. `result_delta` and `result_reset` are used in live parts only."""

    tool_call_id: str
    tool_name: str
    result: Raw | UnsetType = UNSET
    result_delta: str | None = None
    result_reset: bool = False
    is_error: bool = False
    is_media: bool = False
    mcp_server_id: UUID | None = None
    provider_executed: bool = False
    created_at: datetime | None = None
    provider_meta: dict[str, Json] | None = None


class Source(_PartBase, frozen=True, tag="source"):
    url: str
    source_id: str | None = None
    title: str | None = None
    provider_meta: dict[str, Json] | None = None


class File(_PartBase, frozen=True, tag="file"):
    """A file. `data` is base64; a stored file has a `file_id` instead.

    Clients need not send the `media_type` of a stored file. The server sets it (`submitted_content.with_facts`).
    """

    # With a default factory, the field is always written, even if it is empty.
    media_type: str = msgspec.field(default_factory=str)
    name: str | None = None
    file_id: UUID | None = None
    data: str | None = None
    provider_meta: dict[str, Json] | None = None


class FileReference(_PartBase, frozen=True, tag="file-reference"):
    """A quoted piece of a file."""

    file_name: str
    start_line: int
    end_line: int
    content: str


class HookContext(_PartBase, frozen=True, tag="hook-context"):
    """Context that a hook adds, for the model only."""

    text: str


class HookNotice(_PartBase, frozen=True, tag="hook-notice"):
    """A notice that a hook adds, for users only."""

    text: str


class ContextFile(msgspec.Struct, frozen=True, gc=False):
    """An instruction file of a workspace context, without its text."""

    path: str
    size: int = 0
    hash: str = ""
    truncated: bool = False


class WorkspaceContext(_PartBase, frozen=True, tag="workspace-context"):
    """The workspace context that the model gets from this row on, shown to users only."""

    workspace_id: UUID
    generation: int
    hash: str
    files: tuple[ContextFile, ...] = ()
    skills: tuple[str, ...] = ()
    mcp_servers: tuple[str, ...] = ()


class AgentNotice(_PartBase, frozen=True, tag="agent-notice"):
    """The end of a subagent's turn, for its parent and the user. `outcome` is a value of `AgentOutcome`.

    `report` is the beginning of the subagent's report; `report_bytes` is the size of the whole report.
    """

    chat_id: UUID
    title: str
    kind: str
    outcome: str
    report: str = ""
    report_bytes: int = 0
    error: str | None = None


class TurnEnd(_PartBase, frozen=True, tag="turn-end"):
    """The mark of a turn that was stopped or has failed, shown to users only. `outcome` is `stopped` or `failed`.

    `kind` and `message` are those of the error. The error itself is gone when the chat continues.
    """

    outcome: str
    kind: str | None = None
    message: str = ""


Part: TypeAlias = (
    Text
    | Reasoning
    | ToolCall
    | ToolResult
    | Source
    | File
    | FileReference
    | HookContext
    | HookNotice
    | WorkspaceContext
    | AgentNotice
    | TurnEnd
)

_WITHOUT_META = (FileReference, HookContext, HookNotice, WorkspaceContext, AgentNotice, TurnEnd)

# `provider_meta` may contain Decimals, which keep numbers as they were written.
_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder = msgspec.json.Decoder(tuple[Part, ...], float_hook=Decimal)
_plain = msgspec.json.Decoder()
_exact = msgspec.json.Decoder(float_hook=Decimal)


def encode(parts: Sequence[Part]) -> str:
    """Return JSON text for a jsonb column. Raises `ContentError` if it cannot be stored.

    Each `Raw` value is checked separately. If only the whole text were checked, a value that closes the object around
    it could add a part unnoticed.
    """
    try:
        for part in parts:
            _check_part(part)
        data = _encoder.encode(parts)
    except (UnicodeEncodeError, ContentError):
        # Lone surrogates fail, as characters and as escapes. They are replaced, and other errors are raised.
        data = _encoder.encode([_repaired_part(part, index) for index, part in enumerate(parts)])
    text = data.decode()
    return _NEEDS_ESCAPE.sub(_escape, text) if _may_need_escape(data) else text


def decode(content: str | bytes, *, version: int = CONTENT_VERSION) -> tuple[Part, ...]:
    """Return the parts of stored content. Raises `ContentError` if it is damaged or of another version."""
    if version != CONTENT_VERSION:
        raise ContentError(
            f"This message has content version {version}; this server can read version {CONTENT_VERSION}. "
            "Upgrade all servers to the same release."
        )
    try:
        if _may_be_escaped(content):
            text = content if isinstance(content, str) else content.decode()
            content = _IS_ESCAPED.sub(_unescape, text)
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeError, ArithmeticError, RecursionError) as error:
        raise ContentError(f"The stored content of this message cannot be read: {error}.") from error


def unescape(text: str) -> str:
    """Return stored JSON text without the escapes, for readers that do not decode parts."""
    return _IS_ESCAPED.sub(_unescape, text) if _may_be_escaped(text) else text


def to_jsonb(value: msgspec.Struct) -> str:
    """Return JSON text of a struct for a jsonb column, with the escapes of `encode`. `unescape` reverses them."""
    data = bytes(json_raw(msgspec.to_builtins(value)))
    return _NEEDS_ESCAPE.sub(_escape, data.decode()) if _may_need_escape(data) else data.decode()


def is_json(text: str) -> bool:
    """Return whether `json_text` accepts the text."""
    try:
        json_text(text)
    except ContentError:
        return False
    return True


def json_raw(value: Json) -> Raw:
    """Return the value as JSON for `args` or `result`. Lone surrogates become U+FFFD."""
    try:
        return Raw(_encode_json(value))
    except UnicodeEncodeError:
        return Raw(_encode_json(_repaired(value)))


def json_text(text: str | bytes) -> Raw:
    """Check JSON text of a model or tool, and return it for `args` or `result`. Raises `ContentError`."""
    try:
        raw = Raw(text)
        _check_json(raw)
    except (UnicodeEncodeError, ContentError):
        raw = _repaired(Raw(_repaired(text)))
        _check_json(raw)
    return raw


def json_value(raw: Raw) -> Json:
    """Return the decoded value. Fractions are floats, or all Decimals if one of the numbers is no float.

    Raises `ContentError` if it is not JSON. Lone surrogates become U+FFFD.
    """
    try:
        return _plain.decode(raw)
    except (ValueError, RecursionError):
        return _exact_value(_repaired(raw))


def same(left: Sequence[Part], right: Sequence[Part]) -> bool:
    """Return whether both encode to the same JSON value.

    Spaces, the order of keys and the notation of numbers (1e2, 100) are ignored.
    """
    return _same_value(_exact_value(_encoder.encode(left)), _exact_value(_encoder.encode(right)))


def client_view(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts for clients, without hook context, provider data and the bytes of stored files."""
    return tuple(_without_internals(part) for part in parts if not isinstance(part, HookContext))


def file_ids(parts: Iterable[Part]) -> frozenset[UUID]:
    """Return the ids of the stored files that these parts name."""
    return frozenset([part.file_id for part in parts if isinstance(part, File) and part.file_id is not None])


def kind(part: Part) -> str:
    """Return the part's `type`."""
    return str(type(part).__struct_config__.tag)


def plain_text(parts: Iterable[Part]) -> str:
    """Return the text parts, joined, for search."""
    return " ".join(part.text for part in parts if isinstance(part, Text))


def _without_internals(part: Part) -> Part:
    if isinstance(part, File) and part.file_id is not None and part.data is not None:
        part = msgspec.structs.replace(part, data=None)
    if isinstance(part, _WITHOUT_META) or part.provider_meta is None:
        return part
    return msgspec.structs.replace(part, provider_meta=None)


# Storing: checks


def _check_part(part: Part) -> None:
    if isinstance(part, ToolCall):
        if part.args is not UNSET:
            _check_json(part.args)
    elif isinstance(part, ToolResult) and part.result is not UNSET:
        _check_json(part.result)
    if not isinstance(part, _WITHOUT_META) and part.provider_meta is not None:
        _check_json(_encode_json(part.provider_meta))


def _encode_json(value: Json) -> bytes:
    try:
        return _encoder.encode(value)
    except RecursionError as error:
        raise _too_deep() from error


def _check_json(data: Raw | bytes) -> None:
    try:
        value = _checker.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ContentError(f"This is not usable JSON: {error}.") from error
    except RecursionError as error:
        raise _too_deep() from error
    data = bytes(data)
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise _too_deep()


def _check_number(text: str) -> None:
    """Raise `ValueError` if a number that is not an integer is too long. The decoder itself refuses long integers."""
    if len(text) < 32 and "e" not in text and "E" not in text:
        return
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) + abs(int(exponent or 0)) > MAX_NUMBER_DIGITS:
        raise ValueError(f"a number has more than {MAX_NUMBER_DIGITS} digits")


_checker = msgspec.json.Decoder(float_hook=_check_number)


def _is_deeper(value: Json, limit: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        # Without recursion. The decoder creates no subclasses, so exact types are compared.
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def _too_deep() -> ContentError:
    return ContentError(f"This is not usable JSON: it is nested deeper than {MAX_DEPTH} levels.")


# Storing: characters. The patterns for JSON text also match an escaped backslash, which stays as it is. Otherwise its
# second character, before `u0000`, would look like the start of an escape.

_SURROGATES = re.compile(r"[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
_SURROGATE_ESCAPES = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\\\"
)
_NEEDS_ESCAPE = re.compile(r"\\(?:u0000|u[eE]000|\\)|\ue000")
_ESCAPED = {
    "\\u0000": "\ue000\ue001",
    "\ue000": "\ue000\ue000",
    "\\ue000": "\ue000\ue000",
    "\\uE000": "\ue000\ue000",
    "\\\\": "\\\\",
}
_IS_ESCAPED = re.compile(r"(?:\\u[eE]000|\ue000)(?:(?P<nul>\\u[eE]001|\ue001)|(?P<mark>\\u[eE]000|\ue000))|\\\\")
_SPECIAL_ESCAPES = re.compile(rb"\\u(?:0000|[eE]000)")
_MARK_ESCAPE = re.compile(r"\\u[eE]000")


def _may_need_escape(data: bytes) -> bool:
    """Return whether `_NEEDS_ESCAPE` has to search this text. May return True without need.

    The searches for one byte come first, because they are fast and exclude most content.
    """
    if b"\xee" in data and b"\xee\x80\x80" in data:
        return True
    return b"\\" in data and _SPECIAL_ESCAPES.search(data) is not None


def _may_be_escaped(content: str | bytes) -> bool:
    """Return whether `_IS_ESCAPED` has to search this text. U+E000 may be written as a character or as an escape."""
    if isinstance(content, bytes):
        return _may_need_escape(content)
    if "\ue000" in content:
        return True
    return "\\" in content and _MARK_ESCAPE.search(content) is not None


def _escape(match: re.Match[str]) -> str:
    return _ESCAPED[match[0]]


def _unescape(match: re.Match[str]) -> str:
    if match["nul"]:
        return "\\u0000"
    return "\ue000" if match["mark"] else match[0]


def _repaired_part(part: Part, index: int) -> Part:
    try:
        repaired = msgspec.structs.replace(
            part, **{name: _repaired(getattr(part, name)) for name in part.__struct_fields__}
        )
        _check_part(repaired)
    except ContentError as error:
        raise ContentError(f"Part {index} ({kind(part)}) cannot be stored: {error}") from error
    return repaired


def _repaired(value: Json) -> Json:
    """Return the value with U+FFFD for each lone surrogate, as a character or as an escape."""
    try:
        return _repaired_tree(value)
    except RecursionError as error:
        raise _too_deep() from error


def _repaired_tree(value: Json) -> Json:
    match value:
        case str():
            return _SURROGATES.sub(_repair, value)
        case Raw():
            return Raw(_SURROGATE_ESCAPES.sub(_repair_escape, _utf8(value)))
        case dict():
            return {_repaired_tree(key): _repaired_tree(child) for key, child in value.items()}
        case list():
            return [_repaired_tree(child) for child in value]
        case tuple():
            # An empty tuple stays equal to the default value, which is not written.
            return tuple(_repaired_tree(child) for child in value)
        case _:
            return value


def _repair(match: re.Match[str]) -> str:
    """Return the character of a surrogate pair, or U+FFFD for a lone surrogate."""
    return match[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le") if len(match[0]) == 2 else "\ufffd"


def _repair_escape(match: re.Match[str]) -> str:
    return "\\ufffd" if match["lone"] else match[0]


def _utf8(raw: Raw) -> str:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise ContentError(f"This is not usable JSON: {error}.") from error


# Comparing


def _exact_value(data: Raw | bytes) -> Json:
    try:
        return _exact.decode(data)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise ContentError(f"This is not usable JSON: {error}.") from error


def _same_value(left: Json, right: Json) -> bool:
    match left, right:
        case dict(), dict():
            return left.keys() == right.keys() and all(_same_value(left[key], right[key]) for key in left)
        case list(), list():
            return len(left) == len(right) and all(map(_same_value, left, right))
        case bool(), _:
            return left is right
        case _:
            # In Python, True equals 1; in JSON, it does not.
            return not isinstance(right, bool) and bool(left == right)
