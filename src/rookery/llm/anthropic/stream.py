"""The fold of an Anthropic Messages stream: converts its events to parts.

A token costs one decoded struct and one part. A block of an unknown type becomes reasoning without text; `meta["raw"]`
is the block, so that the next request can send it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from rookery.domain.chat import parts as content
from rookery.domain.chat.model_prompt import Meta
from rookery.llm import error_bodies, errors
from rookery.llm.anthropic import event_structs
from rookery.llm.sse import DONE
from rookery.llm.types import (
    Finish,
    FinishReason,
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
from rookery.llm.wire import Event, is_complete_json

# A content block of the provider as JSON. Numbers are decimals, so that they keep their digits.
Block: TypeAlias = dict[str, Any]

STOP_REASONS: Mapping[str, FinishReason] = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "pause_turn": FinishReason.PAUSE,
    "refusal": FinishReason.CONTENT_FILTER,
}


# Blocks inside `message_start` have no index. They get indices from here on, which no later block has.
_EARLY_INDEX = 1_000_000
_CUT_SHORT = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


class _OpenBlock:
    """An unfinished block. `pieces` holds the input of a call so far."""

    __slots__ = ("block", "id", "kind", "pieces", "signature")

    def __init__(self, kind: str, block_id: str, block: Block) -> None:
        self.kind = kind
        self.id = block_id
        self.block = block
        self.pieces: list[str] = []
        self.signature = ""


class AnthropicFold:
    """Folds one response. `unknown` counts the ignored events by type."""

    def __init__(self, provider: str) -> None:
        self.unknown: dict[str, int] = {}
        self._provider = provider
        self._request_id: str | None = None
        self._hide = error_bodies.default_hide
        self._open: dict[int, _OpenBlock] = {}
        self._stop: event_structs.Stop = event_structs.Stop()
        self._usage = Usage()
        self._names: dict[str, str] = {}
        self._seen: set[tuple[str, str]] = set()
        self._has_started = False
        self._early: list[Block] = []
        self._has_local_calls = False
        # The newest call. It is emitted when another event follows it. The stop reason, which arrives last, may report
        # that the output limit was reached inside the call.
        self._held: _OpenBlock | None = None

    @property
    def has_plain_deltas(self) -> bool:
        return True

    def start(self, request_id: str | None, hide: error_bodies.Hide = error_bodies.default_hide) -> None:
        self._request_id, self._hide = request_id, hide

    def feed(self, event: Event) -> Sequence[StreamPart]:
        try:
            handler = _HANDLERS.get(event.name) or self._handler_of(event)
            return handler(self, event.data)
        except event_structs.UNREADABLE as error:
            return (
                StreamError(errors.unreadable(self._provider, f"An event cannot be read: {error}", hide=self._hide)),
            )

    def read_document(self, body: bytes) -> Iterable[StreamPart]:
        try:
            return tuple(self._read_message(body))
        except event_structs.UNREADABLE as error:
            return (
                StreamError(errors.unreadable(self._provider, f"The answer cannot be read: {error}", hide=self._hide)),
            )

    def end(self) -> Iterable[StreamPart]:
        return (StreamError(errors.truncated(self._provider)),)

    def _handler_of(self, event: Event) -> _Handler:
        """Return the handler for an event without a name, which some gateways send, or for an unknown event."""
        if event.data == DONE:
            return _ignore
        name = event.name or event_structs.decode_named(event.data).type
        if not name and b'"error"' in event.data:
            # Some gateways report an error in the format of another wire.
            return AnthropicFold._on_error
        if name not in _HANDLERS:
            self.unknown[name] = self.unknown.get(name, 0) + 1
        return _HANDLERS.get(name, _ignore)

    def _read_message(self, body: bytes) -> Iterator[StreamPart]:
        message = event_structs.decode_whole(body)
        if message.type != "message":
            yield from self._on_error(body)
            return
        yield ResponseStarted(message.id, message.model, self._request_id)
        for index, raw in enumerate(message.content):
            yield from self._begin(index, event_structs.decode_block(raw))
            yield from self._finish_block(index)
        self._stop = event_structs.Stop(message.stop_reason, message.stop_details)
        if message.usage is not None:
            self._count(message.usage, is_start=True)
            yield UsageUpdate(self._usage)
        yield from self._finish()

    # Events

    def _on_delta(self, data: bytes) -> Sequence[StreamPart]:
        event = event_structs.decode_delta(data)
        delta = event.delta
        block = self._open.get(event.index)
        if block is None:
            return ()
        kind = delta.type
        if kind == "text_delta" and block.kind == "text":
            return (TextDelta(block.id, delta.text),) if delta.text else ()
        if kind == "thinking_delta" and block.kind == "thinking":
            return (ReasoningDelta(block.id, delta.thinking),) if delta.thinking else ()
        if kind == "input_json_delta" and block.kind in ("tool_use", "server_tool_use"):
            if not delta.partial_json:
                return ()
            block.pieces.append(delta.partial_json)
            return (ToolInputDelta(block.id, delta.partial_json),)
        if kind == "signature_delta" and block.kind == "thinking":
            block.signature += delta.signature
            return ()
        if kind == "citations_delta" and block.kind == "text":
            return self._citation_sources(delta.citation)
        _apply_unknown_delta(block.block, event_structs.decode_any(data)["delta"])
        return ()

    def _on_start(self, data: bytes) -> Sequence[StreamPart]:
        event = event_structs.decode_start(data)
        self._early = []
        return tuple(self._begin(event.index, event_structs.decode_block(event.content_block)))

    def _on_stop(self, data: bytes) -> Sequence[StreamPart]:
        return tuple(self._finish_block(event_structs.decode_stop(data).index))

    def _on_message_start(self, data: bytes) -> Sequence[StreamPart]:
        message = event_structs.decode_message_start(data).message
        if self._has_started:
            problem = "A second message began in the middle of the answer."
            return (StreamError(errors.unreadable(self._provider, problem, hide=self._hide)),)
        self._has_started = True
        parts: list[StreamPart] = [ResponseStarted(message.id, message.model, self._request_id)]
        if message.usage is not None:
            self._count(message.usage, is_start=True)
            parts.append(UsageUpdate(self._usage))
        # Gateways that do not stream put the complete answer here.
        early = message.content if isinstance(message.content, list) else []
        self._early = [block for block in early if isinstance(block, dict)]
        if message.stop_reason:
            self._stop = event_structs.Stop(message.stop_reason)
        return parts

    def _read_early(self) -> Iterator[StreamPart]:
        """Read the blocks of `message_start`. They are dropped if content blocks follow, which repeat them."""
        early, self._early = self._early, []
        for number, block in enumerate(early):
            yield from self._begin(_EARLY_INDEX + number, block)
            yield from self._finish_block(_EARLY_INDEX + number)

    def _on_message_delta(self, data: bytes) -> Sequence[StreamPart]:
        early = list(self._read_early())
        event = event_structs.decode_message_delta(data)
        self._stop = event_structs.Stop(
            event.delta.stop_reason or self._stop.stop_reason, event.delta.stop_details or self._stop.stop_details
        )
        parts = [*early, *(self._emit_held_call() if self._stop.stop_reason else ())]
        if event.usage is not None:
            self._count(event.usage, is_start=False)
            parts.append(UsageUpdate(self._usage))
        return parts

    def _on_message_stop(self, data: bytes) -> Sequence[StreamPart]:
        return (*self._read_early(), *self._finish())

    def _on_error(self, data: bytes) -> Sequence[StreamPart]:
        document = event_structs.decode_any(data)
        codes, text = error_bodies.read_envelope(document) if isinstance(document, dict) else ((), "")
        error = errors.classify(self._provider, codes=codes, text=text, hide=self._hide)
        named = msgspec.structs.replace(error, request_id=self._request_id)
        return (StreamError(named),)

    # Blocks

    def _begin(self, index: int, block: Block) -> Iterator[StreamPart]:
        yield from self._emit_held_call()
        kind = _kind(block)
        opened = self._open[index] = _OpenBlock(kind, str(index), block)
        match kind:
            case "text":
                yield TextStart(opened.id)
                if text := _text(block, "text"):
                    yield TextDelta(opened.id, text)
                for citation in _list(block, "citations"):
                    yield from self._source_of(citation)
            case "thinking":
                opened.signature = _text(block, "signature")
                yield ReasoningStart(opened.id)
                if text := _text(block, "thinking"):
                    yield ReasoningDelta(opened.id, text)
            case "redacted_thinking":
                yield ReasoningStart(opened.id, _redacted(block))
            case "tool_use" | "server_tool_use":
                opened.id = _text(block, "id")
                self._names[opened.id] = _text(block, "name")
                yield ToolInputStart(opened.id, _text(block, "name"), kind == "server_tool_use")

    def _finish_block(self, index: int) -> Iterator[StreamPart]:
        opened = self._open.pop(index, None)
        if opened is None:
            return
        match opened.kind:
            case "text":
                yield TextEnd(opened.id)
            case "thinking":
                yield ReasoningEnd(opened.id, {"signature": opened.signature} if opened.signature else None)
            case "redacted_thinking":
                yield ReasoningEnd(opened.id, _redacted(opened.block))
            case "tool_use":
                yield ToolInputEnd(opened.id)
                yield from self._emit_held_call()
                self._held = opened
            case "server_tool_use":
                yield ToolInputEnd(opened.id)
                meta = {"raw": {**opened.block, "input": _raw_input(opened)}}
                yield ToolCall(opened.id, _text(opened.block, "name"), _input(opened), True, meta)
            case "tool_result":
                yield from self._result(opened.block)
            case _:
                yield ReasoningStart(opened.id)
                yield ReasoningEnd(opened.id, {"raw": opened.block})

    def _emit_held_call(self) -> Iterator[StreamPart]:
        """Emit the held call, unless its input was cut off."""
        held, self._held = self._held, None
        if held is None or (self._reason() in _CUT_SHORT and not _is_input_complete(held)):
            return
        self._has_local_calls = True
        yield ToolCall(held.id, _text(held.block, "name"), _input(held))

    def _result(self, block: Block) -> Iterator[StreamPart]:
        """Yield the sources in a result of a provider-executed tool, and then the result."""
        found = block.get("content")
        for item in found if isinstance(found, list) else [found]:
            yield from self._source_of(item)
        call_id = _text(block, "tool_use_id")
        name = self._names.get(call_id) or _text(block, "type").removesuffix("_tool_result")
        code = found.get("error_code") if isinstance(found, dict) else None
        output = {"error": code} if code else _shown(found)
        yield ToolResult(call_id, name, content.json_raw(output), bool(code), {"raw": block})

    def _citation_sources(self, citation: Raw | UnsetType) -> Sequence[StreamPart]:
        return () if citation is UNSET else tuple(self._source_of(event_structs.decode_any(citation)))

    def _source_of(self, found: object) -> Iterator[StreamPart]:
        """Yield the source of a result or citation, unless it was already reported."""
        if not isinstance(found, dict):
            return
        url = _text(found, "url")
        title = _text(found, "title") or _text(found, "document_title")
        key = ("url", url) if url else ("document", title)
        if not key[1] or key in self._seen:
            return
        self._seen.add(key)
        yield Source(f"source_{len(self._seen)}", "url" if url else "document", url, title or None)

    # The end

    def _finish(self) -> Iterator[StreamPart]:
        if self._stop.stop_reason is None:
            yield StreamError(errors.truncated(self._provider))
            return
        for index in list(self._open):
            yield from self._finish_block(index)
        yield from self._emit_held_call()
        reason = self._reason()
        if self._has_local_calls and reason is not FinishReason.CONTENT_FILTER:
            reason = FinishReason.TOOL_CALLS
        meta: Meta = {"stop_reason": self._stop.stop_reason}
        details = self._stop.stop_details or event_structs.StopDetails()
        if details.category:
            meta["category"] = details.category
        yield Finish(reason, self._usage, meta, details.explanation)

    def _reason(self) -> FinishReason:
        return STOP_REASONS.get(self._stop.stop_reason or "", FinishReason.OTHER)

    def _count(self, reported: event_structs.Usage, *, is_start: bool) -> None:
        """Merge a usage report. Each reported number replaces the earlier one; it may be the sum of several passes.

        `context_tokens` is the input of one pass: of the first event, or of the last pass if a report lists the passes.
        """
        old = self._usage
        passes = [one for one in reported.iterations or () if one.type == "message"]
        read = _read(passes[-1]) if passes else _read(reported) if is_start else None
        made = Usage(
            input=_newer(reported.input_tokens, old.input),
            cache_read=_newer(reported.cache_read_input_tokens, old.cache_read),
            cache_write=_newer(reported.cache_creation_input_tokens, old.cache_write),
            cache_write_1h=_newer(
                (reported.cache_creation or event_structs.CacheCreation()).ephemeral_1h_input_tokens, old.cache_write_1h
            ),
            output=_newer(reported.output_tokens, old.output),
            reasoning=_newer(
                (reported.output_tokens_details or event_structs.OutputDetails()).thinking_tokens, old.reasoning
            ),
            web_searches=_newer(
                (reported.server_tool_use or event_structs.ServerTools()).web_search_requests, old.web_searches
            ),
            context_tokens=_newer(read, old.context_tokens),
        )
        total = sum(number or 0 for number in (made.input, made.cache_read, made.cache_write, made.output))
        # Some gateways do not count tokens and report zeros.
        self._usage = msgspec.structs.replace(made, total=total) if total else Usage()


def _ignore(fold: AnthropicFold, data: bytes) -> Sequence[StreamPart]:
    return ()


_Handler: TypeAlias = Callable[[AnthropicFold, bytes], Sequence[StreamPart]]
# This table is at module level. If a fold referred to its own methods, it would be a reference cycle.
_HANDLERS: Mapping[str, _Handler] = {
    "content_block_delta": AnthropicFold._on_delta,
    "content_block_start": AnthropicFold._on_start,
    "content_block_stop": AnthropicFold._on_stop,
    "message_start": AnthropicFold._on_message_start,
    "message_delta": AnthropicFold._on_message_delta,
    "message_stop": AnthropicFold._on_message_stop,
    "ping": _ignore,
    "error": AnthropicFold._on_error,
}


def _kind(block: Block) -> str:
    """Return the kind of a block. Blocks of the provider's tools are recognized by the suffix of their type."""
    name = _text(block, "type")
    if name in ("text", "thinking", "redacted_thinking", "tool_use"):
        return name
    if name.endswith("_tool_use"):
        return "server_tool_use"
    return "tool_result" if name.endswith("_tool_result") else "unknown"


