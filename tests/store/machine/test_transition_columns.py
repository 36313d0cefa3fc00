"""The columns that each transition sets, clears or keeps, from every state in which it is legal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec
import pytest_asyncio

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import TABLE, Transition
from tests.database import Server, fresh_database
from tests.store.machine.machine_rig import FAILED, Rig, make_rig
from tests.store.machine.transition_calls import MOVES, RETRY

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ATTEMPT = 7

SENDS = {
    Transition.SEND_MESSAGE_QUEUE,
    Transition.SEND_MESSAGE_STEER,
    Transition.SEND_MESSAGE_INTERRUPT,
}
QUEUED_SENDS = SENDS - {Transition.SEND_MESSAGE_INTERRUPT}
UPKEEP = {
    Transition.DELETE_QUEUED_MESSAGE,
    Transition.CLEAR_QUEUE,
    Transition.EDIT_QUEUED_MESSAGE,
    Transition.REORDER_QUEUE,
}
OWNERSHIP = {Transition.ACQUIRE, Transition.ABANDON, Transition.GIVE_WAY}
RECORDS = {Transition.RECORD_GENERATION_ATTEMPT, Transition.RECORD_RETRY_STATE}

RUNNING = (State.R0, State.R1)
ACTION = (State.A0, State.A1)
ERROR = (State.E0, State.E1, State.XE0, State.XE1)

# What moves the history, from which states. `enter_requires_action` is missing: its move commits the call first.
MOVES_HISTORY = {
    Transition.SEND_MESSAGE_QUEUE: "W E0 E1",
    Transition.SEND_MESSAGE_STEER: "W E0 E1",
    Transition.SEND_MESSAGE_INTERRUPT: "W E0 E1 A0 A1",
    Transition.EDIT_MESSAGE: "W E0 E1 R0 R1 I0 I1 A0 A1",
    Transition.REQUEST_COMPACTION: "W E0 E1",
    Transition.RETRY_TURN: "W E0 E1",
    Transition.WAKE_PARENT: "W",
    Transition.PROMOTE_QUEUED_MESSAGE: "E1 A1",
    Transition.INTERRUPT: "A0 A1",
    Transition.COMPLETE_REQUIRES_ACTION: "A0 A1",
    Transition.CANCEL_REQUIRES_ACTION: "A0 A1",
    Transition.ANSWER_APPROVALS: "A0 A1",
    Transition.COMMIT_STEP: "R0 R1",
    Transition.FINISH_TURN: "R1",
    Transition.FINISH_INTERRUPTION: "I0 I1",
}

# Their moves insert the calls that the chat then waits with.
PARKING = {Transition.ENTER_REQUIRES_ACTION, Transition.ASK_APPROVALS}

MOVES_QUEUE = {
    Transition.SEND_MESSAGE_QUEUE: "E1 R0 R1 I0 I1 A0 A1",
    Transition.SEND_MESSAGE_STEER: "E1 R0 R1 I0 I1 A0 A1",
    Transition.SEND_MESSAGE_INTERRUPT: "R0 R1 I0 I1",
    Transition.EDIT_MESSAGE: "E1 R1 I1 A1",
    Transition.DELETE_QUEUED_MESSAGE: "E1 R1 I1 A1",
    Transition.CLEAR_QUEUE: "E1 R1 I1 A1",
    Transition.EDIT_QUEUED_MESSAGE: "E1 R1 I1 A1",
    Transition.REORDER_QUEUE: "E1 R1 I1 A1",
    Transition.PROMOTE_QUEUED_MESSAGE: "E1 A1",
    Transition.INTERRUPT: "A1",
    Transition.FINISH_TURN: "R1",
    Transition.FINISH_INTERRUPTION: "I1",
}


class Outcome(msgspec.Struct, frozen=True):
    """One legal transition: every column of the chat before and after it."""

    transition: Transition
    source: State
    before: dict[str, Any]
    after: dict[str, Any]
    started_at: datetime

    def kept(self, column: str) -> bool:
        return bool(self.before[column] == self.after[column])

    def cleared(self, column: str) -> bool:
        return self.before[column] is not None and self.after[column] is None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outcomes(database_server: Server) -> AsyncIterator[list[Outcome]]:
    async with fresh_database(database_server) as url, make_rig(url) as rig:
        legal = [(name, source) for name, moves in TABLE.items() for source in moves if source is not State.N]
        # The invalid ones last: making one drops the constraints that watch over the others.
        legal.sort(key=lambda pair: pair[1] is State.INVALID)
        yield [await _run(rig, name, source) for name, source in legal]


async def _run(rig: Rig, name: Transition, source: State) -> Outcome:
    invalid = source is State.INVALID
    chat_id = await (rig.invalid_chat(queued=2) if invalid else rig.chat(source, queued=2))
    await _fill(rig, chat_id, invalid=invalid)
    before = await rig.columns(chat_id)
    started_at = await rig.value("SELECT clock_timestamp()")
    assert isinstance(started_at, datetime)
    await rig.update(chat_id, lambda tx: MOVES[name](rig, tx))
    return Outcome(name, source, before, await rig.columns(chat_id), started_at)


async def _fill(rig: Rig, chat_id: ChatId, *, invalid: bool) -> None:
    """Set every column to a value that the chat's status allows; an invalid chat gets all of them."""
    marked = "true" if invalid else "status = 'running'"
    async with rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("UPDATE chats SET snapshot_version = snapshot_version + 1 WHERE id = $1", chat_id)
        await conn.execute(
            "UPDATE chats SET worker_id = $2, runner_id = $3, updated_at = $4, generation_attempt = $5,"
            " last_reasoning_effort = 'low', compaction_resume = " + marked + ","
            " compaction_requested_at = CASE WHEN " + marked + " THEN $4::timestamptz END WHERE id = $1",
            chat_id,
            rig.worker,
            uuid4(),
            LONG_AGO,
            ATTEMPT,
        )
        await conn.execute("""UPDATE chats SET retry_state = '{"error": "old"}' WHERE id = $1""", chat_id)
        if invalid:
            await conn.execute(
                "UPDATE chats SET archived = true, archived_at = $2, requires_action_deadline_at = $2 WHERE id = $1",
                chat_id,
                LONG_AGO,
            )


