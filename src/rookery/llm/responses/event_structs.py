"""Structs for the events of an OpenAI Responses stream, with the fields that are used.

msgspec skips all other fields. Every field has a default, because compatible servers omit fields. `head_decoder` reads
events of unknown types.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Raw

from rookery.llm.types import Usage

# The default of `Raw` fields, because msgspec does not support `Raw | None`.
NULL: Final = Raw(b"null")


class Event(msgspec.Struct, frozen=True, tag_field="type"):
    sequence_number: int | None = None


class Response(msgspec.Struct, frozen=True):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[Raw] = []
    usage: ReportedUsage | None = None
    tool_usage: ToolUsage | None = None
    incomplete_details: Incomplete | None = None
    error: Raw = NULL


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class ReportedUsage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class SearchUsage(msgspec.Struct, frozen=True):
    num_requests: int | None = None


class ToolUsage(msgspec.Struct, frozen=True):
    web_search: SearchUsage | None = None


class Incomplete(msgspec.Struct, frozen=True):
    reason: str | None = None


class Annotation(msgspec.Struct, frozen=True):
    type: str = ""
    url: str | None = None
    title: str | None = None
    file_id: str | None = None
    filename: str | None = None


class Content(msgspec.Struct, frozen=True):
    """A part of a message, of a reasoning item or of a summary."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: list[Annotation] | None = None


class ItemHead(msgspec.Struct, frozen=True):
    """The fields that every item has. Used to read items of unknown kinds."""

    type: str = ""
    id: str | None = None
    status: str | None = None


class Item(msgspec.Struct, frozen=True):
    type: str = ""
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[Content] | None = None
    summary: list[Content] | None = None
    encrypted_content: str | None = None
    action: Raw = NULL


class Created(Event, frozen=True, tag="response.created"):
    response: Response = Response()


class InProgress(Event, frozen=True, tag="response.in_progress"):
    response: Response = Response()


class Queued(Event, frozen=True, tag="response.queued"):
    response: Response = Response()


class Completed(Event, frozen=True, tag="response.completed"):
    response: Response = Response()


class Incompleted(Event, frozen=True, tag="response.incomplete"):
    response: Response = Response()


class Failed(Event, frozen=True, tag="response.failed"):
    response: Response = Response()


class Error(Event, frozen=True, tag="error"):
    """An error event. Its fields are read separately, because servers send them flat or inside an `error` object."""


class ItemAdded(Event, frozen=True, tag="response.output_item.added"):
    item: Raw = NULL
    output_index: int = 0


class ItemDone(Event, frozen=True, tag="response.output_item.done"):
    item: Raw = NULL
    output_index: int = 0


class PartAdded(Event, frozen=True, tag="response.content_part.added"):
    part: Content = Content()
    output_index: int = 0
    content_index: int = 0


class PartDone(Event, frozen=True, tag="response.content_part.done"):
    part: Content = Content()
    output_index: int = 0
    content_index: int = 0


class TextDelta(Event, frozen=True, tag="response.output_text.delta"):
    delta: str = ""
    output_index: int = 0
    content_index: int = 0


class TextDone(Event, frozen=True, tag="response.output_text.done"):
    text: str = ""
    output_index: int = 0
    content_index: int = 0


class RefusalDelta(Event, frozen=True, tag="response.refusal.delta"):
    delta: str = ""
    output_index: int = 0
    content_index: int = 0


class RefusalDone(Event, frozen=True, tag="response.refusal.done"):
    refusal: str = ""
    output_index: int = 0
    content_index: int = 0


class SummaryAdded(Event, frozen=True, tag="response.reasoning_summary_part.added"):
    output_index: int = 0
    summary_index: int = 0


class SummaryDelta(Event, frozen=True, tag="response.reasoning_summary_text.delta"):
    delta: str = ""
    output_index: int = 0
    summary_index: int = 0


class SummaryDone(Event, frozen=True, tag="response.reasoning_summary_text.done"):
    text: str = ""
    output_index: int = 0
    summary_index: int = 0


class ReasoningDelta(Event, frozen=True, tag="response.reasoning_text.delta"):
    delta: str = ""
    output_index: int = 0
    content_index: int = 0


class ReasoningDone(Event, frozen=True, tag="response.reasoning_text.done"):
    text: str = ""
    output_index: int = 0
    content_index: int = 0