def _redacted(block: Block) -> Meta:
    return {"redacted_data": _text(block, "data")}


def _input(opened: _OpenBlock) -> str:
    """Return the input of a call as text. Gateways that do not stream it send it with the start of the block."""
    if opened.pieces:
        return "".join(opened.pieces)
    given = opened.block.get("input")
    return bytes(content.json_raw(given)).decode() if given else "{}"


def _is_input_complete(opened: _OpenBlock) -> bool:
    """Return whether the input of a call is complete. Empty input counts as incomplete."""
    return is_complete_json("".join(opened.pieces)) if opened.pieces else bool(opened.block.get("input"))


def _raw_input(opened: _OpenBlock) -> object:
    """Return the input for the stored block. Invalid JSON stays text, so that the next request leaves out the block."""
    text = _input(opened)
    try:
        return event_structs.decode_any(text)
    except event_structs.UNREADABLE:
        return text


def _apply_unknown_delta(block: Block, delta: Block) -> None:
    """Apply an unknown delta to its block: append to texts and lists, and replace all other values."""
    for key, value in delta.items():
        if key == "type":
            continue
        old = block.get(key)
        is_same = (isinstance(old, str) and isinstance(value, str)) or (
            isinstance(old, list) and isinstance(value, list)
        )
        block[key] = old + value if is_same else value


def _shown(found: object) -> object:
    """Return a result without its encrypted data, which only the provider can read."""
    if isinstance(found, list):
        return [_shown(item) for item in found]
    if isinstance(found, dict):
        return {key: _shown(value) for key, value in found.items() if not key.startswith("encrypted_")}
    return found


def _text(block: Mapping[str, Any], key: str) -> str:
    value = block.get(key)
    return value if isinstance(value, str) else ""


def _list(block: Mapping[str, Any], key: str) -> list[Any]:
    value = block.get(key)
    return value if isinstance(value, list) else []


def _read(reported: event_structs.Usage | event_structs.Pass) -> int:
    return sum(
        (reported.input_tokens or 0, reported.cache_read_input_tokens or 0, reported.cache_creation_input_tokens or 0)
    )


def _newer(reported: int | None, known: int | None) -> int | None:
    return known if reported is None else reported
