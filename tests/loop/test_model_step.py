"""One model step: its limits, its ends, and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import Any

import pytest

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import Part
from rookery.llm import keep_alives
from rookery.llm.errors import CallFailed
from rookery.llm.scripted import CallTool, Count, Fail, Pause, Say, ScriptedModel, Scripts, Step, Think, Truncate, Wait
from rookery.llm.types import (
    Call,
    CallWarning,
    ErrorKind,
    Finish,
    FinishReason,
    GeneratedFile,
    LanguageModel,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    StreamPart,
    TextDelta,
    ToolCall,
    ToolInputDelta,
    ToolInputStart,
    Usage,
    UsageUpdate,
    Warnings,
)
from rookery.loop import model_step
from rookery.loop.config import LoopConfig
from rookery.loop.model_step import AssistantOutcome, SilenceLimits, StepMeter, find_context_limit
from rookery.runtime.clock import DeadlineExceeded
from rookery.runtime.nudge import Nudge
from rookery.testing import FakeClock
from tests.loop.loop_rig import DONE, HELLO, PROVIDER_ID, USAGE, Played, PlayedModel, Shown, generate, said, step

REFUSED = Finish(FinishReason.CONTENT_FILTER, USAGE, {"category": "weapons"}, "It explains how to build one.")


def start(model: LanguageModel, clock: FakeClock, **fields: Any) -> asyncio.Task[AssistantOutcome]:
    return asyncio.create_task(model_step.generate_assistant(model, HELLO, step(clock, **fields)))


async def failure_of(*played: Played, **fields: Any) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await generate(*played, **fields)
    return caught.value


# Silence


class NeverOpens(PlayedModel):
    """A provider that accepts the connection and sends nothing."""

    async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        await asyncio.Event().wait()
        yield DONE


@pytest.mark.parametrize(
    ("model", "limit", "says"),
    [
        pytest.param(NeverOpens, 300, "did not begin to answer", id="before it opens"),
        pytest.param(
            lambda: PlayedModel([ResponseStarted("r", "m", None), asyncio.Event(), DONE]),
            120,
            "stopped sending data",
            id="at first",
        ),
        pytest.param(
            lambda: PlayedModel([*said("half"), asyncio.Event(), DONE]), 120, "stopped sending data", id="in the middle"
        ),
    ],
)
async def test_silence_ends_the_step_as_retryable(model: Callable[[], LanguageModel], limit: int, says: str) -> None:
    clock = FakeClock()
    task = start(model(), clock)

    await clock.until_waiting("stream-silence")
    await clock.advance(limit - 1)
    assert not task.done()
    await clock.advance(1)

    with pytest.raises(CallFailed) as caught:
        await task
    assert caught.value.error.kind is ErrorKind.STREAM_SILENCE_TIMEOUT
    assert says in caught.value.error.message
    assert caught.value.error.retryable
    assert task.cancelling() == 0


async def test_limits_of_the_model_replace_those_of_the_server() -> None:
    clock = FakeClock()
    task = start(NeverOpens(), clock, limits=SilenceLimits(20, 10))

    await clock.until_waiting("stream-silence")
    await clock.advance(20)

    with pytest.raises(CallFailed) as caught:
        await task
    assert caught.value.error.detail == "Nothing arrived for 20 s."


async def test_keep_alives_restart_the_silence_limit_and_are_no_parts() -> None:
    class KeptAlive(PlayedModel):
        async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
            while True:
                await ping.wait()
                ping.clear()
                keep_alives.note()
                if call.plain_history:
                    yield DONE

    ping, clock, shown = asyncio.Event(), FakeClock(), Shown()
    task = start(KeptAlive(), clock, shown=shown)
    for _ in range(10):
        await clock.advance(110)
        ping.set()
    assert not task.done()
    await clock.advance(119)
    assert not task.done()
    await clock.advance(1)

    with pytest.raises(CallFailed) as caught:
        await task
    assert caught.value.error.detail == "Nothing arrived for 120 s."
    assert shown.all == []


async def test_nudge_ends_a_silent_call_and_skips_the_next_delay() -> None:
    clock, nudge = FakeClock(), Nudge()
    task = start(NeverOpens(), clock, nudge=nudge)
    await clock.until_waiting("stream-silence")

    nudge.send()
    await clock.advance(0)

    with pytest.raises(CallFailed) as caught:
        await task
    assert caught.value.error.retryable
    assert caught.value.error.message == "Tried again at the request of the user."
    assert nudge.is_pending


async def test_every_part_restarts_the_silence_limit() -> None:
    clock, more = FakeClock(), asyncio.Event()
    model = PlayedModel([TextDelta("a", "one"), more, TextDelta("a", " two"), asyncio.Event(), DONE])
    task = start(model, clock)

    await clock.advance(100)
    more.set()
    await clock.advance(100)
    assert not task.done()
    await clock.advance(20)

    with pytest.raises(CallFailed):
        await task
    assert model.closed.is_set()


async def test_a_client_that_ends_quietly_when_cancelled_was_silent_all_the_same() -> None:
    class Quiet(PlayedModel):
        async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
            yield TextDelta("a", "half")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

    clock = FakeClock()
    task = start(Quiet(), clock)
    await clock.until_waiting("stream-silence")
    await clock.advance(600)

    with pytest.raises(CallFailed) as caught:
        await task
    assert caught.value.error.kind is ErrorKind.STREAM_SILENCE_TIMEOUT


async def test_the_scripted_model_can_fall_silent_too() -> None:
    clock = FakeClock()
    model = scripted_model((Say("One moment."), Wait(3600), Say("Never heard.")), clock)
    task = start(model, clock)

    await clock.until_waiting("scripted-wait")
    await clock.advance(600)

    with pytest.raises(CallFailed) as caught:
        await task
    assert caught.value.error.kind is ErrorKind.STREAM_SILENCE_TIMEOUT


def scripted_model(script: tuple[Step, ...], clock: FakeClock) -> ScriptedModel:
    return ScriptedModel("test", Scripts({"test": script}), provider_id=PROVIDER_ID, tokens_per_second=0, clock=clock)


# Other ends of streams


async def test_an_error_in_the_stream_is_raised_as_it_is_with_the_usage_so_far() -> None:
    clock = FakeClock()
    script = (Count(Usage(input=9, output=2)), Say("I thou"), Fail(ErrorKind.OVERLOADED, status=529))

    with pytest.raises(CallFailed) as caught:
        await start(scripted_model(script, clock), clock)

    assert (caught.value.error.kind, caught.value.error.status) == (ErrorKind.OVERLOADED, 529)
    assert caught.value.usage == Usage(input=9, output=2)


@pytest.mark.parametrize("played", [(), (*said("half"),), (TextDelta("a", "ha"),), (ToolCall("c", "read", "{}"),)])
async def test_a_stream_that_ends_without_a_finish_is_retryable_and_gives_nothing(played: tuple[Played, ...]) -> None:
    failure = await failure_of(*played)

    assert failure.error.kind is ErrorKind.TIMEOUT
    assert failure.error.retryable


async def test_a_connection_that_dies_is_an_error_of_the_wire() -> None:
    clock = FakeClock()

    with pytest.raises(CallFailed) as caught:
        await start(scripted_model((Say("half an"), Truncate()), clock), clock)

    assert caught.value.error.retryable


async def test_a_cancellation_that_is_not_ours_is_a_broken_connection() -> None:
    failure = await failure_of(*said("half"), asyncio.CancelledError())

    assert failure.error.kind is ErrorKind.TIMEOUT
    assert failure.error.retryable
    assert "cancelled" in (failure.error.detail or "")


async def test_our_own_cancellation_closes_the_stream_and_stays_a_cancellation() -> None:
    clock = FakeClock()
    model = PlayedModel([*said("half"), asyncio.Event(), DONE])
    task = start(model, clock)
    await clock.until_waiting("stream-silence")

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert model.closed.is_set()
    assert clock.waiting() == []


async def test_a_bug_in_a_client_is_not_dressed_up_as_an_answer_of_the_provider() -> None:
    with pytest.raises(ZeroDivisionError):
        await generate(ZeroDivisionError("oops"))


async def test_a_deadline_of_the_caller_is_not_reported_as_silence() -> None:
    with pytest.raises(DeadlineExceeded, match="lookup"):
        await generate(DeadlineExceeded("lookup", 5))


async def test_a_publisher_that_fails_closes_the_stream() -> None:
    model = PlayedModel([*said("hello"), DONE])

    def publish(role: Role, part: Part) -> None:
        raise RuntimeError("the buffer is closed")

    setup = step(FakeClock())
    setup.publish = publish
    with pytest.raises(RuntimeError):
        await model_step.generate_assistant(model, HELLO, setup)

    assert model.closed.is_set()


async def test_parts_after_a_finish_are_not_waited_for() -> None:
    outcome = await generate(*said("All."), DONE, asyncio.Event())

    assert outcome.content == (parts.Text("All."),)


async def test_a_model_with_everything_at_hand_leaves_the_event_loop_to_others() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    neighbour = asyncio.create_task(other())
    await generate(*(TextDelta("a", "x") for _ in range(5000)), DONE)
    neighbour.cancel()

    assert turns >= 20


# Finish reasons


async def test_a_refusal_of_reasoning_only_is_an_error_with_category_and_explanation() -> None:
    failure = await failure_of(ReasoningStart("r"), ReasoningDelta("r", "hm"), ReasoningEnd("r"), REFUSED)

    assert failure.error.kind is ErrorKind.CONTENT_FILTER
    assert not failure.error.retryable
    assert failure.error.message == "Played declined to answer (policy: weapons)."
    assert failure.error.detail == "It explains how to build one."
    assert failure.usage == USAGE


@pytest.mark.parametrize("blank", [(), said(" \n")])
async def test_a_refusal_that_says_nothing_is_an_error(blank: tuple[StreamPart, ...]) -> None:
    failure = await failure_of(*blank, Finish(FinishReason.CONTENT_FILTER, Usage()))

    assert failure.error.message == "Played declined to answer."


async def test_a_refusal_with_text_is_a_normal_step() -> None:
    outcome = await generate(*said("I would rather not."), REFUSED)

    assert outcome.finish_reason is FinishReason.CONTENT_FILTER
    assert outcome.content == (parts.Text("I would rather not."),)


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH, FinishReason.OTHER, FinishReason.PAUSE])
async def test_other_reasons_are_kept(reason: FinishReason) -> None:
    outcome = await generate(*said("x"), Finish(reason, USAGE))

    assert outcome.finish_reason is reason


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.PAUSE, FinishReason.OTHER, FinishReason.LENGTH])
async def test_a_local_call_makes_the_reason_tool_calls_despite_the_servers_own(reason: FinishReason) -> None:
    outcome = await generate(ToolCall("call_a", "read", "{}"), Finish(reason, USAGE))

    assert outcome.finish_reason is FinishReason.TOOL_CALLS


async def test_tool_calls_without_any_call_is_a_stop() -> None:
    outcome = await generate(*said("x"), Finish(FinishReason.TOOL_CALLS, USAGE))

    assert outcome.finish_reason is FinishReason.STOP


async def test_a_pause_beyond_the_last_allowed_one_is_a_stop() -> None:
    clock = FakeClock()

    outcome = await start(scripted_model((Say("x"), Pause()), clock), clock, allow_pause=False)

    assert outcome.finish_reason is FinishReason.STOP


class Counted:
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def step_started(self, model: LanguageModel, *, messages: int, prompt_bytes: int) -> None:
        self.events.append(("started", (messages, prompt_bytes)))

    def first_part(self, model: LanguageModel, *, seconds: float) -> None:
        self.events.append(("first", seconds))

    def empty_response(self, model: LanguageModel) -> None:
        self.events.append(("empty", model.model))


async def test_an_answer_of_nothing_is_an_empty_outcome_and_counted() -> None:
    stats = Counted()

    outcome = await generate(DONE, stats=stats)

    assert outcome.is_empty
    assert stats.events == [("started", (1, 6)), ("empty", "played-1")]


async def test_blank_text_is_no_answer_but_thoughts_are_worth_keeping() -> None:
    assert (await generate(*said(" \n"), DONE)).is_empty
    assert not (await generate(ReasoningDelta("r", "hm"), DONE)).is_empty


# Figures


async def test_run_time_is_from_opening_the_stream_to_its_end() -> None:
    clock, stats = FakeClock(), Counted()
    started: list[datetime] = []
    await clock.advance(100)
    opened_at = clock.now()
    model = scripted_model((Wait(2), Say("slow"), Wait(3)), clock)
    task = start(model, clock, on_stream_start=started.append, stats=stats)

    await clock.advance(10)
    outcome = await task

    assert outcome.runtime_ms == 5000
    assert started == [opened_at] == [outcome.started_at]
    assert (outcome.finished_at - outcome.started_at).total_seconds() == 5
    assert [event for event in stats.events if event[0] == "first"] == [("first", 0)]


async def test_interrupt_task_can_read_the_usage_and_run_time_of_a_step() -> None:
    clock, meter = FakeClock(), StepMeter()
    assert meter.runtime_ms(clock.monotonic()) is None
    model = PlayedModel(
        [ResponseStarted("resp_1", "m", "req_1"), UsageUpdate(Usage(input=12)), *said("ha"), asyncio.Event()]
    )
    task = start(model, clock, meter=meter)
    await clock.advance(4)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert meter.usage == Usage(input=12)
    assert (meter.response_id, meter.request_id) == ("resp_1", "req_1")
    assert meter.runtime_ms(clock.monotonic()) == 4000


async def test_progress_is_told_while_parts_arrive_but_not_for_every_one_of_a_burst() -> None:
    clock, more, told = FakeClock(), asyncio.Event(), list[float]()
    model = PlayedModel([TextDelta("a", "one"), TextDelta("a", " two"), more, TextDelta("a", " three"), DONE])
    began = clock.monotonic()

    task = start(model, clock, on_progress=lambda until: told.append(clock.monotonic()))
    await clock.advance(60)
    more.set()
    await task

    assert told == [began, began + 60]


async def test_ids_and_warnings_of_the_response_are_reported() -> None:
    warning = CallWarning("unsupported_setting", "top_k", "no top_k")

    outcome = await generate(Warnings((warning,)), ResponseStarted("resp_1", "played-2025", "req_1"), *said("x"), DONE)

    assert (outcome.response_id, outcome.request_id, outcome.model) == ("resp_1", "req_1", "played-2025")
    assert outcome.warnings == (warning,)


async def test_thinking_speaking_and_calling_keep_their_order() -> None:
    clock, shown = FakeClock(), Shown()
    script = (Think("Where is it?"), Say("I look."), CallTool("read", {"path": "a"}), CallTool("read", {"path": "b"}))

    outcome = await model_step.generate_assistant(scripted_model(script, clock), HELLO, step(clock, shown))

    assert [type(part) for part in outcome.content] == [parts.Reasoning, parts.Text, parts.ToolCall, parts.ToolCall]
    spoken = "".join(part.text for part in shown.of(Role.ASSISTANT) if isinstance(part, parts.Text))
    assert spoken == "I look."


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (NeverOpens, LoopConfig(first_byte_seconds=5)),
        (lambda: PlayedModel([*said("half"), asyncio.Event(), DONE]), LoopConfig(stream_silence_seconds=5)),
    ],
)
async def test_limits_of_silence_are_configurable(model: Callable[[], LanguageModel], config: LoopConfig) -> None:
    clock = FakeClock()
    task = start(model(), clock, config=config)

    await clock.until_waiting("stream-silence")
    await clock.advance(5)

    with pytest.raises(CallFailed):
        await task


# The context window in the provider's metadata


@pytest.mark.parametrize(
    "meta",
    [
        {"context_limit": 1000},
        {"contextWindow": 1000},
        {"context-length": 1000},
        {"max_context_tokens": 1000},
        {"max_context": 1000},
        {"maxInputTokens": 1000},
        {"input_token_limit": 1000},
        {"model_context_limit": 1000},
        {"context_window_size": 1000},
        {"max_context_length": 1000},
        {"model": {"limits": [{"context_window": 10}, {"context_window": 1000}]}},
    ],
)
def test_a_key_that_means_a_window_is_found(meta: dict[str, Any]) -> None:
    assert find_context_limit(meta) == 1000


@pytest.mark.parametrize(
    "meta",
    [
        {"context_tokens_used": 1000},
        {"context_limit_remaining": 1000},
        {"context": 1000},
        {"window": 1000},
        {"context_limit": -1},
        {"context_limit": True},
        {"context_limit": "1000"},
        {"context_limit": 2**40},
        {"max_output_tokens": 1000},
    ],
)
def test_counters_and_nonsense_are_no_window(meta: dict[str, Any]) -> None:
    assert find_context_limit(meta) is None


async def test_the_window_of_the_response_wins_over_the_configured_one() -> None:
    told = Finish(FinishReason.STOP, USAGE, {"context_window": 32_000})

    assert (await generate(*said("x"), told, context_limit=8_000)).context_limit == 32_000
    assert (await generate(*said("x"), DONE, context_limit=8_000)).context_limit == 8_000


async def test_stream_that_never_ends_is_ended() -> None:
    """The stream is never silent."""

    class Endless(PlayedModel):
        async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
            while True:
                yield TextDelta("a", "and ")

    with pytest.raises(CallFailed) as caught:
        await start(Endless(), FakeClock(), config=LoopConfig(stream_max_parts=1000))

    assert (caught.value.error.kind, caught.value.error.retryable) == (ErrorKind.TIMEOUT, False)


async def test_answer_beyond_the_size_limit_is_ended() -> None:
    class Flood(PlayedModel):
        async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
            yield ToolInputStart("c", "write", False)
            while True:
                yield TextDelta("a", "x" * 1000)
                yield ReasoningDelta("r", "x" * 1000)
                yield ToolInputDelta("c", "x" * 1000)
                yield GeneratedFile("f", "image/png", b"x" * 1000)

    shown = Shown()
    with pytest.raises(CallFailed) as caught:
        await start(Flood(), FakeClock(), shown=shown, config=LoopConfig(stream_max_size=10_000))

    assert (caught.value.error.kind, caught.value.error.retryable) == (ErrorKind.TIMEOUT, False)
    assert len(shown.all) == 10  # all four kinds count; files are published when they are stored


async def test_stream_that_says_a_word_now_and_then_for_ever_is_ended() -> None:
    clock = FakeClock()

    class Slow(PlayedModel):
        async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
            while True:
                yield TextDelta("a", "and ")
                await clock.sleep(100, "word")

    task = start(Slow(), clock)
    for _ in range(80):
        await asyncio.wait(
            {task, words := asyncio.ensure_future(clock.until_waiting("word"))}, return_when="FIRST_COMPLETED"
        )
        words.cancel()
        if task.done():
            break
        await clock.fire("word")

    assert task.done()
    with pytest.raises(CallFailed) as caught:
        await task
    assert "did not end its answer" in caught.value.error.message
