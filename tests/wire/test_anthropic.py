"""The Messages wire against the official package: our requests, our fake's events, and both clients' readings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import anthropic
import httpx2
import msgspec
import pytest
from anthropic.types import RawMessageStreamEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from pydantic import TypeAdapter

from rookery.chat import parts as content
from rookery.chat import prompt as prompts_of
from rookery.chat.attachments import FileRules
from rookery.chat.messages import ChatId, Effort, Message, MessageId, Role, StepFigures, Visibility
from rookery.chat.prompt import ModelIdentity, PromptRow
from rookery.chat.prompt_parts import Prompt
from rookery.llm.anthropic import AnthropicFormat, AnthropicOptions
from rookery.llm.http import HttpClients
from rookery.llm.model import Auth, WireModel
from rookery.llm.secrets import SecretStr
from rookery.llm.sse import SseDecoder
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    Thinking,
    ToolCall,
    ToolResult,
    WebSearch,
)
from rookery.llm.wire import Request
from rookery.testing import fake_anthropic as fake
from rookery.testing.fake_anthropic import Answer, FakeAnthropic
from rookery.testing.fake_anthropic_checks import Issued, blocks_of
from tests.wire.closed import check_anthropic, check_anthropic_beta
from tests.wire.fixtures import READ, calls, prompts, user

KEY = "sk-ant-test"
LADDER = (Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.XHIGH, Effort.MAX)
CAPS = {
    "adaptive": Capabilities(
        thinking=Thinking(adaptive=True, disabled=True, default_on=True), efforts=LADDER, forced_tool_choice=True
    ),
    "between tools": Capabilities(thinking=Thinking(adaptive=True, between_tools=True), efforts=LADDER),
    "budget": Capabilities(thinking=Thinking(budget=True), forced_tool_choice=True),
    "unknown": Capabilities(),
}
BINDING = Capabilities(
    thinking=Thinking(adaptive=True, default_on=True, disabled=True), efforts=LADDER, binds_thinking=True
)
EVERY_OPTION = AnthropicOptions(
    budget_tokens=2000,
    thinking_display="omitted",
    disable_parallel_tool_use=True,
    cache_ttl="1h",
    context_1m=True,
    user_hash="hash",
)
CALLS = calls("anthropic") | {
    "every option": Call(
        prompt=prompts("anthropic")["tools"], tools=(READ,), options=EVERY_OPTION, web_search=WebSearch()
    ),
    "newer web search": Call(
        prompt=prompts("anthropic")["tools"], web_search=WebSearch(version="web_search_20260209", max_uses=1)
    ),
}


def build(call: Call, caps: Capabilities = BINDING) -> Request:
    return AnthropicFormat("claude-test", caps).build(call)


def encoded(request: Request) -> bytes:
    return msgspec.json.encode(request.body)


@pytest.mark.parametrize("caps", CAPS.values(), ids=CAPS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_request_is_of_the_official_type(call: Call, caps: Capabilities) -> None:
    request = build(call, caps)

    check = check_anthropic_beta if "block_binding" in request.body.get("thinking", {}) else check_anthropic
    check(request.body)


@pytest.mark.parametrize("caps", CAPS.values(), ids=CAPS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_every_request_is_accepted_by_the_fake(call: Call, caps: Capabilities) -> None:
    server = FakeAnthropic(api_key=KEY, binds_thinking=False)
    thought = "I should look at the file first."
    server.issued["c2lnbmF0dXJl"] = Issued(thinking=thought, blocks=0, prefix=b"")
    server.answer(Answer([fake.Text("Yes.")]))

    parts = await ask(server, build(call, caps))

    assert isinstance(parts[-1], Finish), parts[-1]


# Scenarios

CITED = [("https://a.org", "A"), ("https://b.org", "B")]
SCENARIOS: dict[str, Answer] = {
    "text": Answer([fake.Text("Hello, how are you?")]),
    "text in single characters": Answer([fake.Text("Grüße \U0001f426 \u2028 end")], delta_chars=1),
    "empty": Answer([]),
    "thinking": Answer([fake.Thinking("They greet me."), fake.Text("Hello.")]),
    "omitted thinking": Answer([fake.Thinking(""), fake.Text("Hello.")]),
    "redacted thinking": Answer([fake.Redacted(), fake.Text("Hello.")]),
    "parallel calls": Answer(
        [
            fake.Text("I will look."),
            fake.Call("read_file", {"path": "a", "deep": [1, {"x": None}]}),
            fake.Call("read_file", {}),
        ],
    ),
    "search": Answer(
        [fake.Search("rooks", CITED), fake.Text("They are birds.", CITED)],
        usage={"server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0}},
    ),
    "failed search": Answer([fake.Search("rooks", "unavailable"), fake.Text("I could not look.")]),
    "pause": Answer([fake.Search("rooks", None)], stop_reason="pause_turn"),
    "refusal": Answer(
        [fake.Thinking("No.")],
        stop_reason="refusal",
        stop_details={"type": "refusal", "category": "cyber", "explanation": "Not this."},
    ),
    "length": Answer([fake.Text("And then")], stop_reason="max_tokens"),
    "usage of several passes": Answer(
        [fake.Text("Done.")],
        start_usage={"input_tokens": 2, "cache_read_input_tokens": 139956, "cache_creation_input_tokens": 7770},
        usage={
            "input_tokens": 4,
            "cache_read_input_tokens": 287682,
            "cache_creation_input_tokens": 15556,
            "output_tokens": 4996,
        },
    ),
}
HELLO = Call(prompt=Prompt((user("Hello."),)), tools=(READ,))


@dataclass
class Reading:
    """What a client made of an answer."""

    text: str = ""
    thinking: list[tuple[str, str]] = field(default_factory=list)
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    usage: tuple[int | None, ...] = ()


async def ask(server: FakeAnthropic, request: Request) -> list[StreamPart]:
    """Our own reading, down to the bytes of the stream."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(server), base_url="http://fake") as client:
        headers = {**request.headers, "x-api-key": KEY, "content-type": "application/json"}
        response = await client.post(request.path, content=encoded(request), headers=headers)
    if response.status_code != 200:
        raise AssertionError(response.text)
    fold = AnthropicFormat("m", BINDING).fold(HELLO)
    fold.start(response.headers["request-id"])
    parts = [part for event in SseDecoder().feed(response.content) for part in fold.feed(event)]
    return parts if isinstance(parts[-1], Finish | StreamError) else [*parts, *fold.end()]


