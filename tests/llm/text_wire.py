"""The smallest wire: each event is `{"text": ...}`, `{"done": ...}`, `{"error": {...}}` or is ignored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rookery.llm import error_bodies, errors
from rookery.llm.chat_caches import EncodedRequest
from rookery.llm.types import (
    Call,
    CallWarning,
    Finish,
    FinishReason,
    ResponseStarted,
    StreamError,
    StreamPart,
    TextDelta,
    Usage,
    Wire,
)
from rookery.llm.wire import Event, Request


class WordsFormat:
    """Sends the flags of the replay ladder and the ids of the prompt's calls, for tests to check."""

    def __init__(self, *, wire: Wire = "completions", warnings: tuple[CallWarning, ...] = ()) -> None:
        self.wire: Wire = wire
        self._warnings = warnings

    def build(self, call: Call, previous: EncodedRequest | None = None) -> Request:
        body: dict[str, Any] = {
            "drop_stale_thinking": call.drop_stale_thinking,
            "plain_history": call.plain_history,
            "parts": [type(part).__name__ for message in call.prompt.messages for part in message.parts],
        }
        return Request(path="/words", body=body, headers={"X-Wire": "words"}, warnings=self._warnings)

    def fold(self, call: Call) -> WordsFold:
        return WordsFold()


class WordsFold:
    def __init__(self) -> None:
        self.unknown: Counter[str] = Counter()

    @property
    def has_plain_deltas(self) -> bool:
        return False

    def start(self, request_id: str | None, hide: error_bodies.Hide = error_bodies.default_hide) -> None:
        self._request_id, self._hide = request_id, hide
        self._is_started = False

    def feed(self, event: Event) -> Sequence[StreamPart]:
        document = msgspec.json.decode(event.data, type=dict[str, Any])
        if "error" in document:
            codes, text = error_bodies.read_envelope(document)
            return [StreamError(errors.classify("Words", codes=codes, text=text, hide=self._hide))]
        parts: list[StreamPart] = []
        if not self._is_started:
            self._is_started = True
            parts.append(ResponseStarted("resp_1", "words-1", self._request_id))
        if "text" in document:
            parts.append(TextDelta("0", document["text"]))
        if "kind" in document:
            self.unknown[document["kind"]] += 1
        if "done" in document:
            parts.append(Finish(FinishReason.STOP, Usage(output=document["done"])))
        return parts

    def read_document(self, body: bytes) -> Iterable[StreamPart]:
        yield from self.feed(Event("", body))
        yield Finish(FinishReason.STOP, Usage())

    def end(self) -> Iterable[StreamPart]:
        return [StreamError(errors.truncated("Words"))]
