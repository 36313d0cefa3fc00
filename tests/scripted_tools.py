"""Scripted tools for tests, simulations and benchmarks: working ones, and every kind of failing one.

They are not in `rookery.testing`, because they depend on types of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId
from rookery.loop.tool import EarlierRun, LedgerRun, LedgerState, Replay, ToolCall, ToolContext, ToolOutput, ToolSpec

Behaviour = Callable[[ToolContext, ToolCall], Awaitable[ToolOutput]]

ANYTHING: Mapping[str, Any] = {"type": "object", "properties": {}}


class ScriptedTool:
    """A tool made of a function. `runs` has the replay token of each run; the first run sets `started`."""

    def __init__(self, name: str, behaviour: Behaviour, **fields: Any) -> None:
        schema = fields.pop("input_schema", ANYTHING)
        self.spec = ToolSpec(name=name, description=f"The tool {name}.", input_schema=schema, **fields)
        self.runs: list[UUID] = []
        self.inputs: list[dict[str, Any]] = []
        self.started = asyncio.Event()
        self._behaviour = behaviour

    async def run(self, ctx: ToolContext, call: ToolCall) -> ToolOutput:
        self.runs.append(ctx.replay_token)
        self.inputs.append(parts.json_value(call.input))
        self.started.set()
        return await self._behaviour(ctx, call)


def echo(name: str = "echo", **fields: Any) -> ScriptedTool:
    """Return a tool that returns its arguments."""

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        return ToolOutput(parts.json_value(call.input))

    return ScriptedTool(name, behave, **fields)


def giving(output: ToolOutput, name: str = "give", **fields: Any) -> ScriptedTool:
    """Return a tool with this output."""

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        return output

    return ScriptedTool(name, behave, **fields)


def slow(seconds: float, name: str = "slow", **fields: Any) -> ScriptedTool:
    """Return a tool that sleeps, by the clock of its context."""

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        await ctx.clock.sleep(seconds, f"tool-{name}")
        return ToolOutput(f"{name} is done")

    return ScriptedTool(name, behave, **fields)


def hanging(name: str = "hang", **fields: Any) -> ScriptedTool:
    """Return a tool that never ends by itself."""

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    return ScriptedTool(name, behave, **fields)


def failing(error: BaseException, name: str = "fail", **fields: Any) -> ScriptedTool:
    """Return a tool that raises. A `CancelledError` imitates a library that was canceled from elsewhere."""

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        raise error

    return ScriptedTool(name, behave, **fields)


def huge(size: int, name: str = "huge", **fields: Any) -> ScriptedTool:
    """Return a tool with this many characters of output."""
    return giving(ToolOutput("x" * size), name, **fields)


def garbled(name: str = "garbled", **fields: Any) -> ScriptedTool:
    """Return a tool whose output is not UTF-8 and contains a zero byte."""
    return giving(ToolOutput(b"good \xff\xfe\x00 bad \xc3"), name, **fields)


def deaf(let_go: asyncio.Event, name: str = "deaf", **fields: Any) -> ScriptedTool:
    """Return a tool that ignores cancellation until the event is set."""

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return ToolOutput("at last")

    return ScriptedTool(name, behave, **fields)


def counting(name: str = "count", replay: Replay = Replay.LEDGER, **fields: Any) -> ScriptedTool:
    """Return a tool that returns how often it ran; a replay must not change this."""
    tool: ScriptedTool

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        times = len(set(tool.runs)) if replay is Replay.TOKEN else len(tool.runs)
        return ToolOutput({"times": times})

    tool = ScriptedTool(name, behave, replay=replay, **fields)
    return tool


class MemoryLedger:
    """A tool ledger in memory."""

    def __init__(self) -> None:
        self.finished: dict[UUID, str] = {}
        self.begun: set[UUID] = set()
        self.kept: dict[UUID, EarlierRun] = {}

    async def begin(self, token: UUID, *, chat_id: ChatId, message_id: int, call_id: str, tool_name: str) -> LedgerRun:
        if token in self.finished:
            return LedgerRun(LedgerState.FINISHED, self.finished[token])
        if token in self.begun:
            return LedgerRun(LedgerState.UNFINISHED, earlier=self.kept.get(token, EarlierRun()))
        self.begun.add(token)
        return LedgerRun(LedgerState.NEW)

    async def finish(self, token: UUID, content: str) -> None:
        self.finished[token] = content

    async def keep(self, token: UUID, state: msgspec.Struct, *, question: msgspec.Struct | None) -> None:
        self.kept[token] = EarlierRun(msgspec.json.encode(state).decode())
