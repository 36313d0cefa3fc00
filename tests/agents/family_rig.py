"""A worker whose chats have subagent tools and no workspaces, with a scripted model for parents and children."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rookery.agents.advisor import AdvisorServices, AdvisorStats, AdvisorTools
from rookery.agents.subagent_kinds import KindCatalog
from rookery.agents.subagent_operations import FamilyServices
from rookery.agents.subagent_tools import SubagentTools
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.model_prompt import PromptResult, PromptText
from rookery.domain.chat.system_blocks import Mode
from rookery.llm.scripted import Say, Step
from rookery.llm.types import Call, Purpose
from rookery.loop.tool import Services, Tool, ToolSet, ToolSpec
from rookery.models.call_stats import CallStats
from rookery.store.authorized.actor_store import Store
from rookery.store.chats.step_reads import Step as LoadedStep
from rookery.tools import registry
from rookery.tools.step_tools import StepTools, ToolFamily, dynamic_tools
from tests.worker.worker_rig import AT_ONCE, ToolboxNeeds, WorkerRig, open_house

ChildScript = Callable[[Call], Sequence[Step]]


class FamilyToolbox:
    """The toolbox of chats without workspaces: tool families, and tools made for tests."""

    def __init__(self, families: Sequence[ToolFamily], tools: Sequence[Tool] = ()) -> None:
        self._families = families
        self._tools = tuple(tools)

    async def open(self, step: LoadedStep, *, mode: Mode, stack: AsyncExitStack) -> StepTools:
        at = registry.column(mode=mode, is_root=step.chat.is_root)
        added = [await family.open(step, mode=mode, at=at) for family in self._families]
        tools = [tool for each in added for tool in each.tools]
        declared = dynamic_tools(step, mode=mode) if step.chat.is_root else ()
        active = registry.active_names(tools, at) | {each.name for each in (*_specs(self._tools), *declared)}
        if step.meta.agent is not None and step.meta.agent.tools is not None:
            active &= step.meta.agent.tools
        return StepTools(
            tools=ToolSet([*tools, *self._tools], active=active, declared=declared),
            services=Services(*(service for each in added for service in each.services)),
            has_advisor=any(each.has_advisor for each in added),
        )


def _specs(tools: Sequence[Tool]) -> list[ToolSpec]:
    return [tool.spec for tool in tools]


@dataclass
class FamilyRig:
    """A deployment with subagents. The scripts of parent and child are chosen by who asks."""

    worker: WorkerRig
    advisor_stats: AdvisorStats
    call_stats: CallStats

    async def children(self, parent: ChatId) -> list[ChatId]:
        async with self.worker.database.api.acquire() as conn:
            records = await conn.fetch("SELECT id FROM chats WHERE parent_chat_id = $1 ORDER BY created_at, id", parent)
        return [ChatId(record[0]) for record in records]

    async def ends(self, parent: ChatId) -> list[tuple[str, str | None, bool]]:
        """The ends of the parent's children: outcome, who told it, and whether it woke the parent."""
        async with self.worker.database.api.acquire() as conn:
            records = await conn.fetch(
                "SELECT outcome, told_by, woke_parent FROM subagent_ends WHERE parent_chat_id = $1 ORDER BY id", parent
            )
        return [tuple(record) for record in records]

    async def sql(self, statement: str, *arguments: object) -> Any:
        return await self.worker.sql(statement, *arguments)


def is_child(call: Call) -> bool:
    return call.cache_key != call.chat_id


def texts(call: Call) -> str:
    """Return all texts in the prompt of a call, including results."""
    return "\n".join(
        part.text
        for message in call.prompt.messages
        for part in message.parts
        if isinstance(part, PromptText | PromptResult)
    )


@asynccontextmanager
async def open_family(
    database_url: str,
    *,
    parent: ChildScript,
    child: ChildScript = lambda call: (Say("The child is done."),),
    advice: ChildScript = lambda call: (Say("Do it."),),
    tools: Sequence[Tool] = (),
    kinds: KindCatalog | None = None,
    **options: Any,
) -> AsyncIterator[FamilyRig]:
    stats, calls = AdvisorStats(), CallStats()

    def make(needs: ToolboxNeeds) -> FamilyToolbox:
        store = Store(needs.pool, machine=needs.machine, publisher=needs.notifier, clock=needs.clock)
        parts = FamilyServices(
            pool=needs.pool, store=store, bus=needs.bus, directory=needs.directory, clock=needs.clock
        )
        advisor = AdvisorServices(
            pool=needs.pool,
            directory=needs.directory,
            connector=needs.connector,
            clock=needs.clock,
            random=lambda: 0.0,
            stats=stats,
            call_stats=calls,
            retry=AT_ONCE,
            loop=needs.loop,
            recordings=needs.recordings,
        )
        return FamilyToolbox([SubagentTools(parts, catalog=kinds), AdvisorTools(advisor)], tools)

    def play(call: Call) -> Sequence[Step]:
        if call.purpose is Purpose.ADVISOR:
            return advice(call)
        return child(call) if is_child(call) else parent(call)

    async with open_house(database_url, script=play, make_toolbox=make, **options) as worker:
        yield FamilyRig(worker, stats, calls)


def chat_id_of(result: Any) -> UUID:
    return UUID(result["chat_id"])
