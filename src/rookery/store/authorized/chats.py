"""Chats on behalf of an actor: read, list, metadata, archive, delete, share, pins and read cursors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.access.rights import Action, Relation, Resource, SystemActor
from rookery.domain.chat import labels as label_rules
from rookery.domain.chat import messages
from rookery.domain.chat.errors import ChatNotFound, ChatNotRoot, InvalidInput
from rookery.domain.chat.messages import ChatId, Effort, MessageId
from rookery.domain.chat.permission_mode import PermissionMode
from rookery.domain.content.search_query import ChatQuery
from rookery.store import machine
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authz
from rookery.store.chats import (
    chat_list,
    chat_rows,
    chat_view_reads,
    chat_views,
    folders,
    pins,
    read_cursors,
    shares,
    subagents,
)
from rookery.store.chats.chat_view_reads import ViewerChat
from rookery.store.chats.chat_views import ChatListPage, ChatView
from rookery.store.chats.shares import Share, ShareChange, SharePatch
from rookery.store.chats.subagents import AgentList
from rookery.store.db.hints import WatchKind
from rookery.store.debug import recording_state as debug_state
from rookery.store.debug.record_rows import DebugMode
from rookery.store.mcp import servers as mcp_servers
from rookery.store.people import admin_accesses, preferences
from rookery.store.people.admin_accesses import AccessPage
from rookery.store.people.audit import Event
from rookery.store.people.errors import ArchiveFirst, Disabled
from rookery.store.settings import limit_settings, settings
from rookery.store.workspaces import context, workspaces

MAX_TITLE_CHARS = 200
NO_QUERY = ChatQuery()

# The lock of the row serializes concurrent patches.
LOCK = """
    SELECT parent_chat_id IS NULL AS is_root, archived, archived_at, title, labels, workspace_id
      FROM chats
     WHERE id = $1
       FOR NO KEY UPDATE
"""
WRITE = """
    UPDATE chats
       SET title = CASE WHEN $2 THEN $3 ELSE title END,
           labels = CASE WHEN $4 THEN $5 ELSE labels END,
           plan_mode = CASE WHEN $6 THEN $7 ELSE plan_mode END,
           mcp_server_ids = CASE WHEN $8 THEN $9 ELSE mcp_server_ids END,
           last_model_config_id = CASE WHEN $10 THEN $11 ELSE last_model_config_id END,
           last_reasoning_effort = CASE WHEN $12 THEN $13 ELSE last_reasoning_effort END,
           permission_mode = CASE WHEN $14 THEN $15 ELSE permission_mode END
     WHERE id = $1
    RETURNING meta_version
"""
META_VERSION = "SELECT meta_version FROM chats WHERE id = $1"


class ChatPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a chat. UNSET means no change. `pin_order` is that of the caller: 0 unpins, above 0 pins or moves."""

    title: str | UnsetType = UNSET
    labels: Mapping[str, str] | UnsetType = UNSET
    workspace_id: UUID | UnsetType | None = UNSET
    plan_mode: bool | UnsetType = UNSET
    mcp_server_ids: tuple[UUID, ...] | UnsetType = UNSET
    model_config_id: UUID | UnsetType = UNSET
    reasoning_effort: Effort | UnsetType | None = UNSET
    permission_mode: PermissionMode | UnsetType = UNSET
    folder_id: UUID | UnsetType | None = UNSET
    pin_order: int | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    debug_mode: DebugMode | UnsetType = UNSET

    @property
    def metadata(self) -> tuple[object, ...]:
        """Return the fields that only the owner may change, in the order of `WRITE`, without `workspace_id`."""
        return (
            self.title,
            self.labels,
            self.plan_mode,
            self.mcp_server_ids,
            self.model_config_id,
            self.reasoning_effort,
            self.permission_mode,
        )

    @property
    def actions(self) -> frozenset[Action]:
        needed = set()
        if any(value is not UNSET for value in (*self.metadata, self.workspace_id, self.folder_id, self.debug_mode)):
            needed.add(Action.PATCH)
        if self.pin_order is not UNSET:
            needed.add(Action.MARK)
        if self.archived is not UNSET:
            needed.add(Action.ARCHIVE)
        return frozenset(needed) or frozenset({Action.READ})


