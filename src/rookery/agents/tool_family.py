"""The subagent tools of a step, for the toolbox."""

from __future__ import annotations

from collections.abc import Sequence

from rookery.agents import kinds, monitor, tools
from rookery.agents.family import AgentFamily, FamilyParts
from rookery.agents.kinds import BuiltinKinds, KindCatalog
from rookery.domain.chat.system_blocks import Mode
from rookery.store.chats.step_reads import Step
from rookery.store.workspaces.context import ContextResource
from rookery.tools import registry
from rookery.tools.registry import Column
from rookery.tools.step_tools import FamilyTools


class SubagentTools:
    """Offers the subagent tools to chats that can have subagents."""

    def __init__(self, parts: FamilyParts, *, catalog: KindCatalog | None = None) -> None:
        self._parts = parts
        self._kinds = catalog or BuiltinKinds()
        self._tools = tools.tools()

    async def open(
        self, step: Step, *, mode: Mode, at: Column, resources: Sequence[ContextResource] = ()
    ) -> FamilyTools:
        if at not in registry.ACTIVE["spawn_agent"]:
            return FamilyTools()
        settings = await monitor.read_settings(self._parts.directory)
        if not settings.enabled:
            return FamilyTools()
        available = await self._kinds.list_kinds(step.chat.owner_id, resources)
        family = AgentFamily(self._parts, step, mode=mode, available=available, settings=settings)
        spawn = tools.spawn_tool(kinds.listed(available.kinds))
        return FamilyTools(tools=(spawn, *self._tools), services=(family,))
