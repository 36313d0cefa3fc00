"""The transition that creates a chat: a root chat, or a subagent's chat in a family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import UUID

import msgspec

from rookery.domain.chat import labels, messages, parts
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatNotFound, InvalidInput, ParentArchived, TransitionNotAllowed
from rookery.domain.chat.messages import Effort, Message, NewMessage
from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.domain.chat.permission_mode import PermissionMode
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import Transition
from rookery.store.chats import chat_rows as stored_chats
from rookery.store.machine import message_rows, transition_update
from rookery.store.machine.bundle import CHAT_COLUMNS, Bundle

# FOR SHARE serializes the creation of a subagent's chat with the archiving of its family. The new chat is committed
# before the members are listed, or the root is found to be archived.
_ROOT = "SELECT archived, owner_id FROM chats WHERE id = $1 AND parent_chat_id IS NULL FOR SHARE"
_PARENT_ROOT = "SELECT root_chat_id FROM chats WHERE id = $1"

_INSERT = """
    INSERT INTO chats
           (id, owner_id, parent_chat_id, root_chat_id, status, title, labels, workspace_id, last_model_config_id,
            last_reasoning_effort, mode, plan_mode, mcp_server_ids, dynamic_tools, client_type, generate_summaries,
            title_tries, permission_mode)
    VALUES (coalesce($1, gen_random_uuid()), $2, $3, $4, 'running', $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
            $16, $17)
        ON CONFLICT (id) DO NOTHING
    RETURNING id
"""
_READ = f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = $1"


class ChatSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A chat to create. `dynamic_tools` is the JSON text of a list of tools that the client executes.

    `generate_summaries`: a model writes turn labels and summaries; None means yes for clients with a user interface.
    `is_named`: a user chose the title, so no model is asked for one.

    The constructor raises `InvalidInput` for a spec that cannot be stored.
    """

    owner_id: UUID
    title: str
    model_config_id: UUID
    messages: tuple[NewMessage, ...]
    id: UUID | None = None
    parent_chat_id: UUID | None = None
    root_chat_id: UUID | None = None
    reasoning_effort: Effort | None = None
    labels: Mapping[str, str] = {}
    workspace_id: UUID | None = None
    mode: str | None = None
    plan_mode: bool = False
    permission_mode: PermissionMode = PermissionMode.AUTO
    mcp_server_ids: tuple[UUID, ...] = ()
    dynamic_tools: str | None = None
    client_type: str = "api"
    generate_summaries: bool | None = None
    is_named: bool = False

    def __post_init__(self) -> None:
        if not self.messages:
            raise InvalidInput("messages", "A chat needs at least one message to start with.")
        labels.validate(self.labels)
        messages.check_storable("client_type", self.client_type)
        if self.mode is not None:
            messages.check_storable("mode", self.mode)
        if self.dynamic_tools is not None:
            _check_tools(self.dynamic_tools)


class _DynamicTool(msgspec.Struct):
    """The fields of a dynamic tool that the server reads."""

    name: str


_tools = msgspec.json.Decoder(list[_DynamicTool])

# Matches each escape as a whole, so that the second character of an escaped backslash does not begin another escape.
_ESCAPES = re.compile(r"\\(?:(?P<nul>u0000)|.)")


def _check_tools(text: str) -> None:
    """Raise `InvalidInput` if jsonb cannot store the declaration, or if a tool has no name."""
    try:
        parts.json_text(text)  # the limits of nesting and numbers that apply to all stored JSON
        tools = _tools.decode(text)
    except (parts.ContentError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(
            "dynamic_tools", "The tools must be a JSON list of objects, each with a name. Correct them."
        ) from error
    if not all(tool.name for tool in tools):
        raise InvalidInput("dynamic_tools", "A tool has an empty name. Give it a name.")
    if any(escape["nul"] for escape in _ESCAPES.finditer(text)):
        raise InvalidInput("dynamic_tools", "A tool contains the character U+0000. Remove it.")


class Created(msgspec.Struct, frozen=True):
    """A created chat. `messages` includes a closure for each call without a result before a user message."""

    chat: Chat
    messages: list[Message]


async def create_chat(bundle: Bundle, spec: ChatSpec) -> Created:
    """Insert the chat with its first messages. It is `running` and has no owner, so a hint asks for a worker."""
    try:
        return await _create(bundle, spec)
    except BaseException as error:
        bundle.refuse(error)
        raise


async def _create(bundle: Bundle, spec: ChatSpec) -> Created:
    await _check_family(bundle, spec)
    chat_id = await bundle.conn.fetchval(
        _INSERT,
        spec.id,
        spec.owner_id,
        spec.parent_chat_id,
        spec.root_chat_id,
        stored_chats.storable(spec.title),
        stored_chats.encode_labels(spec.labels),
        spec.workspace_id,
        spec.model_config_id,
        spec.reasoning_effort,
        spec.mode,
        spec.plan_mode,
        list(spec.mcp_server_ids),
        spec.dynamic_tools,
        spec.client_type,
        spec.generate_summaries,
        stored_chats.MAX_TITLE_TRIES if spec.is_named else 0,
        spec.permission_mode,
    )
    if chat_id is None:
        assert spec.id is not None
        raise await _id_taken(bundle, spec.id)
    record = await bundle.conn.fetchrow(_READ, chat_id)
    assert record is not None
    tx = bundle.enlist(Chat(*record), entered=None)
    given = [message_rows.row_of(message) for message in spec.messages]
    inserted = await message_rows.insert(tx, message_rows.with_closures(tx, given, CloseReason.NEW_USER_MESSAGE))
    model, effort = transition_update.model_choice(tx, inserted)
    await tx.settle(Transition.CREATE_CHAT, "last_model_config_id = $2, last_reasoning_effort = $3", model, effort)
    return Created(tx.chat, inserted)


async def _id_taken(bundle: Bundle, chat_id: UUID) -> TransitionNotAllowed:
    record = await bundle.conn.fetchrow(_READ, chat_id)
    state = Chat(*record).state if record else State.N
    return TransitionNotAllowed(
        Transition.CREATE_CHAT, state, f"There is a chat {chat_id} already. Choose another id.", cause="exists"
    )


async def _check_family(bundle: Bundle, spec: ChatSpec) -> None:
    if spec.parent_chat_id is None and spec.root_chat_id is None:
        return
    if spec.parent_chat_id is None or spec.root_chat_id is None:
        raise InvalidInput("parent_chat_id", "A subagent's chat needs both a parent and a root.")
    root = await bundle.conn.fetchrow(_ROOT, spec.root_chat_id)
    if root is None:
        raise ChatNotFound(spec.root_chat_id)
    if root["archived"]:
        raise ParentArchived(spec.root_chat_id)
    if root["owner_id"] != spec.owner_id:
        raise InvalidInput("owner_id", "A subagent's chat must belong to the owner of its root.")
    if spec.parent_chat_id == spec.root_chat_id:
        return
    parent = await bundle.conn.fetchrow(_PARENT_ROOT, spec.parent_chat_id)
    if parent is None:
        raise ChatNotFound(spec.parent_chat_id)
    if parent["root_chat_id"] != spec.root_chat_id:
        raise InvalidInput("parent_chat_id", "The parent chat does not belong to that root.")
