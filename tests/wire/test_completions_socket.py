"""The Chat Completions wire on real sockets: broken connections, with the driver and with the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from uuid import UUID

import httpx2
import openai
import pytest

from rookery.llm.completions.wire import CompletionsFormat
from rookery.llm.http import HttpClients
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    FinishReason,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    ToolCall,
)
from rookery.llm.wire_model import Auth, WireModel
from rookery.runtime.secret_str import SecretStr
from rookery.testing.fake_completions import Answer, FakeCall, FakeCompletions, Style, events, stream_bytes
from rookery.testing.fake_server import Fault, Scenario
from tests.wire.difficult_prompts import READ, prompts

KEY = "sk-test"
CAPS = Capabilities()
ASKED = Call(prompt=prompts("completions")["tools"], tools=(READ,))
HELLO = events(Answer(text="Hello."), Style(end="eof", usage="finish chunk"), model="m")
HELLO_BYTES = len(stream_bytes(HELLO))


@pytest.fixture
async def clients() -> AsyncIterator[HttpClients]:
    clients = HttpClients()
    yield clients
    await clients.close()


def model_at(url: str, clients: HttpClients) -> WireModel:
    return WireModel(
        CompletionsFormat("m", CAPS, provider="Fake", provider_type="openai_compat"),
        clients.client(url),
        provider_id=UUID(int=1),
        provider_type="openai_compat",
        provider_name="Fake",
        model="m",
        caps=CAPS,
        base_url=f"{url}/v1",
        auth=Auth("authorization", SecretStr(KEY), "Bearer "),
    )


async def ask(model: WireModel) -> list[StreamPart]:
    return [part async for part in model.stream(ASKED)]


async def test_driver_and_fake_agree_on_a_whole_exchange(clients: HttpClients) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Answer(text="I look.", calls=(FakeCall("read_file", '{"path":"a"}'),)))
    async with fake.listening() as url:
        parts = await ask(model_at(url, clients))

    (made,) = (part for part in parts if isinstance(part, ToolCall))
    assert (made.name, made.input) == ("read_file", '{"path":"a"}')
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason is FinishReason.TOOL_CALLS
    assert fake.requests[0].path == "/v1/chat/completions"


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.END, Fault.RESET])
async def test_answer_broken_at_any_byte_is_a_retryable_error(clients: HttpClients, fault: Fault) -> None:
    fake = FakeCompletions(api_key=KEY)
    # The last two bytes are the blank line after the last event, which may be missing at the end of a stream.
    places = range(0, HELLO_BYTES - 2, 7)
    fake.enqueue(*(Scenario(events=HELLO, fault=fault, after_bytes=count) for count in places))
    async with fake.listening() as url:
        model = model_at(url, clients)
        for count in places:
            parts = await ask(model)
            (terminal,) = (part for part in parts if isinstance(part, Finish | StreamError))
            assert terminal is parts[-1], count
            assert isinstance(terminal, StreamError), count
            assert (terminal.error.kind, terminal.error.retryable) == (ErrorKind.TIMEOUT, True), count
            assert not any(isinstance(part, TextEnd) for part in parts), count


async def test_answer_in_single_bytes_is_read_like_any_other(clients: HttpClients) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Scenario(events=HELLO, packet_bytes=1))
    async with fake.listening() as url:
        parts = await ask(model_at(url, clients))

    assert "".join(part.text for part in parts if isinstance(part, TextDelta)) == "Hello."
    assert isinstance(parts[-1], Finish)


async def test_closing_the_stream_early_closes_the_connection(clients: HttpClients) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Scenario(events=HELLO, fault=Fault.STALL, after_bytes=HELLO_BYTES))
    async with fake.listening() as url:
        async with aclosing(model_at(url, clients).stream(ASKED)) as stream:
            async for part in stream:
                if isinstance(part, TextDelta):
                    break
        async with asyncio.timeout(1):
            await fake.requests[0].left.wait()


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET])
async def test_broken_connection_reaches_the_official_client_as_an_error(fault: Fault) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Scenario(events=events(Answer(text="Hello."), Style(), model="m"), fault=fault, after_bytes=300))

    async def read(official: openai.AsyncOpenAI) -> None:
        stream = await official.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hello."}], stream=True
        )
        async for _ in stream:
            pass

    async with fake.listening() as url, openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0) as official:
        with pytest.raises((openai.APIConnectionError, httpx2.TransportError)):
            await read(official)
