"""Random transitions from several connections: the store does only what the state model allows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from msgspec.structs import replace

from rookery.domain.chat.transitions import Transition
from rookery.store import machine
from rookery.store.db.hints import ChatHint
from rookery.store.machine import queue_rows
from tests.domain.chat import state_model, state_model_actors, state_model_invariants
from tests.domain.chat.state_model import BUSY
from tests.domain.chat.state_model_actors import Actor, Attempt, User, Worker
from tests.domain.chat.state_model_values import Action, Chat, Kind, Refusal, Row
from tests.store.machine.machine_rig import make_rig
from tests.store.machine.state_model_replay import Copy, ReplayRig, uuid_of

COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True)
PROFILES = {
    # Shrinking takes minutes on a database; a failure of the default run is shrunk by the thorough one.
    "ci": settings(COMMON, max_examples=80, stateful_step_count=50, derandomize=True, phases=[Phase.generate]),
    "thorough": settings(COMMON, max_examples=1500, stateful_step_count=80),
}
PROFILE = PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "ci")]

SMALL_QUEUE = 3
WORKERS = ("w1", "w2", "w3")
CHATS = st.integers(0, 1)
ACTORS = st.integers(0, 4)
CHOICES = st.integers(0, 59)


class Played:
    """A chat of the test: the model's and the real one, and the users and workers with their views."""

    def __init__(self, chat: Chat, copy: Copy) -> None:
        self.chat = chat
        self.copy = copy
        self.is_settled = True
        self.actors: list[Actor] = [User("ada", chat), User("bob", chat), *(Worker(name, chat) for name in WORKERS)]


