"""The fake Responses server refuses what the real one refuses, and its errors lead to the matching repair."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.domain.chat.model_prompt import Prompt, PromptReasoning
from rookery.llm import errors
from rookery.llm.types import (
    Call,
    Finish,
    ProviderError,
    ReplayFault,
)
from rookery.testing.fake_responses import (
    FakeResponses,
    say,
)
from tests.wire.difficult_prompts import READ, assistant, prompts, user
from tests.wire.responses_rig import (
    KEY,
    READ_A,
    SEARCHED,
    THOUGHT,
    ask,
    client,
    committed,
    continued,
    fault_of,
    said,
)


async def refused(fake: FakeResponses, *items: dict[str, Any], **fields: Any) -> ProviderError:
    body = {"model": "gpt-fake", "stream": True, "input": list(items), **fields}
    async with client(fake) as http:
        answer = await http.post("/responses", json=body)
    assert answer.status_code == 400, answer.text
    return errors.from_response("OpenAI", 400, headers=answer.headers, body=answer.content)


def replayed(fake: FakeResponses) -> list[dict[str, Any]]:
    """Return everything that the fake server has issued, in the form that it requires."""
    items = [dict(issued.item) for issued in fake.issued.values()]
    called = [item["call_id"] for item in items if item["type"] == "function_call"]
    return [*items, *({"type": "function_call_output", "call_id": call_id, "output": "ok"} for call_id in called)]


def thinking_fake() -> FakeResponses:
    fake = FakeResponses(api_key=KEY)
    fake.answer(THOUGHT, SEARCHED, THOUGHT, READ_A)
    return fake


async def test_reasoning_needs_its_follower() -> None:
    fake = thinking_fake()

    error = await refused(fake, replayed(fake)[0])

    assert error.replay_fault is ReplayFault.UNPROVEN_REASONING
    assert "without its required following item" in str(error.detail)


@pytest.mark.parametrize("place", [1, 3], ids=["web search", "call"])
async def test_item_needs_its_reasoning(place: int) -> None:
    fake = thinking_fake()
    items = replayed(fake)

    error = await refused(fake, *items[: place - 1], *items[place:])

    assert error.replay_fault is ReplayFault.UNPROVEN_REASONING
    assert "without its required 'reasoning' item" in str(error.detail)


async def test_web_search_needs_reasoning_before_it() -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(SEARCHED, say("Birds."))

    error = await refused(fake, *replayed(fake))

    assert error.replay_fault is ReplayFault.UNPROVEN_REASONING


async def test_encrypted_content_must_be_the_issued_one() -> None:
    fake = thinking_fake()
    first, *rest = replayed(fake)

    error = await refused(fake, first | {"encrypted_content": "begin-" + first["id"]}, *rest)

    assert (error.code, error.replay_fault) == ("invalid_encrypted_content", ReplayFault.UNPROVEN_REASONING)


async def test_unknown_id_is_refused() -> None:
    fake = thinking_fake()
    message = {"type": "message", "id": "msg_9", "role": "assistant", "status": "completed", "content": []}

    error = await refused(fake, message)

    assert error.replay_fault is ReplayFault.UNPROVEN_REASONING
    assert "Item with id 'msg_9' not found" in str(error.detail)


async def test_call_without_output_is_refused() -> None:
    fake = thinking_fake()

    error = await refused(fake, *replayed(fake)[:-1])

    assert error.replay_fault is ReplayFault.BROKEN_PAIRS


async def test_output_before_its_call_is_refused() -> None:
    fake = thinking_fake()
    *items, output = replayed(fake)

    error = await refused(fake, output, *items)

    assert "No tool call found for function call output" in str(error.detail)


@pytest.mark.parametrize("place", [3, 4], ids=["call", "output"])
async def test_duplicates_are_refused(place: int) -> None:
    fake = thinking_fake()
    items = replayed(fake)

    error = await refused(fake, *items, {key: value for key, value in items[place].items() if key != "id"})

    assert error.replay_fault is ReplayFault.BROKEN_PAIRS


async def test_same_item_twice_is_refused() -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(say("Hi."))

    error = await refused(fake, *replayed(fake), *replayed(fake))

    assert error.replay_fault is ReplayFault.BROKEN_PAIRS


async def test_chaining_sampling_and_tiny_limits_are_refused() -> None:
    fake = FakeResponses(api_key=KEY)

    assert (await refused(fake, previous_response_id="resp_1")).code == "previous_response_not_found"
    assert (await refused(fake, temperature=0.5)).code == "unsupported_parameter"
    assert (await refused(fake, max_output_tokens=1)).code == "integer_below_min_value"


async def test_refused_history_is_accepted_in_plain_form() -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(THOUGHT, SEARCHED, say("I look."), READ_A)
    message = committed(await ask(fake, said()))
    fake.issued.clear()  # the provider has lost its keys
    assert fault_of(await ask(fake, continued(said(), message))).replay_fault is ReplayFault.UNPROVEN_REASONING
    fake.answer(say("Good."))

    parts = await ask(fake, continued(said(), message, plain_history=True))

    assert isinstance(parts[-1], Finish)


@pytest.mark.parametrize("name", ["interrupted", "foreign rows", "text chat", "parallel tools with image results"])
async def test_prompts_without_anything_of_this_provider_are_accepted(name: str) -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(say("Good."))
    call = Call(prompt=prompts("completions")[name], tools=(READ,))

    parts = await ask(fake, call)

    assert isinstance(parts[-1], Finish), parts


async def test_message_without_text_does_not_leave_reasoning_alone() -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(THOUGHT, say("  "))
    message = committed(await ask(fake, said()))
    assert [type(part) for part in message.parts] == [PromptReasoning]
    fake.answer(say("Good."))

    parts = await ask(fake, Call(prompt=Prompt((user("Hello."), message, assistant("Hm."), user("Go on.")))))

    assert isinstance(parts[-1], Finish)
