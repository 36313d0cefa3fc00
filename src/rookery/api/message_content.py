"""Message content that clients send: the parts of a message, and fields that several request bodies share.

The rules of `domain.chat` are attached to fields here, so that all errors are reported together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from rookery.api.caller import Caller
from rookery.api.errors import BadFields, FieldError
from rookery.api.request_bodies import TOOL_NAME, Body, faults, rule
from rookery.domain.chat import labels, messages, parts, submitted_content, titles
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.parts import File, FileReference, Part, Text
from rookery.domain.content import invisible_characters, uploads
from rookery.domain.content.attachments import StoredFile
from rookery.store.chats.files import FileInfo, Origin
from rookery.tools import registry
from rookery.worker.short_texts import pasted_text

MAX_PARTS = 100
MAX_TITLE_CHARS = 200
MAX_SERVERS = 50
MAX_TOOLS = 250
MAX_TOOLS_BYTES = 256 * 1024

V = TypeVar("V")


class TextInput(Body):
    type: Literal["text"]
    text: str

    @field_validator("text")
    @classmethod
    def _check(cls, text: str) -> str:
        return _by_rules(text, Text(text), "text")

    def part(self) -> Part:
        return Text(self.text.strip())


class FileInput(Body):
    """An uploaded file."""

    type: Literal["file"]
    file_id: UUID

    def part(self) -> Part:
        return File(file_id=self.file_id)


class FileReferenceInput(Body):
    """A quoted snippet, not an uploaded file."""

    type: Literal["file-reference"]
    file_name: str
    start_line: int
    end_line: int
    content: str

    @field_validator("file_name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return _by_rules(name, FileReference(name, 0, 0, ""), "file_name")

    @field_validator("start_line")
    @classmethod
    def _check_start(cls, line: int) -> int:
        return _by_rules(line, FileReference("-", line, line, ""), "start_line")

    @field_validator("end_line")
    @classmethod
    def _check_end(cls, line: int, info: ValidationInfo) -> int:
        return _by_rules(line, FileReference("-", info.data.get("start_line", 0), line, ""), "end_line")

    @field_validator("content")
    @classmethod
    def _check_content(cls, content: str) -> str:
        return _by_rules(content, FileReference("-", 0, 0, content), "content")

    def part(self) -> Part:
        return FileReference(self.file_name, self.start_line, self.end_line, self.content)


def _by_rules(value: V, part: Part, member: str) -> V:
    """Return the value if the rules for submitted content accept this field of the part."""
    for fault in submitted_content.find_faults((part,)):
        if fault.field.endswith(f".{member}"):
            raise ValueError(fault.message)
    return value


InputPart: TypeAlias = Annotated[TextInput | FileInput | FileReferenceInput, Field(discriminator="type")]
Content: TypeAlias = Annotated[list[InputPart], Field(min_length=1, max_length=MAX_PARTS)]


class DynamicTool(Body):
    """A tool that the client executes."""

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str
    input_schema: dict[str, Any]

    @field_validator("input_schema")
    @classmethod
    def _check_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        if schema.get("type") != "object":
            raise ValueError('The schema of a tool\'s input must have "type": "object".')
        return schema


def _check_tools(tools: list[DynamicTool]) -> list[DynamicTool]:
    seen: set[str] = set()
    found: list[tuple[str, str]] = []
    for place, tool in enumerate(tools):
        if tool.name in seen:
            found.append((f"tools[{place}].name", f"There are two tools named {tool.name}."))
        if registry.is_reserved(tool.name):
            message = f"{tool.name} is the name of a built-in tool. Choose another name."
            found.append((f"tools[{place}].name", message))
        seen.add(tool.name)
    if found:
        raise faults(*found)
    size = len(encoded_tools(tools) or "")
    if size > MAX_TOOLS_BYTES:
        raise ValueError(f"All tools together may have at most {MAX_TOOLS_BYTES} bytes; these have {size}.")
    return tools


def encoded_tools(tools: Sequence[DynamicTool]) -> str | None:
    """Return the tools as they are stored."""
    return msgspec.json.encode([tool.model_dump() for tool in tools]).decode() if tools else None


def _trimmed_title(title: str) -> str:
    title = title.strip()
    if not 1 <= len(title) <= MAX_TITLE_CHARS:
        raise ValueError(f"A title has 1 to {MAX_TITLE_CHARS} characters; this one has {len(title)}.")
    return title


def _check_labels(given: dict[str, str]) -> dict[str, str]:
    found: list[tuple[str, str]] = []
    try:
        labels.validate(dict.fromkeys((str(place) for place in range(len(given))), "x"))  # checks the number of labels
    except InvalidInput as error:
        raise faults((error.field, str(error))) from None
    for key, value in given.items():
        try:
            labels.validate({key: value})
        except InvalidInput as error:
            found.append((error.field, str(error)))
    if found:
        raise faults(*found)
    return given


Tools: TypeAlias = Annotated[list[DynamicTool], Field(max_length=MAX_TOOLS), AfterValidator(_check_tools)]
Title: TypeAlias = Annotated[
    str, AfterValidator(_trimmed_title), rule(lambda title: messages.check_storable("title", title))
]
Labels: TypeAlias = Annotated[dict[str, str], AfterValidator(_check_labels)]
SystemPrompt: TypeAlias = Annotated[
    str, rule(lambda prompt: invisible_characters.check_prompt(prompt, field="system_prompt"))
]
ServerIds: TypeAlias = Annotated[list[UUID], Field(max_length=MAX_SERVERS)]


async def resolve_files(caller: Caller, content: Sequence[InputPart]) -> tuple[Part, ...]:
    """Return the parts as they are stored, with the type and name of each file.

    Raise 400 for files that cannot be used.
    """
    given = tuple(part.part() for part in content)
    named = parts.file_ids(given)
    if not named:
        return given
    found = await caller.store.files.find_readable(caller.user.id, named)
    _check_files(given, found)
    return submitted_content.with_facts(given, {file_id: info.facts for file_id, info in found.items()})


def _check_files(given: Sequence[Part], found: dict[UUID, FileInfo]) -> None:
    missing: list[FieldError] = []
    refused: list[FieldError] = []
    for place, part in enumerate(given):
        if not isinstance(part, File) or part.file_id is None:
            continue
        field = f"content[{place}].file_id"
        info = found.get(part.file_id)
        if info is None:
            missing.append(FieldError(field, f"There is no file {part.file_id} of yours. Upload it again."))
        elif info.mime_type not in uploads.ALLOWED_TYPES:
            refused.append(FieldError(field, f"Messages cannot hold files of type {info.mime_type}."))
    if missing:
        raise BadFields([*missing, *refused], code="file_unavailable")
    if refused:
        raise BadFields(refused)


async def fallback_title(caller: Caller, content: Sequence[Part]) -> str:
    """Return a title from the first words of the message, or else of an attached text."""
    said = titles.title_text(content)
    if said:
        return titles.fallback_title(said)
    stored: dict[UUID, StoredFile] = {}
    for part in content:
        if isinstance(part, File) and part.file_id is not None and uploads.is_text(part.media_type):
            read = await caller.store.files.read(part.file_id)
            is_pasted = read.info.origin == Origin.PASTED
            stored[part.file_id] = StoredFile(
                media_type=part.media_type, data=read.data, name=part.name, is_pasted=is_pasted
            )
    return titles.fallback_title(pasted_text(content, stored))
