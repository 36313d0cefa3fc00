"""What the server answers with. Made by tools/generate_client_models.py from docs/api/openapi.json.

Members that this version does not know are ignored, and those that may be null may be absent: servers within one
version of the API only ever add to it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """An administrator read a chat with a stated reason, or reset the password of its owner.

    `user` is the administrator: null if the account is gone, or for a command on the server's machine. `chat_id` and
    `reason` are null for a reset.
    """

    at: str
    kind: str
    user: PublicUser | None = None
    chat_id: UUID | None = None
    reason: str | None = None


class AccessNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The accesses since the user last dismissed a notice. Send `through` to dismiss this one."""

    reads: int
    password_resets: int
    last_at: datetime
    through: int


class AccessPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of accesses, newest first."""

    items: tuple[Access, ...]
    next_cursor: str | None = None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat waits for: results of its client ("tools"), or a user's approval ("approval").

    Without a deadline it waits without limit.
    """

    kind: str
    tool_calls: tuple[ActionCall, ...]
    deadline_at: datetime | None = None


class ActionCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a chat waits for, with its arguments exactly as the model wrote them.

    `always`: the calls that a rule would match, by path and glob, if the answer to this one were remembered.
    """

    tool_call_id: str
    tool_name: str
    args: Any
    always: Offers | None = None


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A chat as one user sees it: role, pin and unread mark are the viewer's.

    Of other users' chats that the viewer may not read it has metadata only: no title, labels, texts or error.
    `context` is set once its workspace has reported something, `git` once it was seen to work in a repository: the
    one with most changes, as last seen. Events leave `children` out: each chat has its own.
    """

    id: UUID
    owner: PublicUser
    my_role: str
    parent_chat_id: UUID | None = None
    root_chat_id: UUID
    mode: str | None = None
    title: str
    status: str
    archived: bool
    archived_at: datetime | None = None
    plan_mode: bool
    last_error: ChatError | None = None
    last_model_config_id: UUID
    last_reasoning_effort: str | None = None
    workspace_id: UUID | None = None
    mcp_server_ids: tuple[UUID, ...]
    labels: dict[str, str]
    pin_order: int | None = None
    client_type: str
    last_turn_summary: str | None = None
    summary: str | None = None
    has_unread: bool
    shared: bool
    queue_len: int
    requires_action_deadline_at: datetime | None = None
    needs_user: str | None = None
    usage: ContextUsage
    created_at: datetime
    updated_at: datetime
    last_activity_at: datetime
    snapshot_version: int
    history_version: int
    meta_version: int
    context: ContextState | None = None
    git: DiffStatus | None = None
    children: tuple[Chat, ...] = ()
    match: SearchMatch | None = None
    files: tuple[ChatFile, ...] = ()
    dynamic_tools: tuple[str, ...] = ()
    queued_for_capacity: bool = False
    warnings: tuple[str, ...] = ()
    action: Action | None = None


class ChatError(msgspec.Struct, frozen=True, kw_only=True):
    """The error that stopped a chat."""

    message: str = "The chat request failed unexpectedly."
    detail: str | None = None
    kind: str | None = None
    provider: str | None = None
    retryable: bool = False
    status_code: int | None = None