def _patch_actions(chat_id: ChatId, patch: ChatPatch) -> frozenset[Action]:
    return patch.actions


def _required_action(chat_id: ChatId, action: Action) -> frozenset[Action]:
    return frozenset({action})


class Chats(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.CHAT, Action.READ, via=Via.CHAT)
    async def get(self, at: Grant, chat_id: ChatId) -> ChatView:
        """Return the chat with all fields, and its subagents' chats in the same archive state."""
        seen = await _load(at, chat_id)
        return await chat_view_reads.with_single_members(at.conn, seen.chat)

    @authz(Resource.CHAT, Action.READ, via=Via.CHAT)
    async def list_agents(self, at: Grant, chat_id: ChatId) -> AgentList:
        """Return the subagents of the chat's family. The result is the same for the root and for any subagent."""
        stored = await settings.find_setting(at.conn, limit_settings.SUBAGENTS)
        stall_after = limit_settings.read_subagent_settings(stored).stall_after
        return await subagents.list_views(at.conn, at.root_id or chat_id, stall_after=stall_after)

    @authz(Resource.CHAT, Action.READ, via=Via.CHAT, actions=_required_action)
    async def require(self, at: Grant, chat_id: ChatId, action: Action) -> ChatId:
        """Check only the right. A caller without it is then refused before the request is validated.

        Returns the root of the chat's family.
        """
        return ChatId(at.root_id or chat_id)

    @authz(Resource.CHAT, Action.LIST, via=Via.USER)
    async def list(
        self,
        at: Grant,
        user_id: UUID,
        query: ChatQuery = NO_QUERY,
        *,
        labels: Sequence[tuple[str, str]] = (),
        workspace_id: UUID | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> ChatListPage:
        """List root chats with their subagents' chats: the pinned first, then by last activity.

        Administrators and auditors may list chats of another user (`owner` in the query); they get metadata without
        contents. `labels` and `workspace_id` are further conditions.
        """
        actor = at.actor
        assert not isinstance(actor, SystemActor), "a system actor may not list chats"
        wanted = await chat_list.resolve_query(at.conn, query, actor=actor, workspace_id=workspace_id, labels=labels)
        return await chat_list.list_chats(at.conn, wanted, actor=actor, limit=limit, cursor=cursor)

    @authz(Resource.CHAT, Action.PATCH, via=Via.CHAT, how=How.BUNDLE, actions=_patch_actions)
    async def patch(self, at: Grant, chat_id: ChatId, patch: ChatPatch) -> ChatView:
        """Apply all changes in one transaction. Values that do not change are not written and not published."""
        checked = _checked(patch)
        if patch.archived is not UNSET:
            await self._archive(at, chat_id, archived=bool(patch.archived))
        if not isinstance(patch.debug_mode, UnsetType):
            await _set_debug_mode(at, chat_id, patch.debug_mode)
        if any(value is not UNSET for value in (*patch.metadata, patch.workspace_id)):
            await _write(at, chat_id, checked)
        if not isinstance(patch.folder_id, UnsetType):
            await _move(at, chat_id, patch.folder_id)
            at.tell_watchers(chat_id, WatchKind.METADATA, users=[at.user_id])
        if not isinstance(patch.pin_order, UnsetType):
            await _pin(at, chat_id, patch.pin_order)
            at.tell_watchers(chat_id, WatchKind.METADATA)
        seen = await _load(at, chat_id)
        # An administrator may archive a chat without the right to read it.
        return seen.chat if seen.is_reader else chat_views.without_contents(seen.chat)

    async def _archive(self, at: Grant, chat_id: ChatId, *, archived: bool) -> None:
        row = await at.conn.fetchrow(LOCK, chat_id)
        if row is None:
            raise ChatNotFound(chat_id)
        if not row["is_root"]:
            raise ChatNotRoot(chat_id, at.root_id)
        if row["archived"] == archived:
            code = "already_archived" if archived else "not_archived"
            raise InvalidInput("archived", f"The chat is {code.replace('_', ' ')}.", code=code)
        await machine.set_family_archived(at.bundle, chat_id, archived=archived)
        await _log_foreign(at, chat_id, "chat.archive" if archived else "chat.unarchive")

    @authz(Resource.CHAT, Action.DELETE, via=Via.CHAT, how=How.BUNDLE)
    async def delete(self, at: Grant, chat_id: ChatId, *, archived_before: datetime | None = None) -> int:
        """Delete an archived family and notify its readers. Returns the number of chats.

        With `archived_before`, for retention, the family must have been archived before that time.
        """
        row = await at.conn.fetchrow(LOCK, chat_id)
        if row is None:
            raise ChatNotFound(chat_id)
        if not row["is_root"]:
            raise ChatNotRoot(chat_id, at.root_id)
        if not row["archived"] or (archived_before is not None and row["archived_at"] >= archived_before):
            raise ArchiveFirst
        members = await machine.delete_family(at.bundle, chat_id)
        await at.log(Event(action="chat.delete", resource_type=Resource.CHAT, resource_id=str(chat_id)))
        return len(members)

    @authz(Resource.CHAT, Action.MARK, via=Via.CHAT, how=How.WRITE)
    async def mark_read(
        self, at: Grant, chat_id: ChatId, *, message_id: MessageId | None = None, force: bool = False
    ) -> MessageId:
        """Move the caller's read cursor and return its position. Other clients of the caller are notified."""
        moved = await read_cursors.mark_read(at.conn, chat_id, user_id=at.user_id, message_id=message_id, force=force)
        at.tell_watchers(chat_id, WatchKind.READ, users=[at.user_id])
        return moved

    @authz(Resource.SHARE, Action.SEE_SHARES, via=Via.CHAT)
    async def list_shares(self, at: Grant, chat_id: ChatId) -> Sequence[Share]:
        if at.root_id != chat_id:
            raise ChatNotRoot(chat_id, at.root_id)
        return await shares.list_shares(at.conn, chat_id)

    @authz(Resource.SHARE, Action.SHARE, via=Via.CHAT, how=How.WRITE)
    async def patch_shares(self, at: Grant, chat_id: ChatId, patch: SharePatch) -> ShareChange:
        """Add and remove readers. Direct readers are notified, and open streams of removed readers end."""
        if not await shares.is_sharing_enabled(at.conn):
            raise Disabled("Sharing is disabled. Ask an administrator.")
        if at.root_id != chat_id:
            raise ChatNotRoot(chat_id, at.root_id)
        change = await shares.patch_shares(at.conn, chat_id, patch=patch, by=at.user_id, now=at.now)
        if change.is_empty:
            return change
        if change.takes_access:
            await pins.drop_pins_of_former_readers(at.conn, chat_id)
        await at.log(
            Event(
                action="chat.share",
                resource_type=Resource.CHAT,
                resource_id=str(chat_id),
                extra={
                    "added": sorted(map(str, change.added)),
                    "removed": sorted(map(str, change.removed)),
                    "everyone": change.everyone,
                },
            )
        )
        at.tell_access("chat_acl", chat_id)
        if change.added:
            at.tell_watchers(chat_id, WatchKind.SHARED, users=sorted(change.added))
        if change.removed:
            at.tell_watchers(chat_id, WatchKind.UNSHARED, users=sorted(change.removed))
        return change

    @authz(Resource.SHARE, Action.LEAVE, via=Via.CHAT, how=How.WRITE)
    async def leave(self, at: Grant, chat_id: ChatId) -> None:
        """Remove the caller from the readers. A chat that is shared with everyone stays readable."""
        if at.root_id != chat_id:
            raise ChatNotRoot(chat_id, at.root_id)
        if await shares.leave(at.conn, chat_id, user_id=at.user_id):
            await pins.drop_pins_of_former_readers(at.conn, chat_id)
            at.tell_access("chat_acl", chat_id)
            at.tell_watchers(chat_id, WatchKind.UNSHARED, users=[at.user_id])

    @authz(Resource.SHARE, Action.SEE_SHARES, via=Via.CHAT)
    async def list_accesses(
        self, at: Grant, chat_id: ChatId, *, limit: int = 50, cursor: str | None = None
    ) -> AccessPage:
        """List the times when administrators read a chat of this family or reset its owner's password."""
        assert at.owner_id is not None
        return await admin_accesses.list_accesses(at.conn, at.owner_id, limit=limit, cursor=cursor, root_id=at.root_id)


async def _load(at: Grant, chat_id: ChatId) -> ViewerChat:
    seen = await chat_view_reads.find_chat(at.conn, chat_id, actor=at.actor)
    if seen is None:
        raise ChatNotFound(chat_id)  # deleted since the right was checked
    return seen


def _checked(patch: ChatPatch) -> ChatPatch:
    """Return the patch in stored form. Raises `InvalidInput`."""
    changed: dict[str, object] = {}
    if not isinstance(patch.title, UnsetType):
        changed["title"] = title = patch.title.strip()
        if not 1 <= len(title) <= MAX_TITLE_CHARS:
            raise InvalidInput(
                "title", f"A title must have 1 to {MAX_TITLE_CHARS} characters; this one has {len(title)}."
            )
        messages.check_storable("title", title)
    if not isinstance(patch.labels, UnsetType):
        changed["labels"] = label_rules.validate(patch.labels)
    if not isinstance(patch.pin_order, UnsetType) and patch.pin_order < 0:
        raise InvalidInput("pin_order", "The position of a pin must be 1 or more, or 0 to unpin.")
    return msgspec.structs.replace(patch, **changed)


async def _write(at: Grant, chat_id: ChatId, patch: ChatPatch) -> None:
    row = await at.conn.fetchrow(LOCK, chat_id)
    if row is None:
        raise ChatNotFound(chat_id)
    workspace_id = patch.workspace_id
    if isinstance(workspace_id, UUID):
        assert at.owner_id is not None
        await workspaces.check_own(at.conn, workspace_id, at.owner_id)
    if not isinstance(patch.mcp_server_ids, UnsetType):
        chosen = await mcp_servers.change_for_chat(at.conn, chat_id, patch.mcp_server_ids)
        patch = msgspec.structs.replace(patch, mcp_server_ids=chosen)
    if patch.permission_mode is not UNSET and not row["is_root"]:
        raise ChatNotRoot(chat_id, at.root_id)
    before = await at.conn.fetchval(META_VERSION, chat_id)
    values: list[object] = []
    for value in patch.metadata:
        given = value is not UNSET
        stored = value if given else None
        values += [given, chat_rows.encode_labels(stored) if isinstance(stored, dict) else stored]
    if not isinstance(workspace_id, UnsetType) and workspace_id != row["workspace_id"]:
        await context.bind(at.conn, chat_id, workspace_id)
    after = await at.conn.fetchval(WRITE, chat_id, *values)
    if after == before:
        return
    renamed = not isinstance(patch.title, UnsetType) and patch.title != row["title"]
    at.tell_watchers(chat_id, WatchKind.TITLE_CHANGE if renamed else WatchKind.METADATA)


async def _set_debug_mode(at: Grant, chat_id: ChatId, mode: DebugMode) -> None:
    if at.root_id != chat_id:
        raise ChatNotRoot(chat_id, at.root_id)
    if mode is DebugMode.ON and not await preferences.may_users_record(at.conn):
        raise Disabled("Debug records are disabled. Ask an administrator.")
    await debug_state.set_mode(at.conn, chat_id, mode)


async def _move(at: Grant, chat_id: ChatId, folder_id: UUID | None) -> None:
    if at.root_id != chat_id:
        raise ChatNotRoot(chat_id, at.root_id)
    await folders.move_chat(at.conn, chat_id, folder_id, owner_id=at.user_id)


async def _pin(at: Grant, chat_id: ChatId, pin_order: int) -> None:
    if at.root_id != chat_id:
        raise ChatNotRoot(chat_id, at.root_id)
    if pin_order:
        await pins.pin(at.conn, chat_id, user_id=at.user_id, position=pin_order)
    else:
        await pins.unpin(at.conn, chat_id, user_id=at.user_id)


async def _log_foreign(at: Grant, chat_id: ChatId, action: str) -> None:
    """Log a change of another user's chat. Changes by the owner are not logged."""
    if at.relation is not Relation.OWNER:
        await at.log(Event(action=action, resource_type=Resource.CHAT, resource_id=str(chat_id)))
