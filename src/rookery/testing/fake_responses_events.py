"""Scripted answers as the events of an OpenAI Responses stream, numbered and complete like those of the real server.

The ids of an answer are created here; `fake_responses` remembers which ids were issued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rookery.testing.fake_server import Json, ScriptedEvent

Event: TypeAlias = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A message. `parts` are its content parts; `sources` are cited in the last one, as (url, title)."""

    parts: tuple[str, ...]
    phase: str | None = None
    sources: tuple[tuple[str, str], ...] = ()
    has_deltas: bool = True


@dataclass(frozen=True, slots=True)
class Refusal:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """Reasoning: summaries, raw text as of open models, and the encrypted content unless it is disabled."""

    summaries: tuple[str, ...] = ()
    text: str = ""
    is_encrypted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    name: str
    arguments: str = "{}"
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSearch:
    query: str
    sources: tuple[str, ...] = ()
    has_failed: bool = False


Output: TypeAlias = Text | Refusal | Reasoning | FunctionCall | WebSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The token counts of the answer. `read` includes cached tokens."""

    read: int = 20
    cached: int = 0
    cache_written: int = 0
    written: int = 10
    reasoning: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of an answer: complete, or one of these. If it ends early, its last item is incomplete.

    `incomplete` is a reason (`max_output_tokens`, `content_filter`); `failed` and `error` are a code and a text, sent
    as `response.failed` and as an `error` event.
    """

    incomplete: str | None = None
    failed: tuple[str, str] | None = None
    error: tuple[str, str] | None = None

    @property
    def is_early(self) -> bool:
        return self.failed is not None or self.error is not None


