"""Turns that are kept in memory: bounded, and stored only if they end with an error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from rookery.debug.kept_turn import MAX_CALLS, KeptTurn, KeptTurns
from rookery.debug.scope import CallFacts
from rookery.debug.stats import DebugStats, Dropped
from rookery.domain.chat.parts import Text
from rookery.llm.errors import CallFailed
from rookery.llm.types import ErrorKind, FinishReason, ProviderError, Usage
from rookery.store.debug.rows import RunStatus
from tests.debug.recording_rig import MODEL, RecordingRig, call_of, open_recording
from tests.debug.test_recorded_model import Scripted

ERROR = ProviderError(kind=ErrorKind.AUTH, message="Bad key.", retryable=False, provider="Acme")


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[RecordingRig]:
    async with open_recording(database_url) as opened:
        yield opened


def facts(version: int, attempt: int = 1) -> CallFacts:
    return CallFacts(
        history_version=version,
        generation_attempt=attempt,
        history_tip_message_id=1,
        model=MODEL,
        abort_reason=lambda: None,
    )


async def begin(rig: RecordingRig, turns: KeptTurns) -> KeptTurn:
    turn = turns.begin(await rig.facts(), rig.recorder)
    assert turn is not None
    return turn


def call(turn: KeptTurn, version: int, *texts: str, error: Exception | None = None) -> None:
    scope = turn.call(Scripted(()), call_of(*texts), facts(version))
    with suppress(CallFailed), scope as model:
        assert isinstance(model, Scripted), "the model is not wrapped"
        if error is not None:
            raise error
        scope.answered((Text("hi"),), FinishReason.STOP, Usage(input=1, output=1))


async def test_only_the_last_calls_of_a_long_turn_are_stored(rig: RecordingRig) -> None:
    turn = await begin(rig, KeptTurns(DebugStats()))
    for version in range(MAX_CALLS + 10):
        call(turn, version, "hello", str(version))
    call(turn, 1000, "hello", "last", error=CallFailed(ERROR, Usage(input=3)))

    turn.end(RunStatus.ERROR)

    steps = await rig.rows("steps")
    (run,) = await rig.rows("runs")
    assert len(steps) == MAX_CALLS
    assert (steps[0]["step_number"], steps[-1]["step_number"]) == (12, MAX_CALLS + 11)
    assert run["summary"]["dropped_steps"] == 11
    assert (steps[-1]["status"], steps[-1]["error"]["kind"], steps[-1]["usage"]) == (
        "error",
        "auth",
        {"input_tokens": 3},
    )


async def test_large_turn_drops_its_first_calls(rig: RecordingRig) -> None:
    turns = KeptTurns(DebugStats(), max_turn_bytes=10_000)
    turn = await begin(rig, turns)
    call(turn, 1, "x" * 20_000)
    call(turn, 2, "short", error=CallFailed(ERROR, Usage()))
    held = turns.size_bytes

    turn.end(RunStatus.ERROR)

    (step,) = await rig.rows("steps")
    assert (step["step_number"], held, turns.size_bytes) == (2, 5, 0)


async def test_turns_beyond_the_memory_of_the_process_are_not_kept(rig: RecordingRig) -> None:
    stats = DebugStats()
    turns = KeptTurns(stats, max_bytes=1000)
    first = await begin(rig, turns)
    call(first, 1, "x" * 1000)

    assert turns.begin(await rig.facts(), rig.recorder) is None
    first.end(RunStatus.COMPLETED)
    assert turns.begin(await rig.facts(), rig.recorder) is not None
    assert stats.dropped[Dropped.KEPT_TURN] == 1
    assert await rig.rows("runs") == []


async def test_turns_that_grow_together_stay_within_the_memory_of_the_process(rig: RecordingRig) -> None:
    stats = DebugStats()
    turns = KeptTurns(stats, max_bytes=1000)
    first, second = await begin(rig, turns), await begin(rig, turns)
    call(first, 1, "x" * 600)
    call(second, 1, "x" * 300)
    call(second, 2, "x" * 600)
    call(second, 3, "short", error=CallFailed(ERROR, Usage()))
    held = turns.size_bytes

    second.end(RunStatus.ERROR)
    first.end(RunStatus.ERROR)

    (run,) = await rig.rows("runs")
    assert (held, turns.size_bytes, stats.dropped[Dropped.KEPT_TURN]) == (600, 0, 1)
    assert len(await rig.rows("steps")) == 1
    assert run["status"] == "error"


async def test_turn_without_a_call_stores_nothing(rig: RecordingRig) -> None:
    turn = await begin(rig, KeptTurns(DebugStats()))

    turn.end(RunStatus.ERROR)

    assert await rig.rows("runs") == []
