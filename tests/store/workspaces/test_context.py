"""Context snapshots of workspaces, and the copies that chats capture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID

import pytest

from rookery.domain.chat.messages import ChatId
from rookery.store.workspaces import context
from rookery.store.workspaces.context import ContextResource, Snapshot
from tests.store.builders import StoreRig, open_store_rig

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as made:
        yield made


async def workspace(world: StoreRig, owner: UUID, name: str) -> UUID:
    made = await world.conn.fetchval(
        "INSERT INTO workspaces (owner_id, name) VALUES ($1, $2) RETURNING id", owner, name
    )
    return UUID(str(made))


def snapshot(workspace_id: UUID, text: str, *, generation: int = 1, version: int = 1) -> Snapshot:
    file = ContextResource(
        ordinal=0, kind="instruction_file", source="/home/agent/AGENTS.md", body=text, hash=text, size=len(text)
    )
    server = ContextResource(ordinal=1, kind="mcp_server", source="x", name="x", tools=[{"name": "look"}])
    return Snapshot(workspace_id, generation, version, text, None, (file, server), NOW)


async def bodies(world: StoreRig, chat_id: ChatId) -> list[str | None]:
    return [each.body for each in await context.list_resources(world.conn, chat_id)]


async def test_pin_copies_the_newest_snapshot_and_keeps_it(world: StoreRig) -> None:
    owner = await world.user()
    chat_id, place = await world.chat(owner), await workspace(world, owner, "one")
    await context.bind(world.conn, chat_id, place)

    assert not await context.capture(world.conn, chat_id)
    assert (await context.read_capture_state(world.conn, chat_id)).hash is None

    await context.write_snapshot(world.conn, snapshot(place, "first"))
    assert await context.list_uncaptured(world.conn, place) == [chat_id]
    assert await context.capture(world.conn, chat_id)
    await context.write_snapshot(world.conn, snapshot(place, "second", version=2))

    assert await context.list_uncaptured(world.conn, place) == []
    assert await bodies(world, chat_id) == ["first", None]
    assert (await context.list_resources(world.conn, chat_id))[1].tools == [{"name": "look"}]


async def test_other_snapshot_marks_the_chat_once_until_it_is_pinned_again(world: StoreRig) -> None:
    owner = await world.user()
    chat_id, place = await world.chat(owner), await workspace(world, owner, "one")
    await context.bind(world.conn, chat_id, place)
    await context.write_snapshot(world.conn, snapshot(place, "first"))
    await context.capture(world.conn, chat_id)

    assert await context.mark_dirty(world.conn, place, context_hash="first", now=NOW) == []
    marked = await context.mark_dirty(world.conn, place, context_hash="second", now=NOW)
    again = await context.mark_dirty(world.conn, place, context_hash="third", now=NOW)

    assert ([each.chat_id for each in marked], again) == ([chat_id], [])
    assert (await context.read_capture_state(world.conn, chat_id)).dirty_since == NOW
    await context.capture(world.conn, chat_id)
    assert (await context.read_capture_state(world.conn, chat_id)).dirty_since is None


async def test_another_binding_forgets_the_instructions_at_once(world: StoreRig) -> None:
    owner = await world.user()
    chat_id = await world.chat(owner)
    old, new = await workspace(world, owner, "old"), await workspace(world, owner, "new")
    await context.bind(world.conn, chat_id, old)
    await context.write_snapshot(world.conn, snapshot(old, "old project"))
    await context.capture(world.conn, chat_id)
    await context.write_generation(world.conn, chat_id, workspace_id=old, generation=1)

    await context.bind(world.conn, chat_id, new)

    state = await context.read_capture_state(world.conn, chat_id)
    assert (state.workspace_id, state.workspace_generation, state.hash, state.context_workspace_id) == (
        new,
        None,
        None,
        None,
    )
    assert await bodies(world, chat_id) == []
    assert not await context.write_generation(world.conn, chat_id, workspace_id=old, generation=2)
    assert not await context.capture(world.conn, chat_id)


async def test_older_snapshot_never_overwrites_a_newer_one(world: StoreRig) -> None:
    place = await workspace(world, await world.user(), "one")

    assert await context.write_snapshot(world.conn, snapshot(place, "new", generation=2, version=3))
    assert not await context.write_snapshot(world.conn, snapshot(place, "old", generation=2, version=2))
    assert not await context.write_snapshot(world.conn, snapshot(place, "dead", generation=1, version=9))
    assert await context.write_snapshot(world.conn, snapshot(place, "restarted", generation=3, version=1))

    found = await context.find_snapshot(world.conn, place)
    assert found is not None
    assert found.hash == "restarted"
