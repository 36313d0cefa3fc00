"""Saved prompts: texts that users insert into messages; the caller's own, and those of the server."""

from __future__ import annotations

from typing import Literal

from rookery.client.http import Http, path
from rookery.client.models import SavedPrompt, SavedPromptPage

# The scope of a prompt: the caller, or everyone. Only administrators change prompts for everyone.
PromptScope = Literal["user", "deployment"]


class AsyncSavedPrompts:
    """`client.saved_prompts`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self, q: str = "", *, limit: int = 20, cursor: str | None = None) -> SavedPromptPage:
        """Return one page of prompts without their texts, by name. `q` is looked up in names and beginnings."""
        return await self._http.read(SavedPromptPage, "/saved-prompts", {"q": q, "limit": limit, "cursor": cursor})

    async def get(self, name: str, *, scope: PromptScope = "user") -> SavedPrompt:
        """Return a prompt with its text and the names of its variables."""
        return await self._http.read(SavedPrompt, path("saved-prompts", name), {"scope": scope})

    async def put(self, name: str, text: str, *, scope: PromptScope = "user") -> SavedPrompt:
        """Create or replace a prompt."""
        answer = await self._http.send("PUT", path("saved-prompts", name), query={"scope": scope}, body={"text": text})
        return self._http.decode(SavedPrompt, answer)

    async def delete(self, name: str, *, scope: PromptScope = "user") -> None:
        await self._http.send("DELETE", path("saved-prompts", name), query={"scope": scope})
