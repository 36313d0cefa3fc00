"""Normalized requests, answers and errors: one format for all wires.

Texts are redacted before they are cut, because a cut secret is not recognized. The requests of a run share their common
prefix: a step stores only the messages that the previous step does not have. The functions may run in any thread.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec

from rookery.debug.redaction import Redactor
from rookery.domain.chat.model_prompt import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm import types as llm
from rookery.llm.errors import CallFailed, TransportError
from rookery.llm.types import Call, ProviderError, StreamPart, Usage
from rookery.telemetry.redaction import encodable

# Limit of a text, an argument or a result in a request, in code points and with the ellipsis.
MAX_TEXT_CHARS = 10_000
# Limit of all streamed texts of an answer together, in bytes.
MAX_STREAM_BYTES = 50_000
MAX_ERROR_CHARS = 2_000
# Bytes that are kept beyond the limit, so that a secret at the limit is recognized before the text is cut.
_STREAM_MARGIN = 8_192
# The estimated memory of a part without its text.
_PART_BYTES = 96
_HASH_BYTES = 16


class NormalizedPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message or of an answer. `text_length` and `input_length` are lengths before the text was cut."""

    type: str
    text: str | None = None
    text_length: int | None = None
    filename: str | None = None
    media_type: str | None = None
    size: int | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    arguments: str | None = None
    input_length: int | None = None
    result: str | None = None
    is_error: bool = False
    provider_executed: bool = False
    source_type: str | None = None
    title: str | None = None
    url: str | None = None


class NormalizedMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    parts: tuple[NormalizedPart, ...]


class NormalizedTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that was offered to the model. `type` is `function`, or `web_search` for the provider's search."""

    type: str
    name: str
    description: str | None = None
    id: str | None = None
    input_schema: Mapping[str, Any] | None = None


class NormalizedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request. `provider_option_names` are the names of the options that were set, without their values."""

    messages: tuple[NormalizedMessage, ...]
    tools: tuple[NormalizedTool, ...] = ()
    options: Mapping[str, int | float] = {}
    tool_choice: str | None = None
    effort: str | None = None
    schema_name: str | None = None
    structured_output: bool = False
    provider_option_names: tuple[str, ...] = ()


class SharedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request as it is stored: the first `prefix_len` messages are those of step `prefix_from`.

    `has_same_tools` means that the tools are those of that step as well.
    """

    message_count: int
    messages: tuple[NormalizedMessage, ...]
    prefix_from: int | None = None
    prefix_len: int = 0
    has_same_tools: bool = False
    tools: tuple[NormalizedTool, ...] = ()
    options: Mapping[str, int | float] = {}
    tool_choice: str | None = None
    effort: str | None = None
    schema_name: str | None = None
    structured_output: bool = False
    provider_option_names: tuple[str, ...] = ()


class NormalizedUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers of tokens, if the provider reported them. `input_tokens` excludes cached tokens."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_creation_tokens: int | None = None
    cache_creation_1h_tokens: int | None = None
    cache_read_tokens: int | None = None
    web_searches: int | None = None


