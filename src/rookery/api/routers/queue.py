"""The queue of a chat: messages that wait for the running turn to end."""

from __future__ import annotations

from uuid import UUID

from msgspec import UNSET
from pydantic import Field
from starlette.responses import Response

from rookery.api import headers, message_bodies, message_content, model_choice
from rookery.api.caller import Caller
from rookery.api.message_bodies import PromoteView, QueueView
from rookery.api.message_content import Content
from rookery.api.request_bodies import Body
from rookery.api.routes import Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action
from rookery.domain.chat.messages import ChatId, Effort, QueuedMessageId
from rookery.stream import views
from rookery.stream.views import QueuedMessageView


class MoveBody(Body):
    """The new position of a queued message: before this message, or at the end if it is null."""

    before: int | None


class QueuedPatchBody(Body):
    """The fields to change; absent fields keep their values. An effort of null means the model's default."""

    content: Content = Field(default_factory=list)
    model_config_id: UUID = UUID(int=0)
    reasoning_effort: Effort | None = None


def router(services: ApiServices) -> Routes:
    routes = Routes("queue")

    @routes.get("/chats/{chat}/queue", "queue.list", returns=QueueView, errors=(404,), takes=[headers.BREAK_GLASS])
    async def list_queue(caller: Caller, chat: UUID) -> Response:
        """List the queued messages in order."""
        return answer(message_bodies.queue(await caller.store.messages.list_queue(ChatId(chat))))

    @routes.delete("/chats/{chat}/queue/{queued}", "queue.delete", errors=(404, 409))
    async def delete(caller: Caller, chat: UUID, queued: int) -> Response:
        """Delete a queued message."""
        await caller.store.turns.delete_queued(ChatId(chat), QueuedMessageId(queued))
        return nothing()

    @routes.delete("/chats/{chat}/queue", "queue.clear", errors=(404, 409))
    async def clear(caller: Caller, chat: UUID) -> Response:
        """Delete all queued messages."""
        await caller.store.turns.clear_queue(ChatId(chat))
        return nothing()

    @routes.post(
        "/chats/{chat}/queue/{queued}/promote", "queue.promote", returns=PromoteView, status=202, errors=(404, 409)
    )
    async def promote(caller: Caller, chat: UUID, queued: int) -> Response:
        """Run a queued message next: immediately if the chat is idle, else by interrupting the running turn."""
        async with model_choice.rights_first(caller.may(chat, Action.DRIVE)):
            await model_choice.check_spend(services, caller, ChatId(chat))
        promoted = await caller.store.turns.promote_queued(ChatId(chat), QueuedMessageId(queued))
        return answer(message_bodies.promoted(promoted), 202)

    @routes.post("/chats/{chat}/queue/{queued}/move", "queue.move", returns=QueueView, body=MoveBody, errors=(404, 409))
    async def move(caller: Caller, chat: UUID, queued: int) -> Response:
        """Move a queued message before another one, or to the end."""
        body = await caller.read(MoveBody, may=caller.may(chat, Action.DRIVE))
        before = None if body.before is None else QueuedMessageId(body.before)
        return answer(
            message_bodies.queue(
                await caller.store.turns.move_queued(ChatId(chat), QueuedMessageId(queued), before=before)
            )
        )

    @routes.patch(
        "/chats/{chat}/queue/{queued}",
        "queue.edit",
        returns=QueuedMessageView,
        body=QueuedPatchBody,
        errors=(404, 409),
    )
    async def edit(caller: Caller, chat: UUID, queued: int) -> Response:
        """Change the content, model or effort of a queued message. 404 if it was sent meanwhile."""
        may = caller.may(chat, Action.DRIVE)
        body = await caller.read(QueuedPatchBody, may=may)
        async with model_choice.rights_first(may):
            said = await message_content.resolve_files(caller, body.content) if "content" in body.given else None
            model = body.model_config_id if "model_config_id" in body.given else None
            if model is not None:
                (await model_choice.chooser(services, caller)).check(model)
        edited = await caller.store.turns.edit_queued(
            ChatId(chat),
            QueuedMessageId(queued),
            content=said,
            model_config_id=model,
            reasoning_effort=body.reasoning_effort if "reasoning_effort" in body.given else UNSET,
        )
        return answer(views.queued_message(edited))

    return routes
