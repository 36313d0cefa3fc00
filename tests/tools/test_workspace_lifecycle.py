"""The tools that create, start and stop a chat's workspace, and the context that the chat captures from it.

The tests use the database and the real services, with a driver whose sandboxes are sockets in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rookery.domain.chat import parts
from rookery.domain.chat.mcp_consent import Entry, McpDecision
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.system_blocks import Mode
from rookery.loop import tool_batch
from rookery.loop.tool_batch import BatchSetup, PendingCall, UnfinishedTools
from rookery.runtime.clock import SystemClock
from rookery.store import machine
from rookery.store.chats import step_reads
from rookery.store.chats.step_reads import AgentTerms, HistoryCache, Step
from rookery.store.settings import settings
from rookery.store.workspaces import context, mcp_consents
from rookery.tools.registry import Column
from rookery.tools.step_tools import StepTools
from rookery.tools.toolbox import ToolboxServices, WorkspaceToolbox
from rookery.workspaces.context import OLD_AGENT
from rookery.workspaces.drivers.driver_interface import DriverError, WorkspaceSpec
from rookery.workspaces.runtime import WorkspaceRuntime
from tests.eventually import until
from tests.loop.loop_rig import Shown
from tests.scripted_tools import MemoryLedger
from tests.store.machine.machine_rig import Rig, assistant, make_rig
from tests.store.machine.test_compaction import SUMMARY
from tests.tools.test_registry import COLUMNS, cells
from tests.tools.tools_rig import Done, value_of
from tests.workspaces.fake_driver import FakeDriver
from tests.workspaces.workspaces_rig import WorkspacesRig, open_yard

# Rows of the table whose tools come with subagents and the advisor.
NOT_MADE_YET = frozenset(
    {
        *("spawn_agent", "wait_agent", "list_agents", "read_agent_report", "list_subagent_models"),
        *("message_agent", "interrupt_agent", "advisor"),
    }
)


@dataclass
class Life:
    """One chat. Its steps are opened as a worker opens them."""

    yard: WorkspacesRig
    rig: Rig
    replica: WorkspaceRuntime
    driver: FakeDriver
    toolbox: WorkspaceToolbox
    chat_id: ChatId
    wishes: dict[str, object]
    stack: AsyncExitStack
    calls: int = 0
    cache: HistoryCache = field(default_factory=HistoryCache)

    async def step(self) -> Step:
        chat = await self.rig.load(self.chat_id)
        fence = await self.rig.acquire(self.chat_id) if chat.runner_id is None else self.rig.fence(chat)
        return await step_reads.load_step(self.rig.machine, self.chat_id, fence=fence, cache=self.cache)

    async def open(self) -> StepTools:
        async with AsyncExitStack() as stack:
            return await self.toolbox.open(await self.step(), mode=Mode.NORMAL, stack=stack)

    async def begin_turn(self) -> StepTools:
        """Open the first step of a new turn."""
        await self.rig.commit(self.chat_id, assistant("done"))
        await self.rig.run(self.chat_id, machine.finish_turn)
        await self.rig.send(self.chat_id, "go on")
        return await self.open()

    async def run(self, tool: str, **args: Any) -> Done:
        (done,) = await self.run_all((tool, args))
        return done

    async def run_all(self, *wanted: tuple[str, dict[str, Any]]) -> list[Done]:
        turn = await self.open()
        pending = []
        for tool, args in wanted:
            self.calls += 1
            pending.append(PendingCall(1, parts.ToolCall(f"call_{self.calls}", tool, args=parts.json_raw(args))))
        setup = BatchSetup(
            chat_id=self.chat_id,
            tools=turn.tools,
            publish=Shown(),
            clock=SystemClock(),
            ledger=MemoryLedger(),
            unfinished_tools=UnfinishedTools(),
            services=turn.services,
            owner_id=self.rig.user,
        )
        return [Done(value_of(each), each.is_error, each) for each in await tool_batch.execute_batch(pending, setup)]

    async def pinned(self) -> list[str | None]:
        found = await context.list_resources(self.yard.world.conn, self.chat_id)
        return [each.body for each in found]

    async def is_dirty(self) -> bool:
        return (await context.read_capture_state(self.yard.world.conn, self.chat_id)).dirty_since is not None

    async def bound(self) -> UUID | None:
        return (await context.read_capture_state(self.yard.world.conn, self.chat_id)).workspace_id


@pytest.fixture
async def life(database_url: str) -> AsyncIterator[Life]:
    async with AsyncExitStack() as stack:
        yard = await stack.enter_async_context(open_yard(database_url))
        rig = await stack.enter_async_context(make_rig(database_url))
        replica, driver = yard.replica()
        stack.push_async_callback(replica.close)
        await yard.run(replica)
        wishes: dict[str, object] = {}

        async def wish(user_id: UUID, key: str) -> object:
            return wishes.get(key)

        toolbox = WorkspaceToolbox(
            ToolboxServices(
                pool=yard.pool,
                store=yard.store,
                service=replica.service,
                directory=replica.directory,
                contexts=replica.contexts,
                watches=replica.watches,
                clock=SystemClock(),
                user_setting=wish,
            )
        )
        yield Life(yard, rig, replica, driver, toolbox, await rig.create(), wishes, stack)


# Workspaces


async def test_two_creations_at_once_make_one_workspace_and_a_second_needs_to_be_asked_for(life: Life) -> None:
    create = ("create_workspace", {"template_id": "plain"})

    made = await life.run_all(create, create)
    again = await life.run("create_workspace", template_id="plain")
    other = await life.run("create_workspace", template_id="plain", new=True)

    assert sorted((each.value["created"], each.value.get("status")) for each in made) == [
        (False, "already_exists"),
        (True, None),
    ]
    assert (again.value["created"], again.value["status"]) == (False, "already_exists")
    assert other.value["created"]
    assert str(await life.bound()) == other.value["workspace_id"]


async def test_failed_first_start_leaves_the_binding_and_the_next_call_makes_another(life: Life) -> None:
    life.driver.fails = DriverError("sandbox_failed", "The sandbox did not come up.")
    failed = await life.run("create_workspace", template_id="plain")
    first = await life.bound()
    life.driver.fails = None
    made = await life.run("create_workspace", template_id="plain")

    assert "did not come up" in failed.error
    assert failed.value["operation_id"]
    assert first is not None
    assert made.value["created"]
    assert str(await life.bound()) == made.value["workspace_id"] != str(first)


async def test_workspace_that_once_ran_is_never_abandoned(life: Life) -> None:
    made = await life.run("create_workspace", template_id="plain")
    stopped = await life.run("stop_workspace")
    told = await life.run("create_workspace", template_id="plain")
    again = await life.run("stop_workspace")
    started = await life.run("start_workspace")
    idle = await life.run("start_workspace")

    assert stopped.value["stopped"]
    assert (told.value["created"], told.value["status"]) == (False, "stopped")
    assert "start_workspace" in told.value["message"]
    assert told.value["workspace_id"] == made.value["workspace_id"]
    assert again.value["no_operation"] is True
    assert started.value["started"]
    assert "no_operation" not in started.value
    assert idle.value["no_operation"] is True


@pytest.mark.parametrize("tool", ["create_workspace", "start_workspace"])
async def test_workspace_that_is_being_deleted_is_waited_for_and_given_up(
    life: Life, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await life.run("create_workspace", template_id="plain")
    service, delete = life.replica.service, life.driver.delete
    wait, is_waited_for = service.wait_operation, asyncio.Event()

    async def held(ws: WorkspaceSpec) -> None:
        await is_waited_for.wait()
        await delete(ws)

    async def waited(*args: Any, **fields: Any) -> Any:
        is_waited_for.set()
        return await wait(*args, **fields)

    monkeypatch.setattr(life.driver, "delete", held)
    monkeypatch.setattr(service, "wait_operation", waited)
    await service.request_delete(life.yard.as_user(life.rig.user), UUID(made.value["workspace_id"]), force=True)
    done = await life.run(tool, **({"template_id": "plain"} if tool == "create_workspace" else {}))

    if tool == "create_workspace":
        assert done.value["created"]
        assert done.value["workspace_id"] != made.value["workspace_id"]
    else:
        assert "was deleted" in done.error
        assert "create_workspace" in done.error


async def test_tools_say_to_start_a_workspace_that_was_stopped(life: Life) -> None:
    await life.run("create_workspace", template_id="plain")
    await life.run("stop_workspace")

    refused = await life.run("read_file", path="/home/agent/project/a")

    assert "start_workspace" in refused.error
    assert "Files are kept" in refused.error


async def test_disk_that_is_nearly_full_is_told_with_the_start_and_with_the_next_result(life: Life) -> None:
    life.driver.health |= {"disk_used": 95 * 1024 * 1024, "disk_limit": 100 * 1024 * 1024}

    made = await life.run("create_workspace", template_id="plain")
    first, second = [await life.run("write_file", path="/home/agent/x", content="x") for _ in range(2)]

    warning = "The disk of the workspace is nearly full: 95% of 100 MiB are used. Delete what is not needed."
    assert (made.value["warning"], first.value["warning"]) == (warning, warning)
    assert "warning" not in second.value


async def test_questions_and_plans_end_a_planning_turn(life: Life) -> None:
    async with AsyncExitStack() as stack:
        planning = await life.toolbox.open(await life.step(), mode=Mode.PLAN, stack=stack)

    assert planning.tools.stop_after_names & planning.tools.active == {"ask_user_question", "propose_plan"}
    assert not (await life.open()).tools.stop_after_names & (await life.open()).tools.active


@pytest.mark.parametrize(("limit", "advice"), [("max_per_user", "Delete one"), ("max_running_per_user", "Stop one")])
async def test_quota_is_told_with_numbers_and_what_to_do(life: Life, limit: str, advice: str) -> None:
    await settings.write_setting(life.yard.world.conn, "workspaces", value={limit: 1})
    await life.run("create_workspace", template_id="plain")

    refused = await life.run("create_workspace", template_id="plain", new=True)

    assert refused.is_error
    assert set(refused.value) == {"error", "error_code", "title", "message", "quota"}
    assert refused.value["error_code"] == "quota_exceeded"
    assert refused.value["quota"] == {"kind": limit, "used": 1, "limit": 1}
    assert advice in refused.value["message"]
    assert "administrator" in refused.value["message"]
    assert await life.yard.world.conn.fetchval("SELECT count(*) FROM workspaces") == 1
    assert await life.yard.world.conn.fetchval("SELECT count(*) FROM workspace_operations") == 1


# Context


async def test_change_is_heard_while_the_chat_runs_and_the_prompt_waits_for_a_refresh(life: Life) -> None:
    life.driver.tell("Be kind.")
    await life.run("create_workspace", template_id="plain")

    async with AsyncExitStack() as stack:
        turn = await life.toolbox.open(await life.step(), mode=Mode.NORMAL, stack=stack)
        assert "Be kind." in turn.workspace_context
        await life.driver.polled.wait()
        life.driver.tell("Be quick.")
        await until(life.is_dirty)

    assert "Be kind." in (await life.begin_turn()).workspace_context
    assert await life.pinned() == ["Be kind."]


async def test_summary_of_a_chat_loses_nothing_of_its_instructions(life: Life) -> None:
    life.driver.tell("Be kind.")
    await life.run("create_workspace", template_id="plain")
    before = await life.begin_turn()

    await life.rig.commit(life.chat_id, assistant("long"), *SUMMARY)
    after = await life.open()

    assert "Be kind." in before.workspace_context
    assert after.workspace_context == before.workspace_context


async def test_user_who_wants_it_gets_changes_with_the_next_turn_and_not_before(life: Life) -> None:
    life.wishes["context_auto_refresh"] = True
    life.driver.tell("Be kind.")
    await life.run("create_workspace", template_id="plain")
    first = await life.begin_turn()

    # No watch was running. The refresh at the beginning of the turn finds the change.
    await life.replica.watches.close()
    life.driver.tell("Be quick.")
    life.replica.contexts.forget()
    second = await life.begin_turn()

    await life.replica.watches.close()
    life.driver.tell("Be brave.")
    life.replica.contexts.forget()
    await life.rig.commit(life.chat_id, assistant("thinking"))
    middle = await life.open()
    third = await life.begin_turn()

    assert "Be kind." in first.workspace_context
    assert "Be quick." in second.workspace_context
    assert second.trace is not None
    assert "Be quick." in middle.workspace_context
    assert "Be brave." in third.workspace_context
    assert not await life.is_dirty()


async def test_chats_of_every_kind_get_the_tools_of_their_column_and_no_other(life: Life) -> None:
    search = {"name": "search", "description": "Look it up.", "inputSchema": {"type": "object"}}
    entry = {"name": "docs", "folder": "/p", "command": "npx", "args": ["docs"], "env": []}
    server = {"kind": "mcp_server", "source": "docs", "tools": [search], "entry": entry}
    skill = {"kind": "skill", "source": "/p/.agents/skills/ship/SKILL.md", "body": "---\nname: ship\n---\nShip it.\n"}
    # Agents of older versions do not report the entry of a server with an address.
    far = {"kind": "mcp_server", "source": "far", "status": "unreadable", "error": "It has a `url`."}
    life.driver.context = {"version": 1, "hash": "h1", "resources": [skill, server, far]}
    await life.run("create_workspace", template_id="plain")
    workspace = await life.bound()
    assert workspace is not None
    await mcp_consents.write(
        life.yard.world.conn, workspace, msgspec.convert(entry, Entry), McpDecision.AGREE, by=life.rig.user
    )
    begun = await life.begin_turn()
    step = await life.step()
    meta = msgspec.structs.replace(step.meta, dynamic_tools='[{"name": "pick"}, {"name": "propose_plan"}]')
    child = msgspec.structs.replace(step.chat, parent_chat_id=life.chat_id, root_chat_id=life.chat_id)

    assert begun.trace is not None
    assert begun.trace.mcp_servers == ("docs",)
    ((_, problems),) = (row.content for row in begun.opening())
    assert isinstance(problems, parts.Text)
    assert problems.text.splitlines()[1:] == [f"- far: {OLD_AGENT}"]
    for mode, is_root, column in COLUMNS:
        async with AsyncExitStack() as stack:
            taken = msgspec.structs.replace(step, chat=step.chat if is_root else child, meta=meta)
            tools = (await life.toolbox.open(taken, mode=mode, stack=stack)).tools
        expected = {tool for tool, at, is_active in cells() if is_active and at == column} - NOT_MADE_YET
        expected |= {"docs__search"} if column in (Column.ROOT, Column.CHILD) else set()
        expected |= {"pick"} if column is Column.ROOT else set()
        assert {each.name for each in tools.definitions()} == tools.active == expected, column


async def test_kind_of_a_subagent_takes_tools_away_and_gives_none(life: Life) -> None:
    await life.run("create_workspace", template_id="plain")
    step = await life.step()
    child = msgspec.structs.replace(step.chat, parent_chat_id=life.chat_id, root_chat_id=life.chat_id)
    listed = frozenset({"read_file", "execute", "write_file", "spawn_agent", "create_workspace", "propose_plan", "*"})
    meta = msgspec.structs.replace(step.meta, agent=AgentTerms("evil", tools=listed))

    found = {}
    for mode in (Mode.NORMAL, Mode.PLAN, Mode.EXPLORE):
        async with AsyncExitStack() as stack:
            taken = msgspec.structs.replace(step, chat=child, meta=meta)
            found[mode] = (await life.toolbox.open(taken, mode=mode, stack=stack)).tools.active

    assert found == {
        Mode.NORMAL: {"read_file", "execute", "write_file"},
        Mode.PLAN: {"read_file", "execute"},
        Mode.EXPLORE: {"read_file", "execute"},
    }
