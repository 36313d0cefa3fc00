"""Turns that are kept in memory: bounded, and stored only if they end with an error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import pytest

from rookery.debug.call_scope import CallFacts
from rookery.debug.recorder import Limits
from rookery.debug.stats import DebugStats, Dropped
from rookery.debug.turns_kept_for_errors import MAX_CALLS, KeptTurn, KeptTurns
from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.chat.parts import Text, ToolCall
from rookery.llm.errors import CallFailed
from rookery.llm.types import ErrorKind, FinishReason, ProviderError, Usage
from rookery.store.debug.record_rows import RunStatus
from tests.debug.recording_rig import MODEL, RecordingRig, call_of, open_recording
from tests.debug.test_model_wrapper import Scripted

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


async def test_failing_call_of_a_large_turn_is_stored_first(database_url: str) -> None:
    """The prompts of the turn do not share messages, so they do not fit into the queue together."""
    async with open_recording(database_url, max_bytes=200_000) as rig:
        turn = await begin(rig, KeptTurns(DebugStats()))
        for version in range(20):
            call(turn, version, "x" * 30_000)
        call(turn, 20, "y" * 30_000, error=CallFailed(ERROR, Usage()))

        turn.end(RunStatus.ERROR)

        steps = await rig.rows("steps")
        (run,) = await rig.rows("runs")
        assert steps[-1]["step_number"] == 21
        assert steps[-1]["error"]["kind"] == "auth"
        assert steps[-1]["normalized_request"]["messages"][0]["parts"][0]["text"].startswith("yyy")
        assert run["summary"]["dropped_steps"] == 21 - len(steps)
        assert [step for step in steps if "truncated" in step["metadata"]] == []


async def test_failing_call_is_stored_although_the_queue_has_few_operations_left(database_url: str) -> None:
    async with open_recording(database_url, max_operations=8) as rig:
        turn = await begin(rig, KeptTurns(DebugStats()))
        for version in range(20):
            call(turn, version, "hello")
        call(turn, 20, "last", error=CallFailed(ERROR, Usage()))

        turn.end(RunStatus.ERROR)

        steps = await rig.rows("steps")
        assert [step["step_number"] for step in steps] == [20, 21]
        assert steps[-1]["normalized_request"]["messages"][0]["parts"][0]["text"] == "last"


async def test_failing_call_beyond_the_steps_of_a_run_is_stored_with_its_prompt(database_url: str) -> None:
    async with open_recording(database_url, limits=Limits(max_steps=MAX_CALLS)) as rig:
        turn = await begin(rig, KeptTurns(DebugStats()))
        for version in range(2 * MAX_CALLS):
            call(turn, version, "hello")
        call(turn, 1000, "last", error=CallFailed(ERROR, Usage()))

        turn.end(RunStatus.ERROR)

        step = (await rig.rows("steps"))[-1]
        assert (step["step_number"], "truncated" in step["metadata"]) == (2 * MAX_CALLS + 1, False)
        assert step["normalized_request"]["messages"][0]["parts"][0]["text"] == "last"


async def test_waiting_ends_of_kept_calls_are_counted_with_the_arguments_of_tools(database_url: str) -> None:
    arguments = msgspec.Raw(msgspec.json.encode({"content": "x" * 50_000}))
    async with open_recording(database_url, is_running=False) as rig:
        turn = await begin(rig, KeptTurns(DebugStats()))
        scope = turn.call(Scripted(()), call_of("hello"), facts(1))
        with suppress(CallFailed), scope:
            scope.answered((ToolCall("1", "write", args=arguments),), FinishReason.TOOL_CALLS, Usage())
            raise CallFailed(ERROR, Usage())

        turn.end(RunStatus.ERROR)

        assert rig.writer.stats.queue_bytes > 50_000


async def test_messages_that_prompts_share_count_once(rig: RecordingRig) -> None:
    turns = KeptTurns(DebugStats())
    turn = await begin(rig, turns)
    first = call_of("x" * 1000)
    longer = Prompt((*first.prompt.messages, *call_of("y" * 10).prompt.messages))

    turn.call(Scripted(()), first, facts(1))
    turn.call(Scripted(()), msgspec.structs.replace(first, prompt=longer), facts(2))

    assert turns.size_bytes == 1010


async def test_dropped_retry_is_no_dropped_step(rig: RecordingRig) -> None:
    turn = await begin(rig, KeptTurns(DebugStats(), max_turn_bytes=100))
    for _ in range(2):
        call(turn, 1, "x" * 80, error=CallFailed(ERROR, Usage()))

    turn.end(RunStatus.ERROR)

    (run,), (step,) = await rig.rows("runs"), await rig.rows("steps")
    assert ("dropped_steps" in run["summary"], step["step_number"]) == (False, 1)
