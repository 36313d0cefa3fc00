"""Model checking: all orders of the actions of two actors in the state model; each kind of action also on a real
database.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Hashable, Iterator

import pytest
from msgspec.structs import replace

from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import TABLE, Transition
from rookery.store.machine import queue_rows
from tests.domain.chat import state_model, state_model_exploration, state_model_invariants
from tests.domain.chat.state_model_actors import Actor, User, Worker
from tests.domain.chat.state_model_exploration import SMALL_QUEUE, Edge, Node
from tests.domain.chat.state_model_values import Chat, Refusal
from tests.store.machine.chat_copies import copy_chats
from tests.store.machine.machine_rig import make_rig
from tests.store.machine.state_model_replay import Copy, ReplayRig

CONNECTIONS = 8
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


@pytest.fixture
async def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReplayRig]:
    """A database in which queues are as small as in the model, so that full queues are covered."""
    monkeypatch.setattr(queue_rows, "MAX_QUEUE", SMALL_QUEUE)
    async with make_rig(database_url, pool_size=CONNECTIONS) as rig:
        made = ReplayRig(rig, ["w1", "w2"])
        await made.prepare()
        yield made


async def test_every_step_of_one_actor_does_the_same_in_the_store(world: ReplayRig) -> None:
    edges = state_model_exploration.everything_one_can_do(
        Node(state_model_exploration.first_chat()), state_model_exploration.outline_of
    )

    done = list(edges)
    await _replay(world, done)

    assert {
        (edge.attempt.transition, edge.source.chat.state, edge.outcome.state)
        for edge in done
        if isinstance(edge.outcome, Chat) and len(edge.attempt.actions) == 1
    } == _legal_triples()


@pytest.mark.parametrize("pair", ["user and worker", "two users", "two workers", "two tasks of a worker"])
async def test_every_order_of_two_scripts_does_the_same_in_the_store(world: ReplayRig, pair: str) -> None:
    edges = (
        edge
        for start in _starts()
        for edge in state_model_exploration.interleavings(start, _actors(pair, start.chat), length=2)
    )

    done = state_model_exploration.first_of_each(edges, _step_kind)
    await _replay(world, done)

    assert {type(edge.outcome) for edge in done} == {Chat, Refusal}


async def test_every_step_on_an_invalid_chat_does_the_same_in_the_store(world: ReplayRig) -> None:
    starts = _starts()
    at = await _replay(world, [start.parent for start in starts if start.parent])
    broken = [Node(replace(start.chat, status="asleep", runnable_since=None), depth=start.depth) for start in starts]
    edges = [
        Edge(node, attempt, state_model.apply(node.chat, *attempt.actions))
        for node in broken
        for actor in (User("ada", node.chat), Worker("w1", node.chat, node.chat.owner))
        for attempt in (replace(each, fence=None) for each in actor.attempts(1))
    ]
    originals = {id(node): at[id(start.parent)] for node, start in zip(broken, starts, strict=True)}

    await _break(world)
    await _run_all(world, edges, [originals[id(edge.source)] for edge in edges])

    assert {edge.outcome.state for edge in edges if isinstance(edge.outcome, Chat)} == {
        State.E0,
        State.E1,
        State.INVALID,
    }


async def _break(world: ReplayRig) -> None:
    """Give every chat a status of a future version, as a restore could do, without triggers and constraints."""
    constraints = "SELECT conname FROM pg_constraint WHERE conrelid = 'chats'::regclass AND contype = 'c'"
    async with world.rig.pool.acquire() as conn, conn.transaction():
        for record in await conn.fetch(constraints):
            await conn.execute(f"ALTER TABLE chats DROP CONSTRAINT {record[0]}")
        await conn.execute("ALTER TABLE chats DISABLE TRIGGER USER")
        await conn.execute("UPDATE chats SET status = 'asleep', runnable_since = NULL")
        await conn.execute("ALTER TABLE chats ENABLE TRIGGER USER")


# Where the account of a chat's owner is disabled, which none of these actors does: tests/worker/test_disabled_users.py
OF_DISABLED_OWNERS = {
    (Transition.INTERRUPT, State.A1, State.E1),
    (Transition.FINISH_INTERRUPTION, State.I1, State.E1),
}


def _legal_triples() -> set[tuple[Transition, State, State]]:
    return {
        (name, source, target)
        for name, moves in TABLE.items()
        for source, targets in moves.items()
        for target in targets
        if not {State.N, State.INVALID} & {source, target}
    } - OF_DISABLED_OWNERS


def _starts() -> list[Node]:
    """Return the start states of the scripts: every state, with and without an owner; with the thorough profile, every
    outline of a chat.
    """
    edges = state_model_exploration.everything_one_can_do(
        Node(state_model_exploration.first_chat()), state_model_exploration.outline_of
    )
    kind = state_model_exploration.outline_of if THOROUGH else lambda chat: (chat.state, chat.owner is None)
    return [edge.source for edge in state_model_exploration.first_of_each(edges, lambda edge: kind(edge.source.chat))]


def _actors(pair: str, chat: Chat) -> tuple[Actor, Actor]:
    owner = Worker("w1", chat, chat.owner)
    match pair:
        case "user and worker":
            return User("ada", chat), owner
        case "two users":
            return User("ada", chat), User("bob", chat)
        case "two tasks of a worker":
            # They share the runner, so only status, history and attempt can tell the late one from the other.
            return owner, owner
        case _:
            return owner, Worker("w2", chat)


def _step_kind(edge: Edge) -> Hashable:
    """Return the kind of a step. Steps of one kind depend on the same facts and have the same effect, so only one of
    them is run.
    """
    source, outcome = edge.source.chat, edge.outcome
    if THOROUGH:
        return state_model_exploration.outline_of(source), edge.attempt.name, edge.view, _effect(source, outcome)
    facts = (source.state, len(source.queue), bool(source.open_calls), bool(source.client_calls), source.compaction)
    return facts, edge.attempt.name, edge.view, _effect(source, outcome)


def _effect(source: Chat, outcome: Chat | Refusal) -> Hashable:
    if isinstance(outcome, Refusal):
        return outcome
    return outcome.state, len(outcome.queue), len(outcome.history) - len(source.history), len(outcome.open_calls)


async def _replay(world: ReplayRig, wanted: list[Edge]) -> dict[int, Copy]:
    """Run the steps and their predecessors. Return the resulting chats by step."""
    root = Node(state_model_exploration.first_chat())
    first = await world.create(*root.chat.history)
    assert await world.observe(first, root.chat) == root.chat
    world.check_hints(first, Chat(snapshot=0), root.chat)
    at: dict[int, Copy] = {id(None): first}
    for edges in _by_level(wanted):
        copies = await _run_all(world, edges, [at[id(edge.source.parent)] for edge in edges])
        at |= {id(edge): copy for edge, copy in zip(edges, copies, strict=True)}
    return at


def _by_level(wanted: list[Edge]) -> list[list[Edge]]:
    needed = {id(edge): edge for edge in wanted}
    for edge in wanted:
        parent = edge.source.parent
        while parent is not None and id(parent) not in needed:
            needed[id(parent)] = parent
            parent = parent.source.parent
    levels: dict[int, list[Edge]] = {}
    for edge in needed.values():
        levels.setdefault(edge.source.depth, []).append(edge)
    return [levels[depth] for depth in sorted(levels)]


async def _run_all(world: ReplayRig, edges: list[Edge], originals: list[Copy]) -> list[Copy]:
    """Run all steps concurrently, on several connections, each on a separate copy of its chat. Return the copies."""
    async with world.rig.pool.acquire() as conn:
        copies = await copy_chats(conn, originals)
    todo: Iterator[tuple[Edge, Copy]] = iter(zip(edges, copies, strict=True))

    async def run() -> None:
        for edge, copy in todo:
            await _check(world, edge, copy)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(run())
    return copies


async def _check(world: ReplayRig, edge: Edge, copy: Copy) -> None:
    before = edge.source.chat
    refusal = await world.attempt(copy, edge.attempt)
    expected = before if isinstance(edge.outcome, Refusal) else edge.outcome
    observed = await world.observe(copy, expected)

    assert refusal == (edge.outcome if isinstance(edge.outcome, Refusal) else None), f"{edge.attempt} on {before}"
    assert observed == expected, f"{edge.attempt} on {before}"
    assert observed.state is State.INVALID or state_model_invariants.violations(observed) == []
    world.check_hints(copy, before, expected)
