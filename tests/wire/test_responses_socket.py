"""The Responses wire on real sockets with the driver: broken connections, and the rungs of the replay ladder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from uuid import UUID

import pytest

from rookery.llm.http import HttpClients
from rookery.llm.responses.wire import ResponsesFormat
from rookery.llm.types import (
    Call,
    ErrorKind,
    Finish,
    FinishReason,
    ReplayFault,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
)
from rookery.llm.wire_model import Auth, WireModel
from rookery.llm.wire_stats import ModelCounters
from rookery.runtime.secret_str import SecretStr
from rookery.testing.fake_responses import FakeResponses, say
from rookery.testing.fake_server import Fault, Scenario, encode_event, failure
from tests.wire.responses_rig import KEY, READ_A, REASONS, SEARCHED, THOUGHT, committed, continued, said


@pytest.fixture
async def clients() -> AsyncIterator[HttpClients]:
    clients = HttpClients()
    yield clients
    await clients.close()


def model_at(url: str, clients: HttpClients, stats: ModelCounters | None = None, *, key: str = KEY) -> WireModel:
    return WireModel(
        ResponsesFormat("gpt-fake", REASONS),
        clients.client(url),
        provider_id=UUID(int=1),
        provider_type="openai",
        provider_name="OpenAI",
        model="gpt-fake",
        caps=REASONS,
        base_url=f"{url}/v1",
        auth=Auth("authorization", SecretStr(key), "Bearer "),
        new_id=lambda: UUID(int=7),
        stats=stats,
    )


async def ask(model: WireModel, call: Call) -> list[StreamPart]:
    return [part async for part in model.stream(call)]


async def test_driver_and_fake_agree_on_a_chat_of_two_steps(clients: HttpClients) -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(THOUGHT, SEARCHED, say("I look."), READ_A, packet_bytes=7)
    fake.answer(say("It is empty."))
    stats = ModelCounters()
    async with fake.listening() as url:
        model = model_at(url, clients, stats)
        first = await ask(model, said())
        second = await ask(model, continued(said(), committed(first)))

    assert isinstance(first[-1], Finish)
    assert first[-1].reason is FinishReason.TOOL_CALLS
    assert isinstance(second[-1], Finish)
    assert stats.counts().repairs == {}
    assert {request.path for request in fake.requests} == {"/v1/responses"}
    assert fake.requests[0].headers["x-client-request-id"] == str(UUID(int=7))


async def test_history_the_provider_cannot_verify_is_sent_again_in_plain_form(clients: HttpClients) -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(THOUGHT, SEARCHED, say("I look."), READ_A)
    stats = ModelCounters()
    async with fake.listening() as url:
        model = model_at(url, clients, stats)
        message = committed(await ask(model, said()))
        fake.issued.clear()  # the provider has lost its keys
        fake.answer(say("Good."))
        parts = await ask(model, continued(said(), message))

    assert isinstance(parts[-1], Finish)
    assert stats.counts().repairs == {("responses", ReplayFault.UNPROVEN_REASONING): 1}
    assert len(fake.requests) == 3


async def test_pairs_the_provider_does_not_see_are_repaired_once(clients: HttpClients) -> None:
    fake = FakeResponses(api_key=KEY)
    refusal = failure(400, "No tool output found for function call call_1.")
    fake.enqueue(refusal)
    fake.answer(say("Good."))
    fake.enqueue(refusal, refusal)
    stats = ModelCounters()
    async with fake.listening() as url:
        model = model_at(url, clients, stats)
        repaired, unrepaired = await ask(model, said()), await ask(model, said())

    assert isinstance(repaired[-1], Finish)
    (part,) = unrepaired
    assert isinstance(part, StreamError)
    assert (part.error.kind, part.error.retryable) == (ErrorKind.GENERIC, False)
    assert stats.counts().repairs == {("responses", ReplayFault.BROKEN_PAIRS): 2}
    assert stats.counts().unrepaired == {("responses", ReplayFault.BROKEN_PAIRS): 1}


async def test_wrong_key_is_an_auth_error_that_does_not_quote_the_key(clients: HttpClients) -> None:
    fake = FakeResponses(api_key=KEY)
    async with fake.listening() as url:
        (part,) = await ask(model_at(url, clients, key="sk-wrong-0123456789"), said())

    assert isinstance(part, StreamError)
    assert part.error.kind is ErrorKind.AUTH
    assert "sk-wrong" not in str(part)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.END, Fault.RESET])
async def test_answer_broken_at_any_place_is_a_retryable_error(clients: HttpClients, fault: Fault) -> None:
    fake = FakeResponses(api_key=KEY)
    events = FakeResponses().answer(say("Hello."))
    # The last two bytes are the blank line after the last event, which may be missing at the end of a stream.
    places = range(0, sum(len(encode_event(event)) for event in events) - 2, 97)
    fake.enqueue(*(Scenario(events=events, fault=fault, after_bytes=count) for count in places))
    async with fake.listening() as url:
        model = model_at(url, clients)
        for count in places:
            parts = await ask(model, said())
            (terminal,) = (part for part in parts if isinstance(part, Finish | StreamError))
            assert terminal is parts[-1], count
            assert isinstance(terminal, StreamError), count
            assert (terminal.error.kind, terminal.error.retryable) == (ErrorKind.TIMEOUT, True), count


async def test_closing_the_stream_early_closes_the_connection(clients: HttpClients) -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(say("Hello."), fault=Fault.STALL, after_bytes=2000)
    async with fake.listening() as url:
        async with aclosing(model_at(url, clients).stream(said())) as stream:
            async for part in stream:
                assert not isinstance(part, TextEnd | StreamError)
                if isinstance(part, TextDelta):
                    break
        async with asyncio.timeout(1):
            await fake.requests[0].left.wait()
