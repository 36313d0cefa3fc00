"""A worker whose chats use fake MCP servers on this machine, without workspaces."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from rookery.agents.subagent_operations import FamilyServices
from rookery.agents.subagent_tools import SubagentTools
from rookery.domain.chat.approvals import Answer, Decision
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.system_blocks import Mode
from rookery.llm.scripted import Step as ScriptStep
from rookery.loop.tool import Services, ToolSet
from rookery.mcp.server_access import McpAccess
from rookery.store import machine
from rookery.store.authorized.actor_store import Store
from rookery.store.chats.step_reads import Step
from rookery.store.db.hints import ConfigHint
from rookery.tools import registry
from rookery.tools.step_mcp_servers import McpFamily, McpServices
from rookery.tools.step_tools import StepTools, ToolFamily
from tests.eventually import until
from tests.worker.worker_rig import ToolboxNeeds, WorkerRig, in_turn, open_house

INSERT = """
    INSERT INTO mcp_servers (slug, url, availability, allow_in_plan_mode, model_intent, forward_identity,
                             tool_allow_list, tool_deny_list, enabled, owner_id, call_timeout_seconds, allowed_users,
                             auth_type)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
    RETURNING id
"""


class ServersToolbox:
    """The toolbox of chats without workspaces: the tools of servers, and those of other families."""

    def __init__(self, families: Sequence[ToolFamily]) -> None:
        self._families = families

    async def open(self, step: Step, *, mode: Mode, stack: AsyncExitStack) -> StepTools:
        at = registry.column(mode=mode, is_root=step.chat.is_root)
        added = [await family.open(step, mode=mode, at=at) for family in self._families]
        builtin = [tool for each in added for tool in each.tools]
        external = [tool for each in added for tool in each.external]
        active = registry.active_names(builtin, at) | {tool.spec.name for tool in external}
        return StepTools(
            tools=ToolSet([*builtin, *external], active=active),
            services=Services(*(service for each in added for service in each.services)),
            notices=[notice for each in added for notice in each.notices],
        )


@dataclass
class McpHouse:
    """A deployment whose chats use MCP servers."""

    worker: WorkerRig
    families: list[McpFamily] = field(default_factory=list)

    async def add_server(self, slug: str, url: str, **fields: Any) -> UUID:
        """Add a server as an administrator does, and announce it."""
        values: dict[str, Any] = {
            "availability": "default_off",
            "allow_in_plan_mode": False,
            "model_intent": False,
            "forward_identity": False,
            "tool_allow_list": [],
            "tool_deny_list": [],
            "enabled": True,
            "owner_id": None,
            "call_timeout_seconds": 60,
            "allowed_users": [],
            "auth_type": "none",
            **fields,
        }
        server_id: UUID = await self.worker.sql(INSERT, slug, url, *values.values())
        self.announce(server_id)
        return server_id

    def announce(self, server_id: UUID) -> None:
        for family in self.families:
            family._on_hint(ConfigHint(kind="mcp", id=str(server_id)))

    async def until_asked(self, chat_id: ChatId) -> None:
        async def parked() -> bool:
            chat = await self.worker.chat(chat_id)
            return chat.is_parked and chat.worker_id is None

        await until(parked)

    async def answer(self, chat_id: ChatId, content: dict[str, Any] | None, *, decision: str = "approve") -> None:
        """Answer the only open question of the chat. Every form gets the same content."""

        async def run(tx: machine.Tx) -> None:
            (call,) = await machine.open_calls.asked_calls(tx)
            stored = await tx.conn.fetchval(
                "SELECT jsonb_path_query_array(question, '$.questions[*].id')::text FROM chat_tool_runs"
                " WHERE chat_id = $1 AND question IS NOT NULL",
                chat_id,
            )
            ids = [] if stored is None else json.loads(stored)
            made = Answer(
                tool_call_id=call.tool_call_id,
                decision=Decision(decision),
                responses=None if content is None else {each: content for each in ids},
            )
            await machine.answer_approvals(tx, [made], answered_by=self.worker.user)

        await self.worker.machine.chat(chat_id).update(run)


@asynccontextmanager
async def open_mcp_house(database_url: str, *scripts: Sequence[ScriptStep], **options: Any) -> AsyncIterator[McpHouse]:
    families: list[McpFamily] = []

    def make_toolbox(needs: ToolboxNeeds) -> ServersToolbox:
        async def setting() -> object:
            return {"allow_private_addresses": True}

        access = McpAccess(needs.pool, ring=None, clock=needs.clock, publisher=needs.notifier, setting=setting)
        family = McpFamily(McpServices(pool=needs.pool, access=access, clock=needs.clock, bus=needs.bus))
        family.follow()
        families.append(family)
        store = Store(needs.pool, machine=needs.machine, publisher=needs.notifier, clock=needs.clock)
        subagents = SubagentTools(
            FamilyServices(
                pool=needs.pool,
                store=store,
                bus=needs.bus,
                directory=needs.directory,
                clock=needs.clock,
                external_servers=family.visible_ids,
            )
        )
        return ServersToolbox((subagents, family))

    async with open_house(database_url, script=in_turn(*scripts), make_toolbox=make_toolbox, **options) as worker:
        house = McpHouse(worker, families)
        try:
            yield house
        finally:
            for family in families:
                await family.close()
