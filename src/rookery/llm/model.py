"""The one driver of all native wires: asks the provider, reads the answer, and ends every call with one terminal part.

A wire is pure (`wire.WireFormat`); what all wires share is here: headers and key, content types, errors, and the
replay ladder, which asks again when a provider does not accept the replayed history. Nothing else is retried.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Protocol
from uuid import UUID, uuid4

import msgspec

from rookery import __version__
from rookery.chat import pairing
from rookery.chat.prompt_parts import Prompt
from rookery.clock import Clock, SystemClock
from rookery.llm import errors, refusals
from rookery.llm.errors import EventTooLarge, TransportError
from rookery.llm.http import HttpClient, HttpStream
from rookery.llm.secrets import SecretStr
from rookery.llm.sse import MAX_EVENT_BYTES, SseDecoder
from rookery.llm.types import (
    Call,
    Capabilities,
    Finish,
    ProviderError,
    ReplayFault,
    StreamError,
    StreamPart,
    Warnings,
    Wire,
)
from rookery.llm.wire import Event, Fold, Request, WireFormat
from rookery.log import get_logger
from rookery.redaction import SecretRegistry, hide_secrets, is_secret_name

log = get_logger("llm.model")

USER_AGENT = f"rookery/{__version__} ({platform.system().lower()}/{platform.machine().lower()})"
MAX_ERROR_BYTES = 65_536
# Chosen: an error whose body does not come is told without it.
ERROR_BODY_SECONDS = 10.0
_MAX_PREVIEW = 200
# What frames the body is the HTTP library's business, whatever an administrator writes.
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_encoder = msgspec.json.Encoder(decimal_format="number")


class ModelStats(Protocol):
    """What is counted here; the metrics are somebody else's."""

    def replay_repaired(self, wire: Wire, rung: ReplayFault) -> None: ...

    def replay_unrepaired(self, wire: Wire, rung: ReplayFault) -> None: ...


class NoStats:
    """Counts nothing."""

    def replay_repaired(self, wire: Wire, rung: ReplayFault) -> None:
        pass

    def replay_unrepaired(self, wire: Wire, rung: ReplayFault) -> None:
        pass


class Auth(msgspec.Struct, frozen=True):
    """How a provider is shown the key: `Auth("x-api-key", key)`, or `Auth("authorization", key, "Bearer ")`."""

    header: str
    secret: SecretStr
    prefix: str = ""

    def value(self) -> str:
        # Keys are pasted, and line breaks come along.
        return self.prefix + self.secret.reveal().strip()


