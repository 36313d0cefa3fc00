"""A chat as one person sees it: the one shape in which the store hands out chats, for lists, reads and changes alike.

The members of `ChatView` are those of the API's Chat object, by the same names: whoever encodes it as JSON has the
answer. Members that only a single read has are left out (UNSET) elsewhere.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from rookery.chat import parts
from rookery.chat.messages import ChatId, MessageId
from rookery.store.users import PublicUser

UNEXPLAINED = "The chat request failed unexpectedly."


class ChatErrorView(msgspec.Struct, frozen=True):
    """Why a chat stopped."""

    message: str = UNEXPLAINED
    detail: str | None = None
    kind: str | None = None
    provider: str | None = None
    retryable: bool = False
    status_code: int | None = None


class ContextUsage(msgspec.Struct, frozen=True):
    """How full the model's context was at the newest answer."""

    context_tokens: int | None = None
    context_limit: int | None = None


class ChatFile(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    mime_type: str
    size_bytes: int
    created_at: datetime


class SearchMatch(msgspec.Struct, frozen=True):
    """Where a search found a chat: the newest message of its family that matches. Only a title: all of it is null.

    `chat_id` is the chat of the message, which may be a subagent's; `snippet` is plain text around the hit.
    """

    chat_id: ChatId | None = None
    message_id: MessageId | None = None
    snippet: str | None = None


class ChatView(msgspec.Struct, frozen=True, kw_only=True):
    """A chat as one person sees it: role, pin and unread mark are the viewer's.

    Of other people's chats that the viewer may not read there is the frame only: no title, labels, texts or error.
    `context` and `git` come with the workspaces. Events leave `children` out: each chat has its own.
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
    last_error: ChatErrorView | None
    last_model_config_id: UUID
    last_reasoning_effort: str | None
    workspace_id: UUID | None
    mcp_server_ids: tuple[UUID, ...]
    labels: dict[str, str]
    pin_order: int | None
    client_type: str
    last_turn_summary: str | None
    summary: str | None
    has_unread: bool
    shared: bool
    queue_len: int
    requires_action_deadline_at: datetime | None
    needs_user: str | None  # "question", "plan" or "tools": what the chat waits for
    usage: ContextUsage
    created_at: datetime
    updated_at: datetime
    last_activity_at: datetime
    snapshot_version: int
    history_version: int
    meta_version: int
    context: None = None
    git: None = None
    children: tuple[ChatView, ...] | UnsetType = ()
    match: SearchMatch | None = None  # in the answers of a search

    files: tuple[ChatFile, ...] | UnsetType = UNSET
    dynamic_tools: tuple[str, ...] | UnsetType = UNSET
    queued_for_capacity: bool | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET


class ChatListPage(msgspec.Struct, frozen=True):
    """A page of a list. `next_cursor` is None on the last one."""

    items: tuple[ChatView, ...]
    next_cursor: str | None


_UNREADABLE = ChatErrorView(kind="generic")
_errors = msgspec.json.Decoder(ChatErrorView)


def chat_error(stored: str) -> ChatErrorView:
    """The stored error; what cannot be read is shown as a general failure, and an empty message gets its words."""
    try:
        error = _errors.decode(parts.unescape(stored))
    except (msgspec.DecodeError, RecursionError):
        return _UNREADABLE
    return error if error.message.strip() else msgspec.structs.replace(error, message=UNEXPLAINED)


def without_contents(chat: ChatView) -> ChatView:
    """What somebody who may not read the chat sees of it, with its children alike."""
    return msgspec.structs.replace(
        chat,
        title="",
        labels={},
        summary=None,
        last_turn_summary=None,
        last_error=None,
        needs_user=None,
        has_unread=False,
        pin_order=None,
        match=None,
        children=UNSET if chat.children is UNSET else tuple(map(without_contents, chat.children)),
    )
