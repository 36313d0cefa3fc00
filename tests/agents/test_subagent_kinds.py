"""Own kinds of subagents: which are offered, what they restrict, and that they never widen anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID, uuid4

import pytest

from rookery.agents import subagent_kinds
from rookery.agents.subagent_kinds import BUILTIN, EXPLORE, AgentKind, AllKinds, KindList, merged
from rookery.domain.chat.messages import Effort
from rookery.domain.content import front_matter
from rookery.llm.scripted import CallTool, Say, Step
from rookery.llm.types import Call
from rookery.loop.tool import ToolCall, ToolContext, ToolOutput
from rookery.models.directory import Directory
from rookery.runtime.clock import SystemClock
from rookery.store.chats.subagents import KindSource
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.db.pubsub import Bus
from rookery.store.workspaces.context import ContextResource
from tests.agents.family_rig import open_family, texts
from tests.agents.test_subagent_operations import steps, wait_for
from tests.event_loop_turns import calls_by_turn
from tests.scripted_tools import ScriptedTool


def kind(name: str = "reviewer", source: KindSource = KindSource.WORKSPACE, **fields: object) -> AgentKind:
    return AgentKind(name=name, description=f"A {name}.", source=source, **fields)  # type: ignore[arg-type]


class Fixed:
    """A catalog of these kinds."""

    def __init__(self, *kinds: AgentKind) -> None:
        self._kinds = kinds

    async def list_kinds(self, owner_id: UUID, resources: Sequence[ContextResource]) -> KindList:
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


# The list in the prompt


def test_list_in_the_prompt_is_bounded_and_names_the_kinds_that_it_does_not_describe() -> None:
    wordy = [AgentKind(name=f"kind-{number:03}", description="word " * 200) for number in range(150)]

    *described, last = subagent_kinds.listed([*BUILTIN, *wordy]).splitlines()

    assert described[0].startswith("- general: ")
    assert all(line.startswith("- ") and len(line) < 330 for line in described)
    assert last.startswith("More kinds, without descriptions: kind-")
    assert len(described) + last.count("kind-") == 152
    size = sum(len(line) + 1 for line in (*described, last))
    assert size <= subagent_kinds.MAX_LIST_BYTES + subagent_kinds.MAX_NAMES_BYTES + 64


def test_names_that_do_not_fit_are_counted() -> None:
    long = [AgentKind(name=f"{'k' * 60}{number:03}", description="x") for number in range(100)]

    told = subagent_kinds.named(long)

    shown = told.count("kkk") // 20
    assert len(told) <= subagent_kinds.MAX_NAMES_BYTES + 64
    assert told.endswith(f", and {100 - shown} more.")


def test_short_list_has_every_description() -> None:
    assert subagent_kinds.listed([kind("reviewer")]) == "- reviewer: A reviewer."
    assert subagent_kinds.named([kind("a"), kind("b")]) == "a, b."


# Files of workspaces


def file(body: str, *, source: str = ".agents/agents/a.md", hash: str = "") -> ContextResource:
    return ContextResource(ordinal=0, kind="agent_kind", source=source, body=body, hash=hash)


@pytest.fixture
async def catalog(database_url: str) -> AsyncIterator[AllKinds]:
    async with await Database.connect(DatabaseConfig(database_url)) as database:
        clock = SystemClock()
        directory = Directory(database.worker, ring=None, environ={}, clock=clock)
        yield AllKinds(database.worker, directory, bus=Bus(), clock=clock)
        await directory.close()


async def test_file_is_read_once_for_each_content(catalog: AllKinds) -> None:
    first = file("---\nname: a\ndescription: one\n---\nDo it.")
    # A workspace may claim the same hash for another content.
    changed = file("---\nname: a\ndescription: two\n---\nDo it.", hash=first.hash)
    broken = file("---\nname: A B\n---\n")
    files = catalog.caches[1].stats

    listed = [await catalog.list_kinds(uuid4(), [each]) for each in (first, first, changed, broken, broken)]

    assert [[kind.description for kind in each.kinds[2:]] for each in listed] == [["one"], ["one"], ["two"], [], []]
    assert (files().misses, files().hits, files().entries) == (3, 2, 3)
    assert files().size_bytes <= files().max_bytes


async def test_one_file_is_parsed_in_one_turn_of_the_event_loop(
    catalog: AllKinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [file(f"---\nname: a{place}\ndescription: one\n---\n") for place in range(50)]

    async with calls_by_turn(monkeypatch, front_matter, "read") as reads:
        await catalog.list_kinds(uuid4(), files)

    assert (reads.total(), max(reads.values())) == (50, 1)


async def test_resources_of_other_kinds_are_no_kinds(catalog: AllKinds) -> None:
    skill = ContextResource(ordinal=0, kind="skill", source="a", body="---\nname: a\ndescription: b\n---\n")
    unread = ContextResource(ordinal=1, kind="agent_kind", source="b", body=None)

    assert (await catalog.list_kinds(uuid4(), [skill, unread])).kinds == BUILTIN
