"""The fold of an Anthropic Messages stream into parts.

Per token there is one typed decode and one struct. Unknown data is kept: a block of an unknown type becomes reasoning
without text whose `meta["raw"]` is the block, so that the next request can send it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from rookery.domain.chat import parts as content
from rookery.domain.chat.prompt_parts import Meta
from rookery.llm import error_bodies, errors
from rookery.llm.anthropic import events
from rookery.llm.call_input import is_json
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
from rookery.llm.wire import Event

# A content block as received: JSON of the provider, with numbers kept as written.
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


# Blocks inside `message_start` have no index; theirs must not collide with those of later blocks.
_EARLY = 1_000_000
_CUT_SHORT = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


class _Open:
    """A block that is still being written. `pieces` is the text, thinking or JSON so far, if it is needed."""

    __slots__ = ("block", "id", "kind", "pieces", "signature")

    def __init__(self, kind: str, block_id: str, block: Block) -> None:
        self.kind = kind
        self.id = block_id
        self.block = block
        self.pieces: list[str] = []
        self.signature = ""


class AnthropicFold:
    """Reads one response. `unknown` counts the event types that were ignored, by name."""

    def __init__(self, provider: str) -> None:
        self.unknown: dict[str, int] = {}
        self._provider = provider
        self._request_id: str | None = None
        self._hide = error_bodies.by_look
        self._open: dict[int, _Open] = {}
        self._stop: events.Stop = events.Stop()
        self._usage = Usage()
        self._names: dict[str, str] = {}
        self._seen: set[tuple[str, str]] = set()
        self._has_started = False
        self._early: list[Block] = []
        self._has_local_calls = False
        # The newest call. It is emitted once something follows: the stop reason, which comes last, may be that the
        # limit was hit in the middle of it.
        self._held: _Open | None = None

    def start(self, request_id: str | None, hide: error_bodies.Hide = error_bodies.by_look) -> None:
        self._request_id, self._hide = request_id, hide

    def feed(self, event: Event) -> Sequence[StreamPart]:
        try:
            handler = _HANDLERS.get(event.name) or self._handler_of(event)
            return handler(self, event.data)
        except events.UNREADABLE as error:
            return (
                StreamError(errors.unreadable(self._provider, f"An event cannot be read: {error}", hide=self._hide)),
            )

    def whole(self, body: bytes) -> Iterable[StreamPart]:
        try:
            return tuple(self._whole(body))
        except events.UNREADABLE as error:
            return (
                StreamError(errors.unreadable(self._provider, f"The answer cannot be read: {error}", hide=self._hide)),
            )

    def end(self) -> Iterable[StreamPart]:
        return (StreamError(errors.truncated(self._provider)),)

    def _handler_of(self, event: Event) -> _Handler:
        """Return the handler for events without a name, which some gateways send, and for unknown events."""
        if event.data == DONE:
            return _nothing
        name = event.name or events.decode_named(event.data).type
        if not name and b'"error"' in event.data:
            # Some gateways report errors in the format of another wire.
            return AnthropicFold._on_error
        if name not in _HANDLERS:
            self.unknown[name] = self.unknown.get(name, 0) + 1
        return _HANDLERS.get(name, _nothing)

    def _whole(self, body: bytes) -> Iterator[StreamPart]:
        message = events.decode_whole(body)
        if message.type != "message":
            yield from self._on_error(body)
            return
        yield ResponseStarted(message.id, message.model, self._request_id)
        for index, raw in enumerate(message.content):
            yield from self._begin(index, events.decode_block(raw))
            yield from self._finish_block(index)
        self._stop = events.Stop(message.stop_reason, message.stop_details)
        if message.usage is not None:
            self._count(message.usage, is_start=True)
            yield UsageUpdate(self._usage)
        yield from self._finish()

    # Events

    def _on_delta(self, data: bytes) -> Sequence[StreamPart]:
        event = events.decode_delta(data)
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
            return self._cited(delta.citation)
        _grow(block.block, events.decode_any(data)["delta"])
        return ()

    def _on_start(self, data: bytes) -> Sequence[StreamPart]:
        event = events.decode_start(data)
        self._early = []
        return tuple(self._begin(event.index, events.decode_block(event.content_block)))

    def _on_stop(self, data: bytes) -> Sequence[StreamPart]:
        return tuple(self._finish_block(events.decode_stop(data).index))

    def _on_message_start(self, data: bytes) -> Sequence[StreamPart]:
        message = events.decode_message_start(data).message
        if self._has_started:
            problem = "A second message began in the middle of the answer."
            return (StreamError(errors.unreadable(self._provider, problem, hide=self._hide)),)
        self._has_started = True
        parts: list[StreamPart] = [ResponseStarted(message.id, message.model, self._request_id)]
        if message.usage is not None:
            self._count(message.usage, is_start=True)
            parts.append(UsageUpdate(self._usage))
        # Gateways that have the complete answer from the start put it here.
        early = message.content if isinstance(message.content, list) else []
        self._early = [block for block in early if isinstance(block, dict)]
        if message.stop_reason:
            self._stop = events.Stop(message.stop_reason)
        return parts

    def _read_early(self) -> Iterator[StreamPart]:
        """Read the blocks of the first event. If content blocks follow, they repeat these."""
        early, self._early = self._early, []
        for number, block in enumerate(early):
            yield from self._begin(_EARLY + number, block)
            yield from self._finish_block(_EARLY + number)

    def _on_message_delta(self, data: bytes) -> Sequence[StreamPart]:
        early = list(self._read_early())
        event = events.decode_message_delta(data)
        self._stop = events.Stop(
            event.delta.stop_reason or self._stop.stop_reason, event.delta.stop_details or self._stop.stop_details
        )
        parts = [*early, *(self._release() if self._stop.stop_reason else ())]
        if event.usage is not None:
            self._count(event.usage, is_start=False)
            parts.append(UsageUpdate(self._usage))
        return parts

    def _on_message_stop(self, data: bytes) -> Sequence[StreamPart]:
        return (*self._read_early(), *self._finish())

    def _on_error(self, data: bytes) -> Sequence[StreamPart]:
        document = events.decode_any(data)
        codes, text = error_bodies.read_envelope(document) if isinstance(document, dict) else ((), "")
        error = errors.classify(self._provider, codes=codes, text=text, hide=self._hide)
        named = msgspec.structs.replace(error, request_id=self._request_id)
        return (StreamError(named),)

    # Blocks

    def _begin(self, index: int, block: Block) -> Iterator[StreamPart]:
        yield from self._release()
        kind = _kind(block)
        opened = self._open[index] = _Open(kind, str(index), block)
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
                yield from self._release()
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

    def _release(self) -> Iterator[StreamPart]:
        """Emit the call that was held back. A call whose input was cut off is dropped: it is not what the model
        meant."""
        held, self._held = self._held, None
        if held is None or (self._reason() in _CUT_SHORT and not _is_whole(held)):
            return
        self._has_local_calls = True
        yield ToolCall(held.id, _text(held.block, "name"), _input(held))

    def _result(self, block: Block) -> Iterator[StreamPart]:
        """Return the sources in a result of the provider's tool, then the complete result."""
        found = block.get("content")
        for item in found if isinstance(found, list) else [found]:
            yield from self._source_of(item)
        call_id = _text(block, "tool_use_id")
        name = self._names.get(call_id) or _text(block, "type").removesuffix("_tool_result")
        code = found.get("error_code") if isinstance(found, dict) else None
        output = {"error": code} if code else _shown(found)
        yield ToolResult(call_id, name, content.json_raw(output), bool(code), {"raw": block})

    def _cited(self, citation: Raw | UnsetType) -> Sequence[StreamPart]:
        return () if citation is UNSET else tuple(self._source_of(events.decode_any(citation)))

    def _source_of(self, found: object) -> Iterator[StreamPart]:
        """Return the source of a result or citation, the first time it is named."""
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
        yield from self._release()
        reason = self._reason()
        if self._has_local_calls and reason is not FinishReason.CONTENT_FILTER:
            reason = FinishReason.TOOL_CALLS
        meta: Meta = {"stop_reason": self._stop.stop_reason}
        details = self._stop.stop_details or events.StopDetails()
        if details.category:
            meta["category"] = details.category
        yield Finish(reason, self._usage, meta, details.explanation)

    def _reason(self) -> FinishReason:
        return STOP_REASONS.get(self._stop.stop_reason or "", FinishReason.OTHER)

    def _count(self, said: events.Usage, *, is_start: bool) -> None:
        """Merge usage. Billed numbers replace earlier ones field by field; they may be the sum of several passes.

        The context size is the input of one pass: the first event's numbers, unless later ones list the passes.
        """
        old = self._usage
        passes = [one for one in said.iterations or () if one.type == "message"]
        read = _read(passes[-1]) if passes else _read(said) if is_start else None
        made = Usage(
            input=_newer(said.input_tokens, old.input),
            cache_read=_newer(said.cache_read_input_tokens, old.cache_read),
            cache_write=_newer(said.cache_creation_input_tokens, old.cache_write),
            cache_write_1h=_newer(
                (said.cache_creation or events.CacheCreation()).ephemeral_1h_input_tokens, old.cache_write_1h
            ),
            output=_newer(said.output_tokens, old.output),
            reasoning=_newer((said.output_tokens_details or events.OutputDetails()).thinking_tokens, old.reasoning),
            web_searches=_newer((said.server_tool_use or events.ServerTools()).web_search_requests, old.web_searches),
            context_tokens=_newer(read, old.context_tokens),
        )
        total = sum(number or 0 for number in (made.input, made.cache_read, made.cache_write, made.output))
        # Some gateways report zeros when they do not count.
        self._usage = msgspec.structs.replace(made, total=total) if total else Usage()


