"""Errors of a chat.

ChatError
├── NotFound              ChatNotFound, MessageNotFound, QueuedMessageNotFound
├── Refused               the request is valid but not possible now; nothing was changed
│   ├── TransitionNotAllowed
│   │   └── ChatArchived
│   └── InvalidState, ChatBusy, ParentArchived, QueueFull, QueueChanged, NothingToCompact, TooManySubagents
├── InvalidInput          the request itself is wrong: `field` and `rule` say where and why
│   └── ChatNotRoot, EditTargetNotUser, ToolResultRejected, ApprovalRejected, FileCapExceeded, FileUnavailable
├── errors that end a step, defined next to the rule that raises them
│   └── UnreadableRow (prompt), ImageTooLarge (attachments), SummaryFailed (summary_prompt)
├── StaleFence            the chat has changed since the caller read it; the caller stops without an error
└── InvariantViolation    a bug: logged with state and row, answered as 500
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from rookery.domain.chat import transitions

if TYPE_CHECKING:
    from rookery.domain.chat.messages import QueuedMessage
    from rookery.domain.chat.states import State
    from rookery.domain.chat.transitions import Transition


class ChatError(Exception):
    """Base class of all expected errors of a chat."""


class NotFound(ChatError):
    """Raised if the request names an object that does not exist."""


class ChatNotFound(NotFound):
    def __init__(self, chat_id: UUID) -> None:
        self.chat_id = chat_id
        super().__init__(f"There is no chat {chat_id}. It may have been deleted.")


class MessageNotFound(NotFound):
    def __init__(self, message_id: int) -> None:
        self.message_id = message_id
        super().__init__(f"Message {message_id} is not in this chat, or was removed by an edit. Reload the chat.")


class QueuedMessageNotFound(NotFound):
    def __init__(self, queued_id: int) -> None:
        self.queued_id = queued_id
        super().__init__(f"Queued message {queued_id} is no longer in the queue: it was sent or deleted.")


class Refused(ChatError):
    """Raised if the request is valid but not possible now. Nothing was changed or published."""


class TransitionNotAllowed(Refused):
    """Raised if the chat's state does not allow the transition. `cause` is a code; `reason` is a text for users."""

    def __init__(self, transition: Transition, from_state: State, reason: str | None = None, *, cause: str) -> None:
        self.transition = transition
        self.from_state = from_state
        self.cause = cause
        self.reason = reason or transitions.refusal(transition, from_state)
        super().__init__(self.reason)


class ChatArchived(TransitionNotAllowed):
    def __init__(self, transition: Transition, from_state: State) -> None:
        super().__init__(transition, from_state, "This chat is archived. Unarchive it to continue.", cause="archived")


class InvalidState(Refused):
    def __init__(self, chat_id: UUID) -> None:
        self.chat_id = chat_id
        super().__init__(f"Chat {chat_id} is in an invalid state. Reconcile it, then try again.")


class ChatBusy(Refused):
    """Raised if a family cannot be deleted because one of its chats is running."""

    def __init__(self, chat_id: UUID) -> None:
        self.chat_id = chat_id
        super().__init__("This chat or one of its subagents is still running. Stop it first.")


class ParentArchived(Refused):
    def __init__(self, root_chat_id: UUID) -> None:
        self.root_chat_id = root_chat_id
        super().__init__("The root chat is archived. Unarchive it first.")


class QueueFull(Refused):
    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        super().__init__(f"The queue is full: it has {maximum} messages. Delete one, or wait until one is sent.")


class QueueChanged(Refused):
    """Raised if the new order is not a permutation of the queue. `items` is the current queue."""

    def __init__(self, items: Sequence[QueuedMessage]) -> None:
        self.items = tuple(items)
        super().__init__("The queue has changed meanwhile. Reload it and try again.")


class NothingToCompact(Refused):
    def __init__(self) -> None:
        super().__init__("There is nothing to compact since the last summary.")


class TooManySubagents(Refused):
    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"This chat has {limit} subagents, which is the limit. Give the work to one of them with message_agent, "
            "or do it yourself."
        )


class InvalidInput(ChatError):
    """Raised if the request is wrong. `field` is the wrong field, and `code` names the rule that it breaks."""

    def __init__(self, field: str, message: str, *, code: str = "invalid") -> None:
        self.field = field
        self.code = code
        super().__init__(message)


class ChatNotRoot(InvalidInput):
    def __init__(self, chat_id: UUID, root_id: UUID | None = None) -> None:
        self.chat_id = chat_id
        root = "the chat it belongs to" if root_id is None else f"chat {root_id}, which it belongs to"
        super().__init__("chat_id", f"Chat {chat_id} is a subagent's chat. Use {root}.", code="not_root_chat")


class EditTargetNotUser(InvalidInput):
    def __init__(self, message_id: int) -> None:
        self.message_id = message_id
        super().__init__("message_id", f"Message {message_id} is not a user message. Only those can be edited.")


class ToolResultRejected(InvalidInput):
    """Raised if results do not match the open calls. `problem` is duplicate, invalid_json, missing or unexpected."""

    def __init__(self, problem: str, tool_call_id: str) -> None:
        self.problem = problem
        self.tool_call_id = tool_call_id
        sentence = {
            "duplicate": "has more than one result in this submission",
            "invalid_json": "has a result that is not valid JSON",
            "missing": "has no result in this submission; send all pending results together",
            "unexpected": "is not waiting for a result",
        }[problem]
        super().__init__("results", f"Tool call {tool_call_id!r} {sentence}.", code=f"tool_result_{problem}")


class ApprovalRejected(InvalidInput):
    """Raised if answers do not match the open questions. `problem` is duplicate, missing or unexpected."""

    def __init__(self, problem: str, tool_call_id: str) -> None:
        self.problem = problem
        self.tool_call_id = tool_call_id
        sentence = {
            "duplicate": "is answered more than once",
            "missing": "is not answered; answer all open questions together",
            "unexpected": "is not waiting for an answer",
        }[problem]
        super().__init__("answers", f"Tool call {tool_call_id!r} {sentence}.", code=f"approval_{problem}")


class FileCapExceeded(InvalidInput):
    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        super().__init__(
            "content", f"A chat can refer to at most {maximum} files. Start a new chat.", code="file_cap_exceeded"
        )


class FileUnavailable(InvalidInput):
    def __init__(self, file_ids: Sequence[UUID]) -> None:
        self.file_ids = tuple(file_ids)
        names = ", ".join(str(file_id) for file_id in self.file_ids)
        super().__init__("content", f"File {names} does not exist any more. Upload it again.", code="file_unavailable")


class StaleFence(ChatError):
    """Raised if the chat has changed since the caller read it. The caller stops without an error."""

    def __init__(self, chat_id: UUID, field: str) -> None:
        self.chat_id = chat_id
        self.field = field
        super().__init__(f"Chat {chat_id} has changed: {field} differs from the fence.")


class InvariantViolation(ChatError):
    """Raised if a transition leads to a state that the table does not allow, or breaks a constraint. It is a bug."""
