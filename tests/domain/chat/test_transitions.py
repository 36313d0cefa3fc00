from __future__ import annotations

import re

import pytest

from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.states import ARCHIVED, EXISTING, HAS_QUEUE, State
from rookery.domain.chat.transitions import ALLOWED_WHEN_INVALID, TABLE, BusyBehavior, Transition, is_legal

# The table of state-machine.md, "Transition table", and what decisions 0026 and 0058 add. Kept apart from the
# code's own table on purpose: every other test derives its cases from that one, so a slip there would go unseen.
SPEC = {
    "create_chat": "N>R0",
    "set_archived": "W>XW XW>W E0>XE0 XE0>E0 E1>XE1 XE1>E1",
    "send_message(queue)": "W>R0 E0>R0 E1>R1 R0>R1 R1>R1 I0>I1 I1>I1 A0>A1 A1>A1",
    "send_message(steer)": "W>R0 E0>R0 E1>R1 R0>R1 R1>R1 I0>I1 I1>I1 A0>A1 A1>A1",
    "send_message(interrupt)": "W>R0 E0>R0 E1>R1 R0>I1 R1>I1 I0>I1 I1>I1 A0>R0 A1>R1",
    "edit_message": "W>R0 E0>R0 E1>R0 R0>R0 R1>R0 I0>R0 I1>R0 A0>R0 A1>R0",
    "request_compaction": "W>R0 E0>R0 E1>R1",
    "delete_queued_message": "E1>E0|E1 R1>R0|R1 I1>I0|I1 A1>A0|A1",
    "clear_queue": "E1>E0 R1>R0 I1>I0 A1>A0",
    "edit_queued_message": "E1>E1 R1>R1 I1>I1 A1>A1",
    "reorder_queue": "E1>E1 R1>R1 I1>I1 A1>A1",
    "promote_queued_message": "E1>R0|R1 R1>I1 I1>I1 A1>R0|R1",
    "interrupt": "R0>I0 R1>I1 A0>W A1>R0|R1|E1",
    "retry_turn": "E0>R0 E1>R1 W>R0",
    "wake_parent": "W>R0",
    "complete_requires_action": "A0>R0 A1>R1",
    "answer_approvals": "A0>R0 A1>R1",
    "record_generation_attempt": "R0>R0 R1>R1",
    "record_retry_state": "R0>R0 R1>R1",
    "commit_step": "R0>R0 R1>R0|R1",
    "enter_requires_action": "R0>A0 R1>A1",
    "ask_approvals": "R0>A0 R1>A1",
    "finish_turn": "R0>W R1>R0|R1",
    "finish_interruption": "I0>W I1>R0|R1|E1",
    "finish_error": "W>E0 R0>E0 R1>E1",
    "cancel_requires_action": "A0>R0 A1>R1",
    "reconcile_invalid_state": "INVALID>E0|E1",
    "give_way": "R0>R0 R1>R1",
}
OWNERSHIP = {Transition.ACQUIRE, Transition.ABANDON}
EDGES = {(source, target) for moves in TABLE.values() for source, targets in moves.items() for target in targets}


@pytest.mark.parametrize("name", list(SPEC))
def test_moves_are_those_of_the_specification(name: str) -> None:
    written = {}
    for move in SPEC[name].split():
        source, _, targets = move.partition(">")
        written[State(source)] = {State(target) for target in targets.split("|")}

    assert TABLE[Transition(name)] == written


def test_table_holds_every_transition_and_only_ownership_besides_the_specified_moves() -> None:
    assert set(TABLE) == set(Transition)
    assert set(TABLE) - set(map(Transition, SPEC)) == OWNERSHIP


@pytest.mark.parametrize("name", sorted(OWNERSHIP))
def test_ownership_changes_hands_in_every_existing_state_and_changes_none(name: Transition) -> None:
    assert TABLE[name] == {state: {state} for state in EXISTING}


def test_nothing_but_repair_and_ownership_touches_an_invalid_chat() -> None:
    touching = {name for name, moves in TABLE.items() if State.INVALID in moves}

    assert touching == ALLOWED_WHEN_INVALID == OWNERSHIP | {Transition.RECONCILE_INVALID_STATE}


def test_only_ownership_leaves_a_chat_invalid_and_nothing_makes_one_so() -> None:
    assert {source for source, target in EDGES if target is State.INVALID} == {State.INVALID}