class ChatFile(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    mime_type: str
    size_bytes: int
    created_at: datetime


class ChatState(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a chat by which clients order responses and events."""

    status: str
    snapshot_version: int
    history_version: int
    queue_len: int


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The captured context. `dirty_since` is when the workspace began to differ from it."""

    pinned: bool
    workspace_id: UUID | None = None
    dirty_since: str | None = None
    error: str | None = None
    items: tuple[ContextItem, ...]


class ContextFile(msgspec.Struct, frozen=True, kw_only=True):
    """An instruction file that was in effect, without its text."""

    path: str
    size: int = 0
    hash: str = ""
    truncated: bool = False


class ContextItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that the workspace gives the model. `status` is ok, truncated, oversize, unreadable, invalid, excluded.

    `tools` are the names of an MCP server's tools.
    """

    kind: str
    source: str
    name: str | None = None
    description: str | None = None
    size: int
    status: str
    error: str | None = None
    tools: tuple[str, ...] | None = None


class ContextState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the captured context is still the workspace's newest; and since when not.

    `servers` grows whenever the MCP servers of the workspace change, for example with a new question.
    """

    dirty: bool
    dirty_since: str | None = None
    error: str | None = None
    servers: int = 0


class ContextUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The fill level of the model's context at the newest answer."""

    context_tokens: int | None = None
    context_limit: int | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a chat with its subagents.

    The keys of `by_model` are the provider's model ids, those of `by_chat` chat ids.
    """

    total_cost_micros: int
    request_count: int
    unpriced_request_count: int
    tokens: TokenCounts
    runtime_ms: int
    by_model: dict[str, Figures]
    by_chat: dict[str, Figures]


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that the chat worked in. `diff` is null if the workspace could not be read."""

    root: str
    branch: str | None = None
    remote_origin: str | None = None
    additions: int
    deletions: int
    changed_files: int
    refreshed_at: datetime
    diff: str | None = None


class DiffStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A repository as last seen."""

    root: str
    branch: str | None = None
    remote_origin: str | None = None
    additions: int
    deletions: int
    changed_files: int
    refreshed_at: datetime


class DownloadUrl(msgspec.Struct, frozen=True, kw_only=True):
    """`url` returns the file to any client that has the address, until it expires."""

    url: str
    expires_at: datetime
    sha256: str
    size_bytes: int
    name: str
    mime_type: str


class EditAnswer(msgspec.Struct, frozen=True, kw_only=True):
    message: Message
    messages: tuple[Message, ...]
    deleted_message_ids: tuple[int, ...]
    deleted_queued_ids: tuple[int, ...]
    chat: ChatState


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Calls without a known price are counted, but not included in the cost."""

    cost_micros: int
    request_count: int
    unpriced_request_count: int
    tokens: TokenCounts
    runtime_ms: int


class File(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    mime_type: str
    size_bytes: int
    sha256: str
    created_at: datetime


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of the workspace, folders first. `path` is as requested. `truncated`: it has more entries."""

    path: str
    entries: tuple[FolderEntry, ...]
    truncated: bool


class FolderEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_dir: bool
    size: int


class LoggedIn(msgspec.Struct, frozen=True, kw_only=True):
    """The logged-in user. Later requests send the cookie of this response and the `session_key`."""

    id: UUID
    username: str
    name: str
    email: str | None = None
    role: str
    status: str
    spend_limit_micros: int | None = None
    created_at: datetime
    last_seen_at: datetime | None = None
    session_key: str


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that a file of the workspace defines.

    `hash` is that of its entry: the command, its arguments, its working folder, and the names (never the values) of
    its variables. `state` is asked, agreed, denied or changed (the answer was about another entry of this name). In
    all texts, characters that could hide or reorder what is shown are escaped, such as `\u202e`. `error` says why a
    server that may run does not run; `tools` are the names of its tools while it runs.
    """

    name: str
    hash: str
    state: str
    folder: str
    command: str
    args: tuple[str, ...]
    env: tuple[str, ...]
    running: bool
    error: str | None = None
    tools: tuple[str, ...]
    decided_at: datetime | None = None


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The caller. `permissions` are what this login or token may do beyond the caller's own data: `resource:action`.

    `access_notice` lists what administrators did since the last notice was dismissed; null for tokens without the
    scope `all`. `warnings` are about the server, for administrators.
    """

    id: UUID
    username: str
    name: str
    email: str | None = None
    role: str
    status: str
    spend_limit_micros: int | None = None
    created_at: datetime
    last_seen_at: datetime | None = None
    permissions: tuple[str, ...]
    access_notice: AccessNotice | None = None
    warnings: tuple[str, ...]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message. `decode_error` is present, and true, if its content could not be read."""

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
    context_tokens: int | None = None
    finish_reason: str | None = None
    cost_micros: int | None = None
    runtime_ms: int | None = None
    decode_error: bool = False


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of messages. `queued_messages` is present without a cursor, `has_newer` in a page around a message."""

    items: tuple[Message, ...]
    has_more: bool
    snapshot_version: int
    history_version: int
    queued_messages: tuple[QueuedMessage, ...] = ()
    has_newer: bool = False


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """`reasoning_efforts` are the available ones, from least to most.

    `compression_threshold` is the percentage of the context at which chats are summarized, unless the user has set
    another.
    """

    id: UUID
    model: str
    display_name: str
    context_limit: int
    reasoning_efforts: tuple[str, ...]
    is_default: bool
    compression_threshold: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    providers: tuple[ModelProvider, ...]


class ModelProvider(msgspec.Struct, frozen=True, kw_only=True):
    """`unavailable_reason` is `missing_api_key` or `user_api_key_required`: the caller can add their own key."""

    id: UUID
    type: str
    display_name: str
    icon: str
    available: bool
    unavailable_reason: str | None = None
    models: tuple[Model, ...]


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """`token` is the credential that programs send. It is shown here and never again."""

    id: UUID
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None = None
    token: str


class Offers(msgspec.Struct, frozen=True, kw_only=True):
    """The patterns an "always" answer would permit: in this chat what the question was about, for the user exactly this
    call.

    None where no pattern can express it, such as for a call that is too long; then the user has to supply one. `tool`
    is the name in the rule, for tools of MCP servers instead of the tool's own name.
    """

    chat: dict[str, str] | None = None
    user: dict[str, str] | None = None
    tool: str | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on a workspace: `kind` is create, start, stop or delete.

    `state` is queued, running, succeeded, failed or canceled; `reason` says who or what requested it.
    """

    id: UUID
    workspace_id: UUID
    kind: str
    state: str
    reason: str
    error: str | None = None
    error_code: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of a template's workspaces. `ephemeral` parameters are given again at every start."""

    name: str
    type: str
    required: bool
    default: bool | int | float | str | tuple[str, ...] | None = None
    mutable: bool
    ephemeral: bool
    display_name: str
    description: str
    options: tuple[bool | int | float | str | tuple[str, ...], ...]
    regex: str | None = None
    min: float | None = None
    max: float | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One of any type, with the members of all: a newer server may send types that this client does not know."""

    type: str
    text: str | None = None
    refusal: bool = False
    provider_meta: dict[str, Any] | None = None
    created_at: datetime | None = None
    completed_at: datetime | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    args: Any = None
    args_delta: str | None = None
    parsed_commands: tuple[tuple[str, ...], ...] | None = None
    mcp_server_id: UUID | None = None
    provider_executed: bool = False
    hook_rewritten: bool = False
    result: Any = None
    result_delta: str | None = None
    result_reset: bool = False
    is_error: bool = False
    is_media: bool = False
    url: str | None = None
    source_id: str | None = None
    title: str | None = None
    media_type: str | None = None
    name: str | None = None
    file_id: UUID | None = None
    data: str | None = None
    file_name: str | None = None
    start_line: int | None = None
    end_line: int | None = None
    content: str | None = None
    workspace_id: UUID | None = None
    generation: int | None = None
    hash: str | None = None
    files: tuple[ContextFile, ...] = ()
    skills: tuple[str, ...] = ()
    mcp_servers: tuple[str, ...] = ()


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    default: bool
    description: str
    parameters: dict[str, bool | int | float | str | tuple[str, ...]]


class PromoteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`message` is null while the running turn has to stop first."""

    message: Message | None = None
    messages: tuple[Message, ...]
    chat: ChatState


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A user message: its text parts, joined by line breaks."""

    id: int
    chat_id: UUID
    text: str


class ProposedTitle(msgspec.Struct, frozen=True, kw_only=True):
    """The title is empty if the chat has no text to make one from."""

    title: str


class PublicUser(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a user that all users may see."""

    id: UUID
    username: str
    name: str


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    items: tuple[QueuedMessage, ...]
    queue_version: int


class QueuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for its turn. `steer` messages are added at the next step."""

    id: int
    content: tuple[Part, ...]
    model_config_id: UUID | None = None
    reasoning_effort: str | None = None
    client_id: str | None = None
    created_at: datetime
    created_by: UUID
    steer: bool
    decode_error: bool = False


class RequestedWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """The workspace as it is now, and the operation to wait for; null if there was nothing to do."""

    workspace: Workspace
    operation: Operation | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """An approval rule.

    `tool` is a glob over the tool's name, `mcp:SERVER/TOOL` for tools of MCP servers. Every path in `match` has to
    match; other arguments may have any value. The model gets `reason` when the rule denies.

    `problem` is set for a stored rule that is no longer valid: it matches every call of its tool if it restricts, and
    none if it permits. A field unknown to this version may narrow the rule, so a rule with one cannot be read.
    """

    tool: str
    action: str
    match: dict[str, str] = {}
    reason: str = ""
    problem: str | None = None


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    rules: tuple[Rule, ...]


class SearchMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The search hit of a chat: the newest message of its family that matches. All null if only a title matches.

    `chat_id` is the chat of the message, which may be a subagent's; `snippet` is plain text around the hit.
    """

    chat_id: UUID | None = None
    message_id: int | None = None
    snippet: str | None = None


class SendAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`messages` are all visible messages that this request inserted, in order. Clients insert all of them."""

    queued: bool
    message: Message | None = None
    queued_message: QueuedMessage | None = None
    messages: tuple[Message, ...]
    chat: ChatState
    warnings: tuple[str, ...] = ()


class SetupStatus(msgspec.Struct, frozen=True, kw_only=True):
    needed: bool


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A template.

    `revision` and `readme` are present only when one template is read; its access lists only for administrators.

    `network` is the requested network (none, hosts, public, host); `granted_network` is what its workspaces get,
    which is less where the server's settings do not allow it. `hosts` are the reachable hosts with `hosts`.
    `unavailable` says why workspaces of it cannot be started on this server, and what to do about it; null when they
    can.
    """

    name: str
    display_name: str
    description: str
    icon: str
    driver: str
    network: str
    granted_network: str
    hosts: tuple[str, ...]
    unavailable: str | None = None
    parameters: tuple[Parameter, ...]
    presets: tuple[Preset, ...]
    agents_allowed: bool
    deprecated: bool
    enabled: bool
    shipped: bool
    updated_at: datetime
    revision: str | None = None
    readme: str | None = None
    allowed_users: tuple[UUID, ...] = ()
    allowed_roles: tuple[str, ...] = ()


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret."""

    id: UUID
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None = None


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Input excludes tokens read from a cache; reasoning is part of output."""

    input: int
    cache_read: int
    cache_write: int
    output: int
    reasoning: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The token counts of a step."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_read_tokens: int | None = None
    context_limit: int | None = None


class User(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    username: str
    name: str
    email: str | None = None
    role: str
    status: str
    spend_limit_micros: int | None = None
    created_at: datetime
    last_seen_at: datetime | None = None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """`build` is the name of the web application's build, null without one; `features` are the tags of this API.

    A client hides what needs a missing tag: the server is older, or was built without it.
    """

    version: str
    commit: str | None = None
    api: int
    stream_protocol: int
    schema: int
    build: str | None = None
    features: tuple[str, ...]


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace. `idle_stop_after` is in seconds, 0 is never; `chats` are the newest 20 that are bound to it.

    `operation` is the running one. `warning` says that it is not confined, that its disk is nearly full, or that it
    will be deleted soon because it is unused. `network` is what it can reach since its last start: none, hosts,
    public or host, which is the machine's own network with its localhost; null before the first start.
    """

    id: UUID
    owner: PublicUser | None = None
    name: str
    template: str | None = None
    template_revision: str | None = None
    driver: str
    parameters: dict[str, Any]
    status: str
    error: str | None = None
    error_code: str | None = None
    warning: str | None = None
    agent_state: str
    startup_exit_code: int | None = None
    os: str | None = None
    arch: str | None = None
    directory: str | None = None
    network: str | None = None
    idle_stop_after: float
    stops_at: datetime | None = None
    last_used_at: datetime
    started_at: datetime | None = None
    created_at: datetime
    updated_at: datetime
    chats: tuple[UUID, ...]
    operation: Operation | None = None


class WorkspaceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the workspace. `path` is relative to the working folder, or absolute for a stored tool result.

    `text` is null if the file is not text. `truncated`: it is longer than the first MiB.
    """

    path: str
    text: str | None = None
    truncated: bool
