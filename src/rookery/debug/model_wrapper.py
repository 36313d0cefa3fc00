"""The wrapper of a `LanguageModel` that reports its calls to the recorder, and the stream of one call.

The stream is a class and not a generator: if it is not read to its end, its scope or its run ends it, and not the
garbage collector. A part costs one append and two comparisons.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any
from uuid import UUID

from rookery.debug.current_run import current_step
from rookery.debug.recorded_http import RecordedHttp
from rookery.debug.recorder import ModelFacts, RecordedCall
from rookery.debug.redaction import BODY_BYTES
from rookery.llm.types import Call, Capabilities, Finish, LanguageModel, StreamError, StreamPart, Wire
from rookery.llm.wire_model import WireModel
from rookery.runtime import waits
from rookery.runtime.clock import Clock
from rookery.store.debug.record_rows import StepStatus
from rookery.telemetry.log import get_logger

log = get_logger("debug.model_wrapper")

_ENDS = (StopAsyncIteration, GeneratorExit)

# Begins the record of a call; None if it is not recorded.
Begin = Callable[[Call], RecordedCall | None]


class RecordedModel:
    """A model whose calls are recorded. `calls` are the calls that were started in this scope."""

    def __init__(
        self, model: LanguageModel, begin: Begin, *, facts: ModelFacts, clock: Clock, body_bytes: int = BODY_BYTES
    ) -> None:
        self.provider_id: UUID = model.provider_id
        self.provider_type: str = model.provider_type
        self.model: str = model.model
        self.wire: Wire = model.wire
        self.caps: Capabilities = model.caps
        self._inner = with_recorded_transport(model, facts, clock=clock, body_bytes=body_bytes)
        self._begin = begin
        self.calls: list[RecordedCall] = []

    def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        try:
            recorded = self._begin(call)
        except Exception as error:
            log.exception("debug_call_not_recorded", error)
            recorded = None
        if recorded is None:
            return self._inner.stream(call)
        if self.calls and self.calls[-1].status is StepStatus.INTERRUPTED:
            # The caller tries again, so a time limit has ended the previous call.
            self.calls[-1].end(StepStatus.ERROR, TimeoutError("The call took too long."))
        self.calls.append(recorded)
        return RecordedStream(self._inner.stream(call), recorded)

    def scope_ended(self, error: BaseException | None, *, is_stopped: bool) -> None:
        """End the remaining calls, and record a failure that the stream could not detect, such as silence.

        With `is_stopped`, this server has cancelled the call, and the error is a consequence of the cancellation.
        """
        for recorded in self.calls:
            try:
                if isinstance(error, Exception) and recorded is self.calls[-1] and not is_stopped:
                    recorded.end(StepStatus.ERROR, error)
                else:
                    recorded.abandon()
            except Exception as failure:
                log.exception("debug_call_not_recorded", failure)
        self.calls.clear()


def with_recorded_transport(model: LanguageModel, facts: ModelFacts, *, clock: Clock, body_bytes: int) -> LanguageModel:
    """Return the model with recorded HTTP exchanges. Models without a native wire are returned unchanged."""
    if not isinstance(model, WireModel):
        return model
    return model.with_http(
        lambda http: RecordedHttp(
            http,
            current_step.get,
            configured_headers=facts.configured_headers,
            body_bytes=body_bytes,
            clock=clock,
        )
    )


class RecordedStream(AsyncGenerator[StreamPart, None]):
    """The stream of one recorded call. It yields the parts of the inner stream, unchanged."""

    __slots__ = ("_add", "_cancelling", "_has_begun", "_inner", "_next", "_recorded")

    def __init__(self, inner: AsyncGenerator[StreamPart, None], recorded: RecordedCall) -> None:
        self._inner = inner
        self._next = inner.__anext__
        self._recorded = recorded
        self._add = recorded.answer.add
        self._has_begun = False
        self._cancelling = 0

    def __aiter__(self) -> RecordedStream:
        return self

    async def __anext__(self) -> StreamPart:
        try:
            part = await self._next() if self._has_begun else await self._first()
        except BaseException as error:
            self._ended(error)
            raise
        self._add(part)
        kind = type(part)
        if kind is Finish or kind is StreamError:
            self._recorded.terminal = self._recorded.terminal or part  # type: ignore[assignment]  # checked by `kind`
        return part

    async def _first(self) -> StreamPart:
        """Read the first part. Reading it sends the request, so the HTTP exchanges during this method belong to the
        step.
        """
        self._has_begun = True
        self._cancelling = waits.cancelling()
        token = current_step.set(self._recorded.step)
        try:
            part = await self._next()
        finally:
            current_step.reset(token)
        self._recorded.answered()
        return part

    async def aclose(self) -> None:
        """Close the inner stream. If the call has not ended yet, it ends now."""
        try:
            await self._inner.aclose()
        finally:
            self._ended(None)

    async def asend(self, value: None) -> StreamPart:
        return await self.__anext__()

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Any:
        try:
            return await self._inner.athrow(typ, val, tb)  # type: ignore[arg-type]  # as it was called
        except BaseException as error:
            self._ended(error)
            raise

    def _ended(self, error: BaseException | None) -> None:
        try:
            if error is None or isinstance(error, _ENDS) or self._is_our_cancellation(error):
                self._recorded.abandon()
            else:
                self._recorded.end(StepStatus.ERROR, error)
        except Exception as bug:
            log.exception("debug_call_not_recorded", bug)

    def _is_our_cancellation(self, error: BaseException) -> bool:
        """Return whether this task is being cancelled. A library may also raise `CancelledError` for other reasons."""
        return isinstance(error, asyncio.CancelledError) and waits.cancelling() > self._cancelling
