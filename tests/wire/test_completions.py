"""The Chat Completions wire, compared with the official package.

The comparison covers our requests, the chunks of our fake server, and the results of both clients.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from openai.types.chat import ChatCompletionChunk
from pydantic import ValidationError

from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import Prompt, PromptCall, PromptMessage, PromptPart, PromptReasoning, PromptText
from rookery.llm import errors
from rookery.llm.completions.wire import CompletionsFormat, CompletionsOptions
from rookery.llm.sse import SseDecoder
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReasoningEnd,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    ToolCall,
)
from rookery.testing.fake_completions import (
    DONE,
    Answer,
    FakeCall,
    FakeCompletions,
    FakeUsage,
    Style,
    error_event,
    events,
    find_problem,
)
from rookery.testing.fake_server import Scenario, failure
from tests.wire.difficult_prompts import READ, assistant, call, calls, image, result, tool, user
from tests.wire.official_types import check_completions

Json = Any

KEY = "sk-test"
PLAIN = Capabilities(media_types=("image/*", "application/pdf"), json_schema=True)
REASONS = Capabilities(reasoning_model=True, sampling=False, efforts=tuple(Effort), media_types=("image/*",))
EVERY_OPTION = CompletionsOptions(
    store=True,
    text_verbosity="low",
    parallel_tool_calls=False,
    service_tier="flex",
    prompt_cache_key="key",
    metadata={"team": "birds"},
    user="someone",
    logit_bias={"50256": -100},
    top_logprobs=2,
    prediction={"type": "content", "content": "Hello."},
    seed=7,
    strict_json_schema=True,
    max_tokens_field="max_tokens",
    replay_reasoning="always",
)
ALWAYS = CompletionsOptions(replay_reasoning="always")

READ_A = FakeCall("read_file", '{"path": "a.txt"}')
READ_B = FakeCall("read_file", '{"path": "b \\u00e9.txt"}')
SCENARIOS: dict[str, Answer] = {
    "text": Answer(text="Hello, world. \U0001f426"),
    "reasoning": Answer(reasoning="Let me see.", text="Hi.", usage=FakeUsage(cached=60, written=10, reasoning=5)),
    "parallel calls": Answer(calls=(READ_A, READ_B, FakeCall("list_chats", "{}"))),
    "text and a call": Answer(text="I look.", calls=(READ_A,)),
    "reasoning and a call": Answer(reasoning="First I look.", calls=(READ_A,)),
    "refusal": Answer(refusal="I will not do that."),
    "out of tokens": Answer(text="It was a dark and", finish_reason="length"),
    "filtered": Answer(text="It was", finish_reason="content_filter"),
    "citations": Answer(text="Birds.", citations=(("https://example.org/rooks", "Rooks"),)),
}
STYLES: dict[str, Style] = {
    "openai": Style(),
    "usage in the finish chunk": Style(usage="finish chunk"),
    "usage before the finish chunk": Style(usage="before finish"),
    "cumulative usage": Style(usage="cumulative"),
    "no usage": Style(usage="missing"),
    "late names": Style(names="late"),
    "ids on every piece": Style(ids="every"),
    "reasoning": Style(reasoning="reasoning"),
    "reasoning details": Style(reasoning="reasoning_details"),
    "end of stream": Style(end="eof"),
    "one character a chunk": Style(piece_chars=1),
}
# Fields that no official type allows, but that real servers send.
FOREIGN_STYLES: dict[str, Style] = {
    "no indexes": Style(indexes="missing"),
    "arguments as objects": Style(arguments="object"),
}


@dataclass
class Reading:
    """The result of reading an answer with one client."""

    text: str
    reasoning: str
    calls: list[tuple[str, str, str]]
    usage: tuple[int, int, int] | None
    reason: str | None


def client(fake: FakeCompletions) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=fake),
        base_url="http://fake/v1",
        headers={"Authorization": f"Bearer {KEY}"},
    )


async def ask(fake: FakeCompletions, asked: Call, *, provider_type: str = "openai_compat") -> list[StreamPart]:
    """Make one call like the driver, without its repairs: request, bytes, events, parts."""
    wire = CompletionsFormat("gpt-fake", PLAIN, provider="Fake", provider_type=provider_type)
    request = wire.build(asked)
    async with client(fake) as http:
        answer = await http.post(request.path, content=msgspec.json.encode(request.body))
    if answer.status_code != 200:
        error = errors.from_response("Fake", answer.status_code, headers=answer.headers, body=answer.content)
        return [StreamError(error)]
    fold = wire.fold(asked)
    fold.start(answer.headers["x-request-id"])
    if answer.headers["content-type"].startswith("application/json"):
        return list(fold.read_document(answer.content))
    parts: list[StreamPart] = []
    decoder = SseDecoder()
    for event in decoder.feed(answer.content):
        parts += fold.feed(event)
        if parts and isinstance(parts[-1], Finish | StreamError):
            return parts
    return [*parts, *fold.end()]


def said(text: str = "Hello.", **fields: Json) -> Call:
    return Call(prompt=Prompt((user(text),)), tools=(READ,), **fields)


def reading(parts: Sequence[StreamPart]) -> Reading:
    finish = parts[-1]
    assert isinstance(finish, Finish), finish
    used = finish.usage
    usage = None
    if used.total is not None:
        cached, written = used.cache_read or 0, used.cache_write or 0
        usage = ((used.input or 0) + cached + written, used.output or 0, cached)
    return Reading(
        "".join(part.text for part in parts if isinstance(part, TextDelta)),
        "".join(part.text for part in parts if isinstance(part, ReasoningDelta)),
        [(part.id, part.name, part.input) for part in parts if isinstance(part, ToolCall)],
        usage,
        str(finish.reason),
    )


class OfficialReading:
    """Adds up the chunks of the official client, as its documentation describes."""

    def __init__(self) -> None:
        self.reading = Reading("", "", [], None, None)
        self._calls: dict[int, list[str]] = {}

    def add(self, chunk: ChatCompletionChunk) -> None:
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            cached = (details.cached_tokens if details else 0) or 0
            self.reading.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens, cached)
        for choice in chunk.choices:
            delta = choice.delta
            extra = delta.model_extra or {}
            self.reading.text += (delta.content or "") + (delta.refusal or "")
            self.reading.reasoning += extra.get("reasoning_content") or extra.get("reasoning") or ""
            self.reading.reason = choice.finish_reason or self.reading.reason
            for made in delta.tool_calls or ():
                call_id, name, text = self._calls.setdefault(made.index, ["", "", ""])
                assert made.function is not None
                self._calls[made.index] = [
                    made.id or call_id,
                    made.function.name or name,
                    text + (made.function.arguments or ""),
                ]

    def result(self, answer: Answer) -> Reading:
        told = [(call_id, name, text) for _, (call_id, name, text) in sorted(self._calls.items())]
        # Here, a refusal is text with its own finish reason. The official type has only a field for it.
        reason = "content_filter" if answer.refusal else self.reading.reason
        return replace(self.reading, calls=told, reason=reason)


async def official_reading(fake: FakeCompletions, answer: Answer) -> Reading:
    adder = OfficialReading()
    async with openai.AsyncOpenAI(
        api_key=KEY, base_url="http://fake/v1", max_retries=0, http_client=client(fake)
    ) as official:
        stream = await official.chat.completions.create(
            model="gpt-fake",
            messages=[{"role": "user", "content": "Hello."}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            adder.add(chunk)
    return adder.result(answer)


def committed(parts: Sequence[StreamPart]) -> PromptMessage:
    """Return the assistant message of a stored answer. Its parts are ordered by the ends of their blocks."""
    texts: dict[str, str] = {}
    content: list[PromptPart] = []
    for part in parts:
        match part:
            case TextDelta() | ReasoningDelta():
                texts[part.id] = texts.get(part.id, "") + part.text
            case TextEnd() if texts.get(part.id, "").strip():
                content.append(PromptText(texts[part.id], part.meta))
            case ReasoningEnd():
                content.append(PromptReasoning(texts.get(part.id, ""), part.meta))
            case ToolCall():
                content.append(PromptCall(part.id, part.name, Raw(part.input), meta=part.meta))
    return PromptMessage(role=Role.ASSISTANT, parts=tuple(content))


def continued(first: Call, message: PromptMessage) -> Call:
    """Return the call after an answer, whose calls have results."""
    results = tuple(tool(result(part.id, name=part.name)) for part in message.parts if isinstance(part, PromptCall))
    rest = () if results else (user("Go on."),)
    prompt = Prompt((*first.prompt.messages, message, *results, *rest))
    return msgspec.structs.replace(first, prompt=prompt)


def without_extras(body: Json) -> Json:
    """Return the body without fields that only compatible servers accept: top_k, and replayed reasoning."""
    plain = msgspec.json.decode(msgspec.json.encode(body))
    plain.pop("top_k", None)
    for message in plain["messages"]:
        for name in ("reasoning_content", "reasoning", "reasoning_details"):
            message.pop(name, None)
        for made in message.get("tool_calls", ()):
            made.pop("extra_content", None)
    return plain


# Requests


@pytest.mark.parametrize("name", calls("completions"))
def test_request_is_one_of_the_official_type(name: str) -> None:
    plain = msgspec.structs.replace(calls("completions")[name], cache_key="chat", max_output_tokens=100)
    types = ("openai", "azure_openai", "openai_compat", "openrouter", "google")
    for provider_type, options, caps in itertools.product(types, (None, EVERY_OPTION), (PLAIN, REASONS)):
        asked = msgspec.structs.replace(plain, options=options)
        body = CompletionsFormat("gpt-fake", caps, provider_type=provider_type).build(asked).body

        check_completions(without_extras(body))
        assert find_problem(msgspec.json.decode(msgspec.json.encode(body))) is None, (provider_type, options, caps)


def test_request_to_openai_has_nothing_but_official_fields() -> None:
    for asked in calls("completions").values():
        plain = msgspec.structs.replace(asked, options=CompletionsOptions(replay_reasoning="never"))
        check_completions(CompletionsFormat("gpt-fake", PLAIN).build(plain).body)


@pytest.mark.parametrize("name", calls("completions"))
def test_second_build_has_the_same_bytes(name: str) -> None:
    wire = CompletionsFormat("gpt-fake", PLAIN)
    first, second = wire.build(calls("completions")[name]), wire.build(calls("completions")[name])

    assert msgspec.json.encode(first.body) == msgspec.json.encode(second.body)
    assert first.prefix_fp == second.prefix_fp


# Chunks


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("answer", SCENARIOS.values(), ids=SCENARIOS)
def test_every_chunk_of_the_fake_is_of_the_official_type(answer: Answer, style: Style) -> None:
    sent = events(answer, style, model="gpt-fake")
    chunks = [event for event in sent if event != DONE]

    assert len(chunks) == len(sent) - (style.end == "done")
    for event in chunks:
        assert isinstance(event, tuple)
        ChatCompletionChunk.model_validate(event[1], strict=True)


@pytest.mark.parametrize("style", FOREIGN_STYLES.values(), ids=FOREIGN_STYLES)
def test_foreign_dialects_break_the_official_type_in_tool_calls_only(style: Style) -> None:
    problems = []
    for event in events(SCENARIOS["parallel calls"], style, model="gpt-fake")[:-1]:
        assert isinstance(event, tuple)
        try:
            ChatCompletionChunk.model_validate(event[1])
        except ValidationError as error:
            problems += [problem["loc"] for problem in error.errors()]
    assert problems
    assert all("tool_calls" in place for place in problems)


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("answer", SCENARIOS.values(), ids=SCENARIOS)
async def test_official_client_and_fold_read_the_same(answer: Answer, style: Style) -> None:
    ours, theirs = (FakeCompletions(api_key=KEY, style=style) for _ in range(2))
    ours.enqueue(answer)
    theirs.enqueue(answer)

    assert reading(await ask(ours, said())) == await official_reading(theirs, answer)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_server_that_ignores_stream_is_read_the_same(name: str) -> None:
    whole, streamed = FakeCompletions(style=Style(streams=False)), FakeCompletions()
    whole.enqueue(SCENARIOS[name])
    streamed.enqueue(SCENARIOS[name])

    assert reading(await ask(whole, said())) == reading(await ask(streamed, said()))


async def test_official_client_raises_where_the_fold_ends_in_an_error() -> None:
    broken = Scenario(events=[*events(Answer(text="Hello"), Style(), model="m")[:2], error_event("Too many requests.")])
    ours, theirs = FakeCompletions(), FakeCompletions()
    ours.enqueue(broken)
    theirs.enqueue(broken)

    parts = await ask(ours, said())
    assert isinstance(parts[-1], StreamError)
    assert not any(isinstance(part, Finish | TextEnd) for part in parts)
    with pytest.raises(openai.APIError, match="Too many requests"):
        await official_reading(theirs, Answer())


async def test_usage_is_sent_only_to_those_who_ask() -> None:
    fake = FakeCompletions()
    fake.enqueue(Answer(text="Hi."), Answer(text="Hi."))

    with_usage = await ask(fake, said())
    without = await ask(fake, said(options=CompletionsOptions(include_usage=False)))

    assert reading(with_usage).usage == (100, 20, 0)
    assert reading(without).usage is None


# Refusals and images


async def test_refused_key_and_scripted_failure_are_classified() -> None:
    fake = FakeCompletions(api_key="sk-other")
    (refused,) = await ask(fake, said())
    assert isinstance(refused, StreamError)
    assert refused.error.kind is ErrorKind.AUTH

    fake = FakeCompletions()
    fake.enqueue(failure(429, "Slow down.", retry_after="2"))
    (limited,) = await ask(fake, said())
    assert isinstance(limited, StreamError)
    assert (limited.error.kind, limited.error.request_id) == (ErrorKind.RATE_LIMIT, "req_1")


async def test_fake_takes_parallel_results_with_images() -> None:
    fake = FakeCompletions()
    fake.enqueue(Answer(text="I see."))
    prompt = Prompt(
        (
            user("Look."),
            assistant(call("a"), call("b")),
            tool(result("a", media=image())),
            tool(result("b", media=image())),
        )
    )
    parts = await ask(fake, Call(prompt=prompt))
    assert isinstance(parts[-1], Finish)
    assert [message["role"] for message in fake.requests[0].body["messages"]] == [
        *("user", "assistant", "tool", "tool", "user")
    ]


# Thought signatures


async def test_signatures_come_back_and_lost_ones_are_stood_in_for() -> None:
    fake = FakeCompletions(signs=True)
    fake.enqueue(Answer(calls=(READ_A, READ_B)), Answer(text="Kept."), Answer(text="Stood in."))
    first = said()
    message = committed(await ask(fake, first, provider_type="google"))

    kept = await ask(fake, continued(first, message), provider_type="google")
    lost = await ask(
        fake, msgspec.structs.replace(continued(first, message), plain_history=True), provider_type="google"
    )
    assert (reading(kept).text, reading(lost).text) == ("Kept.", "Stood in.")


async def test_fake_that_signs_refuses_calls_without_a_signature() -> None:
    fake = FakeCompletions(signs=True)
    (refused,) = await ask(fake, continued(said(), assistant(call("a"))))
    assert isinstance(refused, StreamError)
    assert refused.error.kind is ErrorKind.CONFIG


# Round trip

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=5), json_values, max_size=3).map(lambda v: msgspec.json.encode(v).decode())
answers = st.builds(
    Answer,
    reasoning=st.text(max_size=30),
    text=st.text(max_size=30),
    calls=st.lists(st.builds(FakeCall, st.sampled_from(("read_file", "list_chats")), arguments), max_size=3),
).filter(lambda answer: bool(answer.text.strip() or answer.calls))
styles = st.builds(
    Style,
    usage=st.sampled_from(("own chunk", "finish chunk", "before finish", "cumulative", "choice", "groq", "missing")),
    reasoning=st.sampled_from(("reasoning_content", "reasoning", "reasoning_details")),
    indexes=st.sampled_from(("given", "missing")),
    ids=st.sampled_from(("first", "every")),
    names=st.sampled_from(("first", "every")),
    end=st.sampled_from(("done", "eof")),
    piece_chars=st.integers(1, 9),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(answers, styles)
def test_answer_survives_fold_commit_prompt_and_request(answer: Answer, style: Style) -> None:
    async def exchange() -> tuple[list[StreamPart], Json, Json]:
        fake = FakeCompletions(style=style)
        fake.enqueue(answer, Answer(text="Done."), Answer(text="Done."))
        first = said(options=ALWAYS)
        parts = await ask(fake, first)
        following = continued(first, committed(parts))
        for _ in range(2):
            assert isinstance((await ask(fake, following))[-1], Finish)
        return parts, fake.requests[1].raw, fake.requests[2].raw

    parts, second, again = asyncio.run(exchange())
    assert second == again
    sent = msgspec.json.decode(second)["messages"][1]
    assert (sent["content"] or "").strip() == answer.text.strip()
    assert [(made["function"]["name"], made["function"]["arguments"]) for made in sent.get("tool_calls", ())] == [
        (made.name, made.arguments) for made in answer.calls
    ]
    assert _echoed(sent, style) == answer.reasoning
    assert _finish(parts).reason is (FinishReason.TOOL_CALLS if answer.calls else FinishReason.STOP)


def _echoed(message: Json, style: Style) -> str:
    if style.reasoning == "reasoning_details":
        details: Iterable[Json] = message.get("reasoning_details", ())
        return "".join(detail["text"] for detail in details)
    return str(message.get(style.reasoning, ""))


def _finish(parts: Sequence[StreamPart]) -> Finish:
    finish = parts[-1]
    assert isinstance(finish, Finish)
    return finish
