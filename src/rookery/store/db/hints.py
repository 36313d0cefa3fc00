"""Hints: notifications that a committed row has changed. Receivers read the row.

There is one NOTIFY channel per kind of hint, and the key is in the payload. A hint may be lost, repeated or reordered.
Receivers remember the highest `snapshot_version` that they have processed for each chat.
"""

from __future__ import annotations

from enum import StrEnum
from uuid import UUID

import msgspec

WIRE_VERSION = 1


class ChatHint(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a chat after a committed bundle. `gone`: the chat was deleted."""

    v: int = WIRE_VERSION
    chat_id: UUID
    snapshot_version: int
    history_version: int
    queue_version: int
    retry_state_version: int
    generation_attempt: int
    status: str
    archived: bool
    worker_id: UUID | None
    runner_id: UUID | None
    gone: bool = False


class OwnershipHint(msgspec.Struct, frozen=True, kw_only=True):
    """The chat is runnable and has no lease. Workers try to acquire it."""

    v: int = WIRE_VERSION
    chat_id: UUID
    snapshot_version: int


class WatchKind(StrEnum):
    CREATED = "created"
    STATUS = "status"
    ACTION_REQUIRED = "action_required"
    ARCHIVED = "archived"
    UNARCHIVED = "unarchived"
    DELETED = "deleted"
    # Metadata has changed. `summary` is the summary of the chat or the label of its last turn.
    TITLE_CHANGE = "title_change"
    SUMMARY_CHANGE = "summary_change"
    METADATA = "metadata"
    # `users` got or lost the right to read the chat. `read`: they moved their own read cursor.
    SHARED = "shared"
    UNSHARED = "unshared"
    READ = "read"
    # The workspace has changed: its row, the state of its repositories, or its context resources since the capture.
    WORKSPACE = "workspace"
    GIT = "git"
    CONTEXT = "context"


class WatchHint(msgspec.Struct, frozen=True, kw_only=True):
    """A change for viewers of the chat list. `user_id` is the owner; `users` are other users to notify."""

    v: int = WIRE_VERSION
    user_id: UUID
    kind: WatchKind
    chat_id: UUID
    snapshot_version: int
    users: tuple[UUID, ...] = ()


class ConfigHint(msgspec.Struct, frozen=True, kw_only=True):
    """A cached row has changed. `kind` is model, provider, mcp, settings, user_prompt, template or agent_kind."""

    v: int = WIRE_VERSION
    kind: str
    id: str | None = None


class AccessHint(msgspec.Struct, frozen=True, kw_only=True):
    """Access rights have changed. `kind` is session, token, user, chat_acl or sharing."""

    v: int = WIRE_VERSION
    kind: str
    id: str | None = None


class MiscHint(msgspec.Struct, frozen=True, kw_only=True):
    """Another topic with its own payload, such as `workspace:{id}`."""

    v: int = WIRE_VERSION
    topic: str
    data: dict[str, str | int | bool | None] = {}


def nudge_topic(chat_id: UUID) -> str:
    """Return the topic of hints by which a user asks the task of a chat to go on now."""
    return f"nudge:{chat_id}"


Hint = ChatHint | OwnershipHint | WatchHint | ConfigHint | AccessHint | MiscHint

CHANNELS: dict[type[Hint], str] = {
    ChatHint: "rookery_update",
    OwnershipHint: "rookery_ownership",
    WatchHint: "rookery_owner",
    ConfigHint: "rookery_config",
    AccessHint: "rookery_access",
    MiscHint: "rookery_misc",
}
