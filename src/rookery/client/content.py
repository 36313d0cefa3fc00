"""The content of a message: text, uploaded files, quoted snippets; and the answers to tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET

from rookery.client.models import Rule

ChatRef: TypeAlias = UUID | str
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
DebugMode: TypeAlias = Literal["inherit", "on", "off"]
PermissionMode: TypeAlias = Literal["ask", "auto", "read_only"]
BusyBehavior: TypeAlias = Literal["queue", "steer", "interrupt"]

# Plain text, or input parts of the API: {"type": "text", "text": ...}, {"type": "file", "file_id": ...}.
Content: TypeAlias = "str | Sequence[Mapping[str, Any]]"


class DynamicTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the calling program runs. The chat waits for its results."""

    name: str
    description: str
    input_schema: dict[str, Any]


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call of a dynamic tool. `output` is any JSON."""

    tool_call_id: str
    output: Any
    is_error: bool = False


class ApprovalAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one call that the chat asks about.

    With `always`, an approval becomes a rule for this chat, or for all chats of the user. `match` restricts the rule to
    calls whose arguments match: it maps paths of arguments to globs. `responses` are the values for the forms of an MCP
    server: by the id of the question, and by field.
    """

    tool_call_id: str
    decision: Literal["approve", "deny"]
    reason: str = ""
    always: Literal["chat", "user"] | None = None
    match: dict[str, str] | None = None
    responses: Mapping[str, Mapping[str, Any]] | None = None


class ApprovalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The approval settings of administrators, for all users. With 0 seconds, questions have no time limit."""

    default: str = "allow"
    rules: tuple[Rule, ...] = ()
    allow_always: bool = True
    timeout_seconds: int = 0


def input_parts(content: Content) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content)


def file_part(file_id: UUID | str) -> dict[str, Any]:
    """Return an input part for an uploaded file."""
    return {"type": "file", "file_id": str(file_id)}


def given(**members: object) -> dict[str, object]:
    """Return a request body with the given members. UNSET members are left out, because null would clear them."""
    return {name: value for name, value in members.items() if value is not UNSET}
