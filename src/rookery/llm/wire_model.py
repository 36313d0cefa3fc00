"""The driver of all native wires: sends the request, reads the answer, and ends every call with one terminal part.

A wire is pure (`wire.WireFormat`). The driver does what all wires share: headers and key, content types, errors, and
the replay ladder, which repeats a call with a repaired history if the provider refuses the history. Nothing else is
retried.
"""

from __future__ import annotations

import asyncio
import copy
import platform
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID, uuid4

import msgspec

from rookery import __version__
from rookery.domain.chat import tool_call_pairing
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.llm import error_bodies, errors, model_call_span
from rookery.llm.chat_caches import EncodedRequests, Key, ReplayMemory
from rookery.llm.errors import TransportError
from rookery.llm.http import HttpClient, HttpStream
from rookery.llm.response_stream import Answer, AnswerReader, has_text, joined, media_type
from rookery.llm.types import (
    Call,
    Capabilities,
    ProviderError,
    ReplayFault,
    ResponseStarted,
    StreamError,
    StreamPart,
    UsageUpdate,
    Warnings,
    Wire,
)
from rookery.llm.wire import Request, WireFormat
from rookery.llm.wire_stats import ModelStats, NoStats
from rookery.runtime.clock import Clock, SystemClock
from rookery.runtime.secret_str import SecretStr
from rookery.telemetry.log import get_logger
from rookery.telemetry.redaction import SecretRegistry, hide_secrets, is_secret_name
from rookery.telemetry.tracing import names, spans
from rookery.telemetry.tracing.spans import Span

__all__ = ["USER_AGENT", "Auth", "ModelStats", "NoStats", "WireModel", "known_secrets"]

log = get_logger("llm.wire_model")

USER_AGENT = f"rookery/{__version__} ({platform.system().lower()}/{platform.machine().lower()})"
MAX_ERROR_BYTES = 65_536
# Limit for the body of an error response. After that, the error is reported without the rest.
ERROR_BODY_SECONDS = 10.0
_MAX_PREVIEW = 200
# Longer prompts are encoded in a thread. These limits mean a few milliseconds of work.
_MESSAGES_ON_LOOP = 200
_BYTES_ON_LOOP = 262_144
# The HTTP library sets these headers, and an administrator's headers must not replace them.
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_encoder = msgspec.json.Encoder(decimal_format="number")


class Auth(msgspec.Struct, frozen=True):
    """The header with the key: `Auth("x-api-key", key)`, or `Auth("authorization", key, "Bearer ")`."""

    header: str
    secret: SecretStr
    prefix: str = ""

    def value(self) -> str:
        # A pasted key often ends with a line break.
        return self.prefix + self.secret.reveal().strip()


