"""The fold of an OpenAI Responses stream: converts its events to parts.

- `response.output_item.done` is authoritative: encrypted content and arguments are taken from there, because those in
  `.added` may be incomplete.
- Items are identified by `output_index`, because some compatible servers change the item's id.
- An item after reasoning that cannot be replayed is stored without its id, because the API refuses one without the
  other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from rookery.domain.chat.model_prompt import Meta
from rookery.llm import error_bodies, errors
from rookery.llm.responses import event_structs
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
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    UsageUpdate,
)
from rookery.llm.wire import Event, is_complete_json

_INCOMPLETE = {"max_output_tokens": FinishReason.LENGTH, "content_filter": FinishReason.CONTENT_FILTER}
_SUMMARY_GAP = "\n\n"
# Raw reasoning text is in the same item as the summaries. Its blocks get indices from here on.
_RAW_REASONING: Final = 1_000_000
_MESSAGE: Final = event_structs.Item(type="message")
_REASONING: Final = event_structs.Item(type="reasoning")

# Codes inside a stream have no status. The table of errors treats them like this status.
_STATUS_OF_CODE = {"vector_store_timeout": 504, "invalid_prompt": 400, "data_residency_mismatch": 400}
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_plain_decoder = msgspec.json.Decoder()
_WEB_SEARCH: Final = "web_search"


class _Block:
    """A text of a message, or of a reasoning item. `sent` is the number of emitted characters."""

    __slots__ = ("id", "is_refusal", "sent")

    def __init__(self, block_id: str, *, is_refusal: bool = False) -> None:
        self.id = block_id
        self.is_refusal = is_refusal
        self.sent = 0


class _OpenItem:
    """An output item between `.added` and `.done`.

    `blocks` holds the texts of a message by content index. For reasoning it holds the summaries by their index, and the
    raw reasoning text, all with one block id.
    """

    __slots__ = ("blocks", "id", "is_started", "name", "phase", "sent", "type")

    def __init__(self, item: event_structs.Item, index: int) -> None:
        self.type = item.type
        self.id = _key_of(item, index)
        self.name = _tool_name(item)
        self.phase = item.phase
        self.blocks: dict[int, _Block] = {}
        self.is_started = False
        self.sent = 0


def _key_of(item: event_structs.Item, index: int) -> str:
    """Return the id of a call in the emitted parts."""
    return item.call_id or item.id or f"item-{index}"


def _tool_name(item: event_structs.Item) -> str:
    return _WEB_SEARCH if item.type == "web_search_call" else item.name or item.type


class ResponsesFold:
    """Folds one response. `unknown` counts the ignored events by type."""

    def __init__(self, provider: str) -> None:
        self.unknown: Counter[str] = Counter()
        self._provider = provider
        self._request_id: str | None = None
        self._hide = error_bodies.default_hide
        self._has_started = False
        self._sequence = -1
        self._open: dict[int, _OpenItem] = {}
        self._done: set[int] = set()
        # The output index of each item id, of which an item may have several, and the type of each item.
        self._ids: dict[str, int] = {}
        self._types: dict[int, str] = {}
        self._sources: set[tuple[str, str]] = set()
        self._has_calls = False
        self._has_refused = False
        self._searches = 0
        # The newest call of a server that does not report whether a call is complete. The call is complete if another
        # event follows.
        self._held: ToolCall | None = None
        # False once a reasoning item cannot be replayed.
        self._keeps_ids = True

    @property
    def has_plain_deltas(self) -> bool:
        return False  # the length of the text so far is counted, and events are numbered

    def start(self, request_id: str | None, hide: error_bodies.Hide = error_bodies.default_hide) -> None:
        self._request_id, self._hide = request_id, hide

    def feed(self, event: Event) -> Sequence[StreamPart]:
        data = event.data
        try:
            known = event_structs.event_decoder.decode(data)
        except _UNREADABLE:
            return self._handle_unknown(data)
        if type(known) is event_structs.Error:
            # Handled before the sequence numbers, because servers that fail early restart them.
            return [StreamError(self._error(data))]
        if known.sequence_number is not None:
            if known.sequence_number <= self._sequence:
                return ()
            self._sequence = known.sequence_number
        parts: list[StreamPart] = []
        if not self._has_started and type(known) is not event_structs.Failed:
            self._begin(known, parts)
        try:
            _HANDLERS[type(known)](self, known, parts)
        except _UNREADABLE as error:
            parts.append(self._unreadable(str(error)))
        return parts

    def read_document(self, body: bytes) -> Iterable[StreamPart]:
        parts: list[StreamPart] = []
        try:
            response = event_structs.response_decoder.decode(body)
            if bytes(response.error) != b"null" or not (response.output or response.status):
                return [StreamError(self._error(body))]
            self._has_started = True
            parts.append(ResponseStarted(response.id, response.model, self._request_id))
            self._finish(response, parts)
        except _UNREADABLE as error:
            parts.append(self._unreadable(str(error)))
        return parts

    def end(self) -> Iterable[StreamPart]:
        return [StreamError(self._with_request_id(errors.truncated(self._provider)))]

    def _handle_unknown(self, data: bytes) -> Sequence[StreamPart]:
        """Ignore an event of an unknown type. Return an error for an event that cannot be decoded."""
        if data.strip() == b"[DONE]":
            return ()
        try:
            kind = event_structs.head_decoder.decode(data).type
        except _UNREADABLE as error:
            return [self._unreadable(str(error))]
        if kind in event_structs.KNOWN_TYPES:
            return [self._unreadable(f"the event {kind} has another form")]
        if kind in event_structs.IGNORED_TYPES:
            return ()
        if not kind and b'"error"' in data:
            return [StreamError(self._error(data))]
        self.unknown[kind] += 1
        return ()

    def _begin(self, event: event_structs.Known, parts: list[StreamPart]) -> None:
        self._has_started = True
        response = getattr(event, "response", None) or event_structs.Response()
        parts.append(ResponseStarted(response.id, response.model, self._request_id))

    def _error(self, data: bytes) -> ProviderError:
        codes, text = error_bodies.read_body(data, "application/json")
        code = next((code for code in codes if isinstance(code, str)), "")
        status = _STATUS_OF_CODE.get(code, 400 if "image" in code else None)
        error = errors.classify(self._provider, status, codes=codes, text=text, hide=self._hide)
        return self._with_request_id(msgspec.structs.replace(error, status=None))

    def _unreadable(self, detail: str) -> StreamError:
        return StreamError(self._with_request_id(errors.unreadable(self._provider, detail, hide=self._hide)))

    def _with_request_id(self, error: ProviderError) -> ProviderError:
        return msgspec.structs.replace(error, request_id=self._request_id)

    def _ignore(self, event: Any, parts: list[StreamPart]) -> None:
        pass

    # Text

    def _on_text_delta(
        self, event: event_structs.TextDelta | event_structs.RefusalDelta, parts: list[StreamPart]
    ) -> None:
        if not event.delta or event.output_index in self._done:
            return
        is_refusal = type(event) is event_structs.RefusalDelta
        block = self._text_block(event.output_index, event.content_index, is_refusal=is_refusal, parts=parts)
        block.sent += len(event.delta)
        parts.append(TextDelta(block.id, event.delta))

    def _on_text_done(self, event: event_structs.TextDone, parts: list[StreamPart]) -> None:
        self._complete_text(event.output_index, event.content_index, text=event.text, is_refusal=False, parts=parts)

    def _on_refusal_done(self, event: event_structs.RefusalDone, parts: list[StreamPart]) -> None:
        self._complete_text(event.output_index, event.content_index, text=event.refusal, is_refusal=True, parts=parts)

    def _on_part(self, event: event_structs.PartAdded | event_structs.PartDone, parts: list[StreamPart]) -> None:
        self._content(event.output_index, event.content_index, content=event.part, parts=parts)

    def _content(
        self, index: int, content_index: int, *, content: event_structs.Content, parts: list[StreamPart]
    ) -> None:
        if content.type not in ("output_text", "refusal"):
            return
        is_refusal = content.type == "refusal"
        text = (content.refusal if is_refusal else content.text) or ""
        self._complete_text(index, content_index, text=text, is_refusal=is_refusal, parts=parts)
        for annotation in content.annotations or ():
            self._cite(annotation, parts)

    def _complete_text(
        self, index: int, content_index: int, *, text: str, is_refusal: bool, parts: list[StreamPart]
    ) -> None:
        """Emit the text that the deltas did not contain, unless the message has ended."""
        if index in self._done:
            return
        block = self._text_block(index, content_index, is_refusal=is_refusal, parts=parts)
        if missing := text[block.sent :]:
            block.sent += len(missing)
            parts.append(TextDelta(block.id, missing))

    def _text_block(self, index: int, content_index: int, *, is_refusal: bool, parts: list[StreamPart]) -> _Block:
        open_item = self._item(index, _MESSAGE)
        block = open_item.blocks.get(content_index)
        if block is None:
            block = _Block(f"text-{index}-{content_index}", is_refusal=is_refusal)
            open_item.blocks[content_index] = block
            self._has_refused |= is_refusal
            parts.append(TextStart(block.id))
        return block

    # Reasoning

    def _on_summary_added(self, event: event_structs.SummaryAdded, parts: list[StreamPart]) -> None:
        if event.output_index not in self._done:
            self._start_item(event.output_index, _REASONING, parts)

    def _on_summary_delta(self, event: event_structs.SummaryDelta, parts: list[StreamPart]) -> None:
        self._add_reasoning(event.output_index, event.summary_index, text=event.delta, parts=parts)

    def _on_summary_done(self, event: event_structs.SummaryDone, parts: list[StreamPart]) -> None:
        self._complete_reasoning(event.output_index, event.summary_index, text=event.text, parts=parts)

    def _on_reasoning_delta(self, event: event_structs.ReasoningDelta, parts: list[StreamPart]) -> None:
        self._add_reasoning(event.output_index, _RAW_REASONING + event.content_index, text=event.delta, parts=parts)

    def _on_reasoning_done(self, event: event_structs.ReasoningDone, parts: list[StreamPart]) -> None:
        block = _RAW_REASONING + event.content_index
        self._complete_reasoning(event.output_index, block, text=event.text, parts=parts)

    def _add_reasoning(self, index: int, block_index: int, *, text: str, parts: list[StreamPart]) -> None:
        if not text or index in self._done:
            return
        open_item = self._start_item(index, _REASONING, parts)
        block = open_item.blocks.get(block_index)
        if block is None:
            block = open_item.blocks[block_index] = _Block(_reasoning_id(index))
            if len(open_item.blocks) > 1:
                parts.append(ReasoningDelta(block.id, _SUMMARY_GAP))
        block.sent += len(text)
        parts.append(ReasoningDelta(block.id, text))

    def _complete_reasoning(self, index: int, block_index: int, *, text: str, parts: list[StreamPart]) -> None:
        if index in self._done:
            return
        block = self._item(index, _REASONING).blocks.get(block_index)
        self._add_reasoning(index, block_index, text=text[block.sent if block else 0 :], parts=parts)

    # Tools

    def _on_arguments_delta(self, event: event_structs.ArgumentsDelta, parts: list[StreamPart]) -> None:
        # Without `.added` there is no id for the part. The complete call arrives with `.done`.
        open_item = self._open.get(event.output_index)
        if open_item is not None and event.delta:
            open_item.sent += len(event.delta)
            parts.append(ToolInputDelta(open_item.id, event.delta))

    def _on_arguments_done(self, event: event_structs.ArgumentsDone, parts: list[StreamPart]) -> None:
        open_item = self._open.get(event.output_index)
        if open_item is not None:
            _complete_arguments(open_item, event.arguments, parts)

    def _on_annotation(self, event: event_structs.AnnotationAdded, parts: list[StreamPart]) -> None:
        if event.annotation is not None:
            self._cite(event.annotation, parts)

    def _cite(self, cited: event_structs.Annotation, parts: list[StreamPart]) -> None:
        is_url = cited.type == "url_citation"
        where = cited.url if is_url else cited.file_id or cited.filename
        if not where or cited.type not in ("url_citation", "file_citation"):
            return
        kind: tuple[str, str] = (cited.type, where)
        if kind in self._sources:
            return
        self._sources.add(kind)
        source_id = f"source-{len(self._sources)}"
        title = cited.title if is_url else cited.filename
        parts.append(Source(source_id, "url" if is_url else "document", where, title))

    # Items

    def _on_item_added(self, event: event_structs.ItemAdded, parts: list[StreamPart]) -> None:
        if event.output_index in self._done or event.output_index in self._open:
            return
        self._start_item(event.output_index, event_structs.read_item(event.item), parts)

    def _on_item_done(self, event: event_structs.ItemDone, parts: list[StreamPart]) -> None:
        self._close_item(event.output_index, event.item, parts)

    def _item(self, index: int, item: event_structs.Item) -> _OpenItem:
        open_item = self._open.get(index)
        if open_item is None:
            open_item = self._open[index] = _OpenItem(item, index)
            self._record_item(index, item)
        return open_item

    def _record_item(self, index: int, item: event_structs.Item) -> None:
        self._types[index] = item.type
        if item.id:
            self._ids[item.id] = index

    def _start_item(self, index: int, item: event_structs.Item, parts: list[StreamPart]) -> _OpenItem:
        """Return the open item at this index, and emit its start once. A message emits a start for each text."""
        open_item = self._item(index, item)
        if open_item.is_started:
            return open_item
        self._emit_held_call(parts)
        open_item.is_started = True
        if open_item.type == "reasoning":
            parts.append(ReasoningStart(_reasoning_id(index)))
        elif open_item.type != "message":
            is_ours = open_item.type == "function_call"
            parts.append(ToolInputStart(open_item.id, open_item.name, provider_executed=not is_ours))
        return open_item

    def _close_item(self, index: int, raw: Raw, parts: list[StreamPart]) -> None:
        """Finish an item: emit missing content, and its end with the data for a replay."""
        if index in self._done:
            return
        item = event_structs.read_item(raw)
        open_item = self._start_item(index, item, parts)
        self._record_item(index, item)
        match item.type:
            case "message":
                self._close_message(index, item, open_item=open_item, parts=parts)
            case "reasoning":
                self._close_reasoning(index, item, parts)
            case "function_call":
                self._close_call(item, open_item=open_item, parts=parts)
            case _:
                self._close_provider_item(item, raw, open_item=open_item, parts=parts)
        self._done.add(index)
        self._open.pop(index, None)

    def _close_message(
        self, index: int, item: event_structs.Item, *, open_item: _OpenItem, parts: list[StreamPart]
    ) -> None:
        for content_index, content in enumerate(item.content or ()):
            self._content(index, content_index, content=content, parts=parts)
        if not open_item.blocks or (item.content and not any(map(_is_visible, item.content))):
            # Prompts leave out blank messages, so the reasoning before this one cannot be replayed.
            self._keeps_ids = False
        meta = self._identity(item)
        if phase := item.phase or open_item.phase:
            meta["phase"] = phase
        self._end_texts(open_item, meta, parts)

    def _end_texts(self, open_item: _OpenItem, meta: Meta, parts: list[StreamPart]) -> None:
        for _, block in sorted(open_item.blocks.items()):
            own = meta | {"refusal": True} if block.is_refusal else meta
            parts.append(TextEnd(block.id, own or None, refusal=block.is_refusal))

    def _close_reasoning(self, index: int, item: event_structs.Item, parts: list[StreamPart]) -> None:
        for summary_index, summary in enumerate(item.summary or ()):
            self._complete_reasoning(index, summary_index, text=summary.text or "", parts=parts)
        for content_index, content in enumerate(item.content or ()):
            block = _RAW_REASONING + content_index
            self._complete_reasoning(index, block, text=content.text or "", parts=parts)
        meta: Meta = {}
        if item.encrypted_content and item.id:
            meta = {"item_id": item.id, "encrypted_content": item.encrypted_content}
        else:
            self._keeps_ids = False
        if item.summary:
            meta["summary"] = [{"type": "summary_text", "text": summary.text or ""} for summary in item.summary]
        parts.append(ReasoningEnd(_reasoning_id(index), meta or None))

    def _close_call(self, item: event_structs.Item, *, open_item: _OpenItem, parts: list[StreamPart]) -> None:
        arguments = item.arguments or ""
        _complete_arguments(open_item, arguments, parts)
        parts.append(ToolInputEnd(open_item.id))
        if item.status == "incomplete":
            return  # the call was cut off by the token limit and must not run
        meta = self._identity(item) or None
        self._held = ToolCall(open_item.id, item.name or open_item.name, arguments, meta=meta)
        if item.status == "completed":
            self._emit_held_call(parts)

    def _emit_held_call(self, parts: list[StreamPart], *, is_cut_short: bool = False) -> None:
        """Emit the held call, unless the answer was cut short and its arguments are incomplete."""
        held, self._held = self._held, None
        if held is None or (is_cut_short and not is_complete_json(held.input)):
            return
        self._has_calls = True
        parts.append(held if held.input else msgspec.structs.replace(held, input="{}"))

    def _close_provider_item(
        self, item: event_structs.Item, raw: Raw, *, open_item: _OpenItem, parts: list[StreamPart]
    ) -> None:
        """Finish a web search or an item of an unknown kind. The whole item is stored, for replay and display."""
        meta: Meta = self._identity(item) | {"raw": _plain_decoder.decode(raw)}
        action = "{}" if bytes(item.action) == b"null" else bytes(item.action).decode()
        if item.type == "web_search_call" and (meta["raw"].get("action") or {}).get("type", "search") == "search":
            self._searches += 1
        name = open_item.name
        parts.append(ToolInputEnd(open_item.id))
        parts.append(ToolCall(open_item.id, name, action, provider_executed=True, meta=meta))
        is_error = item.status == "failed"
        parts.append(ToolResult(open_item.id, name, Raw(bytes(raw)), is_error=is_error))

    def _identity(self, item: event_structs.Item) -> Meta:
        return {"item_id": item.id} if item.id and self._keeps_ids else {}

    # The end

    def _on_end(self, event: event_structs.Completed | event_structs.Incompleted, parts: list[StreamPart]) -> None:
        self._finish(event.response, parts)

    def _on_failed(self, event: event_structs.Failed, parts: list[StreamPart]) -> None:
        if event.response.usage is not None:
            parts.append(UsageUpdate(event_structs.normal_usage(event.response, self._searches)))
        parts.append(StreamError(self._error(bytes(event.response.error))))

    def _finish(self, response: event_structs.Response, parts: list[StreamPart]) -> None:
        for index, raw in self._match_items(response.output):
            # Servers that send no item events send all items here.
            self._close_item(index, raw, parts)
        for index in sorted(self._open):
            self._close_unfinished(index, parts)
        detail = response.incomplete_details.reason if response.incomplete_details is not None else None
        reason = _reason_to_stop(response)
        self._emit_held_call(parts, is_cut_short=reason in _INCOMPLETE.values())
        meta: Meta | None = None
        if self._has_refused:
            reason = FinishReason.CONTENT_FILTER
        elif self._has_calls and reason is not FinishReason.CONTENT_FILTER:
            meta = {"stop_reason": HIT_LIMIT} if reason is FinishReason.LENGTH else None
            reason = FinishReason.TOOL_CALLS
        parts.append(Finish(reason, event_structs.normal_usage(response, self._searches), meta, detail))

    def _match_items(self, output: Sequence[Raw]) -> list[tuple[int, Raw]]:
        """Return the items of the result with their output indices in the stream.

        An item is matched by its id, else by its number among the items of its type. Its position in the list is
        unreliable, because servers may omit items.
        """
        heads = [event_structs.read_item(raw) for raw in output]
        found: list[int | None] = [self._ids.get(item.id) if item.id else None for item in heads]
        left: dict[str, list[int]] = {}
        for index in sorted(self._types.keys() - {each for each in found if each is not None}):
            left.setdefault(self._types[index], []).append(index)
        fresh = max(self._types, default=-1) + 1
        matched: list[tuple[int, Raw]] = []
        for item, known, raw in zip(heads, found, output, strict=True):
            if known is not None:
                matched.append((known, raw))
            elif same_type := left.get(item.type):
                matched.append((same_type.pop(0), raw))
            else:
                matched.append((fresh, raw))
                fresh += 1
        return matched

    def _close_unfinished(self, index: int, parts: list[StreamPart]) -> None:
        """Emit the end of an item that was started but is not in the result."""
        open_item = self._open.pop(index)
        if open_item.type == "message":
            self._end_texts(open_item, {"phase": open_item.phase} if open_item.phase else {}, parts)
        elif open_item.type == "reasoning":
            self._keeps_ids = False
            parts.append(ReasoningEnd(_reasoning_id(index)))
        else:
            parts.append(ToolInputEnd(open_item.id))


def _reason_to_stop(response: event_structs.Response) -> FinishReason:
    """Return the stop reason that the response reports."""
    if response.incomplete_details is not None and response.incomplete_details.reason:
        return _INCOMPLETE.get(response.incomplete_details.reason, FinishReason.OTHER)
    return FinishReason.STOP if response.status in (None, "completed") else FinishReason.OTHER


def _complete_arguments(open_item: _OpenItem, arguments: str, parts: list[StreamPart]) -> None:
    if missing := arguments[open_item.sent :]:
        open_item.sent += len(missing)
        parts.append(ToolInputDelta(open_item.id, missing))


def _is_visible(content: event_structs.Content) -> bool:
    return bool((content.text or content.refusal or "").strip())


def _reasoning_id(index: int) -> str:
    return f"reasoning-{index}"


_Handler: TypeAlias = Callable[[ResponsesFold, Any, list[StreamPart]], None]

_HANDLERS: Final[dict[type, _Handler]] = {
    event_structs.TextDelta: ResponsesFold._on_text_delta,
    event_structs.ArgumentsDelta: ResponsesFold._on_arguments_delta,
    event_structs.SummaryDelta: ResponsesFold._on_summary_delta,
    event_structs.ReasoningDelta: ResponsesFold._on_reasoning_delta,
    event_structs.RefusalDelta: ResponsesFold._on_text_delta,
    event_structs.Created: ResponsesFold._ignore,
    event_structs.InProgress: ResponsesFold._ignore,
    event_structs.Queued: ResponsesFold._ignore,
    event_structs.ItemAdded: ResponsesFold._on_item_added,
    event_structs.ItemDone: ResponsesFold._on_item_done,
    event_structs.PartAdded: ResponsesFold._on_part,
    event_structs.PartDone: ResponsesFold._on_part,
    event_structs.TextDone: ResponsesFold._on_text_done,
    event_structs.RefusalDone: ResponsesFold._on_refusal_done,
    event_structs.SummaryAdded: ResponsesFold._on_summary_added,
    event_structs.SummaryDone: ResponsesFold._on_summary_done,
    event_structs.ReasoningDone: ResponsesFold._on_reasoning_done,
    event_structs.ArgumentsDone: ResponsesFold._on_arguments_done,
    event_structs.AnnotationAdded: ResponsesFold._on_annotation,
    event_structs.Completed: ResponsesFold._on_end,
    event_structs.Incompleted: ResponsesFold._on_end,
    event_structs.Failed: ResponsesFold._on_failed,
}
