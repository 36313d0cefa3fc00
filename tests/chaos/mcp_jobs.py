"""The jobs of a chaos run with an MCP server: a message names a job and the kind of the call that it makes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from rookery.domain.chat.messages import Role
from rookery.domain.chat.prompt_parts import PromptResult
from rookery.llm.scripted import CallTool, Say, Step, text_of
from rookery.llm.types import Call, Purpose

MODEL = "mcp-jobs"
SLUG = "chaos"
_JOB = re.compile(r"^mcp (?P<name>\w+) (?P<kind>\w+)")


class Kind(StrEnum):
    """What a repeated call may do: attach to its task, run again, nothing, or ask the user before it does anything."""

    TASK = "task"
    IDEMPOTENT = "idempotent"
    NEITHER = "neither"
    QUESTION = "question"


def message(name: str, kind: Kind) -> str:
    return f"mcp {name} {kind}"


def script(call: Call) -> Sequence[Step]:
    """Return the next step: the call that the message names, and then an answer."""
    if call.purpose is not Purpose.TURN:
        return (Say("A job"),)
    messages = call.prompt.messages
    found = next(job for each in messages if each.role is Role.USER and (job := _JOB.match(text_of(each))))
    if any(isinstance(part, PromptResult) for each in messages for part in each.parts):
        return (Say("That is done."),)
    return (CallTool(f"{SLUG}__{found['kind']}", {"job": found["name"]}),)
