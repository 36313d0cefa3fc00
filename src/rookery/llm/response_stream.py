"""The response stream: converts the bytes of a provider's answer to parts. The last part is always terminal.

A token costs one read, one decoded event and one fold, see benchmarks/token_decode.py, "paced".
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rookery.llm import error_bodies, errors, keep_alives
from rookery.llm.error_bodies import Hide
from rookery.llm.errors import EventTooLarge, TransportError
from rookery.llm.http import HttpStream
from rookery.llm.repeated_deltas import RepeatedDeltas
from rookery.llm.sse import MAX_EVENT_BYTES, SseDecoder
from rookery.llm.types import Finish, ProviderError, ReasoningDelta, StreamError, StreamPart, TextDelta, ToolInputDelta
from rookery.llm.wire import Event, Fold

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Answer:
    """One answer. `opened` is the response, or the error that replaces it.

    The driver calls `first`, and then reads the chunks itself: with `next_chunk` until the first visible text, and with
    `gathered` after it.
    """

    __slots__ = ("_hide", "_opened", "_reader", "_refusal", "gathered", "next_chunk")

    def __init__(self, opened: HttpStream | ProviderError, reader: AnswerReader, *, hide: Hide) -> None:
        self._reader = reader
        self._hide = hide
        self._opened: HttpStream | None = None
        self._refusal: ProviderError | None = None
        if isinstance(opened, ProviderError):
            self._refusal = opened
            return
        self._opened = opened
        self.next_chunk = opened.chunks().__anext__
        self.gathered = opened.gathered
        reader.start(error_bodies.find_request_id(opened.headers, hide), hide)

    async def first(self) -> Sequence[StreamPart]:
        """Return the first parts, at least one."""
        if self._opened is None:
            assert self._refusal is not None
            self._reader.is_done = True
            return (StreamError(self._refusal),)
        if media_type(self._opened) == "application/json":
            return await self._whole(self._opened)
        parts: Sequence[StreamPart] = ()
        while not parts:
            try:
                parts = self._reader.feed(await self.next_chunk())
            except (StopAsyncIteration, TransportError) as stop:
                parts = self.last_parts(stop)
        return self.with_request_id(parts) if self._reader.is_done else parts

    def last_parts(self, stop: StopAsyncIteration | TransportError) -> Sequence[StreamPart]:
        """Return the last parts, after the end of the body or a broken connection."""
        return self._connection_error(stop) if isinstance(stop, TransportError) else self._reader.end()

    async def release(self) -> None:
        """Keep the connection for other requests if the answer is complete, else drop it."""
        if self._opened is None:
            return
        try:
            if self._reader.is_done:
                await self._opened.finish()
        finally:
            self._opened.close()

    async def _whole(self, opened: HttpStream) -> Sequence[StreamPart]:
        try:
            body = await opened.read(MAX_EVENT_BYTES + 1)
        except TransportError as error:
            return self._connection_error(error)
        return self.with_request_id(self._reader.read_document(body))

    def _connection_error(self, error: TransportError) -> Sequence[StreamPart]:
        self._reader.is_done = True
        failure = errors.from_transport(self._reader.provider, error, hide=self._hide)
        return (StreamError(msgspec.structs.replace(failure, request_id=self._reader.request_id)),)

    def with_request_id(self, parts: Sequence[StreamPart]) -> Sequence[StreamPart]:
        """Return the parts, with the request's id added to an error at their end."""
        if not parts or not isinstance(last := parts[-1], StreamError) or last.error.request_id is not None:
            return parts
        error = msgspec.structs.replace(last.error, request_id=self._reader.request_id)
        return [*parts[:-1], StreamError(error)]


