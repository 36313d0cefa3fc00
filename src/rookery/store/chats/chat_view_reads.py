"""Reads of `ChatView`: chats as one user sees them, any number in one statement.

A statement names the chats in a common table expression `members (id, root_id, place, message_id)`, has the viewer as
`$1`, and ends with `VIEWS`. The fields that only single reads have are read by further statements. `FOR_VIEWERS` reads
chats for several viewers; there, `members` names the viewer of each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
from msgspec import UNSET

from rookery.domain.access import rights
from rookery.domain.access.rights import Actor, ChatFacts, Relation, Role, SystemActor, UserActor
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.domain.chat.states import Status
from rookery.store import machine
from rookery.store.chats import chat_rows, read_cursors, repository_states, shares, stream_reads
from rookery.store.chats.chat_views import Action, ChatFile, ChatView, ContextState, ContextUsage, action, chat_error
from rookery.store.chats.repository_states import DiffStatus
from rookery.store.db.pool import Connection
from rookery.store.people.users import PublicUser
from rookery.store.settings import limit_settings
from rookery.telemetry import log

_log = log.get_logger("store.chats.chat_view_reads")

# The errors of decoding a stored row.
UNREADABLE = (ValueError, TypeError, msgspec.MsgspecError)

# A turn in plan mode ends with the result of one of these tools, and the chat waits for the user.
_HAS_RESULT = (
    "jsonb_path_exists(last.content, "
    '\'$[*] ? (@.type == "tool-result" && @.tool_name == "{tool}" && !(@.is_error == true))\')'
)
_ASKED = f"""
    SELECT CASE WHEN {_HAS_RESULT.format(tool="propose_plan")} THEN 'plan'
                WHEN {_HAS_RESULT.format(tool="ask_user_question")} THEN 'question' END
      FROM (SELECT m.role, m.content
              FROM chat_messages m
             WHERE m.chat_id >= c.id AND m.chat_id <= c.id
               AND NOT m.deleted
               AND coalesce(m.visibility, 'model') <> 'model'
             ORDER BY m.chat_id DESC, m.id DESC
             LIMIT 1) last
     WHERE c.status = 'waiting'
       AND NOT c.archived
       AND last.role = 'tool'
"""

# A subagent's question is shown at its root.
_CHILD_ASKS = """
    c.parent_chat_id IS NULL AND EXISTS (SELECT FROM chats k WHERE k.root_chat_id = c.id AND k.awaits_approval)
"""

# The input of the user that the chat `c` or a subagent waits for; null if there is none.
NEEDS_USER = f"""
    CASE WHEN c.awaits_approval THEN 'approval'
         WHEN c.status = 'requires_action' THEN 'tools'
         WHEN {_CHILD_ASKS} THEN 'approval'
         ELSE ({_ASKED}) END
"""

# Unread marks and the context usage depend on the newest answer; `needs_user` depends on the newest row. Each is found
# by one descent of an index (messages_role, messages_live), for chats of any length.
_VIEWS = f"""
    SELECT members.id, members.root_id, members.message_id, {chat_rows.COLUMNS}, p.pin_order, u.username, u.name,
           (c.owner_id = {{viewer}} OR {shares.SHARED_WITH.format(user="{viewer}")}),
           coalesce(newest.id > coalesce(r.last_read_message_id, 0), false),
           {shares.ENABLED} AND EXISTS (SELECT FROM chat_shares s WHERE s.chat_id = coalesce(c.root_chat_id, c.id)),
           newest.context_tokens, newest.context_limit, folder.folder_id,
           {NEEDS_USER},
           c.context_hash IS NOT NULL, c.context_dirty_since, c.context_error, c.context_servers,
           git.root, git.branch, git.remote_origin, git.additions, git.deletions, git.changed_files,
           git.refreshed_at{{more}}
      FROM members
      JOIN chats c ON c.id = members.id
      JOIN users u ON u.id = c.owner_id
      LEFT JOIN chat_pins p ON p.chat_id = c.id AND p.user_id = {{viewer}}
      LEFT JOIN chat_folder_items folder
             ON folder.chat_id = coalesce(c.root_chat_id, c.id) AND c.owner_id = {{viewer}}
      LEFT JOIN chat_read_cursors r ON r.chat_id = c.id AND r.user_id = {{viewer}}
      LEFT JOIN LATERAL (
                SELECT m.id, m.context_tokens, m.context_limit {read_cursors.NEWEST_ANSWER.format(chat="c.id")}
           ) newest ON true
      LEFT JOIN LATERAL ({repository_states.MOST_CHANGED}) git ON true
     ORDER BY members.place, members.id <> members.root_id, c.created_at, c.id
