"""The scope of a model call: a `with` block that provides the model, and reports its end to the recorder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Token
from types import TracebackType
from typing import Any

import msgspec

from rookery.debug.current_run import current_run
from rookery.debug.model_wrapper import RecordedModel
from rookery.debug.recorder import ModelFacts, RecordedCall, Run
from rookery.domain.chat.parts import Part
from rookery.llm.types import Call, FinishReason, LanguageModel, Usage
from rookery.store.debug.record_rows import RunStatus


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a model call of a turn. A retry of the same history version continues the debug step.

    `abort_reason` returns the reason for which this server cancels the call; None if it does not.
    """

    history_version: int
    generation_attempt: int
    history_tip_message_id: int | None
    model: ModelFacts
    abort_reason: Callable[[], str | None]


class CallScope:
    """The scope of one call: `with scope as model`. This base class records nothing."""

    __slots__ = ("_model",)

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def __enter__(self) -> LanguageModel:
        return self._model

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        return None

    def answered(self, content: Sequence[Part], finish_reason: FinishReason, usage: Usage) -> None:
        """Record the answer. For scopes that do not read the stream themselves."""


class RecordedScope(CallScope):
    """Records the calls in its block. During the block, its run is the current run."""

    __slots__ = ("_abort_reason", "_recorded", "_run", "_token")

    def __init__(self, recorded: RecordedModel, run: Run, abort_reason: Callable[[], str | None]) -> None:
        super().__init__(recorded)
        self._recorded = recorded
        self._run = run
        self._abort_reason = abort_reason
        self._token: Token[Any] | None = None

    def __enter__(self) -> LanguageModel:
        self._token = current_run.set(self._run)
        return self._recorded

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        assert self._token is not None
        current_run.reset(self._token)
        self._recorded.scope_ended(error, is_stopped=self._abort_reason() is not None)


class RunScope(RecordedScope):
    """Records a separate run, such as a summary or a title. Each call is a step, and the run ends with the block.

    `is_late` returns whether a time limit around the block has cancelled it. This counts as an error and not as an
    interruption.
    """

    __slots__ = ("_is_late",)

    def __init__(
        self,
        model: LanguageModel,
        run: Run,
        *,
        operation: str = "stream",
        abort_reason: Callable[[], str | None] = lambda: None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        facts = run.facts

        def begin(call: Call) -> RecordedCall | None:
            step = run.step(key=None, operation=operation, history_tip_message_id=facts.history_tip_message_id)
            if step is None:
                return None
            return step.begin(call, facts.model, wire=model.wire, abort_reason=abort_reason)

        super().__init__(
            RecordedModel(model, begin, facts=facts.model, clock=run.clock, body_bytes=run.redactor.body_bytes),
            run,
            abort_reason,
        )
        self._is_late = is_late

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, asyncio.CancelledError) and self._is_late():
            error = TimeoutError("The call took too long.")
        super().__exit__(kind, error, trace)
        if error is None:
            self._run.finish(RunStatus.COMPLETED)
        elif isinstance(error, asyncio.CancelledError) or self._abort_reason() is not None:
            self._run.finish(RunStatus.INTERRUPTED)
        else:
            self._run.finish(RunStatus.ERROR)
