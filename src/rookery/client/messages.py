"""Messages of a chat: list, send, edit and search."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID, uuid4

from msgspec import UNSET, UnsetType

from rookery.client.content import BusyBehavior, ChatRef, Content, Effort, given, input_parts
from rookery.client.http import Http, Query, path
from rookery.client.models import (
    EditAnswer,
    Message,
    MessagePage,
    Prompt,
    SearchMatch,
    SendAnswer,
)
from rookery.client.pages import Items


class AsyncMessages:
    """`client.messages`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(
        self,
        chat_id: ChatRef,
        *,
        before_id: int | None = None,
        after_id: int | None = None,
        limit: int = 50,
    ) -> MessagePage:
        """Return messages newest first; with `after_id` alone oldest first, so that a poller never skips one."""
        query = {"before_id": before_id, "after_id": after_id, "limit": limit}
        return await self._http.read(MessagePage, path("chats", chat_id, "messages"), query)

    async def iterate(self, chat_id: ChatRef, *, after_id: int = 0, page_size: int = 100) -> AsyncIterator[Message]:
        """Iterate over every message after one, oldest first, loaded page by page."""
        while True:
            page = await self.list(chat_id, after_id=after_id, limit=page_size)
            for message in page.items:
                yield message
                after_id = message.id
            if not page.has_more:
                return

    async def get(self, chat_id: ChatRef, message_id: int) -> Message:
        return await self._http.read(Message, path("chats", chat_id, "messages", message_id))

    async def send(
        self,
        chat_id: ChatRef,
        content: Content,
        *,
        busy_behavior: BusyBehavior | UnsetType = UNSET,
        model_config_id: UUID | str | UnsetType = UNSET,
        reasoning_effort: Effort | UnsetType = UNSET,
        mcp_server_ids: Sequence[UUID | str] | UnsetType = UNSET,
        plan_mode: bool | UnsetType = UNSET,
        client_id: str | None = None,
    ) -> SendAnswer:
        """Send a message. While the chat is busy it waits in the queue, unless `busy_behavior` says otherwise: `steer`
        is read at the next step, `interrupt` stops the turn and runs next, before the rest of the queue.

        `client_id` makes it one message however often it is sent; one is generated if none is given.
        """
        body = given(
            content=input_parts(content),
            client_id=client_id or str(uuid4()),
            busy_behavior=busy_behavior,
            model_config_id=model_config_id,
            reasoning_effort=reasoning_effort,
            mcp_server_ids=mcp_server_ids,
            plan_mode=plan_mode,
        )
        target = path("chats", chat_id, "messages")
        return await self._http.write(SendAnswer, "POST", target, body=body, is_repeatable=True)

    async def edit(
        self,
        chat_id: ChatRef,
        message_id: int,
        content: Content,
        *,
        model_config_id: UUID | str | UnsetType = UNSET,
        reasoning_effort: Effort | UnsetType = UNSET,
    ) -> EditAnswer:
        """Replace a message of the user. Everything after it is replaced by the new turn."""
        body = given(content=input_parts(content), model_config_id=model_config_id, reasoning_effort=reasoning_effort)
        return await self._http.write(EditAnswer, "PATCH", path("chats", chat_id, "messages", message_id), body=body)

    async def search(self, chat_id: ChatRef, q: str, *, limit: int = 50) -> tuple[SearchMatch, ...]:
        """Return the messages of a chat that contain the words, newest first."""
        query: Query = {"q": q, "limit": limit}
        return (await self._http.read(Items[SearchMatch], path("chats", chat_id, "search"), query)).items

    async def prompts(self, chat_id: ChatRef, *, limit: int = 500) -> tuple[Prompt, ...]:
        """Return the user's messages, newest first."""
        return (await self._http.read(Items[Prompt], path("chats", chat_id, "prompts"), {"limit": limit})).items
