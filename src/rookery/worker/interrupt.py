"""The interrupt task: saves what the step that was stopped had said and done, and lets the chat rest or go on."""

from __future__ import annotations

from datetime import datetime

from rookery.chat import history, interrupted
from rookery.chat.chats import Chat
from rookery.chat.messages import NewMessage, StepFigures
from rookery.clock import Clock
from rookery.store.generation import HistoryCache, Step, load_step
from rookery.store.machine import Machine, Tx, finish_interruption
from rookery.worker.effects import Effects
from rookery.worker.parts import EpisodeKey, PartBuffer
from rookery.worker.tasks import TaskHandle


class InterruptWork:
    """Works on any replica; only the one that ran the step can save what was not committed."""

    def __init__(
        self, machine: Machine, buffer: PartBuffer, *, cache: HistoryCache, clock: Clock, effects: Effects
    ) -> None:
        self._machine = machine
        self._buffer = buffer
        self._cache = cache
        self._clock = clock
        self._effects = effects

    async def __call__(self, handle: TaskHandle) -> None:
        chat_id, fence = handle.input.chat_id, handle.input.fence()
        step = await handle.read(lambda: load_step(self._machine, chat_id, fence=fence, cache=self._cache))
        partial = self._partial(step)

        async def finish(tx: Tx) -> tuple[Chat, bool]:
            done = await finish_interruption(tx, partial)
            return tx.chat, done.promoted is not None

        chat, is_promoted = await handle.update(finish)
        self._effects.interrupted(chat, is_promoted=is_promoted)

    def _partial(self, step: Step) -> tuple[NewMessage, ...]:
        """The rows of the stopped step. Nothing can be added to its episode any more: it is closed here."""
        chat = step.chat
        key = EpisodeKey(chat.id, chat.history_version, chat.generation_attempt)
        invoked_at = self._buffer.model_invoked_at(key)
        draft = self._buffer.close_episode(key)
        if not draft:
            return ()
        at = self._clock.now()
        return interrupted.rows(
            draft,
            at=at,
            model_config_id=chat.last_model_config_id,
            figures=StepFigures(runtime_ms=_milliseconds(invoked_at, at)),
            committed=history.read(step.history.rows).open_calls,
        )


def _milliseconds(start: datetime | None, end: datetime) -> int | None:
    return None if start is None else round((end - start).total_seconds() * 1000)
