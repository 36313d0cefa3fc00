"""Requests in the form that is stored for replays: complete, but without secrets and without media.

In contrast to the normalized request, texts are not cut. Steps of a run share their prefix in the same way. The
settings of the model config are not included, because a replay uses the current config.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from rookery.debug.normalization import Prefix
from rookery.debug.redaction import Redactor
from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import (
    Meta,
    Prompt,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm.types import Call, JsonFormat, Tool, WebSearch

VERSION = 1
_LEVEL = 1


class FormText(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    text: str
    meta: Meta | None = None


class FormReasoning(msgspec.Struct, frozen=True, tag="reasoning", omit_defaults=True):
    text: str
    meta: Meta | None = None


class FormFile(msgspec.Struct, frozen=True, tag="file", omit_defaults=True):
    media_type: str
    size: int
    name: str | None = None


class FormCall(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    id: str
    name: str
    input: str
    provider_executed: bool = False
    meta: Meta | None = None


class FormResult(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    """The result of a tool call. `media_type` is the type of an image that was left out."""

    id: str
    name: str
    text: str
    is_error: bool = False
    media_type: str | None = None
    provider_executed: bool = False
    meta: Meta | None = None


FormPart: TypeAlias = FormText | FormReasoning | FormFile | FormCall | FormResult


class FormMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Role
    parts: tuple[FormPart, ...]
    is_native: bool = True
    is_whole: bool = True
    finish_reason: str | None = None
    prefix_fp: bytes | None = None


class ReplayForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request. Its first `prefix_len` messages are those of step `prefix_from`. With `has_same_tools`, so are its
    tools.
    """

    version: int = msgspec.field(default=0)
    messages: tuple[FormMessage, ...]
    prefix_from: int | None = None
    prefix_len: int = 0
    has_same_tools: bool = False
    tools: tuple[Tool, ...] = ()
    web_search: WebSearch | None = None
    tool_choice: str = "auto"
    format_name: str | None = None
    format_schema: Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    effort: Effort | None = None


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that can be sent again. `warnings` are sentences about differences from the recorded request."""

    prompt: Prompt
    tools: tuple[Tool, ...]
    may_search: bool
    tool_choice: str
    format: JsonFormat | None
    max_output_tokens: int | None
    effort: Effort | None
    warnings: tuple[str, ...] = ()


class Incomplete(Exception):
    """Raised when a recorded request refers to a step that is no longer stored."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ReplayForm)


def encode(call: Call, redactor: Redactor, prefix: Prefix = Prefix()) -> ReplayForm:  # noqa: B008 - frozen
    """Return the replay form of a call. Messages of the prefix are not encoded again."""
    new = call.prompt.messages[prefix.length :]
    return ReplayForm(
        version=VERSION,
        messages=tuple(_form_message(message, redactor) for message in new),
        prefix_from=prefix.step if prefix.length or prefix.has_same_tools else None,
        prefix_len=prefix.length,
        has_same_tools=prefix.has_same_tools,
        tools=()
        if prefix.has_same_tools
        else tuple(redactor.kept("form", tool, partial(_form_tool, tool, redactor)) for tool in call.tools),
        web_search=call.web_search,
        tool_choice=call.tool_choice,
        format_name=None if call.format is None else call.format.name,
        format_schema=None if call.format is None else call.format.schema,
        max_output_tokens=call.max_output_tokens,
        effort=call.effort,
    )


def pack(form: ReplayForm) -> bytes:
    return zlib.compress(_encoder.encode(form), _LEVEL)


def unpack(data: bytes) -> ReplayForm:
    """Raise `Incomplete` if the data is not of this version."""
    try:
        form = _decoder.decode(zlib.decompress(data))
    except (zlib.error, msgspec.DecodeError) as error:
        raise Incomplete("The recorded request cannot be read.") from error
    if form.version != VERSION:
        raise Incomplete("The recorded request was stored by another version.")
    return form