class ArgumentsDelta(Event, frozen=True, tag="response.function_call_arguments.delta"):
    delta: str = ""
    output_index: int = 0


class ArgumentsDone(Event, frozen=True, tag="response.function_call_arguments.done"):
    arguments: str = ""
    output_index: int = 0


class AnnotationAdded(Event, frozen=True, tag="response.output_text.annotation.added"):
    annotation: Annotation | None = None


Known: TypeAlias = (
    TextDelta
    | ArgumentsDelta
    | SummaryDelta
    | ReasoningDelta
    | RefusalDelta
    | Created
    | InProgress
    | Queued
    | Completed
    | Incompleted
    | Failed
    | Error
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDone
    | RefusalDone
    | SummaryAdded
    | SummaryDone
    | ReasoningDone
    | ArgumentsDone
    | AnnotationAdded
)


class Head(msgspec.Struct, frozen=True):
    type: str = ""


MODELLED_ITEMS: Final = frozenset({"message", "reasoning", "function_call", "web_search_call"})
KNOWN_TYPES: Final = frozenset(str(kind.__struct_config__.tag) for kind in Known.__args__)
# Documented events that are not needed: the item at the end has the same content, or the content is not used.
IGNORED_TYPES: Final = frozenset(
    {
        *("keepalive", "response.reasoning_summary_part.done", "response.compaction.compacting"),
        *(f"response.audio.{what}" for what in ("delta", "done", "transcript.delta", "transcript.done")),
        *(f"response.web_search_call.{what}" for what in ("in_progress", "searching", "completed")),
        *(f"response.file_search_call.{what}" for what in ("in_progress", "searching", "completed")),
        *(f"response.code_interpreter_call.{what}" for what in ("in_progress", "interpreting", "completed")),
        *(f"response.code_interpreter_call_code.{what}" for what in ("delta", "done")),
        *(
            f"response.image_generation_call.{what}"
            for what in ("in_progress", "generating", "partial_image", "completed")
        ),
        *(f"response.mcp_call.{what}" for what in ("in_progress", "completed", "failed")),
        *(f"response.mcp_call_arguments.{what}" for what in ("delta", "done")),
        *(f"response.mcp_list_tools.{what}" for what in ("in_progress", "completed", "failed")),
        *(f"response.custom_tool_call_input.{what}" for what in ("delta", "done")),
        *(f"response.shell_call_command.{what}" for what in ("added", "delta", "done")),
        *(f"response.shell_call_output_content.{what}" for what in ("delta", "done")),
    }
)
event_decoder = msgspec.json.Decoder(Known)
head_decoder = msgspec.json.Decoder(Head)
_item_head_decoder = msgspec.json.Decoder(ItemHead)
_item_decoder = msgspec.json.Decoder(Item)
response_decoder = msgspec.json.Decoder(Response)


def read_item(raw: Raw) -> Item:
    """Decode an output item. Of an item of an unknown kind, only the shared fields are decoded."""
    head = _item_head_decoder.decode(raw)
    if head.type in MODELLED_ITEMS:
        return _item_decoder.decode(raw)
    return Item(type=head.type, id=head.id, status=head.status)


def normal_usage(response: Response, searches: int) -> Usage:
    """Return the usage in the common form, in which `input` excludes tokens that are read from or written to the cache.

    `searches` is the number of searches in the stream, for servers that do not report it. Zeros mean "not reported".
    """
    web_searches = _reported_searches(response, searches) or None
    reported = response.usage
    if reported is None or not (reported.input_tokens or reported.output_tokens):
        return Usage(web_searches=web_searches)
    cached = reported.input_tokens_details or InputDetails()
    spent = reported.output_tokens_details or OutputDetails()
    uncached = (reported.input_tokens or 0) - (cached.cached_tokens or 0) - (cached.cache_write_tokens or 0)
    return Usage(
        input=max(0, uncached),
        cache_read=cached.cached_tokens,
        cache_write=cached.cache_write_tokens,
        output=reported.output_tokens,
        reasoning=spent.reasoning_tokens,
        total=reported.total_tokens,
        web_searches=web_searches,
        context_tokens=reported.input_tokens,
    )


def _reported_searches(response: Response, counted: int) -> int:
    reported = response.tool_usage.web_search if response.tool_usage is not None else None
    return counted if reported is None or reported.num_requests is None else reported.num_requests