class AnswerReader:
    """Converts the bytes of one answer to parts. `is_done` is set once a terminal part was returned."""

    __slots__ = ("_decode", "_decoder", "_feed", "_fold", "_hide", "_repeated", "is_done", "provider", "request_id")

    def __init__(self, fold: Fold, provider: str) -> None:
        self._decoder = SseDecoder()
        self._decode = self._decoder.feed
        self._fold = fold
        self._feed = fold.feed
        self._repeated = RepeatedDeltas()
        self.provider = provider
        self._hide = error_bodies.default_hide
        self.request_id: str | None = None
        self.is_done = False

    def start(self, request_id: str | None, hide: Hide = error_bodies.default_hide) -> None:
        self.request_id = request_id
        self._hide = hide
        self._fold.start(request_id, hide)

    def feed(self, chunk: bytes) -> Sequence[StreamPart]:
        repeated = self._repeated
        if not self._fold.has_plain_deltas or not self._decoder.is_between_events:
            return self._read(chunk)
        if (delta := repeated.read(chunk)) is not None:
            return (delta,)
        parts = self._read(chunk)
        if self._decoder.is_between_events:
            repeated.learn(chunk, parts)
        return parts

    def _read(self, chunk: bytes) -> Sequence[StreamPart]:
        try:
            events = self._decode(chunk)
        except EventTooLarge as error:
            return self._broken([], str(error))
        if len(events) != 1:
            if not events:
                keep_alives.note()
            return self._folded(events)
        # This is the usual case while a model writes, and needs no list.
        try:
            parts = self._feed(events[0])
        except _UNREADABLE:
            return self._broken([], "An event is not JSON.")
        if parts and (type(parts[-1]) is Finish or type(parts[-1]) is StreamError):
            self.is_done = True
        elif not parts:
            keep_alives.note()
        return parts

    def end(self) -> list[StreamPart]:
        """Return the parts of the decoder's last event and the wire's last parts."""
        parts = self._folded(self._decoder.end())
        if not self.is_done:
            parts += self._fold.end()
        return self._ended(parts)

    def read_document(self, body: bytes) -> list[StreamPart]:
        """Return the parts of a JSON document: the answer of a server that does not stream, or an error."""
        if len(body) > MAX_EVENT_BYTES:
            return self._broken([], f"The answer is larger than {MAX_EVENT_BYTES} bytes.")
        try:
            document = msgspec.json.decode(body)
        except _UNREADABLE:
            return self._broken([], "The answer is not JSON.")
        if isinstance(document, dict) and (document.get("error") or document.get("type") == "error"):
            codes, text = error_bodies.read_envelope(document)
            self.is_done = True
            return [StreamError(errors.classify(self.provider, 200, codes=codes, text=text, hide=self._hide))]
        return self._ended(list(self._fold.read_document(body)))

    def _folded(self, events: list[Event]) -> list[StreamPart]:
        parts: list[StreamPart] = []
        for event in events:
            try:
                parts += self._feed(event)
            except _UNREADABLE:
                return self._broken(parts, "An event is not JSON.")
            if parts and (type(parts[-1]) is Finish or type(parts[-1]) is StreamError):
                self.is_done = True
                break
        return parts

    def _ended(self, parts: list[StreamPart]) -> list[StreamPart]:
        self.is_done = True
        if not parts or not isinstance(parts[-1], Finish | StreamError):
            parts.append(StreamError(errors.truncated(self.provider)))
        return parts

    def _broken(self, parts: list[StreamPart], detail: str) -> list[StreamPart]:
        self.is_done = True
        return [*parts, StreamError(errors.unreadable(self.provider, detail, hide=self._hide))]


def has_text(parts: Sequence[StreamPart]) -> bool:
    return any(isinstance(part, TextDelta | ReasoningDelta | ToolInputDelta) for part in parts)


def joined(parts: Sequence[StreamPart]) -> Sequence[StreamPart]:
    """Return the parts with adjacent deltas of one block merged."""
    if len(parts) < 2:
        return parts
    result: list[StreamPart] = [parts[0]]
    for part in parts[1:]:
        last = result[-1]
        if type(part) is TextDelta and type(last) is TextDelta and part.id == last.id:
            result[-1] = TextDelta(part.id, last.text + part.text)
        elif type(part) is ReasoningDelta and type(last) is ReasoningDelta and part.id == last.id:
            result[-1] = ReasoningDelta(part.id, last.text + part.text)
        elif type(part) is ToolInputDelta and type(last) is ToolInputDelta and part.id == last.id:
            result[-1] = ToolInputDelta(part.id, last.json + part.json)
        else:
            result.append(part)
    return result


def media_type(stream: HttpStream) -> str:
    return stream.headers.get("content-type", "").partition(";")[0].strip().lower()