def _nothing(fold: AnthropicFold, data: bytes) -> Sequence[StreamPart]:
    return ()


_Handler: TypeAlias = Callable[[AnthropicFold, bytes], Sequence[StreamPart]]
# At module level and not in each fold: an object that references its own methods is left to the garbage collector.
_HANDLERS: Mapping[str, _Handler] = {
    "content_block_delta": AnthropicFold._on_delta,
    "content_block_start": AnthropicFold._on_start,
    "content_block_stop": AnthropicFold._on_stop,
    "message_start": AnthropicFold._on_message_start,
    "message_delta": AnthropicFold._on_message_delta,
    "message_stop": AnthropicFold._on_message_stop,
    "ping": _nothing,
    "error": AnthropicFold._on_error,
}


def _kind(block: Block) -> str:
    """Return how a block is treated. The provider's tools change; their blocks are recognized by the suffix of their
    type."""
    name = _text(block, "type")
    if name in ("text", "thinking", "redacted_thinking", "tool_use"):
        return name
    if name.endswith("_tool_use"):
        return "server_tool_use"
    return "tool_result" if name.endswith("_tool_result") else "unknown"


def _redacted(block: Block) -> Meta:
    return {"redacted_data": _text(block, "data")}


def _input(opened: _Open) -> str:
    """Return the input as the model wrote it; a gateway that does not stream it sends it in the first event."""
    if opened.pieces:
        return "".join(opened.pieces)
    given = opened.block.get("input")
    return bytes(content.json_raw(given)).decode() if given else "{}"


def _is_whole(opened: _Open) -> bool:
    """Return whether the input of a call is complete. Empty input may not have begun."""
    return is_json("".join(opened.pieces)) if opened.pieces else bool(opened.block.get("input"))


def _raw_input(opened: _Open) -> object:
    """Return the input for the stored block. Text that is not JSON stays text, so the next request knows not to send
    it."""
    text = _input(opened)
    try:
        return events.decode_any(text)
    except events.UNREADABLE:
        return text


def _grow(block: Block, delta: Block) -> None:
    """Apply an unknown delta to its block: append text to text and lists to lists, replace everything else."""
    for key, value in delta.items():
        if key == "type":
            continue
        old = block.get(key)
        is_same = (isinstance(old, str) and isinstance(value, str)) or (
            isinstance(old, list) and isinstance(value, list)
        )
        block[key] = old + value if is_same else value


def _shown(found: object) -> object:
    """Return a result without the data only the provider can read, which would be stored and sent to clients twice."""
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


def _read(said: events.Usage | events.Pass) -> int:
    return sum((said.input_tokens or 0, said.cache_read_input_tokens or 0, said.cache_creation_input_tokens or 0))


def _newer(said: int | None, known: int | None) -> int | None:
    return known if said is None else said
