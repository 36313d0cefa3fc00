"""The fold of a pydantic-ai stream: converts its events to parts.

The library ends a part when the next one starts, but may add to it later (parallel calls, citations, text that
continues after a call). Calls and results therefore wait until a text block begins and they are complete. Text that
continues becomes a new block.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw
from pydantic_ai.messages import (
    Citation,
    FilePart,
    ModelResponsePart,
    ModelResponsePartDelta,
    ModelResponseStreamEvent,
    NativeToolCallPart,
    NativeToolReturnPart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    WebCitationSource,
)
from pydantic_ai.models import StreamedResponse
from pydantic_ai.usage import RequestUsage

from rookery.domain.chat.model_prompt import Meta
from rookery.llm import error_bodies, errors
from rookery.llm.bridge import provider_meta
from rookery.llm.errors import Rule
from rookery.llm.types import (
    HIT_LIMIT,
    ErrorKind,
    Finish,
    FinishReason,
    GeneratedFile,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    Source,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
    UsageUpdate,
)
from rookery.llm.wire import is_complete_json

Parts: TypeAlias = list[StreamPart]
AnyCall: TypeAlias = ToolCallPart | NativeToolCallPart

_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "tool_call": FinishReason.TOOL_CALLS,
}
_CUT_SHORT = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
_ENDED_IN_ERROR = Rule(
    kind=ErrorKind.GENERIC,
    retry=True,
    message="{provider} ended its answer early because of a fault on its side. Try again.",
)
_any_json = msgspec.json.Decoder()


class _Block:
    """An open block of text or reasoning. `part` collects the content of a reopened block, which the library does not
    repeat at its end."""

    __slots__ = ("id", "index", "is_text", "part")

    def __init__(self, block_id: str, index: int, *, part: TextPart | ThinkingPart, is_reopened: bool) -> None:
        self.id = block_id
        self.index = index
        self.is_text = isinstance(part, TextPart)
        self.part = part if is_reopened else None


class _Call:
    """A call that is not completely emitted. It keeps its first id, even if the provider changes it."""

    __slots__ = ("id", "is_end_emitted", "is_ended", "part")

    def __init__(self, call_id: str, part: AnyCall) -> None:
        self.id = call_id
        self.part = part
        self.is_ended = False
        self.is_end_emitted = False

    @property
    def is_native(self) -> bool:
        return isinstance(self.part, NativeToolCallPart)

    @property
    def input(self) -> str:
        args = self.part.args
        if isinstance(args, str):
            return args or "{}"
        return _json(args).decode() if args else "{}"

    def is_complete(self) -> bool:
        return bool(self.part.args) and is_complete_json(self.input)

    def is_runnable(self, *, is_last: bool) -> bool:
        """Return whether the call can run although the answer was cut short.

        The input of the last call may be missing.
        """
        return is_complete_json(self.input) and (bool(self.part.args) or not is_last)


class BridgeFold:
    """Folds one response."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._has_started = False
        self._blocks = 0
        self._block: _Block | None = None
        # Parts that wait for the next text block, by their index in the answer.
        self._waiting: dict[int, _Call | NativeToolReturnPart | FilePart] = {}
        self._call_ids: dict[str, str] = {}
        self._taken_ids: set[str] = set()
        self._sources: set[tuple[str, str]] = set()
        self._files = 0
        self._local_calls = 0
        self._reported_input: int | None = None

    def feed(self, event: ModelResponseStreamEvent, response: StreamedResponse) -> Parts:
        parts: Parts = []
        self._begin(response, parts)
        match event:
            case PartStartEvent():
                self._start(event.index, event.part, parts)
            case PartDeltaEvent():
                self._add(event.index, event.delta, parts)
            case PartEndEvent():
                self._end(event.index, event.part, parts)
        self._count(response, parts)
        return parts

    def end(self, response: StreamedResponse) -> Parts:
        """Return the last parts of the stream. The last is terminal."""
        parts: Parts = []
        self._begin(response, parts)
        if response.state == "incomplete" or not _is_end_marked(response):
            return [*parts, *self.broken(response), StreamError(errors.truncated(self._provider))]
        details = response.provider_details or {}
        if response.finish_reason == "error":
            detail = str(details.get("finish_reason") or "")
            error = errors.make_error(self._provider, _ENDED_IN_ERROR, detail)
            return [*parts, *self.broken(response), StreamError(error)]
        reason = self._reason(response)
        self._close(parts)
        self._emit_waiting(parts, reason=reason)
        meta: Meta | None = None
        if self._local_calls and reason is not FinishReason.CONTENT_FILTER:
            meta = {"stop_reason": HIT_LIMIT} if reason is FinishReason.LENGTH else None
            reason = FinishReason.TOOL_CALLS
        elif reason is FinishReason.TOOL_CALLS:
            reason = FinishReason.STOP
        parts.append(Finish(reason, usage_of(response.usage), meta, _detail(reason, details)))
        return parts

    def broken(self, response: StreamedResponse) -> Parts:
        """Return the parts to emit before an error: the usage so far."""
        usage = usage_of(response.usage)
        return [UsageUpdate(usage)] if usage != Usage() else []

    # Events

    def _begin(self, response: StreamedResponse, parts: Parts) -> None:
        if not self._has_started:
            self._has_started = True
            parts.append(ResponseStarted(response.provider_response_id, response.model_name or None, None))

    def _start(self, index: int, part: ModelResponsePart, parts: Parts) -> None:
        match part:
            case TextPart() | ThinkingPart():
                self._open(index, part, parts)
                self._add_text(part.content, parts)
                if isinstance(part, TextPart):
                    self._cite(part.citations, parts)
            case ToolCallPart() | NativeToolCallPart():
                self._close(parts)
                self._start_call(index, part, parts)
            case NativeToolReturnPart() | FilePart():
                self._close(parts)
                self._waiting[index] = part

    def _start_call(self, index: int, part: AnyCall, parts: Parts) -> None:
        before = self._waiting.get(index)
        if isinstance(before, _Call):
            # The library starts a part again to correct it.
            before.part = part
            return
        call = _Call(self._unique_id(part.tool_call_id), part)
        self._waiting[index] = call
        parts.append(ToolInputStart(call.id, part.tool_name, call.is_native))
        if part.args:
            parts.append(ToolInputDelta(call.id, call.input))

    def _add(self, index: int, delta: ModelResponsePartDelta, parts: Parts) -> None:
        match delta:
            case TextPartDelta():
                if delta.content_delta:
                    self._continue(index, delta, parts)
                self._cite(delta.citations_delta, parts)
            case ThinkingPartDelta():
                if self._is_open(index, is_text=False) or delta.content_delta:
                    self._continue(index, delta, parts)
                elif delta.signature_delta:
                    self._open(index, ThinkingPart(""), parts, is_reopened=True)
                    self._continue(index, delta, parts)
            case ToolCallPartDelta():
                self._add_input(index, delta, parts)

    def _continue(self, index: int, delta: TextPartDelta | ThinkingPartDelta, parts: Parts) -> None:
        is_text = isinstance(delta, TextPartDelta)
        if not self._is_open(index, is_text=is_text):
            self._open(index, TextPart("") if is_text else ThinkingPart(""), parts, is_reopened=True)
        assert self._block is not None
        if self._block.part is not None:
            self._block.part = delta.apply(self._block.part)
        if delta.content_delta:
            self._add_text(delta.content_delta, parts)

    def _add_input(self, index: int, delta: ToolCallPartDelta, parts: Parts) -> None:
        call = self._waiting.get(index)
        if not isinstance(call, _Call):
            return
        if call.is_ended:
            call.part = delta.apply(call.part)
        elif isinstance(delta.args_delta, str) and delta.args_delta:
            parts.append(ToolInputDelta(call.id, delta.args_delta))

    def _end(self, index: int, part: ModelResponsePart, parts: Parts) -> None:
        match part:
            case TextPart() | ThinkingPart():
                if self._is_open(index, is_text=isinstance(part, TextPart)):
                    self._close(parts, part)
            case ToolCallPart() | NativeToolCallPart():
                call = self._waiting.get(index)
                if isinstance(call, _Call):
                    call.part, call.is_ended = part, True
                    _end_input(call, parts)

    # Blocks

    def _is_open(self, index: int, *, is_text: bool) -> bool:
        block = self._block
        return block is not None and block.index == index and block.is_text is is_text

    def _open(self, index: int, part: TextPart | ThinkingPart, parts: Parts, *, is_reopened: bool = False) -> None:
        self._close(parts)
        self._emit_waiting(parts)
        is_text = isinstance(part, TextPart)
        self._blocks += 1
        block_id = f"{'text' if is_text else 'reasoning'}-{self._blocks}"
        self._block = _Block(block_id, index, part=part, is_reopened=is_reopened)
        parts.append(TextStart(block_id) if is_text else ReasoningStart(block_id))

    def _add_text(self, text: str, parts: Parts) -> None:
        block = self._block
        if text and block is not None:
            parts.append(TextDelta(block.id, text) if block.is_text else ReasoningDelta(block.id, text))

    def _close(self, parts: Parts, part: TextPart | ThinkingPart | None = None) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        meta = provider_meta.meta_of(part or block.part)
        parts.append(TextEnd(block.id, meta) if block.is_text else ReasoningEnd(block.id, meta))
        if isinstance(part, TextPart):
            self._cite(part.citations, parts)

    def _cite(self, citations: Iterable[Citation] | None, parts: Parts) -> None:
        for citation in citations or ():
            for cited in citation.sources:
                if isinstance(cited, WebCitationSource):
                    self._add_source("url", cited.url, cited.title, parts)
                else:
                    self._add_source("document", "", cited.title or cited.document_id, parts)

    def _add_source(self, kind: Any, url: str, title: str | None, parts: Parts) -> None:
        key = (kind, url or title or "")
        if not key[1] or key in self._sources:
            return
        self._sources.add(key)
        parts.append(Source(f"source-{len(self._sources)}", kind, url, title))

    # Calls, results and files

    def _emit_waiting(self, parts: Parts, *, reason: FinishReason | None = None) -> None:
        """Emit the waiting parts in the order of the answer. `reason` is the finish reason; None before the end.

        Before the end, an incomplete call and all parts after it keep waiting.
        """
        for index, item in sorted(self._waiting.items()):
            if reason is None and isinstance(item, _Call) and not item.is_complete():
                return
            del self._waiting[index]
            match item:
                case _Call():
                    _end_input(item, parts)
                    # A call whose input was cut off must not run.
                    if reason not in _CUT_SHORT or item.is_native or item.is_runnable(is_last=not self._waiting):
                        self._emit_call(item, parts)
                case NativeToolReturnPart():
                    call_id = self._call_ids.get(item.tool_call_id, item.tool_call_id)
                    parts.append(
                        ToolResult(
                            call_id,
                            item.tool_name,
                            Raw(_json(_output(item))),
                            item.outcome != "success",
                            provider_meta.return_meta(item),
                        )
                    )
                case FilePart():
                    self._files += 1
                    parts.append(GeneratedFile(f"file-{self._files}", item.content.media_type, item.content.data))

    def _emit_call(self, call: _Call, parts: Parts) -> None:
        part = call.part
        self._call_ids[part.tool_call_id] = call.id
        self._local_calls += not call.is_native
        meta = provider_meta.call_meta(part) if isinstance(part, NativeToolCallPart) else provider_meta.meta_of(part)
        parts.append(ToolCall(call.id, part.tool_name, call.input, call.is_native, meta))

    def _unique_id(self, wanted: str) -> str:
        while wanted in self._taken_ids:
            wanted += "_"
        self._taken_ids.add(wanted)
        return wanted

    # The end

    def _reason(self, response: StreamedResponse) -> FinishReason:
        if response.state == "suspended":
            return FinishReason.PAUSE
        if response.finish_reason is not None:
            return _REASONS.get(response.finish_reason, FinishReason.OTHER)
        return FinishReason.STOP if response.provider_url is None else FinishReason.OTHER

    def _count(self, response: StreamedResponse, parts: Parts) -> None:
        """Emit the usage as soon as the input tokens are known. The output tokens follow with the last part."""
        counted = response.usage.input_tokens
        if counted and counted != self._reported_input:
            self._reported_input = counted
            parts.append(UsageUpdate(usage_of(response.usage)))