class Play(RuleBasedStateMachine):
    """The rules of the state machine test. Each rule ends with a comparison of the whole chat."""

    def __init__(self, world: ReplayRig, runner: asyncio.Runner) -> None:
        super().__init__()
        self.world = world
        self.runner = runner
        self.turns = count(1)
        self.played = [runner.run(self._create()) for _ in range(2)]

    async def _create(self) -> Played:
        chat = state_model.create(Row(Kind.SYSTEM, text="be kind"), Row(Kind.USER, text="hello"), max_queue=SMALL_QUEUE)
        copy = await self.world.create(*chat.history)
        assert await self.world.observe(copy, chat) == chat
        self.world.check_hints(copy, Chat(snapshot=0), chat)
        return Played(chat, copy)

    @rule(chat=CHATS, actor=ACTORS)
    def look(self, chat: int, actor: int) -> None:
        played = self.played[chat]
        played.actors[actor] = replace(played.actors[actor], seen=played.chat)

    @rule(chat=CHATS, actor=ACTORS, choice=CHOICES)
    def try_something(self, chat: int, actor: int, choice: int) -> None:
        """Try an action that fits the actor's view, which may be outdated. It is often refused."""
        self.runner.run(self._one(self.played[chat], actor, self._choose(self.played[chat], actor, choice)))

    @rule(chat=CHATS, actor=ACTORS, choice=CHOICES)
    def do_something(self, chat: int, actor: int, choice: int) -> None:
        """Run an action that is allowed, by an actor with a current view."""
        self.look(chat, actor)
        self.runner.run(self._one(self.played[chat], actor, self._choose_working(self.played[chat], actor, choice)))

    @rule(chat=CHATS, choice=CHOICES)
    def drive(self, chat: int, choice: int) -> None:
        """Continue the work of the owner."""
        owners = [index for index, each in enumerate(self.played[chat].actors) if _owns(each, self.played[chat].chat)]
        self.do_something(chat, owners[0] if owners else 2, choice)

    @rule(chat=CHATS, actor=ACTORS, choices=st.tuples(CHOICES, CHOICES))
    def do_two_things_at_once(self, chat: int, actor: int, choices: tuple[int, int]) -> None:
        """Run one bundle of two transitions: it gets one version for both, or changes nothing."""
        played = self.played[chat]
        self.look(chat, actor)
        first = self._choose_working(played, actor, choices[0])
        second = self._choose(played, actor, choices[1])
        bundle = Attempt(f"{first.name} + {second.name}", first.actions + second.actions, first.fence)
        self.runner.run(self._one(played, actor, bundle))

    @rule(chat=CHATS, who=st.tuples(ACTORS, ACTORS), choices=st.tuples(CHOICES, CHOICES), working=st.booleans())
    def race(self, chat: int, who: tuple[int, int], choices: tuple[int, int], working: bool) -> None:
        played = self.played[chat]
        if working:
            for actor in who:
                self.look(chat, actor)
        choose = self._choose_working if working else self._choose
        one, other = choose(played, who[0], choices[0]), choose(played, who[1], choices[1])
        self.runner.run(self._race(played, who, (one, other)))

    @rule(chat=CHATS, actor=st.integers(2, 4))
    def start_a_second_task(self, chat: int, actor: int) -> None:
        """Run two tasks of one runner: the first makes the fence of the second stale, although the owner is the
        same.
        """
        played = self.played[chat]
        played.actors[actor] = Worker(played.actors[actor].name, played.chat, played.chat.owner)

    @rule(chat=CHATS)
    def lose_the_lease(self, chat: int) -> None:
        """Make the owner's heartbeat old, as after a pause, a network partition or a crash."""
        played = self.played[chat]
        self.runner.run(self.world.rig.sql(AGE_HEARTBEATS, played.copy.chat_id))
        played.chat = replace(played.chat, leased=False)

    @rule(chat=CHATS, who=st.tuples(st.integers(2, 4), st.integers(2, 4)))
    def race_to_acquire(self, chat: int, who: tuple[int, int]) -> None:
        self.runner.run(self._acquire(self.played[chat], who))

    def teardown(self) -> None:
        for played in self.played:
            if not played.is_settled:
                continue  # a step failed half-way and has told why
            versions = self.world.ledger.versions.pop(played.copy.chat_id)
            assert sorted(versions) == list(range(1, played.chat.snapshot + 1)), (
                "one hint per commit, no version missing"
            )
            # Two commits in flight may be announced in either order, never further apart.
            assert all(abs(version - place) <= 1 for place, version in enumerate(versions, start=1))

    # Choosing

    def _choose(self, played: Played, actor: int, choice: int) -> Attempt:
        attempts = list(played.actors[actor].attempts(next(self.turns)))
        return attempts[choice % len(attempts)]

    def _choose_working(self, played: Played, actor: int, choice: int) -> Attempt:
        attempts = list(played.actors[actor].attempts(next(self.turns)))
        working = [each for each in attempts if isinstance(_apply(played.chat, each), Chat)] or attempts
        return working[choice % len(working)]

    # Doing and comparing

    async def _one(self, played: Played, actor: int, attempt: Attempt) -> None:
        before, outcome = played.chat, _apply(played.chat, attempt)
        played.is_settled = False
        refusal = await self.world.attempt(played.copy, attempt)

        assert refusal == (outcome if isinstance(outcome, Refusal) else None)
        after = before if isinstance(outcome, Refusal) else outcome
        assert await self.world.observe(played.copy, after) == after
        assert state_model_invariants.violations(after) == []
        self.world.check_hints(played.copy, before, after)
        self._commit(played, actor, attempt, outcome)
        played.is_settled = True

    def _commit(self, played: Played, actor: int, attempt: Attempt, outcome: Chat | Refusal) -> None:
        if isinstance(outcome, Chat):
            played.chat = outcome
            played.actors[actor] = state_model_actors.after(played.actors[actor], attempt, outcome)

    async def _race(self, played: Played, who: tuple[int, int], attempts: tuple[Attempt, Attempt]) -> None:
        """Run two transitions concurrently. The result must equal that of one of the two orders."""
        played.is_settled = False
        refusals = await asyncio.gather(*(self.world.attempt(played.copy, attempt) for attempt in attempts))
        hints = [hint for hint in self.world.ledger.take(played.copy.chat_id) if isinstance(hint, ChatHint)]
        before = played.chat
        for order in ((0, 1), (1, 0)):
            outcomes, after = _in_order(before, [attempts[index] for index in order])
            told = [outcome if isinstance(outcome, Refusal) else None for outcome in outcomes]
            if told != [refusals[index] for index in order]:
                continue
            copy = deepcopy(played.copy)
            if not _same(await self.world.observe(copy, after), after, before):
                continue
            copy.updated_version, copy.runnable_version = after.touched, after.runnable_since or copy.runnable_version
            played.copy = copy
            for index, outcome in zip(order, outcomes, strict=True):
                self._commit(played, who[index], attempts[index], outcome)
            assert sorted(hint.snapshot_version for hint in hints) == list(
                range(before.snapshot + 1, after.snapshot + 1)
            )
            assert state_model_invariants.violations(after) == []
            played.is_settled = True
            return
        raise AssertionError(f"{attempts} on {before} ended as no order of the two would: {refusals}")

    async def _acquire(self, played: Played, who: tuple[int, int]) -> None:
        """Let several workers acquire a chat. Exactly one gets a free chat; none gets a chat that is idle or owned."""
        runners = [f"runner-{next(self.turns)}" for _ in who]
        won = await asyncio.gather(
            *(self._try_acquire(played, WORKERS[actor - 2], runner) for actor, runner in zip(who, runners, strict=True))
        )
        # One that waits for people's decisions, for as long as that takes, is nobody's to take.
        is_parked = bool(played.chat.asked) and played.chat.deadline is None
        is_free = played.chat.status in BUSY and not played.chat.leased and not is_parked
        assert sum(won) == is_free
        before = after = played.chat
        if is_free:
            actor, runner = who[won.index(True)], runners[won.index(True)]
            attempt = Attempt("try_acquire", (Action(transition=ACQUIRE, owner=(WORKERS[actor - 2], runner)),))
            outcome = _apply(before, attempt)
            assert isinstance(outcome, Chat)
            after = outcome
            self._commit(played, actor, attempt, after)
        assert await self.world.observe(played.copy, after) == after
        self.world.check_hints(played.copy, before, after)

    async def _try_acquire(self, played: Played, worker: str, runner: str) -> bool:
        async def admit(_: machine.Tx) -> bool:
            return True

        acquired = await machine.try_acquire(
            self.world.machine,
            played.copy.chat_id,
            worker_id=uuid_of(worker),
            runner_id=self.world.name(runner),
            admit=admit,
        )
        return acquired is not None


