"""The invariants of a chaos run: a correct history, and every possible violation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.chaos import invariants
from tests.chaos.run_results import Accepted, Call, ChatRecord, Effect, Result, Row, Run, Sighting

USER = Row(id=1, revision=1, role="user", text="c0m0 | post book", digest="d1")
CALLS = Row(id=2, revision=3, role="assistant", calls=(Call("c0m0-0-0", "post"), Call("c0m0-0-1", "book")), digest="d2")
RESULTS = Row(
    id=3, revision=5, role="tool", results=(Result("c0m0-0-0", number=7), Result("c0m0-0-1", number=8)), digest="d3"
)
ANSWER = Row(id=4, revision=7, role="assistant", text="Here it is: [c0m0] is done.", digest="d4")
SECOND = Row(id=5, revision=9, role="user", text="c0m1", digest="d5")
LAST = Row(id=6, revision=11, role="assistant", text="Here it is: [c0m1] is done.", digest="d6")

CHAT = ChatRecord(id="chat", snapshot_version=13, history_version=11, rows=(USER, CALLS, RESULTS, ANSWER, SECOND, LAST))
RUN = Run(
    chats=(CHAT,),
    accepted=(Accepted("chat", "c0m0"), Accepted("chat", "c0m1")),
    effects=(Effect(7, "c0m0-0-0"), Effect(8, "c0m0-0-1", "t")),
    tokens={"c0m0-0-0": frozenset({"s"}), "c0m0-0-1": frozenset({"t"})},
    sightings=(Sighting("chat", 2, 3, "d2"),),
    versions={"chat": ((1, 1), (4, 3), (13, 11))},
)


def rows(*changed: Row) -> Run:
    return replace(RUN, chats=(replace(CHAT, rows=changed),))


def chat(**fields: object) -> Run:
    return replace(RUN, chats=(replace(CHAT, **fields),))  # type: ignore[arg-type]


def result(*results: Result) -> Run:
    return rows(USER, CALLS, replace(RESULTS, results=results), ANSWER, SECOND, LAST)


Check = Callable[[Run], Iterator[str]]

CORRUPTIONS: dict[str, tuple[Check, Run]] = {
    "an answer is missing": (
        invariants.every_message_is_answered_once,
        rows(USER, CALLS, RESULTS, replace(ANSWER, text="Hm."), SECOND, LAST),
    ),
    "an answer is there twice": (
        invariants.every_message_is_answered_once,
        rows(USER, CALLS, RESULTS, ANSWER, SECOND, replace(LAST, text="[c0m0] [c0m1]")),
    ),
    "an answer came in a fragment and again": (
        invariants.every_message_is_answered_once,
        rows(USER, CALLS, RESULTS, replace(ANSWER, text="[c0m0] [c0"), SECOND, replace(LAST, text="[c0m0] [c0m1]")),
    ),
    "a message is lost": (
        invariants.every_message_is_there_once,
        rows(USER, CALLS, RESULTS, ANSWER, replace(LAST, text="[c0m1]")),
    ),
    "a message is duplicated": (
        invariants.every_message_is_there_once,
        rows(USER, CALLS, RESULTS, ANSWER, SECOND, replace(SECOND, id=6), replace(LAST, id=7)),
    ),
    "a message is there that was refused": (
        invariants.every_message_is_there_once,
        replace(RUN, accepted=RUN.accepted[:1]),
    ),
    "messages changed places": (
        invariants.messages_stay_in_order,
        rows(replace(SECOND, id=1), CALLS, replace(USER, id=5)),
    ),
    "an id fell": (invariants.ids_and_revisions_rise, rows(CALLS, replace(USER, revision=9))),
    "an id is there twice": (invariants.ids_and_revisions_rise, rows(USER, replace(CALLS, id=1))),
    "a revision fell": (invariants.ids_and_revisions_rise, rows(USER, CALLS, replace(RESULTS, revision=2))),
    "the history is behind its rows": (invariants.ids_and_revisions_rise, chat(history_version=10)),
    "the snapshot is behind the history": (invariants.ids_and_revisions_rise, chat(snapshot_version=10)),
    "a snapshot fell": (invariants.versions_never_fall, replace(RUN, versions={"chat": ((4, 3), (3, 3))})),
    "a snapshot fell by more than was lazy": (
        invariants.versions_never_fall,
        replace(RUN, database_crashes=1, versions={"chat": ((7, 3), (4, 3))}),
    ),
    "a history fell": (invariants.versions_never_fall, replace(RUN, versions={"chat": ((4, 3), (5, 2))})),
    "a committed message vanished": (
        invariants.committed_messages_stay,
        replace(RUN, sightings=(Sighting("chat", 99, 3, "d"),)),
    ),
    "a committed message changed": (
        invariants.committed_messages_stay,
        replace(RUN, sightings=(Sighting("chat", 2, 3, "other"),)),
    ),
    "a committed message has a new revision": (
        invariants.committed_messages_stay,
        replace(RUN, sightings=(Sighting("chat", 2, 4, "d2"),)),
    ),
    "a call has no result": (invariants.calls_and_results_pair_up, result(Result("c0m0-0-0", number=7))),
    "the last call has no result": (invariants.calls_and_results_pair_up, rows(USER, CALLS)),
    "a result has no call": (
        invariants.calls_and_results_pair_up,
        result(*RESULTS.results, Result("c9m9-0-0", number=1)),
    ),
    "a call has two results": (invariants.calls_and_results_pair_up, result(*RESULTS.results, RESULTS.results[0])),
    "a batch was committed twice": (
        invariants.calls_and_results_pair_up,
        rows(USER, CALLS, RESULTS, replace(RESULTS, id=4)),
    ),
    "a step was committed twice": (
        invariants.calls_and_results_pair_up,
        rows(USER, CALLS, RESULTS, replace(CALLS, id=4), replace(RESULTS, id=5)),
    ),
    "a result came before its call": (
        invariants.calls_and_results_pair_up,
        rows(USER, replace(RESULTS, id=2), replace(CALLS, id=3)),
    ),
    "a chat still runs": (invariants.no_chat_is_stuck, chat(status="running")),
    "a chat failed": (invariants.no_chat_is_stuck, chat(status="error", error="Oh.")),
    "a backlog was left": (invariants.no_chat_is_stuck, chat(queued=1)),
    "an effect happened twice": (
        invariants.effects_happen_once,
        replace(RUN, effects=(*RUN.effects, Effect(9, "c0m0-0-0"))),
    ),
    "an effect was reported and did not happen": (
        invariants.effects_happen_once,
        replace(RUN, effects=RUN.effects[1:]),
    ),
    "another effect was reported": (
        invariants.effects_happen_once,
        result(Result("c0m0-0-0", number=7), Result("c0m0-0-1", number=7)),
    ),
    "success was reported without an effect": (
        invariants.effects_happen_once,
        result(Result("c0m0-0-0"), Result("c0m0-0-1", number=8)),
    ),
    "a replay brought another token": (
        invariants.replays_bring_the_same_token,
        replace(RUN, tokens={"c0m0-0-1": frozenset({"t", "u"})}),
    ),
    "a provider refused a request": (
        invariants.providers_refuse_nothing,
        replace(RUN, refusals=("messages.1: unexpected `tool_use_id`",)),
    ),
}


@pytest.mark.parametrize("check", invariants.INVARIANTS, ids=lambda check: check.__name__)
def test_nothing_is_wrong_with_a_right_history(check: Check) -> None:
    assert list(check(RUN)) == []


@pytest.mark.parametrize(("check", "run"), CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_corrupted_history_is_noticed(check: Check, run: Run) -> None:
    assert list(check(run)) != []


def test_every_invariant_has_a_history_that_breaks_it() -> None:
    assert {check for check, _ in CORRUPTIONS.values()} == set(invariants.INVARIANTS)


def test_steering_or_interrupting_message_may_overtake_others() -> None:
    third = replace(SECOND, id=7, revision=12, text="c0m2")
    steered = replace(
        RUN,
        chats=(replace(CHAT, rows=(USER, third, SECOND)),),
        accepted=(*RUN.accepted, Accepted("chat", "c0m2", overtakes=True)),
    )

    assert list(invariants.messages_stay_in_order(steered)) == []


def test_call_whose_outcome_is_unknown_may_have_happened_or_not() -> None:
    unknown = result(Result("c0m0-0-0", is_error=True), Result("c0m0-0-1", number=8))

    assert list(invariants.effects_happen_once(unknown)) == []
    assert list(invariants.effects_happen_once(replace(unknown, effects=RUN.effects[1:]))) == []


def test_faults_name_the_invariant_they_break() -> None:
    faults = invariants.find_faults(chat(status="running"))

    assert faults == ["no_chat_is_stuck: chat: running, 0 queued, error None"]


def test_crash_of_the_database_may_undo_only_unacknowledged_changes() -> None:
    run = replace(RUN, database_crashes=1, versions={"chat": ((5, 3), (3, 3), (6, 4))})

    assert list(invariants.versions_never_fall(run)) == []
