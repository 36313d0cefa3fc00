"""Whole turns against misbehaving servers on real sockets: the turn ends or continues, and the chat is never stuck."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rookery.domain.chat.parts import ToolCall
from rookery.domain.chat.retry_policy import RetryPolicy
from rookery.domain.chat.states import Status
from rookery.loop.config import LoopConfig
from rookery.testing import FakeClock
from rookery.testing.fake_completions import (
    PATH,
    Answer,
    FakeCall,
    FakeCompletions,
    FakeUsage,
    Style,
    events,
    stream_bytes,
)
from rookery.testing.fake_server import MALFORMED, Fault, Scenario, failure
from tests import scripted_tools
from tests.eventually import until
from tests.worker.worker_rig import open_house

GOOD = Answer(text="Here I am.")
WHOLE = stream_bytes(events(Answer(text="one two three four"), Style(), model="test"))
ARGUMENTS = '{"path": "a"}'


def cut(fault: Fault, after: int | None = 200) -> Scenario:
    return Scenario(events=[WHOLE], fault=fault, after_bytes=after)


# Each is followed by a good answer, which ends the turn.
PASSING: dict[str, Sequence[Answer | Scenario]] = {
    "throttles": [failure(429, "Slow down.", retry_after="0")],
    "is overloaded": [failure(529, "Overloaded."), failure(503, "Unavailable.")],
    "breaks down": [failure(500, "Internal server error.")],
    "closes before it answers": [cut(Fault.CUT, None)],
    "resets in the middle": [cut(Fault.RESET)],
    "closes early": [cut(Fault.CUT)],
    "ends early as if it were done": [cut(Fault.END)],
    "says nothing": [Answer(text=""), Answer(text="   ")],
    "sends half JSON": [Scenario(events=[WHOLE[:200], MALFORMED])],
}


@pytest.mark.parametrize("what", PASSING)
async def test_turn_survives_a_provider_that(what: str, database_url: str) -> None:
    fake = FakeCompletions()
    fake.enqueue(*PASSING[what], GOOD)
    async with fake.listening() as url, open_house(database_url, server=url) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert (chat.status, chat.last_error) == (Status.WAITING, None)
        assert await rig.story(chat_id) == [("user", "hello"), ("assistant", "Here I am.")]


FINAL: dict[str, tuple[Scenario, str]] = {
    "refuses the key": (failure(401, "Bad key."), "auth"),
    "refuses the replayed history": (
        failure(400, "messages: tool_use ids were found without tool_result blocks"),
        "generic",
    ),
    "does not know the model": (failure(404, "The model does not exist.", code="model_not_found"), "config"),
    "wants money": (failure(429, "You exceeded your quota.", code="insufficient_quota"), "usage_limit"),
    "wants to be left alone for an hour": (failure(429, "Later.", retry_after="3600"), "rate_limit"),
}


@pytest.mark.parametrize("what", FINAL)
async def test_turn_ends_with_an_error_at_a_provider_that(what: str, database_url: str) -> None:
    refusal, kind = FINAL[what]
    fake = FakeCompletions()
    fake.enqueue(refusal)
    async with fake.listening() as url, open_house(database_url, server=url) as rig:
        chat_id = await rig.ask("hello")

        error = await rig.error(chat_id)

        assert error.kind == kind
        assert "Acme" in error.message or error.provider == "Acme"
        assert await rig.story(chat_id) == [("user", "hello"), ("system", "TurnEnd")]

        fake.enqueue(GOOD)
        await rig.send(chat_id, "again")
        await rig.rested(chat_id)

        assert (await rig.story(chat_id))[-1] == ("assistant", "Here I am.")


async def test_stalled_stream_is_given_up_and_asked_again(database_url: str) -> None:
    fake, clock, silence = FakeCompletions(), FakeClock(), 30.0
    fake.enqueue(cut(Fault.STALL), GOOD)
    async with (
        fake.listening() as url,
        open_house(
            database_url,
            server=url,
            clock=clock,
            loop=LoopConfig(stream_silence_seconds=silence),
            retry=RetryPolicy(),
        ) as rig,
    ):

        async def is_given_up() -> bool:
            # The limit of the first byte is longer. Time that moves so far would also end the wait for a retry.
            if any(timer.due <= clock.monotonic() + silence for timer in clock.waiting("stream-silence")):
                await clock.fire("stream-silence")
            return bool(clock.waiting("generation-retry"))

        chat_id = await rig.ask("hello")

        await until(is_given_up)
        await clock.fire("generation-retry")
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [("user", "hello"), ("assistant", "Here I am.")]


@pytest.mark.parametrize(
    ("arguments", "ran", "result"),
    [(ARGUMENTS, 1, "ok"), ("", 1, "ok"), ('{"path": ', 0, "error"), ("[1, 2]", 0, "error")],
)
async def test_arguments_that_are_no_object_are_an_error_result(
    arguments: str, ran: int, result: str, database_url: str
) -> None:
    tool = scripted_tools.echo("read")
    fake = FakeCompletions()
    fake.enqueue(Answer(calls=(FakeCall("read", arguments),)), GOOD)
    async with fake.listening() as url, open_house(database_url, server=url, tools=[tool]) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert len(tool.runs) == ran
        assert (await rig.story(chat_id))[2:] == [("tool", f"read={result}"), ("assistant", "Here I am.")]


async def test_call_ids_that_repeat_in_every_step_are_told_apart(database_url: str) -> None:
    tool = scripted_tools.echo("read")
    fake = FakeCompletions()
    calls = (FakeCall("read", '{"n": 1}', id="call_0"), FakeCall("read", '{"n": 2}', id="call_0"))
    fake.enqueue(Answer(calls=calls), Answer(calls=calls[:1]), GOOD)
    async with fake.listening() as url, open_house(database_url, server=url, tools=[tool]) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        made = [
            part.tool_call_id
            for message in await rig.messages(chat_id)
            for part in message.parts()
            if isinstance(part, ToolCall)
        ]
        assert len(made) == len(set(made)) == 3
        assert [result["n"] for result in await rig.results(chat_id)] == [1, 2, 1]


@pytest.mark.parametrize(
    "usage", [FakeUsage(prompt=-5, completion=-1), FakeUsage(prompt=2**62, completion=2**62), FakeUsage(cached=10**9)]
)
async def test_usage_that_cannot_be_is_no_reason_to_fail(usage: FakeUsage, database_url: str) -> None:
    fake = FakeCompletions()
    fake.enqueue(Answer(text="Here I am.", usage=usage), GOOD)
    async with fake.listening() as url, open_house(database_url, server=url) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert len(await rig.usage(chat_id)) == 1


@pytest.mark.parametrize("text", ["", "That I may not say."])
async def test_filtered_answer_is_an_error_only_when_it_says_nothing(text: str, database_url: str) -> None:
    fake = FakeCompletions(style=Style(reasoning="reasoning_content"))
    fake.enqueue(Answer(reasoning="Hm.", text=text, finish_reason="content_filter"))
    async with fake.listening() as url, open_house(database_url, server=url) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        if text:
            assert chat.status == Status.WAITING
            assert (await rig.story(chat_id))[-1] == ("assistant", f"(Hm.) {text}")
        else:
            assert (await rig.error(chat_id)).kind == "content_filter"
            assert await rig.story(chat_id) == [("user", "hello"), ("system", "TurnEnd")]


async def test_call_cut_off_by_the_output_limit_says_so(database_url: str) -> None:
    tool = scripted_tools.echo("read")
    fake = FakeCompletions()
    fake.enqueue(Answer(calls=(FakeCall("read", '{"path": "a'),), finish_reason="length"), GOOD)
    async with fake.listening() as url, open_house(database_url, server=url, tools=[tool]) as rig:
        chat_id = await rig.ask("hello")

        await rig.rested(chat_id)

        assert tool.runs == []
        assert "output limit" in str(await rig.results(chat_id))


async def test_interrupt_closes_the_connection_to_the_provider(database_url: str) -> None:
    fake = FakeCompletions()
    fake.enqueue(cut(Fault.STALL, len(WHOLE) // 2))
    async with fake.listening() as url, open_house(database_url, server=url) as rig:
        chat_id = await rig.ask("hello")
        await until(lambda: [request for request in fake.requests if request.path.endswith(PATH)])
        (request,) = [request for request in fake.requests if request.path.endswith(PATH)]

        await rig.interrupt(chat_id)
        await rig.rested(chat_id)

        await until(request.left.is_set)


async def test_helper_calls_carry_the_options_of_their_model(database_url: str) -> None:
    options = {
        "max_tokens_field": "max_completion_tokens",
        "extra_body": {"service": "cheap"},
        "headers": {"x-team": "blue"},
        "presence_penalty": 0.5,
    }
    fake = FakeCompletions()
    fake.enqueue(GOOD, *[Answer(text="Work is done")] * 8)
    async with fake.listening() as url, open_house(database_url, server=url, options=options) as rig:
        await rig.set("models", {"title_generation": {"mode": "chat_default"}})
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        await until(lambda: len(fake.requests) >= 2)
        await rig.usage(chat_id)

        turn, label = fake.requests[:2]
        for name in ("service", "presence_penalty", "model"):
            assert label.body[name] == turn.body[name]
        assert label.headers["x-team"] == turn.headers["x-team"] == "blue"
        assert "max_tokens" not in label.body
        assert 0 < label.body["max_completion_tokens"] < turn.body["max_completion_tokens"]
        purposes = await rig.sql("SELECT array_agg(DISTINCT purpose ORDER BY purpose) FROM model_usage")
        assert purposes == ["label", "turn"]


async def test_labels_are_not_made_by_the_chats_own_model_unasked(database_url: str) -> None:
    fake = FakeCompletions()
    fake.enqueue(GOOD)
    async with fake.listening() as url, open_house(database_url, server=url) as rig:
        await rig.set("models", {})
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        await rig.usage(chat_id)

        assert len(fake.requests) == 1
