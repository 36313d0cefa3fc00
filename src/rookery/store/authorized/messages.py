"""Reads of messages, sent messages and the queue on behalf of an actor."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource
from rookery.domain.chat.errors import ChatNotFound, InvalidInput, MessageNotFound
from rookery.domain.chat.messages import MAX_ID, ChatId, MessageId, QueuedMessage, is_id
from rookery.domain.chat.prompt import PromptRow
from rookery.domain.content import search_query
from rookery.store.authorized.chat_changes import Queue
from rookery.store.authorized.rights import AuthorizedMethods, Grant, Via, authz
from rookery.store.chats import messages, search, sent_messages
from rookery.store.chats.chat_views import SearchMatch
from rookery.store.chats.sent_messages import DEFAULT_LIMIT, Prompt
from rookery.store.db import page_cursors
from rookery.store.db.pool import Connection
from rookery.store.machine import bundle_runner, queue_rows

MAX_LIMIT = 200


def _with_figures(statement: str) -> str:
    return statement.replace(messages.COLUMNS, f"{messages.COLUMNS}, {messages.FIGURES}")


FIND = _with_figures(messages.FIND_VISIBLE)
NEWEST = _with_figures(messages.NEWEST)
OLDEST = _with_figures(messages.OLDEST)
VERSIONS = "SELECT snapshot_version, history_version FROM chats WHERE id = $1"
QUEUE = f"""
    SELECT {queue_rows.QUEUE_COLUMNS}
      FROM chat_queued_messages
     WHERE chat_id = $1
     ORDER BY position, id
"""
QUEUE_VERSION = "SELECT queue_version FROM chats WHERE id = $1"
# Index search_chat: searching all messages of one chat is faster than finding the word in the messages of all users.
SEARCH = f"""
    SELECT m.id, m.chat_id, left(t.text, {search_query.SOURCE_CHARS} + 1)
      FROM (SELECT s.message_id
              FROM chat_message_search s
             WHERE s.chat_id = $1
               AND s.tsv @@ websearch_to_tsquery('simple', $2)
             ORDER BY s.message_id DESC
             LIMIT $3) found
      JOIN chat_messages m ON m.id = found.message_id
     CROSS JOIN LATERAL {search.TEXT_OF_MESSAGE} t
     ORDER BY m.id DESC
"""


class MessageList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of messages with their figures, and the versions of the chat, from one snapshot.

    Messages are newest first. With `after_id` they are oldest first, so that a client that polls skips none.
    `has_more`: there are more messages in the direction of the page. For a page around a message, `has_more` is about
    older messages and `has_newer` about newer ones. `queued_messages` is None if the page has a position.
    """

    items: tuple[PromptRow, ...]
    has_more: bool
    has_newer: bool = False
    queued_messages: tuple[QueuedMessage, ...] | None = None
    snapshot_version: int
    history_version: int


class _Rows(msgspec.Struct, frozen=True):
    rows: tuple[PromptRow, ...]
    has_more: bool
    has_newer: bool = False


