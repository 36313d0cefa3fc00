"""The fold of a Chat Completions stream: converts its chunks to parts.

Compatible servers differ in many details. An answer ends with `[DONE]`, or with the end of the stream after a finish
reason. The finish reason alone does not end it, because usage may follow. A stream without both is truncated, even if
its calls are complete, because more calls may be missing. Tool calls are emitted at the end, in the order of their
index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from rookery.domain.chat.model_prompt import Meta
from rookery.domain.chat.parts import ContentError, json_text
from rookery.llm import error_bodies, errors
from rookery.llm.completions import chunks
from rookery.llm.completions.chunks import Annotation, CallDelta, Chunk, ContentPart, Delta, chunk_decoder
from rookery.llm.completions.messages import IN_CONTENT, merge_details
from rookery.llm.completions.think_tags import ThinkTags
from rookery.llm.completions.tool_calls import OpenCalls
from rookery.llm.types import (
    HIT_LIMIT,
    Finish,
    FinishReason,
    ProviderError,
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
    Usage,
    UsageUpdate,
)
from rookery.llm.wire import Event

_DONE: Final = b"[DONE]"
_REASONS: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
}
_KNOWN_OBJECTS: Final = frozenset({"chat.completion.chunk", "chat.completion"})
# Documented by Perplexity. Other chunks contain the same content.
_IGNORED_OBJECTS: Final = frozenset({"chat.reasoning", "chat.reasoning.done", "chat.completion.done"})
_TEXT, _REFUSAL, _REASONING = "text", "refusal", "reasoning"


class CompletionsFold:
    """Folds one response. `unknown` counts the ignored chunks by type."""

    def __init__(self, provider: str, *, think_tags: bool = False) -> None:
        self.unknown: Counter[str] = Counter()
        self._provider = provider
        self._tags = ThinkTags() if think_tags else None
        self._request_id: str | None = None
        self._hide = error_bodies.default_hide
        self._has_started = False
        # The kind and id of the open block, of which there is at most one, and the number of blocks so far.
        self._kind: str | None = None
        self._block_id = ""
        self._blocks = 0
        self._field: str | None = None
        self._details: list[Meta] = []
        self._calls = OpenCalls()
        self._sources: set[str] = set()
        self._searches: set[str] = set()
        self._has_refused = False
        self._reason: str | None = None
        self._usage: Usage | None = None

    @property
    def has_plain_deltas(self) -> bool:
        # Tags are found across the borders of deltas. Calls and details may come in the same chunks as text.
        return self._tags is None and not self._calls and not self._details

    def start(self, request_id: str | None, hide: error_bodies.Hide = error_bodies.default_hide) -> None:
        self._request_id, self._hide = request_id, hide

    def feed(self, event: Event) -> Sequence[StreamPart]:
        data = event.data
        if data == _DONE or data.strip() == _DONE:
            return self._finish(is_announced=True)
        try:
            chunk = _decoded(data)
        except (msgspec.DecodeError, ContentError, RecursionError) as error:
            return self._undecodable(event, str(error))
        parts: list[StreamPart] = []
        if chunk.error or chunk.object == "error" or event.name == "error":
            # The usage before the error is billed.
            self._read_usage(chunk, parts)
            return [*parts, StreamError(self._error_of(data))]
        self._read(chunk, parts)
        return parts

    def read_document(self, body: bytes) -> Iterable[StreamPart]:
        parts = list(self.feed(Event("", body)))
        if parts and isinstance(parts[-1], StreamError):
            return parts
        if self._reason is None and self._blocks == 0 and not self._calls:
            return [StreamError(self._with_id(errors.unreadable(self._provider, "The answer has no choices.")))]
        return parts + self._finish(is_announced=True)

    def end(self) -> Iterable[StreamPart]:
        return self._finish(is_announced=False)

    # Reading

    def _read(self, chunk: Chunk, parts: list[StreamPart]) -> None:
        choices = chunk.choices
        usage = chunks.usage_of(chunk)
        if not choices and usage is None and chunk.object and chunk.object not in _KNOWN_OBJECTS:
            if chunk.object not in _IGNORED_OBJECTS:
                self.unknown[chunk.object] += 1
            return
        if not self._has_started and (choices or chunk.id or usage is not None):
            self._has_started = True
            parts.append(ResponseStarted(chunk.id or None, chunk.model or None, self._request_id))
        if choices:
            choice = choices[0]
            if choice.index:
                return  # another choice, which was not requested
            delta = choice.delta or (None if chunk.object in _IGNORED_OBJECTS else choice.message)
            if delta is not None:
                self._read_delta(delta, parts)
            if choice.finish_reason:
                self._reason = choice.finish_reason
        if chunk.search_results or chunk.citations:
            self._add_sources(chunks.found_sources(chunk.search_results, chunk.citations), parts)
        if usage is not None:
            self._read_usage(chunk, parts)

    def _read_usage(self, chunk: Chunk, parts: list[StreamPart]) -> None:
        usage = chunks.usage_of(chunk)
        normal = None if usage is None else chunks.normal_usage(usage)
        if usage is None or normal is None:
            return
        if searches := chunks.reported_searches(usage) or len(self._searches):
            normal = msgspec.structs.replace(normal, web_searches=searches)
        if normal != self._usage:
            self._usage = normal
            parts.append(UsageUpdate(normal))

    def _read_delta(self, delta: Delta, parts: list[StreamPart]) -> None:
        if delta.reasoning_details:
            self._read_details(delta.reasoning_details, delta.reasoning or delta.reasoning_content, parts)
        elif delta.reasoning_content:
            self._add_reasoning(delta.reasoning_content, "reasoning_content", parts)
        elif delta.reasoning:
            self._add_reasoning(delta.reasoning, "reasoning", parts)
        content = delta.content
        if content:
            if type(content) is str:
                self._read_text(content, parts)
            else:
                for part in content:
                    self._read_part(part, parts)  # type: ignore[arg-type]  # narrowed by exact type above
        if delta.refusal:
            self._has_refused = True
            self._add_text(delta.refusal, _REFUSAL, parts)
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._calls.add(call, parts)
        if delta.function_call is not None:
            self._calls.add(CallDelta(index=0, function=delta.function_call), parts)
        if delta.annotations:
            self._read_annotations(delta.annotations, parts)
        if delta.executed_tools:
            self._read_executed(delta.executed_tools, parts)

    def _read_text(self, text: str, parts: list[StreamPart]) -> None:
        if self._tags is None:
            self._add_text(text, _TEXT, parts)
            return
        self._add_split(self._tags.split(text), parts)

    def _add_split(self, pieces: list[tuple[bool, str]], parts: list[StreamPart]) -> None:
        for is_reasoning, piece in pieces:
            if is_reasoning:
                self._add_reasoning(piece, IN_CONTENT, parts)
            else:
                self._add_text(piece, _TEXT, parts)

    def _read_part(self, part: ContentPart, parts: list[StreamPart]) -> None:
        if part.text:
            self._read_text(part.text, parts)
        thinking = part.thinking
        texts = [thinking] if isinstance(thinking, str) else [inner.text for inner in thinking or ()]
        for text in texts:
            if text:
                self._add_reasoning(text, None, parts)

    def _read_details(self, details: list[Meta], text: str | None, parts: list[StreamPart]) -> None:
        """Read details of the open reasoning block. Details without text that arrive later are kept until the end."""
        shown = text or "".join(_shown(detail) for detail in details)
        if shown:
            self._add_reasoning(shown, "reasoning_details", parts)
        elif self._kind == _REASONING:
            self._field = "reasoning_details"
        self._details += details

    def _read_annotations(self, annotations: list[Annotation], parts: list[StreamPart]) -> None:
        for annotation in annotations:
            cited = annotation.url_citation
            if cited is not None and cited.url:
                self._add_sources([(cited.url, cited.title)], parts)
            else:
                self._add_sources(chunks.found_sources([{"url": annotation.url, "title": annotation.title}]), parts)

    def _read_executed(self, tools: object, parts: list[StreamPart]) -> None:
        """Read the tools that the provider executed. Each search is counted once, and its results become sources."""
        for place, tool in enumerate(tools if isinstance(tools, list) else ()):
            if not isinstance(tool, dict) or "search" not in str(tool.get("type")):
                continue
            self._searches.add(str(tool.get("index", place)))
            results = tool.get("search_results")
            self._add_sources(
                chunks.found_sources(results.get("results") if isinstance(results, dict) else results), parts
            )

    def _add_sources(self, found: Iterable[tuple[str, str | None]], parts: list[StreamPart]) -> None:
        for url, title in found:
            if url not in self._sources:
                self._sources.add(url)
                parts.append(Source(f"source-{len(self._sources)}", "url", url, title))

    # Blocks

    def _add_text(self, text: str, kind: str, parts: list[StreamPart]) -> None:
        if self._kind != kind:
            self._close(parts)
            self._open(kind)
            parts.append(TextStart(self._block_id))
        parts.append(TextDelta(self._block_id, text))

    def _add_reasoning(self, text: str, field: str | None, parts: list[StreamPart]) -> None:
        if self._kind != _REASONING:
            self._close(parts)
            self._open(_REASONING)
            parts.append(ReasoningStart(self._block_id))
        self._field = field
        parts.append(ReasoningDelta(self._block_id, text))

    def _open(self, kind: str) -> None:
        self._kind = kind
        self._block_id = f"{kind}-{self._blocks}"
        self._blocks += 1

    def _close(self, parts: list[StreamPart]) -> None:
        if self._kind == _REASONING:
            parts.append(ReasoningEnd(self._block_id, self._reasoning_meta()))
        elif self._kind is not None:
            parts.append(TextEnd(self._block_id, refusal=self._kind == _REFUSAL))
        self._kind = None

    def _reasoning_meta(self) -> Meta | None:
        field, details = self._field, self._details
        self._field, self._details = None, []
        if details:
            return {"reasoning_field": "reasoning_details", "reasoning_details": merge_details(details)}
        return {"reasoning_field": field} if field else None

    # Ending

    def _finish(self, *, is_announced: bool) -> list[StreamPart]:
        """Return the last parts. `is_announced` means that the server marked the end, or did not stream."""
        if self._reason is None and not (is_announced and self._is_answer()):
            return [StreamError(self._with_id(errors.truncated(self._provider)))]
        parts: list[StreamPart] = []
        if not self._has_started:
            parts.append(ResponseStarted(None, None, self._request_id))
        if self._tags is not None:
            self._add_split(self._tags.rest(), parts)
        self._close(parts)
        if self._details:
            self._open(_REASONING)
            parts += (ReasoningStart(self._block_id), ReasoningEnd(self._block_id, self._reasoning_meta()))
        self._calls.end_all(parts)
        reason = _REASONS.get(self._reason or "", FinishReason.OTHER)
        # A call whose input was cut off must not run.
        is_cut_short = reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
        calls = self._calls.runnable() if is_cut_short else self._calls.in_order()
        if any(not call.name for call in calls):
            return [StreamError(self._with_id(errors.unreadable(self._provider, "A tool call has no name.")))]
        parts += (call.call() for call in calls)
        meta: Meta | None = None
        if self._has_refused:
            reason = FinishReason.CONTENT_FILTER
        elif calls and reason is not FinishReason.CONTENT_FILTER:
            meta = {"stop_reason": HIT_LIMIT} if reason is FinishReason.LENGTH else None
            reason = FinishReason.TOOL_CALLS
        detail = self._reason if reason is FinishReason.OTHER else None
        usage = self._usage or Usage(web_searches=len(self._searches) or None)
        parts.append(Finish(reason, usage, meta, detail))
        return parts

    def _is_answer(self) -> bool:
        """Return whether the content may be complete although there is no finish reason."""
        return self._calls.are_complete() if self._calls else self._blocks > 0

    def _undecodable(self, event: Event, problem: str) -> list[StreamPart]:
        if event.name == "error":
            return [StreamError(self._error_of(event.data))]
        return [StreamError(self._with_id(errors.unreadable(self._provider, problem, hide=self._hide)))]

    def _error_of(self, data: bytes) -> ProviderError:
        codes, text = error_bodies.read_body(data, "text/plain")
        # Gateways put the status that they received into `code`.
        status = next((number for code in codes if (number := _status(code)) is not None), None)
        error = errors.classify(
            self._provider,
            status,
            codes=codes,
            text=text,
            failed_generation=error_bodies.find_failed_generation(data),
            hide=self._hide,
        )
        return self._with_id(error)

    def _with_id(self, error: ProviderError) -> ProviderError:
        return msgspec.structs.replace(error, request_id=self._request_id)


def _decoded(data: bytes) -> Chunk:
    try:
        return chunk_decoder.decode(data)
    except (msgspec.ValidationError, RecursionError):
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Some servers split an escaped character between two chunks. Each half is replaced instead of refused.
        return chunk_decoder.decode(json_text(data))


def _status(code: object) -> int | None:
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
        code = int(code)
    return code if isinstance(code, int) and 400 <= code < 600 else None


def _shown(detail: Meta) -> str:
    text = detail.get("text") or detail.get("summary")
    return text if isinstance(text, str) else ""