@dataclass(slots=True)
class Script:
    """Writes one answer as events."""

    response_id: str
    model: str
    ids: Iterator[int]
    piece: int
    items: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def write(self, outputs: Sequence[Output], tokens: Tokens, ending: Ending) -> None:
        self._say("response.created", response=self._response("in_progress"))
        self._say("response.in_progress", response=self._response("in_progress"))
        for index, output in enumerate(outputs):
            is_last = index == len(outputs) - 1
            self._write_item(
                index, output, is_open=ending.is_early and is_last, is_cut=bool(ending.incomplete) and is_last
            )
        self._end(tokens, ending)

    def document(self, tokens: Tokens) -> dict[str, Any]:
        """Return the whole answer as one document, like a server without streaming."""
        return self._response("completed", usage=_usage(tokens))

    def _end(self, tokens: Tokens, ending: Ending) -> None:
        if ending.error is not None:
            code, text = ending.error
            self._say("error", code=code, message=text, param=None)
        elif ending.failed is not None:
            code, text = ending.failed
            self._say("response.failed", response=self._response("failed", error={"code": code, "message": text}))
        elif ending.incomplete is not None:
            why = {"reason": ending.incomplete}
            response = self._response("incomplete", usage=_usage(tokens), incomplete_details=why)
            self._say("response.incomplete", response=response)
        else:
            self._say("response.completed", response=self._response("completed", usage=_usage(tokens)))

    def _say(self, kind: str, **fields: Json) -> None:
        self.events.append((kind, {"type": kind, "sequence_number": len(self.events), **fields}))

    def _response(self, status: str, **fields: Json) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": 1_790_000_000,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self.model,
            "output": [] if status == "in_progress" else list(self.items),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            "usage": None,
        } | fields

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{next(self.ids):04d}"

    def _pieces(self, text: str) -> list[str]:
        return [text[start : start + self.piece] for start in range(0, len(text), self.piece)]

    def _write_item(self, index: int, output: Output, *, is_open: bool, is_cut: bool) -> None:
        item = self._write_open_item(index, output, is_open=is_open)
        if is_open:
            return
        if is_cut and item["type"] != "web_search_call":
            item["status"] = "incomplete"
        self.items.append(item)
        self._say("response.output_item.done", output_index=index, item=item)

    def _write_open_item(self, index: int, output: Output, *, is_open: bool) -> dict[str, Any]:
        """Write an item except for its end. Return the content of the end event."""
        match output:
            case Text() | Refusal():
                return self._write_message(index, output, is_open=is_open)
            case Reasoning():
                return self._write_reasoning(index, output, is_open=is_open)
            case FunctionCall():
                return self._write_call(index, output, is_open=is_open)
            case WebSearch():
                return self._write_search(index, output)

    def _write_message(self, index: int, output: Text | Refusal, *, is_open: bool) -> dict[str, Any]:
        item_id = self._id("msg")
        head: dict[str, Any] = {"id": item_id, "type": "message", "role": "assistant"}
        if isinstance(output, Text) and output.phase is not None:
            head["phase"] = output.phase
        added = head | {"status": "in_progress", "content": []}
        self._say("response.output_item.added", output_index=index, item=added)
        texts = (output.text,) if isinstance(output, Refusal) else output.parts
        content = []
        for content_index, text in enumerate(texts):
            place = {"item_id": item_id, "output_index": index, "content_index": content_index}
            if isinstance(output, Refusal):
                content.append(self._write_refusal(place, text, is_open=is_open))
            else:
                sources = output.sources if content_index == len(texts) - 1 else ()
                content.append(
                    self._write_text(place, text, sources=sources, has_deltas=output.has_deltas, is_open=is_open)
                )
        return head | {"status": "completed", "content": content}

    def _write_text(
        self,
        place: Mapping[str, Json],
        text: str,
        *,
        sources: Sequence[tuple[str, str]],
        has_deltas: bool,
        is_open: bool,
    ) -> dict[str, Any]:
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._say("response.content_part.added", **place, part=empty)
        for piece in self._pieces(text) if has_deltas else ():
            self._say("response.output_text.delta", **place, delta=piece, logprobs=[])
        annotations = [
            {"type": "url_citation", "url": url, "title": title, "start_index": 0, "end_index": len(text)}
            for url, title in sources
        ]
        for number, annotation in enumerate(annotations):
            self._say("response.output_text.annotation.added", **place, annotation_index=number, annotation=annotation)
        part = empty | {"text": text, "annotations": annotations}
        if not is_open:
            self._say("response.output_text.done", **place, text=text, logprobs=[])
            self._say("response.content_part.done", **place, part=part)
        return part

    def _write_refusal(self, place: Mapping[str, Json], text: str, *, is_open: bool) -> dict[str, Any]:
        self._say("response.content_part.added", **place, part={"type": "refusal", "refusal": ""})
        for piece in self._pieces(text):
            self._say("response.refusal.delta", **place, delta=piece)
        part = {"type": "refusal", "refusal": text}
        if not is_open:
            self._say("response.refusal.done", **place, refusal=text)
            self._say("response.content_part.done", **place, part=part)
        return part

    def _write_reasoning(self, index: int, output: Reasoning, *, is_open: bool) -> dict[str, Any]:
        item_id = self._id("rs")
        item: dict[str, Any] = {"id": item_id, "type": "reasoning", "summary": []}
        # The real server sends the beginning of the encrypted content here, which cannot be replayed.
        early = {"encrypted_content": f"begin-{item_id}"} if output.is_encrypted else {}
        self._say("response.output_item.added", output_index=index, item=item | early)
        place = {"item_id": item_id, "output_index": index}
        for number, summary in enumerate(output.summaries):
            self._write_summary(place | {"summary_index": number}, summary, is_open=is_open)
        if output.text:
            raw = place | {"content_index": 0}
            for piece in self._pieces(output.text):
                self._say("response.reasoning_text.delta", **raw, delta=piece)
            self._say("response.reasoning_text.done", **raw, text=output.text)
            item["content"] = [{"type": "reasoning_text", "text": output.text}]
        item["summary"] = [{"type": "summary_text", "text": summary} for summary in output.summaries]
        return item | ({"encrypted_content": f"sealed-{item_id}"} if output.is_encrypted else {})

    def _write_summary(self, place: Mapping[str, Json], summary: str, *, is_open: bool) -> None:
        empty = {"type": "summary_text", "text": ""}
        self._say("response.reasoning_summary_part.added", **place, part=empty)
        for piece in self._pieces(summary):
            self._say("response.reasoning_summary_text.delta", **place, delta=piece)
        if not is_open:
            self._say("response.reasoning_summary_text.done", **place, text=summary)
            self._say("response.reasoning_summary_part.done", **place, part=empty | {"text": summary})

    def _write_call(self, index: int, output: FunctionCall, *, is_open: bool) -> dict[str, Any]:
        item = {
            "id": self._id("fc"),
            "type": "function_call",
            "call_id": output.call_id or self._id("call"),
            "name": output.name,
            "arguments": output.arguments,
            "status": "completed",
        }
        place = {"item_id": item["id"], "output_index": index}
        started = item | {"arguments": "", "status": "in_progress"}
        self._say("response.output_item.added", output_index=index, item=started)
        for piece in self._pieces(output.arguments):
            self._say("response.function_call_arguments.delta", **place, delta=piece)
        if not is_open:
            self._say("response.function_call_arguments.done", **place, arguments=output.arguments)
        return item

    def _write_search(self, index: int, output: WebSearch) -> dict[str, Any]:
        item_id = self._id("ws")
        action: dict[str, Any] = {"type": "search", "query": output.query, "queries": [output.query]}
        started = {"id": item_id, "type": "web_search_call", "status": "in_progress", "action": action}
        self._say("response.output_item.added", output_index=index, item=started)
        for stage in ("in_progress", "searching", "completed"):
            self._say(f"response.web_search_call.{stage}", item_id=item_id, output_index=index)
        found = action | {"sources": [{"type": "url", "url": url} for url in output.sources]}
        return started | {"status": "failed" if output.has_failed else "completed", "action": found}


def with_stale_events(events: Sequence[Event], every: int = 3) -> list[ScriptedEvent]:
    """Repeat every n-th event later, as after a network problem. Clients must ignore events with older numbers."""
    sent: list[ScriptedEvent] = []
    for number, event in enumerate(events):
        if number and number % every == 0:
            sent.append(events[number - 1])
        sent.append(event)
    return sent


def _usage(tokens: Tokens) -> dict[str, Any]:
    return {
        "input_tokens": tokens.read,
        "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.cache_written},
        "output_tokens": tokens.written,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.read + tokens.written,
    }
