"""Open tool calls, and the closures that answer them.

Providers refuse a history in which a call has no result. Two rules prevent this: a transition that inserts a user row
first closes all open calls, and a transition that leaves `requires_action` without results closes the open client
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID, uuid5

import msgspec

from rookery.domain.chat import parts
from rookery.domain.chat.errors import ToolResultRejected
from rookery.domain.chat.messages import ChatId, NewMessage, Role
from rookery.domain.chat.parts import CONTENT_VERSION


class CloseReason(StrEnum):
    """The reason of a closure. Clients and models get this code."""

    NEW_USER_MESSAGE = "new_user_message"
    QUEUED_MESSAGE = "queued_message"
    MESSAGE_EDITED = "message_edited"
    INTERRUPTED_BY_USER = "interrupted_by_user"
    INTERRUPTED_BY_MESSAGE = "interrupted_by_message"
    ACTION_TIMED_OUT = "action_timed_out"
    ACTION_DEADLINE_MISSING = "action_deadline_missing"
    INTERRUPTED = "interrupted"
    INVALID_STATE = "invalid_state"
    DENIED_BY_USER = "denied_by_user"
    APPROVAL_TIMED_OUT = "approval_timed_out"


_SENTENCES = {
    CloseReason.NEW_USER_MESSAGE: "The user sent a new message before this tool call had a result.",
    CloseReason.QUEUED_MESSAGE: "The next queued message was sent before this tool call had a result.",
    CloseReason.MESSAGE_EDITED: "The user edited an earlier message before this tool call had a result.",
    CloseReason.INTERRUPTED_BY_USER: "The user stopped the turn before this tool call had a result.",
    CloseReason.INTERRUPTED_BY_MESSAGE: "The user interrupted with a new message before this tool call had a result.",
    CloseReason.ACTION_TIMED_OUT: "No result for this tool call arrived in time.",
    CloseReason.ACTION_DEADLINE_MISSING: "This tool call was waiting without a deadline and was cancelled.",
    CloseReason.INTERRUPTED: "The turn was interrupted before this tool call had a result.",
    CloseReason.INVALID_STATE: "The chat had to be repaired before this tool call had a result.",
    CloseReason.DENIED_BY_USER: "The user denied this call; it was not run. Do not repeat it.",
    CloseReason.APPROVAL_TIMED_OUT: "No user approved this call in time; it was not run. Do not repeat it unasked.",
}


class CallRow(msgspec.Struct, frozen=True):
    """A live assistant or tool row of the turn, with its calls and results."""

    id: int
    role: str
    content: str
    content_version: int


class OpenCall(msgspec.Struct, frozen=True):
    """A call without a result."""

    message_id: int
    tool_call_id: str
    tool_name: str


class SubmittedResult(msgspec.Struct, frozen=True):
    """A client's result of one call. `output` is JSON text that is not yet checked."""

    tool_call_id: str
    output: str
    is_error: bool = False


class _AnyPart(msgspec.Struct, frozen=True):
    """The fields of a part that this module reads. Only calls and results have them."""

    type: str = ""
    tool_call_id: str | None = None
    tool_name: str | None = None
    provider_executed: bool = False


class _CallPart(msgspec.Struct, frozen=True):
    """A call or a result."""

    is_result: bool
    tool_call_id: str
    tool_name: str
    provider_executed: bool


_any_parts = msgspec.json.Decoder(tuple[_AnyPart, ...])


def replay_token(chat_id: ChatId, message_id: int, tool_call_id: str) -> UUID:
    """Return the idempotency key of a call, which is the same in every process that repeats the call.

    Some providers repeat call ids. Together with the ids of chat and message, they are unique.
    """
    return uuid5(chat_id, f"{message_id}:{tool_call_id}")


