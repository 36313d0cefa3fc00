"""A rig for the part buffer: the test controls its clock and timers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import Part, Reasoning, Text, ToolCall, ToolResult
from rookery.live import deltas
from rookery.live.deltas import PartEvent
from rookery.live.feeds import Subscription
from rookery.live.part_buffer import Episode, EpisodeKey, PartBuffer, PartLimits
from rookery.runtime.shared_tick import TICK_SECONDS, SharedTick
from rookery.testing.clock import FakeClock

KEY = EpisodeKey(ChatId(UUID(int=7)), 3, 1)
OTHER = EpisodeKey(ChatId(UUID(int=7)), 3, 2)
START = datetime(2030, 1, 1, tzinfo=UTC)


class ManualTimer:
    def __init__(self, delay: float, callback: Callable[[], None]) -> None:
        self.delay = delay
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Timers:
    """Replaces `loop.call_later`."""

    def __init__(self) -> None:
        self.started: list[ManualTimer] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(delay, callback)
        self.started.append(timer)
        return timer

    @property
    def armed(self) -> list[ManualTimer]:
        return [timer for timer in self.started if not timer.is_cancelled]

    def fire(self) -> None:
        due, self.started = self.armed, []
        for timer in due:
            timer.callback()


class Rig:
    def __init__(self, limits: PartLimits | None = None, *, tick_seconds: float = TICK_SECONDS) -> None:
        self.clock = FakeClock()
        self.timers = Timers()
        self.buffer = PartBuffer(
            self.clock, limits=limits, tick=SharedTick(tick_seconds, call_later=self.timers.call_later)
        )

    def episode(self, key: EpisodeKey = KEY) -> Episode:
        return self.buffer.create_episode(key)

    def say(self, *texts: str, episode: Episode) -> list[int]:
        return [episode.add_part(Role.ASSISTANT, Text(text)) for text in texts]

    def close(self, key: EpisodeKey = KEY) -> list[Part]:
        draft = self.buffer.close_episode(key)
        assert draft is not None
        return [live.part for live in draft]


def read(subscription: Subscription) -> list[PartEvent]:
    """Return all unread events."""
    events: list[PartEvent] = []
    while batch := subscription.pull():
        events += batch
    return events


def texts(events: Iterable[PartEvent]) -> list[str]:
    """Return the text of each event."""
    return [deltas.piece(deltas.decode(data).part) or "" for _, _, data in events]


def as_json(event: PartEvent) -> Any:
    return json.loads(event[2])


def spoken(live: Iterable[tuple[Role, Part]]) -> list[tuple[object, ...]]:
    """Return the text of the parts, with neighbors of one kind merged."""
    said: list[tuple[object, ...]] = []
    for role, part in live:
        text = deltas.piece(part)
        if text is None:
            said.append((role, part))
            continue
        block = (role, _block(part))
        if said and said[-1][:-1] == block:
            said[-1] = (*block, f"{said[-1][-1]}{text}")
        else:
            said.append((*block, text))
    return said


def _block(part: Part) -> tuple[object, ...]:
    match part:
        case Text(refusal=refusal):
            return ("text", refusal)
        case Reasoning(created_at=created_at):
            return ("reasoning", created_at)
        case ToolCall(tool_call_id=call_id):
            return ("args", call_id)
        case ToolResult(tool_call_id=call_id):
            return ("output", call_id)
    raise AssertionError(part)
