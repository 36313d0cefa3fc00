"""The readers of a chat besides its owner, and the log of administrators' accesses."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET
from pydantic import Field
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import Items, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action
from rookery.domain.chat.messages import ChatId
from rookery.store.chats.shares import Share, SharePatch
from rookery.store.people.admin_accesses import AccessPage
from rookery.store.people.audit import MAX_LIMIT
from rookery.store.people.users import PublicUser


class ShareView(msgspec.Struct, frozen=True):
    """A reader of the chat. `user` is `everyone` if all users may read it."""

    user: PublicUser | Literal["everyone"]
    role: str
    granted_by: UUID | None
    at: datetime


class SharesBody(Body):
    """The users who get (`read`) or lose (null) the right to read. Other users are not changed."""

    users: dict[UUID, Literal["read"] | None] = Field(default_factory=dict)
    everyone: Literal["read"] | None = None


def router(services: ApiServices) -> Routes:
    routes = Routes("shares")

    @routes.get("/chats/{chat}/acl", "shares.list", returns=Items[ShareView], errors=(404,))
    async def list_shares(caller: Caller, chat: UUID) -> Response:
        """List the readers of the chat."""
        found = await caller.store.chats.list_shares(ChatId(chat))
        return answer(Items(tuple(map(_view, found))))

    @routes.patch("/chats/{chat}/acl", "shares.update", body=SharesBody, errors=(404,))
    async def patch(caller: Caller, chat: UUID) -> Response:
        """Add and remove readers. The open streams of removed readers end."""
        body = await caller.read(SharesBody, may=caller.may(chat, Action.SHARE))
        everyone = body.everyone if "everyone" in body.given else UNSET
        await caller.store.chats.patch_shares(ChatId(chat), SharePatch(users=body.users, everyone=everyone))
        return nothing()

    @routes.delete("/chats/{chat}/acl/me", "shares.leave", errors=(404,))
    async def leave(caller: Caller, chat: UUID) -> Response:
        """Give up your own right to read the chat."""
        await caller.store.chats.leave(ChatId(chat))
        return nothing()

    @routes.get("/chats/{chat}/accesses", "shares.list_accesses", returns=AccessPage, errors=(404,))
    async def list_accesses(
        caller: Caller,
        chat: UUID,
        limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50,
        cursor: Annotated[str | None, Field(max_length=200)] = None,
    ) -> Response:
        """List the times when administrators read this chat or its children by break-glass, or reset its owner's
        password.

        Only the owner can read the list. The newest entries come first.
        """
        return answer(await caller.store.chats.list_accesses(ChatId(chat), limit=limit, cursor=cursor))

    return routes


def _view(share: Share) -> ShareView:
    return ShareView(share.user or "everyone", share.role, share.granted_by, share.created_at)
