"""The fake Messages server refuses the requests that the real one refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from rookery.testing.fake_anthropic import Answer, Call, FakeAnthropic, Redacted, Text, Thinking, failure

Json = Any

KEY = "sk-ant-test"
NEW = {"anthropic-version": "2026-10-21"}
OLD = {"anthropic-version": "2023-06-01"}
BINDING = {**NEW, "anthropic-beta": "a,thinking-binding-controls-2026-08-01"}


def text(value: str, **fields: Json) -> Json:
    return {"type": "text", "text": value, **fields}


def user(*content: Json) -> Json:
    return {"role": "user", "content": list(content)}


def assistant(*content: Json) -> Json:
    return {"role": "assistant", "content": list(content)}


def call(call_id: str) -> Json:
    return {"type": "tool_use", "id": call_id, "name": "read", "input": {}}


def result(call_id: str) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "done"}


SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
TOOLS = [{"name": "read", "input_schema": {"type": "object"}}]
MARK = {"cache_control": {"type": "ephemeral"}}


def body(*messages: Json, **fields: Json) -> Json:
    return {"model": "m", "max_tokens": 4096, "stream": True, "messages": list(messages), **fields}


async def post(
    server: FakeAnthropic, request: Json, headers: Mapping[str, str] = NEW, path: str = "/v1/messages", key: str = KEY
) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(server), base_url="http://fake") as client:
        return await client.post(path, json=request, headers={**headers, "x-api-key": key})


ACCEPTED = {
    "plain": body({"role": "user", "content": "hello"}),
    "results first": body(user(text("a")), assistant(call("1"), call("2")), user(result("2"), result("1"), text("b"))),
    "search": body(user(text("a")), assistant(SEARCH, FOUND), user(text("b"))),
    "paused search": body(user(text("a")), assistant(SEARCH)),
    "search beside a call": body(user(text("a")), assistant(SEARCH, call("1")), user(result("1"))),
    "search finished later": body(
        user(text("a")), assistant(SEARCH, call("1")), user(result("1")), assistant(FOUND), user(text("b"))
    ),
    "search over two messages": body(user(text("a")), assistant(SEARCH), assistant(FOUND), user(text("b"))),
}
REFUSED: dict[str, tuple[Json, Mapping[str, str], str]] = {
    "no version": (body(user(text("a"))), {}, "anthropic-version: header is required"),
    "no max_tokens": ({"model": "m", "messages": [user(text("a"))]}, NEW, "max_tokens: Field required"),
    "no messages": (body(), NEW, "at least one message"),
    "not an object": ([], NEW, "not valid JSON"),
    "system role": (body({"role": "system", "content": "a"}), NEW, "messages.0.role"),
    "empty content": (body(user()), NEW, "non-empty content"),
    "assistant first": (body(assistant(text("a")), user(text("b"))), NEW, "first message"),
    "empty text": (body(user(text(" "))), NEW, "non-whitespace"),
    "empty system": (body(user(text("a")), system=[text("")]), NEW, "non-whitespace"),
    "sampling": (body(user(text("a")), temperature=1), NEW, "temperature: Extra inputs"),
    "sampling while thinking": (body(user(text("a")), top_p=1, thinking={"type": "adaptive"}), OLD, "top_p"),
    "small budget": (body(user(text("a")), thinking={"type": "enabled", "budget_tokens": 10}), NEW, "1024"),
    "budget over max": (
        body(user(text("a")), thinking={"type": "enabled", "budget_tokens": 4096}),
        NEW,
        "`max_tokens` must be greater",
    ),
    "forced choice while thinking": (
        body(
            user(text("a")),
            tools=TOOLS,
            tool_choice={"type": "any"},
            thinking={"type": "enabled", "budget_tokens": 1024},
        ),
        NEW,
        "forces tool use",
    ),
    "choice without tools": (body(user(text("a")), tool_choice={"type": "auto"}), NEW, "while providing tools"),
    "tools of one name": (body(user(text("a")), tools=TOOLS * 2), NEW, "unique"),
    "binding without beta": (
        body(user(text("a")), thinking={"type": "adaptive", "block_binding": {}}),
        NEW,
        "block_binding: Extra inputs",
    ),
    "five marks": (body(user(*(text(str(n), **MARK) for n in range(5)))), NEW, "maximum of 4 blocks"),
    "marked thinking": (
        body(
            user(text("a")), assistant({"type": "thinking", "thinking": "", "signature": "", **MARK}), user(text("b"))
        ),
        NEW,
        "thinking blocks",
    ),
    "call without result": (
        body(user(text("a")), assistant(call("1")), user(text("b"))),
        NEW,
        "`tool_use` ids were found without `tool_result` blocks immediately after: 1",
    ),
    "call at the end": (body(user(text("a")), assistant(call("1"))), NEW, "without `tool_result`"),
    "result without call": (body(user(result("1"))), NEW, "unexpected `tool_use_id`"),
    "result later": (
        body(user(text("a")), assistant(call("1")), user(text("b")), assistant(text("c")), user(result("1"))),
        NEW,
        "without `tool_result`",
    ),
    "result after text": (
        body(user(text("a")), assistant(call("1")), user(text("b"), result("1"))),
        NEW,
        "must come before other content",
    ),
    "two results": (
        body(user(text("a")), assistant(call("1")), user(result("1"), result("1"))),
        NEW,
        "single result",
    ),
    "id used twice": (
        body(user(text("a")), assistant(call("1")), user(result("1")), assistant(call("1")), user(result("1"))),
        NEW,
        "ids must be unique",
    ),
    "search left open": (
        body(user(text("a")), assistant(SEARCH, text("b")), user(text("c"))),
        NEW,
        "without a corresponding `web_search_tool_result`",
    ),
    "found without search": (body(user(text("a")), assistant(FOUND), user(text("b"))), NEW, "unexpected"),
    "prefill": (body(user(text("a")), assistant(text("b"))), NEW, "does not support assistant message prefill"),
    "foreign signature": (
        body(user(text("a")), assistant({"type": "thinking", "thinking": "", "signature": "x"}), user(text("b"))),
        NEW,
        "Invalid `signature` in `thinking`",
    ),
    "foreign redacted thinking": (
        body(user(text("a")), assistant({"type": "redacted_thinking", "data": "x"}), user(text("b"))),
        NEW,
        "`redacted_thinking`",
    ),
}


@pytest.mark.parametrize("request_body", ACCEPTED.values(), ids=ACCEPTED)
async def test_good_request_is_answered(request_body: Json) -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(Answer([Text("Hi.")]))

    response = await post(server, request_body)

    assert response.status_code == 200, response.text
    assert "event: message_stop" in response.text
    assert server.remaining == 0


@pytest.mark.parametrize(("request_body", "headers", "words"), REFUSED.values(), ids=REFUSED)
async def test_bad_request_is_refused_and_takes_no_answer(
    request_body: Json, headers: Mapping[str, str], words: str
) -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(Answer([Text("Hi.")]))

    response = await post(server, request_body, headers)

    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert words in response.json()["error"]["message"]
    assert server.remaining == 1


async def thought(server: FakeAnthropic) -> Json:
    """Return a thinking block that the server issued after the message `a`."""
    server.answer(Answer([Thinking("hm"), Redacted()]))
    response = await post(server, body(user(text("a")), stream=False))
    return response.json()["content"]


async def test_own_thinking_is_taken_back_after_the_same_history() -> None:
    server = FakeAnthropic(api_key=KEY)
    blocks = await thought(server)
    server.answer(Answer([Text("Hi.")]))

    marked_elsewhere = body(user(text("a", **MARK)), assistant(*blocks, text("b")), user(text("c")))

    assert (await post(server, marked_elsewhere)).status_code == 200


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"system": [text("be brief")]}, id="system"),
        pytest.param({"tools": TOOLS}, id="tools"),
        pytest.param({"messages": [user(text("A"))]}, id="message"),
        pytest.param({"messages": [user(text("a"), text("b"))]}, id="one more block"),
    ],
)
async def test_own_thinking_is_bound_to_its_prefix(changed: Json) -> None:
    server = FakeAnthropic(api_key=KEY)
    blocks = await thought(server)
    server.answer(Answer([Text("Hi.")]))
    before = changed.get("messages", [user(text("a"))])
    request = {**body(), **changed, "messages": [*before, assistant(*blocks), user(text("c"))]}

    refused = await post(server, request)
    dropping = {
        **request,
        "thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}},
    }
    accepted = await post(server, dropping, BINDING)

    assert "bound to a different conversation" in refused.json()["error"]["message"]
    assert accepted.status_code == 200


async def test_changed_thinking_is_refused() -> None:
    server = FakeAnthropic(api_key=KEY)
    first, _ = await thought(server)

    response = await post(server, body(user(text("a")), assistant({**first, "thinking": "ha"}), user(text("c"))))

    assert "Invalid `signature`" in response.json()["error"]["message"]


async def test_older_models_do_not_look_at_the_prefix() -> None:
    server = FakeAnthropic(api_key=KEY, binds_thinking=False)
    blocks = await thought(server)
    server.answer(Answer([Text("Hi.")]))

    response = await post(server, body(user(text("other")), assistant(*blocks), user(text("c"))))

    assert response.status_code == 200


async def test_wrong_key_and_wrong_path_are_refused() -> None:
    server = FakeAnthropic(api_key=KEY)

    wrong_key = await post(server, body(user(text("a"))), key="other")
    wrong_path = await post(server, body(user(text("a"))), path="/v1/complete")

    assert (wrong_key.status_code, wrong_key.json()["error"]["type"]) == (401, "authentication_error")
    assert (wrong_path.status_code, wrong_path.json()["error"]["type"]) == (404, "not_found_error")


async def test_script_is_played_in_order() -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(failure(529, "Overloaded", headers={"retry-after": "3"}), Answer([Call("read", "{broken", "t1")]))

    first = await post(server, body(user(text("a"))))
    second = await post(server, body(user(text("a"))))
    third = await post(server, body(user(text("a"))))

    assert (first.status_code, first.headers["retry-after"]) == (529, "3")
    assert first.json()["error"] == {"type": "overloaded_error", "message": "Overloaded"}
    assert '"stop_reason":"tool_use"' in second.text
    assert third.status_code == 500


async def test_answer_can_end_early() -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(Answer([Text("Hi.")], events=3))

    response = await post(server, body(user(text("a"))))

    assert response.text.count("event: ") == 3
    assert "message_stop" not in response.text
