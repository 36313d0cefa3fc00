"""Chats: create, list, read, change and delete them, and mark them as read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from pydantic import Field, StrictInt
from starlette.responses import Response

from rookery.api import headers, message_content, model_choice, request_bodies
from rookery.api.caller import Caller
from rookery.api.errors import ApiError
from rookery.api.message_content import Content, Labels, ServerIds, SystemPrompt, Title, Tools
from rookery.api.rate_limits import Limit
from rookery.api.request_bodies import Body
from rookery.api.routes import PREFIX, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action, Resource
from rookery.domain.chat import system_blocks
from rookery.domain.chat.messages import ChatId, Effort, MessageId, NewMessage, Role
from rookery.domain.chat.permission_mode import PermissionMode
from rookery.domain.chat.system_blocks import Awareness
from rookery.domain.content import search_query
from rookery.store.authorized.chat_changes import CreatedChat, Replayed
from rookery.store.authorized.chats import ChatPatch
from rookery.store.chats.chat_views import ChatListPage, ChatView
from rookery.store.chats.subagents import AgentList
from rookery.store.debug.record_rows import DebugMode
from rookery.store.machine import ChatSpec

OPERATION = "chats.create"

_PERMISSION = (
    "`ask`: every tool call with an effect waits for approval. `auto`: the approval rules decide. `read_only`: only "
    "tools that read. Subagents have the mode of their main chat."
)
_ARCHIVE = "archived"
_PIN = "pin_order"


class CreateBody(Body):
    """A new chat with its first message."""

    content: Content
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None
    workspace_id: UUID | None = None
    system_prompt: SystemPrompt | None = None
    labels: Labels = Field(default_factory=dict)
    mcp_server_ids: ServerIds | None = Field(
        None, description="The MCP servers of the chat. Without it, those that new chats use by default."
    )
    plan_mode: bool = False
    permission_mode: PermissionMode = Field(PermissionMode.AUTO, description=_PERMISSION)
    dynamic_tools: Tools = Field(default_factory=list)
    client_type: Literal["ui", "api", "cli"] = "api"
    generate_summaries: bool | None = Field(
        None,
        description=(
            "Whether a model writes a label after each turn and a summary of the chat. The default is yes, except "
            "for `client_type` `api`."
        ),
    )
    title: Title | None = None


class PatchBody(Body):
    """The fields to change; absent fields keep their values."""

    title: Title = ""
    labels: Labels = Field(default_factory=dict)
    pin_order: Annotated[int, Field(ge=0, lt=2**31)] = 0
    folder_id: UUID | None = Field(None, description="A folder of the caller; null takes the chat out of its folder.")
    workspace_id: UUID | None = None
    plan_mode: bool = False
    permission_mode: PermissionMode = Field(PermissionMode.AUTO, description=_PERMISSION)
    mcp_server_ids: ServerIds = Field(default_factory=list)
    model_config_id: UUID = UUID(int=0)
    reasoning_effort: Effort | None = None
    archived: bool = False
    debug_mode: DebugMode = Field(
        DebugMode.INHERIT,
        description=(
            "Whether model calls of the chat and its subagents are recorded. `inherit`: as the owner's preference says."
        ),
    )


class ReadBody(Body):
    """The last message that the caller has read; null means the newest message.

    With `force` the cursor can also move back: 0 makes the chat unread again.
    """

    message_id: StrictInt | None = None
    force: bool = False


class _Identity(msgspec.Struct):
    id: UUID


def router(services: ApiServices) -> Routes:
    routes = Routes("chats")

    @routes.post(
        "/chats",
        "chats.create",
        returns=ChatView,
        status=201,
        body=CreateBody,
        errors=(409,),
        takes=[headers.IDEMPOTENCY_KEY],
        gives=[headers.LOCATION, headers.REPLAYED],
    )
    async def create(caller: Caller) -> Response:
        """Create a chat with its first message.

        The turn starts immediately; a chat without a title gets one a little later.
        """
        caller.take(Limit.CREATE_CHAT)
        may = caller.may_create(Resource.CHAT)
        body = await caller.read(CreateBody, may=may)
        async with model_choice.rights_first(may):
            request = caller.idempotency_request(OPERATION)
            if request is not None and (replayed := await caller.store.turns.find_answer(request)) is not None:
                return _created(replayed)
            spec = await _spec(services, caller, body)
        made = await caller.store.turns.create(
            spec, request=request, encode=_encoded, mcp_server_ids=body.mcp_server_ids
        )
        if isinstance(made, CreatedChat) and body.title is None:
            # A given title is kept, even if it equals the first words of the message.
            services.titling.start(made.chat, title=made.view.title, messages=made.messages)
        return _created(made)

    @routes.get("/chats", "chats.list", returns=ChatListPage)
    async def list_chats(
        caller: Caller,
        q: str | None = None,
        label: list[str] | None = None,
        workspace_id: UUID | None = None,
        limit: Annotated[int, Field(ge=1, le=200)] = 50,
        cursor: str | None = None,
    ) -> Response:
        """List root chats with their children: the caller's pinned chats first, then by last activity.

        `q` is a search: words, and terms such as `status:running`, `title:x`, `folder:x`, `source:shared_with_me`.
        """
        page = await caller.store.chats.list(
            caller.user.id,
            search_query.parse(q or ""),
            labels=[search_query.parse_label(each) for each in label or ()],
            workspace_id=workspace_id,
            limit=limit,
            cursor=cursor,
        )
        return answer(page)

    @routes.get("/chats/{chat}", "chats.get", returns=ChatView, errors=(404,), takes=[headers.BREAK_GLASS])
    async def get(caller: Caller, chat: UUID) -> Response:
        """Return one chat, with its children in the same archive state."""
        return answer(await caller.store.chats.get(ChatId(chat)))

    @routes.get("/chats/{chat}/agents", "chats.agents", returns=AgentList, errors=(404,), takes=[headers.BREAK_GLASS])
    async def agents(caller: Caller, chat: UUID) -> Response:
        """List the subagents of a chat and its family with their state, figures and last activity.

        The response is the same for the root and for any of its subagents.
        """
        return answer(await caller.store.chats.list_agents(ChatId(chat)))

    @routes.patch("/chats/{chat}", "chats.update", returns=ChatView, body=PatchBody, errors=(404, 409))
    async def patch(caller: Caller, chat: UUID) -> Response:
        """Change the given fields, all or none. Archiving includes all subagent chats."""
        may = _may_patch(caller, chat)
        body = await caller.read(PatchBody, may=may)
        async with model_choice.rights_first(may):
            if "debug_mode" in body.given and services.is_debug_forced:
                await may()
                raise ApiError(409, "not_ready", "The operator of this server records all chats. It cannot be changed.")
            if "model_config_id" in body.given:
                await _check_model(services, caller, ChatId(chat), body.model_config_id)
        given = {name: getattr(body, name) for name in body.given}
        if "mcp_server_ids" in given:
            given["mcp_server_ids"] = tuple(given["mcp_server_ids"])
        return answer(await caller.store.chats.patch(ChatId(chat), ChatPatch(**given)))

    @routes.delete("/chats/{chat}", "chats.delete", errors=(404, 409))
    async def delete(caller: Caller, chat: UUID) -> Response:
        """Delete an archived root chat and its subagent chats permanently."""
        await caller.store.chats.delete(ChatId(chat))
        return nothing()

    @routes.post("/chats/{chat}/read", "chats.mark_read", body=ReadBody, errors=(404,))
    async def mark_read(caller: Caller, chat: UUID) -> Response:
        """Move the caller's read cursor forward."""
        body = await caller.read(ReadBody, may=caller.may(chat, Action.MARK))
        message_id = None if body.message_id is None else MessageId(body.message_id)
        await caller.store.chats.mark_read(ChatId(chat), message_id=message_id, force=body.force)
        return nothing()

    return routes