def test_only_creation_starts_from_nothing_and_nothing_leads_back() -> None:
    assert {name for name, moves in TABLE.items() if State.N in moves} == {Transition.CREATE_CHAT}
    assert not any(target is State.N for _, target in EDGES)


def test_only_archiving_crosses_into_and_out_of_the_archive() -> None:
    crossing = {
        name
        for name, moves in TABLE.items()
        for source, targets in moves.items()
        if any((source in ARCHIVED) != (target in ARCHIVED) for target in targets)
    }

    assert crossing == {Transition.SET_ARCHIVED}


def test_archiving_and_unarchiving_bring_back_the_state_from_before() -> None:
    moves = TABLE[Transition.SET_ARCHIVED]

    for source, (target,) in ((source, tuple(targets)) for source, targets in moves.items()):
        assert moves[target] == {source}


def test_every_state_can_be_reached_from_nothing_by_transitions_alone() -> None:
    assert _reachable(State.N) == set(State) - {State.N, State.INVALID}


@pytest.mark.parametrize("state", sorted(EXISTING))
def test_every_chat_can_come_to_rest(state: State) -> None:
    assert State.W in _reachable(state) | {state}


@pytest.mark.parametrize(
    "name",
    [
        Transition.DELETE_QUEUED_MESSAGE,
        Transition.CLEAR_QUEUE,
        Transition.EDIT_QUEUED_MESSAGE,
        Transition.REORDER_QUEUE,
        Transition.PROMOTE_QUEUED_MESSAGE,
    ],
)
def test_queue_operations_need_a_backlog_that_is_not_archived(name: Transition) -> None:
    assert set(TABLE[name]) == HAS_QUEUE - ARCHIVED


def test_steering_moves_exactly_like_queueing() -> None:
    assert TABLE[Transition.SEND_MESSAGE_STEER] == TABLE[Transition.SEND_MESSAGE_QUEUE]


def test_each_busy_behaviour_is_a_transition_of_its_own() -> None:
    assert [busy.transition for busy in BusyBehavior] == [
        Transition.SEND_MESSAGE_QUEUE,
        Transition.SEND_MESSAGE_STEER,
        Transition.SEND_MESSAGE_INTERRUPT,
    ]


def test_a_move_is_legal_only_if_the_table_has_both_its_ends() -> None:
    assert is_legal(Transition.FINISH_TURN, State.R1, State.R0)
    assert not is_legal(Transition.FINISH_TURN, State.R1, State.W)
    assert not is_legal(Transition.FINISH_TURN, State.I0, State.W)


PAIRS = [(transition, state) for transition in Transition for state in State if state not in TABLE[transition]]


def test_refusals_read_as_sentences_that_say_what_to_do_next() -> None:
    for transition, state in PAIRS:
        refused = TransitionNotAllowed(transition, state, cause="state")

        said = str(refused)

        assert said == refused.reason, (transition, state)
        assert re.fullmatch(r"[A-Z][a-zA-Z ,;:]+\. [A-Z][a-zA-Z ,;]+\.", said), said
        assert not any(word in said.split() for word in (*State, "requires", "invalid")), said


def test_refusals_of_one_transition_differ_by_what_the_chat_is_doing() -> None:
    said = {
        state: str(TransitionNotAllowed(Transition.REQUEST_COMPACTION, state, cause="state"))
        for state in (State.R0, State.I0, State.A0)
    }

    assert said == {
        State.R0: "This chat cannot be compacted while it is running. Stop it, or wait for the end of its turn.",
        State.I0: "This chat cannot be compacted while it is being stopped. Wait a moment until it has stopped.",
        State.A0: "This chat cannot be compacted while it waits for tool results or approvals. "
        "Send the results or answers, or stop it.",
    }


def test_refusals_of_one_state_differ_by_what_was_wanted() -> None:
    said = [
        str(TransitionNotAllowed(transition, State.W, cause="state"))
        for transition in (Transition.INTERRUPT, Transition.CLEAR_QUEUE, Transition.COMPLETE_REQUIRES_ACTION)
    ]

    assert said == [
        "This chat cannot be stopped while it is idle. There is nothing to stop; send a message to continue.",
        "The queue of this chat cannot be cleared: the queue is empty. Reload the chat.",
        "This chat accepts no tool results while it is idle. Reload the chat to see its tool calls.",
    ]


def _reachable(start: State) -> set[State]:
    found: set[State] = set()
    frontier = {start}
    while frontier:
        frontier = {target for source, target in EDGES if source in frontier} - found
        found |= frontier
    return found
