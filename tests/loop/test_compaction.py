"""Summaries: requests, live parts, rows, and requests that are too long."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from msgspec import Raw

from rookery.domain.chat import context_overflow, parts, summary_prompt
from rookery.domain.chat.compaction import LEAD_IN, Assessment, Source, Status
from rookery.domain.chat.context_overflow import Budget
from rookery.domain.chat.messages import Role, Visibility
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm.errors import CallFailed
from rookery.llm.types import (
    Call,
    ErrorKind,
    Finish,
    FinishReason,
    ProviderError,
    Purpose,
    StreamError,
    Tool,
    ToolCall,
    Usage,
    UsageUpdate,
)
from rookery.loop import compaction
from rookery.loop.compaction import Carried, CompactionOutcome, CompactionSetup
from rookery.testing import FakeClock
from tests.loop.loop_rig import CONFIG_ID, DONE, USAGE, Played, PlayedModel, Shown, said, step

ASSESSMENT = Assessment(status=Status.NEEDED, threshold_percent=70, tokens=800, limit_tokens=1000)
READ = Tool(name="read", description="", input_schema={"type": "object", "properties": {}})
OVERFLOW = StreamError(
    ProviderError(kind=ErrorKind.CONTEXT_OVERFLOW, message="Too long.", retryable=False, provider="Played")
)
TURN = (parts.Text("Fix the login test."), parts.File("image/png", file_id=UUID(int=3)))


def message(role: Role, *content: PromptPart) -> PromptMessage:
    return PromptMessage(role=role, parts=content)


def conversation() -> tuple[PromptMessage, ...]:
    made = [message(Role.SYSTEM, PromptText("Be brief."))]
    for number in range(14):
        made += [
            message(Role.USER, PromptText(f"question {number}"), PromptFile("image/png", b"png")),
            message(Role.ASSISTANT, PromptReasoning("hm"), PromptCall(f"c{number}", "read", Raw(b"{}"))),
            message(Role.TOOL, PromptResult(f"c{number}", "read", "x" * 5000)),
            message(Role.ASSISTANT, PromptText(f"answer {number}")),
        ]
    return tuple(made)


CALL = Call(prompt=Prompt(conversation()), tools=(READ,), cache_key="chat")


async def carry(summary: str) -> Carried:
    return Carried(TURN)


def setup(shown: Shown, clock: FakeClock, **fields: Any) -> CompactionSetup:
    window = fields.pop("window", 100_000)
    given: dict[str, Any] = {
        "source": Source.AUTOMATIC,
        "assessment": ASSESSMENT,
        "carry": carry,
        "budget": Budget(window_tokens=window),
        "model_config_id": CONFIG_ID,
        "step": step(clock, shown, context_limit=window),
    }
    return CompactionSetup(**{**given, **fields})


async def summarise(
    *answers: tuple[Played, ...], shown: Shown | None = None, clock: FakeClock | None = None, **fields: Any
) -> tuple[CompactionOutcome, PlayedModel]:
    model = PlayedModel(*answers)
    made = await compaction.summarize(model, CALL, setup(shown or Shown(), clock or FakeClock(), **fields))
    return made, model


async def failure_of(*answers: tuple[Played, ...], **fields: Any) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await summarise(*answers, **fields)
    return caught.value


def text_of(prompt: Prompt) -> str:
    return "\n".join(getattr(part, "text", "") for each in prompt.messages for part in each.parts)


async def test_the_request_is_the_generations_own_with_an_instruction_at_its_end() -> None:
    _, model = await summarise((*said("Short."), DONE), hint="Keep the ticket number.")

    (asked,) = model.calls
    assert asked.prompt.messages[:-1] == CALL.prompt.messages
    assert (asked.tools, asked.tool_choice, asked.cache_key) == (CALL.tools, "none", "chat")
    assert asked.purpose is Purpose.COMPACTION
    assert text_of(Prompt(asked.prompt.messages[-1:])) == f"{summary_prompt.INSTRUCTION}\n\nKeep the ticket number."


async def test_the_summary_leaves_boundary_call_and_result() -> None:
    clock, shown = FakeClock(), Shown()

    made, _ = await summarise((*said("  The login "), *said("test. ", "t2"), DONE), shown=shown, clock=clock)

    assert made.summary == "The login\n\ntest."
    boundary, call, result = made.rows
    assert boundary.content[0] == parts.Text(LEAD_IN + "The login\n\ntest.")
    assert boundary.content[2:] == TURN
    assert (boundary.role, boundary.visibility) == (Role.USER, Visibility.MODEL)
    assert (call.role, call.visibility) == (Role.ASSISTANT, Visibility.USER)
    assert (result.role, result.visibility) == (Role.TOOL, Visibility.BOTH)
    assert all(row.compressed and row.model_config_id == CONFIG_ID for row in made.rows)
    assert made.usage == USAGE


async def test_the_call_is_shown_while_it_runs_and_the_result_only_with_its_rows() -> None:
    shown = Shown()

    made, _ = await summarise((*said("Short."), DONE), shown=shown)

    _, call, _ = made.rows
    assert shown.all == [(Role.ASSISTANT, call.content[0])]
    first = call.content[0]
    assert isinstance(first, parts.ToolCall)
    assert first.tool_call_id == f"chat_summarized_{UUID(int=1)}"


async def test_a_summary_that_was_cut_short_is_taken_with_a_note() -> None:
    made, _ = await summarise((*said("Half a"), Finish(FinishReason.LENGTH, USAGE)))

    assert made.summary == "Half a" + summary_prompt.CUT_SHORT


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((DONE,), "empty summary"),
        ((*said(" \n "), DONE), "empty summary"),
        ((ToolCall("c", "read", "{}"), Finish(FinishReason.TOOL_CALLS, USAGE)), "called a tool"),
        ((*said("I would rather not."), Finish(FinishReason.CONTENT_FILTER, USAGE)), "declined"),
        ((Finish(FinishReason.CONTENT_FILTER, USAGE),), "declined"),
    ],
)
async def test_an_answer_that_is_no_summary_is_an_error_that_is_shown(answer: tuple[Played, ...], told: str) -> None:
    shown = Shown()

    failure = await failure_of(answer, shown=shown)

    assert told in failure.error.message
    assert not failure.error.retryable
    assert failure.usage == USAGE
    (shown_result,) = shown.results()
    assert shown_result.is_error


async def test_an_error_of_the_provider_passes_through_and_is_shown() -> None:
    shown = Shown()
    overloaded = StreamError(
        ProviderError(kind=ErrorKind.OVERLOADED, message="Busy.", retryable=True, provider="Played")
    )

    failure = await failure_of((*said("Ha"), overloaded), shown=shown)

    assert failure.error.kind is ErrorKind.OVERLOADED
    (shown_result,) = shown.results()
    assert isinstance(shown_result.result, Raw)
    assert parts.json_value(shown_result.result) == {"error": "Busy."}


# Requests that are too long


async def test_a_summariser_that_cannot_take_it_all_is_asked_without_bulk() -> None:
    answers = ((UsageUpdate(Usage(input=3)), OVERFLOW), (*said("Short."), DONE))

    made, model = await summarise(*answers)

    lighter = model.calls[1].prompt
    results = [part.text for each in lighter.messages for part in each.parts if isinstance(part, PromptResult)]
    assert [len(text) > 2048 for text in results] == [False] * 4 + [True] * 10
    assert not any(isinstance(part, PromptFile) for each in lighter.messages for part in each.parts)
    assert (made.tries, made.usage.input) == (2, 13)


async def test_then_it_is_summed_up_in_pieces_oldest_first_and_those_are_joined() -> None:
    refused: list[int] = []

    async def hear(error: ProviderError, call: Call, tokens: int) -> int | None:
        refused.append(tokens)
        return 3_000

    notes = [(*said(f"Notes {number}."), DONE) for number in range(1, 40)]
    made, model = await summarise((OVERFLOW,), *notes, on_refusal=hear)

    pieces = [text_of(call.prompt) for call in model.calls[1:]]
    assert len(refused) == 1
    assert "part 1 of it" in pieces[0]
    assert "question 0" in pieces[0]
    assert "answer 13" in pieces[-2]
    assert "Notes 1." in pieces[-1]
    assert all(context_overflow.estimate_tokens(call.prompt.messages) < 3_000 for call in model.calls[1:])
    assert all(call.tools == () for call in model.calls[1:])
    assert (made.tries, made.summary) == (len(model.calls), f"Notes {len(pieces)}.")
    assert made.usage.input == 10 * len(pieces)


async def test_a_request_that_is_known_to_be_too_long_is_not_made() -> None:
    made, model = await summarise((*said("Short."), DONE), window=3_000)

    assert all(context_overflow.estimate_tokens(call.prompt.messages) < 3_000 for call in model.calls)
    result = made.rows[2].content[0]
    assert isinstance(result, parts.ToolResult)
    assert isinstance(result.result, Raw)
    told = parts.json_value(result.result)
    assert told["rungs"] == ["pieces"]
    assert told["calls"] == len(model.calls)


async def test_a_model_that_refuses_everything_is_asked_a_bounded_number_of_times_and_never_the_same() -> None:
    model = PlayedModel((OVERFLOW,))

    with pytest.raises(CallFailed) as caught:
        await compaction.summarize(model, CALL, setup(Shown(), FakeClock(), window=None))

    assert caught.value.error.kind is ErrorKind.CONTEXT_OVERFLOW
    sizes = [context_overflow.estimate_tokens(call.prompt.messages) for call in model.calls]
    assert len(sizes) < 20
    assert sizes == sorted(set(sizes), reverse=True)


async def test_a_short_request_that_was_refused_is_not_repeated_unchanged() -> None:
    model = PlayedModel((OVERFLOW,))
    call = Call(prompt=Prompt((message(Role.USER, PromptText("question")), message(Role.ASSISTANT, PromptText("yes")))))

    with pytest.raises(CallFailed):
        await compaction.summarize(model, call, setup(Shown(), FakeClock()))

    assert len({text_of(each.prompt) for each in model.calls}) == len(model.calls) > 0


async def test_a_summariser_of_another_provider_gets_a_translated_copy() -> None:
    _, model = await summarise((*said("Short."), DONE), is_other_provider=True)

    sent = [part for each in model.calls[0].prompt.messages for part in each.parts]
    assert not any(isinstance(part, PromptReasoning | PromptFile) for part in sent)
    assert any(isinstance(part, PromptCall) for part in sent)


# Time


async def test_silence_ends_a_summary_as_it_ends_an_answer() -> None:
    clock = FakeClock()
    task = asyncio.create_task(summarise((*said("Ha"), asyncio.Event()), clock=clock))

    await clock.until_waiting("stream-silence")
    await clock.advance(600)

    with pytest.raises(CallFailed) as caught:
        await task
    assert caught.value.error.kind is ErrorKind.STREAM_SILENCE_TIMEOUT


async def test_a_summary_that_takes_half_an_hour_is_stopped_though_it_still_talks() -> None:
    clock, shown = FakeClock(), Shown()

    class Chatty(PlayedModel):
        async def stream(self, call: Call) -> Any:
            yield UsageUpdate(Usage(input=4))
            while True:
                await clock.sleep(60, "word")
                for part in said("blah "):
                    yield part

    task = asyncio.create_task(compaction.summarize(Chatty(), CALL, setup(shown, clock)))
    await clock.until_waiting("word")
    await clock.advance(1799)
    assert not task.done()
    await clock.advance(1)

    with pytest.raises(CallFailed) as caught:
        await task
    assert caught.value.error.message == "The request took too long and was stopped."
    assert not caught.value.error.retryable
    assert caught.value.usage == Usage(input=4)
    assert len(shown.results()) == 1


async def test_a_cancelled_summary_shows_no_error() -> None:
    clock, shown = FakeClock(), Shown()
    task = asyncio.create_task(summarise((*said("Ha"), asyncio.Event()), clock=clock, shown=shown))
    await clock.until_waiting("stream-silence")

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert shown.results() == []
    assert clock.waiting() == []
