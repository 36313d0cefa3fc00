"""The traces of families in a run with subagents, and the invariants that they must satisfy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from tests.chaos.family_jobs import Family

# Added to the time of a wait: takeovers, restarts of the database, and a busy machine.
LATE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A child chat. `started` counts its tasks, `beats` its rows of heartbeats."""

    chat_id: UUID
    title: str
    parent_id: UUID | None
    root_id: UUID | None
    status: str
    started: int
    beats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    id: int
    chat_id: UUID
    outcome: str
    told_by: str | None
    notice_id: int | None
    woke_parent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """A call of `wait_agent`: its time limit, the seconds until its result, and the ends that the result reports."""

    call_id: str
    limit: float
    seconds: float | None
    end_ids: Sequence[int]
    timed_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTrace:
    """What a family has left in the database. `notices` has the children of each notice by the id of its row.

    `answers` counts the parent's answers without tool calls: each ends a turn. `unanswered` are calls without exactly
    one result, `failed` results with an error. `unbilled` counts the answers of the family without exactly one entry in
    the ledger.
    """

    family: Family
    chat_id: UUID
    status: str
    error: str | None
    beats: int
    answers: int
    unanswered: Sequence[str]
    failed: Sequence[str]
    unbilled: int
    children: Sequence[Child]
    ends: Sequence[End]
    notices: dict[int, Sequence[UUID]]
    waits: Sequence[Waited]

    @property
    def wakes(self) -> int:
        return len({end.notice_id for end in self.ends if end.woke_parent})


def find_faults(trace: FamilyTrace) -> list[str]:
    """Return the violations of all invariants."""
    checks = (_parent, _children, _ends, _told, _waits)
    return [f"{trace.family} ({trace.chat_id}): {fault}" for check in checks for fault in check(trace)]


def _parent(trace: FamilyTrace) -> Iterator[str]:
    if trace.status != "waiting":
        yield f"the parent is {trace.status}: {trace.error}"
    if trace.beats:
        yield f"the parent is at rest and has {trace.beats} heartbeats"
    for call_id in trace.unanswered:
        yield f"the call {call_id} has not one result"
    for result in trace.failed:
        yield f"a call failed: {result}"
    if trace.unbilled:
        yield f"{trace.unbilled} answers are not billed once"
    # One turn for the user's message, and one for each wake.
    if trace.answers != 1 + trace.wakes:
        yield f"{trace.answers} answers after {trace.wakes} wakes"


def _children(trace: FamilyTrace) -> Iterator[str]:
    titles = [trace.family.title(place) for place in range(len(trace.family.tasks))]
    if sorted(child.title for child in trace.children) != titles:
        yield f"the children are {[child.title for child in trace.children]}"
        return
    for child in trace.children:
        place = titles.index(child.title)
        if (child.parent_id, child.root_id) != (trace.chat_id, trace.chat_id):
            yield f"{child.title} has the parent {child.parent_id} and the root {child.root_id}"
        if child.status not in ("waiting", "error"):
            yield f"{child.title} is {child.status}"
        if child.started != trace.family.turns(place):
            yield f"{child.title} was started {child.started} times instead of {trace.family.turns(place)}"
        if child.beats:
            yield f"{child.title} is at rest and has {child.beats} heartbeats"


def _ends(trace: FamilyTrace) -> Iterator[str]:
    for child in trace.children:
        outcomes = [end.outcome for end in trace.ends if end.chat_id == child.chat_id]
        if len(outcomes) != child.started:
            yield f"{child.title} was started {child.started} times and ended {len(outcomes)} times: {outcomes}"
        place = int(child.title.rpartition("c")[2])
        expected = ["error" if trace.family.tasks[place].fails else "finished", "finished"][: len(outcomes)]
        if outcomes != expected:
            yield f"{child.title} ended with {outcomes} instead of {expected}"


def _told(trace: FamilyTrace) -> Iterator[str]:
    noticed: dict[int, set[UUID]] = {}
    waited = {end_id for wait in trace.waits for end_id in wait.end_ids}
    for end in trace.ends:
        if end.told_by is None:
            yield f"the end {end.id} was not told"
        elif end.told_by == "wait" and not any(
            each.chat_id == end.chat_id and each.id >= end.id and each.id in waited for each in trace.ends
        ):
            yield f"the end {end.id} is in no result"
        elif end.notice_id is not None:
            noticed.setdefault(end.notice_id, set()).add(end.chat_id)
    # Several ends of one child share one part of a notice.
    expected = {notice_id: sorted(children) for notice_id, children in noticed.items()}
    found = {notice_id: sorted(children) for notice_id, children in trace.notices.items()}
    if found != expected:
        yield f"the notices are {found} instead of {expected}"
    woke = {end.notice_id for end in trace.ends if end.woke_parent}
    if wrong := woke & {end.notice_id for end in trace.ends if not end.woke_parent}:
        yield f"the notices {wrong} woke the parent for some of their ends only"


def _waits(trace: FamilyTrace) -> Iterator[str]:
    for wait in trace.waits:
        if wait.seconds is None or wait.seconds > wait.limit + LATE_SECONDS:
            yield f"the wait {wait.call_id} of {wait.limit:g} s took {wait.seconds} s"
        if wait.timed_out and wait.seconds is not None and wait.seconds < wait.limit:
            yield f"the wait {wait.call_id} of {wait.limit:g} s was over after {wait.seconds} s"
