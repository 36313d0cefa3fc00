"""The connection of a chat to its workspace: which agent is dialed, which changes are noticed, and the errors a model
reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from aiohttp import web

from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import Clock
from rookery.testing import FakeClock
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentPools, ChatHeaders
from rookery.workspaces.agent_messages import Health
from rookery.workspaces.connection import ChatWorkspace, Reach, Unreadable, WorkspaceLocation
from rookery.workspaces.errors import NoConnection, Situation
from tests.eventually import until
from tests.workspaces.fake_agent import FakeAgent, UnixPath, fake_agent
from tests.workspaces.test_agent_client import never

CHAT = ChatId(UUID(int=1))
WORKSPACE, OTHER = UUID(int=10), UUID(int=11)


@dataclass
class Rows:
    """Rows in memory, and sockets of agents by their endpoint."""

    clock: Clock
    pools: AgentPools
    binding: UUID | None = WORKSPACE
    locations: dict[UUID, WorkspaceLocation] = field(default_factory=dict)
    is_readable: bool = True
    reads: int = 0
    connected_to: list[tuple[UUID, int]] = field(default_factory=list)
    on_read: Any = None

    async def find_binding(self, chat_id: ChatId) -> UUID | None:
        return self.binding

    async def find(self, workspace_id: UUID) -> WorkspaceLocation | None:
        self.reads += 1
        if not self.is_readable:
            raise Unreadable("The database is away.")
        if self.on_read is not None:
            self.on_read()
        return self.locations.get(workspace_id)

    def connect(self, location: WorkspaceLocation, chat: ChatHeaders) -> AgentConn:
        path = UnixPath(location.endpoint or "/nowhere.sock")
        return AgentConn(self.pools.get(location.id, location.generation, token="t", connector=path), chat)

    def release(self, location: WorkspaceLocation) -> None:
        self.pools.drop(location.id, location.generation)

    async def record_use(self, chat_id: ChatId, location: WorkspaceLocation, health: Health) -> None:
        self.connected_to.append((location.id, location.generation))

    def set(self, workspace_id: UUID = WORKSPACE, **changes: Any) -> None:
        self.locations[workspace_id] = msgspec.structs.replace(self.locations[workspace_id], **changes)


@dataclass
class Rig:
    clock: FakeClock
    rows: Rows
    agent: FakeAgent
    turn: ChatWorkspace

    async def situation(self) -> Situation:
        with pytest.raises(NoConnection) as caught:
            await self.turn.conn()
        assert str(caught.value).endswith((".", ")"))
        return caught.value.situation


@asynccontextmanager
async def rigged(*, is_root: bool = True, **fields: Any) -> AsyncIterator[Rig]:
    clock = FakeClock()
    async with fake_agent() as agent:
        rows = Rows(clock, AgentPools(clock))
        rows.locations[WORKSPACE] = location(clock, endpoint=agent.path, **fields)
        turn = ChatWorkspace(CHAT, rows, clock=clock, is_root=is_root)
        turn.bind(WORKSPACE)
        try:
            yield Rig(clock, rows, agent, turn)
        finally:
            await rows.pools.close()


def location(clock: FakeClock, **fields: Any) -> WorkspaceLocation:
    defaults: dict[str, Any] = {
        "id": WORKSPACE,
        "name": "brave-otter",
        "status": "running",
        "generation": 1,
        "agent_state": "ready",
        "started_at": clock.now() - timedelta(hours=1),
        "last_seen_at": clock.now(),
    }
    return WorkspaceLocation(**defaults | fields)


# Dials


async def test_connection_is_made_once_and_kept() -> None:
    async with rigged() as rig:
        first = await rig.turn.conn()
        reads = rig.rows.reads

        await rig.clock.advance(10)
        second = await rig.turn.conn()

        assert second is first
        assert rig.rows.reads == reads
        assert rig.rows.connected_to == [(WORKSPACE, 1)]
        assert rig.turn.was_used


async def test_connection_unused_for_longer_looks_at_the_row_first() -> None:
    async with rigged() as rig:
        first = await rig.turn.conn()
        reads = rig.rows.reads

        await rig.clock.advance(10.5)
        second = await rig.turn.conn()

        assert second is first
        assert rig.rows.reads == reads + 1


async def test_warning_about_the_disk_is_given_once_each_time_it_changes() -> None:
    async with rigged() as rig:
        await rig.turn.conn()
        given = [rig.turn.take_warning()]
        for warning in ("90%", "91%", None, "90%"):
            rig.rows.set(disk_warning=warning)
            await rig.clock.advance(11)
            await rig.turn.conn()
            given += [rig.turn.take_warning(), rig.turn.take_warning()]

        assert given == [None, "90%", None, "91%", None, None, None, "90%", None]


async def test_connection_is_kept_while_the_row_cannot_be_read_and_checked_again_next_time() -> None:
    async with rigged() as rig:
        first = await rig.turn.conn()
        await rig.clock.advance(11)

        rig.rows.is_readable = False
        assert await rig.turn.conn() is first
        rig.rows.is_readable = True
        rig.rows.set(status="stopped")

        assert await rig.situation() is Situation.STOPPED


@pytest.mark.parametrize("changes", [{"generation": 2}, {"agent_state": "unreachable"}])
async def test_connection_whose_row_has_changed_is_dialed_again(changes: dict[str, Any]) -> None:
    async with rigged() as rig:
        await rig.turn.conn()
        await rig.clock.advance(11)
        rig.rows.set(**changes)
        rig.agent.generation = rig.rows.locations[WORKSPACE].generation

        conn = await rig.turn.conn()

        assert conn.generation == rig.agent.generation
        assert len(rig.rows.connected_to) == 2


async def test_callers_of_one_moment_share_one_dial() -> None:
    async with rigged() as rig:
        found = await asyncio.gather(*(rig.turn.conn() for _ in range(8)))

        assert len(set(map(id, found))) == 1
        assert len(rig.agent.requests) == 1


async def test_binding_made_by_a_sibling_call_is_found() -> None:
    async with rigged() as rig:
        rig.turn.bind(None)

        await rig.turn.conn()

        assert rig.turn.workspace_id == WORKSPACE


async def test_restart_in_the_middle_of_a_turn_is_followed_at_once() -> None:
    async with rigged() as rig, fake_agent(generation=2) as reborn:
        await rig.turn.conn()
        await rig.clock.advance(11)
        rig.rows.set(generation=2, endpoint=reborn.path)

        conn = await rig.turn.conn()

        assert conn.generation == 2
        assert (await conn.health()).generation == 2


async def test_dead_endpoint_costs_no_more_than_five_seconds() -> None:
    async with rigged() as rig, fake_agent(generation=2) as reborn:
        rig.agent.answers["/v1/health"] = never
        dialing = asyncio.create_task(rig.turn.conn())
        await rig.clock.until_waiting("agent-dial")
        assert rig.clock.waiting("agent-dial")[0].due == 5.0

        rig.rows.set(generation=2, endpoint=reborn.path)
        await rig.clock.fire("agent-dial")

        assert (await dialing).generation == 2
        assert rig.clock.monotonic() == 5.0


async def test_failure_looks_at_the_row_at_once_and_follows_it() -> None:
    async with rigged() as rig, fake_agent(generation=2) as reborn:
        rig.rows.set(endpoint="/nowhere.sock")
        rows = rig.rows
        moved: list[bool] = []

        def move_on() -> None:
            if rows.reads == 2 and not moved:
                moved.append(True)
                rows.set(generation=2, endpoint=reborn.path)

        rows.on_read = move_on

        assert (await rig.turn.conn()).generation == 2
        assert rig.clock.monotonic() == 0.0


async def test_failure_with_the_same_row_is_tried_once_more() -> None:
    times = []

    async def fail_once(request: web.Request) -> web.Response:
        times.append(1)
        if len(times) == 1:
            return web.json_response({"code": "starting", "message": "Not yet."}, status=503)
        return web.json_response({"generation": 1, "api": 1})

    async with rigged() as rig:
        rig.agent.answers["/v1/health"] = fail_once

        await rig.turn.conn()

        assert len(times) == 2


async def test_failure_that_stays_keeps_its_own_text() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"code": "odd", "message": "The agent has hiccups."}, status=500)

    async with rigged() as rig:
        rig.agent.answers["/v1/health"] = refuse

        with pytest.raises(NoConnection, match=r"^The agent has hiccups\.$") as caught:
            await rig.turn.conn()

        assert caught.value.situation is Situation.OTHER
        assert len(rig.agent.requests) == 2


async def test_answer_of_another_generation_is_never_used() -> None:
    async with rigged() as rig:
        rig.agent.generation = 7

        assert await rig.situation() is Situation.OTHER


async def test_chat_moved_to_another_workspace_meanwhile_is_followed() -> None:
    async with rigged() as rig, fake_agent() as other:
        rig.rows.locations[OTHER] = location(rig.clock, id=OTHER, endpoint=other.path)
        rig.rows.binding = OTHER

        await rig.turn.conn()

        assert rig.rows.connected_to == [(OTHER, 1)]
        assert len(other.requests) == 1


async def test_chat_that_keeps_moving_is_an_error() -> None:
    async with rigged() as rig:
        rig.rows.locations[OTHER] = msgspec.structs.replace(rig.rows.locations[WORKSPACE], id=OTHER)
        turns = iter([OTHER, WORKSPACE, OTHER, WORKSPACE])

        async def restless(chat_id: ChatId) -> UUID | None:
            return next(turns)

        rig.rows.find_binding = restless  # type: ignore[method-assign]

        assert await rig.situation() is Situation.CHANGED


# Messages for the model


@pytest.mark.parametrize(
    ("fields", "situation", "words"),
    [
        ({"status": "deleted"}, Situation.DELETED, "create_workspace"),
        ({"status": "stopped"}, Situation.STOPPED, "start_workspace"),
        ({"status": "failed", "error": "out of memory"}, Situation.FAILED, "out of memory"),
        ({"status": "pending"}, Situation.BUSY, "being started"),
        ({"status": "starting"}, Situation.BUSY, "start_workspace, which waits"),
        ({"status": "stopping"}, Situation.BUSY, "being stopped"),
        ({"operation": "stop"}, Situation.BUSY, "being stopped"),
        ({"reach": Reach.OUT_OF_REACH}, Situation.OUT_OF_REACH, "cannot reach workspaces there"),
        ({"reach": Reach.OFFLINE}, Situation.NODE_OFFLINE, "offline"),
        ({"agent_state": "unreachable", "error": "It was cut off."}, Situation.CUT_OFF, "It was cut off. Use stop"),
    ],
)
async def test_status_decides_what_the_model_reads(fields: dict[str, Any], situation: Situation, words: str) -> None:
    async with rigged(**fields) as rig:
        with pytest.raises(NoConnection) as caught:
            await rig.turn.conn()

        assert caught.value.situation is situation
        assert words in str(caught.value)
        assert rig.agent.requests == []


@pytest.mark.parametrize(
    ("is_root", "situation", "words"),
    [(True, Situation.NONE, "create_workspace"), (False, Situation.NONE_IN_CHILD, "report")],
)
async def test_no_workspace_reads_otherwise_for_a_child(is_root: bool, situation: Situation, words: str) -> None:
    async with rigged(is_root=is_root) as rig:
        rig.turn.bind(None)
        rig.rows.binding = None

        with pytest.raises(NoConnection, match=words) as caught:
            await rig.turn.conn()

        assert caught.value.situation is situation


async def test_agent_too_old_asks_for_a_restart() -> None:
    async with rigged() as rig:
        rig.agent.health["api"] = 99

        assert await rig.situation() is Situation.AGENT_TOO_OLD


@pytest.mark.parametrize(
    ("seen_seconds_before_the_end", "situation"),
    [
        (89.999, Situation.TIMED_OUT),
        (90.0, Situation.SILENT),
        (None, Situation.SILENT),
        (7200.0, Situation.SILENT),
    ],
)
async def test_dial_that_times_out_goes_by_when_the_agent_was_last_seen(
    seen_seconds_before_the_end: float | None, situation: Situation
) -> None:
    async with rigged() as rig:
        end = rig.clock.now() + timedelta(seconds=30)
        seen = None if seen_seconds_before_the_end is None else end - timedelta(seconds=seen_seconds_before_the_end)
        rig.rows.set(last_seen_at=seen)
        rig.agent.answers["/v1/health"] = never

        dialing = asyncio.create_task(rig.turn.conn())
        await rig.clock.fire("agent-dial")
        await rig.clock.fire("agent-dial")

        with pytest.raises(NoConnection) as caught:
            await dialing
        assert rig.clock.monotonic() == 30.0
        assert caught.value.situation is situation


async def test_agent_never_seen_since_its_start_is_silent() -> None:
    async with rigged() as rig:
        now = rig.clock.now()
        rig.rows.set(started_at=now - timedelta(seconds=5), last_seen_at=now - timedelta(seconds=20))
        rig.agent.answers["/v1/health"] = never

        dialing = asyncio.create_task(rig.turn.conn())
        await rig.clock.fire("agent-dial")
        await rig.clock.fire("agent-dial")

        with pytest.raises(NoConnection) as caught:
            await dialing
        assert caught.value.situation is Situation.SILENT


async def test_workspace_stopped_while_dialing_is_said_so() -> None:
    async with rigged() as rig:
        rig.agent.answers["/v1/health"] = never
        dialing = asyncio.create_task(rig.turn.conn())
        await rig.clock.until_waiting("agent-dial")

        rig.rows.set(status="stopped")
        await rig.clock.fire("agent-dial")

        with pytest.raises(NoConnection) as caught:
            await dialing
        assert caught.value.situation is Situation.STOPPED


async def test_cancelled_turn_stays_a_cancellation_and_leaves_no_request_behind() -> None:
    async with rigged() as rig:
        rig.agent.answers["/v1/health"] = never
        dialing = asyncio.create_task(rig.turn.conn())
        await until(lambda: rig.agent.requests)

        dialing.cancel()

        with pytest.raises(asyncio.CancelledError):
            await dialing
        pool = rig.rows.pools.find(WORKSPACE, 1)
        assert pool is not None
        await until(lambda: pool.open_requests == 0)


async def test_one_cancelled_caller_does_not_end_the_dial_of_the_others() -> None:
    gate = asyncio.Event()

    async def later(request: web.Request) -> web.Response:
        await gate.wait()
        return web.json_response({"generation": 1, "api": 1})

    async with rigged() as rig:
        rig.agent.answers["/v1/health"] = later
        first, second = (asyncio.create_task(rig.turn.conn()) for _ in range(2))
        await until(lambda: rig.agent.requests)

        first.cancel()
        gate.set()

        assert (await second).generation == 1