"""
VIEWS = _VIEWS.format(viewer="$1", more="")
_SUMMARY = slice(3, 3 + len(chat_rows.ChatSummary.__struct_fields__))
_FACTS = slice(_SUMMARY.stop, _SUMMARY.stop + 9)
_CONTEXT = slice(_FACTS.stop, _FACTS.stop + 4)
_GIT = slice(_CONTEXT.stop, _CONTEXT.stop + len(DiffStatus.__struct_fields__))

FAMILY = f"""
    WITH members AS (
         SELECT c.id, c.id AS root_id, 1 AS place, NULL::bigint AS message_id
           FROM chats c
          WHERE c.id = $2
          UNION ALL
         SELECT k.id, k.root_chat_id, 1, NULL
           FROM chats root
           JOIN chats k ON k.root_chat_id = root.id AND k.archived = root.archived
          WHERE root.id = $2)
    {VIEWS}
"""

FOR_VIEWERS = f"""
    WITH members AS (
         SELECT asked.chat_id AS id, asked.chat_id AS root_id, asked.place, NULL::bigint AS message_id,
                viewer.id AS viewer_id, viewer.role AS viewer_role
           FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS asked (chat_id, user_id, place)
           JOIN users viewer ON viewer.id = asked.user_id)
    {_VIEWS.format(viewer="members.viewer_id", more=", members.viewer_id, members.viewer_role")}
"""

FIND_OWNER = "SELECT owner_id FROM chats WHERE id = $1"
FILES = """
    SELECT f.id, f.name, f.mime_type, f.size_bytes, f.created_at
      FROM chat_file_links l
      JOIN chat_files f ON f.id = l.file_id
     WHERE l.chat_id = $1
     ORDER BY f.created_at, f.id
"""


class ViewerChat(msgspec.Struct, frozen=True):
    """A chat as its viewer sees it. `is_reader`: the viewer may read it as its owner or by a share.

    `message_id` is the message that a search found.
    """

    chat: ChatView
    is_reader: bool
    message_id: MessageId | None


async def find_owner(conn: Connection, chat_id: ChatId) -> UUID | None:
    """Return the owner of a chat; None if there is no such chat."""
    found: UUID | None = await conn.fetchval(FIND_OWNER, chat_id)
    return found


async def find_chat(conn: Connection, chat_id: ChatId, *, actor: Actor) -> ViewerChat | None:
    """Return the chat, with its subagents' chats in the same archive state. The caller has checked the rights."""
    found = families(await conn.fetch(FAMILY, _viewer_of(actor), chat_id), actor=actor)
    return found[0] if found else None


async def list_for_viewers(conn: Connection, pairs: Sequence[tuple[UUID, UUID]]) -> list[tuple[UUID, ChatView]]:
    """Return the id of the viewer and the chat for each pair of a chat id and a viewer id.

    The field `children` of the chats is not set.

    Pairs are left out if the viewer may not read the chat as its owner or by a share. Rows that cannot be decoded, for
    example of a newer version, are left out too.
    """
    found = []
    for record in await conn.fetch(FOR_VIEWERS, [chat for chat, _ in pairs], [user for _, user in pairs]):
        values = tuple(record)
        viewer_id, role = values[_GIT.stop :]
        try:
            seen = _seen(values, actor=UserActor(viewer_id, Role(role)))
        except UNREADABLE as error:
            _log.error("chat_unreadable", chat_id=values[0], error=type(error).__name__)
            continue
        if seen.is_reader:
            found.append((viewer_id, msgspec.structs.replace(seen.chat, children=UNSET)))
    return found


async def with_single_members(conn: Connection, chat: ChatView) -> ChatView:
    """Return the chat with the fields that only a single read has."""
    return msgspec.structs.replace(
        chat,
        files=tuple(ChatFile(*record) for record in await conn.fetch(FILES, chat.id)),
        dynamic_tools=tuple(record[0] for record in await conn.fetch(stream_reads.DECLARED_TOOLS, chat.id)),
        queued_for_capacity=chat.status == Status.RUNNING and await _is_queued(conn, chat.id),
        warnings=(),
        action=await _action(conn, chat),
    )


