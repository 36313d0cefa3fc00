"""Messages of a chat, and its queued messages, which wait for the running turn to end."""

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
    PromoteAnswer,
    Prompt,
    Queue,
    QueuedMessage,
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
        """Return messages, newest first.

        With `after_id` alone, return them oldest first, so that a poller never skips one.
        """
        query = {"before_id": before_id, "after_id": after_id, "limit": limit}
        return await self._http.read(MessagePage, path("chats", chat_id, "messages"), query)

    async def iterate(self, chat_id: ChatRef, *, after_id: int = 0, page_size: int = 100) -> AsyncIterator[Message]:
        """Iterate over all messages after the given one, oldest first, loaded page by page."""
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
        """Send a message. If the chat is busy, the message waits in the queue, unless `busy_behavior` has another
        value.

        `steer` adds the message at the next step. `interrupt` stops the turn and runs the message next, before the rest
        of the queue. Repeated requests with the same `client_id` send one message only; if no id is given, one is
        generated.
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
        """Replace a message of the user. All later messages are deleted, and a new turn starts."""
        body = given(content=input_parts(content), model_config_id=model_config_id, reasoning_effort=reasoning_effort)
        return await self._http.write(EditAnswer, "PATCH", path("chats", chat_id, "messages", message_id), body=body)

    async def search(self, chat_id: ChatRef, q: str, *, limit: int = 50) -> tuple[SearchMatch, ...]:
        """Return the messages of a chat that contain the words, newest first."""
        query: Query = {"q": q, "limit": limit}
        return (await self._http.read(Items[SearchMatch], path("chats", chat_id, "search"), query)).items

    async def prompts(self, chat_id: ChatRef, *, limit: int = 500) -> tuple[Prompt, ...]:
        """Return the user's messages, newest first."""
        return (await self._http.read(Items[Prompt], path("chats", chat_id, "prompts"), {"limit": limit})).items


class AsyncQueues:
    """`client.queue`: the queued messages of a chat."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self, chat_id: ChatRef) -> Queue:
        return await self._http.read(Queue, path("chats", chat_id, "queue"))

    async def delete(self, chat_id: ChatRef, queued_id: int) -> None:
        await self._http.send("DELETE", path("chats", chat_id, "queue", queued_id))

    async def clear(self, chat_id: ChatRef) -> None:
        await self._http.send("DELETE", path("chats", chat_id, "queue"))

    async def promote(self, chat_id: ChatRef, queued_id: int) -> PromoteAnswer:
        """Run the message next. If the chat is running, its turn is interrupted."""
        return await self._http.write(PromoteAnswer, "POST", path("chats", chat_id, "queue", queued_id, "promote"))

    async def move(self, chat_id: ChatRef, queued_id: int, *, before: int | None) -> Queue:
        """Move the message before another one, or to the end."""
        target = path("chats", chat_id, "queue", queued_id, "move")
        return await self._http.write(Queue, "POST", target, body={"before": before})

    async def edit(
        self,
        chat_id: ChatRef,
        queued_id: int,
        *,
        content: Content | UnsetType = UNSET,
        model_config_id: UUID | str | UnsetType = UNSET,
        reasoning_effort: Effort | UnsetType = UNSET,
    ) -> QueuedMessage:
        body = given(
            content=content if isinstance(content, UnsetType) else input_parts(content),
            model_config_id=model_config_id,
            reasoning_effort=reasoning_effort,
        )
        return await self._http.write(QueuedMessage, "PATCH", path("chats", chat_id, "queue", queued_id), body=body)
