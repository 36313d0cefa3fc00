"""The tools of a step, and the interface of toolboxes, which give the worker these tools.

`toolbox.py` implements the interface for servers. This module also reads the dynamic tools of a chat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Raw

from rookery.domain.chat.messages import NewMessage, Role, Visibility
from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.chat.parts import Text, WorkspaceContext
from rookery.domain.chat.permission_mode import PermissionMode
from rookery.domain.chat.system_blocks import Mode, Skill
from rookery.loop.tool import KeepResult, Services, Tool, ToolSet, ToolSource, ToolSpec, keep_no_result
from rookery.store.chats.step_reads import Step
from rookery.store.workspaces.context import ContextResource
from rookery.telemetry.log import get_logger
from rookery.tools.registry import Column

log = get_logger("tools.step_tools")


# The arguments are the name of the tool, the arguments of the call, and its replay token.
NeedsUser: TypeAlias = Callable[[str, Raw, UUID], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTools:
    """The tools of a step, and the texts about them for the prompt."""

    tools: ToolSet
    services: Services = field(default_factory=Services)
    subagent_instruction: str = ""
    workspace_context: str = ""
    skills: Sequence[Skill] = ()
    has_advisor: bool = False
    plan_path: str | None = None
    # Shown to the user before the step: the captured context that the step uses. None if it is unchanged.
    trace: WorkspaceContext | None = None
    # Shown to the user together with the context: the resources that cannot be used.
    trace_problems: str = ""
    # Runs in the background after the turn, if this step ends the turn. Its errors are logged.
    on_turn_end: Callable[[], Awaitable[None]] | None = None
    # Stores results that are too large for the prompt in files.
    keep_result: KeepResult = keep_no_result
    # Whether a call needs values from the user before it can run. The chat is parked until they are given.
    needs_user: NeedsUser | None = None
    # Shown to the user once per turn, before the answer of the step.
    notices: Sequence[str] = ()

    def opening(self) -> tuple[NewMessage, ...]:
        """Return the messages for the user that come before the step."""
        if self.trace is None:
            return ()
        problems = (Text(self.trace_problems),) if self.trace_problems else ()
        return (NewMessage(role=Role.SYSTEM, visibility=Visibility.USER, content=(self.trace, *problems)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTools:
    """The tools that one family adds to a step, and the services that they look up.

    `external` are tools of servers, sorted by name; they follow the built-in ones. `notices` are shown to the user.
    """

    tools: Sequence[Tool] = ()
    external: Sequence[Tool] = ()
    notices: Sequence[str] = ()
    services: Sequence[object] = ()
    has_advisor: bool = False


@dataclass(frozen=True, slots=True)
class StepPrompt:
    """The prompt of a step, for tools that pass the conversation on.

    `write` builds a new prompt and does not change the caches of the chat. The prompt includes the answer of the step.
    Calls without a result get a synthetic result.
    """

    write: Callable[[], Awaitable[Prompt]]


class ToolFamily(Protocol):
    async def open(
        self, step: Step, *, mode: Mode, at: Column, resources: Sequence[ContextResource] = ()
    ) -> FamilyTools:
        """Return the tools of this family for a step; no tools if the chat cannot use them.

        `resources` are the captured context of the chat's workspace.
        """


class ToolsUnavailable(Exception):
    """Raised when a required tool is not available. The message is for the user."""


class Toolbox(Protocol):
    async def open(self, step: Step, *, mode: Mode, stack: AsyncExitStack) -> StepTools:
        """Open the tools of a step. The worker closes `stack` when the step is over, in the same task.

        Raise `ToolsUnavailable` if a required tool cannot be opened. Optional tools are left out.
        """


class PlainToolbox:
    """A toolbox with the same tools for every chat, and the dynamic tools of the chat."""

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
    if step.meta.plan_mode:
        return Mode.PLAN
    return Mode.READ_ONLY if step.meta.permission_mode == PermissionMode.READ_ONLY else Mode.NORMAL


def dynamic_tools(step: Step, *, mode: Mode) -> tuple[ToolSpec, ...]:
    """Return the dynamic tools of the chat; none in modes that restrict tools: their effects are unknown."""
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
