"""Message content from clients: validation, and the facts that the server adds before it is stored.

Clients may not send fields that the server itself would trust: a `provider_meta` goes to the provider as the server's
own. All faults are reported together, each with its field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.parts import File, FileReference, Part, Text, kind

MAX_TEXT_BYTES = 256 * 1024
MAX_FILE_NAME_CHARS = 1024

_SERVERS_OWN = "This field is set by the server only. Leave it out."


class Fault(msgspec.Struct, frozen=True):
    """A fault in one field; `field` is a path such as `content[0].text`."""

    field: str
    message: str


class InvalidContent(InvalidInput):
    """Raised for content that a client may not send. `faults` has all faults; the message describes the first."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__(faults[0].field, faults[0].message)


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a stored file. The server knows them; values from a client are not trusted."""

    media_type: str
    name: str | None = None


def submitted(parts: Iterable[Part], *, field: str = "content") -> tuple[Part, ...]:
    """Return the parts as stored, texts trimmed. Raises `InvalidContent` if a client may not send them."""
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
    """Return the parts with type and name of the files they name. A missing file is left as it is: the store refuses it
    when it links the files of the message.
    """
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
            yield "type", f"A message can hold text, file and file-reference parts, not {kind(part)}."


def _text_problems(part: Text) -> Iterator[tuple[str, str]]:
    if not part.text.strip():
        yield "text", "The text is empty. Write something, or leave the part out."
    yield from _size_problem("text", part.text)
    if part.refusal:
        yield "refusal", _SERVERS_OWN
    if part.provider_meta is not None:
        yield "provider_meta", _SERVERS_OWN


def _file_problems(part: File) -> Iterator[tuple[str, str]]:
    if part.file_id is None:
        yield "file_id", "Upload the file first, then send its file_id."
    if part.data is not None:
        yield "data", "Upload the file first, then send its file_id without data."
    if part.provider_meta is not None:
        yield "provider_meta", _SERVERS_OWN


def _reference_problems(part: FileReference) -> Iterator[tuple[str, str]]:
    if not 1 <= len(part.file_name) <= MAX_FILE_NAME_CHARS:
        yield "file_name", f"A file name has 1 to {MAX_FILE_NAME_CHARS} characters; this one has {len(part.file_name)}."
    if part.start_line < 0:
        yield "start_line", "A line number is 0 or more."
    elif part.end_line < part.start_line:
        yield "end_line", "The last line stands before the first."
    yield from _size_problem("content", part.content)


def _size_problem(name: str, text: str) -> Iterator[tuple[str, str]]:
    # Lone surrogates are stored as U+FFFD, which has three bytes as well.
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_TEXT_BYTES:
        yield name, f"A text has at most {MAX_TEXT_BYTES} bytes; this one has {size}. Attach it as a file."
