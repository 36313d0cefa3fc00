"""Builders of requests for the tests of the Messages wire: models with certain capabilities, and sent requests."""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.domain.chat.messages import Effort
from rookery.domain.chat.model_prompt import Prompt
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.types import (
    Call,
    Capabilities,
    Thinking,
)
from rookery.llm.wire import Request
from tests.wire.difficult_prompts import user

Json = Any

LADDER = (Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.XHIGH, Effort.MAX)
ADAPTIVE = Capabilities(
    thinking=Thinking(adaptive=True, disabled=True),
    efforts=LADDER,
    forced_tool_choice=True,
    thinking_family="claude",
)
DEFAULT_ON = Capabilities(thinking=Thinking(adaptive=True, disabled=True, default_on=True), efforts=LADDER)
BETWEEN = Capabilities(thinking=Thinking(adaptive=True, between_tools=True, default_on=True), efforts=LADDER)
ALWAYS = Capabilities(thinking=Thinking(adaptive=True, always_on=True, default_on=True), efforts=LADDER)
NO_XHIGH = Capabilities(thinking=Thinking(adaptive=True), efforts=(Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.MAX))
UP_TO_HIGH = Capabilities(thinking=Thinking(adaptive=True), efforts=(Effort.LOW, Effort.MEDIUM, Effort.HIGH))
BUDGET = Capabilities(thinking=Thinking(budget=True), forced_tool_choice=True)
NO_THINKING = Capabilities(forced_tool_choice=True)
BINDING = Capabilities(thinking=DEFAULT_ON.thinking, efforts=LADDER, binds_thinking=True)

HELLO = Prompt((user("Hello."),))
THINKS = {"type": "adaptive", "display": "summarized"}


def built(
    prompt: Prompt | None = None, *, caps: Capabilities = ADAPTIVE, version: str | None = None, **fields: Any
) -> Request:
    return AnthropicFormat("claude-test", caps, version=version).build(Call(prompt=prompt or HELLO, **fields))


def sent(request: Request) -> Json:
    """Return the body as the provider decodes it."""
    return msgspec.json.decode(msgspec.json.encode(request.body))


def body(prompt: Prompt | None = None, **fields: Any) -> Json:
    return sent(built(prompt, **fields))


def unmarked(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: unmarked(child) for key, child in value.items() if key != "cache_control"}
    return [unmarked(child) for child in value] if isinstance(value, list) else value


def said(*messages: Any, **fields: Any) -> list[Json]:
    """Return the messages of the request for this prompt, without cache marks."""
    found: list[Json] = unmarked(body(Prompt(messages), **fields)["messages"])
    return found


def text(value: str) -> Json:
    return {"type": "text", "text": value}
