"""Own kinds of subagents: which are offered, what they restrict, and that they never widen anything."""

from __future__ import annotations

from collections.abc import Sequence

from rookery.agents.kinds import BUILTIN, EXPLORE, AgentKind, KindList, merged
from rookery.domain.chat.messages import Effort
from rookery.llm.scripted import CallTool, Say, Step
from rookery.llm.types import Call
from rookery.loop.tool import ToolCall, ToolContext, ToolOutput
from rookery.store.chats.step_reads import Step as LoadedStep
from rookery.store.chats.subagents import KindSource
from rookery.store.workspaces.context import ContextResource
from tests.agents.family_rig import open_family, texts
from tests.agents.test_family import steps, wait_for
from tests.scripted_tools import ScriptedTool


def kind(name: str = "reviewer", source: KindSource = KindSource.WORKSPACE, **fields: object) -> AgentKind:
    return AgentKind(name=name, description=f"A {name}.", source=source, **fields)  # type: ignore[arg-type]


class Fixed:
    """A catalog of these kinds."""

    def __init__(self, *kinds: AgentKind) -> None:
        self._kinds = kinds

    async def list_kinds(self, step: LoadedStep, resources: Sequence[ContextResource]) -> KindList:
        return merged(BUILTIN, self._kinds)


async def _done(ctx: ToolContext, given: ToolCall) -> ToolOutput:
    return ToolOutput("done")


def test_equal_names_are_decided_by_source_and_the_hidden_one_is_named() -> None:
    listed = merged(
        BUILTIN,
        [kind("reviewer", KindSource.DEPLOYMENT)],
        [kind("reviewer", KindSource.USER), kind("writer", KindSource.USER)],
        [kind("writer"), kind("explore"), kind("tester")],
    )

    assert [(each.name, each.source) for each in listed.kinds] == [
        ("general", "builtin"),
        ("explore", "builtin"),
        ("reviewer", "deployment"),
        ("writer", "user"),
        ("tester", "workspace"),
    ]
    assert listed.find("explore") is EXPLORE
    assert [(each.name, each.source, each.hidden_by) for each in listed.hidden] == [
        ("reviewer", "user", "deployment"),
        ("writer", "workspace", "user"),
        ("explore", "workspace", "builtin"),
    ]


async def test_own_kind_is_offered_and_gives_its_prompt_tools_and_effort(database_url: str) -> None:
    order = CallTool("spawn_agent", {"type": "reviewer", "prompt": "review it"})
    tools = [ScriptedTool("look", _done), ScriptedTool("change", _done)]
    reviewer = kind(prompt="Be strict.", tools=("look", "spawn_agent"), reasoning_effort=Effort.LOW, max_minutes=5)
    parent = steps((order,), wait_for, (Say("ok"),))
    async with open_family(database_url, parent=parent, kinds=Fixed(reviewer), tools=tools) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        (child,) = await rig.children(chat_id)
        first = rig.worker.calls[0]
        spawn = next(tool for tool in first.tools if tool.name == "spawn_agent")
        assert "- reviewer: A reviewer." in spawn.description
        asked = next(call for call in rig.worker.calls if call.chat_id == str(child))
        assert "Be strict." in texts(asked)
        # `spawn_agent` is in the list, and still no tool of a child.
        assert [tool.name for tool in asked.tools] == ["look"]
        assert await rig.sql("SELECT max_minutes FROM subagents WHERE chat_id = $1", child) == 5
        assert await rig.sql("SELECT kind_source FROM subagents WHERE chat_id = $1", child) == "workspace"
        assert (await rig.worker.chat(child)).last_reasoning_effort == "low"


async def test_read_only_kind_explores(database_url: str) -> None:
    order = CallTool("spawn_agent", {"type": "reviewer", "prompt": "review it"})
    parent = steps((order,), wait_for, (Say("ok"),))
    async with open_family(database_url, parent=parent, kinds=Fixed(kind(read_only=True))) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        (child,) = await rig.children(chat_id)
        assert await rig.sql("SELECT mode FROM chats WHERE id = $1", child) == "explore"


async def test_tool_that_the_kind_does_not_list_cannot_be_called(database_url: str) -> None:
    change = ScriptedTool("change", _done)

    def child(call: Call) -> Sequence[Step]:
        return (Say("ok"),) if "change is not active" in texts(call) else (CallTool("change"),)

    order = CallTool("spawn_agent", {"type": "reviewer", "prompt": "review it"})
    parent = steps((order,), wait_for, (Say("ok"),))
    kinds = Fixed(kind(tools=("look",)))
    async with open_family(database_url, parent=parent, child=child, kinds=kinds, tools=[change]) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        assert change.runs == []
        assert (await rig.worker.results(chat_id))[1]["report"] == "ok"
