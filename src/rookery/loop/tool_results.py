"""Tool results: converts the output of a tool to its stored form, cut to its share of the context window.

The functions are pure. The conversion of a large output takes long; `needs_thread` returns whether it must run in a
thread.
"""

from __future__ import annotations

import codecs
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TypeGuard
from uuid import UUID

import msgspec
from msgspec import Raw

from rookery.domain.chat import parts, truncation
from rookery.domain.chat.parts import ContentError, File, Json, ToolResult
from rookery.loop.tool import Attachment, Media, ToolOutput
from rookery.telemetry.log import get_logger

log = get_logger("loop.tool_results")

LARGE_BYTES = 256 * 1024
# Longer texts are not parsed as JSON, because parsing blocks the whole process, even in a thread.
_MAX_JSON_CHARS = 4 * 1024 * 1024
# Longer JSON is cut as text and not value by value.
_MAX_CUT_BYTES = 1024 * 1024
# No model accepts more, and every later prompt would contain it.
MAX_MEDIA_BYTES = 20 * 1024 * 1024
# An upper limit of the bytes that `{"output": ...}` adds to the text.
_WRAPPING_BYTES = 32
# Results are not cut below this length, because they would be meaningless.
_MIN_CAPPED_BYTES = 256
_SURROGATES = re.compile("[\ud800-\udfff]")


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The stored result of one call: the result part, and the files that the tool attached."""

    result: ToolResult
    files: tuple[File, ...] = ()
    is_truncated: bool = False

    @property
    def is_error(self) -> bool:
        return self.result.is_error


class UnusableOutput(ValueError):
    """Raised when a tool's output cannot be stored."""


class CallName(msgspec.Struct, frozen=True):
    """The call that a result answers."""

    call_id: str
    tool_name: str
    server_id: UUID | None = None


def error_result(call: CallName, text: str, *, at: datetime, max_bytes: int) -> CallResult:
    return shape(call, ToolOutput(text, is_error=True), at=at, max_bytes=max_bytes)


class ResultLimit(msgspec.Struct, frozen=True):
    """The length limit of a result, and the path of its full text if that is stored."""

    max_bytes: int
    kept_in: str = ""

    def cut(self, text: str, max_bytes: int | None = None) -> str:
        return truncation.cut_text(text, self.max_bytes if max_bytes is None else max_bytes, kept_in=self.kept_in)


def shape(call: CallName, output: ToolOutput, *, at: datetime, max_bytes: int, kept_in: str = "") -> CallResult:
    """Return the stored form of an output. Raise `UnusableOutput` if it is an object that is not JSON."""
    if not isinstance(output, ToolOutput):
        raise UnusableOutput(f"{type(output).__name__} is no output of a tool")
    value, is_truncated = _value(output, ResultLimit(max_bytes, kept_in))
    result = ToolResult(
        call.call_id,
        call.tool_name,
        result=value,
        is_error=output.is_error,
        is_media=output.media is not None,
        mcp_server_id=call.server_id,
        created_at=at,
        provider_meta=parts.json_value(_encoded(output.provider_metadata)) or None,
    )
    return CallResult(result=result, files=_files(output.attachments, call), is_truncated=is_truncated)


def needs_thread(output: ToolOutput) -> bool:
    """Return whether converting the output would block the event loop."""
    if not isinstance(output, ToolOutput):
        return False
    if output.media is not None and len(output.media.data) > LARGE_BYTES:
        return True
    if isinstance(output.value, Mapping):
        return _rough_size(output.value, depth=0) > LARGE_BYTES
    return len(output.value) > LARGE_BYTES


def _rough_size(value: object, *, depth: int) -> int:
    """Return the approximate length of the JSON. Stop counting once it is known to be large."""
    if isinstance(value, str | bytes):
        return len(value)
    if depth > 8:
        return 0
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    size = 8
    for child in children:
        size += _rough_size(child, depth=depth + 1)
        if size > LARGE_BYTES:
            break
    return size


def _value(output: ToolOutput, limit: ResultLimit) -> tuple[Raw, bool]:
    if output.media is not None:
        return _media(output.media, output.value, limit)
    if isinstance(output.value, Mapping):
        return _object(output.value, limit)
    return _text(clean_text(output.value), limit, is_error=output.is_error)


def clean_text(value: str | bytes) -> str:
    """Return the text with U+FFFD in place of zero bytes and unpaired surrogates, which cannot be stored."""
    text = value if isinstance(value, str) else _decode(value)
    text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        # This pattern is used only after the check, because it is a hundred times slower than the check.
        return _SURROGATES.sub("\ufffd", text)
    return text