def decode(forms: Iterable[tuple[int, ReplayForm]]) -> ReplayRequest:
    """Return the request of the last form. `forms` are the steps of a run by number, in order.

    Raise `Incomplete` if a step that the request refers to is missing.
    """
    messages: dict[int, tuple[FormMessage, ...]] = {}
    tools: dict[int, tuple[Tool, ...]] = {}
    form: ReplayForm | None = None
    number = 0
    for number, form in forms:
        source = form.prefix_from
        prefix = messages.get(source, ())[: form.prefix_len] if source is not None else ()
        if len(prefix) < form.prefix_len:
            # A later step may not need this step.
            continue
        messages[number] = (*prefix, *form.messages)
        tools[number] = tools.get(source, ()) if form.has_same_tools and source is not None else form.tools
    if form is None or number not in messages:
        raise Incomplete("A step that this request continues is not stored any more.")
    warnings: list[str] = []
    prompt = Prompt(tuple(_prompt_message(message, warnings) for message in messages[number]))
    has_format = form.format_name is not None and form.format_schema is not None
    return ReplayRequest(
        prompt=prompt,
        tools=tools[number],
        may_search=form.web_search is not None,
        tool_choice=form.tool_choice,
        format=JsonFormat(form.format_name or "", form.format_schema or {}) if has_format else None,
        max_output_tokens=form.max_output_tokens,
        effort=form.effort,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _form_message(message: PromptMessage, redactor: Redactor) -> FormMessage:
    return FormMessage(
        role=message.role,
        parts=tuple(_form_part(part, redactor) for part in message.parts),
        is_native=message.is_native,
        is_whole=message.is_whole,
        finish_reason=message.finish_reason,
        prefix_fp=message.prefix_fp,
    )


def _form_part(part: PromptPart, redactor: Redactor) -> FormPart:
    match part:
        case PromptText():
            return FormText(redactor.text(part.text), redactor.value(part.meta))
        case PromptReasoning():
            return FormReasoning(redactor.text(part.text), redactor.value(part.meta))
        case PromptFile():
            return FormFile(part.media_type, len(part.data), None if part.name is None else redactor.text(part.name))
        case PromptCall():
            source = bytes(part.input).decode("utf-8", "replace")
            return FormCall(
                part.id, part.name, redactor.json_text(source), part.provider_executed, redactor.value(part.meta)
            )
        case PromptResult():
            return FormResult(
                part.id,
                part.name,
                redactor.json_text(part.text),
                part.is_error,
                None if part.media is None else part.media.media_type,
                part.provider_executed,
                redactor.value(part.meta),
            )


def _form_tool(tool: Tool, redactor: Redactor) -> Tool:
    return Tool(
        name=tool.name, description=redactor.text(tool.description), input_schema=redactor.schema(tool.input_schema)
    )


def _prompt_message(message: FormMessage, warnings: list[str]) -> PromptMessage:
    return PromptMessage(
        role=message.role,
        parts=tuple(_prompt_part(part, warnings) for part in message.parts),
        is_native=message.is_native,
        is_whole=message.is_whole,
        finish_reason=message.finish_reason,
        prefix_fp=message.prefix_fp,
    )


def _prompt_part(part: FormPart, warnings: list[str]) -> PromptPart:
    match part:
        case FormText():
            return PromptText(part.text, part.meta)
        case FormReasoning():
            return PromptReasoning(part.text, part.meta)
        case FormFile():
            warnings.append("Files are not part of the record. A note replaces each of them.")
            name = "" if part.name is None else f" {part.name}"
            return PromptText(f"[The file{name} ({part.media_type}, {part.size} bytes) is left out of this replay.]")
        case FormCall():
            return PromptCall(part.id, part.name, Raw(part.input.encode()), part.provider_executed, part.meta)
        case FormResult():
            text = part.text
            if part.media_type is not None:
                warnings.append("Images of tools are not part of the record. A note replaces each of them.")
                text = f"{text}\n[An image ({part.media_type}) is left out of this replay.]".strip()
            return PromptResult(part.id, part.name, text, part.is_error, None, part.provider_executed, part.meta)