def read(parts: Iterable[StreamPart]) -> Reading:
    reading = Reading()
    thought = ""
    for part in parts:
        match part:
            case TextDelta(text=text):
                reading.text += text
            case ReasoningStart():
                thought = ""
            case ReasoningDelta(text=text):
                thought += text
            case ReasoningEnd(meta=meta):
                reading.thinking.append((thought, (meta or {}).get("signature") or (meta or {})["redacted_data"]))
            case ToolCall(id=call_id, name=name, input=given):
                reading.calls.append((call_id, name, json.loads(given)))
            case Finish(usage=usage):
                reading.usage = (usage.input, usage.output, usage.cache_read, usage.cache_write)
    return reading


async def read_officially(server: FakeAnthropic, request: Request) -> Reading:
    body = json.loads(encoded(request))
    transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(server))
    client = anthropic.AsyncAnthropic(api_key=KEY, max_retries=0, http_client=transport, base_url="http://fake")
    async with client, client.messages.stream(**{k: v for k, v in body.items() if k != "stream"}) as stream:
        message = await stream.get_final_message()
    reading = Reading()
    for block in message.content:
        match block.type:
            case "text":
                reading.text += block.text
            case "thinking":
                reading.thinking.append((block.thinking, block.signature))
            case "redacted_thinking":
                reading.thinking.append(("", block.data))
            case "tool_use" | "server_tool_use":
                reading.calls.append((block.id, block.name, block.input))
    usage = message.usage
    reading.usage = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
    )
    return reading


