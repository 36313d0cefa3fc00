"""Capture of HTTP exchanges: `RecordedHttp` wraps the HTTP client of a model and reports each exchange as an attempt.

The bytes that are sent and read do not change. On the event loop, bytes are only kept; `redact_attempt` does all other
work and may run in a thread. All changes of state are synchronous, so that a read and a close in two tasks cannot both
report the end of the exchange.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from rookery.debug.redaction import (
    BODY_BYTES,
    MAX_JSON_BYTES,
    TAIL_BYTES,
    BodyMeta,
    CapturedBody,
    RedactedBody,
    Redactor,
    is_event_stream,
    is_json,
)
from rookery.llm.http import HttpClient, HttpStream
from rookery.runtime.clock import Clock, SystemClock
from rookery.store.debug.record_rows import AttemptStatus
from rookery.telemetry.log import get_logger

log = get_logger("debug.recorded_http")

UNEXPECTED_EOF = "unexpected_eof"
CANCELLED = "cancelled"
# Buffered bytes that are read after the consumer closed a body in JSON, to see whether the document is complete.
_MAX_UNREAD_BYTES = 65_536
_WITHOUT_BODY = frozenset({204, 304})


class DocumentRule(StrEnum):
    """The meaning of a body that is exactly one JSON document. `redact_attempt` applies the rule, because it parses the
    body.

    `REQUIRED`: without a complete document, the attempt has failed. `SUFFICIENT`: with a complete document, the attempt
    is completed.
    """

    IRRELEVANT = "irrelevant"
    REQUIRED = "required"
    SUFFICIENT = "sufficient"


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange before redaction. It must not be stored or logged; see `redact_attempt`.

    `status` is about the transport: an error response with a complete body is `completed`. `error` is a text,
    `unexpected_eof`, or the reason for which this server ended the exchange.
    """

    number: int
    status: AttemptStatus
    url: str
    request_headers: Mapping[str, str]
    request_body: bytes
    started_at: datetime
    finished_at: datetime
    duration_ms: int
    ttfb_ms: int | None = None
    response_status: int | None = None
    response_headers: Mapping[str, str] = {}
    response_body: CapturedBody | None = None
    error: str | None = None
    method: str = "POST"
    configured_headers: frozenset[str] = frozenset()
    document_rule: DocumentRule = DocumentRule.IRRELEVANT


class AttemptSink(Protocol):
    """The receiver of the attempts of a step. Errors in its methods are logged and have no other effect."""

    def next_attempt(self) -> int:
        """Return the number of the next attempt, from 1."""
        ...

    def attempt_ended(self, record: AttemptRecord) -> None:
        """Record an attempt. A second record with the same number replaces the first."""
        ...

    def abort_reason(self) -> str | None:
        """Return the reason for which this server ends the call (`user`, `silence_timeout`, ...); None if it does
        not.
        """
        ...


class StoredAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange without secrets."""

    number: int
    status: AttemptStatus
    method: str
    url: str
    path: str
    request_headers: dict[str, str]
    request_body: RedactedBody
    response_status: int | None
    response_headers: dict[str, str]
    response_body: RedactedBody | None
    error: str | None
    started_at: datetime
    finished_at: datetime
    duration_ms: int
    ttfb_ms: int | None


class AttemptBodies(msgspec.Struct, frozen=True, kw_only=True):
    """The column `body_meta` of a stored attempt. A body that was not recorded is None."""

    request: BodyMeta | None = None
    response: BodyMeta | None = None


def body_meta(attempt: StoredAttempt) -> AttemptBodies:
    return AttemptBodies(request=_meta(attempt.request_body), response=_meta(attempt.response_body))


def _meta(body: RedactedBody | None) -> BodyMeta | None:
    if body is None:
        return None
    return BodyMeta(
        size=body.size, encoding=body.encoding, is_truncated=body.is_truncated, is_replaced=body.is_replaced
    )


def redact_attempt(record: AttemptRecord, redactor: Redactor) -> StoredAttempt:
    """Return the attempt in its stored form. For long bodies, this takes milliseconds."""
    status, error = _settled(record)
    response = record.response_body
    url = redactor.url(record.url)
    return StoredAttempt(
        number=record.number,
        status=status,
        method=record.method,
        url=url,
        path=redactor.text(urlsplit(url).path),
        request_headers=redactor.headers(record.request_headers, record.configured_headers),
        request_body=redactor.body(record.request_body, record.request_headers.get("content-type")),
        response_status=record.response_status,
        response_headers=redactor.headers(record.response_headers),
        response_body=None
        if response is None
        else redactor.captured(response, record.response_headers.get("content-type")),
        error=None if error is None else redactor.text(error),
        started_at=record.started_at,
        finished_at=record.finished_at,
        duration_ms=record.duration_ms,
        ttfb_ms=record.ttfb_ms,
    )


def _settled(record: AttemptRecord) -> tuple[AttemptStatus, str | None]:
    """Return the status and the error after the rule about JSON documents was applied."""
    match record.document_rule:
        case DocumentRule.REQUIRED if not _is_document(record.response_body):
            return AttemptStatus.FAILED, UNEXPECTED_EOF
        case DocumentRule.SUFFICIENT if _is_document(record.response_body):
            return AttemptStatus.COMPLETED, None
    return record.status, record.error


def _is_document(body: CapturedBody | None) -> bool:
    if body is None or not body.is_whole:
        return False
    try:
        msgspec.json.decode(body.head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


class RecordedHttp:
    """An `HttpClient` that reports its exchanges to the current step. Without a current step, it only forwards calls.

    `configured_headers` are the names of headers whose values are always hidden.
    """

    def __init__(
        self,
        inner: HttpClient,
        find_sink: Callable[[], AttemptSink | None],
        *,
        configured_headers: frozenset[str] = frozenset(),
        body_bytes: int = BODY_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._inner = inner
        self._find_sink = find_sink
        self._configured_headers = configured_headers
        self._body_bytes = body_bytes
        self._clock = clock or SystemClock()

    async def open(self, url: str, *, headers: Mapping[str, str], body: bytes) -> HttpStream:
        sink = self._find_sink()
        if sink is None:
            return await self._inner.open(url, headers=headers, body=body)
        try:
            exchange = _Exchange(
                sink, url, headers=headers, body=body, configured_headers=self._configured_headers, clock=self._clock
            )
        except Exception as error:
            log.exception("debug_attempt_not_recorded", error)
            return await self._inner.open(url, headers=headers, body=body)
        try:
            stream = await self._inner.open(url, headers=headers, body=body)
        except asyncio.CancelledError:
            exchange.end(AttemptStatus.ABORTED, exchange.abort_reason() or CANCELLED)
            raise
        except BaseException as error:
            exchange.end(AttemptStatus.FAILED, str(error) or type(error).__name__)
            raise
        return _RecordedStream(stream, exchange, self._body_bytes)


class _Exchange:
    """The record of one exchange: its request and its times. It reports the end of the exchange."""

    __slots__ = ("_clock", "_record", "_sink", "_started", "is_reported")

    def __init__(
        self,
        sink: AttemptSink,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        configured_headers: frozenset[str],
        clock: Clock,
    ) -> None:
        self._sink = sink
        self._clock = clock
        self.is_reported = False
        self._started = clock.monotonic()
        now = clock.now()
        self._record = AttemptRecord(
            # The number is taken after the request was captured and before it is sent.
            number=sink.next_attempt(),
            status=AttemptStatus.FAILED,
            url=url,
            request_headers=dict(headers),
            request_body=body,
            configured_headers=configured_headers,
            started_at=now,
            finished_at=now,
            duration_ms=0,
        )

    def answered(self, stream: HttpStream) -> None:
        self._change(response_status=stream.status, response_headers=stream.headers, ttfb_ms=self._elapsed_ms())

    def abort_reason(self) -> str | None:
        """Return the reason for which this server ends the exchange; None if it does not."""
        task = asyncio.current_task()
        is_cancelled = task is not None and task.cancelling() > 0
        try:
            return self._sink.abort_reason() or (CANCELLED if is_cancelled else None)
        except Exception as error:
            log.exception("debug_abort_reason_unknown", error)
            return CANCELLED if is_cancelled else None

    def end(
        self,
        status: AttemptStatus,
        error: str | None = None,
        *,
        body: CapturedBody | None = None,
        document_rule: DocumentRule = DocumentRule.IRRELEVANT,
    ) -> None:
        """Report the end. The caller decides whether this replaces an earlier report."""
        self.is_reported = True
        self._change(
            status=status,
            error=error,
            response_body=body,
            document_rule=document_rule,
            duration_ms=self._elapsed_ms(),
            finished_at=self._clock.now(),
        )
        try:
            self._sink.attempt_ended(self._record)
        except Exception as error:
            log.exception("debug_attempt_not_recorded", error)

    def _elapsed_ms(self) -> int:
        return max(0, round((self._clock.monotonic() - self._started) * 1000))

    def _change(self, **fields: Any) -> None:
        self._record = msgspec.structs.replace(self._record, **fields)


class _RecordedStream:
    """A response that keeps the bytes that its consumer reads, and reports its end once."""

    __slots__ = ("_body", "_exchange", "_gathered", "_inner", "_is_eof", "_length", "_next", "headers", "status")

    def __init__(self, inner: HttpStream, exchange: _Exchange, body_bytes: int) -> None:
        self._inner = inner
        self._exchange = exchange
        self._next = inner.chunks().__anext__
        self._gathered = inner.gathered
        self.status = inner.status
        self.headers = inner.headers
        self._is_eof = False
        self._length = _known_length(inner.headers)
        self._body = _KeptBytes(MAX_JSON_BYTES if self._is_json else body_bytes)
        exchange.answered(inner)

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> _RecordedStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._next()
        except BaseException as error:
            self._read_failed(error)
            raise
        self._body.add(chunk)
        return chunk

    async def gathered(self) -> bytes:
        try:
            chunk = await self._gathered()
        except BaseException as error:
            self._read_failed(error)
            raise
        self._body.add(chunk)
        return chunk

    async def read(self, limit: int) -> bytes:
        body = bytearray()
        async for chunk in self:
            body += chunk
            if len(body) >= limit:
                break
        return bytes(body[:limit])

    async def finish(self) -> bytes:
        """End after the last event of a complete answer, or after the end of the body."""
        try:
            rest = await self._inner.finish()
            self._body.add(rest)
            return rest
        finally:
            if self._is_eof:
                self._ended_at_close()
            else:
                self._report(AttemptStatus.COMPLETED)

    def close(self) -> None:
        try:
            self._inner.close()
        except Exception as error:
            # The end of an event stream was reported before it was closed. The error replaces that report.
            self._exchange.end(AttemptStatus.FAILED, str(error) or type(error).__name__, body=self._body.captured())
            raise
        self._ended_at_close()

    def unread(self) -> bytes:
        return self._inner.unread()

    @property
    def _is_json(self) -> bool:
        return is_json(self.headers.get("content-type"))

    def _read_failed(self, error: BaseException) -> None:
        if isinstance(error, StopAsyncIteration):
            self._is_eof = True
            if is_event_stream(self.headers.get("content-type")):
                # A consumer may stop at the last event and never close the stream.
                self._report(AttemptStatus.COMPLETED)
        elif not isinstance(error, asyncio.CancelledError):
            self._report(AttemptStatus.FAILED, str(error) or type(error).__name__)

    def _ended_at_close(self) -> None:
        if self._exchange.is_reported:
            return
        is_open_json = self._is_json and self._length is None
        if self._is_eof:
            rule = DocumentRule.REQUIRED if is_open_json and not self._body.is_cut else DocumentRule.IRRELEVANT
            self._report(AttemptStatus.COMPLETED, document_rule=rule)
            return
        if self._is_complete():
            self._report(AttemptStatus.COMPLETED)
            return
        rule = DocumentRule.IRRELEVANT
        if is_open_json:
            self._body.add(self._inner.unread()[:_MAX_UNREAD_BYTES])
            rule = DocumentRule.SUFFICIENT
        reason = self._exchange.abort_reason()
        if reason is not None:
            self._report(AttemptStatus.ABORTED, reason, document_rule=rule)
        else:
            self._report(AttemptStatus.FAILED, UNEXPECTED_EOF, document_rule=rule)

    def _is_complete(self) -> bool:
        """Return whether the answer is complete, although the end of the body was not read."""
        if self.status < 200 or self.status in _WITHOUT_BODY:
            return True
        if self._length is not None:
            return self._body.size >= self._length
        return self._body.is_cut

    def _report(
        self,
        status: AttemptStatus,
        error: str | None = None,
        *,
        document_rule: DocumentRule = DocumentRule.IRRELEVANT,
    ) -> None:
        if not self._exchange.is_reported:
            self._exchange.end(status, error, body=self._body.captured(), document_rule=document_rule)


def _known_length(headers: Mapping[str, str]) -> int | None:
    if "transfer-encoding" in headers:
        return None
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() else None


class _KeptBytes:
    """The first and the last bytes of a body, and a hash of the bytes between them."""

    __slots__ = ("_head", "_head_bytes", "_sha256", "_tail", "_tail_bytes", "size")

    def __init__(self, head_bytes: int) -> None:
        self.size = 0
        self._head_bytes = head_bytes
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._sha256 = hashlib.sha256()

    @property
    def is_cut(self) -> bool:
        """Whether the bytes between the first and the last ones may have been dropped."""
        return self.size > self._head_bytes + TAIL_BYTES

    def add(self, chunk: bytes) -> None:
        size = self.size + len(chunk)
        if size <= self._head_bytes:
            self._head.append(chunk)
        else:
            room = max(0, self._head_bytes - self.size)
            if room:
                self._head.append(chunk[:room])
            self._add_to_tail(chunk[room:])
        self.size = size

    def captured(self) -> CapturedBody:
        head, tail = b"".join(self._head), b"".join(self._tail)
        if not self.is_cut:
            return CapturedBody(head=head + tail, size=self.size)
        dropped = self._sha256.copy()
        dropped.update(tail[:-TAIL_BYTES])
        return CapturedBody(head=head, tail=tail[-TAIL_BYTES:], size=self.size, dropped_sha256=dropped.hexdigest())

    def _add_to_tail(self, chunk: bytes) -> None:
        self._tail.append(chunk)
        self._tail_bytes += len(chunk)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            first = self._tail.popleft()
            self._tail_bytes -= len(first)
            self._sha256.update(first)