class WireModel:
    """A `LanguageModel` over one of the native wires, for one provider row and model."""

    def __init__(
        self,
        wire_format: WireFormat,
        http: HttpClient,
        *,
        provider_id: UUID,
        provider_type: str,
        provider_name: str,
        model: str,
        caps: Capabilities,
        base_url: str,
        auth: Auth | None = None,
        extra_headers: Mapping[str, str] = {},
        clock: Clock | None = None,
        new_id: Callable[[], UUID] = uuid4,
        stats: ModelStats | None = None,
    ) -> None:
        self.provider_id = provider_id
        self.provider_type = provider_type
        self.model = model
        self.wire: Wire = wire_format.wire
        self.caps = caps
        self._format = wire_format
        self._http = http
        self._provider = provider_name
        self._base_url = base_url.rstrip("/")
        self._auth = auth
        self._extra_headers = extra_headers
        self._clock = clock or SystemClock()
        self._new_id = new_id
        self._stats = stats or NoStats()
        self._secrets = _known_secrets(auth, extra_headers)

    def __repr__(self) -> str:
        return f"WireModel({self.wire}, {self.model!r}, provider {self.provider_id})"

    async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        """See `LanguageModel`. Closing the generator drops the connection, unless the answer is complete."""
        tried: set[ReplayFault] = set()
        while True:
            request = self._format.build(call)
            warnings = Warnings(request.warnings) if request.warnings else None
            again: Call | None = None
            is_started = False
            async with aclosing(self._batches(call, request)) as batches:
                async for batch in batches:
                    for part in batch:
                        if not is_started:
                            if type(part) is StreamError and (again := self._repaired(call, part.error, tried)):
                                break
                            # From here on the consumer has seen something: no second answer may follow.
                            is_started = True
                            if warnings is not None:
                                yield warnings
                        yield part
                        if type(part) is Finish or type(part) is StreamError:
                            return
                    if again is not None:
                        break
            assert again is not None, "Every answer ends with a terminal part."
            call = again

    async def _batches(self, call: Call, request: Request) -> AsyncGenerator[Iterable[StreamPart], None]:
        """The parts of one request, as they arrive; the last of them is terminal."""
        reader = AnswerReader(self._format.fold(call), self._provider)
        opened = await self._open(call, request)
        if isinstance(opened, ProviderError):
            yield (StreamError(opened),)
            return
        try:
            reader.start(refusals.find_request_id(opened.headers))
            if _media_type(opened) == "application/json":
                yield self._told(reader.whole(await opened.read(MAX_EVENT_BYTES + 1)), reader.request_id)
                return
            async for chunk in opened.chunks():
                parts = reader.feed(chunk)
                yield self._told(parts, reader.request_id) if reader.is_done else parts
                if reader.is_done:
                    return
            yield self._told(reader.end(), reader.request_id)
        except TransportError as error:
            failure = errors.from_transport(self._provider, error, hide=self._hide)
            yield (StreamError(msgspec.structs.replace(failure, request_id=reader.request_id)),)
        finally:
            if reader.is_done:
                await opened.finish()
            opened.close()

    async def _open(self, call: Call, request: Request) -> HttpStream | ProviderError:
        """An answer that can be read, or why there is none."""
        url = f"{self._base_url}/{request.path.lstrip('/')}"
        try:
            stream = await self._http.open(
                url, headers=self._headers(call, request), body=_encoder.encode(request.body)
            )
        except TransportError as error:
            return errors.from_transport(self._provider, error, hide=self._hide)
        if stream.status == 200 and _media_type(stream) in ("text/event-stream", "application/json", ""):
            return stream
        try:
            body = await _read_error_body(stream)
        finally:
            stream.close()
        return self._refusal(stream, body)

    def _refusal(self, stream: HttpStream, body: bytes) -> ProviderError:
        if stream.status != 200:
            return errors.from_response(
                self._provider,
                stream.status,
                headers=stream.headers,
                body=body,
                now=self._clock.now(),
                hide=self._hide,
            )
        media_type = _media_type(stream)
        text = body.decode("utf-8", "replace").strip()
        is_page = "html" in media_type or text[:1] == "<"
        preview = "" if is_page else self._hide(text)[:_MAX_PREVIEW]
        error = errors.unreadable(self._provider, f"The answer is {media_type}. {preview}", hide=self._hide)
        return msgspec.structs.replace(error, status=200, request_id=refusals.find_request_id(stream.headers))

    def _headers(self, call: Call, request: Request) -> dict[str, str]:
        """Each layer overrides those before it; the key overrides them all."""
        headers = {"user-agent": USER_AGENT, "accept": "text/event-stream", "content-type": "application/json"}
        if self.wire == "responses":
            headers["x-client-request-id"] = str(self._new_id())
        for layer in (request.headers, call.headers, self._extra_headers):
            headers.update((name.lower(), value) for name, value in layer.items() if name.lower() not in _FRAMING)
        if self._auth is not None:
            headers[self._auth.header.lower()] = self._auth.value()
        return headers

    def _told(self, parts: list[StreamPart], request_id: str | None) -> list[StreamPart]:
        """The same parts; an error at their end gets the request's id, and loses the key if the provider quotes it."""
        if not parts or not isinstance(last := parts[-1], StreamError):
            return parts
        error = msgspec.structs.replace(
            last.error,
            message=self._hide(last.error.message),
            detail=None if last.error.detail is None else self._hide(last.error.detail),
            request_id=last.error.request_id or request_id,
        )
        return [*parts[:-1], StreamError(error)]

    def _hide(self, text: str) -> str:
        return hide_secrets(text, self._secrets)

    def _repaired(self, call: Call, error: ProviderError, tried: set[ReplayFault]) -> Call | None:
        """The call with a history the provider may accept; None when this rung is used up or changes nothing."""
        fault = error.replay_fault
        if fault is None:
            return None
        again = _climb(call, fault)
        fields = {"wire": self.wire, "rung": fault, "provider_id": self.provider_id, "model": self.model}
        if fault in tried or again == call:
            self._stats.replay_unrepaired(self.wire, fault)
            log.warning("replay_unrepaired", **fields, request_id=error.request_id)
            return None
        tried.add(fault)
        self._stats.replay_repaired(self.wire, fault)
        log.warning("replay_repaired", **fields, request_id=error.request_id)
        return again