class WireModel:
    """A `LanguageModel` with one of the native wires, for one provider row and model.

    With `sends_traceparent`, requests carry the W3C header of the exported trace.
    """

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
        memory: ReplayMemory | None = None,
        encoded_requests: EncodedRequests | None = None,
        sends_traceparent: bool = False,
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
        self._memory = ReplayMemory() if memory is None else memory
        self._encoded_requests = EncodedRequests() if encoded_requests is None else encoded_requests
        self._sends_traceparent = sends_traceparent
        self._secrets = known_secrets(() if auth is None else (auth.secret.reveal().strip(),), extra_headers)

    def with_http(self, wrap: Callable[[HttpClient], HttpClient]) -> WireModel:
        """Return this model with a wrapped HTTP client. Everything else is shared."""
        wrapped = copy.copy(self)
        wrapped._http = wrap(self._http)
        return wrapped

    def __repr__(self) -> str:
        return f"WireModel({self.wire}, {self.model!r}, provider {self.provider_id})"

    async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        """Implement `LanguageModel`. Closing the generator drops the connection, unless the answer is complete."""
        tried: set[ReplayFault] = set()
        call = self._with_known_repairs(call)
        while True:
            request, body = await self._build(call, is_first=not tried)
            fold = self._format.fold(call)
            reader = AnswerReader(fold, self._provider)
            exchange = model_call_span.start_exchange(self._base_url, request, body_bytes=len(body))
            answer = Answer(await self._open(call, request, body=body, exchange=exchange), reader, hide=self._hide)
            try:
                parts = await self._read_first_parts(answer, reader)
                repaired = self._repaired(call, _first_visible(parts), tried)
                if repaired is None:
                    # The consumer sees output from here on, so the call cannot be repeated any more.
                    for part in _first_parts(parts, request):
                        yield part
                    # Inline and not in a method, which saves a call for every token.
                    is_done, is_writing = reader.is_done, False
                    while not is_done:
                        is_writing = is_writing or has_text(parts)
                        try:
                            chunk = await (answer.gathered() if is_writing else answer.next_chunk())
                            parts = joined(reader.feed(chunk))
                        except (StopAsyncIteration, TransportError) as stop:
                            parts = answer.last_parts(stop)
                        is_done = reader.is_done
                        for part in answer.with_request_id(parts) if is_done else parts:
                            yield part
                    return
            finally:
                if fold.unknown:
                    self._stats.unknown_events(self.wire, {self._hide(name): n for name, n in fold.unknown.items()})
                if not reader.is_done:
                    exchange.fail(names.CANCELLED)
                exchange.end()
                await answer.release()
            call = repaired

    async def _read_first_parts(self, answer: Answer, reader: AnswerReader) -> Sequence[StreamPart]:
        """Return the first parts.

        Servers with Chat Completions may send an empty chunk before they fail. For them, read up to the first part with
        content, so that the call can still be repeated.
        """
        parts = list(await answer.first())
        is_done = reader.is_done
        while self.wire == "completions" and not is_done and all(type(part) in _INVISIBLE_PARTS for part in parts):
            try:
                more = joined(reader.feed(await answer.next_chunk()))
            except (StopAsyncIteration, TransportError) as stop:
                more = answer.last_parts(stop)
            is_done = reader.is_done
            parts += answer.with_request_id(more) if is_done else more
        return parts

    async def _open(self, call: Call, request: Request, *, body: bytes, exchange: Span) -> HttpStream | ProviderError:
        """Send the request. Return the response if it is an answer, else the error."""
        url = f"{self._base_url}/{request.path.lstrip('/')}"
        headers = self._headers(call, request)
        if self._sends_traceparent and exchange.context is not None:
            headers[spans.HEADER] = exchange.context.traceparent
        try:
            stream = await self._http.open(url, headers=headers, body=body)
        except TransportError as error:
            model_call_span.exchange_failed(exchange, error)
            return errors.from_transport(self._provider, error, hide=self._hide)
        except BaseException as error:
            model_call_span.exchange_failed(exchange, error)
            raise
        model_call_span.answer_started(exchange, stream.status)
        if stream.status == 200 and media_type(stream) in ("text/event-stream", "application/json", ""):
            return stream
        try:
            said = await _read_error_body(stream)
        finally:
            stream.close()
        return self._refusal(stream, said)

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
        found = media_type(stream)
        text = body.decode("utf-8", "replace").strip()
        is_page = "html" in found or text[:1] == "<"
        preview = "" if is_page else self._hide(text)[:_MAX_PREVIEW]
        error = errors.unreadable(self._provider, f"The answer is {found}. {preview}", hide=self._hide)
        return msgspec.structs.replace(
            error, status=200, request_id=error_bodies.find_request_id(stream.headers, self._hide)
        )

    def _headers(self, call: Call, request: Request) -> dict[str, str]:
        """Return the headers. Those of the provider row override those of the call, and the key overrides all."""
        headers = {"user-agent": USER_AGENT, "accept": "text/event-stream", "content-type": "application/json"}
        if self.wire == "responses":
            headers["x-client-request-id"] = str(self._new_id())
        for layer in (request.headers, call.headers, self._extra_headers):
            headers.update((name.lower(), value) for name, value in layer.items() if name.lower() not in _FRAMING)
        if self._auth is not None:
            headers[self._auth.header.lower()] = self._auth.value()
        return headers

    def _hide(self, text: str) -> str:
        return hide_secrets(text, self._secrets)

    async def _build(self, call: Call, *, is_first: bool) -> tuple[Request, bytes]:
        """Return the request with its body. Record a broken prefix, unless it is the effect of a repair."""
        request, body = await self._encode(call)
        if request.broken_prefix is not None and is_first:
            key = self._memory_key(call)
            if key is None or self._memory.is_new_break(key, request.broken_prefix):
                self._stats.prefix_broke(self.wire)
                log.debug("prefix_broke", wire=self.wire, provider_id=self.provider_id, model=self.model)
        if request.drops_stale_thinking:
            self._remember_stale_thinking(call)
        return request, body

    async def _encode(self, call: Call) -> tuple[Request, bytes]:
        key = self._memory_key(call)
        previous = self._encoded_requests.take(key)

        def encode() -> tuple[Request, bytes]:
            request = self._format.build(call, previous)
            return request, _encoder.encode(request.body)

        built = await asyncio.to_thread(encode) if _is_long(call.prompt) else encode()
        self._encoded_requests.keep(key, previous)
        return built

    def _with_known_repairs(self, call: Call) -> Call:
        """Return the call with the repairs that earlier calls of this chat needed."""
        key = self._memory_key(call)
        if key is None or call.drop_stale_thinking or not self._memory.has_stale_thinking(key):
            return call
        return msgspec.structs.replace(call, drop_stale_thinking=True)

    def _remember_stale_thinking(self, call: Call) -> None:
        if (key := self._memory_key(call)) is not None:
            self._memory.remember_stale_thinking(key)

    def _memory_key(self, call: Call) -> Key | None:
        return None if call.chat_id is None else (call.chat_id, self.provider_id, self.model)

    def _repaired(self, call: Call, first: StreamPart, tried: set[ReplayFault]) -> Call | None:
        """Return the call with a repaired history; None if there is no repair, or if it was already tried."""
        if type(first) is not StreamError or first.error.replay_fault is None:
            return None
        error, fault = first.error, first.error.replay_fault
        repaired = _repair(call, error)
        fields = {"wire": self.wire, "rung": fault, "provider_id": self.provider_id, "model": self.model}
        if fault in tried or repaired == call:
            self._stats.replay_unrepaired(self.wire, fault)
            log.warning("replay_unrepaired", **fields, request_id=error.request_id)
            return None
        tried.add(fault)
        if fault is ReplayFault.STALE_THINKING:
            self._remember_stale_thinking(call)
        self._stats.replay_repaired(self.wire, fault)
        log.warning("replay_repaired", **fields, request_id=error.request_id)
        return repaired


