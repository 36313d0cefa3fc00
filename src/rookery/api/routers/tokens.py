"""API tokens: credentials for programs, shown once when they are created."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import Items, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Scope
from rookery.store.people import tokens
from rookery.store.people.tokens import Token


class TokenBody(Body):
    """A new token.

    `expires_in_days` defaults to 90, or to the longest lifetime that this server allows if that is shorter.
    """

    name: str = Field(min_length=1, max_length=tokens.MAX_NAME_CHARS)
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))
    expires_in_days: int | None = Field(default=None, ge=1)


class TokenView(msgspec.Struct, frozen=True):
    """A token without its secret."""

    id: UUID
    name: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None


class NewTokenView(TokenView, frozen=True):
    """A new token. `token` is the credential that programs send. Only this response contains it."""

    token: str


def router(services: ApiServices) -> Routes:
    routes = Routes("tokens")

    @routes.get("/tokens", "tokens.list", returns=Items[TokenView], errors=(404,))
    async def list_tokens(
        caller: Caller,
        user: Annotated[UUID | None, Field(description="The owner of the tokens; for administrators.")] = None,
    ) -> Response:
        """List your tokens, or those of another user, newest first."""
        found = await caller.store.tokens.list(user or caller.user.id)
        return answer(Items(tuple(map(_view, found))))

    @routes.post("/tokens", "tokens.create", returns=NewTokenView, status=201, body=TokenBody, errors=(409,))
    async def create(caller: Caller) -> Response:
        """Create a token. It never allows more than its user's role does."""
        store = caller.store
        body = await caller.read(TokenBody, may=lambda: store.tokens.require_create(caller.user.id))
        longest = services.token_max_days
        made = await store.tokens.create(
            caller.user.id,
            name=body.name,
            scopes=frozenset(body.scopes),
            days=min(tokens.DEFAULT_DAYS, longest) if body.expires_in_days is None else body.expires_in_days,
            max_days=longest,
        )
        return answer(NewTokenView(**msgspec.structs.asdict(_view(made.token)), token=made.secret), 201)

    @routes.delete("/tokens/{token}", "tokens.delete", errors=(404,))
    async def delete(token: UUID, caller: Caller) -> Response:
        """Delete a token. Streams that were opened with it end."""
        await caller.store.tokens.delete(token)
        return nothing()

    return routes


def _view(token: Token) -> TokenView:
    scopes = tuple(scope for scope in Scope if scope in token.scopes)
    return TokenView(token.id, token.name, scopes, token.created_at, token.expires_at, token.last_used_at)
