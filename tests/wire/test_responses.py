"""The Responses wire, compared with the official package.

The comparison covers our requests, the events of our fake server, and the results of both clients.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from rookery.llm.responses.wire import ResponsesFormat, ResponsesOptions
from rookery.llm.types import (
    Capabilities,
    ErrorKind,
    Finish,
    StreamError,
    TextEnd,
    ToolResult,
)
from rookery.testing.fake_responses import (
    Ending,
    FakeResponses,
    FunctionCall,
    Output,
    Reasoning,
    Refusal,
    Text,
    Tokens,
    WebSearch,
    say,
)
from tests.wire.difficult_prompts import calls
from tests.wire.official_types import check_responses
from tests.wire.responses_rig import (
    KEY,
    READ_A,
    READ_B,
    REASONS,
    SEARCHED,
    THOUGHT,
    ask,
    committed,
    continued,
    fault_of,
    official,
    official_reading,
    reading,
    said,
)

PLAIN = Capabilities()
EVERY_OPTION = ResponsesOptions(
    store=True,
    reasoning_summary="detailed",
    reasoning_context="all_turns",
    text_verbosity="low",
    parallel_tool_calls=False,
    max_tool_calls=3,
    service_tier="flex",
    prompt_cache_key="key",
    safety_identifier="hash",
    metadata={"team": "birds"},
    strict_json_schema=True,
    top_logprobs=2,
)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

DEFAULT_TOKENS = Tokens()
IN_ORDER = Ending()


@dataclass(frozen=True)
class Case:
    outputs: tuple[Output, ...]
    tokens: Tokens = DEFAULT_TOKENS
    ending: Ending = IN_ORDER
    has_stale_events: bool = False


SCENARIOS = {
    "text": Case((say("Hello, world."),)),
    "text of several parts": Case((say("Hello, ", "world.", phase="final_answer"),)),
    "text without deltas": Case((Text(parts=("All at once.",), has_deltas=False),)),
    "reasoning": Case((THOUGHT, say("Hi.")), Tokens(read=100, cached=60, cache_written=10, written=30, reasoning=20)),
    "reasoning without encryption": Case((Reasoning(text="Hm.", is_encrypted=False), say("Hi."))),
    "parallel calls": Case((THOUGHT, READ_A, READ_B)),
    "commentary and a call": Case((THOUGHT, say("I look.", phase="commentary"), READ_A)),
    "web search": Case(
        (THOUGHT, SEARCHED, Text(parts=("They are birds.",), sources=(("https://example.org/rooks", "Rooks"),)))
    ),
    "web search without reasoning": Case((SEARCHED, say("Birds."))),
    "failed web search": Case((THOUGHT, WebSearch(query="rooks", has_failed=True), say("I do not know."))),
    "refusal": Case((Refusal("I will not do that."),)),
    "out of tokens": Case((say("It was a dark and"),), ending=Ending(incomplete="max_output_tokens")),
    "call cut off": Case((THOUGHT, READ_A), ending=Ending(incomplete="max_output_tokens")),
    "filtered": Case((say("It was"),), ending=Ending(incomplete="content_filter")),
    "stale events": Case((THOUGHT, say("Once and only once."), READ_A), has_stale_events=True),
    "nothing": Case(()),
    "blank message between reasoning and a call": Case((THOUGHT, say("  "), READ_A)),
    "message without content": Case((THOUGHT, Text(parts=()), READ_A, THOUGHT, say("Hi."))),
}
FAILURES = {
    "failed": Case((say("Half an"),), ending=Ending(failed=("server_error", "The server had an error."))),
    "error": Case((say("Half an"),), ending=Ending(error=("rate_limit_exceeded", "Too many requests."))),
}


# Requests


@pytest.mark.parametrize("caps", [PLAIN, REASONS], ids=["plain", "reasons"])
@pytest.mark.parametrize("options", [None, EVERY_OPTION], ids=["no options", "every option"])
@pytest.mark.parametrize("name", calls("responses"))
def test_request_is_one_of_the_official_type(name: str, options: ResponsesOptions | None, caps: Capabilities) -> None:
    call = msgspec.structs.replace(calls("responses")[name], options=options, cache_key="chat")

    check_responses(ResponsesFormat("gpt-6-astra", caps).build(call).body)


@pytest.mark.parametrize("name", calls("responses"))
def test_request_never_chains_and_is_not_stored_unless_asked(name: str) -> None:
    body = ResponsesFormat("gpt-6-astra", REASONS).build(calls("responses")[name]).body

    assert "previous_response_id" not in body
    assert "conversation" not in body
    assert body["store"] is False


@pytest.mark.parametrize("name", calls("responses"))
def test_second_build_has_the_same_bytes(name: str) -> None:
    wire = ResponsesFormat("gpt-6-astra", REASONS)

    first, second = wire.build(calls("responses")[name]), wire.build(calls("responses")[name])

    assert msgspec.json.encode(first.body) == msgspec.json.encode(second.body)
    assert first.prefix_fp == second.prefix_fp


# Events


@pytest.mark.parametrize("case", [*SCENARIOS.values(), *FAILURES.values()], ids=[*SCENARIOS, *FAILURES])
def test_every_event_of_the_fake_is_of_the_official_type(case: Case) -> None:
    events = FakeResponses().answer(*case.outputs, tokens=case.tokens, ending=case.ending)

    for name, payload in events:
        assert EVENT.validate_python(payload).type == name


@pytest.mark.parametrize("case", SCENARIOS.values(), ids=SCENARIOS)
async def test_official_client_and_fold_read_the_same(case: Case) -> None:
    ours, theirs = (FakeResponses(api_key=KEY) for _ in range(2))
    for fake in (ours, theirs):
        fake.answer(*case.outputs, tokens=case.tokens, ending=case.ending, has_stale_events=case.has_stale_events)

    assert reading(await ask(ours, said())) == await official_reading(theirs)


@pytest.mark.parametrize("case", FAILURES.values(), ids=FAILURES)
async def test_failure_in_the_stream_is_a_retryable_error(case: Case) -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(*case.outputs, ending=case.ending)

    parts = await ask(fake, said())

    assert isinstance(parts[-1], StreamError)
    assert parts[-1].error.retryable
    assert parts[-1].error.request_id == "req_1"
    assert not any(isinstance(part, Finish | TextEnd) for part in parts)


async def test_official_client_sees_the_same_error_event() -> None:
    ours, theirs = FakeResponses(api_key=KEY), FakeResponses(api_key=KEY)
    for fake in (ours, theirs):
        fake.answer(say("Half an"), ending=FAILURES["error"].ending)

    *_, last = await ask(ours, said())
    async with official(theirs) as client_:
        stream = await client_.responses.create(model="gpt-fake", input="Hello.", stream=True)
        events = [event async for event in stream]

    assert events[-1].type == "error"
    assert isinstance(last, StreamError)
    assert (last.error.code, last.error.detail) == (events[-1].code, events[-1].message)


@pytest.mark.parametrize("name", ["reasoning", "parallel calls", "web search", "refusal"])
async def test_document_of_a_server_that_does_not_stream_reads_like_the_stream(name: str) -> None:
    streaming, whole = FakeResponses(api_key=KEY), FakeResponses(api_key=KEY)
    streaming.answer(*SCENARIOS[name].outputs)
    whole.answer(*SCENARIOS[name].outputs, is_whole=True)

    assert committed(await ask(whole, said())) == committed(await ask(streaming, said()))


async def test_wrong_key_is_an_auth_error_for_both_clients() -> None:
    fake = FakeResponses(api_key="sk-other")

    error = fault_of(await ask(fake, said()))

    assert (error.kind, error.status, error.retryable) == (ErrorKind.AUTH, 401, False)
    with pytest.raises(openai.AuthenticationError):
        await official_reading(fake)


# Round trip: a stored answer that is sent back is accepted


@pytest.mark.parametrize("case", SCENARIOS.values(), ids=SCENARIOS)
async def test_answer_is_accepted_when_it_is_sent_back(case: Case) -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(*case.outputs, ending=case.ending, has_stale_events=case.has_stale_events)
    first = said()
    message = committed(await ask(fake, first))
    fake.answer(say("Good."))

    parts = await ask(fake, continued(first, message))

    assert isinstance(parts[-1], Finish), parts[-1]


async def test_encrypted_reasoning_is_replayed_with_ids_from_the_end_of_its_item() -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(THOUGHT, SEARCHED, say("Look:", phase="commentary"), READ_A)
    message = committed(await ask(fake, said()))
    fake.answer(say("Good."))

    await ask(fake, continued(said(), message))

    sent = fake.requests[-1].body["input"][1:5]
    assert [item["id"] for item in sent] == [item_id for item_id in fake.issued if item_id in str(sent)]
    assert sent[0]["encrypted_content"] == fake.issued[sent[0]["id"]].item["encrypted_content"]
    search = dict(fake.issued[sent[1]["id"]].item)
    # The API refuses the sources that it has listed itself.
    search["action"] = {name: value for name, value in search["action"].items() if name != "sources"}
    assert sent[1] == search
    assert sent[2]["phase"] == "commentary"


async def test_failed_web_search_is_an_error_result() -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(*SCENARIOS["failed web search"].outputs)

    parts = await ask(fake, said())

    assert [part.is_error for part in parts if isinstance(part, ToolResult)] == [True]


async def test_interrupted_message_is_replayed_plain() -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(THOUGHT, say("Let me"), READ_A)
    whole = committed(await ask(fake, said()))
    interrupted = msgspec.structs.replace(whole, is_whole=False, finish_reason="interrupted")
    fake.answer(say("Good."))

    parts = await ask(fake, continued(said(), interrupted))

    assert isinstance(parts[-1], Finish)
    sent = fake.requests[-1].body["input"][1:3]
    assert [item["type"] for item in sent] == ["message", "function_call"]
    assert not any("id" in item for item in sent)


async def test_prefix_of_the_second_request_is_the_first_request() -> None:
    fake = FakeResponses(api_key=KEY)
    fake.answer(THOUGHT, READ_A)
    first = said()
    message = committed(await ask(fake, first))
    fake.answer(say("Good."))

    await ask(fake, continued(first, message))

    before, after = (request.raw for request in fake.requests)
    assert after.startswith(before.removesuffix(b"]}"))


outputs = st.lists(
    st.one_of(
        st.builds(
            Text,
            parts=st.lists(st.sampled_from(["", " \n"]) | st.text(max_size=12), max_size=2).map(tuple),
            phase=st.sampled_from([None, "commentary", "final_answer"]),
            has_deltas=st.booleans(),
        ),
        st.builds(Refusal, st.text(min_size=1, max_size=8)),
        st.builds(
            Reasoning,
            summaries=st.lists(st.text(max_size=8), max_size=2).map(tuple),
            text=st.text(max_size=8),
            is_encrypted=st.booleans(),
        ),
        st.builds(
            FunctionCall,
            name=st.just("read_file"),
            arguments=st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2).map(
                lambda value: msgspec.json.encode(value).decode()
            ),
        ),
        st.builds(WebSearch, query=st.text(max_size=8)),
    ),
    max_size=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(first=outputs, second=outputs, piece=st.integers(1, 6))
def test_any_two_answers_survive_the_round_trip(first: list[Output], second: list[Output], piece: int) -> None:
    async def chat() -> None:
        fake = FakeResponses(api_key=KEY)
        call = said()
        for answer in (first, second):
            fake.answer(*answer, piece=piece)
            parts = await ask(fake, call)
            assert isinstance(parts[-1], Finish), parts[-1]
            call = continued(call, committed(parts))
        again = ResponsesFormat(fake.model, REASONS).build(call)
        check_responses(again.body)
        assert msgspec.json.encode(again.body) == msgspec.json.encode(
            ResponsesFormat(fake.model, REASONS).build(call).body
        )
        fake.answer(say("Good."))
        parts = await ask(fake, call)
        assert isinstance(parts[-1], Finish), parts[-1]

    asyncio.run(chat())
