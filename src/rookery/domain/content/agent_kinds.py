"""Definitions of custom kinds of subagents: their rules, and the workspace files that define them.

A file has front matter (`name`, `description`, and optional fields) and a body, which is the prompt. The files are
untrusted: all sizes are limited, and one invalid field makes the file unusable.
"""

from __future__ import annotations

import re

import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.content import front_matter, invisible_characters
from rookery.domain.content.front_matter import FrontMatterProblem

MAX_DESCRIPTION_CHARS = 1000
MAX_PROMPT_BYTES = 64 * 1024
MAX_TOOLS = 64
MAX_TOOL_CHARS = 128
MAX_MINUTES = 1440
# Names of built-in kinds. `computer_use` is reserved.
RESERVED = frozenset({"general", "explore", "computer_use"})

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class KindProblem(ValueError):
    """The reason why a file does not define a kind."""


class KindDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A kind as its author defined it. `model` is the id of a model config or of a model."""

    name: str
    description: str
    prompt: str = ""
    model: str | None = None
    reasoning_effort: Effort | None = None
    tools: tuple[str, ...] | None = None
    read_only: bool = False
    max_minutes: int | None = None


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def checked(kind: KindDefinition) -> KindDefinition:
    """Return the definition with cleaned texts. Raises `InvalidInput` for a field that breaks a rule."""
    if not is_name(kind.name):
        raise InvalidInput(
            "name", "A name has 1 to 64 lowercase letters, digits, hyphens and underscores, and begins with a letter."
        )
    if kind.name in RESERVED:
        raise InvalidInput("name", f"{kind.name} is a built-in kind. Choose another name.")
    description = " ".join(invisible_characters.clean(kind.description).split())
    if not 1 <= len(description) <= MAX_DESCRIPTION_CHARS:
        raise InvalidInput("description", f"A description has 1 to {MAX_DESCRIPTION_CHARS} characters.")
    prompt = invisible_characters.clean_markdown(kind.prompt)
    if len(prompt.encode("utf-8", "replace")) > MAX_PROMPT_BYTES:
        raise InvalidInput("prompt", f"A prompt has at most {MAX_PROMPT_BYTES} bytes.")
    if kind.tools is not None:
        if len(kind.tools) > MAX_TOOLS:
            raise InvalidInput("tools", f"A kind lists at most {MAX_TOOLS} tools.")
        if not all(1 <= len(tool) <= MAX_TOOL_CHARS for tool in kind.tools):
            raise InvalidInput("tools", f"The name of a tool has 1 to {MAX_TOOL_CHARS} characters.")
    if kind.max_minutes is not None and not 1 <= kind.max_minutes <= MAX_MINUTES:
        raise InvalidInput("max_minutes", f"The time limit is 1 to {MAX_MINUTES} minutes.")
    return msgspec.structs.replace(kind, description=description, prompt=prompt)


def read(text: str) -> KindDefinition:
    """Return the kind that a file of a workspace defines. Raises `KindProblem`."""
    try:
        fields, body = front_matter.read(text)
        return checked(
            KindDefinition(
                name=fields.text("name") or "",
                description=fields.text("description") or "",
                prompt=body,
                model=fields.text("model") or None,
                reasoning_effort=_effort(fields.text("effort")),
                tools=fields.texts("tools"),
                read_only=_boolean(fields.text("read_only")),
                max_minutes=_minutes(fields.text("max_minutes")),
            )
        )
    except FrontMatterProblem as error:
        raise KindProblem(str(error)) from None
    except InvalidInput as error:
        raise KindProblem(f"{error.field}: {error}") from error


def _effort(text: str | None) -> Effort | None:
    if not text:
        return None
    try:
        return Effort(text)
    except ValueError:
        raise KindProblem(f"effort: there is no reasoning effort {text[:40]!r}.") from None


def _boolean(text: str | None) -> bool:
    match (text or "false").lower():
        case "true" | "yes":
            return True
        case "false" | "no":
            return False
        case _:
            raise KindProblem("read_only: this must be true or false.")


def _minutes(text: str | None) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"\d{1,6}", text):
        raise KindProblem("max_minutes: this must be a whole number of minutes.")
    return int(text)
