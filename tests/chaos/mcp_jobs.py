"""The jobs of a chaos run with an MCP server: a message names a job and the kinds of the calls that it makes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import PromptResult
from rookery.llm.scripted import CallTool, Say, Step, text_of
from rookery.llm.types import Call, Purpose

MODEL = "mcp-jobs"
SLUG = "chaos"
_JOB = re.compile(r"^mcp (?P<name>\w+) (?P<kinds>[\w ]+)$", re.MULTILINE)


class Kind(StrEnum):
    """The effect of a repeated call: continue its task, run again, do nothing, or ask the user first."""

    TASK = "task"
    IDEMPOTENT = "idempotent"
    NEITHER = "neither"
    QUESTION = "question"


def message(name: str, *kinds: Kind) -> str:
    return f"mcp {name} {' '.join(kinds)}"


def script(call: Call) -> Sequence[Step]:
    """Return the next step: the calls that the message names, one after the other, and then an answer."""
    if call.purpose is not Purpose.TURN:
        return (Say("A job"),)
    messages = call.prompt.messages
    found = next(job for each in messages if each.role is Role.USER and (job := _JOB.match(text_of(each))))
    kinds = found["kinds"].split()
    made = sum(isinstance(part, PromptResult) for each in messages for part in each.parts)
    if made == len(kinds):
        return (Say("That is done."),)
    return (CallTool(f"{SLUG}__{kinds[made]}", {"job": found["name"]}),)