async def _spec(services: ApiServices, caller: Caller, body: CreateBody) -> ChatSpec:
    said = await message_content.resolve_files(caller, body.content)
    model_config_id, effort = await model_choice.for_new_chat(
        services, caller, body.model_config_id, body.reasoning_effort
    )
    first = NewMessage(
        role=Role.USER,
        content=said,
        created_by=caller.user.id,
        model_config_id=model_config_id,
        reasoning_effort=effort,
    )
    prompts = await services.directory.setting(system_blocks.PROMPTS_SETTING)
    awareness = Awareness.DETACHED if body.workspace_id is None else Awareness.ATTACHED
    return ChatSpec(
        owner_id=caller.user.id,
        title=body.title or await message_content.fallback_title(caller, said),
        model_config_id=model_config_id,
        reasoning_effort=effort,
        messages=(*system_blocks.system_rows(prompts, system_prompt=body.system_prompt, awareness=awareness), first),
        labels=body.labels,
        workspace_id=body.workspace_id,
        plan_mode=body.plan_mode,
        permission_mode=body.permission_mode,
        dynamic_tools=message_content.encoded_tools(body.dynamic_tools),
        client_type=body.client_type,
        generate_summaries=body.generate_summaries,
        is_named=body.title is not None,
    )


async def _check_model(services: ApiServices, caller: Caller, chat_id: ChatId, model_config_id: UUID) -> None:
    """Check a model for the next turns. The chat's current model may stay even if it has been disabled."""
    models = await model_choice.chooser(services, caller)
    if not models.is_usable(model_config_id):
        models.check(model_config_id, current=(await caller.store.chats.get(chat_id)).last_model_config_id)


def _encoded(made: CreatedChat) -> bytes:
    return msgspec.json.encode(made.view)


def _created(made: CreatedChat | Replayed) -> Response:
    if isinstance(made, CreatedChat):
        return answer(made.view, 201, Location=_location(made.view.id))
    chat_id = msgspec.json.decode(made.answer, type=_Identity).id
    headers = {"Location": _location(chat_id), "Idempotency-Replayed": "true"}
    return Response(made.answer, 201, headers, media_type="application/json")


def _location(chat_id: UUID) -> str:
    return f"{PREFIX}/chats/{chat_id}"


def _may_patch(caller: Caller, chat: UUID) -> Callable[[], Awaitable[object]]:
    """Return a check of the rights that the fields of the body need. The values of the fields do not matter."""

    async def check() -> None:
        for action in _actions(request_bodies.raw_body(caller.connection)):
            await caller.store.chats.require(ChatId(chat), action)

    return check


def _actions(data: bytes) -> list[Action]:
    try:
        members = set(msgspec.json.decode(data, type=dict[str, msgspec.Raw]))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return [Action.READ]
    needed = [Action.ARCHIVE] if _ARCHIVE in members else []
    if _PIN in members:
        needed.append(Action.MARK)
    if members - {_ARCHIVE, _PIN}:
        needed.append(Action.PATCH)
    return needed or [Action.READ]
