"""Saved prompts: texts that a user inserts into a message by `/name`; own ones, and those of the deployment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from pydantic import Field
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.content import saved_prompts
from rookery.store.people.errors import SavedPromptNotFound
from rookery.store.people.saved_prompts import MAX_LIMIT, SavedPrompt, SavedPromptPage

Scope = Annotated[
    Literal["user", "deployment"],
    Field(description="`user`: only for the caller. `deployment`: for everyone; administrators change them."),
]
Name = Annotated[str, Field(max_length=64)]


class SavedPromptBody(Body):
    """The text of a saved prompt. Variables are written in double braces: `{{topic}}`."""

    text: str = Field(max_length=saved_prompts.MAX_TEXT_BYTES)


def router(services: ApiServices) -> Routes:
    routes = Routes("saved prompts")

    @routes.get("/saved-prompts", "saved_prompts.list", returns=SavedPromptPage)
    async def list_prompts(
        caller: Caller,
        q: Annotated[str, Field(max_length=200)] = "",
        limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 20,
        cursor: str | None = None,
    ) -> Response:
        """List the caller's saved prompts and those of the deployment, without their texts, by name.

        `q` is looked up in names and in the beginnings of texts. Names that begin with it come first.
        """
        words = q.replace("\0", "")
        return answer(await caller.store.saved_prompts.list(caller.user.id, words=words, limit=limit, cursor=cursor))

    @routes.get("/saved-prompts/{name}", "saved_prompts.get", returns=SavedPrompt, errors=(404,))
    async def get(caller: Caller, name: Name, scope: Scope = "user") -> Response:
        """Return a saved prompt with its text and the names of its variables."""
        if not saved_prompts.is_name(name):
            raise SavedPromptNotFound(name)
        found = await caller.store.saved_prompts.get(caller.user.id, name, is_shared=scope == "deployment")
        return answer(found)

    @routes.put("/saved-prompts/{name}", "saved_prompts.put", body=SavedPromptBody, returns=SavedPrompt)
    async def put(caller: Caller, name: Name, scope: Scope = "user") -> Response:
        """Create or replace a saved prompt."""
        body = await caller.read(SavedPromptBody, may=_may(caller, scope))
        if scope == "deployment":
            return answer(await caller.store.saved_prompts.write_shared(name, body.text))
        return answer(await caller.store.saved_prompts.write_own(caller.user.id, name, body.text))

    @routes.delete("/saved-prompts/{name}", "saved_prompts.delete", errors=(404,))
    async def delete(caller: Caller, name: Name, scope: Scope = "user") -> Response:
        """Delete a saved prompt. Messages in which it was used do not change."""
        if not saved_prompts.is_name(name):
            await _may(caller, scope)()
            raise SavedPromptNotFound(name)
        if scope == "deployment":
            await caller.store.saved_prompts.delete_shared(name)
        else:
            await caller.store.saved_prompts.delete_own(caller.user.id, name)
        return nothing()

    return routes


def _may(caller: Caller, scope: str) -> Callable[[], Awaitable[object]]:
    if scope == "deployment":
        return caller.store.saved_prompts.require_shared
    return lambda: caller.store.saved_prompts.require_own(caller.user.id)
