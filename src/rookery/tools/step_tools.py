"""The tools of a step, and the toolbox interface that supplies them to the worker.

Each application brings a `Toolbox` with built-in tools, workspaces and MCP servers. Tools that the chat's own client
executes are available to every chat, and are read here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from rookery.domain.chat.messages import NewMessage, Role, Visibility
from rookery.domain.chat.parts import Text, WorkspaceContext
from rookery.domain.chat.system_blocks import Mode, Skill
from rookery.loop.tool import KeepResult, Services, Tool, ToolSet, ToolSource, ToolSpec, keep_nowhere
from rookery.store.chats.step_reads import Step
from rookery.telemetry.log import get_logger

log = get_logger("tools.step_tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTools:
    """The tools of a step, and what the prompt says about them."""

    tools: ToolSet
    services: Services = field(default_factory=Services)
    subagent_instruction: str = ""
    workspace_context: str = ""
    skills: Sequence[Skill] = ()
    has_advisor: bool = False
    plan_path: str | None = None
    # Shown to the user at the head of the step: which instructions apply from here on.
    trace: WorkspaceContext | None = None
    # Shown to the user as well: what of them cannot be used.
    trace_problems: str = ""
    # Runs in the background when this step ends the turn; its errors are logged.
    on_turn_end: Callable[[], Awaitable[None]] | None = None
    # Stores results that are too large for the model, for it to read.
    keep_result: KeepResult = keep_nowhere

    def opening(self) -> tuple[NewMessage, ...]:
        """Return the rows for the user at the head of the step."""
        if self.trace is None:
            return ()
        problems = (Text(self.trace_problems),) if self.trace_problems else ()
        return (NewMessage(role=Role.SYSTEM, visibility=Visibility.USER, content=(self.trace, *problems)),)


class ToolsUnavailable(Exception):
    """Raised when a required tool is not available. The text is a sentence for the user."""


class Toolbox(Protocol):
    async def open(self, step: Step, *, mode: Mode, stack: AsyncExitStack) -> StepTools:
        """Open the tools of a step. The stack closes what was opened, in the same task, when the step is over.

        Raises `ToolsUnavailable` for a required tool; optional tools are left out.
        """


class PlainToolbox:
    """The same tools for every chat, and those of its client."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._tools = tuple(tools)

    async def open(self, step: Step, *, mode: Mode, stack: AsyncExitStack) -> StepTools:
        declared = dynamic_tools(step, mode=mode)
        active = {tool.spec.name for tool in self._tools} | {spec.name for spec in declared}
        return StepTools(tools=ToolSet(self._tools, active=active, declared=declared))


class _Declared(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = {}


_decoder = msgspec.json.Decoder(tuple[_Declared, ...])


def mode_of(step: Step) -> Mode:
    if step.meta.mode == Mode.EXPLORE:
        return Mode.EXPLORE
    return Mode.PLAN if step.meta.plan_mode else Mode.NORMAL


def dynamic_tools(step: Step, *, mode: Mode) -> tuple[ToolSpec, ...]:
    """Return the tools that the chat's client executes. Not while planning or exploring: their effects are unknown."""
    stored = step.meta.dynamic_tools
    if stored is None or mode is not Mode.NORMAL:
        return ()
    try:
        found = _decoder.decode(stored)
    except msgspec.DecodeError as error:
        log.warning("dynamic_tools_unreadable", chat_id=step.chat.id, error=str(error))
        return ()
    return tuple(
        ToolSpec(
            name=each.name, description=each.description, input_schema=each.input_schema, source=ToolSource.DYNAMIC
        )
        for each in found
    )
