"""Conversion of the files of a user message for the model: unchanged, as text, or as a note about a missing file.

Texts and notes are elements such as `<attachment>`. Attributes are escaped; the content is the user's text, unchanged.
"""

from __future__ import annotations

import base64
import binascii
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

import msgspec

from rookery.domain.chat.errors import ChatError
from rookery.domain.chat.model_prompt import PromptFile, PromptText
from rookery.domain.chat.parts import File, FileReference

MAX_PASTED_BYTES = 131_072

_INLINED = frozenset({"text/plain", "text/markdown", "text/csv", "application/json"})
_PASTED = frozenset(
    {
        "application/json",
        "application/xml",
        "application/javascript",
        "application/x-javascript",
        "application/yaml",
        "application/x-yaml",
    }
)
_NAMELESS_TYPES = frozenset({"", "application/octet-stream"})


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with its bytes. `is_pasted`: the user interface made it from a long text that the user pasted.

    `is_left_out`: the file exists, but its bytes were not loaded because they do not fit into the prompt.
    """

    media_type: str
    data: bytes
    name: str | None = None
    is_pasted: bool = False
    is_left_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """The files that a model accepts. Images must be smaller than `max_image_bytes`; None means no limit."""

    accepts: Callable[[str], bool]
    max_image_bytes: int | None = None


class ImageTooLarge(ChatError):
    """Raised if the newest user message has an image that the model's provider would refuse."""

    def __init__(self, name: str | None, max_bytes: int) -> None:
        self.name = name
        self.max_bytes = max_bytes
        which = f"The image {name!r}" if name else "An image"
        super().__init__(
            f"{which} is too large for this model: images must be smaller than {size_for_people(max_bytes)}. "
            "Edit the message and attach a smaller one, or choose another model."
        )


def plain_type(media_type: str) -> str:
    """Return the media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def convert(
    part: File, files: Mapping[UUID, StoredFile], *, rules: FileRules, is_newest: bool
) -> PromptText | PromptFile | None:
    """Return the part of the prompt for one file; None if the file is empty.

    An image that is too large raises `ImageTooLarge` in the newest message, which the user can edit. In older messages,
    it is replaced by a note, so that the chat can continue with another model.
    """
    file = _find(part, files)
    if file is None:
        return PromptText(_missing(part.media_type))
    if file.is_left_out:
        return PromptText(omitted(file.media_type, file.name))
    if not file.data:
        return None
    media_type = plain_type(file.media_type)
    if file.is_pasted and (media_type.startswith("text/") or media_type in _PASTED):
        return PromptText(_pasted(file))
    attributes = _attributes(name=file.name, type=media_type)
    if not rules.accepts(media_type):
        if media_type in _INLINED:
            return PromptText(_element("attachment", attributes, _text(file.data)))
        return PromptText(
            f"<attachment-omitted{attributes}>This model cannot read files of this type.</attachment-omitted>"
        )
    if is_too_large(media_type, len(file.data), rules=rules):
        assert rules.max_image_bytes is not None
        if is_newest:
            raise ImageTooLarge(file.name, rules.max_image_bytes)
        return PromptText(
            f"<attachment-omitted{attributes}>This image is too large for this model: the limit is "
            f"{size_for_people(rules.max_image_bytes)}.</attachment-omitted>"
        )
    return PromptFile(media_type=media_type, data=file.data, name=file.name)


def is_too_large(media_type: str, size: int, *, rules: FileRules) -> bool:
    return media_type.startswith("image/") and rules.max_image_bytes is not None and size >= rules.max_image_bytes


def omitted(media_type: str, name: str | None = None) -> str:
    """Return the note for a file that is left out to save space in the prompt."""
    attributes = _attributes(name=name, type=plain_type(media_type))
    return f"<attachment-omitted{attributes}>Left out to save room.</attachment-omitted>"


def quote(reference: FileReference) -> str:
    """Return a quoted piece of a file as an element.

    A blank piece gives an element without content; line 0 means that there are no line numbers.
    """
    start, end = reference.start_line, reference.end_line
    lines = None if not end else str(start) if start == end else f"{start}-{end}"
    attributes = _attributes(path=reference.file_name, lines=lines)
    if not reference.content.strip():
        return f"<file-reference{attributes}/>"
    return _element("file-reference", attributes, reference.content)


def cut_utf8(data: bytes, max_bytes: int) -> bytes:
    """Return at most the first `max_bytes`. The end is not inside a character."""
    if len(data) <= max_bytes:
        return data
    end = max_bytes
    while end > 0 and max_bytes - end < 4 and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]


def size_for_people(size: int) -> str:
    return f"{size / (1024 * 1024):g} MiB" if size >= 1024 * 1024 else f"{size} bytes"


def _find(part: File, files: Mapping[UUID, StoredFile]) -> StoredFile | None:
    if part.file_id is not None:
        return files.get(part.file_id)
    try:
        data = base64.b64decode(part.data or "", validate=True)
    except binascii.Error:
        return None
    return StoredFile(media_type=part.media_type, data=data, name=part.name)


def _missing(media_type: str) -> str:
    plain = plain_type(media_type)
    attributes = "" if plain in _NAMELESS_TYPES else _attributes(type=plain)
    return (
        f"<attachment-missing{attributes}>This file was deleted. If it is still needed, ask the user to upload it "
        "again.</attachment-missing>"
    )


def _pasted(file: StoredFile) -> str:
    kept = cut_utf8(file.data, MAX_PASTED_BYTES)
    element = _element("pasted-text", _attributes(name=file.name), _text(kept))
    if len(kept) == len(file.data):
        return element
    return f"{element}\n[The pasted text was cut: this is the start of it, {len(kept)} of {len(file.data)} bytes.]"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _element(tag: str, attributes: str, body: str) -> str:
    return f"<{tag}{attributes}>\n{body}\n</{tag}>"


def _attributes(**values: str | None) -> str:
    """Return the attributes that have a value, in the given order. Control characters are replaced by spaces."""
    shown = {
        name: html.escape("".join(char if char.isprintable() else " " for char in value))
        for name, value in values.items()
        if value
    }
    return "".join(f' {name}="{value}"' for name, value in shown.items())
