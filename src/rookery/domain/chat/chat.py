"""`Chat`, the row of a chat's execution state, the JSON values in it, and `Fence`, which guards a worker's writes."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State, Status, classify


class LastError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The error that stopped a chat, as shown to users (`chats.last_error`)."""

    message: str
    retryable: bool
    detail: str | None = None
    kind: str | None = None
    provider: str | None = None
    status_code: int | None = None

    def __post_init__(self) -> None:
        if not self.message.strip():
            raise ValueError("An error needs a message.")


# Queued messages stay in the queue until the account is enabled and a user sends a message or retries.
OWNER_DISABLED = LastError(message="The account of this chat's owner is disabled.", retryable=False, kind="generic")


class RetryState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The error of the last attempt and the start of the next one (`chats.retry_state`)."""

    attempt: int
    delay_ms: int
    error: str
    retrying_at: datetime
    kind: str | None = None
    provider: str | None = None
    status_code: int | None = None


class Chat(msgspec.Struct, frozen=True):
    """The columns of a chat that transitions depend on.

    `last_error` and `retry_state` are the stored JSON. `leased` is evaluated when the row is read, by the clock of the
    database: worker_id and runner_id are set, the heartbeat is fresh, and the owner's replica has a row.
    `awaits_approval`: in `requires_action`, the chat waits for a user's approval, not for results of its client.
    """

    id: ChatId
    owner_id: UUID
    parent_chat_id: ChatId | None
    root_chat_id: ChatId | None
    status: str
    archived: bool
    worker_id: UUID | None
    runner_id: UUID | None
    last_error: str | None
    retry_state: str | None
    requires_action_deadline_at: datetime | None
    compaction_requested_at: datetime | None
    compaction_resume: bool
    runnable_since: datetime | None
    snapshot_version: int
    history_version: int
    queue_version: int
    retry_state_version: int
    generation_attempt: int
    queue_len: int
    last_model_config_id: UUID
    last_reasoning_effort: str | None
    created_at: datetime
    updated_at: datetime
    leased: bool
    awaits_approval: bool = False

    @property
    def state(self) -> State:
        return classify(self.status, archived=self.archived, queue_len=self.queue_len)

    @property
    def is_parked(self) -> bool:
        """Return whether the chat waits for a user without a deadline. No worker has to own it."""
        is_waiting = self.status == Status.REQUIRES_ACTION and self.awaits_approval
        return is_waiting and self.requires_action_deadline_at is None

    @property
    def is_root(self) -> bool:
        return self.parent_chat_id is None


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the chat that a worker's task read at its start. Its writes are refused if one of them has changed.

    `runner_id` is new for each acquisition, so a worker that acquires a chat again has another fence.
    """

    worker_id: UUID
    runner_id: UUID
    status: Status
    history_version: int
    generation_attempt: int | None = None
    allow_archived: bool = False

    def find_mismatch(self, chat: Chat) -> str | None:
        """Return the first field in which the locked row differs from the fence, or None."""
        if chat.worker_id != self.worker_id:
            return "worker_id"
        if chat.runner_id != self.runner_id:
            return "runner_id"
        if chat.status != self.status:
            return "status"
        if chat.history_version != self.history_version:
            return "history_version"
        if self.generation_attempt is not None and chat.generation_attempt != self.generation_attempt:
            return "generation_attempt"
        if chat.archived and not self.allow_archived:
            return "archived"
        return None
