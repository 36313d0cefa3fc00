"""One request to a pydantic-ai model and its answer, as parts.

All exceptions of the library are caught here, at its three entry points (open, next event, close), and nowhere else: a
bug in our own code is never reported as an error of the provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeAlias

import anyio.to_thread
from pydantic_ai.messages import ModelResponseStreamEvent
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.providers import Provider

from rookery.llm.bridge import errors, request, responses
from rookery.llm.bridge.request import BridgeRequest
from rookery.llm.bridge.stream import BridgeFold
from rookery.llm.error_bodies import Hide
from rookery.llm.types import Call, Capabilities, ProviderError, StreamError, StreamPart
from rookery.runtime.clock import Clock
from rookery.telemetry.log import get_logger

log = get_logger("llm.bridge")

KeepOpen: TypeAlias = Callable[[Provider[Any]], Awaitable[None]]

# Chosen: the caller waits while a stream closes; a library that hangs on closing is left behind.
CLOSE_SECONDS = 0.9
# Chosen: more streams than a replica runs. A Bedrock stream holds a thread while it waits; with the default of 40 the
# next one would wait for it, and so would all other users of threads in this process.
THREADS = 500


class Bridged:
    """A model of the library with everything needed to call it."""

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
        """Yield the parts of one request, without its warnings; the last is terminal."""
        exchange = _Exchange(self._model, built, self._keep_open)
        fold = BridgeFold(self._provider)
        try:
            try:
                response = await exchange.open()
            except _Failed as failed:
                yield StreamError(self._told(failed.cause))
                return
            while True:
                try:
                    event = await exchange.next_event()
                except _Failed as failed:
                    for part in fold.broken(response):
                        yield part
                    yield StreamError(self._told(failed.cause))
                    return
                for part in fold.end(response) if event is None else fold.feed(event, response):
                    yield part
                if event is None:
                    return
        finally:
            await exchange.close()

    def _told(self, cause: BaseException) -> ProviderError:
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
            with responses.noted(self._responses):
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
            with responses.noted(self._responses):
                return await anext(self._events)
        except StopAsyncIteration:
            self._is_done = True
            return None
        except (Exception, asyncio.CancelledError) as error:
            raise _failed(error) from None

    async def close(self) -> None:
        """End the request in any state. Raises only `CancelledError`, and takes at most a second."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._response is not None and not self._is_done:
                    # Without it, leaving the context is the only way to end the request.
                    with suppress(NotImplementedError):
                        await self._response.cancel()
                await responses.close_all(self._responses)
                await self._stack.aclose()
        except Exception as error:
            log.warning("bridge_close_failed", model=self._model.model_name, error=type(error).__name__)


def _failed(error: BaseException) -> _Failed:
    """Return the exception to raise instead. A cancellation of this task passes; one of the socket is a broken
    stream."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
    return _Failed(error)
