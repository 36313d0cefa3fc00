"""Hints: notifications after a commit. A hint says "look again"; it is never the source of truth.

The physical channels are fixed (no LISTEN per chat); the key is in the payload. A hint may be dropped, repeated or
reordered: receivers keep the highest `snapshot_version` they have processed per chat.
"""

from __future__ import annotations

from enum import StrEnum
from uuid import UUID

import msgspec

WIRE_VERSION = 1


class ChatHint(msgspec.Struct, frozen=True, kw_only=True):
    """The final values of one committed bundle. Nulls are explicit; `gone` means the chat was deleted."""

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
    """A request to acquire: the chat is runnable and has no lease."""

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
    # From writers of metadata, after their own commit. A summary is the chat's or that of its last turn.
    TITLE_CHANGE = "title_change"
    SUMMARY_CHANGE = "summary_change"
    METADATA = "metadata"
    # `users` gained or lost the right to read it; `read`: they moved their own cursor.
    SHARED = "shared"
    UNSHARED = "unshared"
    READ = "read"
    # Its workspace changed, the last scan of its repositories, or whether its captured context is still the newest.
    WORKSPACE = "workspace"
    GIT = "git"
    CONTEXT = "context"


class WatchHint(msgspec.Struct, frozen=True, kw_only=True):
    """For viewers of a list of chats. `user_id` is the owner; `users`: other users to notify when the row is gone."""

    v: int = WIRE_VERSION
    user_id: UUID
    kind: WatchKind
    chat_id: UUID
    snapshot_version: int
    users: tuple[UUID, ...] = ()


class ConfigHint(msgspec.Struct, frozen=True, kw_only=True):
    """A cached row changed: kind is model, provider, mcp, settings, user_prompt or template."""

    v: int = WIRE_VERSION
    kind: str
    id: str | None = None


class AccessHint(msgspec.Struct, frozen=True, kw_only=True):
    """Access rights changed: kind is session, token, user, chat_acl or sharing."""

    v: int = WIRE_VERSION
    kind: str
    id: str | None = None


class MiscHint(msgspec.Struct, frozen=True, kw_only=True):
    """Topics whose payload their users define: `replica`, `workspace:{id}`, `debug:{chat}`."""

    v: int = WIRE_VERSION
    topic: str
    data: dict[str, str | int | bool | None] = {}


Hint = ChatHint | OwnershipHint | WatchHint | ConfigHint | AccessHint | MiscHint

CHANNELS: dict[type[Hint], str] = {
    ChatHint: "rookery_update",
    OwnershipHint: "rookery_ownership",
    WatchHint: "rookery_owner",
    ConfigHint: "rookery_config",
    AccessHint: "rookery_access",
    MiscHint: "rookery_misc",
}
