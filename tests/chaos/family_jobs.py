"""The families of a chaos run with subagents: a message names a family, which defines all steps of parent and children.

A family is a value, so the model takes the same steps after a crash: `f3 any 1:0.4 0:0.9!` is a parent that waits for
any of two children. The first child takes one step with a tool and 0.4 seconds for each answer. The second one fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptCall, PromptResult
from rookery.llm.scripted import CallTool, Fail, Say, Step, Wait, text_of
from rookery.llm.types import Call, ErrorKind, Purpose

MODEL = "families"
# Far longer than children need, with all takeovers.
WAIT_SECONDS = 240
BRIEF_SECONDS = 1

_FAMILY = re.compile(r"^f\d+ ", re.MULTILINE)


class Habit(StrEnum):
    """The behavior of a parent after it has spawned its children."""

    ALL = "all"  # waits for all children
    ANY = "any"  # waits for the first end, and rests
    BRIEF = "brief"  # waits for a second, and rests
    REST = "rest"  # rests at once
    AGAIN = "again"  # waits for all children, gives the first one another task, and waits for it


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a child: its steps with a tool, the seconds of each answer, and whether it fails."""

    steps: int
    seconds: float
    fails: bool = False

    def __str__(self) -> str:
        return f"{self.steps}:{self.seconds:.1f}{'!' if self.fails else ''}"

    @classmethod
    def parse(cls, words: str) -> Task:
        steps, seconds = words.rstrip("!").split(":")
        return cls(int(steps), float(seconds), words.endswith("!"))


@dataclass(frozen=True, slots=True)
class Family:
    """A parent and the first tasks of its children. `name` is unique in a run."""

    name: str
    habit: Habit
    tasks: tuple[Task, ...]

    def __str__(self) -> str:
        return " ".join((self.name, self.habit, *map(str, self.tasks)))

    @classmethod
    def parse(cls, words: str) -> Family:
        name, habit, *tasks = words.split()
        return cls(name, Habit(habit), tuple(map(Task.parse, tasks)))

    @classmethod
    def draw(cls, seed: int, number: int) -> Family:
        """Return a family of the run. Five in a row have all habits."""
        rng = Random(f"{seed} family {number}")
        tasks = (Task(rng.randint(0, 3), rng.uniform(0.1, 1.2), rng.random() < 0.15) for _ in range(rng.randint(2, 4)))
        # Through the text, which rounds the seconds.
        return cls.parse(str(cls(f"f{number}", list(Habit)[number % len(Habit)], tuple(tasks))))

    def turns(self, place: int) -> int:
        """Return how many turns this child has."""
        return 2 if self.habit is Habit.AGAIN and place == 0 else 1

    def title(self, place: int) -> str:
        return f"{self.name}c{place}"

    def step(self, done: int, results: Sequence[Any]) -> Sequence[Step]:
        """Return the next step of the parent after this many steps with tools, with their results."""
        if done == 0:
            return [
                CallTool("spawn_agent", {"type": "general", "prompt": f"work {task}", "title": self.title(place)})
                for place, task in enumerate(self.tasks)
            ]
        children = [each["chat_id"] for each in results[: len(self.tasks)]]
        wait = {"chat_ids": children, "timeout_seconds": WAIT_SECONDS}
        more: Sequence[CallTool] = ()
        match self.habit:
            case Habit.ALL:
                more = (CallTool("wait_agent", wait),)
            case Habit.ANY:
                more = (CallTool("wait_agent", {**wait, "mode": "any"}),)
            case Habit.BRIEF:
                more = (CallTool("wait_agent", {**wait, "timeout_seconds": BRIEF_SECONDS}),)
            case Habit.REST:
                pass
            case Habit.AGAIN:
                more = (
                    CallTool("wait_agent", wait),
                    CallTool("message_agent", {"chat_id": children[0], "message": f"work {Task(1, 0.3)}"}),
                    CallTool("wait_agent", {**wait, "chat_ids": children[:1]}),
                )
        return (more[done - 1],) if done <= len(more) else (Wait(0.2), Say("That is all for now."))


def script(call: Call) -> Sequence[Step]:
    """Return the next step of a parent or of a child."""
    if call.purpose is not Purpose.TURN:
        return (Say("A family"),)
    return _parent(call.prompt) if call.cache_key == call.chat_id else _child(call.prompt)


def _parent(prompt: Prompt) -> Sequence[Step]:
    # Notices are user messages, too, so the whole conversation counts.
    asked = next(text for each in prompt.messages if each.role is Role.USER and _FAMILY.match(text := text_of(each)))
    done = sum(any(isinstance(part, PromptCall) for part in message.parts) for message in prompt.messages)
    results = [part for message in prompt.messages for part in message.parts if isinstance(part, PromptResult)]
    return Family.parse(asked.splitlines()[0]).step(
        done, [json.loads(part.text) for part in results if part.text.startswith("{")]
    )


def _child(prompt: Prompt) -> Sequence[Step]:
    # The brake adds notices about calls that fail, as user messages.
    start = max(
        place
        for place, each in enumerate(prompt.messages)
        if each.role is Role.USER and text_of(each).startswith("work ")
    )
    task = Task.parse(text_of(prompt.messages[start]).split()[1])
    done = sum(isinstance(part, PromptResult) for each in prompt.messages[start:] for part in each.parts)
    if done < task.steps:
        # There is no such skill. The error is a result, too.
        return (Wait(task.seconds), CallTool("read_skill", {"name": f"none-{done}"}))
    if task.fails:
        return (Wait(task.seconds), Fail(ErrorKind.CONFIG, retryable=False))
    return (Wait(task.seconds), Say("My report."))
