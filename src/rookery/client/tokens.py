"""API tokens: list, create and revoke."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from rookery.client.http import Http, path
from rookery.client.models import NewToken, Token
from rookery.client.pages import Items

DEFAULT_SCOPES = ("all",)


class AsyncTokens:
    """`client.tokens`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self) -> tuple[Token, ...]:
        return (await self._http.read(Items[Token], "/tokens")).items

    async def create(
        self, name: str, *, scopes: Sequence[str] = DEFAULT_SCOPES, expires_in_days: int | None = None
    ) -> NewToken:
        """Create a token for programs. Only this response contains it."""
        body: dict[str, object] = {"name": name, "scopes": scopes}
        if expires_in_days is not None:
            body["expires_in_days"] = expires_in_days
        return await self._http.write(NewToken, "POST", "/tokens", body=body)

    async def delete(self, token_id: UUID | str) -> None:
        await self._http.send("DELETE", path("tokens", token_id))