class Messages(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.MESSAGE, Action.READ, via=Via.CHAT)
    async def get(self, at: Grant, chat_id: ChatId, message_id: MessageId) -> PromptRow:
        """Return one visible message with its figures."""
        return await _find(at.conn, chat_id, message_id)

    @authz(Resource.MESSAGE, Action.READ, via=Via.CHAT)
    async def list(
        self,
        at: Grant,
        chat_id: ChatId,
        *,
        limit: int = 50,
        before_id: int | None = None,
        after_id: int | None = None,
        around_id: int | None = None,
    ) -> MessageList:
        """Return the newest messages, or those before, after, between or around ids."""
        _check_places(limit, before_id=before_id, after_id=after_id, around_id=around_id)
        is_whole = before_id is None and after_id is None and around_id is None
        # One snapshot: if the versions did not belong to the rows, a client would miss rows.
        async with at.conn.transaction(isolation="repeatable_read", readonly=True):
            await at.conn.execute(bundle_runner.BY_INDEX)
            versions = await at.conn.fetchrow(VERSIONS, chat_id)
            if versions is None:
                raise ChatNotFound(chat_id)  # deleted after the check of the right
            found = await _rows(
                at.conn, chat_id, limit=limit, before_id=before_id, after_id=after_id, around_id=around_id
            )
            queue = await _queue(at.conn, chat_id) if is_whole else None
        return MessageList(
            items=found.rows,
            has_more=found.has_more,
            has_newer=found.has_newer,
            queued_messages=queue,
            snapshot_version=versions["snapshot_version"],
            history_version=versions["history_version"],
        )

    @authz(Resource.MESSAGE, Action.READ, via=Via.CHAT)
    async def search(self, at: Grant, chat_id: ChatId, query: str, *, limit: int = 50) -> tuple[SearchMatch, ...]:
        """Return the messages of this chat that match the query, newest first."""
        page_cursors.check_limit(limit, MAX_LIMIT)
        records = await at.conn.fetch(SEARCH, chat_id, search.for_messages(query), limit)
        return tuple(
            SearchMatch(found_in, message_id, search_query.snippet(search.without_escapes(text), [query]))
            for message_id, found_in, text in records
        )

    @authz(Resource.MESSAGE, Action.READ, via=Via.CHAT)
    async def prompts(self, at: Grant, chat_id: ChatId, *, limit: int = DEFAULT_LIMIT) -> tuple[Prompt, ...]:
        """Return the user's messages in this chat, newest first."""
        return await sent_messages.list_of_chat(at.conn, chat_id, limit=limit)

    @authz(Resource.CHAT, Action.LIST, via=Via.USER)
    async def list_prompts(
        self, at: Grant, user_id: UUID, *, query: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[Prompt, ...]:
        """Return the user's messages in all of the user's chats, newest first.

        With a query, return only those that match.
        """
        return await sent_messages.list_of_owner(at.conn, user_id, query=query, limit=limit)

    @authz(Resource.QUEUE, Action.READ, via=Via.CHAT)
    async def list_queue(self, at: Grant, chat_id: ChatId) -> Queue:
        # The version is read first. If the queue is newer than its version, the client reads it again.
        version = await at.conn.fetchval(QUEUE_VERSION, chat_id)
        return Queue(await _queue(at.conn, chat_id), version)


def _check_places(limit: int, *, before_id: int | None, after_id: int | None, around_id: int | None) -> None:
    page_cursors.check_limit(limit, MAX_LIMIT)
    for field, value in (("before_id", before_id), ("after_id", after_id), ("around_id", around_id)):
        if value is not None and value < 0:
            raise InvalidInput(field, "An id must be 0 or more.")
    if around_id is not None and (before_id is not None or after_id is not None):
        raise InvalidInput("around_id", "around_id cannot be combined with before_id or after_id.")
    if before_id is not None and after_id is not None and after_id >= before_id:
        raise InvalidInput("after_id", "after_id must be lower than before_id.")


async def _find(conn: Connection, chat_id: ChatId, message_id: int) -> PromptRow:
    record = await conn.fetchrow(FIND, chat_id, message_id) if is_id(message_id) else None
    if record is None:
        raise MessageNotFound(message_id)
    return messages.prompt_row(record)


async def _rows(
    conn: Connection,
    chat_id: ChatId,
    *,
    limit: int,
    before_id: int | None,
    after_id: int | None,
    around_id: int | None,
) -> _Rows:
    if around_id is not None:
        return await _around(conn, chat_id, limit=limit, around_id=around_id)
    if before_id is None and after_id is not None:
        return await _oldest(conn, chat_id, limit=limit, after_id=after_id)
    return await _newest(conn, chat_id, limit=limit, before_id=before_id, after_id=after_id or 0)


async def _newest(
    conn: Connection, chat_id: ChatId, *, limit: int, before_id: int | None = None, after_id: int = 0
) -> _Rows:
    before = MAX_ID if before_id is None else min(before_id, MAX_ID)
    records = await conn.fetch(NEWEST, chat_id, min(after_id, MAX_ID), before, limit + 1)
    return _Rows(tuple(map(messages.prompt_row, records[:limit])), len(records) > limit)


async def _oldest(conn: Connection, chat_id: ChatId, *, limit: int, after_id: int) -> _Rows:
    records = await conn.fetch(OLDEST, chat_id, min(after_id, MAX_ID), limit + 1)
    return _Rows(tuple(map(messages.prompt_row, records[:limit])), len(records) > limit)


async def _around(conn: Connection, chat_id: ChatId, *, limit: int, around_id: int) -> _Rows:
    """Return the messages around this one, newest first."""
    middle = await _find(conn, chat_id, around_id)
    newer_limit = (limit - 1) // 2
    newer = await _oldest(conn, chat_id, limit=newer_limit, after_id=around_id)
    older = await _newest(conn, chat_id, limit=limit - 1 - newer_limit, before_id=around_id)
    return _Rows((*reversed(newer.rows), middle, *older.rows), older.has_more, newer.has_more)


async def _queue(conn: Connection, chat_id: ChatId) -> tuple[QueuedMessage, ...]:
    return tuple(map(queue_rows.queued_of, await conn.fetch(QUEUE, chat_id)))
