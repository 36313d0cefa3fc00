"""The fake Chat Completions server refuses the requests that real servers refuse."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from rookery.testing.fake_completions import Answer, FakeCompletions, find_problem
from rookery.testing.fake_server import Scenario

Json = Any

HELLO = {"role": "user", "content": "Hello."}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ],
}
ANSWERED_A = {"role": "tool", "tool_call_id": "a", "content": "x"}
ANSWERED_B = {"role": "tool", "tool_call_id": "b", "content": "y"}
PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([HELLO, CALLED, ANSWERED_A, HELLO, ANSWERED_B], "did not have response messages: b"),
        ([HELLO, CALLED, ANSWERED_A], "did not have response messages: b"),
        ([HELLO, CALLED, ANSWERED_A, ANSWERED_A], "must be a response to a preceding"),
        ([HELLO, ANSWERED_A], "must be a response to a preceding"),
        ([HELLO, CALLED, ANSWERED_B, ANSWERED_A | {"content": PICTURE}], "for the role 'tool'"),
        ([{"role": "assistant", "content": None}], "expected a string, got null"),
        ([{"role": "user", "content": []}], "for the role 'user'"),
        ([{"role": "critic", "content": "No."}], "'critic'"),
        ([], "'messages'"),
    ],
)
def test_fake_refuses_messages_as_real_servers_do(messages: list[Json], words: str) -> None:
    problem = find_problem({"model": "m", "messages": messages})
    assert problem is not None
    assert words in problem


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": ""}, "model"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": []}, "empty array"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "pattern"),
    ],
)
def test_fake_refuses_fields_as_real_servers_do(fields: Json, words: str) -> None:
    body: Json = {"model": "m", "messages": [HELLO]}
    assert find_problem(body) is None
    problem = find_problem(body | fields)
    assert problem is not None
    assert words in problem


async def test_fake_tells_what_arrived_and_what_is_left() -> None:
    fake = FakeCompletions(api_key="k")
    fake.enqueue(Answer(text="Hello."), Answer(text="Again."))
    fake.pages["GET /v1/models"] = Scenario(body={"data": []})

    async with fake.listening() as url, aiohttp.ClientSession(url, headers={"authorization": "Bearer k"}) as client:
        waiting = asyncio.create_task(fake.received(2))
        async with client.get("/v1/models") as page:
            listed = await page.json()
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        async with client.post("/v1/chat/completions", json=body) as answer:
            said = await answer.json()
        await waiting

    assert listed == {"data": []}
    assert said["choices"][0]["message"]["content"] == "Hello."
    assert fake.remaining == 1
