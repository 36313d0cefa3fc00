"""Control of a turn: interrupt, retry, compact and reconcile."""

from __future__ import annotations

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from rookery.api import model_choice
from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action
from rookery.domain.chat.messages import ChatId
from rookery.store.chats.chat_views import ChatView


class InterruptBody(Body):
    """The options of an interrupt. With `cascade`, the default, the chat's subagents are stopped as well."""

    cascade: bool = True


def router(services: ApiServices) -> Routes:
    routes = Routes("turns")

    @routes.post(
        "/chats/{chat}/interrupt",
        "turns.interrupt",
        returns=ChatView,
        body=InterruptBody,
        needs_body=False,
        errors=(404, 409),
    )
    async def interrupt(caller: Caller, chat: UUID, request: Request) -> Response:
        """Stop the turn and keep its output so far. The body may be omitted."""
        body = InterruptBody()
        if _has_body(request):
            body = await caller.read(InterruptBody, may=caller.may(chat, Action.INTERRUPT))
        return answer((await caller.store.turns.interrupt(ChatId(chat), cascade=body.cascade)).view)

    @routes.post("/chats/{chat}/retry", "turns.retry", returns=ChatView, errors=(404, 409))
    async def retry(caller: Caller, chat: UUID) -> Response:
        """Continue after an error or an unfinished turn, without another message."""
        return answer((await caller.store.turns.retry(ChatId(chat))).view)

    @routes.post("/chats/{chat}/nudge", "turns.nudge", returns=ChatView, errors=(404, 409))
    async def nudge(caller: Caller, chat: UUID) -> Response:
        """Try again now: end a silent model call, a retry delay or the running tool calls. The turn continues.

        A model call is repeated immediately. Stopped tool calls return their output so far, and the model decides what
        to do next.
        """
        return answer((await caller.store.turns.nudge(ChatId(chat))).view)

    @routes.post("/chats/{chat}/compact", "turns.compact", returns=ChatView, errors=(404, 409))
    async def compact(caller: Caller, chat: UUID) -> Response:
        """Replace the history in later prompts by a summary, so that they need fewer tokens."""
        async with model_choice.rights_first(caller.may(chat, Action.DRIVE)):
            await model_choice.check_spend(services, caller, ChatId(chat))
        return answer((await caller.store.turns.compact(ChatId(chat))).view)

    @routes.post("/chats/{chat}/reconcile-invalid", "turns.reconcile", returns=ChatView, errors=(404, 409))
    async def reconcile(caller: Caller, chat: UUID) -> Response:
        """Repair a chat whose stored state is invalid. It gets the status `error` and keeps its queued messages."""
        return answer((await caller.store.turns.reconcile(ChatId(chat))).view)

    return routes


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
