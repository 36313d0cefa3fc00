"""Queued messages, which wait for the turn of their chat to end."""

from __future__ import annotations

from uuid import UUID

from msgspec import UNSET, UnsetType

from rookery.client.content import ChatRef, Content, Effort, given, input_parts
from rookery.client.http import Http, path
from rookery.client.models import PromoteAnswer, Queue, QueuedMessage


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
        """Run it next: immediately if that is possible, else the running turn is interrupted for it."""
        return await self._http.write(PromoteAnswer, "POST", path("chats", chat_id, "queue", queued_id, "promote"))

    async def move(self, chat_id: ChatRef, queued_id: int, *, before: int | None) -> Queue:
        """Move it in front of another one, or to the end."""
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