def usage_of(usage: RequestUsage) -> Usage:
    """Convert the library's usage, whose input includes cached tokens. Zeros mean "not reported"."""
    if not (usage.input_tokens or usage.output_tokens):
        return Usage()
    searches = getattr(usage, "web_searches", None)
    return Usage(
        input=max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens),
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
        cache_write_1h=usage.cache_write_1h_tokens,
        output=usage.output_tokens,
        reasoning=usage.output_reasoning_tokens or usage.details.get("reasoning_tokens"),
        total=usage.input_tokens + usage.output_tokens,
        web_searches=searches if isinstance(searches, int) else None,
        context_tokens=usage.input_tokens,
    )


def _is_end_marked(response: StreamedResponse) -> bool:
    """Return whether the provider marked the end of the answer. Without the mark, calls may be missing."""
    if "finish_reason" in (response.provider_details or {}) or response.state == "suspended":
        return True
    if response.provider_url is None:
        return True  # a model without a server cannot lose its connection
    if response.finish_reason is None:
        return False
    return not (response.finish_reason == "stop" and _invents_stop(response))


def _invents_stop(response: StreamedResponse) -> bool:
    """Return whether the library may have made up the finish reason `stop`.

    Its OpenAI stream does so if the server sent no reason, for example because the stream was truncated.
    """
    module = sys.modules.get("pydantic_ai.models.openai")
    return module is not None and isinstance(response, module.OpenAIStreamedResponse)


def _detail(reason: FinishReason, details: dict[str, Any]) -> str | None:
    if reason not in (FinishReason.CONTENT_FILTER, FinishReason.OTHER):
        return None
    said = details.get("refusal") or details.get("block_reason_message") or details.get("finish_reason")
    return error_bodies.clean_detail(str(said)) if said else None


def _end_input(call: _Call, parts: Parts) -> None:
    if not call.is_end_emitted:
        call.is_end_emitted = True
        parts.append(ToolInputEnd(call.id))


def _output(part: NativeToolReturnPart) -> Any:
    """Return the output in the form of a stored tool result: a text becomes an object."""
    content = provider_meta.jsonable(part.content)
    return {"output": content} if isinstance(content, str) else content


def _json(value: Any) -> bytes:
    return msgspec.json.encode(provider_meta.jsonable(value))
