"""The spans of a model call: `chat {model}`, and below it one span per HTTP exchange.

No function of this module runs per token. Texts of errors are not exported, only their kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from urllib.parse import urlsplit

from rookery.domain.chat.parts import Part
from rookery.llm.errors import CallFailed, TransportError
from rookery.llm.types import Call, FinishReason, LanguageModel, ProviderError, Usage
from rookery.llm.wire import Request
from rookery.telemetry.tracing import names, spans
from rookery.telemetry.tracing.spans import NO_SPAN, Kind, Span, Value


class ChatSpan:
    """The span of one model call, for a `with` block. It is the current span of the block."""

    __slots__ = ("_active", "_answer", "_call", "_reason", "_span")

    def __init__(self, span: Span, call: Call | None = None) -> None:
        self._span = span
        self._active = spans.active(span)
        self._call = call
        self._answer: Sequence[Part] = ()
        self._reason: FinishReason | None = None

    def __enter__(self) -> ChatSpan:
        self._active.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active.__exit__(None, None, None)
        if isinstance(error, CallFailed):
            self.failed(error.error, error.usage)
        elif error is not None:
            self._span.fail(spans.error_type(error))
        if (render := spans.content()) is None or self._call is None:
            self._span.end()
        else:
            self._span.end_with(partial(render, self._call, self._answer, self._reason))

    def failed(self, error: ProviderError, usage: Usage) -> None:
        """Add the error of a failed call. If a `CallFailed` leaves the block, its error is added automatically."""
        self._span.set(_usage(usage))
        self._span.fail(error.kind)

    def answered(
        self,
        content: Sequence[Part],
        reason: FinishReason,
        usage: Usage,
        *,
        response_id: str | None,
        model: str | None,
    ) -> None:
        """Add the result of a complete answer. `model` is the name that the provider reported."""
        if self._span.is_open:
            self._answer, self._reason = content, reason
            self._span.set(
                {
                    names.FINISH_REASONS: (reason,),
                    names.RESPONSE_ID: response_id,
                    names.RESPONSE_MODEL: model,
                    **_usage(usage),
                }
            )


_OFF = ChatSpan(NO_SPAN)


def chat_span(model: LanguageModel, call: Call, *, attempt: int | None = None) -> ChatSpan:
    """Start the span of a call. `attempt` is its generation attempt, if it is a call of a step."""
    if not spans.is_on():
        return _OFF
    attributes: dict[str, Value | None] = {
        names.OPERATION: names.CHAT,
        names.PROVIDER: names.provider_name(model.provider_type),
        names.REQUEST_MODEL: model.model,
        names.STREAM: True,
        names.CONVERSATION_ID: call.chat_id,
        names.OUTPUT_TYPE: "text" if call.format is None else "json",
        names.MAX_TOKENS: call.max_output_tokens,
        names.TEMPERATURE: call.temperature,
        names.TOP_P: call.top_p,
        names.TOP_K: call.top_k,
        names.FREQUENCY_PENALTY: call.frequency_penalty,
        names.PRESENCE_PENALTY: call.presence_penalty,
        names.PURPOSE: call.purpose,
        names.GENERATION_ATTEMPT: attempt,
    }
    return ChatSpan(spans.start(f"{names.CHAT} {model.model}", Kind.CLIENT, attributes), call)


def first_part(seconds: float) -> None:
    """Record the first part of the answer in the current chat span, this long after the request."""
    span = spans.current()
    if span.is_open:
        span.event(names.FIRST_CHUNK)
        span.set({names.FIRST_CHUNK_SECONDS: seconds})


def start_exchange(base_url: str, request: Request, *, body_bytes: int) -> Span:
    """Start the span of one HTTP exchange of the current call. The caller ends it.

    The query and the path of the base URL are left out, because they may contain keys.
    """
    if not spans.is_on():
        return NO_SPAN
    server = _server(base_url)
    # The model does not know its address, so the exchange adds it to the span of the call.
    spans.current().set(server)
    path = f"/{request.path.partition('?')[0].lstrip('/')}"
    attributes = {names.HTTP_METHOD: "POST", names.URL_TEMPLATE: path, names.HTTP_REQUEST_SIZE: body_bytes, **server}
    return spans.start(f"POST {path}", Kind.CLIENT, attributes)


def answer_started(exchange: Span, status: int) -> None:
    exchange.set({names.HTTP_STATUS: status})
    if status >= 400:
        exchange.fail(str(status))


def exchange_failed(exchange: Span, error: BaseException) -> None:
    exchange.fail(error.reason if isinstance(error, TransportError) else spans.error_type(error))
    exchange.end()


def _server(base_url: str) -> dict[str, str | int | None]:
    try:
        parts = urlsplit(base_url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return {}
    if "@" in parts.path + parts.query + parts.fragment:
        # The password contains an unescaped / ? or #, so the parsed host may be a part of it.
        return {}
    return {names.SERVER_ADDRESS: parts.hostname, names.SERVER_PORT: port}


def _usage(usage: Usage) -> dict[str, int | None]:
    """Return the tokens. The conventions count cached tokens as input, and `Usage` does not."""
    counted = [each for each in (usage.input, usage.cache_read, usage.cache_write) if each is not None]
    return {
        names.INPUT_TOKENS: sum(counted) if counted else None,
        names.OUTPUT_TOKENS: usage.output,
        names.REASONING_TOKENS: usage.reasoning,
        names.CACHE_READ_TOKENS: usage.cache_read,
        names.CACHE_WRITE_TOKENS: usage.cache_write,
    }