def names(outcomes: list[Outcome], holds: Callable[[Outcome], bool]) -> set[Transition]:
    """Return the transitions for which the condition holds. It must hold for all of their outcomes or for none."""
    found = {outcome.transition for outcome in outcomes if holds(outcome)}
    mixed = {outcome.transition for outcome in outcomes if not holds(outcome)} & found
    assert mixed == set()
    return found


def starting_in(outcomes: list[Outcome], states: tuple[State, ...]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.source in states]


def test_owner_is_changed_by_acquire_and_let_go_by_leaving_and_by_fresh_starts(outcomes: list[Outcome]) -> None:
    cleared = names(outcomes, lambda each: each.cleared("worker_id") and each.cleared("runner_id"))
    replaced = names(outcomes, lambda each: not each.kept("runner_id") and each.after["runner_id"] is not None)
    kept = names(outcomes, lambda each: each.kept("worker_id") and each.kept("runner_id"))

    assert cleared == {
        Transition.ABANDON,
        Transition.GIVE_WAY,
        Transition.REQUEST_COMPACTION,
        Transition.RETRY_TURN,
    }
    assert replaced == {Transition.ACQUIRE}
    assert kept == set(MOVES) - cleared - replaced


def test_error_is_cleared_by_every_transition_that_starts_a_turn_and_by_no_other(outcomes: list[Outcome]) -> None:
    failed = starting_in(outcomes, ERROR)
    cleared = names(failed, lambda each: each.cleared("last_error"))
    kept = names(failed, lambda each: each.kept("last_error"))

    assert cleared == SENDS | {
        Transition.EDIT_MESSAGE,
        Transition.PROMOTE_QUEUED_MESSAGE,
        Transition.REQUEST_COMPACTION,
        Transition.RETRY_TURN,
    }
    assert kept == UPKEEP | OWNERSHIP - {Transition.GIVE_WAY} | {Transition.SET_ARCHIVED}


def test_error_is_set_by_finish_error_and_by_repair_only(outcomes: list[Outcome]) -> None:
    healthy = [each for each in outcomes if each.before["last_error"] is None]

    setting = names(healthy, lambda each: each.after["last_error"] is not None)

    assert setting == {Transition.FINISH_ERROR}
    (finished, *_) = [each for each in outcomes if each.transition is Transition.FINISH_ERROR]
    assert msgspec.json.decode(finished.after["last_error"]) == msgspec.to_builtins(FAILED)
    (repaired,) = [each for each in outcomes if each.transition is Transition.RECONCILE_INVALID_STATE]
    assert not repaired.kept("last_error")
    assert "Send or edit a message" in repaired.after["last_error"]