# Parts that users do not see.
_INVISIBLE_PARTS = (ResponseStarted, UsageUpdate)


def _first_visible(parts: Sequence[StreamPart]) -> StreamPart:
    return next((part for part in parts if type(part) not in _INVISIBLE_PARTS), parts[-1])


def _is_long(prompt: Prompt) -> bool:
    """Return whether encoding the request would block the event loop for too long."""
    if len(prompt.messages) > _MESSAGES_ON_LOOP:
        return True
    return prompt.size_bytes > _BYTES_ON_LOOP


def _first_parts(parts: Sequence[StreamPart], request: Request) -> Iterator[StreamPart]:
    """Yield the warnings and then the first parts of the wire. The prefix hash is added to `ResponseStarted`."""
    if request.warnings:
        yield Warnings(request.warnings)
    for part in parts:
        if type(part) is ResponseStarted:
            yield msgspec.structs.replace(part, prefix_fp=request.prefix_fp)
        else:
            yield part


def _repair(call: Call, error: ProviderError) -> Call:
    match error.replay_fault:
        case ReplayFault.STALE_THINKING:
            return msgspec.structs.replace(call, drop_stale_thinking=True)
        case ReplayFault.UNPROVEN_REASONING | ReplayFault.UNKNOWN_ITEM:
            # A plain history has no ids, no reasoning and no provider-executed parts. The refused item is one of these.
            return msgspec.structs.replace(call, plain_history=True)
        case ReplayFault.BROKEN_PAIRS:
            prompt = Prompt(tool_call_pairing.repair(call.prompt.messages))
            return msgspec.structs.replace(call, prompt=prompt, plain_history=True)
        case ReplayFault.INVALID_CALL:
            return _with_call_note(call, error.failed_generation)
    return call


def _with_call_note(call: Call, failed_generation: str | None) -> Call:
    """Return the call with a message to the model about its invalid tool call."""
    note = "Your last answer was refused: it had a tool call that is not valid, and nothing was run."
    if failed_generation:
        note += f"\n\nYou wrote:\n{failed_generation}"
    note += "\n\nAnswer again. Call tools by their exact names, with arguments that are valid JSON for their schemas."
    hint = PromptMessage(role=Role.USER, parts=(PromptText(note),))
    return msgspec.structs.replace(call, prompt=Prompt((*call.prompt.messages, hint)))


def known_secrets(keys: Iterable[str], headers: Mapping[str, str]) -> SecretRegistry:
    """Return the keys of a provider and the secret values of its headers, which errors must not show."""
    secrets = SecretRegistry()
    for key in keys:
        secrets.add("api_key", key)
    for name, value in headers.items():
        if is_secret_name(name, value):
            secrets.add("header", value)
    return secrets


async def _read_error_body(stream: HttpStream) -> bytes:
    """Return the body, or the part of it that arrives in time."""
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
