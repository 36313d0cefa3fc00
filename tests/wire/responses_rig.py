"""One call to the fake Responses server, made by the driver and by the official client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
import openai
from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm import errors
from rookery.llm.responses.wire import ResponsesFormat
from rookery.llm.sse import SseDecoder
from rookery.llm.types import (
    Call,
    Capabilities,
    Finish,
    ProviderError,
    ReasoningDelta,
    ReasoningEnd,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    ToolCall,
    ToolResult,
    Usage,
)
from rookery.testing.fake_responses import (
    FakeResponses,
    FunctionCall,
    Reasoning,
    WebSearch,
)
from tests.wire.difficult_prompts import READ, tool, user

KEY = "sk-test"
REASONS = Capabilities(reasoning_model=True, json_schema=True)

SEARCHED = WebSearch(query="rooks", sources=("https://example.org/rooks",))
THOUGHT = Reasoning(summaries=("I should look first.", "Then I answer."))
READ_A = FunctionCall(name="read_file", arguments='{"path": "a.txt"}')
READ_B = FunctionCall(name="read_file", arguments='{"path": "b \\u00e9.txt"}')


@dataclass
class Reading:
    """The result of reading an answer with one client."""

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
    """Make one call like the driver, without its repairs: request, bytes, events, parts."""
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
        return list(fold.read_document(answer.content))
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
    """Return the call after an answer: its calls have results, and the user continues."""
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
