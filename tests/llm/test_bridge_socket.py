"""A real model of pydantic-ai, called through the bridge over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec
import pytest

from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import PromptCall, PromptReasoning, PromptResult, PromptText
from rookery.llm.bridge.factory import BridgeClients
from rookery.llm.complete_answers import generate
from rookery.llm.types import (
    ErrorKind,
    FinishReason,
    ReasoningEnd,
    ResponseStarted,
    TextDelta,
    Tool,
    ToolCall,
)
from rookery.runtime.secret_str import SecretStr
from rookery.testing import fake_completions
from rookery.testing.fake_completions import Answer, FakeCall, FakeCompletions, FakeUsage, Style
from rookery.testing.fake_server import Fault, Scenario, failure
from tests.llm.bridge_rig import (
    HELLO,
    KEY,
    asking,
    drain,
    error_of,
    finish_of,
    model_at,
    said,
    warnings_of,
)

LOOK = Tool(name="look", description="Look.", input_schema={"type": "object", "properties": {}})


@pytest.fixture
async def clients() -> AsyncIterator[BridgeClients]:
    clients = BridgeClients()
    yield clients
    await clients.close()


# A real model of the library over a real socket


async def test_answer_over_a_socket(clients: BridgeClients) -> None:
    fake = FakeCompletions(api_key=KEY)
    usage = FakeUsage(prompt=100, cached=60, written=10, completion=20, reasoning=5)
    fake.enqueue(Answer(text="Rooks are birds.", usage=usage))
    async with fake.listening() as url:
        parts = await drain(
            model_at(url, clients), asking(said(Role.SYSTEM, PromptText("Be brief.")), HELLO, max_output_tokens=50)
        )

    assert parts[0] == ResponseStarted("chatcmpl-1", "gpt-4o", None)
    assert "".join(part.text for part in parts if isinstance(part, TextDelta)) == "Rooks are birds."
    finish = finish_of(parts)
    assert finish.reason is FinishReason.STOP
    counted = finish.usage
    assert (counted.cache_read, counted.output, counted.reasoning, counted.context_tokens) == (60, 20, 5, 100)
    assert (counted.input or 0) + (counted.cache_write or 0) == 40
    (request,) = fake.requests
    assert [(m["role"], m["content"]) for m in request.body["messages"]] == [
        ("system", "Be brief."),
        ("user", "Hello."),
    ]


async def test_tool_calls_and_their_results_make_a_turn(clients: BridgeClients) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(
        Answer(text="I look.", calls=(FakeCall("look", '{"path":"a"}'), FakeCall("look", '{"path":"b"}'))),
        Answer(text="Both are there."),
    )
    async with fake.listening() as url:
        model = model_at(url, clients)
        first = await generate(model, asking(tools=(LOOK,)))
        made = [PromptCall(call.id, call.name, msgspec.Raw(call.input.encode())) for call in first.calls]
        results = [PromptResult(call.id, call.name, f"seen {call.id}") for call in made]
        second = await generate(
            model,
            asking(
                HELLO, said(Role.ASSISTANT, PromptText(first.text), *made), said(Role.TOOL, *results), tools=(LOOK,)
            ),
        )

    assert first.reason is FinishReason.TOOL_CALLS
    assert [call.input for call in first.calls] == ['{"path":"a"}', '{"path":"b"}']
    assert second.text == "Both are there."
    assert [m["role"] for m in fake.requests[1].body["messages"]] == ["user", "assistant", "tool", "tool"]


async def test_reasoning_in_a_field_of_its_own_goes_back_in_it(clients: BridgeClients) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Answer(reasoning="Look first.", calls=(FakeCall("look"),)), Answer(text="There."))
    async with fake.listening() as url:
        model = model_at(url, clients, model="deepseek:deepseek-reasoner")
        first = await drain(model, asking(tools=(LOOK,)))
        (end,) = (part for part in first if isinstance(part, ReasoningEnd))
        (call,) = (part for part in first if isinstance(part, ToolCall))
        step = said(
            Role.ASSISTANT,
            PromptReasoning("Look first.", end.meta),
            PromptCall(call.id, call.name, msgspec.Raw(call.input.encode()), meta=call.meta),
        )
        await generate(
            model, asking(HELLO, step, said(Role.TOOL, PromptResult(call.id, "look", "seen")), tools=(LOOK,))
        )

    assert fake.requests[1].body["messages"][1]["reasoning_content"] == "Look first."


@pytest.mark.parametrize(
    ("scenario", "kind", "retryable"),
    [
        (failure(401, f"Incorrect API key provided: {KEY}."), ErrorKind.AUTH, False),
        (failure(429, "Slow down.", retry_after="3"), ErrorKind.RATE_LIMIT, True),
        (failure(400, "This model's maximum context length is 8 tokens."), ErrorKind.CONTEXT_OVERFLOW, False),
        (failure(500, "Oops."), ErrorKind.GENERIC, True),
        (failure(503, "The server is overloaded."), ErrorKind.OVERLOADED, True),
        (Scenario(fault=Fault.RESET, after_bytes=None), ErrorKind.TIMEOUT, True),
    ],
)
async def test_refusals_over_a_socket_are_not_tried_again(
    clients: BridgeClients, scenario: Scenario, kind: ErrorKind, retryable: bool
) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(scenario)
    async with fake.listening() as url:
        error = error_of(await drain(model_at(url, clients)))

    assert (error.kind, error.retryable) == (kind, retryable)
    assert len(fake.requests) == 1
    if kind is ErrorKind.RATE_LIMIT:
        assert error.retry_after is not None
        assert error.request_id == "req_1"


async def test_refused_connection_is_retryable(clients: BridgeClients) -> None:
    async with FakeCompletions().listening() as url:
        pass

    error = error_of(await drain(model_at(url, clients)))

    assert (error.kind, error.retryable) == (ErrorKind.TIMEOUT, True)


async def test_answer_cut_at_any_event_is_retryable(clients: BridgeClients) -> None:
    answer = Answer(text="Half an answer is none.", calls=(FakeCall("look", '{"path":"a"}', id="c1"),))
    events = fake_completions.events(answer, Style(), model="gpt-4o")
    # The last two events contain the finish reason. Without them, the answer is truncated.
    cuts = range(1, len(events) - 2)
    fake = FakeCompletions(api_key=KEY)
    async with fake.listening() as url:
        model = model_at(url, clients)
        for cut in cuts:
            fake.enqueue(Scenario(events=events[:cut]))
            parts = await drain(model, asking(tools=(LOOK,)))
            calls = [part for part in parts if isinstance(part, ToolCall)]
            # An answer with a complete call is a complete step, even if the connection broke after it.
            assert calls or error_of(parts).retryable, cut
            assert all(call.input == '{"path":"a"}' for call in calls), cut

    assert len(fake.requests) == len(cuts)


async def test_broken_connection_in_the_middle_is_retryable(clients: BridgeClients) -> None:
    events = fake_completions.events(Answer(text="A long answer."), Style(), model="gpt-4o")
    fake = FakeCompletions(api_key=KEY)
    async with fake.listening() as url:
        for fault in (Fault.RESET, Fault.CUT):
            fake.enqueue(Scenario(events=events, fault=fault, after_bytes=600))
            error = error_of(await drain(model_at(url, clients)))
            assert (error.kind, error.retryable) == (ErrorKind.TIMEOUT, True), fault


async def test_error_inside_a_stream_is_classified(clients: BridgeClients) -> None:
    events = fake_completions.events(Answer(text="A long answer."), Style(), model="gpt-4o")
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Scenario(events=[*events[:3], fake_completions.error_event("We are overloaded.")]))
    async with fake.listening() as url:
        error = error_of(await drain(model_at(url, clients)))

    assert (error.kind, error.retryable) == (ErrorKind.OVERLOADED, True)


async def test_closing_drops_the_connection_within_a_second(clients: BridgeClients) -> None:
    events = fake_completions.events(Answer(text="A long answer."), Style(), model="gpt-4o")
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Scenario(events=[*events[:3], asyncio.Event()]))
    async with fake.listening() as url:
        async with aclosing(model_at(url, clients).stream(asking())) as parts:
            async for part in parts:
                if isinstance(part, TextDelta):
                    break
        async with asyncio.timeout(1):
            await fake.requests[0].left.wait()


async def test_cancelling_drops_the_connection_within_a_second(clients: BridgeClients) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Scenario(events=[asyncio.Event()]))
    async with fake.listening() as url:
        task = asyncio.create_task(drain(model_at(url, clients)))
        await fake.server.received()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(1):
            await fake.requests[0].left.wait()


async def test_ignored_settings_do_not_reach_the_server(clients: BridgeClients) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Answer(text="Yes."))
    async with fake.listening() as url:
        parts = await drain(
            model_at(url, clients),
            asking(top_k=40, temperature=0.5, effort=Effort.HIGH, headers={"x-trace": "1"}, tool_choice="required"),
        )

    assert set(warnings_of(parts)) == {"top_k", "effort"}
    (request,) = fake.requests
    assert request.body["temperature"] == 0.5
    assert not {"top_k", "reasoning_effort", "tool_choice"} & set(request.body)
    assert request.headers["x-trace"] == "1"


# Connections


async def count_connections(clients: BridgeClients | None, *, models: int) -> int:
    """Return the number of connections that this many models with one key open, one after the other."""
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(*(Answer(text="Yes.") for _ in range(models)))
    opened: set[str] = set()

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.add(str(writer.get_extra_info("peername")))
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        await asyncio.gather(_pump(reader, upstream), _pump(upstream_reader, writer))

    async with fake.listening() as url:
        server = await asyncio.start_server(counted, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for _ in range(models):
            await drain(model_at(f"http://127.0.0.1:{port}", clients))
        if clients is not None:
            await clients.close()
        server.close()
        await server.wait_closed()
    return len(opened)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def test_models_with_one_key_share_a_connection() -> None:
    assert await count_connections(BridgeClients(), models=3) == 1


async def test_models_without_clients_leave_no_connection_behind() -> None:
    assert await count_connections(None, models=2) == 2


async def test_provider_that_is_pushed_out_still_serves_its_model() -> None:
    clients = BridgeClients(max_kept=1)
    fake = FakeCompletions()
    fake.enqueue(*(Answer(text="Yes.") for _ in range(3)))
    async with fake.listening() as url:
        one = model_at(url, clients, key=SecretStr("first-key-0123456789"))
        other = model_at(url, clients, key=SecretStr("other-key-0123456789"))
        for model in (one, other, one):
            assert (await generate(model, asking())).text == "Yes."
        await clients.close()

    assert [request.api_key for request in fake.requests] == [
        "first-key-0123456789",
        "other-key-0123456789",
        "first-key-0123456789",
    ]


async def test_responses_are_closed_also_by_a_package_that_leaves_them_open(
    clients: BridgeClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package for Google closes nothing. This package is changed to do the same."""

    async def close(self: object) -> None:
        pass

    monkeypatch.setattr("openai.AsyncStream.close", close)
    events = fake_completions.events(Answer(text="A long answer."), Style(), model="gpt-4o")
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Scenario(events=[*events[:3], asyncio.Event()]))
    async with fake.listening() as url:
        async with aclosing(model_at(url, clients).stream(asking())) as parts:
            async for part in parts:
                if isinstance(part, TextDelta):
                    break
        async with asyncio.timeout(1):
            await fake.requests[0].left.wait()
