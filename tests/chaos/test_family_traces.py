"""Each invariant of families finds its violation."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.chaos.family_jobs import Family
from tests.chaos.family_traces import Child, End, FamilyTrace, Waited, find_faults

PARENT, FIRST, SECOND = (UUID(int=number) for number in (1, 2, 3))


def child(chat_id: UUID, title: str) -> Child:
    return Child(chat_id=chat_id, title=title, parent_id=PARENT, root_id=PARENT, status="waiting", started=1, beats=0)


FINISHED = End(id=1, chat_id=FIRST, outcome="finished", told_by="wait", notice_id=None, woke_parent=False)
FAILED = End(id=2, chat_id=SECOND, outcome="error", told_by="notice", notice_id=9, woke_parent=True)
WAITED = Waited(call_id="w", limit=240.0, seconds=3.0, end_ids=[1], timed_out=False)
GOOD = FamilyTrace(
    family=Family.parse("f0 any 1:0.5 0:0.9!"),
    chat_id=PARENT,
    status="waiting",
    error=None,
    beats=0,
    answers=2,
    unanswered=[],
    failed=[],
    unbilled=0,
    children=[child(FIRST, "f0c0"), child(SECOND, "f0c1")],
    ends=[FINISHED, FAILED],
    notices={9: [SECOND]},
    waits=[WAITED],
)


def test_good_family_has_no_faults() -> None:
    assert find_faults(GOOD) == []


@pytest.mark.parametrize(
    ("trace", "fault"),
    [
        (replace(GOOD, status="running"), "the parent is running"),
        (replace(GOOD, beats=1), "the parent is at rest and has 1 heartbeats"),
        (replace(GOOD, unanswered=["w"]), "the call w has not one result"),
        (replace(GOOD, failed=["spawn_agent: lost"]), "a call failed: spawn_agent: lost"),
        (replace(GOOD, unbilled=2), "2 answers are not billed once"),
        (replace(GOOD, answers=1), "1 answers after 1 wakes"),
        (replace(GOOD, answers=3), "3 answers after 1 wakes"),
        (replace(GOOD, children=GOOD.children[:1]), "the children are ['f0c0']"),
        (replace(GOOD, children=[replace(GOOD.children[0], parent_id=None), GOOD.children[1]]), "has the parent None"),
        (replace(GOOD, children=[replace(GOOD.children[0], status="running"), GOOD.children[1]]), "f0c0 is running"),
        (replace(GOOD, children=[replace(GOOD.children[0], beats=2), GOOD.children[1]]), "f0c0 is at rest and has 2"),
        (replace(GOOD, children=[replace(GOOD.children[0], started=2), GOOD.children[1]]), "2 times instead of 1"),
        (replace(GOOD, ends=[FINISHED, FAILED, replace(FINISHED, id=3)]), "ended 2 times"),
        (replace(GOOD, ends=[FINISHED]), "ended 0 times"),
        (replace(GOOD, ends=[replace(FINISHED, outcome="interrupted"), FAILED]), "ended with ['interrupted']"),
        (replace(GOOD, ends=[replace(FINISHED, told_by=None), FAILED]), "the end 1 was not told"),
        (replace(GOOD, waits=[replace(WAITED, end_ids=[])]), "the end 1 is in no result"),
        (replace(GOOD, notices={}), "the notices are {}"),
        (replace(GOOD, notices={9: [SECOND, SECOND]}), "the notices are"),
        (replace(GOOD, notices={9: [SECOND], 10: [SECOND]}), "the notices are"),
        (
            replace(
                GOOD, ends=[replace(FINISHED, told_by="notice", notice_id=9), FAILED], notices={9: [FIRST, SECOND]}
            ),
            "for some of their ends only",
        ),
        (replace(GOOD, waits=[replace(WAITED, seconds=301.0)]), "took 301.0 s"),
        (replace(GOOD, waits=[replace(WAITED, timed_out=True)]), "was over after 3.0 s"),
    ],
)
def test_violation_is_found(trace: FamilyTrace, fault: str) -> None:
    assert any(fault in each for each in find_faults(trace)), find_faults(trace)
