"""What is sent in a message: text, files that were uploaded, quoted snippets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET

from rookery.client.models import Rule

ChatRef: TypeAlias = UUID | str
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
BusyBehavior: TypeAlias = Literal["queue", "steer", "interrupt"]

# Plain text, or input parts as the API has them: {"type": "text", "text": ...}, {"type": "file", "file_id": ...}.
Content: TypeAlias = "str | Sequence[Mapping[str, Any]]"


class DynamicTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the program runs itself: the chat waits for its results."""

    name: str
    description: str
    input_schema: dict[str, Any]


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call of such a tool. `output` is any JSON."""

    tool_call_id: str
    output: Any
    is_error: bool = False


class ApprovalAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of one call that the chat asks about. With `always` an approval holds from now on: in this chat, or
    in all chats of the user; `match` says for which calls, by path of the argument and glob."""

    tool_call_id: str
    decision: Literal["approve", "deny"]
    reason: str = ""
    always: Literal["chat", "user"] | None = None
    match: dict[str, str] | None = None


class ApprovalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an administrator says about tool calls of everybody. 0 seconds: a question waits for as long as it takes."""

    default: str = "allow"
    rules: tuple[Rule, ...] = ()
    allow_always: bool = True
    timeout_seconds: int = 0


def input_parts(content: Content) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content)


def file_part(file_id: UUID | str) -> dict[str, Any]:
    """An input part for a file that was uploaded."""
    return {"type": "file", "file_id": str(file_id)}


def given(**members: object) -> dict[str, object]:
    """A request body of the members that were given. UNSET ones are left out: null would clear them."""
    return {name: value for name, value in members.items() if value is not UNSET}
