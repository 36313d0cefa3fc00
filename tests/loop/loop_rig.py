"""A rig for the loop: models that stream a list of parts, and recorders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

from msgspec import UNSET

from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.domain.chat.parts import Part
from rookery.llm.types import (
    Call,
    Capabilities,
    Finish,
    FinishReason,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    Usage,
    Wire,
)
from rookery.loop import model_step, tool_batch
from rookery.loop.model_step import AssistantOutcome, StepSetup
from rookery.loop.tool import ToolSet
from rookery.loop.tool_batch import BatchSetup, PendingCall, UnfinishedTools
from rookery.loop.tool_results import CallResult
from rookery.runtime.clock import Clock
from rookery.testing import FakeClock
from tests.scripted_tools import MemoryLedger, ScriptedTool

PROVIDER_ID = UUID(int=7)
CONFIG_ID = UUID(int=8)
CHAT_ID = ChatId(UUID(int=9))
HELLO = Call(prompt=Prompt((PromptMessage(role=Role.USER, parts=(PromptText("Hello."),)),)))
USAGE = Usage(input=10, output=5, total=15, context_tokens=10)
DONE = Finish(FinishReason.STOP, USAGE)

Played = StreamPart | asyncio.Event | BaseException | Callable[[], None]


def said(text: str, block: str = "t1") -> tuple[StreamPart, ...]:
    return TextStart(block), TextDelta(block, text), TextEnd(block)


class PlayedModel:
    """Streams a list of parts. Events in it are waited for, errors are raised, and functions are called.

    A list of lists has one answer per call. `closed` is set when the consumer has closed a stream.
    """

    wire: Wire = "completions"
    provider_type = "openai_compat"
    provider_id = PROVIDER_ID
    model = "played-1"

    def __init__(self, *answers: Sequence[Played]) -> None:
        self.caps = Capabilities()
        self.calls: list[Call] = []
        self.closed = asyncio.Event()
        self._answers = list(answers)

    async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        self.calls.append(call)
        try:
            for each in self._answers[min(len(self.calls), len(self._answers)) - 1]:
                if isinstance(each, asyncio.Event):
                    await each.wait()
                elif isinstance(each, BaseException):
                    raise each
                elif callable(each):
                    each()
                else:
                    yield each
        finally:
            self.closed.set()


def ids() -> Callable[[], UUID]:
    numbers = count(1)
    return lambda: UUID(int=next(numbers))


@dataclass
class Shown:
    """Records the published live parts."""

    all: list[tuple[Role, Part]] = field(default_factory=list)

    def __call__(self, role: Role, part: Part) -> None:
        self.all.append((role, part))

    def of(self, role: Role) -> list[Part]:
        return [part for each, part in self.all if each is role]

    def results(self) -> list[parts.ToolResult]:
        """Return the complete results in the order of their arrival."""
        return [part for _, part in self.all if isinstance(part, parts.ToolResult) and part.result is not UNSET]


def step(clock: Clock, shown: Shown | None = None, **fields: Any) -> StepSetup:
    return StepSetup(provider_name="Played", publish=shown or Shown(), clock=clock, new_id=ids(), **fields)


async def generate(*played: Played, call: Call = HELLO, **fields: Any) -> AssistantOutcome:
    """Run one step of a model that streams these parts."""
    setup = step(fields.pop("clock", None) or FakeClock(), fields.pop("shown", None), **fields)
    return await model_step.generate_assistant(PlayedModel(played), call, setup)


# Batches


def call(name: str, args: str = "{}", call_id: str = "", *, message_id: int = 1) -> PendingCall:
    part = parts.ToolCall(call_id or f"call_{name}", name, args=parts.json_text(args))
    return PendingCall(message_id, part)


@dataclass
class BatchRig:
    """A batch of tools with its setup."""

    tools: Sequence[ScriptedTool]
    clock: FakeClock = field(default_factory=FakeClock)
    shown: Shown = field(default_factory=Shown)
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    unfinished_tools: UnfinishedTools = field(default_factory=UnfinishedTools)
    progress: list[float | None] = field(default_factory=list)

    def setup(self, **fields: Any) -> BatchSetup:
        names = {tool.spec.name for tool in self.tools}
        tools = fields.pop("toolset", None) or ToolSet(self.tools, active=names)
        return BatchSetup(
            chat_id=CHAT_ID,
            tools=tools,
            publish=fields.pop("publish", self.shown),
            clock=self.clock,
            ledger=fields.pop("ledger", self.ledger),
            unfinished_tools=self.unfinished_tools,
            new_id=ids(),
            on_progress=self.progress.append,
            **fields,
        )

    async def run(self, *calls: PendingCall, **fields: Any) -> tuple[CallResult, ...]:
        return await tool_batch.execute_batch(calls, self.setup(**fields))

    def start(self, *calls: PendingCall, **fields: Any) -> asyncio.Task[tuple[CallResult, ...]]:
        return asyncio.create_task(tool_batch.execute_batch(calls, self.setup(**fields)))


def value(result: CallResult) -> Any:
    assert result.result.result is not UNSET
    return parts.json_value(result.result.result)
