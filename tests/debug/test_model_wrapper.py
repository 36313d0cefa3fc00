"""Recorded models: the status of a step for every way a stream can end, on sockets and for all three wires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, nullcontext, suppress
from typing import Any
from uuid import uuid4

import pytest

from rookery.debug.call_scope import RecordedScope, RunScope
from rookery.debug.current_run import current_step
from rookery.debug.model_wrapper import RecordedModel
from rookery.debug.recorder import RecordedCall, Run, Step
from rookery.domain.chat.model_prompt import Prompt
from rookery.llm.complete_answers import generate
from rookery.llm.errors import CallFailed
from rookery.llm.types import (
    Call,
    Capabilities,
    Finish,
    FinishReason,
    LanguageModel,
    StreamPart,
    TextDelta,
    Usage,
    Wire,
)
from rookery.models.connector import Connector, make_call
from rookery.models.directory import ReadyModel
from rookery.runtime.clock import SystemClock
from rookery.store.debug.record_rows import RunStatus
from rookery.testing import FakeAnthropic, FakeCompletions, FakeResponses, Fault, Scenario
from rookery.testing.fake_anthropic import Answer as Message
from rookery.testing.fake_anthropic import Text
from rookery.testing.fake_completions import Answer
from rookery.testing.fake_responses import say
from rookery.testing.fake_server import failure
from tests.debug.recording_rig import MODEL, RecordingRig, call_of, open_recording
from tests.eventually import until
from tests.models.connect_rig import KEY, ready_model
from tests.wire.difficult_prompts import user

WIRES = ["anthropic", "responses", "completions"]
WORDS = "one two three four five six seven eight"


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[RecordingRig]:
    async with open_recording(database_url) as opened:
        yield opened


def fake_of(wire: str, behavior: Scenario | None = None) -> tuple[Any, str, str]:
    """Return a fake provider that answers with some words, or behaves badly."""
    match wire:
        case "anthropic":
            anthropic = FakeAnthropic(api_key=KEY)
            anthropic.answer(behavior or Message([Text(WORDS)]))
            return anthropic, "anthropic", "claude-opus-5-5"
        case "responses":
            responses = FakeResponses()
            if behavior is None:
                responses.answer(say(*(f"{word} " for word in WORDS.split())))
            else:
                responses.enqueue(behavior)
            return responses, "openai", "gpt-6"
    completions = FakeCompletions()
    completions.enqueue(behavior or Answer(text=WORDS))
    return completions, "openai_compat", "qwen"


def connected(url: str, kind: str, name: str) -> ReadyModel:
    return ready_model(kind, name, base_url=url if kind == "anthropic" else url + "/v1")


class Recorded:
    """A model at a fake provider whose calls are recorded as steps of one run."""

    def __init__(self, model: LanguageModel, run: Run, call: Call) -> None:
        self.run = run
        self.call = call
        self.model = RecordedModel(model, self._begin, facts=MODEL, clock=run.clock)
        self.step: Step | None = None
        self._wire = model.wire

    def _begin(self, call: Call) -> RecordedCall | None:
        self.step = step = self.run.step(key="h1")
        return None if step is None else step.begin(call, MODEL, wire=self._wire)


async def recorded_at(rig: RecordingRig, url: str, kind: str, name: str, connector: Connector) -> Recorded:
    ready = connected(url, kind, name)
    model = await connector.model(ready)
    assert not hasattr(model, "kind"), model
    call = make_call(ready, model, prompt=Prompt((user("Hello."),)))
    return Recorded(model, await rig.run(), call)


async def read_until(stream: AsyncGenerator[StreamPart, None], kind: type) -> None:
    async for part in stream:
        if isinstance(part, kind):
            return


# The table of the statuses


async def consume_all(it: Recorded) -> None:
    async with aclosing(it.model.stream(it.call)) as stream:
        async for _ in stream:
            pass


async def consume_without_close(it: Recorded) -> None:
    async for _ in it.model.stream(it.call):
        pass


async def stop_at_finish(it: Recorded) -> None:
    async with aclosing(it.model.stream(it.call)) as stream:
        await read_until(stream, Finish)


async def cancelled_after_finish(it: Recorded) -> None:
    async def work() -> None:
        async with aclosing(it.model.stream(it.call)) as stream:
            await read_until(stream, Finish)
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


async def stop_at_a_word(it: Recorded) -> None:
    async with aclosing(it.model.stream(it.call)) as stream:
        await read_until(stream, TextDelta)


async def cancelled_at_a_word(it: Recorded) -> None:
    async def work() -> None:
        async with aclosing(it.model.stream(it.call)) as stream:
            await read_until(stream, TextDelta)
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


async def abandoned_at_a_word(it: Recorded) -> None:
    stream = it.model.stream(it.call)
    await read_until(stream, TextDelta)
    it.run.close()
    await stream.aclose()


ENDS: dict[str, tuple[Any, str, bool]] = {
    "is read to its end": (consume_all, "completed", True),
    "is read to its end and not closed": (consume_without_close, "completed", True),
    "is left at its last part": (stop_at_finish, "completed", True),
    "is cancelled after its last part": (cancelled_after_finish, "completed", True),
    "is left before its last part": (stop_at_a_word, "interrupted", True),
    "is cancelled before its last part": (cancelled_at_a_word, "interrupted", True),
    "is abandoned when its run ends": (abandoned_at_a_word, "interrupted", True),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("what", ENDS)
async def test_step_of_a_stream_that(what: str, wire: str, rig: RecordingRig) -> None:
    consume, status, has_response = ENDS[what]
    fake, kind, name = fake_of(wire)
    connector = Connector()
    async with fake.listening() as url:
        it = await recorded_at(rig, url, kind, name, connector)
        await consume(it)
        it.run.close()
        step = await rig.step()
        (attempt,) = await rig.rows("attempts")
    await connector.close()

    assert (step["status"], step["error"], step["finish_epoch"]) == (status, None, 1)
    assert (step["normalized_response"] is not None) == has_response
    assert attempt["status"] in ("completed", "aborted", "failed")
    assert step["metadata"]["stream_summary"]["part_count"] > 0
    assert (step["finish_reason"] == "stop") == (status == "completed")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "behavior",
    [
        failure(529, "Overloaded.", code="overloaded_error"),
        Scenario(events=[("ping", {"type": "ping", "pad": "x" * 99})], fault=Fault.CUT, after_bytes=40),
        Scenario(events=[("ping", {"type": "ping", "pad": "x" * 99})], fault=Fault.RESET, after_bytes=None),
        Scenario(events=[("ping", {"type": "ping"})], fault=Fault.END, after_bytes=10),
    ],
    ids=["refuses", "cuts the answer", "resets", "ends early"],
)
async def test_step_of_a_provider_that_fails_is_an_error(wire: str, behavior: Scenario, rig: RecordingRig) -> None:
    fake, kind, name = fake_of(wire, behavior)
    connector = Connector()
    async with fake.listening() as url:
        it = await recorded_at(rig, url, kind, name, connector)
        with pytest.raises(CallFailed):
            await generate(it.model, it.call)
        it.run.close()
        step = await rig.step()
    await connector.close()

    assert (step["status"], step["error"]["kind"] is not None) == ("error", True)
    assert step["metadata"]["stream_summary"]["error_count"] == 1
    (run,) = await rig.rows("runs")
    assert (run["status"], run["summary"]["has_error"]) == ("interrupted", True)


@pytest.mark.parametrize("wire", WIRES)
async def test_step_that_is_cancelled_while_it_waits_for_the_provider_is_interrupted(
    wire: str, rig: RecordingRig
) -> None:
    fake, kind, name = fake_of(wire, Scenario(events=[("ping", {"type": "ping"})], fault=Fault.STALL, after_bytes=5))
    connector = Connector()
    async with fake.listening() as url:
        it = await recorded_at(rig, url, kind, name, connector)
        reading = asyncio.create_task(consume_all(it))
        await until(lambda: it.step is not None and it.step.attempts == 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        it.run.close()
        step = await rig.step()
        (attempt,) = await rig.rows("attempts")
    await connector.close()

    assert (step["status"], step["error"], attempt["status"]) == ("interrupted", None, "aborted")


@pytest.mark.parametrize("wire", WIRES)
async def test_stream_that_is_never_read_is_interrupted_without_a_response(wire: str, rig: RecordingRig) -> None:
    fake, kind, name = fake_of(wire)
    connector = Connector()
    async with fake.listening() as url:
        it = await recorded_at(rig, url, kind, name, connector)
        stream = it.model.stream(it.call)
        it.run.close()
        await stream.aclose()
        step = await rig.step()
    await connector.close()

    assert (step["status"], step["normalized_response"]) == ("interrupted", None)
    assert await rig.rows("attempts") == []
    (run,) = await rig.rows("runs")
    assert run["status"] == "interrupted"


async def test_stream_that_is_never_read_is_interrupted_when_its_task_is_cancelled(rig: RecordingRig) -> None:
    it = Recorded(Scripted(()), await rig.run(), call_of("hello"))

    async def work() -> None:
        with RecordedScope(it.model, it.run, lambda: None):
            it.model.stream(it.call)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    step = await rig.step()
    assert (step["status"], step["normalized_response"]) == ("interrupted", None)
    assert step["metadata"]["transport"] == "unobserved"


# Models that behave as no wire does


class Scripted:
    """A model that yields these parts, and raises those that are exceptions."""

    provider_id = uuid4()
    provider_type = "words"
    model = "words-1"
    wire: Wire = "scripted"
    caps = Capabilities()

    def __init__(self, script: tuple[Any, ...]) -> None:
        self._script = script

    async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        for part in self._script:
            if isinstance(part, BaseException):
                raise part
            yield part


FINISH = Finish(FinishReason.STOP, Usage(input=3, output=2))
WORD = TextDelta("0", "word")

SCRIPTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "ends without a last part": ((WORD,), "interrupted"),
    "has no parts": ((), "interrupted"),
    "raises": ((WORD, ValueError("odd")), "error"),
    "raises before the first part": ((ValueError("odd"),), "error"),
    "raises after the last part": ((WORD, FINISH, ValueError("odd")), "error"),
    "is cancelled by a library": ((WORD, asyncio.CancelledError()), "error"),
    "goes on after the last part": ((WORD, FINISH, WORD), "completed"),
}


@pytest.mark.parametrize("what", SCRIPTS)
async def test_step_of_a_model_whose_stream(what: str, rig: RecordingRig) -> None:
    script, status = SCRIPTS[what]
    it = Recorded(Scripted(script), await rig.run(), call_of("hello"))
    with suppress(ValueError, asyncio.CancelledError):
        await consume_all(it)
    it.run.close()

    step = await rig.step()
    assert step["status"] == status
    assert (step["error"] is not None) == (status == "error")
    assert (step["normalized_response"] is None) == (not any(not isinstance(part, BaseException) for part in script))


async def test_parts_reach_the_consumer_unchanged_and_in_order(rig: RecordingRig) -> None:
    script = (WORD, TextDelta("0", "more"), FINISH)
    it = Recorded(Scripted(script), await rig.run(), call_of("hello"))

    found = [part async for part in it.model.stream(it.call)]

    assert all(one is other for one, other in zip(found, script, strict=True))
    assert (it.model.model, it.model.wire, it.model.provider_type) == ("words-1", "scripted", "words")


async def test_step_is_the_current_one_only_while_the_request_is_sent(rig: RecordingRig) -> None:
    seen: list[object] = []

    class Looking(Scripted):
        async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
            seen.append(current_step.get())
            yield WORD
            seen.append(current_step.get())
            yield FINISH

    it = Recorded(Looking(()), await rig.run(), call_of("hello"))
    await consume_all(it)

    assert seen[0] is not None
    assert seen[1:] == [None]
    assert current_step.get() is None


async def test_recorder_that_fails_does_not_fail_the_call() -> None:
    def begin(call: Call) -> RecordedCall | None:
        raise RuntimeError("The recorder is broken.")

    model = RecordedModel(Scripted((WORD, FINISH)), begin, facts=MODEL, clock=SystemClock())

    assert [part async for part in model.stream(call_of("hello"))] == [WORD, FINISH]


# Scopes of single calls


@pytest.mark.parametrize(
    ("raised", "is_late", "status"),
    [
        (None, False, "completed"),
        (ValueError("odd"), False, "error"),
        (asyncio.CancelledError(), False, "interrupted"),
        (asyncio.CancelledError(), True, "error"),
        (TimeoutError(), False, "error"),
    ],
)
async def test_run_of_a_single_call_ends_as_its_block(
    raised: BaseException | None, is_late: bool, status: str, rig: RecordingRig
) -> None:
    run = await rig.run()
    script = (WORD, FINISH) if raised is None else (WORD,)
    expected = nullcontext() if raised is None else pytest.raises(type(raised))
    with expected, RunScope(Scripted(script), run, is_late=lambda: is_late) as model:
        stream = model.stream(call_of("hello"))
        await anext(stream)
        if raised is not None:
            raise raised
        async for _ in stream:
            pass

    (row,) = await rig.rows("runs")
    assert row["status"] == status
    assert (await rig.step())["status"] == status
    assert run.is_closed


async def test_each_call_of_a_single_run_is_a_step(rig: RecordingRig) -> None:
    run = await rig.run()
    with RunScope(Scripted((WORD, FINISH)), run, operation="generate") as model:
        for _ in range(3):
            await generate(model, call_of("hello"))

    steps = await rig.rows("steps")
    assert [(step["step_number"], step["operation"], step["step_key"]) for step in steps] == [
        (number, "generate", None) for number in (1, 2, 3)
    ]
    assert {step["status"] for step in steps} == {"completed"}


async def test_call_that_a_time_limit_ended_is_an_error_when_it_is_tried_again(rig: RecordingRig) -> None:
    run = await rig.run()
    with RunScope(Scripted((WORD, FINISH)), run) as model:
        first = model.stream(call_of("hello"))
        await anext(first)
        await first.aclose()
        await generate(model, call_of("hello"))

    assert [step["status"] for step in await rig.rows("steps")] == ["error", "completed"]
    (row,) = await rig.rows("runs")
    assert RunStatus(row["status"]) is RunStatus.COMPLETED