@pytest.mark.parametrize("answer", SCENARIOS.values(), ids=SCENARIOS)
async def test_official_client_and_ours_read_the_same(answer: Answer) -> None:
    request = build(HELLO)
    ours, theirs = FakeAnthropic(api_key=KEY), FakeAnthropic(api_key=KEY)
    ours.answer(answer)
    theirs.answer(answer)

    mine = read(await ask(ours, request))
    official = await read_officially(theirs, request)

    # Both servers have issued the same: they were asked the same.
    assert mine == official


@pytest.mark.parametrize("answer", SCENARIOS.values(), ids=SCENARIOS)
def test_every_event_of_the_fake_is_of_the_official_type(answer: Answer) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

    for name, event in FakeAnthropic().events(answer, json.loads(encoded(build(HELLO)))):
        if name != "ping":
            adapter.validate_python(event)


async def test_error_in_the_stream_reaches_both_clients() -> None:
    answer = Answer([fake.Text("Hello")], events=4, error=("overloaded_error", "Overloaded"))
    server = FakeAnthropic(api_key=KEY)
    server.answer(answer, answer)

    parts = await ask(server, build(HELLO))
    with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        await read_officially(server, build(HELLO))

    assert isinstance(parts[-1], StreamError)
    assert parts[-1].error.kind is ErrorKind.OVERLOADED


async def test_answer_without_a_stream_is_read_the_same() -> None:
    request = build(HELLO)
    whole = msgspec.structs.replace(request, body={**request.body, "stream": False})
    server = FakeAnthropic(api_key=KEY)
    server.answer(SCENARIOS["parallel calls"])

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(server), base_url="http://fake") as client:
        response = await client.post(
            request.path, content=encoded(whole), headers={**request.headers, "x-api-key": KEY}
        )
    parts = AnthropicFormat("m", BINDING).fold(HELLO).whole(response.content)

    reading = read(parts)
    assert reading.text == "I will look."
    assert [call[2] for call in reading.calls] == [{"path": "a", "deep": [1, {"x": None}]}, {}]


# Round trip: an answer is committed, and the chat goes on

PROVIDER = UUID(int=1)
CONFIG = UUID(int=2)
IDENTITY = ModelIdentity(provider_id=PROVIDER, model="claude-test", wire="anthropic", thinking_family="claude")


def committed(parts: Sequence[StreamPart]) -> tuple[content.Part, ...]:
    """The step as it is stored (models.md, "Turning a stream into a step")."""
    stored: list[content.Part] = []
    text = ""
    for part in parts:
        match part:
            case TextStart() | ReasoningStart():
                text = ""
            case TextDelta(text=more) | ReasoningDelta(text=more):
                text += more
            case TextEnd(meta=meta):
                stored.append(content.Text(text, provider_meta=meta))
            case ReasoningEnd(meta=meta):
                stored.append(content.Reasoning(text, provider_meta=meta))
            case ToolCall():
                args = content.json_text(part.input)
                stored.append(
                    content.ToolCall(
                        part.id, part.name, args, provider_executed=part.provider_executed, provider_meta=part.meta
                    )
                )
            case ToolResult():
                stored.append(
                    content.ToolResult(
                        part.id,
                        part.name,
                        part.output,
                        is_error=part.is_error,
                        provider_executed=True,
                        provider_meta=part.meta,
                    )
                )
    return tuple(stored)