def test_deadline_lasts_exactly_as_long_as_the_chat_waits_for_results(outcomes: list[Outcome]) -> None:
    parked = starting_in(outcomes, ACTION)
    kept = names(parked, lambda each: each.kept("requires_action_deadline_at"))
    cleared = names(parked, lambda each: each.cleared("requires_action_deadline_at"))

    assert kept == QUEUED_SENDS | UPKEEP | OWNERSHIP - {Transition.GIVE_WAY}
    assert cleared == {
        Transition.SEND_MESSAGE_INTERRUPT,
        Transition.EDIT_MESSAGE,
        Transition.PROMOTE_QUEUED_MESSAGE,
        Transition.INTERRUPT,
        Transition.COMPLETE_REQUIRES_ACTION,
        Transition.CANCEL_REQUIRES_ACTION,
        Transition.ANSWER_APPROVALS,
    }


def test_deadline_is_set_by_entering_and_cleared_by_repair(outcomes: list[Outcome]) -> None:
    others = [each for each in outcomes if each.before["requires_action_deadline_at"] is None]
    invalid = starting_in(outcomes, (State.INVALID,))

    assert names(others, lambda each: each.after["requires_action_deadline_at"] is not None) == {
        Transition.ENTER_REQUIRES_ACTION
    }
    assert names(invalid, lambda each: each.cleared("requires_action_deadline_at")) == {
        Transition.RECONCILE_INVALID_STATE
    }


def test_compaction_marker_is_cleared_by_every_transition_that_ends_or_replaces_the_turn(
    outcomes: list[Outcome],
) -> None:
    running = starting_in(outcomes, RUNNING)
    kept = names(running, lambda each: each.kept("compaction_requested_at") and each.after["compaction_resume"])
    cleared = names(running, lambda each: each.cleared("compaction_requested_at"))

    assert kept == QUEUED_SENDS | UPKEEP | OWNERSHIP | RECORDS | {Transition.COMMIT_STEP}
    assert cleared == {
        Transition.FINISH_TURN,
        Transition.FINISH_ERROR,
        Transition.ENTER_REQUIRES_ACTION,
        Transition.ASK_APPROVALS,
        Transition.INTERRUPT,
        Transition.SEND_MESSAGE_INTERRUPT,
        Transition.EDIT_MESSAGE,
        Transition.PROMOTE_QUEUED_MESSAGE,
    }


def test_compaction_marker_is_set_by_a_request_only_and_cleared_by_repair(outcomes: list[Outcome]) -> None:
    others = [each for each in outcomes if each.before["compaction_requested_at"] is None]
    invalid = starting_in(outcomes, (State.INVALID,))

    assert names(others, lambda each: each.after["compaction_requested_at"] is not None) == {
        Transition.REQUEST_COMPACTION
    }
    assert names(invalid, lambda each: each.cleared("compaction_requested_at")) == {Transition.RECONCILE_INVALID_STATE}


def test_resume_never_outlives_the_marker(outcomes: list[Outcome]) -> None:
    assert [
        (each.transition, each.source)
        for each in outcomes
        if each.after["compaction_requested_at"] is None and each.after["compaction_resume"]
    ] == []


def test_archive_flag_and_its_time_change_by_archiving_and_repair_only(outcomes: list[Outcome]) -> None:
    changed = {each.transition for each in outcomes if not each.kept("archived") or not each.kept("archived_at")}

    assert changed == {Transition.SET_ARCHIVED, Transition.RECONCILE_INVALID_STATE}
    for each in outcomes:
        assert each.after["archived"] == (each.after["archived_at"] is not None)
        if each.transition is Transition.SET_ARCHIVED:
            assert each.after["archived"] is not each.before["archived"]
            assert not each.after["archived"] or each.after["archived_at"] >= each.started_at
        if each.transition is Transition.RECONCILE_INVALID_STATE:
            assert not each.after["archived"]


def test_archiving_touches_neither_status_nor_error_nor_history_nor_queue(outcomes: list[Outcome]) -> None:
    untouched = (
        "status",
        "last_error",
        "history_version",
        "queue_version",
        "queue_len",
        "generation_attempt",
        "retry_state",
        "runnable_since",
    )

    for each in outcomes:
        if each.transition is Transition.SET_ARCHIVED:
            assert [column for column in untouched if not each.kept(column)] == []


