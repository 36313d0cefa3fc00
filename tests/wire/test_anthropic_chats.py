"""Whole chats over the Messages wire: answers are committed, and sent back in a form that the server accepts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookery.domain.chat import parts as content
from rookery.domain.chat import prompt as prompts_of
from rookery.domain.chat.messages import Role
from rookery.domain.content.attachments import FileRules
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.http import HttpClients
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    FinishReason,
    StreamError,
)
from rookery.llm.wire import Request
from rookery.llm.wire_model import Auth, WireModel
from rookery.runtime.secret_str import SecretStr
from rookery.testing import fake_anthropic as fake
from rookery.testing.fake_anthropic import Answer, FakeAnthropic
from rookery.testing.fake_anthropic_checks import blocks_of
from tests.wire.anthropic_rig import (
    BINDING,
    CITED,
    CONFIG,
    HELLO,
    IDENTITY,
    KEY,
    PROVIDER,
    Chat,
    ask,
    encoded,
    read,
)
from tests.wire.difficult_prompts import prompts
from tests.wire.official_types import check_anthropic, check_anthropic_beta

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
def test_every_answer_of_the_model_can_be_committed_and_sent_back(script: list[list[fake.Block]]) -> None:
    asyncio.run(play(script))


# Continuing after special answers


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


async def test_unknown_model_that_binds_thinking_is_called_again_without_stale_thinking(http: HttpClients) -> None:
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


async def test_unknown_signature_is_repaired_by_a_plain_history(http: HttpClients) -> None:
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