def jsonb(text: str) -> str:
    """As PostgreSQL gives it back: keys by length and bytes, with spaces."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(value[key]) for key in sorted(value, key=lambda key: (len(key.encode()), key))}
        return [ordered(child) for child in value] if isinstance(value, list) else value

    return json.dumps(ordered(json.loads(text)), ensure_ascii=False)


@dataclass
class Chat:
    """Rows of one chat with one model, as the worker would commit them."""

    rows: list[PromptRow] = field(default_factory=list)

    def add(self, role: Role, *parts: content.Part, **figures: Any) -> None:
        message = Message(
            id=MessageId(len(self.rows) + 1),
            chat_id=ChatId(UUID(int=3)),
            revision=1,
            role=role,
            visibility=Visibility.BOTH,
            compressed=False,
            deleted=False,
            content=jsonb(content.encode(parts)),
            content_version=content.CONTENT_VERSION,
            created_by=None,
            model_config_id=CONFIG,
            reasoning_effort=None,
            client_id=None,
            created_at=datetime(2026, 11, 15, tzinfo=UTC),
        )
        self.rows.append(PromptRow(message, StepFigures(**figures)))

    def step(self, parts: Sequence[StreamPart], request: Request) -> None:
        """Commit an answer, and a result for each local call in it."""
        stored = committed(parts)
        finish = parts[-1]
        assert isinstance(finish, Finish), finish
        self.add(Role.ASSISTANT, *stored, finish_reason=finish.reason.value, prefix_fp=request.prefix_fp)
        for part in stored:
            if isinstance(part, content.ToolCall) and not part.provider_executed:
                result = content.ToolResult(part.tool_call_id, part.tool_name, Raw(b'{"output":"done"}'))
                self.add(Role.TOOL, result)

    def request(self, overlay: str = "Be brief.", caps: Capabilities = BINDING) -> Request:
        prompt = prompts_of.build_prompt(
            self.rows,
            target=IDENTITY,
            writers={CONFIG: IDENTITY},
            files={},
            rules=FileRules(accepts=lambda media_type: True),
            turn_blocks=(overlay,),
        )
        return build(Call(prompt=prompt, tools=(READ,)), caps)


words = st.text(min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
blocks = st.one_of(
    st.builds(fake.Text, st.text(max_size=12)),
    st.builds(fake.Thinking, st.text(max_size=12)),
    st.just(fake.Redacted()),
    st.builds(fake.Call, st.just("read_file"), st.dictionaries(words, st.integers() | words | st.none(), max_size=2)),
    st.builds(fake.Search, words, st.just(CITED)),
    st.builds(fake.Search, words, st.just("unavailable")),
)


async def play(script: Sequence[Sequence[fake.Block]]) -> None:
    server = FakeAnthropic(api_key=KEY)
    chat = Chat()
    chat.add(Role.USER, content.Text("Hello."))
    sent: Request | None = None
    for step in script:
        request = chat.request()
        again = chat.request()
        assert encoded(request) == encoded(again)
        assert request.prefix_fp == again.prefix_fp
        if sent is not None:
            earlier, later = (blocks_of(json.loads(encoded(one))) for one in (sent, request))
            assert unmarked(later[: len(earlier)]) == unmarked(earlier)
        check_anthropic(request.body)
        server.answer(Answer(step))
        chat.step(await ask(server, request), request)
        if chat.rows[-1].message.role is not Role.TOOL:
            chat.add(Role.USER, content.Text("Go on."))
        sent = request
    assert "anthropic-beta" not in chat.request().headers
    assert server.remaining == 0


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmarked(child) for key, child in value.items() if key != "cache_control"}
    return [unmarked(child) for child in value] if isinstance(value, list | tuple) else value


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(blocks, max_size=5), min_size=1, max_size=4))
def test_whatever_the_model_says_can_be_committed_and_sent_back(script: list[list[fake.Block]]) -> None:
    asyncio.run(play(script))


# Going on after what is special


async def test_paused_search_goes_on_and_gets_its_result_from_the_next_response() -> None:
    server = FakeAnthropic(api_key=KEY)
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_9", "content": []}
    server.answer(
        Answer([fake.Thinking("hm"), fake.Search("rooks", None, "srvtoolu_9")], stop_reason="pause_turn"),
        Answer([fake.OtherBlock(found), fake.Text("Birds.")]),
        Answer([fake.Text("You are welcome.")]),
    )
    chat = Chat()
    chat.add(Role.USER, content.Text("What are rooks?"))

    for _ in range(2):
        request = chat.request()
        chat.step(await ask(server, request), request)
    chat.add(Role.USER, content.Text("Thanks."))
    last = await ask(server, chat.request())

    assert chat.rows[1].figures.finish_reason == FinishReason.PAUSE
    assert server.requests[1].body["messages"][-1]["role"] == "assistant"
    assert read(last).text == "You are welcome."


async def test_server_call_left_open_beside_a_local_call_gets_its_result_later() -> None:
    server = FakeAnthropic(api_key=KEY)
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_9", "content": []}
    server.answer(
        Answer([fake.Search("rooks", None, "srvtoolu_9"), fake.Call("read_file")]),
        Answer([fake.OtherBlock(found), fake.Text("Birds.")]),
        Answer([fake.Text("Fine.")]),
    )
    chat = Chat()
    chat.add(Role.USER, content.Text("What are rooks?"))

    for _ in range(2):
        request = chat.request()
        chat.step(await ask(server, request), request)
    chat.add(Role.USER, content.Text("Thanks."))

    assert read(await ask(server, chat.request())).text == "Fine."


async def test_changed_overlay_is_accepted_without_a_refusal_first() -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(Answer([fake.Thinking("hm"), fake.Text("Hi.")]), Answer([fake.Text("Yes.")]))
    chat = Chat()
    chat.add(Role.USER, content.Text("Hello."))
    request = chat.request()
    chat.step(await ask(server, request), request)
    chat.add(Role.USER, content.Text("And?"))

    changed = chat.request("Plan first.")
    parts = await ask(server, changed)

    check_anthropic_beta(changed.body)
    assert changed.body["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert read(parts).text == "Yes."


# The ladder, over a real socket


@pytest.fixture
async def http() -> AsyncIterator[HttpClients]:
    clients = HttpClients()
    yield clients
    await clients.close()


def model(http: HttpClients, base_url: str, caps: Capabilities) -> WireModel:
    return WireModel(
        AnthropicFormat("claude-test", caps, base_url=base_url),
        http.client(base_url),
        provider_id=PROVIDER,
        provider_type="anthropic",
        provider_name="Anthropic",
        model="claude-test",
        caps=caps,
        base_url=base_url,
        auth=Auth("x-api-key", SecretStr(KEY)),
    )


async def test_model_that_binds_though_nobody_knew_is_asked_again_without_stale_thinking(http: HttpClients) -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(Answer([fake.Thinking("hm"), fake.Text("Hi.")]), Answer([fake.Text("Yes.")]))
    unaware = msgspec.structs.replace(BINDING, binds_thinking=False)
    chat = Chat()
    chat.add(Role.USER, content.Text("Hello."))
    request = chat.request(caps=unaware)
    chat.step(await ask(server, request), request)
    chat.add(Role.USER, content.Text("And?"))
    changed = prompts_of.build_prompt(
        chat.rows,
        target=IDENTITY,
        writers={CONFIG: IDENTITY},
        files={},
        rules=FileRules(accepts=lambda media_type: True),
    )

    async with server.listening() as base_url:
        parts = [part async for part in model(http, base_url, unaware).stream(Call(prompt=changed))]

    assert read(parts).text == "Yes."
    assert "block_binding" not in server.requests[1].body["thinking"]
    assert server.requests[2].body["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}


async def test_signature_nobody_issued_is_repaired_by_a_plain_history(http: HttpClients) -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(Answer([fake.Text("Yes.")]))

    async with server.listening() as base_url:
        stream = model(http, base_url, BINDING).stream(Call(prompt=prompts("anthropic")["provider tools"]))
        parts = [part async for part in stream]

    assert read(parts).text == "Yes."
    assert len(server.requests) == 2
    assert [block["type"] for block in server.requests[1].body["messages"][1]["content"]] == ["text"]


async def test_wrong_key_is_an_auth_error(http: HttpClients) -> None:
    server = FakeAnthropic(api_key="sk-ant-other")

    async with server.listening() as base_url:
        parts = [part async for part in model(http, base_url, BINDING).stream(HELLO)]

    (only,) = parts
    assert isinstance(only, StreamError)
    assert (only.error.kind, only.error.status, only.error.request_id) == (ErrorKind.AUTH, 401, "req_1")
