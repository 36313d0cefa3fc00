"""The subagent tools: their arguments, their descriptions, and the steps that get them.

`subagent_operations` implements the tools.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from rookery.agents import subagent_kinds, subagent_monitor
from rookery.agents.subagent_kinds import BuiltinKinds, KindCatalog
from rookery.agents.subagent_operations import AgentFamily, FamilyServices, SpawnOrder, WaitMode
from rookery.domain.chat.system_blocks import Mode
from rookery.loop.tool import Replay, Tool, ToolContext, ToolOutput
from rookery.store.chats.step_reads import Step
from rookery.store.workspaces.context import ContextResource
from rookery.tools import registry
from rookery.tools.registry import Column
from rookery.tools.step_tools import FamilyTools
from rookery.tools.step_workspace import Refused, make_tool

MAX_WAITED = 50
MAX_LISTED = 50


class SpawnAgent(msgspec.Struct):
    type: Annotated[str, Meta(description="The kind of subagent.")]
    prompt: Annotated[
        str,
        Meta(
            description="The whole task. The subagent sees nothing of this chat: give the goal, what is known, paths, "
            "limits, and what the report must contain."
        ),
    ]
    title: Annotated[str | None, Meta(description="A short title, for the list of subagents.")] = None
    model_config_id: Annotated[
        str | None, Meta(description="The id of a model, from list_subagent_models. Usually left out.")
    ] = None
    reasoning_effort: Annotated[str | None, Meta(description="none, minimal, low, medium, high, xhigh or max.")] = None
    max_minutes: Annotated[int | None, Meta(description="A time limit shorter than the default.")] = None
    budget_usd: Annotated[float | None, Meta(description="The most that the subagent may cost, in dollars.")] = None


class WaitAgent(msgspec.Struct):
    chat_id: Annotated[str | None, Meta(description="One subagent to wait for.")] = None
    chat_ids: Annotated[list[str] | None, Meta(description="Several subagents to wait for.")] = None
    mode: Annotated[
        WaitMode, Meta(description="With `chat_ids`: return when any subagent has ended, or when all have.")
    ] = WaitMode.ALL
    timeout_seconds: Annotated[
        int, Meta(description="The longest time to wait, at most 3600. The subagents continue after it.")
    ] = 300


class MessageAgent(msgspec.Struct):
    chat_id: Annotated[str, Meta(description="The subagent.")]
    message: Annotated[str, Meta(description="What the subagent should do next.")]
    interrupt: Annotated[bool, Meta(description="Stop the subagent's current work first.")] = False


class OneAgent(msgspec.Struct):
    chat_id: Annotated[str, Meta(description="The subagent.")]


class ListAgents(msgspec.Struct):
    limit: Annotated[int, Meta(description="1 to 50.")] = 10
    offset: int = 0


class ReadReport(msgspec.Struct):
    chat_id: Annotated[str, Meta(description="The subagent.")]
    offset: Annotated[int, Meta(description="The first byte to read: 0, or `next_offset` of the last page.")] = 0


class NoArguments(msgspec.Struct):
    pass


_SPAWN = (
    "Start a subagent: an agent with its own context that works on its own task while you continue. It shares the "
    "workspace of this chat. Returns its chat_id immediately; call wait_agent to get its report. Start independent "
    "subagents in one step, so that they work in parallel. Kinds:\n"
)


@functools.lru_cache(maxsize=64)
def spawn_tool(listed: str) -> Tool:
    """Return `spawn_agent` with this list of kinds. Most chats have the same list, so its schema is cached."""
    return make_tool("spawn_agent", _SPAWN + listed, arguments=SpawnAgent, handler=spawn_agent, replay=Replay.TOKEN)


def tools() -> tuple[Tool, ...]:
    """Return the subagent tools besides `spawn_agent`, for a chat that can have subagents."""
    return (
        make_tool(
            "wait_agent",
            "Wait until subagents have ended, and return their reports. A subagent that is still working after the "
            "timeout continues; wait for it again, or continue without it.",
            arguments=WaitAgent,
            handler=wait_agent,
            read_only=True,
        ),
        make_tool(
            "list_agents",
            "List the subagents of this chat with their status.",
            arguments=ListAgents,
            handler=list_agents,
            read_only=True,
        ),
        make_tool(
            "read_agent_report",
            "Read the complete report of a subagent, page by page, if wait_agent or a notice has cut it.",
            arguments=ReadReport,
            handler=read_agent_report,
            read_only=True,
        ),
        make_tool(
            "list_subagent_models",
            "List the models that a subagent can use. Only needed to choose a model other than the default.",
            arguments=NoArguments,
            handler=list_subagent_models,
            read_only=True,
        ),
        make_tool(
            "message_agent",
            "Send a message to a subagent. A subagent at rest resumes with it. A busy one reads it after its current "
            "turn; with `interrupt`, its turn is stopped and it reads the message next.",
            arguments=MessageAgent,
            handler=message_agent,
            replay=Replay.TOKEN,
        ),
        make_tool(
            "interrupt_agent",
            "Stop a subagent. Its partial answer is its report. message_agent can resume it.",
            arguments=OneAgent,
            handler=interrupt_agent,
        ),
    )


def _family(ctx: ToolContext) -> AgentFamily:
    return ctx.services.get(AgentFamily)


async def spawn_agent(ctx: ToolContext, given: SpawnAgent) -> ToolOutput:
    order = SpawnOrder(
        kind=given.type,
        prompt=given.prompt,
        title=given.title,
        model_config_id=given.model_config_id,
        reasoning_effort=given.reasoning_effort,
        max_minutes=given.max_minutes,
        budget_usd=given.budget_usd,
    )
    family = _family(ctx)
    return ToolOutput(await family.insist(lambda: family.spawn(ctx, order)))


async def wait_agent(ctx: ToolContext, given: WaitAgent) -> ToolOutput:
    wanted = [*([given.chat_id] if given.chat_id else []), *(given.chat_ids or [])]
    if not wanted:
        raise Refused("Name the subagents to wait for: `chat_id` for one, or `chat_ids`.")
    if len(wanted) > MAX_WAITED:
        raise Refused(f"Wait for at most {MAX_WAITED} subagents at once.")
    told = await _family(ctx).wait(ctx, wanted, mode=given.mode, seconds=given.timeout_seconds)
    return ToolOutput({"agents": told} if given.chat_ids is not None else told[0])


async def message_agent(ctx: ToolContext, given: MessageAgent) -> ToolOutput:
    family = _family(ctx)
    return ToolOutput(
        await family.insist(lambda: family.message(ctx, given.chat_id, given.message, interrupt=given.interrupt))
    )


async def interrupt_agent(ctx: ToolContext, given: OneAgent) -> ToolOutput:
    return ToolOutput(await _family(ctx).interrupt(given.chat_id))


async def list_agents(ctx: ToolContext, given: ListAgents) -> ToolOutput:
    if not 1 <= given.limit <= MAX_LISTED or given.offset < 0:
        raise Refused(f"`limit` is 1 to {MAX_LISTED}, and `offset` at least 0.")
    family = _family(ctx)
    return ToolOutput(await family.insist(lambda: family.list_agents(limit=given.limit, offset=given.offset)))


async def list_subagent_models(ctx: ToolContext, given: NoArguments) -> ToolOutput:
    family = _family(ctx)
    return ToolOutput(await family.insist(family.list_models))


async def read_agent_report(ctx: ToolContext, given: ReadReport) -> ToolOutput:
    family = _family(ctx)
    return ToolOutput(await family.insist(lambda: family.read_report(given.chat_id, given.offset)))


class SubagentTools:
    """Offers the subagent tools to chats that can have subagents."""

    def __init__(self, parts: FamilyServices, *, catalog: KindCatalog | None = None) -> None:
        self._parts = parts
        self._kinds = catalog or BuiltinKinds()
        self._tools = tools()

    async def open(
        self, step: Step, *, mode: Mode, at: Column, resources: Sequence[ContextResource] = ()
    ) -> FamilyTools:
        if at not in registry.ACTIVE["spawn_agent"]:
            return FamilyTools()
        settings = await subagent_monitor.read_settings(self._parts.directory)
        if not settings.enabled:
            return FamilyTools()
        available = await self._kinds.list_kinds(step.chat.owner_id, resources)
        family = AgentFamily(self._parts, step, mode=mode, available=available, settings=settings)
        spawn = spawn_tool(subagent_kinds.listed(available.kinds))
        return FamilyTools(tools=(spawn, *self._tools), services=(family,))
