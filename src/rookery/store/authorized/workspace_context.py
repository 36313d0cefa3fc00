"""Captured workspace context of chats, and the state of their repositories, on behalf of an actor."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rookery.domain.access.rights import Action, Resource
from rookery.domain.chat.messages import ChatId
from rookery.store.authorized.rights import Grant, How, Part, Via, authz
from rookery.store.chats import diffs
from rookery.store.chats.diffs import DiffStatus
from rookery.store.db.hints import WatchKind
from rookery.store.workspaces import context
from rookery.store.workspaces.context import ContextResource, Pin


class ChatContext(msgspec.Struct, frozen=True):
    """Resources in the order of the prompt, with their bodies, which routers leave out."""

    pin: Pin
    resources: tuple[ContextResource, ...]


class Contexts(Part):
    __slots__ = ()

    @authz(Resource.CHAT, Action.READ, via=Via.CHAT)
    async def get(self, at: Grant, chat_id: ChatId) -> ChatContext:
        return await _read(at, chat_id)

    @authz(Resource.CHAT, Action.PATCH, via=Via.CHAT, how=How.WRITE)
    async def refresh(self, at: Grant, chat_id: ChatId) -> ChatContext:
        """Capture the newest context that the workspace reported. If there is none, the captured one stays."""
        before = await context.read_pin(at.conn, chat_id)
        await context.pin(at.conn, chat_id)
        if await context.read_pin(at.conn, chat_id) != before:
            at.tell_watchers(chat_id, WatchKind.CONTEXT)
        return await _read(at, chat_id)

    @authz(Resource.CHAT, Action.READ, via=Via.CHAT)
    async def list_diffs(self, at: Grant, chat_id: ChatId) -> Sequence[DiffStatus]:
        """Return the state of the repositories when last seen."""
        return await diffs.list_diffs(at.conn, chat_id)

    @authz(Resource.CHAT, Action.PATCH, via=Via.CHAT, how=How.WRITE)
    async def write_diffs(
        self, at: Grant, chat_id: ChatId, found: Sequence[DiffStatus], removed: Sequence[str] = ()
    ) -> None:
        """Store the state that the owner was just shown."""
        if await diffs.write_diffs(at.conn, chat_id, found=found, removed=removed):
            at.tell_watchers(chat_id, WatchKind.GIT)


async def _read(at: Grant, chat_id: ChatId) -> ChatContext:
    pin = await context.read_pin(at.conn, chat_id)
    return ChatContext(pin, tuple(await context.list_resources(at.conn, chat_id)))
