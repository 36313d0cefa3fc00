"""The requests of users in a chaos run, and the answers of the model. Both are functions of the conversation alone.

A message is a name and a plan: `c3m1 | note | post book` requests a step with one call, a step with two calls, and an
answer. The answer names every message that no earlier answer has named, so that answers can be counted. Calls are named
after their message and position, so that a repeated attempt makes the same calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NOTE, POST, BOOK = "note", "post", "book"  # safe to repeat, in the ledger, idempotent by token
TOOLS = (NOTE, POST, BOOK)

_MESSAGE = re.compile(r"^(c\d+m\d+)((?: \|(?: (?:note|post|book))+)*)$", re.MULTILINE)
_ANSWER = re.compile(r"\[(c\d+m\d+)\]")


@dataclass(frozen=True, slots=True)
class Plan:
    """A message: its name, and the tools of each step before the answer."""

    name: str
    steps: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        return "".join((self.name, *(f" | {' '.join(step)}" for step in self.steps)))

    @classmethod
    def find_all(cls, text: str) -> list[Plan]:
        return [
            cls(name, tuple(tuple(step.split()) for step in steps.split("|")[1:]))
            for name, steps in _MESSAGE.findall(text)
        ]


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a conversation as the model sees it. `calls` is the number of tool calls."""

    role: str
    text: str
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of the model. `calls` are (id, tool) pairs. `key` is the same for every attempt at this step."""

    key: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()


def answered_names(texts: Iterable[str]) -> list[str]:
    """Return the messages that these answers name, with repetitions."""
    return [name for text in texts for name in _ANSWER.findall(text)]


def reply(conversation: Sequence[Said]) -> Reply | None:
    """Return the next step of the newest message's plan, or the answer; None if there is no message."""
    asked: list[Plan] = []
    done = 0
    for said in conversation:
        if said.role == "user" and (found := Plan.find_all(said.text)):
            asked += found
            done = 0
        done += said.role == "assistant" and said.calls > 0
    if not asked:
        return None
    plan = asked[-1]
    if done < len(plan.steps):
        calls = tuple((f"{plan.name}-{done}-{place}", tool) for place, tool in enumerate(plan.steps[done]))
        return Reply(f"{plan.name}-{done}", "One moment, I have to look into this first.", calls)
    answered = set(answered_names(said.text for said in conversation if said.role == "assistant"))
    names = " ".join(f"[{plan.name}]" for plan in asked if plan.name not in answered)
    return Reply(f"{plan.name}-end", f"Here is what came of it, as far as I can tell: {names} is done.")