def _decode(data: bytes) -> str:
    """Decode in pieces, because invalid text is slow to decode and other threads run only between the pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = [decoder.decode(data[start : start + LARGE_BYTES]) for start in range(0, len(data), LARGE_BYTES)]
    return "".join((*pieces, decoder.decode(b"", final=True)))


def _text(text: str, limit: ResultLimit, *, is_error: bool) -> tuple[Raw, bool]:
    if is_error:
        return _wrapped("error", text, limit)
    if not text:
        return Raw(b"{}"), False
    if len(text) > _MAX_JSON_CHARS:
        return _wrapped("output", text, limit)
    try:
        found = _storable(parts.json_text(text))
    except ContentError:
        return _wrapped("output", text, limit)
    return _fitted(found, limit)


def _wrapped(key: str, text: str, limit: ResultLimit) -> tuple[Raw, bool]:
    # The limit applies to the text and not to its JSON, which may be longer because of escapes.
    cut = limit.cut(text)
    return parts.json_raw({key: cut}), cut != text


def _object(value: Mapping[str, Json], limit: ResultLimit) -> tuple[Raw, bool]:
    # Long strings are cut before the object is encoded. If the JSON is still too long, it is cut as JSON.
    cut: list[int] = []
    raw, is_fitted = _fitted(_storable(_encoded(_bounded(value, limit, cut=cut, depth=0))), limit)
    return raw, is_fitted or bool(cut)


def _bounded(value: Json, limit: ResultLimit, *, cut: list[int], depth: int) -> Json:
    """Return the value with all strings cut to the limit. Append the length of each longer string to `cut`."""
    match value:
        case str() if len(value) > limit.max_bytes:
            cut.append(len(value))
            return limit.cut(clean_text(value))
        case Mapping() if depth <= parts.MAX_DEPTH:
            return {key: _bounded(item, limit, cut=cut, depth=depth + 1) for key, item in value.items()}
        case list() | tuple() if depth <= parts.MAX_DEPTH:
            return [_bounded(item, limit, cut=cut, depth=depth + 1) for item in value]
        case _:
            return value


def _encoded(value: Mapping[str, Json]) -> Raw:
    try:
        return parts.json_text(bytes(parts.json_raw(dict(value))))
    except (ContentError, TypeError, ValueError, OverflowError) as error:
        raise UnusableOutput(str(error)) from error


def _storable(raw: Raw) -> Raw:
    """Return the same JSON without U+0000, which models and terminals do not handle."""
    if b"\\u0000" not in bytes(raw):
        return raw
    return parts.json_raw(_cleaned(parts.json_value(raw)))


def _cleaned(value: Json) -> Json:
    match value:
        case str():
            return clean_text(value)
        case list():
            return [_cleaned(item) for item in value]
        case dict():
            return {clean_text(key): _cleaned(item) for key, item in value.items()}
        case _:
            return value


def _fitted(raw: Raw, limit: ResultLimit) -> tuple[Raw, bool]:
    size, max_bytes = len(bytes(raw)), limit.max_bytes
    if size <= max_bytes:
        return raw, False
    if size > max(_MAX_CUT_BYTES, 4 * max_bytes):
        # Long strings are already cut, so this is a large number of small values. Cutting them one by one would take
        # seconds. Half of the limit is used, because quotes are escaped when the JSON becomes a string.
        half = limit.cut(bytes(raw).decode(), max_bytes // 2 - _WRAPPING_BYTES)
        return parts.json_raw({"output": half}), True
    return truncation.cut_json(raw, max_bytes, kept_in=limit.kept_in), True


def _media(media: Media, value: Mapping[str, Json] | str | bytes, limit: ResultLimit) -> tuple[Raw, bool]:
    """Return the media. Its bytes have a separate limit, because a model does not read them as text."""
    if len(media.data) > MAX_MEDIA_BYTES:
        raise UnusableOutput(
            f"it has {len(media.data)} bytes of {media.mime_type}; at most {MAX_MEDIA_BYTES} can be kept"
        )
    text = media.text or (value if isinstance(value, str | bytes) else bytes(_encoded(value)))
    clean = clean_text(text)
    cut = limit.cut(clean)
    stored: dict[str, Json] = {
        "data": b64encode(media.data).decode(),
        "mime_type": clean_text(media.mime_type),
        "text": cut,
    }
    if media.attachment_file_id is not None:
        stored["attachment_file_id"] = str(media.attachment_file_id)
    if media.attachment_name is not None:
        stored["attachment_name"] = clean_text(media.attachment_name)
    return parts.json_raw(stored), cut != clean


def _is_attachment(each: object) -> TypeGuard[Attachment]:
    """Return whether this is a valid attachment. Tools come from many sources, so their types are not trusted."""
    if not isinstance(each, Attachment):
        return False
    file_id: object = each.file_id
    return isinstance(file_id, UUID) and bool(each.media_type)


def _files(attachments: Sequence[object], call: CallName) -> tuple[File, ...]:
    """Return the attached files. Invalid attachments are logged and left out."""
    files: list[File] = []
    for each in attachments:
        if not _is_attachment(each):
            log.warning("attachment_malformed", tool=call.tool_name, call_id=call.call_id)
            continue
        name = None if each.name is None else clean_text(each.name)
        files.append(File(clean_text(each.media_type), name=name, file_id=each.file_id))
    return tuple(files)


# The batch as a whole


def batch_budget_bytes(context_limit: int | None, *, percent: int) -> int:
    """Return the limit of all results of a batch. For an unknown window, three times the limit of one result."""
    window = 3 * truncation.UNKNOWN_BUDGET_BYTES
    if context_limit is not None and context_limit > 0:
        window = context_limit * truncation.BYTES_PER_TOKEN
    return window * percent // 100


def cap_batch(
    results: Sequence[CallResult], max_bytes: int, kept_in: Mapping[int, str] = MappingProxyType({})
) -> tuple[CallResult, ...]:
    """Cut the largest results to one common length, so that all results fit into the limit. Media does not count.

    `kept_in` maps the index of a result to the path of its full text.
    """
    limit_bytes = _common_limit(results, max_bytes)
    if limit_bytes is None:
        return tuple(results)
    return tuple(
        _cut(each, ResultLimit(limit_bytes, kept_in.get(index, ""))) if _text_bytes(each) > limit_bytes else each
        for index, each in enumerate(results)
    )


def fit(result: CallResult, max_bytes: int, kept_in: str = "") -> CallResult:
    """Return the result, cut as JSON if it is longer than `max_bytes`. This may be slow."""
    value = result.result.result
    assert not isinstance(value, msgspec.UnsetType)
    cut, is_cut = _fitted(_storable(value), ResultLimit(max_bytes, kept_in))
    part = msgspec.structs.replace(result.result, result=cut)
    return msgspec.structs.replace(result, result=part, is_truncated=result.is_truncated or is_cut)


def size_of(result: CallResult) -> int:
    """Return the number of bytes that the result takes in a prompt. Media counts as none."""
    return _text_bytes(result)


def find_overlong(results: Sequence[CallResult], max_bytes: int) -> tuple[int, ...]:
    """Return the indices of the results that `cap_batch` would cut."""
    limit_bytes = _common_limit(results, max_bytes)
    return tuple(
        index for index, each in enumerate(results) if limit_bytes is not None and _text_bytes(each) > limit_bytes
    )


def _common_limit(results: Sequence[CallResult], max_bytes: int) -> int | None:
    """Return the common length limit of the results; None if all fit uncut."""
    sizes = [_text_bytes(result) for result in results]
    if sum(sizes) <= max_bytes:
        return None
    return max(truncation.common_length(sizes, max_bytes), _MIN_CAPPED_BYTES)


def is_capping_slow(results: Sequence[CallResult], max_bytes: int) -> bool:
    """Return whether `cap_batch` would block the event loop."""
    total = sum(map(_text_bytes, results))
    return total > max_bytes and total > LARGE_BYTES


def _text_bytes(result: CallResult) -> int:
    value = result.result.result
    return 0 if result.result.is_media or isinstance(value, msgspec.UnsetType) else len(bytes(value))


def _cut(result: CallResult, limit: ResultLimit) -> CallResult:
    value = result.result.result
    assert not isinstance(value, msgspec.UnsetType)
    part = msgspec.structs.replace(result.result, result=_cut_value(value, limit))
    return msgspec.structs.replace(result, result=part, is_truncated=True)


def _cut_value(raw: Raw, limit: ResultLimit) -> Raw:
    """Cut a result. A plain text is cut so that its JSON has the exact length; other values are cut as JSON."""
    value, max_bytes = parts.json_value(raw), limit.max_bytes
    match value:
        case {"output": str(text)} | {"error": str(text)} if len(value) == 1:
            (key,) = value
            allowed = max_bytes - _WRAPPING_BYTES
            for _ in range(4):
                cut = parts.json_raw({key: limit.cut(text, allowed)})
                if len(bytes(cut)) <= max_bytes:
                    return cut
                allowed = allowed * max_bytes // len(bytes(cut)) - _WRAPPING_BYTES
    return truncation.cut_json(raw, max_bytes, kept_in=limit.kept_in)
