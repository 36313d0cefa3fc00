"""The loop on real sockets: steps and batches against well-behaved and misbehaving servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import count
from uuid import UUID, uuid4

import pytest
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat import prompt as prompts
from rookery.domain.chat.messages import Message, MessageId, NewMessage, Role, StepFigures, Visibility
from rookery.domain.chat.prompt import ModelIdentity, PromptRow
from rookery.domain.content.attachments import FileRules
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.completions.wire import CompletionsFormat
from rookery.llm.errors import CallFailed
from rookery.llm.http import HttpClients
from rookery.llm.types import Call, Capabilities, ErrorKind, FinishReason
from rookery.llm.wire_model import Auth, WireModel
from rookery.loop import model_step, step_rows, tool_batch
from rookery.loop.config import LoopConfig
from rookery.loop.model_step import AssistantOutcome, StepSetup
from rookery.loop.tool import ToolSet
from rookery.loop.tool_batch import BatchSetup, PendingCall, UnfinishedTools
from rookery.runtime.clock import SystemClock
from rookery.runtime.secret_str import SecretStr
from rookery.testing import FakeClock
from rookery.testing import fake_anthropic as fake
from rookery.testing.fake_anthropic import FakeAnthropic
from rookery.testing.fake_completions import Answer, FakeCall, FakeCompletions, Style, events, stream_bytes
from rookery.testing.fake_server import Fault, Scenario
from tests import scripted_tools
from tests.eventually import until
from tests.loop.loop_rig import CHAT_ID, CONFIG_ID, PROVIDER_ID, Shown
from tests.scripted_tools import MemoryLedger

KEY = "sk-test"
AT = datetime(2030, 1, 1, tzinfo=UTC)
TOOLS = [scripted_tools.echo("read", input_schema={"type": "object", "properties": {"path": {"type": "string"}}})]


@pytest.fixture
async def clients() -> AsyncIterator[HttpClients]:
    clients = HttpClients()
    yield clients
    await clients.close()


def completions_at(url: str, clients: HttpClients) -> WireModel:
    caps = Capabilities()
    return WireModel(
        CompletionsFormat("m", caps, provider="Fake", provider_type="openai_compat"),
        clients.client(url),
        provider_id=PROVIDER_ID,
        provider_type="openai_compat",
        provider_name="Fake",
        model="m",
        caps=caps,
        base_url=f"{url}/v1",
        auth=Auth("authorization", SecretStr(KEY), "Bearer "),
    )


def anthropic_at(url: str, clients: HttpClients) -> WireModel:
    caps = Capabilities()
    return WireModel(
        AnthropicFormat("claude-test", caps),
        clients.client(url),
        provider_id=PROVIDER_ID,
        provider_type="anthropic",
        provider_name="Fake",
        model="claude-test",
        caps=caps,
        base_url=url,
        auth=Auth("x-api-key", SecretStr(KEY)),
    )


class Turn:
    """A chat in memory: rows in their committed form, and the prompt made from them."""

    def __init__(self, model: WireModel, said: str) -> None:
        self.model = model
        self.tools = ToolSet(TOOLS, active={"read"})
        self.rows: list[PromptRow] = []
        self._ids = count(1)
        self.commit(NewMessage(role=Role.USER, content=(parts.Text(said),), created_by=UUID(int=1)))

    def commit(self, *made: NewMessage) -> None:
        for each in made:
            row = Message(
                MessageId(next(self._ids)),
                CHAT_ID,
                1,
                each.role,
                Visibility.BOTH,
                False,
                False,
                parts.encode(each.content),
                parts.CONTENT_VERSION,
                None,
                CONFIG_ID,
                None,
                None,
                AT,
            )
            self.rows.append(PromptRow(row, each.figures or StepFigures()))

    def call(self) -> Call:
        identity = ModelIdentity(provider_id=PROVIDER_ID, model=self.model.model, wire=self.model.wire)
        prompt = prompts.build_prompt(
            self.rows,
            target=identity,
            writers={CONFIG_ID: identity},
            files={},
            rules=FileRules(accepts=lambda _: False),
        )
        return Call(prompt=prompt, tools=self.tools.definitions(), max_output_tokens=1000)

    async def step(self, config: LoopConfig | None = None) -> AssistantOutcome:
        setup = StepSetup(
            provider_name="Fake",
            publish=Shown(),
            clock=SystemClock(),
            tools=self.tools,
            config=config or LoopConfig(),
        )
        outcome = await model_step.generate_assistant(self.model, self.call(), setup)
        rows = step_rows.assistant_rows(outcome, tools=self.tools, model_config_id=CONFIG_ID, at=AT)
        self.commit(*rows)
        return outcome

    async def run_tools(self, outcome: AssistantOutcome) -> None:
        found = [part for row in self.rows for part in row.message.parts()]
        answered = {part.tool_call_id for part in found if isinstance(part, parts.ToolResult)}
        open_calls = [call for call in outcome.local_calls if call.tool_call_id not in answered]
        setup = BatchSetup(
            chat_id=CHAT_ID,
            tools=self.tools,
            publish=Shown(),
            clock=SystemClock(),
            ledger=MemoryLedger(),
            unfinished_tools=UnfinishedTools(),
        )
        done = await tool_batch.execute_batch([PendingCall(len(self.rows), call) for call in open_calls], setup)
        self.commit(*step_rows.tool_rows(done, model_config_id=CONFIG_ID))


# Whole turns


async def test_a_turn_of_three_steps_is_accepted_by_a_strict_server(clients: HttpClients) -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(
        fake.Answer([fake.Text("I look."), fake.Call("read", {"path": "a"}), fake.Call("read", {"path": "b"})]),
        fake.Answer([fake.Call("nobody", {})]),
        fake.Answer([fake.Text("Done.")]),
    )
    async with server.listening() as url:
        turn = Turn(anthropic_at(url, clients), "Look at a and b.")
        for _ in range(2):
            await turn.run_tools(await turn.step())
        last = await turn.step()

    assert last.content == (parts.Text("Done."),)
    assert last.finish_reason is FinishReason.STOP
    assert [row.message.role for row in turn.rows] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.TOOL,
        Role.ASSISTANT,
        Role.TOOL,
        Role.ASSISTANT,
    ]
    assert last.usage.output


async def test_a_server_that_restarts_its_call_ids_gets_unique_ones_back(clients: HttpClients) -> None:
    server = FakeCompletions(api_key=KEY)
    repeated = Answer(calls=(FakeCall("read", '{"path":"a"}', "call_0"), FakeCall("read", '{"path":"b"}', "call_0")))
    server.enqueue(repeated, repeated, Answer(text="Done."))
    async with server.listening() as url:
        turn = Turn(completions_at(url, clients), "Look.")
        await turn.run_tools(await turn.step())
        await turn.run_tools(await turn.step())
        last = await turn.step()

    assert last.content == (parts.Text("Done."),)
    sent = [call["id"] for each in server.requests[-1].body["messages"] for call in each.get("tool_calls", ())]
    assert len(sent) == len(set(sent)) >= 2


async def test_half_json_of_a_call_is_answered_and_the_turn_goes_on(clients: HttpClients) -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(
        fake.Answer([fake.Call("read", '{"path": "a'), fake.Call("read", {"path": "b"})]),
        fake.Answer([fake.Text("Sorry.")]),
    )
    async with server.listening() as url:
        turn = Turn(anthropic_at(url, clients), "Look.")
        first = await turn.step()
        await turn.run_tools(first)
        last = await turn.step()

    assert last.content == (parts.Text("Sorry."),)
    told = server.requests[1].body["messages"][-1]["content"]
    assert [("well-formed" in str(block["content"]), block.get("is_error", False)) for block in told] == [
        (True, True),
        (False, False),
    ]


async def test_a_call_cut_off_by_the_limit_is_answered_so(clients: HttpClients) -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(fake.Answer([fake.Call("read", '{"path": "a')], stop_reason="max_tokens"))
    async with server.listening() as url:
        turn = Turn(anthropic_at(url, clients), "Look.")
        outcome = await turn.step()

    assert len(outcome.cut_calls) == 1
    (result,) = turn.rows[-1].message.parts()
    assert isinstance(result, parts.ToolResult)
    assert isinstance(result.result, Raw)
    assert "output limit" in parts.json_value(result.result)["error"]


# Misbehaving servers

HELLO = events(Answer(text="Hello, this is an answer."), Style(), model="m")
BYTES = len(stream_bytes(HELLO))


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.CUT, Fault.END])
@pytest.mark.parametrize("after_bytes", [None, 0, BYTES // 3, BYTES // 2])
async def test_a_stream_that_breaks_commits_nothing_and_is_retryable(
    fault: Fault, after_bytes: int | None, clients: HttpClients
) -> None:
    server = FakeCompletions(api_key=KEY)
    server.enqueue(Scenario(events=HELLO, fault=fault, after_bytes=after_bytes), Answer(text="Again."))
    async with server.listening() as url:
        turn = Turn(completions_at(url, clients), "Hello.")
        with pytest.raises(CallFailed) as caught:
            await turn.step()
        after = len(turn.rows)
        again = await turn.step()

    assert caught.value.error.retryable
    assert after == 1
    assert again.content == (parts.Text("Again."),)


@pytest.mark.parametrize("after_bytes", [None, 0, BYTES // 2])
async def test_a_server_that_stalls_is_left_and_told_as_silent(after_bytes: int | None, clients: HttpClients) -> None:
    server = FakeCompletions(api_key=KEY)
    server.enqueue(Scenario(events=HELLO, fault=Fault.STALL, after_bytes=after_bytes))
    clock = FakeClock()
    async with server.listening() as url:
        turn = Turn(completions_at(url, clients), "Hello.")
        setup = StepSetup(provider_name="Fake", publish=Shown(), clock=clock)
        task = asyncio.create_task(model_step.generate_assistant(turn.model, turn.call(), setup))
        await until(lambda: server.requests)

        async def is_given_up() -> bool:
            # The limit starts again when the bytes before the stall arrive.
            if clock.waiting("stream-silence"):
                await clock.fire("stream-silence")
            return task.done()

        await until(is_given_up)
        with pytest.raises(CallFailed) as caught:
            await task
        # The connection is closed immediately, so that the provider stops counting tokens.
        async with asyncio.timeout(10):
            await server.requests[0].left.wait()

    assert caught.value.error.kind is ErrorKind.STREAM_SILENCE_TIMEOUT
    assert caught.value.error.retryable


async def test_cancelling_a_step_drops_the_connection(clients: HttpClients) -> None:
    server, shown = FakeCompletions(api_key=KEY), asyncio.Event()
    server.enqueue(Scenario(events=HELLO, fault=Fault.STALL, after_bytes=BYTES // 2))
    async with server.listening() as url:
        turn = Turn(completions_at(url, clients), "Hello.")
        setup = StepSetup(provider_name="Fake", publish=lambda role, part: shown.set(), clock=SystemClock())
        task = asyncio.create_task(model_step.generate_assistant(turn.model, turn.call(), setup))
        async with asyncio.timeout(10):
            await shown.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.requests[0].left.wait()


async def test_an_answer_of_nothing_is_empty(clients: HttpClients) -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(fake.Answer([]))
    async with server.listening() as url:
        outcome = await Turn(anthropic_at(url, clients), "Hello.").step()

    assert outcome.is_empty


async def test_a_refusal_after_thinking_only_shows_its_category(clients: HttpClients) -> None:
    server = FakeAnthropic(api_key=KEY)
    details = {"type": "refusal", "category": "cyber", "explanation": "It would break into a system."}
    server.answer(fake.Answer([fake.Thinking("hm")], stop_reason="refusal", stop_details=details))
    async with server.listening() as url:
        with pytest.raises(CallFailed) as caught:
            await Turn(anthropic_at(url, clients), str(uuid4())).step()

    assert caught.value.error.message == "Fake declined to answer (policy: cyber)."
    assert caught.value.error.detail == "It would break into a system."