def _climb(call: Call, fault: ReplayFault) -> Call:
    match fault:
        case ReplayFault.STALE_THINKING:
            return msgspec.structs.replace(call, drop_stale_thinking=True)
        case ReplayFault.UNPROVEN_REASONING:
            return msgspec.structs.replace(call, plain_history=True)
        case ReplayFault.BROKEN_PAIRS:
            prompt = Prompt(pairing.repair(call.prompt.messages))
            return msgspec.structs.replace(call, prompt=prompt, plain_history=True)


class AnswerReader:
    """Bytes of one answer to parts. Pure; `is_done` once a terminal part was given out."""

    __slots__ = ("_decode", "_decoder", "_feed", "_fold", "_provider", "is_done", "request_id")

    def __init__(self, fold: Fold, provider: str) -> None:
        self._decoder = SseDecoder()
        self._decode = self._decoder.feed
        self._fold = fold
        self._feed = fold.feed
        self._provider = provider
        self.request_id: str | None = None
        self.is_done = False

    def start(self, request_id: str | None) -> None:
        self.request_id = request_id
        self._fold.start(request_id)

    def feed(self, chunk: bytes) -> list[StreamPart]:
        try:
            events = self._decode(chunk)
        except EventTooLarge as error:
            return self._broken([], str(error))
        return self._folded(events)

    def end(self) -> list[StreamPart]:
        """The body is over: what is left in the decoder, then what the wire makes of the end."""
        parts = self._folded(self._decoder.end())
        if not self.is_done:
            parts += self._fold.end()
        return self._ended(parts)

    def whole(self, body: bytes) -> list[StreamPart]:
        """A server that ignored `stream`: one document, or an error that came with status 200."""
        if len(body) > MAX_EVENT_BYTES:
            return self._broken([], f"The answer is larger than {MAX_EVENT_BYTES} bytes.")
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._broken([], "The answer is not JSON.")
        if isinstance(document, dict) and (document.get("error") or document.get("type") == "error"):
            codes, text = refusals.read_envelope(document)
            self.is_done = True
            return [StreamError(errors.classify(self._provider, 200, codes=codes, text=text))]
        return self._ended(list(self._fold.whole(body)))

    def _folded(self, events: list[Event]) -> list[StreamPart]:
        parts: list[StreamPart] = []
        for event in events:
            try:
                parts += self._feed(event)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return self._broken(parts, "An event is not JSON.")
            if parts and (type(parts[-1]) is Finish or type(parts[-1]) is StreamError):
                self.is_done = True
                break
        return parts

    def _ended(self, parts: list[StreamPart]) -> list[StreamPart]:
        self.is_done = True
        if not parts or not isinstance(parts[-1], Finish | StreamError):
            parts.append(StreamError(errors.truncated(self._provider)))
        return parts

    def _broken(self, parts: list[StreamPart], detail: str) -> list[StreamPart]:
        self.is_done = True
        return [*parts, StreamError(errors.unreadable(self._provider, detail))]


def _known_secrets(auth: Auth | None, extra_headers: Mapping[str, str]) -> SecretRegistry:
    secrets = SecretRegistry()
    if auth is not None:
        secrets.add("api_key", auth.secret.reveal().strip())
    for name, value in extra_headers.items():
        if is_secret_name(name, value):
            secrets.add("header", value)
    return secrets


def _media_type(stream: HttpStream) -> str:
    return stream.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read_error_body(stream: HttpStream) -> bytes:
    """As much of the body as comes: half a sentence is better than none."""
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_SECONDS):
            async for chunk in stream.chunks():
                body += chunk
                if len(body) >= MAX_ERROR_BYTES:
                    break
    except (TransportError, TimeoutError):
        pass
    return bytes(body[:MAX_ERROR_BYTES])
