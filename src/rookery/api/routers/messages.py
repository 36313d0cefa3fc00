"""Messages: read, send, edit and search them, list earlier prompts, and submit results of client-executed tools."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.responses import Response

from rookery.api import client_tool_results, headers, message_bodies, message_content, model_choice, request_bodies
from rookery.api.caller import IDEMPOTENCY_KEY, Caller
from rookery.api.message_bodies import EditView, MessagesView, SendView
from rookery.api.message_content import Content, ServerIds
from rookery.api.request_bodies import Body, rule
from rookery.api.routes import Items, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action
from rookery.domain.chat import messages as message_rules
from rookery.domain.chat.messages import ChatId, Effort, MessageId, NewQueuedMessage
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store.chats.chat_views import SearchMatch
from rookery.store.chats.sent_messages import Prompt
from rookery.stream import views
from rookery.stream.views import MessageView

MAX_RESULTS_BYTES = 4 * 1024 * 1024


class SendBody(Body):
    """A message. The other fields are also stored in the chat and apply to later turns."""

    content: Content
    busy_behavior: BusyBehavior = BusyBehavior.QUEUE
    client_id: (
        Annotated[
            str,
            Field(min_length=1, max_length=message_rules.MAX_CLIENT_ID_CHARS),
            rule(lambda client_id: message_rules.check_storable("client_id", client_id)),
        ]
        | None
    ) = None
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None
    mcp_server_ids: ServerIds | None = None
    plan_mode: bool | None = None


class EditBody(Body):
    """The new content of the message."""

    content: Content
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None


class ToolResultInput(Body):
    tool_call_id: str
    output: Any
    is_error: bool = False


class ToolResultsBody(Body):
    """The results of all calls that the chat waits for."""

    results: Annotated[list[ToolResultInput], Field(min_length=1)]


class _Result(msgspec.Struct):
    output: msgspec.Raw


class _Results(msgspec.Struct):
    """The outputs as raw JSON, so that numbers stay exactly as written."""

    results: list[_Result]


def router(services: ApiServices) -> Routes:
    routes = Routes("messages")

    @routes.get(
        "/chats/{chat}/messages", "messages.list", returns=MessagesView, errors=(404,), takes=[headers.BREAK_GLASS]
    )
    async def list_messages(
        caller: Caller,
        chat: UUID,
        before_id: int | None = None,
        after_id: int | None = None,
        around_id: int | None = None,
        limit: Annotated[int, Field(ge=1, le=200)] = 50,
    ) -> Response:
        """List messages, newest first.

        With only `after_id` they are oldest first, so that a polling client never skips one.

        `around_id` returns a message with its neighbors.
        """
        found = await caller.store.messages.list(
            ChatId(chat), limit=limit, before_id=before_id, after_id=after_id, around_id=around_id
        )
        return answer(message_bodies.page(found, is_around=around_id is not None))

    @routes.get(
        "/chats/{chat}/messages/{message}",
        "messages.get",
        returns=MessageView,
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def get(caller: Caller, chat: UUID, message: int) -> Response:
        """Return one message."""
        return answer(views.message(await caller.store.messages.get(ChatId(chat), MessageId(message))))

    @routes.post(
        "/chats/{chat}/messages",
        "messages.send",
        returns=SendView,
        body=SendBody,
        errors=(404, 409),
        takes=[headers.CLIENT_ID],
    )
    async def send(caller: Caller, chat: UUID) -> Response:
        """Send a message. If the chat is busy, the message waits in the queue, unless `busy_behavior` has another
        value.

        `steer` adds the message at the next step; `interrupt` stops the turn and runs the message next, before the rest
        of the queue. A repeated request with the same `client_id` (or header `Idempotency-Key`) gets the first response
        again.
        """
        may = caller.may(chat, Action.DRIVE)
        services.directory.prefetch(caller.user.id)
        body = await caller.read(SendBody, may=may)
        client_id = body.client_id or caller.connection.headers.get(IDEMPOTENCY_KEY)
        try:
            async with model_choice.rights_first(may):
                said = await message_content.resolve_files(caller, body.content)
                chooser = await model_choice.chooser(services, caller)
                model = None if body.model_config_id is None else chooser.named(body.model_config_id)
            message = NewQueuedMessage(
                content=said,
                created_by=caller.user.id,
                model_config_id=model,
                reasoning_effort=body.reasoning_effort,
                client_id=client_id,
            )
            sent = await caller.store.turns.send(
                ChatId(chat),
                message,
                busy=body.busy_behavior,
                plan_mode=body.plan_mode,
                mcp_server_ids=body.mcp_server_ids,
                choose=chooser.for_message() if model is None else None,
            )
        except model_choice.REFUSALS:
            # A repeated request gets the first response again, even if its model or a file has been deleted since.
            if client_id is None or (before := await caller.store.turns.find_sent(ChatId(chat), client_id)) is None:
                raise
            sent = before
        return answer(message_bodies.sent(sent))

    @routes.patch(
        "/chats/{chat}/messages/{message}", "messages.edit", returns=EditView, body=EditBody, errors=(404, 409)
    )
    async def edit(caller: Caller, chat: UUID, message: int) -> Response:
        """Replace a user's message.

        The message, all later ones and the queue are deleted; then the new message runs.
        """
        may = caller.may(chat, Action.DRIVE)
        body = await caller.read(EditBody, may=may)
        async with model_choice.rights_first(may):
            said = await message_content.resolve_files(caller, body.content)
            choose = (await model_choice.chooser(services, caller)).for_edit(body.model_config_id)
        edited = await caller.store.turns.edit(
            ChatId(chat), MessageId(message), content=said, reasoning_effort=body.reasoning_effort, choose=choose
        )
        return answer(message_bodies.edited(edited))

    @routes.post("/chats/{chat}/tool-results", "messages.submit_tool_results", body=ToolResultsBody, errors=(404, 409))
    async def submit_results(caller: Caller, chat: UUID) -> Response:
        """Submit the results of all calls that the chat waits for, in one request.

        Results that are too long for the model are truncated, and stored in full in the chat's workspace if it is
        reachable.
        """
        may = caller.may(chat, Action.DRIVE)
        body = await caller.read(ToolResultsBody, may=may, limit=MAX_RESULTS_BYTES)
        outputs = msgspec.json.decode(request_bodies.raw_body(caller.connection), type=_Results).results
        results = [
            SubmittedResult(each.tool_call_id, bytes(raw.output).decode(), each.is_error)
            for each, raw in zip(body.results, outputs, strict=True)
        ]
        kept = await client_tool_results.truncate_results(services, caller, ChatId(chat), results)
        await caller.store.turns.submit_results(ChatId(chat), kept)
        return nothing()

    @routes.get(
        "/chats/{chat}/prompts",
        "messages.list_prompts",
        returns=Items[Prompt],
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def list_prompts(caller: Caller, chat: UUID, limit: Annotated[int, Field(ge=1, le=2000)] = 500) -> Response:
        """List the user's messages in this chat, newest first."""
        return answer(Items(await caller.store.messages.prompts(ChatId(chat), limit=limit)))

    @routes.get("/prompts", "messages.list_own_prompts", returns=Items[Prompt])
    async def list_own_prompts(
        caller: Caller, q: str | None = None, limit: Annotated[int, Field(ge=1, le=2000)] = 500
    ) -> Response:
        """List the caller's messages in all of their own chats, newest first; with `q`, only those that match."""
        return answer(Items(await caller.store.messages.list_prompts(caller.user.id, query=q, limit=limit)))

    @routes.get(
        "/chats/{chat}/search",
        "messages.search",
        returns=Items[SearchMatch],
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def search(caller: Caller, chat: UUID, q: str, limit: Annotated[int, Field(ge=1, le=200)] = 50) -> Response:
        """Search the messages of this chat for the words of `q`, newest first."""
        return answer(Items(await caller.store.messages.search(ChatId(chat), q, limit=limit)))

    return routes
