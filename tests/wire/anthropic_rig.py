"""Calls the fake Messages server, reads its answers, and commits them as rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx2
import msgspec
from msgspec import Raw

from rookery.domain.chat import parts as content
from rookery.domain.chat import prompt as prompts_of
from rookery.domain.chat.messages import ChatId, Effort, Message, MessageId, Role, StepFigures, Visibility
from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.chat.prompt import ModelIdentity, PromptRow
from rookery.domain.content.attachments import FileRules
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.sse import SseDecoder
from rookery.llm.types import (
    Call,
    Capabilities,
    Finish,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    Thinking,
    ToolCall,
    ToolResult,
)
from rookery.llm.wire import Request
from rookery.testing.fake_anthropic import FakeAnthropic
from tests.wire.difficult_prompts import READ, user

KEY = "sk-ant-test"
LADDER = (Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.XHIGH, Effort.MAX)
BINDING = Capabilities(
    thinking=Thinking(adaptive=True, default_on=True, disabled=True), efforts=LADDER, binds_thinking=True
)
HELLO = Call(prompt=Prompt((user("Hello."),)), tools=(READ,))


def build(call: Call, caps: Capabilities = BINDING) -> Request:
    return AnthropicFormat("claude-test", caps).build(call)


def encoded(request: Request) -> bytes:
    return msgspec.json.encode(request.body)


@dataclass
class Reading:
    """The result of reading an answer with one client."""

    text: str = ""
    thinking: list[tuple[str, str]] = field(default_factory=list)
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    usage: tuple[int | None, ...] = ()


async def ask(server: FakeAnthropic, request: Request) -> list[StreamPart]:
    """Read an answer with our own code, including the bytes of the stream."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(server), base_url="http://fake") as client:
        headers = {**request.headers, "x-api-key": KEY, "content-type": "application/json"}
        response = await client.post(request.path, content=encoded(request), headers=headers)
    if response.status_code != 200:
        raise AssertionError(response.text)
    fold = AnthropicFormat("m", BINDING).fold(HELLO)
    fold.start(response.headers["request-id"])
    parts = [part for event in SseDecoder().feed(response.content) for part in fold.feed(event)]
    return parts if isinstance(parts[-1], Finish | StreamError) else [*parts, *fold.end()]


def read(parts: Iterable[StreamPart]) -> Reading:
    reading = Reading()
    thought = ""
    for part in parts:
        match part:
            case TextDelta(text=text):
                reading.text += text
            case ReasoningStart():
                thought = ""
            case ReasoningDelta(text=text):
                thought += text
            case ReasoningEnd(meta=meta):
                reading.thinking.append((thought, (meta or {}).get("signature") or (meta or {})["redacted_data"]))
            case ToolCall(id=call_id, name=name, input=given):
                reading.calls.append((call_id, name, json.loads(given)))
            case Finish(usage=usage):
                reading.usage = (usage.input, usage.output, usage.cache_read, usage.cache_write)
    return reading


PROVIDER = UUID(int=1)
CONFIG = UUID(int=2)
IDENTITY = ModelIdentity(provider_id=PROVIDER, model="claude-test", wire="anthropic", thinking_family="claude")


def committed(parts: Sequence[StreamPart]) -> tuple[content.Part, ...]:
    """Return the step in its stored form."""
    stored: list[content.Part] = []
    text = ""
    for part in parts:
        match part:
            case TextStart() | ReasoningStart():
                text = ""
            case TextDelta(text=more) | ReasoningDelta(text=more):
                text += more
            case TextEnd(meta=meta):
                stored.append(content.Text(text, provider_meta=meta))
            case ReasoningEnd(meta=meta):
                stored.append(content.Reasoning(text, provider_meta=meta))
            case ToolCall():
                args = content.json_text(part.input)
                stored.append(
                    content.ToolCall(
                        part.id, part.name, args, provider_executed=part.provider_executed, provider_meta=part.meta
                    )
                )
            case ToolResult():
                stored.append(
                    content.ToolResult(
                        part.id,
                        part.name,
                        part.output,
                        is_error=part.is_error,
                        provider_executed=True,
                        provider_meta=part.meta,
                    )
                )
    return tuple(stored)


def jsonb(text: str) -> str:
    """Return the JSON as PostgreSQL returns it: keys sorted by length and bytes, with spaces."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(value[key]) for key in sorted(value, key=lambda key: (len(key.encode()), key))}
        return [ordered(child) for child in value] if isinstance(value, list) else value

    return json.dumps(ordered(json.loads(text)), ensure_ascii=False)


@dataclass
class Chat:
    """The rows of one chat with one model, in their committed form."""

    rows: list[PromptRow] = field(default_factory=list)

    def add(self, role: Role, *parts: content.Part, **figures: Any) -> None:
        message = Message(
            id=MessageId(len(self.rows) + 1),
            chat_id=ChatId(UUID(int=3)),
            revision=1,
            role=role,
            visibility=Visibility.BOTH,
            compressed=False,
            deleted=False,
            content=jsonb(content.encode(parts)),
            content_version=content.CONTENT_VERSION,
            created_by=None,
            model_config_id=CONFIG,
            reasoning_effort=None,
            client_id=None,
            created_at=datetime(2026, 11, 15, tzinfo=UTC),
        )
        self.rows.append(PromptRow(message, StepFigures(**figures)))

    def step(self, parts: Sequence[StreamPart], request: Request) -> None:
        """Commit an answer to this request, and a result for each of its local calls."""
        self._commit(parts, request.prefix_fp)

    def commit(self, parts: Sequence[StreamPart]) -> None:
        """Commit an answer of the driver, which reports the prefix hash itself."""
        started = next(part for part in parts if isinstance(part, ResponseStarted))
        self._commit(parts, started.prefix_fp)

    def _commit(self, parts: Sequence[StreamPart], prefix_fp: bytes | None) -> None:
        stored = committed(parts)
        finish = parts[-1]
        assert isinstance(finish, Finish), finish
        self.add(Role.ASSISTANT, *stored, finish_reason=finish.reason.value, prefix_fp=prefix_fp)
        for part in stored:
            if isinstance(part, content.ToolCall) and not part.provider_executed:
                result = content.ToolResult(part.tool_call_id, part.tool_name, Raw(b'{"output":"done"}'))
                self.add(Role.TOOL, result)

    def request(self, overlay: str = "Be brief.", caps: Capabilities = BINDING) -> Request:
        return build(self.call(overlay), caps)

    def call(self, overlay: str = "Be brief.") -> Call:
        prompt = prompts_of.build_prompt(
            self.rows,
            target=IDENTITY,
            writers={CONFIG: IDENTITY},
            files={},
            rules=FileRules(accepts=lambda media_type: True),
            step_blocks=(overlay,),
        )
        return Call(prompt=prompt, tools=(READ,))


CITED = [("https://a.org", "A"), ("https://b.org", "B")]
