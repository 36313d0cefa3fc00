"""The fake Chat Completions server refuses what real servers refuse."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.testing.fake_completions import find_problem

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