class NormalizedWarning(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    setting: str
    message: str


class NormalizedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, complete or not. `raw_text_length` is the length of a structured answer, whose text is left out."""

    content: tuple[NormalizedPart, ...] = ()
    finish_reason: str | None = None
    finish_detail: str | None = None
    usage: NormalizedUsage | None = None
    warnings: tuple[NormalizedWarning, ...] = ()
    response_id: str | None = None
    request_id: str | None = None
    model: str | None = None
    raw_text_length: int | None = None


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    part_count: int = msgspec.field(default=0)
    text_delta_count: int = 0
    tool_call_count: int = 0
    source_count: int = 0
    warning_count: int = 0
    error_count: int = 0
    finish_reason: str | None = None
    last_error: str | None = None


class NormalizedError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failure. `type` is the class of the exception. `detail` is the provider's text."""

    message: str
    type: str
    kind: str | None = None
    cancelled: bool = False
    detail: str | None = None
    code: str | None = None
    provider_title: str | None = None
    provider_status: int | None = None
    request_id: str | None = None
    retryable: bool | None = None


# Requests


def normalize_request(call: Call, redactor: Redactor) -> NormalizedRequest:
    return NormalizedRequest(
        messages=tuple(normalize_message(message, redactor) for message in call.prompt.messages),
        tools=normalize_tools(call, redactor),
        **_settings(call),
    )


def normalize_message(message: PromptMessage, redactor: Redactor) -> NormalizedMessage:
    return NormalizedMessage(role=message.role, parts=tuple(_part(part, redactor) for part in message.parts))


def normalize_tools(call: Call, redactor: Redactor) -> tuple[NormalizedTool, ...]:
    tools = [redactor.kept("tool", tool, partial(_normalize_tool, tool, redactor)) for tool in call.tools]
    if call.web_search is not None:
        tools.append(NormalizedTool(type="web_search", name="web_search"))
    return tuple(tools)


def _normalize_tool(tool: llm.Tool, redactor: Redactor) -> NormalizedTool:
    return NormalizedTool(
        type="function",
        name=_clean(tool.name, redactor),
        description=_cut(_clean(tool.description, redactor)),
        input_schema=_clean_schema(tool.input_schema, redactor),
    )


def _settings(call: Call) -> dict[str, Any]:
    options = {
        "max_output_tokens": call.max_output_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "top_k": call.top_k,
        "presence_penalty": call.presence_penalty,
        "frequency_penalty": call.frequency_penalty,
    }
    return {
        "options": {name: value for name, value in options.items() if value is not None},
        "tool_choice": call.tool_choice,
        "effort": None if call.effort is None else str(call.effort),
        "schema_name": None if call.format is None else call.format.name,
        "structured_output": call.format is not None,
        "provider_option_names": _set_names(call.options),
    }


def _set_names(options: msgspec.Struct | None) -> tuple[str, ...]:
    if options is None:
        return ()
    defaults = _defaults(type(options))
    return tuple(name for name, default in defaults if getattr(options, name) not in (default, None, (), {}))


@lru_cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in msgspec.structs.fields(kind))


def _part(part: PromptPart, redactor: Redactor) -> NormalizedPart:
    match part:
        case PromptText():
            return _text_part("text", _clean(part.text, redactor), len(part.text))
        case PromptReasoning():
            return _text_part("reasoning", _clean(part.text, redactor), len(part.text))
        case PromptFile():
            return NormalizedPart(
                type="file",
                filename=None if part.name is None else _clean(part.name, redactor),
                media_type=_clean(part.media_type, redactor),
                size=len(part.data),
            )
        case PromptCall():
            source = bytes(part.input).decode("utf-8", "replace")
            return NormalizedPart(
                type="tool-call",
                tool_call_id=part.id,
                tool_name=_clean(part.name, redactor),
                arguments=_cut(_clean_json(source, redactor)),
                input_length=len(source),
                provider_executed=part.provider_executed,
            )
        case PromptResult():
            media = None if part.media is None else part.media.media_type
            return NormalizedPart(
                type="tool-result",
                tool_call_id=part.id,
                tool_name=_clean(part.name, redactor),
                result=_cut(_clean_json(part.text, redactor)) if part.text or media is None else _media_note(media),
                text_length=len(part.text),
                media_type=media,
                is_error=part.is_error,
                provider_executed=part.provider_executed,
            )


def _media_note(media_type: str) -> str:
    return f"[media output: {media_type}]" if media_type else "[media output]"


def _text_part(kind: str, text: str, length: int) -> NormalizedPart:
    return NormalizedPart(type=kind, text=_cut(text), text_length=length)


def _clean(text: str, redactor: Redactor) -> str:
    return _storable(redactor.text(text))


def _clean_json(text: str, redactor: Redactor) -> str:
    return _storable(redactor.json_text(text))


def _clean_schema(schema: Mapping[str, Any], redactor: Redactor) -> Mapping[str, Any]:
    cleaned: Mapping[str, Any] = _storable_value(redactor.schema(schema))
    return cleaned


def _storable_value(value: Any) -> Any:
    if isinstance(value, str):
        return _storable(value)
    if isinstance(value, list):
        return [_storable_value(item) for item in value]
    if isinstance(value, dict):
        return {_storable(key): _storable_value(item) for key, item in value.items()}
    return value


def _storable(text: str) -> str:
    """Return the text without U+0000 and unpaired surrogates, which PostgreSQL refuses."""
    return encodable(text.replace("\0", "\\u0000"))


