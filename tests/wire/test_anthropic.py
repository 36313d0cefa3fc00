"""The Messages wire, compared with the official package.

The comparison covers our requests, the events of our fake server, and the results of both clients.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import msgspec
import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from rookery.llm.anthropic.wire import AnthropicFormat, AnthropicOptions
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    StreamError,
    Thinking,
    WebSearch,
)
from rookery.llm.wire import Request
from rookery.testing import fake_anthropic as fake
from rookery.testing.fake_anthropic import Answer, FakeAnthropic
from rookery.testing.fake_anthropic_checks import Issued
from tests.wire.anthropic_rig import (
    BINDING,
    CITED,
    HELLO,
    KEY,
    LADDER,
    Reading,
    ask,
    build,
    encoded,
    read,
)
from tests.wire.difficult_prompts import READ, calls, prompts
from tests.wire.official_types import check_anthropic, check_anthropic_beta

CAPS = {
    "adaptive": Capabilities(
        thinking=Thinking(adaptive=True, disabled=True, default_on=True), efforts=LADDER, forced_tool_choice=True
    ),
    "between tools": Capabilities(thinking=Thinking(adaptive=True, between_tools=True), efforts=LADDER),
    "budget": Capabilities(thinking=Thinking(budget=True), forced_tool_choice=True),
    "unknown": Capabilities(),
}
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

    # Both servers have issued the same ids, because they got the same requests.
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
    parts = AnthropicFormat("m", BINDING).fold(HELLO).read_document(response.content)

    reading = read(parts)
    assert reading.text == "I will look."
    assert [call[2] for call in reading.calls] == [{"path": "a", "deep": [1, {"x": None}]}, {}]
