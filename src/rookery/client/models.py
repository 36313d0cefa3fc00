"""What the server answers with, as structs.

Members that this version does not know are ignored, and those that may be null may be absent: servers within one
version of the API only ever add to it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    username: str
    name: str | None = None


class ChatError(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    detail: str | None = None
    kind: str | None = None
    provider: str | None = None
    retryable: bool = False
    status_code: int | None = None


class ContextUsage(msgspec.Struct, frozen=True, kw_only=True):
    context_tokens: int | None = None
    context_limit: int | None = None


class File(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    mime_type: str
    size_bytes: int
    created_at: datetime
    sha256: str | None = None


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    owner: Owner
    my_role: str
    root_chat_id: UUID
    title: str
    status: str
    archived: bool
    created_at: datetime
    updated_at: datetime
    last_activity_at: datetime
    snapshot_version: int
    history_version: int
    parent_chat_id: UUID | None = None
    mode: str | None = None
    archived_at: datetime | None = None
    plan_mode: bool = False
    last_error: ChatError | None = None
    last_model_config_id: UUID | None = None
    last_reasoning_effort: str | None = None
    workspace_id: UUID | None = None
    mcp_server_ids: tuple[UUID, ...] = ()
    labels: dict[str, str] = {}
    pin_order: int | None = None
    client_type: str | None = None
    last_turn_summary: str | None = None
    summary: str | None = None
    has_unread: bool = False
    shared: bool = False
    queue_len: int = 0
    requires_action_deadline_at: datetime | None = None
    context: dict[str, Any] | None = None
    git: dict[str, Any] | None = None
    usage: ContextUsage | None = None
    children: tuple[Chat, ...] = ()
    files: tuple[File, ...] = ()
    dynamic_tools: tuple[str, ...] = ()
    queued_for_capacity: bool = False
    warnings: tuple[str, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_read_tokens: int | None = None
    context_limit: int | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of any type, with the members of all: a newer server may send types that this client does not know."""

    type: str
    text: str | None = None
    refusal: bool = False
    tool_call_id: str | None = None
    tool_name: str | None = None
    args: Any = None
    result: Any = None
    is_error: bool = False
    is_media: bool = False
    provider_executed: bool = False
    mcp_server_id: UUID | None = None
    parsed_commands: tuple[tuple[str, ...], ...] | None = None
    url: str | None = None
    source_id: str | None = None
    title: str | None = None
    name: str | None = None
    media_type: str | None = None
    file_id: UUID | None = None
    data: str | None = None
    file_name: str | None = None
    start_line: int | None = None
    end_line: int | None = None
    content: str | None = None
    created_at: datetime | None = None
    completed_at: datetime | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    chat_id: UUID
    role: str
    content: tuple[Part, ...]
    created_at: datetime
    created_by: UUID | None = None
    model_config_id: UUID | None = None
    reasoning_effort: str | None = None
    client_id: str | None = None
    usage: Usage | None = None
    cost_micros: int | None = None
    runtime_ms: int | None = None
    decode_error: bool = False


class QueuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    content: tuple[Part, ...]
    created_at: datetime
    created_by: UUID | None = None
    model_config_id: UUID | None = None
    reasoning_effort: str | None = None
    client_id: str | None = None
    steer: bool = False
    decode_error: bool = False


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    items: tuple[Message, ...]
    has_more: bool
    snapshot_version: int
    history_version: int
    queued_messages: tuple[QueuedMessage, ...] | None = None


class ChatState(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    snapshot_version: int
    history_version: int
    queue_len: int


class SendAnswer(msgspec.Struct, frozen=True, kw_only=True):
    queued: bool
    chat: ChatState
    message: Message | None = None
    queued_message: QueuedMessage | None = None
    messages: tuple[Message, ...] = ()
    warnings: tuple[str, ...] = ()


class EditAnswer(msgspec.Struct, frozen=True, kw_only=True):
    message: Message
    chat: ChatState
    messages: tuple[Message, ...] = ()
    deleted_message_ids: tuple[int, ...] = ()
    deleted_queued_ids: tuple[int, ...] = ()


class PromoteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    chat: ChatState
    message: Message | None = None
    messages: tuple[Message, ...] = ()


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    items: tuple[QueuedMessage, ...]
    queue_version: int


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    text: str
    chat_id: UUID | None = None


class User(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    username: str
    email: str
    role: str
    status: str
    created_at: datetime
    name: str | None = None
    spend_limit_micros: int | None = None
    last_seen_at: datetime | None = None
    permissions: tuple[str, ...] = ()


class Token(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    token: str
    expires_at: datetime | None = None
    last_used_at: datetime | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    model: str
    display_name: str
    context_limit: int
    is_default: bool = False
    reasoning_efforts: tuple[str, ...] = ()


class ModelProvider(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    type: str
    display_name: str
    available: bool
    models: tuple[Model, ...]
    icon: str | None = None
    unavailable_reason: str | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    providers: tuple[ModelProvider, ...]


class DownloadUrl(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    expires_at: datetime
    sha256: str
    size_bytes: int
    name: str
    mime_type: str


class Version(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    api: int
    stream_protocol: int
    commit: str | None = None
