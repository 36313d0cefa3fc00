"""The workspace tools over a real agent in a separate process, run as a batch like in a worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import asyncpg
from msgspec import UNSET

from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId
from rookery.domain.content.skills import SkillFile
from rookery.loop import tool_batch
from rookery.loop.tool import Cancellation, CancelReason, Services, Tool, ToolSet
from rookery.loop.tool_batch import BatchSetup, PendingCall, UnfinishedTools
from rookery.loop.tool_results import CallResult
from rookery.runtime.clock import Clock, SystemClock
from rookery.tools import ask_user, attach_file, files, process, propose_plan, skills
from rookery.tools.registry import Column
from rookery.tools.spilled_results import ResultKeeper
from rookery.tools.step_workspace import StepContext
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentPools, ChatHeaders
from rookery.workspaces.agent_messages import Health
from rookery.workspaces.connection import ChatWorkspace, WorkspaceLocation
from tests.loop.loop_rig import Shown
from tests.scripted_tools import MemoryLedger
from tests.workspaces.agent import agent_rig as agents
from tests.workspaces.fake_agent import UnixPath

WORKSPACE = UUID(int=10)


@dataclass
class OneWorkspace:
    """A workspace directory with one row, in memory."""

    agent: agents.Rig
    pools: AgentPools
    binding: UUID | None = WORKSPACE
    status: str = "running"

    async def find_binding(self, chat_id: ChatId) -> UUID | None:
        return self.binding

    async def find(self, workspace_id: UUID) -> WorkspaceLocation | None:
        generation = int(self.agent.config["generation"])
        return WorkspaceLocation(
            id=WORKSPACE, name="otter", status=self.status, generation=generation, agent_state="ready"
        )

    def connect(self, location: WorkspaceLocation, chat: ChatHeaders) -> AgentConn:
        path = UnixPath(self.agent.socket)
        return AgentConn(self.pools.get(location.id, location.generation, token=agents.TOKEN, connector=path), chat)

    def release(self, location: WorkspaceLocation) -> None:
        self.pools.drop(location.id, location.generation)

    async def record_use(self, chat_id: ChatId, location: WorkspaceLocation, health: Health) -> None:
        pass


@dataclass
class Done:
    """One result, as the model reads it."""

    value: Any
    is_error: bool
    result: CallResult

    @property
    def error(self) -> str:
        assert self.is_error, self.value
        return str(self.value["error"])


@dataclass
class ToolsRig:
    agent: agents.Rig
    directory: OneWorkspace
    clock: Clock = field(default_factory=SystemClock)
    chat_id: ChatId = field(default_factory=lambda: ChatId(uuid4()))
    owner_id: UUID = field(default_factory=uuid4)
    column: Column = Column.ROOT
    pool: asyncpg.Pool | None = None
    skills: Sequence[SkillFile] = ()
    shown: Shown = field(default_factory=Shown)
    unfinished_tools: UnfinishedTools = field(default_factory=UnfinishedTools)
    cancellation: Cancellation = field(default_factory=Cancellation)
    workspaces: dict[UUID, ChatWorkspace] = field(default_factory=dict)
    extra: Sequence[Tool] = ()
    context_limit: int | None = None
    calls: int = 0

    @property
    def home(self) -> Path:
        return self.agent.home

    @property
    def plan_path(self) -> str:
        return f"{self.home}/.rookery/plans/PLAN-{self.chat_id}.md"

    def workspace(self) -> ChatWorkspace:
        if self.chat_id not in self.workspaces:
            self.workspaces[self.chat_id] = ChatWorkspace(self.chat_id, self.directory, clock=self.clock)
            self.workspaces[self.chat_id].bind(self.directory.binding)
        return self.workspaces[self.chat_id]

    def setup(self) -> BatchSetup:
        found: list[Tool] = [
            *files.tools(),
            *process.tools(),
            *attach_file.tools(),
            *ask_user.tools(),
            *propose_plan.tools(),
            skills.read_skill_tool(),
            skills.read_skill_file_tool(),
            *self.extra,
        ]
        turn = StepContext(
            chat_id=self.chat_id,
            owner_id=self.owner_id,
            column=self.column,
            workspace=self.workspace(),
            pool=self.pool,  # type: ignore[arg-type]  # tests that store files bring one
            skills=self.skills,
        )
        return BatchSetup(
            chat_id=self.chat_id,
            tools=ToolSet(found, active={tool.spec.name for tool in found}),
            publish=self.shown,
            clock=self.clock,
            ledger=MemoryLedger(),
            unfinished_tools=self.unfinished_tools,
            cancellation=self.cancellation,
            services=Services(turn),
            owner_id=self.owner_id,
            context_limit=self.context_limit,
            keep_result=ResultKeeper(self.workspace(), self.clock),
        )

    def call(self, tool: str, /, *, call_id: str = "", **args: Any) -> PendingCall:
        self.calls += 1
        part = parts.ToolCall(call_id or f"call_{self.calls}", tool, args=parts.json_raw(args))
        return PendingCall(1, part)

    async def run(self, tool: str, /, *, call_id: str = "", **args: Any) -> Done:
        (done,) = await self.run_all(self.call(tool, call_id=call_id, **args))
        return done

    async def run_all(self, *calls: PendingCall) -> list[Done]:
        found = await tool_batch.execute_batch(calls, self.setup())
        return [Done(value_of(each), each.is_error, each) for each in found]

    def start(self, tool: str, /, *, call_id: str = "", **args: Any) -> asyncio.Task[tuple[CallResult, ...]]:
        return asyncio.create_task(tool_batch.execute_batch([self.call(tool, call_id=call_id, **args)], self.setup()))

    async def cancel(self, task: asyncio.Task[tuple[CallResult, ...]], reason: CancelReason) -> None:
        self.cancellation.reason = reason
        task.cancel()
        await asyncio.wait({task})
        self.cancellation = Cancellation()


def value_of(result: CallResult) -> Any:
    assert result.result.result is not UNSET
    return parts.json_value(result.result.result)


@asynccontextmanager
async def open_hands(**fields: Any) -> AsyncIterator[ToolsRig]:
    config = fields.pop("config", {})
    async with agents.rig(config) as agent:
        await agent.start()
        pools = AgentPools(SystemClock())
        try:
            yield ToolsRig(agent, OneWorkspace(agent, pools), **fields)
        finally:
            await pools.close()
            # Running commands would outlive an agent that is killed.
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await agent.ask("POST", "/v1/shutdown", json={"grace_s": 0})
