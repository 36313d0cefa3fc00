"""Chat statuses, execution states, and the function that derives the state.

The execution state is not stored. It is a function of the status, the archived flag and the length of the queue, so the
row and its state cannot disagree.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The stored column `chats.status`."""

    WAITING = "waiting"
    RUNNING = "running"
    INTERRUPTING = "interrupting"
    REQUIRES_ACTION = "requires_action"
    ERROR = "error"


class State(StrEnum):
    """An execution state. N: no row, W: waiting, E: error, R: running, I: interrupting, A: requires_action.

    0: the queue is empty, 1: it is not empty; X: archived.
    """

    N = "N"
    W = "W"
    E0 = "E0"
    E1 = "E1"
    R0 = "R0"
    R1 = "R1"
    I0 = "I0"
    I1 = "I1"
    A0 = "A0"
    A1 = "A1"
    XW = "XW"
    XE0 = "XE0"
    XE1 = "XE1"
    INVALID = "INVALID"

    @property
    def is_runnable(self) -> bool:
        """Return whether a worker should own the chat. A0 and A1 need a worker that acts at the deadline."""
        return self in RUNNABLE

    @property
    def is_archived(self) -> bool:
        return self in ARCHIVED

    @property
    def has_queue(self) -> bool:
        return self in HAS_QUEUE


RUNNABLE = frozenset({State.R0, State.R1, State.I0, State.I1, State.A0, State.A1})
ARCHIVED = frozenset({State.XW, State.XE0, State.XE1})
HAS_QUEUE = frozenset({State.E1, State.R1, State.I1, State.A1, State.XE1})
EXISTING = frozenset(State) - {State.N}

# The valid tuples (status, archived, queue not empty). Every other tuple is INVALID.
_STATES: dict[tuple[str, bool, bool], State] = {
    (Status.WAITING, False, False): State.W,
    (Status.ERROR, False, False): State.E0,
    (Status.ERROR, False, True): State.E1,
    (Status.RUNNING, False, False): State.R0,
    (Status.RUNNING, False, True): State.R1,
    (Status.INTERRUPTING, False, False): State.I0,
    (Status.INTERRUPTING, False, True): State.I1,
    (Status.REQUIRES_ACTION, False, False): State.A0,
    (Status.REQUIRES_ACTION, False, True): State.A1,
    (Status.WAITING, True, False): State.XW,
    (Status.ERROR, True, False): State.XE0,
    (Status.ERROR, True, True): State.XE1,
}

STATUS_OF: dict[State, Status] = {state: Status(key[0]) for key, state in _STATES.items()}


def classify(status: str | None, *, archived: bool = False, queue_len: int = 0) -> State:
    """Return the execution state of a row. A status of None means that there is no row.

    The status is a plain string, because a row may have a status that this version does not know.
    """
    if status is None:
        return State.N
    return _STATES.get((status, archived, queue_len > 0), State.INVALID)
