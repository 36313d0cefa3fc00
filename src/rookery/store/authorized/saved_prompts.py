"""Saved prompts on behalf of an actor: a user's own, and those that administrators share with everyone."""

from __future__ import annotations

from uuid import UUID

from rookery.domain.access.rights import Action, Resource
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authz
from rookery.store.people import saved_prompts
from rookery.store.people.audit import Event
from rookery.store.people.saved_prompts import SavedPrompt, SavedPromptPage


class SavedPrompts(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.SAVED_PROMPT, Action.LIST, via=Via.USER)
    async def list(
        self, at: Grant, user_id: UUID, *, words: str = "", limit: int = 20, cursor: str | None = None
    ) -> SavedPromptPage:
        """Return a page of the user's prompts and the shared ones."""
        return await saved_prompts.list_prompts(at.conn, user_id, words=words, limit=limit, cursor=cursor)

    @authz(Resource.SAVED_PROMPT, Action.LIST, via=Via.USER)
    async def get(self, at: Grant, user_id: UUID, name: str, *, is_shared: bool = False) -> SavedPrompt:
        return await saved_prompts.get_prompt(at.conn, None if is_shared else user_id, name)

    @authz(Resource.SAVED_PROMPT, Action.UPDATE, via=Via.USER)
    async def require_own(self, at: Grant, user_id: UUID) -> None:
        """Check only the right to change the user's own prompts."""

    @authz(Resource.SETTINGS, Action.ADMINISTER)
    async def require_shared(self, at: Grant) -> None:
        """Check only the right to change shared prompts."""

    @authz(Resource.SAVED_PROMPT, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def write_own(self, at: Grant, user_id: UUID, name: str, text: str) -> SavedPrompt:
        """Create or replace a prompt of the user. The change is not audited, because it concerns only this user."""
        return await saved_prompts.write_prompt(at.conn, user_id, name, text)

    @authz(Resource.SETTINGS, Action.ADMINISTER, how=How.WRITE)
    async def write_shared(self, at: Grant, name: str, text: str) -> SavedPrompt:
        written = await saved_prompts.write_prompt(at.conn, None, name, text)
        await at.log(Event(action="saved_prompt.write", resource_type=Resource.SAVED_PROMPT, resource_id=name))
        return written

    @authz(Resource.SAVED_PROMPT, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def delete_own(self, at: Grant, user_id: UUID, name: str) -> None:
        await saved_prompts.delete_prompt(at.conn, user_id, name)

    @authz(Resource.SETTINGS, Action.ADMINISTER, how=How.WRITE)
    async def delete_shared(self, at: Grant, name: str) -> None:
        await saved_prompts.delete_prompt(at.conn, None, name)
        await at.log(Event(action="saved_prompt.delete", resource_type=Resource.SAVED_PROMPT, resource_id=name))
