"""One chat with several providers on real sockets: the strict fake servers accept every request.

Rows pass through the stored form and the prompt, as in a running chat. The test does not depend on the content of
requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rookery.domain.chat import interrupted_step, parts
from rookery.domain.chat import prompt as prompts
from rookery.domain.chat.interrupted_step import LivePart
from rookery.domain.chat.messages import ChatId, Message, MessageId, NewMessage, Role, StepFigures
from rookery.domain.chat.parts import Part
from rookery.domain.chat.prompt import ModelIdentity, PromptRow
from rookery.domain.content.attachments import FileRules
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.completions.wire import CompletionsFormat
from rookery.llm.errors import CallFailed
from rookery.llm.http import HttpClients
from rookery.llm.responses.wire import ResponsesFormat
from rookery.llm.types import Call, ErrorKind, Tool, WebSearch, Wire
from rookery.llm.wire import WireFormat
from rookery.llm.wire_model import Auth, WireModel
from rookery.loop import model_step, step_rows
from rookery.loop.config import LoopConfig
from rookery.loop.model_step import AssistantOutcome, StepSetup
from rookery.loop.tool import ToolSet
from rookery.models import capability_catalog
from rookery.runtime.clock import SystemClock
from rookery.runtime.secret_str import SecretStr
from rookery.testing import fake_anthropic, fake_completions
from rookery.testing.fake_anthropic import FakeAnthropic
from rookery.testing.fake_completions import FakeCall, FakeCompletions
from rookery.testing.fake_responses import FakeResponses, FunctionCall, Reasoning, say
from rookery.testing.fake_responses import WebSearch as Searched
from rookery.testing.fake_server import Scenario
from tests import scripted_tools

KEY = "sk-test"
AT = datetime(2030, 1, 1, tzinfo=UTC)
CHAT_ID = ChatId(UUID(int=9))
READ = Tool(name="read", description="Read.", input_schema={"type": "object", "properties": {}})
TOOLS = ToolSet([scripted_tools.echo("read", input_schema=READ.input_schema)], active={"read"})


class Provider:
    """A fake server, its model, and the identity of its answers."""

    def __init__(self, number: int, wire: Wire, type_: str, model: str, fake: Any) -> None:
        self.fake = fake
        self.config_id = UUID(int=100 + number)
        self.caps = capability_catalog.capabilities(type_, model, wire=wire)
        self.identity = ModelIdentity(
            provider_id=UUID(int=200 + number), model=model, wire=wire, thinking_family=self.caps.thinking_family
        )
        self._type = type_

    def connect(self, url: str, clients: HttpClients) -> WireModel:
        name, wire = self.identity.model, self.identity.wire
        formats: dict[str, Callable[[], WireFormat]] = {
            "anthropic": lambda: AnthropicFormat(name, self.caps, base_url=url),
            "responses": lambda: ResponsesFormat(name, self.caps),
            "completions": lambda: CompletionsFormat(name, self.caps, provider_type=self._type),
        }
        header = ("x-api-key", "") if wire == "anthropic" else ("authorization", "Bearer ")
        return WireModel(
            formats[wire](),
            clients.client(url),
            provider_id=self.identity.provider_id,
            provider_type=self._type,
            provider_name="Fake",
            model=name,
            caps=self.caps,
            base_url=url if wire == "anthropic" else f"{url}/v1",
            auth=Auth(header[0], SecretStr(KEY), header[1]),
        )


class Chat:
    """The rows of a chat in their committed form, and the model of each step."""

    def __init__(self, providers: dict[str, Provider], models: dict[str, WireModel]) -> None:
        self.providers = providers
        self.models = models
        self.rows: list[PromptRow] = []
        self._ids = count(1)

    def say(self, text: str) -> None:
        self.commit(NewMessage(role=Role.USER, content=(parts.Text(text),), created_by=UUID(int=1)))

    def commit(self, *made: NewMessage) -> None:
        for each in made:
            row = Message(
                MessageId(next(self._ids)),
                CHAT_ID,
                1,
                each.role,
                each.visibility,
                False,
                False,
                parts.encode(each.content),
                parts.CONTENT_VERSION,
                None,
                each.model_config_id,
                None,
                None,
                AT,
            )
            self.rows.append(PromptRow(row, each.figures or StepFigures()))

    def call(self, name: str) -> Call:
        provider = self.providers[name]
        prompt = prompts.build_prompt(
            self.rows,
            target=provider.identity,
            writers={each.config_id: each.identity for each in self.providers.values()},
            files={},
            rules=FileRules(accepts=provider.caps.accepts),
        )
        search = None if provider.identity.wire == "completions" else WebSearch()
        return Call(prompt=prompt, tools=(READ,), web_search=search, max_output_tokens=1000, chat_id=str(CHAT_ID))

    async def step(self, name: str, *, config: LoopConfig | None = None) -> AssistantOutcome:
        """Run a step. Store its rows and a result for each of its calls."""
        setup = StepSetup(
            provider_name="Fake",
            publish=lambda role, part: None,
            clock=SystemClock(),
            tools=TOOLS,
            config=config or LoopConfig(),
        )
        outcome = await model_step.generate_assistant(self.models[name], self.call(name), setup)
        config_id = self.providers[name].config_id
        self.commit(*step_rows.assistant_rows(outcome, tools=TOOLS, model_config_id=config_id, at=AT))
        for call in outcome.local_calls:
            result = parts.ToolResult(call.tool_call_id, call.tool_name, result=msgspec.Raw(b'{"output":"seen"}'))
            self.commit(NewMessage(role=Role.TOOL, content=(result,), model_config_id=config_id))
        return outcome


def providers() -> dict[str, Provider]:
    return {
        "anthropic": Provider(1, "anthropic", "anthropic", "claude-opus-5-5", FakeAnthropic(api_key=KEY)),
        "responses": Provider(2, "responses", "openai", "gpt-5.2", FakeResponses(api_key=KEY)),
        "completions": Provider(3, "completions", "openai_compat", "qwen", FakeCompletions(api_key=KEY)),
    }


@pytest.fixture
async def chat() -> AsyncIterator[Chat]:
    made = providers()
    clients = HttpClients()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(clients.close)
        models = {}
        for name, provider in made.items():
            url = await stack.enter_async_context(provider.fake.listening())
            models[name] = provider.connect(url, clients)
        yield Chat(made, models)


def script(chat: Chat, name: str, *, calls: bool = True) -> None:
    """Return an answer with everything that only its own provider accepts back: signatures, a search, ids."""
    fake = chat.providers[name].fake
    page = ("https://example.org/rooks", "Rooks")
    match name:
        case "anthropic":
            call = [fake_anthropic.Call("read", {"path": "a"})] if calls else []
            thought = fake_anthropic.Thinking("Search first.")
            found = fake_anthropic.Search("rooks", [page])
            fake.answer(fake_anthropic.Answer([thought, found, fake_anthropic.Text("Rooks nest.", [page]), *call]))
        case "responses":
            made = [FunctionCall(name="read", arguments='{"path": "a"}')] if calls else []
            fake.answer(
                Reasoning(summaries=("Where do they live?",)),
                Searched(query="rooks", sources=(page[0],)),
                say("Yes."),
                *made,
            )
        case _:
            asked = (FakeCall("read", '{"path": "a"}', "call_0"),) if calls else ()
            fake.enqueue(fake_completions.Answer(reasoning="Hm.", text="Well.", calls=asked))


@pytest.mark.parametrize(
    "way",
    [
        ["anthropic", "responses", "anthropic"],
        ["responses", "anthropic", "responses"],
        ["anthropic", "completions", "anthropic", "completions"],
        ["completions", "responses", "completions", "anthropic"],
    ],
    ids="-".join,
)
async def test_chat_moves_between_providers_and_every_request_is_taken(way: list[str], chat: Chat) -> None:
    for turn, name in enumerate(way):
        script(chat, name)
        script(chat, name, calls=False)
        chat.say(f"Turn {turn}.")
        with_call = await chat.step(name)
        last = await chat.step(name)

        assert len(with_call.local_calls) == 1
        assert last.local_calls == ()

    for name in set(way):
        # A refusal uses no answer and would have been repeated, so there was none.
        fake = chat.providers[name].fake
        assert len([request for request in fake.requests if request.method == "POST"]) == 2 * way.count(name)
        assert fake.remaining == 0


async def test_search_results_of_another_provider_become_text(chat: Chat) -> None:
    script(chat, "anthropic", calls=False)
    chat.say("Look for rooks.")
    await chat.step("anthropic")
    script(chat, "responses", calls=False)
    chat.say("And now?")
    await chat.step("responses")
    script(chat, "anthropic", calls=False)
    chat.say("And again?")
    await chat.step("anthropic")

    seen_by_openai = chat.providers["responses"].fake.requests[-1].raw
    seen_by_anthropic = chat.providers["anthropic"].fake.requests[-1].raw
    assert b"https://example.org/rooks" in seen_by_openai
    assert b"Search first." not in seen_by_openai
    assert b"signature" not in seen_by_openai
    assert b"Search first." in seen_by_anthropic
    assert b"Where do they live?" not in seen_by_anthropic


# Interruptions inside each kind of part

TEXT = parts.Text("Half an answ")
THOUGHT = parts.Reasoning("Half a tho", AT)
WHOLE_CALL = parts.ToolCall("call_w", "read", args=msgspec.Raw(b'{"path":"a"}'))
INTERRUPTED: dict[str, list[Part]] = {
    "text": [TEXT],
    "reasoning": [THOUGHT],
    "arguments": [TEXT, parts.ToolCall("call_h", "read", args_delta='{"path": "')],
    "arguments that happen to be whole": [parts.ToolCall("call_h", "read", args_delta='{"path": "a"}')],
    "a tool run": [THOUGHT, TEXT, WHOLE_CALL],
    "several": [THOUGHT, WHOLE_CALL, parts.ToolCall("call_h", "read", args_delta="{"), TEXT],
}


@pytest.mark.parametrize("name", ["anthropic", "responses", "completions"])
@pytest.mark.parametrize("where", INTERRUPTED)
async def test_request_after_an_interruption_is_taken(where: str, name: str, chat: Chat) -> None:
    script(chat, name)
    chat.say("Go on.")
    await chat.step(name)
    live = [LivePart(Role.ASSISTANT, part) for part in INTERRUPTED[where]]
    kept = interrupted_step.rows(
        live, at=AT, model_config_id=chat.providers[name].config_id, figures=StepFigures(finish_reason="interrupted")
    )
    chat.commit(*kept)
    script(chat, name, calls=False)
    chat.say("Continue, please.")

    outcome = await chat.step(name)

    assert outcome.content
    fake = chat.providers[name].fake
    assert len([request for request in fake.requests if request.method == "POST"]) == 2
    assert b"Half a tho" not in fake.requests[-1].raw
    assert (b"Half an answ" in fake.requests[-1].raw) is (TEXT in INTERRUPTED[where])


# Silence


async def test_pings_are_life_and_no_answer(chat: Chat) -> None:
    """A server that keeps the connection alive is not silent, but it has not answered when it ends."""
    chat.say("Hello?")
    ping = ("ping", {"type": "ping"})
    chat.providers["anthropic"].fake.enqueue(Scenario(events=[ping] * 400, events_per_second=400))

    with pytest.raises(CallFailed) as caught:
        async with asyncio.timeout(15):
            await chat.step("anthropic", config=LoopConfig(first_byte_seconds=0.5, stream_silence_seconds=0.5))

    assert caught.value.error.kind is not ErrorKind.STREAM_SILENCE_TIMEOUT
    assert caught.value.error.retryable
    assert len(chat.rows) == 1
