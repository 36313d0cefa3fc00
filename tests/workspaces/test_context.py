"""Workspace context: from the agent's report to the captured context of chats, in every order of events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.content import front_matter
from rookery.runtime.clock import SystemClock
from rookery.store.db.hints import Hint, WatchHint, WatchKind
from rookery.store.workspaces import context
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp
from rookery.workspaces.agent_messages import ContextSnapshot, Resource
from rookery.workspaces.context import Contexts, snapshot_of
from rookery.workspaces.project_servers import ProjectServers
from tests.event_loop_turns import calls_by_turn
from tests.store.builders import StoreRig, open_store_rig
from tests.store.people.account_rows import open_pool
from tests.workspaces.fake_agent import UnixPath, fake_agent
from tests.workspaces.test_agent_client import answer, never

NOW = datetime(2030, 1, 1, tzinfo=UTC)
WORKSPACE = UUID(int=5)
SKILL = "---\nname: deploy\ndescription: Ship it\n---\nRun make ship.\n"


def told(*resources: Resource, version: int = 1, found: str = "h1") -> ContextSnapshot:
    return ContextSnapshot(version=version, hash=found, resources=resources)


def instructions(text: str = "Be kind.", **fields: Any) -> Resource:
    return Resource(**{"kind": "instruction_file", "source": "/p/AGENTS.md", "body": text, "size": len(text), **fields})


def skill(body: str = SKILL, source: str = "/p/.agents/skills/deploy/SKILL.md", **fields: Any) -> Resource:
    return Resource(**{"kind": "skill", "source": source, "body": body, "size": len(body), **fields})


# Stored resources


async def test_skills_are_read_named_and_numbered() -> None:
    found = (await snapshot_of(WORKSPACE, 3, told(instructions(), skill()), now=NOW)).resources

    assert [(each.ordinal, each.kind, each.name, each.description) for each in found] == [
        (0, "instruction_file", None, None),
        (1, "skill", "deploy", "Ship it"),
    ]


async def test_skill_that_cannot_be_used_says_why_and_the_first_of_a_name_wins() -> None:
    answer = told(skill(), skill(source="/q/skills/deploy/SKILL.md"), skill(source="/p/skills/other/SKILL.md"))

    found = (await snapshot_of(WORKSPACE, 1, answer, now=NOW)).resources

    assert [each.status for each in found] == ["ok", "excluded", "invalid"]
    assert [each.body is None for each in found] == [False, True, True]
    assert "folder" in (found[2].error or "")


async def test_unknown_resources_are_left_out_or_invalid() -> None:
    answer = told(Resource(kind="hologram", source="/x"), instructions(status="shiny"), instructions("a\0b"))

    found = (await snapshot_of(WORKSPACE, 1, answer, now=NOW)).resources

    assert [(each.status, each.body) for each in found] == [("invalid", None), ("ok", "a\N{REPLACEMENT CHARACTER}b")]


async def test_only_files_that_could_be_read_have_bodies() -> None:
    resources = told(
        instructions(status="truncated"),
        instructions(status="oversize"),
        Resource(kind="mcp_config", source="/p/.mcp.json", body="secret"),
    )

    found = (await snapshot_of(WORKSPACE, 1, resources, now=NOW)).resources

    assert [each.body for each in found] == ["Be kind.", None, None]


async def test_one_file_of_a_hostile_workspace_is_parsed_in_one_turn_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [skill(source=f"/p/skills/s{place}/SKILL.md") for place in range(100)]

    async with calls_by_turn(monkeypatch, front_matter, "read") as reads:
        await snapshot_of(WORKSPACE, 1, told(*files), now=NOW)

    assert (reads.total(), max(reads.values())) == (100, 1)


# Snapshots, hints, captures


class Told:
    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def publish(self, hints: Any) -> None:
        self.hints.extend(hints)

    def contexts(self) -> list[UUID]:
        """Return the chats whose watchers were notified that their context changed or is outdated."""
        marks = [hint for hint in self.hints if isinstance(hint, WatchHint)]
        return [hint.chat_id for hint in marks if hint.kind is WatchKind.CONTEXT]


@dataclass
class Rig:
    world: StoreRig
    pool: asyncpg.Pool
    told: Told
    contexts: Contexts
    owner: UUID

    async def workspace(self) -> UUID:
        workspace_id = uuid4()
        name = f"w-{workspace_id.hex[:8]}"
        await self.world.conn.execute(
            "INSERT INTO workspaces (id, owner_id, name) VALUES ($1, $2, $3)", workspace_id, self.owner, name
        )
        return workspace_id

    async def chat(self, workspace_id: UUID | None) -> ChatId:
        chat_id = await self.world.chat(self.owner)
        await context.bind(self.world.conn, chat_id, workspace_id)
        return chat_id

    async def keep(self, workspace_id: UUID, *resources: Resource, generation: int = 1, **fields: Any) -> None:
        answer = told(*resources, **fields)
        await self.contexts.store_snapshot(await snapshot_of(workspace_id, generation, answer, now=NOW))

    async def pinned(self, chat_id: ChatId) -> list[str | None]:
        return [each.body for each in await context.list_resources(self.world.conn, chat_id)]

    async def captured(self, chat_id: ChatId) -> context.CaptureState:
        return await context.read_capture_state(self.world.conn, chat_id)


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with open_store_rig(database_url) as world, open_pool(database_url) as pool:
        told = Told()
        project_servers = ProjectServers(pool, told, ring=None)
        contexts = Contexts(pool, told, clock=SystemClock(), project_servers=project_servers)
        yield Rig(world, pool, told, contexts, await world.user())


async def test_chat_made_before_the_first_start_is_pinned_when_there_is_something(rig: Rig) -> None:
    workspace = await rig.workspace()
    chat = await rig.chat(workspace)
    assert not await rig.contexts.capture(chat)

    await rig.keep(workspace, instructions())

    assert await rig.pinned(chat) == ["Be kind."]


async def test_child_has_what_its_parents_workspace_tells(rig: Rig) -> None:
    workspace = await rig.workspace()
    parent = await rig.chat(workspace)
    await rig.keep(workspace, instructions(), skill())
    child = await rig.world.chat(rig.owner, parent=parent)
    await context.bind(rig.world.conn, child, workspace)

    assert await rig.contexts.capture(child)

    of_both = [await context.list_resources(rig.world.conn, each) for each in (parent, child)]
    assert of_both[0] == of_both[1]
    assert len(of_both[0]) == 2


async def test_changed_instructions_mark_the_chat_and_leave_its_pin(rig: Rig) -> None:
    workspace = await rig.workspace()
    chat = await rig.chat(workspace)
    await rig.keep(workspace, instructions())
    assert rig.told.contexts() == [chat]

    await rig.keep(workspace, instructions("Be quick."), version=2, found="h2")
    await rig.keep(workspace, instructions("Be quicker."), version=3, found="h3")

    assert await rig.pinned(chat) == ["Be kind."]
    assert (await rig.captured(chat)).dirty_since is not None
    assert rig.told.contexts() == [chat, chat]
    assert await rig.contexts.capture(chat)
    assert rig.told.contexts() == [chat, chat, chat]
    assert await rig.pinned(chat) == ["Be quicker."]
    assert (await rig.captured(chat)).dirty_since is None


async def test_archived_chat_is_not_marked(rig: Rig) -> None:
    workspace = await rig.workspace()
    chat = await rig.chat(workspace)
    await rig.keep(workspace, instructions())
    await rig.world.conn.execute(
        "UPDATE chats SET snapshot_version = snapshot_version + 1, archived = true, archived_at = now() WHERE id = $1",
        chat,
    )

    await rig.keep(workspace, instructions("Be quick."), version=2, found="h2")

    assert (await rig.captured(chat)).dirty_since is None
    assert rig.told.contexts() == [chat]


async def test_same_hash_marks_no_chat(rig: Rig) -> None:
    workspace = await rig.workspace()
    chat = await rig.chat(workspace)
    await rig.keep(workspace, instructions())

    await rig.keep(workspace, instructions(), Resource(kind="mcp_server", source="docs"), version=2)

    assert (await rig.captured(chat)).dirty_since is None


async def test_older_answer_never_overwrites(rig: Rig) -> None:
    workspace = await rig.workspace()
    await rig.keep(workspace, instructions("new"), generation=2, version=1, found="n")
    await rig.keep(workspace, instructions("old"), generation=1, version=9, found="o")
    chat = await rig.chat(workspace)

    await rig.contexts.capture(chat)

    assert await rig.pinned(chat) == ["new"]


@pytest.mark.parametrize("is_ready_first", [True, False])
async def test_moving_a_chat_never_shows_the_old_instructions_again(rig: Rig, is_ready_first: bool) -> None:
    old, new = await rig.workspace(), await rig.workspace()
    chat = await rig.chat(old)
    await rig.keep(old, instructions("old"))
    if is_ready_first:
        await rig.keep(new, instructions("new"))

    await context.bind(rig.world.conn, chat, new)
    assert await rig.pinned(chat) == []
    await rig.keep(old, instructions("old again"), version=2, found="h9")
    if not is_ready_first:
        await rig.contexts.capture(chat)
        assert await rig.pinned(chat) == []
        await rig.keep(new, instructions("new"))
    await rig.contexts.capture(chat)

    assert await rig.pinned(chat) == ["new"]


# Refresh


async def test_answer_is_fetched_kept_and_remembered_as_fresh(rig: Rig) -> None:
    workspace = await rig.workspace()
    chat = await rig.chat(workspace)
    body = {"version": 1, "hash": "h", "resources": [{"kind": "instruction_file", "source": "/a", "body": "hi"}]}
    async with fake_agent() as agent:
        http = AgentHttp(UnixPath(agent.path), token="t", generation=1, clock=SystemClock())
        agent.answers["/v1/context"] = lambda _: answer(body)

        assert await rig.contexts.refresh(workspace, 1, AgentConn(http))

        await http.close()
    assert await rig.pinned(chat) == ["hi"]
    assert rig.contexts.is_fresh(workspace, 1)
    assert not rig.contexts.is_fresh(workspace, 2)


async def test_agent_that_does_not_answer_costs_a_moment_and_nothing_else(rig: Rig) -> None:
    workspace = await rig.workspace()
    async with fake_agent() as agent:
        http = AgentHttp(UnixPath(agent.path), token="t", generation=1, clock=SystemClock())
        agent.answers["/v1/context"] = never

        assert not await rig.contexts.refresh(workspace, 1, AgentConn(http), seconds=0.05)

        agent.answers["/v1/context"] = lambda _: answer({"version": 0, "hash": "", "resources": []})
        assert not await rig.contexts.refresh(workspace, 1, AgentConn(http))
        await http.close()
    assert await context.find_snapshot(rig.world.conn, workspace) is None
