"""Messages and the queue, for reading: what people may see of a chat's history."""

from __future__ import annotations

from rookery.chat.errors import InvalidInput, MessageNotFound
from rookery.chat.messages import ChatId, Message, MessageId, QueuedMessage
from rookery.chat.rights import Action, Resource
from rookery.store import messages, paging
from rookery.store.authorized.turns import Queue
from rookery.store.authz import Grant, Part, Via, authz
from rookery.store.machine import backlog
from rookery.store.messages import WINDOW_MAX_BYTES, MessagePage

MAX_LIMIT = 200

QUEUE = f"""
    SELECT {backlog.QUEUE_COLUMNS}
      FROM chat_queued_messages
     WHERE chat_id = $1
     ORDER BY position, id
"""
QUEUE_VERSION = "SELECT queue_version FROM chats WHERE id = $1"


class Messages(Part):
    __slots__ = ()

    @authz(Resource.MESSAGE, Action.READ, via=Via.CHAT)
    async def get(self, at: Grant, chat_id: ChatId, message_id: MessageId) -> Message:
        found = await messages.find_visible(at.conn, chat_id, message_id=message_id)
        if found is None:
            raise MessageNotFound(message_id)
        return found

    @authz(Resource.MESSAGE, Action.READ, via=Via.CHAT)
    async def list(
        self,
        at: Grant,
        chat_id: ChatId,
        *,
        limit: int = 50,
        before_id: int | None = None,
        after_id: int | None = None,
    ) -> MessagePage:
        """In ascending order always: the newest page, what stands before an id, or what follows one without gaps."""
        paging.check_limit(limit, MAX_LIMIT)
        for field, value in (("before_id", before_id), ("after_id", after_id)):
            if value is not None and value < 0:
                raise InvalidInput(field, "An id is 0 or more.")
        if before_id is None and after_id is not None:
            return await messages.list_oldest(at.conn, chat_id, limit=limit, after_id=after_id)
        if before_id is not None and after_id is not None and after_id >= before_id:
            raise InvalidInput("after_id", "after_id must be below before_id.")
        return await messages.list_newest(at.conn, chat_id, limit=limit, before_id=before_id, after_id=after_id or 0)

    @authz(Resource.MESSAGE, Action.READ, via=Via.CHAT)
    async def list_window(
        self, at: Grant, chat_id: ChatId, *, tail: int, max_bytes: int = WINDOW_MAX_BYTES
    ) -> MessagePage:
        return await messages.list_window(at.conn, chat_id, tail=tail, max_bytes=max_bytes)

    @authz(Resource.MESSAGE, Action.READ, via=Via.CHAT)
    async def list_delta(
        self, at: Grant, chat_id: ChatId, *, seen: int, limit: int | None = None
    ) -> tuple[Message, ...]:
        return await messages.list_delta(at.conn, chat_id, seen=seen, limit=limit)

    @authz(Resource.QUEUE, Action.READ, via=Via.CHAT)
    async def list_queue(self, at: Grant, chat_id: ChatId) -> Queue:
        items: tuple[QueuedMessage, ...] = tuple(map(backlog.queued_of, await at.conn.fetch(QUEUE, chat_id)))
        return Queue(items, await at.conn.fetchval(QUEUE_VERSION, chat_id))
