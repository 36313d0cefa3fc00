"""`ChatView`: a chat as one user sees it, for lists, reads and changes.

The fields of `ChatView` have the names of the API's Chat object, so its JSON encoding is the API's answer. Fields that
only a single read has are UNSET elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, UnsetType

from rookery.domain.chat import parts
from rookery.domain.chat.approvals import Offers
from rookery.domain.chat.elicitation import Elicitation
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.store.chats.repository_states import DiffStatus
from rookery.store.chats.stream_reads import PendingCall
from rookery.store.people.users import PublicUser

UNEXPLAINED = "The chat request failed unexpectedly."


class ChatErrorView(msgspec.Struct, frozen=True):
    """The error that stopped a chat."""

    message: str = UNEXPLAINED
    detail: str | None = None
    kind: str | None = None
    provider: str | None = None
    retryable: bool = False
    status_code: int | None = None


class ContextUsage(msgspec.Struct, frozen=True):
    """The tokens in the model's context at the newest answer, and their limit."""

    context_tokens: int | None = None
    context_limit: int | None = None


class ContextState(msgspec.Struct, frozen=True):
    """The state of a chat's captured context. `dirty`: the context of the workspace has changed since the capture.

    `servers` is a counter. It grows whenever the MCP servers of the workspace change, or one begins to wait for the
    owner's decision.
    """

    dirty: bool
    dirty_since: datetime | None
    error: str | None
    servers: int = 0


ActionKind = Literal["tools", "approval"]


class ActionCall(msgspec.Struct, frozen=True):
    """A tool call that a chat waits for. `args` are exactly as the model wrote them.

    `always` describes the rule that the answer "always" would create: a glob for each path of the arguments. `brake` is
    set if the call is on hold because it repeats without a new result: sentences that say what happened and what the
    user can do. `elicitation` is set if the server of the tool asks the user something before it completes the call.
    Such calls have no `always`.
    """

    tool_call_id: str
    tool_name: str
    args: Raw
    always: Offers | UnsetType = UNSET
    brake: str | UnsetType = UNSET
    elicitation: Elicitation | UnsetType = UNSET


class Action(msgspec.Struct, frozen=True):
    """The tool calls that a chat waits for: for results of its client ("tools"), or for a user's approval ("approval").

    If there is no deadline, the chat waits until it is answered.
    """

    kind: ActionKind
    tool_calls: tuple[ActionCall, ...]
    deadline_at: datetime | None


class ChatFile(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    mime_type: str
    size_bytes: int
    created_at: datetime


class SearchMatch(msgspec.Struct, frozen=True):
    """The newest message of a chat's family that matches a search. All fields are null if only a title matches.

    `chat_id` is the chat of the message, which may be a subagent's. `snippet` is plain text around the match.
    """

    chat_id: ChatId | None = None
    message_id: MessageId | None = None
    snippet: str | None = None


class ChatView(msgspec.Struct, frozen=True, kw_only=True):
    """A chat as one user sees it: `my_role`, `pin_order`, `folder_id` and `has_unread` are those of this user.

    `folder_id` is the folder of the root chat. Only the owner sees it.

    If the user may see the chat in lists but may not read it, the view has no title, labels, summaries, error, context
    and git state. `context` is null until the workspace of the chat has reported its context. `git` is the last known
    state of the repository with the most changes; it is null until the chat has worked in a repository. Events never
    have `children`: each child chat has events of its own.
    """

    id: ChatId
    owner: PublicUser
    my_role: str
    parent_chat_id: ChatId | None
    root_chat_id: ChatId
    mode: str | None
    title: str
    status: str
    archived: bool
    archived_at: datetime | None
    plan_mode: bool
    permission_mode: str  # "ask", "auto" or "read_only"; for a subagent, that of the main chat applies
    last_error: ChatErrorView | None
    last_model_config_id: UUID
    last_reasoning_effort: str | None
    workspace_id: UUID | None
    mcp_server_ids: tuple[UUID, ...]
    labels: dict[str, str]
    pin_order: int | None
    folder_id: UUID | None
    client_type: str
    last_turn_summary: str | None
    summary: str | None
    has_unread: bool
    shared: bool
    queue_len: int
    requires_action_deadline_at: datetime | None
    needs_user: str | None  # "question", "plan", "tools" or "approval": the input that the chat or a subagent waits for
    usage: ContextUsage
    created_at: datetime
    updated_at: datetime
    last_activity_at: datetime
    snapshot_version: int
    history_version: int
    meta_version: int
    context: ContextState | None = None
    git: DiffStatus | None = None
    children: tuple[ChatView, ...] | UnsetType = ()
    match: SearchMatch | None = None  # set in search results only

    files: tuple[ChatFile, ...] | UnsetType = UNSET
    dynamic_tools: tuple[str, ...] | UnsetType = UNSET
    queued_for_capacity: bool | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET
    action: Action | UnsetType | None = UNSET


class ChatListPage(msgspec.Struct, frozen=True):
    """A page of a list. `next_cursor` is None on the last page."""

    items: tuple[ChatView, ...]
    next_cursor: str | None


_UNREADABLE = ChatErrorView(kind="generic")
_errors = msgspec.json.Decoder(ChatErrorView)


def chat_error(stored: str) -> ChatErrorView:
    """Return the stored error. If it cannot be read, return a generic one. An empty message gets a default text."""
    try:
        error = _errors.decode(parts.unescape(stored))
    except (msgspec.DecodeError, RecursionError):
        return _UNREADABLE
    return error if error.message.strip() else msgspec.structs.replace(error, message=UNEXPLAINED)


def action(calls: Iterable[PendingCall], *, is_approval: bool, deadline_at: datetime | None) -> Action:
    shown = tuple(_action_call(call) for call in calls)
    return Action("approval" if is_approval else "tools", shown, deadline_at)


def _action_call(call: PendingCall) -> ActionCall:
    asked = call.offers
    if asked is None:
        return ActionCall(call.tool_call_id, call.tool_name, call.args)
    always = asked if asked.brake is UNSET and asked.elicitation is UNSET else UNSET
    return ActionCall(call.tool_call_id, call.tool_name, call.args, always, asked.brake, asked.elicitation)


def without_contents(chat: ChatView) -> ChatView:
    """Return the view, and those of its children, for a user who may list the chat but not read it."""
    return msgspec.structs.replace(
        chat,
        title="",
        labels={},
        summary=None,
        last_turn_summary=None,
        last_error=None,
        context=None,
        git=None,
        needs_user=None,
        has_unread=False,
        pin_order=None,
        folder_id=None,
        match=None,
        children=UNSET if chat.children is UNSET else tuple(map(without_contents, chat.children)),
    )
