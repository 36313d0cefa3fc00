"""One exchange with a pydantic-ai model: sends the request, and converts the answer to parts.

All exceptions of the library are caught here, at its three entry points (open, next event, close), and nowhere else. A
bug in our own code is therefore never reported as an error of the provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeAlias

import anyio.to_thread
from pydantic_ai.messages import ModelResponseStreamEvent
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.providers import Provider

from rookery.llm.bridge import errors, request
from rookery.llm.bridge.request import BridgeRequest
from rookery.llm.bridge.stream import BridgeFold
from rookery.llm.error_bodies import Hide
from rookery.llm.types import Call, Capabilities, ProviderError, StreamError, StreamPart
from rookery.runtime.clock import Clock
from rookery.telemetry.log import get_logger

log = get_logger("llm.bridge")

KeepOpen: TypeAlias = Callable[[Provider[Any]], Awaitable[None]]

# Limit for closing a stream, for which the caller waits.
CLOSE_SECONDS = 0.9
# More threads than a replica has streams, because a Bedrock stream holds a thread while it waits. With the default of
# 40, other users of threads in this process would wait as well.
THREADS = 500


class Bridged:
    """A model of the library, and the settings of its calls."""

    def __init__(
        self,
        model: Model,
        *,
        provider: str,
        caps: Capabilities,
        headers: Mapping[str, str],
        read_seconds: float,
        keep_open: KeepOpen | None,
        clock: Clock,
        hide: Hide,
    ) -> None:
        self._model = model
        self._provider = provider
        self._caps = caps
        self._headers = headers
        self._read_seconds = read_seconds
        self._keep_open = keep_open
        self._clock = clock
        self._hide = hide

    def request(self, call: Call) -> BridgeRequest:
        return request.build(call, self._model, caps=self._caps, headers=self._headers, read_seconds=self._read_seconds)

    async def answer(self, built: BridgeRequest) -> AsyncGenerator[StreamPart, None]:
        """Send the request and yield the parts of its answer. The last part is terminal."""
        exchange = _Exchange(self._model, built, self._keep_open)
        fold = BridgeFold(self._provider)
        try:
            try:
                response = await exchange.open()
            except _Failed as failed:
                yield StreamError(self._error(failed.cause))
                return
            while True:
                try:
                    event = await exchange.next_event()
                except _Failed as failed:
                    for part in fold.broken(response):
                        yield part
                    yield StreamError(self._error(failed.cause))
                    return
                for part in fold.end(response) if event is None else fold.feed(event, response):
                    yield part
                if event is None:
                    return
        finally:
            await exchange.close()

    def _error(self, cause: BaseException) -> ProviderError:
        return errors.explain(cause, provider=self._provider, now=self._clock.now(), hide=self._hide)


class _Failed(Exception):
    """Raised when the library raised `cause`."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__()


class _Exchange:
    def __init__(self, model: Model, built: BridgeRequest, keep_open: KeepOpen | None) -> None:
        self._model = model
        self._keep_open = keep_open
        self._built = built
        self._stack = AsyncExitStack()
        self._response: StreamedResponse | None = None
        self._events: AsyncIterator[ModelResponseStreamEvent] | None = None
        self._responses: list[Any] = []
        self._is_done = False

    async def open(self) -> StreamedResponse:
        built, provider = self._built, self._model.provider
        if self._model.system == "bedrock":
            limiter = anyio.to_thread.current_default_thread_limiter()
            limiter.total_tokens = max(limiter.total_tokens, THREADS)
        try:
            if self._keep_open is not None and provider is not None:
                await self._keep_open(provider)
            await self._stack.enter_async_context(self._model)
            with _recording(self._responses):
                self._response = await self._stack.enter_async_context(
                    self._model.request_stream(built.messages, built.settings, built.parameters)
                )
            self._events = aiter(self._response)
        except (Exception, asyncio.CancelledError) as error:
            raise _failed(error) from None
        return self._response

    async def next_event(self) -> ModelResponseStreamEvent | None:
        """Return the next event; None if there are no more."""
        assert self._events is not None, "The exchange was not opened."
        try:
            with _recording(self._responses):
                return await anext(self._events)
        except StopAsyncIteration:
            self._is_done = True
            return None
        except (Exception, asyncio.CancelledError) as error:
            raise _failed(error) from None

    async def close(self) -> None:
        """End the request in any state. Raise only `CancelledError`, and take at most a second."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._response is not None and not self._is_done:
                    # If it is not implemented, leaving the context ends the request.
                    with suppress(NotImplementedError):
                        await self._response.cancel()
                await _close_all(self._responses)
                await self._stack.aclose()
        except Exception as error:
            log.warning("bridge_close_failed", model=self._model.model_name, error=type(error).__name__)


def _failed(error: BaseException) -> _Failed:
    """Return the exception to raise instead. Re-raise a cancellation of this task; other cancellations are failures."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
    return _Failed(error)


# Recorded HTTP responses

_recorded: ContextVar[list[Any] | None] = ContextVar("bridge_responses", default=None)


def record_responses(provider: Provider[Any]) -> None:
    """Add a hook to the provider's HTTP client that records every response, so that an exchange can close them.

    Some provider packages do not close the connection when its stream is closed: the one for Google leaves that to the
    garbage collector. A client that the caller supplied gets no hook.
    """
    client = getattr(provider, "_own_http_client", None)
    make: Callable[[], Any] | None = getattr(provider, "_http_client_factory", None)
    if client is None or make is None:
        return
    provider._http_client_factory = lambda: _with_hook(make())
    _with_hook(client)


@contextmanager
def _recording(responses: list[Any]) -> Iterator[None]:
    """Add the responses that this task receives inside the block to `responses`."""
    token = _recorded.set(responses)
    try:
        yield
    finally:
        _recorded.reset(token)


async def _close_all(responses: list[Any]) -> None:
    for response in responses:
        if not response.is_closed:
            await response.aclose()


def _with_hook(client: Any) -> Any:
    hooks = client.event_hooks
    if _record not in hooks["response"]:
        client.event_hooks = {**hooks, "response": [*hooks["response"], _record]}
    return client


async def _record(response: Any) -> None:
    responses = _recorded.get()
    if responses is not None:
        responses.append(response)