ACQUIRE = Transition.ACQUIRE
AGE_HEARTBEATS = "UPDATE chat_heartbeats SET heartbeat_at = heartbeat_at - interval '1 hour' WHERE chat_id = $1"


def _owns(actor: Actor, chat: Chat) -> bool:
    return isinstance(actor, Worker) and actor.owner is not None and actor.owner == chat.owner


def _apply(chat: Chat, attempt: Attempt) -> Chat | Refusal:
    return state_model.apply(chat, *attempt.actions, fence=attempt.fence)


def _in_order(chat: Chat, attempts: list[Attempt]) -> tuple[list[Chat | Refusal], Chat]:
    outcomes = []
    for attempt in attempts:
        outcome = _apply(chat, attempt)
        outcomes.append(outcome)
        chat = chat if isinstance(outcome, Refusal) else outcome
    return outcomes, chat


def _same(observed: Chat, expected: Chat, before: Chat) -> bool:
    """Return whether both are equal. If there were two commits, a time may belong to either of them."""
    return _blurred(observed, before) == _blurred(expected, before)


def _blurred(chat: Chat, before: Chat) -> Chat:
    latest = before.snapshot + 1
    since = None if chat.runnable_since is None else min(chat.runnable_since, latest)
    return replace(chat, touched=min(chat.touched, latest), runnable_since=since)


@contextmanager
def _running_world(database_url: str, runner: asyncio.Runner) -> Iterator[ReplayRig]:
    rigs = make_rig(database_url, pool_size=6)
    rig = runner.run(rigs.__aenter__())
    try:
        world = ReplayRig(rig, WORKERS)
        runner.run(world.prepare())
        yield world
    finally:
        runner.run(rigs.__aexit__(None, None, None))


def test_store_agrees_with_the_model_for_any_sequence_of_user_and_worker_actions(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A full queue must not be a rare guest.
    monkeypatch.setattr(queue_rows, "MAX_QUEUE", SMALL_QUEUE)
    with asyncio.Runner() as runner, _running_world(database_url, runner) as world:
        run_state_machine_as_test(lambda: Play(world, runner), settings=PROFILE)  # type: ignore[arg-type]