def open_calls(
    rows: Iterable[CallRow], *, on_unreadable: Callable[[int], None] = lambda message_id: None
) -> tuple[OpenCall, ...]:
    """Return the open calls of a turn, given its live assistant and tool rows in order.

    Provider-executed calls do not count, because their results come from the provider. A row that cannot be read counts
    as a row without calls and results, so that it does not block the chat; `on_unreadable` is called for it.
    """
    calls: dict[str, OpenCall] = {}
    for row in rows:
        found = _read(row)
        if found is None:
            on_unreadable(row.id)
            continue
        answered = [part.tool_call_id for part in found if part.is_result]
        if row.role == Role.TOOL:
            for tool_call_id in answered:
                calls.pop(tool_call_id, None)
            continue
        # Results in an assistant row are those of the provider. They belong to calls of the same row.
        for part in found:
            if not part.is_result and not part.provider_executed and part.tool_call_id not in answered:
                calls[part.tool_call_id] = OpenCall(row.id, part.tool_call_id, part.tool_name)
    return tuple(calls.values())


def _read(row: CallRow) -> list[_CallPart] | None:
    """Return the calls and results of a row; None if it cannot be read, or if one of them has no id or name."""
    if row.content_version != CONTENT_VERSION:
        return None
    try:
        content = _any_parts.decode(parts.unescape(row.content))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    found: list[_CallPart] = []
    for part in content:
        if part.type not in ("tool-call", "tool-result"):
            continue
        if part.tool_call_id is None or part.tool_name is None:
            return None
        found.append(_CallPart(part.type == "tool-result", part.tool_call_id, part.tool_name, part.provider_executed))
    return found


def select_dynamic(calls: Sequence[OpenCall], tool_names: Collection[str]) -> tuple[OpenCall, ...]:
    """Return the calls of tools that the client executes."""
    return tuple(call for call in calls if call.tool_name in tool_names)


def select_by_token(calls: Sequence[OpenCall], tokens: Collection[UUID], *, chat_id: ChatId) -> tuple[OpenCall, ...]:
    """Return the calls that have one of these replay tokens."""
    return tuple(call for call in calls if replay_token(chat_id, call.message_id, call.tool_call_id) in tokens)


def closure(
    call: OpenCall,
    reason: CloseReason,
    *,
    model_config_id: UUID,
    at: datetime,
    note: str | None = None,
    comment: str = "",
    output: str = "",
    created_by: UUID | None = None,
) -> NewMessage:
    """Return the closure of a call: a tool row with an error and the reason code, visible to users and the model.

    `created_by` is the user who caused it; None if there is none. `comment` is the text that the user wrote about it.
    `output` is what the tool had shown until then.
    """
    said = {key: text for key, text in (("comment", comment), ("output", output)) if text}
    result = parts.ToolResult(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        result=parts.json_raw({"error": note or _SENTENCES[reason], "reason": str(reason), **said}),
        is_error=True,
        created_at=at,
    )
    return NewMessage(role=Role.TOOL, content=(result,), model_config_id=model_config_id, created_by=created_by)


def check_results(pending: Sequence[OpenCall], submitted: Sequence[SubmittedResult]) -> None:
    """Raise `ToolResultRejected` unless there is exactly one valid result for each pending call.

    Duplicates and invalid JSON are reported first, in the order of the results; then missing and unexpected results.
    """
    seen: set[str] = set()
    for result in submitted:
        if result.tool_call_id in seen:
            raise ToolResultRejected("duplicate", result.tool_call_id)
        seen.add(result.tool_call_id)
        if not parts.is_json(result.output):
            raise ToolResultRejected("invalid_json", result.tool_call_id)
    waiting = {call.tool_call_id for call in pending}
    for call in pending:
        if call.tool_call_id not in seen:
            raise ToolResultRejected("missing", call.tool_call_id)
    for result in submitted:
        if result.tool_call_id not in waiting:
            raise ToolResultRejected("unexpected", result.tool_call_id)


def result_rows(
    pending: Sequence[OpenCall],
    submitted: Sequence[SubmittedResult],
    *,
    created_by: UUID,
    model_config_id: UUID,
    at: datetime,
) -> tuple[NewMessage, ...]:
    """Return a tool row for each checked result, in the order of the results."""
    names = {call.tool_call_id: call.tool_name for call in pending}
    return tuple(
        NewMessage(
            role=Role.TOOL,
            content=(
                parts.ToolResult(
                    tool_call_id=result.tool_call_id,
                    tool_name=names[result.tool_call_id],
                    result=parts.json_text(result.output),
                    is_error=result.is_error,
                    created_at=at,
                ),
            ),
            created_by=created_by,
            model_config_id=model_config_id,
        )
        for result in submitted
    )
