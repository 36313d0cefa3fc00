"""Learned context windows: estimates from requests that models refused as too long, stored for all chats."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import asyncpg

from rookery.domain.chat.transitions import Transition
from rookery.domain.models import context_window
from rookery.domain.models.context_window import LearnedFrom
from rookery.runtime.clock import Clock
from rookery.store import machine as transitions
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.machine import Tx
from rookery.store.models import context_windows
from rookery.store.models.context_windows import record_refused
from rookery.telemetry.log import get_logger
from rookery.worker import commit_shield, error_classification
from rookery.worker.error_classification import Classified
from rookery.worker.step_preparation import ConnectedModel, Preparer
from rookery.worker.tasks import TaskHandle
from rookery.worker.turn_end_effects import Effects

log = get_logger("worker.learned_windows")


class LearnedWindows:
    """The learned windows of one step. `believed` holds those learned since the step was prepared, by config id."""

    def __init__(
        self, handle: TaskHandle, *, preparer: Preparer, effects: Effects, pool: asyncpg.Pool, clock: Clock
    ) -> None:
        self._handle = handle
        self._preparer = preparer
        self._effects = effects
        self._pool = pool
        self._clock = clock
        self.believed: dict[UUID, int] = {}

    async def remember(
        self,
        connected: ConnectedModel,
        failure: Classified,
        tokens: int,
        *,
        attempt: int,
        is_of_history: bool,
        has_media: bool,
        read_tokens: int = 0,
    ) -> int | None:
        """Record the refusal of a request of about this size. Return the new estimate of the model's window.

        One commit stores the refusal of the chat's history and the learned window. `is_of_history` is False for a model
        that only summarizes, because the chat's own model may have a larger window. `read_tokens` is the size of the
        longest request of this chat that the model has accepted.
        """
        window = self.believed.get(connected.ready.config.id, connected.windows.effective)
        learned = context_window.learn(
            window,
            estimated=tokens,
            maximum=failure.context_max,
            can_guess=not has_media and not failure.byte_limit,
            read_tokens=read_tokens,
        )
        now = self._clock.now()

        async def record(tx: Tx) -> bool:
            if is_of_history:
                await record_refused(tx, estimated_tokens=tokens)
            retry = error_classification.retry_state(
                failure, attempt=tx.chat.generation_attempt, delay=timedelta(), now=now
            )
            await transitions.record_retry_state(tx, retry)
            return learned is not None and await context_windows.learn(tx.conn, connected.ready.config.id, learned)

        is_news = await commit_shield.run_to_end(
            self._handle.update(record, transition=Transition.RECORD_RETRY_STATE, attempt=attempt or None)
        )
        log.info(
            "request_too_long",
            tokens=tokens,
            limit_tokens=window,
            learned_tokens=None if learned is None else learned.tokens,
            learned_from=None if learned is None else learned.source,
        )
        if learned is None:
            return window
        self.believed[connected.ready.config.id] = learned.tokens
        if is_news:
            self._tell(connected)
        return learned.tokens

    async def check_guess(self, connected: ConnectedModel, *, read_tokens: int) -> None:
        """Correct a guessed window if the model has answered a longer request."""
        known = connected.windows
        if known.learned is None or known.learned_from is not LearnedFrom.HALVING or read_tokens <= known.learned:
            return
        try:
            async with self._pool.acquire() as conn:
                await context_windows.raise_guess(conn, connected.ready.config.id, read_tokens=read_tokens)
        except DATABASE_ERRORS as error:
            log.warning("guess_not_corrected", error=str(error) or type(error).__name__)
            return
        self._tell(connected)

    def _tell(self, connected: ConnectedModel) -> None:
        self._effects.model_changed(connected.ready.config.id)
        self._preparer.forget_models()