def families(records: Iterable[asyncpg.Record], *, actor: Actor) -> list[ViewerChat]:
    """Return the roots from the rows of a statement that ends in `VIEWS`, each with its children."""
    roots: dict[UUID, ViewerChat] = {}
    children: dict[UUID, list[ChatView]] = {}
    for record in records:
        seen = _seen(tuple(record), actor=actor)
        if record[0] == record[1]:
            roots[record[0]] = seen
        else:
            children.setdefault(record[1], []).append(seen.chat)
    return [_with_children(seen, children.get(root_id, ())) for root_id, seen in roots.items()]


def _viewer_of(actor: Actor) -> UUID | None:
    """Return the user whose pins and unread marks are shown. A system actor has none."""
    return None if isinstance(actor, SystemActor) else actor.id


def _with_children(seen: ViewerChat, children: Sequence[ChatView]) -> ViewerChat:
    chat = msgspec.structs.replace(seen.chat, children=tuple(children))
    return msgspec.structs.replace(seen, chat=chat)


def _seen(values: Sequence[Any], *, actor: Actor) -> ViewerChat:
    chat = chat_rows.from_values(values[_SUMMARY])
    username, name, is_reader, has_unread, shared, context_tokens, context_limit, folder_id, needs_user = values[_FACTS]
    view = ChatView(
        id=chat.id,
        owner=PublicUser(chat.owner_id, username, name),
        my_role=_role(actor, ChatFacts(chat.owner_id, bool(is_reader))),
        parent_chat_id=chat.parent_chat_id,
        root_chat_id=chat.root_chat_id or chat.id,
        mode=chat.mode,
        title=chat.title,
        status=chat.status,
        archived=chat.archived,
        archived_at=chat.archived_at,
        plan_mode=chat.plan_mode,
        permission_mode=chat.permission_mode,
        last_error=None if chat.last_error is None else chat_error(chat.last_error),
        last_model_config_id=chat.last_model_config_id,
        last_reasoning_effort=chat.last_reasoning_effort,
        workspace_id=chat.workspace_id,
        mcp_server_ids=chat.mcp_server_ids,
        labels=chat.labels,
        pin_order=chat.pin_order,
        folder_id=folder_id,
        client_type=chat.client_type,
        last_turn_summary=chat.last_turn_summary,
        summary=chat.summary,
        # A viewer who may not mark the chat as read has no unread mark on it.
        has_unread=bool(is_reader) and has_unread,
        shared=shared,
        queue_len=chat.queue_len,
        requires_action_deadline_at=chat.requires_action_deadline_at,
        needs_user=needs_user,
        context=_context(*values[_CONTEXT]),
        git=None if values[_GIT.start] is None else DiffStatus(*values[_GIT]),
        usage=ContextUsage(context_tokens, context_limit),
        created_at=chat.created_at,
        updated_at=chat.updated_at,
        last_activity_at=chat.updated_at,
        snapshot_version=chat.snapshot_version,
        history_version=chat.history_version,
        meta_version=chat.meta_version,
    )
    return ViewerChat(view, bool(is_reader), values[2])


def _context(has_pin: bool, dirty_since: datetime | None, error: str | None, servers: int) -> ContextState | None:
    return ContextState(dirty_since is not None, dirty_since, error, servers) if has_pin else None


def _role(actor: Actor, facts: ChatFacts) -> str:
    return Relation.SYSTEM.value if isinstance(actor, SystemActor) else rights.relation(actor, facts).value


async def _action(conn: Connection, chat: ChatView) -> Action | None:
    if chat.status != Status.REQUIRES_ACTION:
        return None
    calls = await stream_reads.list_pending_calls(conn, chat.id)
    return action(calls, is_approval=chat.needs_user == "approval", deadline_at=chat.requires_action_deadline_at)


async def _is_queued(conn: Connection, chat_id: ChatId) -> bool:
    try:
        limits = (await limit_settings.read_chat_settings(conn)).limits
    except msgspec.ValidationError:
        # A newer version has stored these settings. Workers use the last readable settings, which are not known here.
        return False
    return await machine.is_queued_for_capacity(conn, chat_id, limits=limits)