def _cut(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


# Prefix sharing


def message_hash(message: PromptMessage) -> bytes:
    """Return a hash of the whole message, including its media and the provider's data."""
    try:
        encoded = msgspec.json.encode(message)
    except UnicodeEncodeError:  # half of a surrogate pair
        encoded = repr(message).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, digest_size=_HASH_BYTES).digest()


class PromptHashes:
    """The hashes of the messages in a run's latest prompt. Prompts of a chat share message objects, so most hashes are
    not computed again.

    After a step that could not be stored, `forget` makes the next request complete.
    """

    __slots__ = ("_hashes", "_messages", "_tools")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._messages: tuple[PromptMessage, ...] = ()
        self._hashes: tuple[bytes, ...] = ()
        self._tools: object = None

    def add(self, call: Call) -> Prefix:
        """Set the latest prompt. Return the prefix that it shares with the previous prompt."""
        known, messages = self._messages, call.prompt.messages
        hashes = tuple(
            self._hashes[index] if index < len(known) and known[index] is message else message_hash(message)
            for index, message in enumerate(messages)
        )
        tools = (call.tools, call.web_search)
        prefix = Prefix(
            length=common_prefix(self._hashes, hashes), has_same_tools=self._tools is not None and tools == self._tools
        )
        self._messages, self._hashes, self._tools = messages, hashes, tools
        return prefix


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix that a request shares with the request of the previous step. `step` is the number of that step."""

    length: int = 0
    has_same_tools: bool = False
    step: int | None = None


def common_prefix(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Return the number of equal hashes at the beginning."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def share_prefix(call: Call, redactor: Redactor, prefix: Prefix = Prefix()) -> SharedRequest:  # noqa: B008 - frozen
    """Return the request in its stored form. The messages of the shared prefix are not normalized again."""
    new = call.prompt.messages[prefix.length :]
    return SharedRequest(
        message_count=len(call.prompt.messages),
        messages=tuple(normalize_message(message, redactor) for message in new),
        prefix_from=prefix.step if prefix.length or prefix.has_same_tools else None,
        prefix_len=prefix.length,
        has_same_tools=prefix.has_same_tools,
        tools=() if prefix.has_same_tools else normalize_tools(call, redactor),
        **_settings(call),
    )


def resolve_prefixes(requests: Iterable[tuple[int, SharedRequest]]) -> dict[int, NormalizedRequest]:
    """Return complete requests by step number. `requests` are the steps of one run in order.

    If a request refers to a step that is missing, a marker replaces the messages of that step.
    """
    resolved: dict[int, NormalizedRequest] = {}
    for number, request in requests:
        source = None if request.prefix_from is None else resolved.get(request.prefix_from)
        prefix = () if source is None else source.messages[: request.prefix_len]
        missing = request.prefix_len - len(prefix)
        if missing:
            prefix = (*prefix, _missing_messages(missing))
        tools = request.tools
        if request.has_same_tools and source is not None:
            tools = source.tools
        resolved[number] = NormalizedRequest(
            messages=(*prefix, *request.messages),
            tools=tools,
            options=request.options,
            tool_choice=request.tool_choice,
            effort=request.effort,
            schema_name=request.schema_name,
            structured_output=request.structured_output,
            provider_option_names=request.provider_option_names,
        )
    return resolved


def _missing_messages(count: int) -> NormalizedMessage:
    note = f"[{count} messages are not in this record]"
    return NormalizedMessage(role="system", parts=(NormalizedPart(type="text", text=note, text_length=len(note)),))


# Answers


def normalize_usage(usage: Usage) -> NormalizedUsage | None:
    """Return the reported numbers; None if there are none."""
    found = NormalizedUsage(
        input_tokens=usage.input,
        output_tokens=usage.output,
        total_tokens=usage.total,
        reasoning_tokens=usage.reasoning,
        cache_creation_tokens=usage.cache_write,
        cache_creation_1h_tokens=usage.cache_write_1h,
        cache_read_tokens=usage.cache_read,
        web_searches=usage.web_searches,
    )
    return None if found == NormalizedUsage() else found


class ResponseCollector:
    """Collects the parts of an answer. `add` is called for each part on the event loop and only keeps a reference.

    `finish` may run in a thread once no more parts are added.
    """

    __slots__ = ("_counts", "_is_structured", "_kept", "_other_bytes", "_room")

    def __init__(self, *, is_structured: bool = False) -> None:
        self._kept: list[StreamPart] = []
        self._counts: Counter[type] = Counter()
        self._room = MAX_STREAM_BYTES + _STREAM_MARGIN
        self._other_bytes = 0
        self._is_structured = is_structured

    def add(self, part: StreamPart) -> None:
        kind = type(part)
        self._counts[kind] += 1
        if kind is llm.TextDelta or kind is llm.ReasoningDelta:
            self._room -= len(part.text)  # type: ignore[union-attr]  # checked by `kind`, which is faster
        elif kind is llm.ToolInputDelta:
            self._room -= len(part.json)  # type: ignore[union-attr]
        else:
            self._kept.append(part)
            if kind is llm.ToolCall:
                self._other_bytes += len(part.input)  # type: ignore[union-attr]
            elif kind is llm.ToolResult:
                self._other_bytes += len(bytes(part.output))  # type: ignore[union-attr]
            elif kind is llm.GeneratedFile:
                self._other_bytes += len(part.data)  # type: ignore[union-attr]
            return
        # The last kept delta exceeds the limit, so that the text is visibly cut.
        if self._room > -_STREAM_MARGIN:
            self._kept.append(part)

    @property
    def size_bytes(self) -> int:
        """Return the approximate memory of the parts."""
        text = min(MAX_STREAM_BYTES + _STREAM_MARGIN - self._room, MAX_STREAM_BYTES + 2 * _STREAM_MARGIN)
        return text + self._other_bytes + _PART_BYTES * len(self._kept)

    @property
    def has_finish(self) -> bool:
        return self._counts[llm.Finish] > 0

    def usage(self) -> Usage | None:
        """Return the latest report of the usage; None if there is none."""
        for part in reversed(self._kept):
            if isinstance(part, llm.Finish | llm.UsageUpdate):
                return part.usage
        return None

    def summary(self, redactor: Redactor) -> StreamSummary:
        errors = [part.error for part in self._kept if isinstance(part, llm.StreamError)]
        finish = next((part for part in self._kept if isinstance(part, llm.Finish)), None)
        warnings = sum(len(part.items) for part in self._kept if isinstance(part, llm.Warnings))
        return StreamSummary(
            finish_reason=None if finish is None else str(finish.reason),
            part_count=sum(self._counts.values()),
            text_delta_count=self._counts[llm.TextDelta],
            tool_call_count=self._counts[llm.ToolCall],
            source_count=self._counts[llm.Source],
            warning_count=warnings,
            error_count=len(errors),
            last_error=_cut(_clean(errors[-1].message, redactor), MAX_ERROR_CHARS) if errors else None,
        )

    def finish(self, redactor: Redactor) -> tuple[NormalizedResponse, StreamSummary]:
        """Return the answer so far and the counts of its parts."""
        blocks = _Blocks(redactor)
        fields: dict[str, Any] = {}
        for part in self._kept:
            match part:
                case llm.Warnings():
                    fields["warnings"] = tuple(
                        NormalizedWarning(type=item.type, setting=item.setting, message=_clean(item.message, redactor))
                        for item in part.items
                    )
                case llm.ResponseStarted():
                    for name in ("response_id", "request_id", "model"):
                        value = getattr(part, name)
                        fields[name] = None if value is None else _clean(value, redactor)
                case llm.Finish():
                    fields["finish_reason"] = str(part.reason)
                    if part.detail is not None:
                        fields["finish_detail"] = _cut(_clean(part.detail, redactor), MAX_ERROR_CHARS)
                case _:
                    blocks.add(part)
        usage = self.usage()
        content = blocks.parts()
        if self._is_structured:
            fields["raw_text_length"] = sum(part.text_length or 0 for part in content if part.type == "text")
            content = tuple(part for part in content if part.type != "text")
        response = NormalizedResponse(
            content=content, usage=None if usage is None else normalize_usage(usage), **fields
        )
        return response, self.summary(redactor)


class _Blocks:
    """The blocks of an answer in order. Adjacent deltas of one type form a block; pieces of tool input are joined by
    call id.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._blocks: list[_Block] = []
        self._calls: dict[str, _Block] = {}

    def add(self, part: StreamPart) -> None:
        match part:
            case llm.TextDelta():
                self._delta("text", part.text)
            case llm.ReasoningDelta():
                self._delta("reasoning", part.text)
            case llm.ToolInputStart():
                self._call(part.id, part.name, part.provider_executed)
            case llm.ToolInputDelta():
                self._call(part.id).pieces.append(part.json)
            case llm.ToolCall():
                self._call(part.id, part.name, part.provider_executed).pieces[:] = [part.input]
            case llm.ToolResult():
                self._blocks.append(_Block("tool-result", part))
            case llm.Source() | llm.GeneratedFile():
                self._blocks.append(_Block("source" if isinstance(part, llm.Source) else "file", part))
            case _:
                pass

    def parts(self) -> tuple[NormalizedPart, ...]:
        room = MAX_STREAM_BYTES
        parts: list[NormalizedPart] = []
        for block in self._blocks:
            source = "".join(block.pieces)
            is_call = block.kind == "tool-call"
            clean = _clean_json(source, self._redactor) if is_call else _clean(source, self._redactor)
            shown = _cut_bytes(clean, room)
            room = max(0, room - len(shown.encode()))
            parts.append(self._part(block, shown, len(source)))
        return tuple(parts)

    def _part(self, block: _Block, text: str, length: int) -> NormalizedPart:
        redactor = self._redactor
        match block.part:
            case llm.ToolResult() as result:
                output = bytes(result.output).decode("utf-8", "replace")
                return NormalizedPart(
                    type="tool-result",
                    tool_call_id=result.id,
                    tool_name=_clean(result.name, redactor),
                    result=_cut(_clean_json(output, redactor)),
                    text_length=len(output),
                    is_error=result.is_error,
                    provider_executed=True,
                )
            case llm.Source() as source:
                return NormalizedPart(
                    type="source",
                    source_type=source.kind,
                    url=_storable(redactor.url(source.url)),
                    title=None if source.title is None else _clean(source.title, redactor),
                )
            case llm.GeneratedFile() as file:
                return NormalizedPart(type="file", media_type=_clean(file.media_type, redactor), size=len(file.data))
        if block.kind != "tool-call":
            return NormalizedPart(type=block.kind, text=text, text_length=length)
        return NormalizedPart(
            type="tool-call",
            tool_call_id=block.id,
            tool_name=_clean(block.name, redactor),
            arguments=text,
            input_length=length,
            provider_executed=block.provider_executed,
        )

    def _delta(self, kind: str, text: str) -> None:
        if not self._blocks or self._blocks[-1].kind != kind:
            self._blocks.append(_Block(kind))
        self._blocks[-1].pieces.append(text)

    def _call(self, call_id: str, name: str = "", provider_executed: bool = False) -> _Block:
        block = self._calls.get(call_id)
        if block is None:
            block = self._calls[call_id] = _Block("tool-call")
            block.id = call_id
            self._blocks.append(block)
        block.name = name or block.name
        block.provider_executed = provider_executed or block.provider_executed
        return block


