"""The state model compared with the transition table: all actions of one actor, from the creation of a chat on."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from msgspec import Struct
from msgspec.structs import replace

from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import ALLOWED_WHEN_INVALID, TABLE, Transition
from tests.domain.chat import state_model, state_model_exploration, state_model_invariants
from tests.domain.chat.state_model_actors import User, Worker
from tests.domain.chat.state_model_exploration import Edge, Node
from tests.domain.chat.state_model_values import Chat, Fence, Kind, Refusal, Row

# These start an epoch without moving a message.
FRESH_EPOCH = frozenset({Transition.REQUEST_COMPACTION, Transition.RETRY_TURN, Transition.ANSWER_APPROVALS})
LEGAL = {(name, source, target) for name, moves in TABLE.items() for source in moves for target in moves[source]}
# Only where the account of the owner is disabled, and accounts are no part of the model. The store's matrix does these.
OF_DISABLED_OWNERS = {
    (Transition.INTERRUPT, State.A1, State.E1),
    (Transition.FINISH_INTERRUPTION, State.I1, State.E1),
}
WITH_VALID_STATES = {
    (name, source, target) for name, source, target in LEGAL if not {State.N, State.INVALID} & {source, target}
} - OF_DISABLED_OWNERS


class Walk(Struct):
    """The results of a walk over all kinds of chats."""

    edges: int
    kinds: set[Hashable]
    triples: set[tuple[Transition, State, State]]
    refused: dict[tuple[Transition, State], set[str]]
    untrue: list[str]
    unruly: list[str]


@pytest.fixture(scope="module")
def walk() -> Walk:
    found = Walk(0, set(), set(), {}, [], [])
    for edge in state_model_exploration.everything_one_can_do(
        Node(state_model_exploration.first_chat()), state_model_exploration.kind_of
    ):
        found.edges += 1
        source, outcome = edge.source.chat, edge.outcome
        if isinstance(outcome, Refusal):
            if len(edge.attempt.actions) == 1:
                found.refused.setdefault((edge.attempt.transition, source.state), set()).add(outcome.error)
            continue
        if len(edge.attempt.actions) == 1:
            found.triples.add((edge.attempt.transition, source.state, outcome.state))
        if broken := _broken_rules(edge, source, outcome):
            found.unruly.append(f"{edge.attempt.name} from {source}: {broken}")
        if (kind := state_model_exploration.kind_of(outcome)) not in found.kinds:
            found.kinds.add(kind)
            found.untrue += [f"{sentence}: {outcome}" for sentence in state_model_invariants.violations(outcome)]
    return found


def _broken_rules(edge: Edge, before: Chat, after: Chat) -> list[str]:
    """Return the violated rules about versions and rows, which hold for every commit."""
    names = {action.transition for action in edge.attempt.actions}
    moved = after.history_version != before.history_version
    grown = after.history[: len(before.history)]
    rules = {
        "the version grows by one": after.snapshot == before.snapshot + 1,
        "a version that moves is the new one": all(
            new in (old, after.snapshot) for old, new in zip(_versions(before), _versions(after), strict=True)
        ),
        "history moves with its rows or a fresh epoch": moved
        == (after.history != before.history or bool(names & FRESH_EPOCH)),
        "a moved history starts attempts again": not moved or (after.attempt == 0 and after.retry_state is None),
        "attempts are only counted up": moved or after.attempt - before.attempt in (0, 1),
        "the queue version moves with the queue": (after.queue_version != before.queue_version)
        == (after.queue != before.queue),
        "the retry version moves with the retry state": (after.retry_state_version != before.retry_state_version)
        == (after.retry_state != before.retry_state),
        "rows are only added and marked as deleted": all(
            new == old or (new == replace(old, deleted=True, revision=after.snapshot) and not old.deleted)
            for old, new in zip(before.history, grown, strict=True)
        ),
    }
    return [rule for rule, holds in rules.items() if not holds]


def _versions(chat: Chat) -> tuple[int, ...]:
    return chat.history_version, chat.queue_version, chat.retry_state_version, chat.touched


def test_every_reachable_chat_keeps_every_invariant(walk: Walk) -> None:
    assert walk.untrue == []
    assert len(walk.kinds) > 5000


def test_every_commit_moves_versions_and_rows_by_the_rules(walk: Walk) -> None:
    assert walk.unruly == []


def test_model_reaches_exactly_the_legal_moves_of_the_table(walk: Walk) -> None:
    assert walk.triples == WITH_VALID_STATES


def test_model_refuses_exactly_the_pairs_that_the_table_lacks(walk: Walk) -> None:
    for name in Transition:
        for source in set(State) - {State.N, State.INVALID}:
            if name is Transition.CREATE_CHAT or source in TABLE[name]:
                continue
            # A worker whose fence names another status is stale before the table is asked.
            errors = walk.refused.get((name, source), set()) - {"StaleFence"}
            assert errors <= {"ChatArchived" if source.is_archived else "TransitionNotAllowed"}, (name, source)


def test_new_chat_is_running_with_the_first_versions() -> None:
    chat = state_model.create(Row(Kind.USER, text="hello"))

    assert (Transition.CREATE_CHAT, State.N, chat.state) in LEGAL
    assert (chat.snapshot, chat.history_version, chat.queue_version, chat.retry_state_version) == (1, 1, 0, 0)
    assert (chat.attempt, chat.owner, [row.revision for row in chat.history]) == (0, None, [1])


def test_invalid_chat_can_only_be_reconciled_and_owned() -> None:
    edges = state_model_exploration.everything_one_can_do(
        Node(state_model_exploration.first_chat()), state_model_exploration.outline_of
    )
    chats = [edge.source.chat for edge in state_model_exploration.first_of_each(edges, lambda edge: edge.source)]
    triples = set()
    for valid in chats:
        chat = replace(valid, status="asleep", runnable_since=None)
        for actor in (User("ada", chat), Worker("w1", chat, chat.owner)):
            for attempt in actor.attempts(1):
                outcome = state_model.apply(chat, *attempt.actions)
                if attempt.transition not in ALLOWED_WHEN_INVALID:
                    assert outcome == Refusal("InvalidState")
                elif isinstance(outcome, Chat):
                    triples.add((attempt.transition, State.INVALID, outcome.state))
                    assert outcome.queue == chat.queue
                    assert outcome.state is State.INVALID or state_model_invariants.violations(outcome) == []

    assert triples == {each for each in LEGAL if each[1] is State.INVALID}


def test_missing_chat_is_told_to_people_and_stale_to_workers() -> None:
    action = next(User("ada", state_model_exploration.first_chat()).attempts(1)).actions[0]
    fence = Fence(owner=("w1", "r1"), status="running", history_version=1)

    assert state_model.apply(None, action) == Refusal("ChatNotFound")
    assert state_model.apply(None, action, fence=fence) == Refusal("StaleFence")
