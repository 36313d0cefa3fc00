"""The Responses wire against the official package: our requests, our fake's events, and both clients' readings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from rookery.chat.messages import Role
from rookery.chat.prompt_parts import (
    Prompt,
    PromptCall,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm import errors
from rookery.llm.responses import ResponsesFormat, ResponsesOptions
from rookery.llm.sse import SseDecoder
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    ProviderError,
    ReasoningDelta,
    ReasoningEnd,
    ReplayFault,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    ToolCall,
    ToolResult,
    Usage,
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
from tests.wire.closed import check_responses
from tests.wire.fixtures import READ, assistant, calls, prompts, tool, user

KEY = "sk-test"
REASONS = Capabilities(reasoning_model=True, json_schema=True)
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

SEARCHED = WebSearch(query="rooks", sources=("https://example.org/rooks",))
THOUGHT = Reasoning(summaries=("I should look first.", "Then I answer."))
READ_A = FunctionCall(name="read_file", arguments='{"path": "a.txt"}')
READ_B = FunctionCall(name="read_file", arguments='{"path": "b \\u00e9.txt"}')


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
}
FAILURES = {
    "failed": Case((say("Hel"),), ending=Ending(failed=("server_error", "The server had an error."))),
    "error": Case((say("Hel"),), ending=Ending(error=("rate_limit_exceeded", "Too many requests."))),
}


@dataclass
class Reading:
    """What a client made of an answer."""

    text: str
    calls: list[tuple[str, str, str]]
    usage: tuple[int | None, ...]


def client(fake: FakeResponses, key: str = KEY) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=fake),
        base_url="http://fake/v1",
        headers={"Authorization": f"Bearer {key}"},
    )


async def ask(fake: FakeResponses, call: Call, caps: Capabilities = REASONS) -> list[StreamPart]:
    """One call as the driver makes it, without its repairs: request, bytes, events, parts."""
    wire = ResponsesFormat(fake.model, caps)
    request = wire.build(call)
    async with client(fake) as http:
        answer = await http.post(request.path, content=msgspec.json.encode(request.body))
    if answer.status_code != 200:
        error = errors.from_response("OpenAI", answer.status_code, headers=answer.headers, body=answer.content)
        return [StreamError(error)]
    fold = wire.fold(call)
    fold.start(answer.headers["x-request-id"])
    if answer.headers["content-type"].startswith("application/json"):
        return list(fold.whole(answer.content))
    decoder = SseDecoder()
    parts = [part for event in decoder.feed(answer.content) for part in fold.feed(event)]
    assert [part for part in parts if isinstance(part, Finish | StreamError)] == parts[-1:]
    return parts


def said(prompt: str = "Hello.") -> Call:
    return Call(prompt=Prompt((user(prompt),)), tools=(READ,))


def reading(parts: Sequence[StreamPart]) -> Reading:
    finish = parts[-1]
    assert isinstance(finish, Finish)
    usage = finish.usage
    return Reading(
        "".join(part.text for part in parts if isinstance(part, TextDelta)),
        [
            (part.id, part.name, part.input)
            for part in parts
            if isinstance(part, ToolCall) and not part.provider_executed
        ],
        (_sum(usage), usage.cache_read, usage.output, usage.reasoning, usage.total),
    )


def _sum(usage: Usage) -> int:
    return (usage.input or 0) + (usage.cache_read or 0) + (usage.cache_write or 0)


def official(fake: FakeResponses) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=KEY, base_url="http://fake/v1", max_retries=0, http_client=client(fake))


async def official_reading(fake: FakeResponses) -> Reading:
    async with official(fake) as client_:
        stream = await client_.responses.create(model="gpt-fake", input="Hello.", stream=True)
        final = None
        async for event in stream:
            if event.type in ("response.completed", "response.incomplete"):
                final = event.response
    assert final is not None
    assert final.usage is not None
    text = [
        content.text if content.type == "output_text" else content.refusal
        for item in final.output
        if item.type == "message"
        for content in item.content
    ]
    calls = [
        (item.call_id, item.name, item.arguments)
        for item in final.output
        if item.type == "function_call" and item.status == "completed"
    ]
    told = final.usage
    usage = (
        told.input_tokens,
        told.input_tokens_details.cached_tokens,
        told.output_tokens,
        told.output_tokens_details.reasoning_tokens,
        told.total_tokens,
    )
    return Reading("".join(text), calls, usage)


def committed(parts: Sequence[StreamPart]) -> PromptMessage:
    """The assistant message a stored answer becomes: in order of the ends, as the loop and `chat.prompt` do it."""
    texts: dict[str, str] = {}
    content: list[PromptPart] = []
    for part in parts:
        match part:
            case TextDelta() | ReasoningDelta():
                texts[part.id] = texts.get(part.id, "") + part.text
            case TextEnd() if texts.get(part.id, "").strip():
                content.append(PromptText(texts[part.id], part.meta))
            case ReasoningEnd():
                text = texts.get(part.id, "")
                if text or (part.meta and part.meta.get("encrypted_content")):
                    content.append(PromptReasoning(text, part.meta))
            case ToolCall():
                content.append(PromptCall(part.id, part.name, Raw(part.input), part.provider_executed, part.meta))
            case ToolResult():
                found = PromptResult(part.id, part.name, "", provider_executed=True, meta=part.meta)
                content.append(found)
    return PromptMessage(role=Role.ASSISTANT, parts=tuple(content))


def continued(first: Call, message: PromptMessage, **fields: Any) -> Call:
    """The call after an answer: its calls are answered, and the user goes on."""
    results = tuple(
        tool(PromptResult(part.id, part.name, "done"))
        for part in message.parts
        if isinstance(part, PromptCall) and not part.provider_executed
    )
    rest = (message,) if message.parts else ()
    return Call(prompt=Prompt((*first.prompt.messages, *rest, *results, user("Go on."))), tools=(READ,), **fields)


def fault_of(parts: Sequence[StreamPart]) -> ProviderError:
    (part,) = parts
    assert isinstance(part, StreamError)
    return part.error


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
        fake.answer(say("Hel"), ending=FAILURES["error"].ending)

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


# Round trip: an answer, stored and sent back, is accepted


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
    assert sent[1] == fake.issued[sent[1]["id"]].item
    assert sent[2]["phase"] == "commentary"


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
            parts=st.lists(st.text(max_size=12), min_size=1, max_size=2).map(tuple),
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


# What the fake refuses, and how the refusal is understood


async def refused(fake: FakeResponses, *items: dict[str, Any], **fields: Any) -> ProviderError:
    body = {"model": "gpt-fake", "stream": True, "input": list(items), **fields}
    async with client(fake) as http:
        answer = await http.post("/responses", json=body)
    assert answer.status_code == 400, answer.text
    return errors.from_response("OpenAI", 400, headers=answer.headers, body=answer.content)


def replayed(fake: FakeResponses) -> list[dict[str, Any]]:
    """Everything the fake has issued, as it wants it back."""
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