class _Block:
    __slots__ = ("id", "kind", "name", "part", "pieces", "provider_executed")

    def __init__(self, kind: str, part: StreamPart | None = None) -> None:
        self.kind = kind
        self.part = part
        self.pieces: list[str] = []
        self.id = ""
        self.name = ""
        self.provider_executed = False


def _cut_bytes(text: str, max_bytes: int) -> str:
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    return data[:max_bytes].decode("utf-8", "ignore") + "…"


# Errors


def normalize_error(error: BaseException | ProviderError, redactor: Redactor) -> NormalizedError:
    if isinstance(error, CallFailed):
        return msgspec.structs.replace(normalize_error(error.error, redactor), type="CallFailed")
    if isinstance(error, ProviderError):
        return NormalizedError(
            message=_cut(_clean(error.message, redactor), MAX_ERROR_CHARS),
            type="ProviderError",
            kind=str(error.kind),
            detail=None if error.detail is None else _cut(_clean(error.detail, redactor), MAX_ERROR_CHARS),
            code=None if error.code is None else _clean(error.code, redactor),
            provider_title=_clean(error.provider, redactor),
            provider_status=error.status,
            request_id=None if error.request_id is None else _clean(error.request_id, redactor),
            retryable=error.retryable,
        )
    text = str(error) or type(error).__name__
    return NormalizedError(
        message=_cut(_clean(text, redactor), MAX_ERROR_CHARS),
        type=type(error).__name__,
        kind=str(error.reason) if isinstance(error, TransportError) else None,
        cancelled=isinstance(error, asyncio.CancelledError),
    )