def test_place_in_the_list_moves_with_what_people_see_by_the_clock_of_the_database(outcomes: list[Outcome]) -> None:
    kept = names(outcomes, lambda each: each.kept("updated_at"))

    assert kept == OWNERSHIP | RECORDS | UPKEEP | {Transition.SET_ARCHIVED}
    assert all(each.after["updated_at"] >= each.started_at for each in outcomes if each.transition not in kept)


def test_model_and_effort_are_never_cleared(outcomes: list[Outcome]) -> None:
    assert names(
        outcomes, lambda each: each.kept("last_model_config_id") and each.kept("last_reasoning_effort")
    ) == set(MOVES)


def test_ownership_changes_nothing_but_the_owner(outcomes: list[Outcome]) -> None:
    for each in outcomes:
        if each.transition in OWNERSHIP:
            changed = {column for column in each.before if not each.kept(column)}
            assert changed - {"worker_id"} == {"runner_id", "snapshot_version"}


def test_metadata_counter_stays_when_no_metadata_changes(outcomes: list[Outcome]) -> None:
    assert names(outcomes, lambda each: each.kept("meta_version")) == set(MOVES)


def test_waiting_place_is_kept_while_a_chat_stays_runnable(outcomes: list[Outcome]) -> None:
    for each in outcomes:
        before, after = each.before["runnable_since"], each.after["runnable_since"]
        if before is not None and after is not None:
            assert after == before
        elif after is not None:
            assert after >= each.started_at


def test_history_version_moves_with_history_and_fresh_epochs_only(outcomes: list[Outcome]) -> None:
    moved: dict[Transition, set[State]] = {}
    for each in outcomes:
        if each.transition not in PARKING and not each.kept("history_version"):
            moved.setdefault(each.transition, set()).add(each.source)
            assert each.after["history_version"] == each.after["snapshot_version"]

    assert moved == {name: set(map(State, states.split())) for name, states in MOVES_HISTORY.items()}


def test_queue_version_moves_with_the_queue_only(outcomes: list[Outcome]) -> None:
    moved: dict[Transition, set[State]] = {}
    for each in outcomes:
        if not each.kept("queue_version"):
            moved.setdefault(each.transition, set()).add(each.source)
            assert each.after["queue_version"] == each.after["snapshot_version"]

    assert moved == {name: set(map(State, states.split())) for name, states in MOVES_QUEUE.items()}


def test_snapshot_version_rises_by_one_with_every_transition(outcomes: list[Outcome]) -> None:
    assert {each.after["snapshot_version"] - each.before["snapshot_version"] for each in outcomes} == {1}


def test_attempt_starts_over_with_the_history_and_counts_otherwise(outcomes: list[Outcome]) -> None:
    for each in outcomes:
        expected = ATTEMPT
        if not each.kept("history_version"):
            expected = 0
        elif each.transition is Transition.RECORD_GENERATION_ATTEMPT:
            expected = ATTEMPT + 1
        assert each.after["generation_attempt"] == expected, (each.transition, each.source)


def test_retry_state_goes_with_history_attempt_and_turn_and_its_version_says_when(outcomes: list[Outcome]) -> None:
    ends = (
        Transition.FINISH_TURN,
        Transition.FINISH_ERROR,
        Transition.FINISH_INTERRUPTION,
        Transition.INTERRUPT,
    )
    for each in outcomes:
        is_at_rest = each.transition in ends and each.after["status"] in ("waiting", "error")
        if each.transition is Transition.RECORD_RETRY_STATE:
            assert msgspec.json.decode(each.after["retry_state"]) == msgspec.to_builtins(RETRY)
        elif each.kept("history_version") and each.kept("generation_attempt") and not is_at_rest:
            assert each.kept("retry_state")
        else:
            assert each.after["retry_state"] is None
        moved = each.after["retry_state_version"] == each.after["snapshot_version"]
        assert moved is not each.kept("retry_state")
        assert moved or each.kept("retry_state_version")


def test_owner_and_family_of_a_chat_stay(outcomes: list[Outcome]) -> None:
    fixed = ("id", "owner_id", "parent_chat_id", "root_chat_id", "created_at", "title", "dynamic_tools")

    assert all(each.kept(column) for each in outcomes for column in fixed)
