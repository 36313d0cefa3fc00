"""Message content from clients: validation, and the facts about files that the server adds.

Clients may not send fields that the server trusts, such as `provider_meta`, which is sent to the provider. All faults
are reported together, each with its field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.parts import File, FileReference, Part, Text, kind

MAX_TEXT_BYTES = 256 * 1024
MAX_FILE_NAME_CHARS = 1024

_SERVER_FIELD = "Only the server sets this field. Leave it out."


class Fault(msgspec.Struct, frozen=True):
    """A fault in one field. `field` is a path such as `content[0].text`."""

    field: str
    message: str


class InvalidContent(InvalidInput):
    """Raised if a client may not send the content. `faults` has all faults; the message is that of the first."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__(faults[0].field, faults[0].message)


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The type and name of a stored file. Values from a client are replaced by these."""

    media_type: str
    name: str | None = None


def submitted(parts: Iterable[Part], *, field: str = "content") -> tuple[Part, ...]:
    """Return the parts in stored form, with trimmed texts. Raises `InvalidContent` if a client may not send them."""
    given = tuple(parts)
    if faults := find_faults(given, field=field):
        raise InvalidContent(faults)
    return tuple(Text(part.text.strip()) if isinstance(part, Text) else part for part in given)


def find_faults(parts: Sequence[Part], *, field: str = "content") -> tuple[Fault, ...]:
    """Return all faults in these parts, in their order. Field names begin with `field`."""
    if not parts:
        return (Fault(field, "A message needs at least one part."),)
    return tuple(
        Fault(f"{field}[{index}].{name}", problem)
        for index, part in enumerate(parts)
        for name, problem in _problems(part)
    )


def with_facts(parts: Iterable[Part], files: Mapping[UUID, FileFacts]) -> tuple[Part, ...]:
    """Return the parts with type and name of their files. A missing file is refused later, when files are linked."""
    return tuple(_with_facts(part, files) if isinstance(part, File) else part for part in parts)


def _with_facts(part: File, files: Mapping[UUID, FileFacts]) -> File:
    facts = files.get(part.file_id) if part.file_id is not None else None
    if facts is None:
        return part
    return msgspec.structs.replace(part, media_type=facts.media_type, name=facts.name)


def _problems(part: Part) -> Iterator[tuple[str, str]]:
    match part:
        case Text():
            yield from _text_problems(part)
        case File():
            yield from _file_problems(part)
        case FileReference():
            yield from _reference_problems(part)
        case _:
            yield "type", f"A message can have text, file and file-reference parts, not {kind(part)}."


def _text_problems(part: Text) -> Iterator[tuple[str, str]]:
    if not part.text.strip():
        yield "text", "The text is empty. Write something, or leave the part out."
    yield from _size_problem("text", part.text)
    if part.refusal:
        yield "refusal", _SERVER_FIELD
    if part.provider_meta is not None:
        yield "provider_meta", _SERVER_FIELD


def _file_problems(part: File) -> Iterator[tuple[str, str]]:
    if part.file_id is None:
        yield "file_id", "Upload the file first, then send its file_id."
    if part.data is not None:
        yield "data", "Upload the file first, then send its file_id without data."
    if part.provider_meta is not None:
        yield "provider_meta", _SERVER_FIELD


def _reference_problems(part: FileReference) -> Iterator[tuple[str, str]]:
    if not 1 <= len(part.file_name) <= MAX_FILE_NAME_CHARS:
        size = len(part.file_name)
        yield "file_name", f"A file name must have 1 to {MAX_FILE_NAME_CHARS} characters; this one has {size}."
    if part.start_line < 0:
        yield "start_line", "A line number must be 0 or more."
    elif part.end_line < part.start_line:
        yield "end_line", "The last line is before the first."
    yield from _size_problem("content", part.content)


def _size_problem(name: str, text: str) -> Iterator[tuple[str, str]]:
    # Lone surrogates are stored as U+FFFD, which has three bytes as well.
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_TEXT_BYTES:
        yield name, f"A text can have at most {MAX_TEXT_BYTES} bytes; this one has {size}. Attach it as a file."
