"""The invariants of debug records find what they look for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.chaos.debug_records import INVARIANTS, RunRecord, StepRecord, find_faults

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=5)
CHAT = UUID(int=1)
STEP = StepRecord(
    number=1,
    status="completed",
    said="hi",
    message_id=7,
    answer_role="assistant",
    answer_text="hi",
    started_at=NOON,
    finished_at=LATER,
)
RUN = RunRecord(
    id=UUID(int=2),
    chat_id=CHAT,
    kind="chat_turn",
    status="completed",
    summary={"step_count": 1},
    trigger_message_id=6,
    trigger_role="user",
    snapshot_version=3,
    started_at=NOON,
    finished_at=LATER,
    steps=[STEP],
)
LOST = replace(RUN, status="interrupted", steps=[replace(STEP, status="interrupted", message_id=None)])
OTHER = replace(RUN, id=UUID(int=3), steps=[], summary={"step_count": 0})

WRONG: dict[str, list[RunRecord]] = {
    "nothing_stays_open": [replace(RUN, status="in_progress", finished_at=None)],
    "times_go_forward": [replace(RUN, finished_at=NOON - timedelta(seconds=1))],
    "turns_belong_to_a_users_message": [replace(RUN, trigger_role="assistant")],
    "answers_are_the_stored_ones": [replace(RUN, steps=[replace(STEP, answer_text="other")])],
    "no_answer_has_two_steps": [RUN, replace(RUN, id=UUID(int=4))],
    "successes_have_no_error": [replace(RUN, steps=[replace(STEP, error="{}")])],
    "summaries_count_their_steps": [replace(RUN, summary={"step_count": 2})],
    "continued_runs_are_of_the_same_turn": [replace(RUN, summary={"step_count": 1, "continues": str(UUID(int=9))})],
}


def test_good_records_have_no_fault() -> None:
    continued = replace(OTHER, summary={"step_count": 0, "continues": str(RUN.id)}, snapshot_version=5)

    assert find_faults([RUN, continued]) == []
    assert find_faults([LOST]) == []


@pytest.mark.parametrize("check", INVARIANTS, ids=lambda check: check.__name__)
def test_violation_is_found_by(check: Callable[..., object]) -> None:
    faults = find_faults(WRONG[check.__name__])

    assert [fault.split(":")[0] for fault in faults] == [check.__name__]
