"""All decisions that the seed determines: the messages and their times, and the order of the faults.

The same seed gives the same decisions. The machine determines at which moment of the work they happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from rookery.domain.chat.transitions import BusyBehavior
from tests.chaos.conversation_plans import TOOLS, Plan


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message when the chat is at rest, or after this many seconds."""

    plan: Plan
    busy: BusyBehavior
    at_rest: bool
    after_seconds: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Interrupt the running turn."""

    after_seconds: float


Act = Say | Stop


def script_of(seed: int, chat: int) -> tuple[Act, ...]:
    """Return the actions of a user.

    The first one creates the chat; the last one waits for rest, so that an interrupted message is answered.
    """
    rng = Random(f"{seed} chat {chat}")
    acts: list[Act] = []
    count = rng.randint(2, 4)
    for number in range(count):
        is_first, is_last = number == 0, number == count - 1
        plan = Plan(f"c{chat}m{number}", _steps(rng, most=1 if is_last else 3))
        busy = rng.choices(list(BusyBehavior), weights=(5, 3, 2))[0]
        acts.append(Say(plan, busy, is_last or rng.random() < 0.3, 0.0 if is_first else rng.uniform(0, 0.8)))
        if not is_last and rng.random() < 0.2:
            acts.append(Stop(rng.uniform(0, 0.6)))
    return tuple(acts)


def _steps(rng: Random, *, most: int) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(rng.choices(TOOLS, k=rng.randint(1, 3))) for _ in range(rng.randint(0, most)))


class Fault(StrEnum):
    KILL = "kill"
    KILL_BEFORE_COMMIT = "kill when it asks for a commit, which is lost"
    KILL_AFTER_COMMIT = "kill when it asks for a commit, which happens"
    KILL_AT_EFFECT = "kill between an effect of a tool and its result"
    KILL_AT_REQUEST = "kill while a model is being asked"
    KILL_ALL = "kill everybody"
    SUSPEND = "suspend the process"
    CUT = "cut connections to the database"
    LOSE_COMMIT = "cut a connection before its commit"
    LOSE_COMMIT_ANSWER = "cut a connection after its commit"
    HANG = "hold up everything between process and database"
    RESTART_DATABASE = "restart the database"

    @property
    def kills(self) -> bool:
        return self.name.startswith("KILL")


WEIGHTS = {
    Fault.KILL: 30,
    Fault.KILL_BEFORE_COMMIT: 8,
    Fault.KILL_AFTER_COMMIT: 8,
    Fault.KILL_AT_EFFECT: 8,
    Fault.KILL_AT_REQUEST: 8,
    Fault.KILL_ALL: 2,
    Fault.SUSPEND: 6,
    Fault.CUT: 8,
    Fault.LOSE_COMMIT: 5,
    Fault.LOSE_COMMIT_ANSWER: 5,
    Fault.HANG: 4,
    Fault.RESTART_DATABASE: 3,
}
# A run begins with one of each of these, so that a short run has all of them.
OVERTURE = (
    Fault.KILL,
    Fault.CUT,
    Fault.KILL_AFTER_COMMIT,
    Fault.LOSE_COMMIT_ANSWER,
    Fault.KILL_AT_EFFECT,
    Fault.RESTART_DATABASE,
    Fault.SUSPEND,
    Fault.KILL_BEFORE_COMMIT,
    Fault.HANG,
    Fault.KILL_AT_REQUEST,
)


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault: its delay, its replica, and its duration."""

    fault: Fault
    pause_seconds: float
    replica: int
    seconds: float


def strikes(seed: int, replicas: int) -> Iterator[Strike]:
    """Yield faults without end."""
    rng = Random(f"{seed} faults")
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    overture = list(OVERTURE)
    rng.shuffle(overture)
    while True:
        fault = overture.pop() if overture else rng.choices(kinds, weights)[0]
        yield Strike(fault, rng.uniform(0.1, 1.0), rng.randrange(replicas), rng.uniform(0.3, 7.0))


def fails_first(seed: int, key: str) -> str | None:
    """Return the failure with which the provider answers the first attempt at a step, if any."""
    draw = Random(f"{seed} provider {key}").random()
    return "overloaded" if draw < 0.02 else "reset" if draw < 0.05 else None


def pauses(seed: int, call_id: str) -> tuple[float, float]:
    """Return the delays of an effect and of its response."""
    rng = Random(f"{seed} effect {call_id}")
    return rng.uniform(0, 0.08), rng.uniform(0, 0.08)
