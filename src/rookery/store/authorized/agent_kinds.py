"""Custom kinds of subagents on behalf of an actor: those of the deployment, and a user's own."""

from __future__ import annotations

from uuid import UUID

from rookery.domain.access.rights import Action, Resource
from rookery.domain.content import agent_kinds as agent_kind_rules
from rookery.domain.content.agent_kinds import KindDefinition
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authz
from rookery.store.db.hints import ConfigHint
from rookery.store.models import config_lock
from rookery.store.people.audit import Event
from rookery.store.settings import agent_kinds, setting_groups
from rookery.store.settings.agent_kinds import StoredKind


class AgentKinds(AuthorizedMethods):
    """Kinds of subagents: those of the deployment, and a user's own."""

    __slots__ = ()

    @authz(Resource.PREFERENCES, Action.READ, via=Via.USER)
    async def list(self, at: Grant, user_id: UUID) -> list[StoredKind]:
        """Return the kinds of the deployment, then the user's own."""
        return await agent_kinds.list_kinds(at.conn, user_id)

    @authz(Resource.PREFERENCES, Action.UPDATE, via=Via.USER)
    async def require_own(self, at: Grant, user_id: UUID) -> None:
        """Check only the right to change the user's own kinds."""

    @authz(Resource.SETTINGS, Action.ADMINISTER)
    async def require_shared(self, at: Grant) -> None:
        """Check only the right to change kinds of the deployment."""

    @authz(Resource.PREFERENCES, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def write_own(
        self, at: Grant, user_id: UUID, kind: KindDefinition, model_config_id: UUID | None
    ) -> StoredKind:
        """Create or replace a kind of the user. The change is not audited, because it concerns only this user."""
        return await _write_kind(at, user_id, kind, model_config_id)

    @authz(Resource.SETTINGS, Action.ADMINISTER, how=How.WRITE)
    async def write_shared(self, at: Grant, kind: KindDefinition, model_config_id: UUID | None) -> StoredKind:
        """Create or replace a kind of the deployment."""
        written = await _write_kind(at, None, kind, model_config_id)
        await at.log(Event(action="agent_kind.write", resource_type=Resource.SETTINGS, resource_id=kind.name))
        return written

    @authz(Resource.PREFERENCES, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def delete_own(self, at: Grant, user_id: UUID, name: str) -> bool:
        return await _delete_kind(at, user_id, name)

    @authz(Resource.SETTINGS, Action.ADMINISTER, how=How.WRITE)
    async def delete_shared(self, at: Grant, name: str) -> bool:
        deleted = await _delete_kind(at, None, name)
        if deleted:
            await at.log(Event(action="agent_kind.delete", resource_type=Resource.SETTINGS, resource_id=name))
        return deleted


async def _write_kind(
    at: Grant, owner_id: UUID | None, kind: KindDefinition, model_config_id: UUID | None
) -> StoredKind:
    async with config_lock.held(at.conn):
        if model_config_id is not None:
            await setting_groups.check_named_model(at.conn, model_config_id, kind.reasoning_effort)
        written = await agent_kinds.write_kind(
            at.conn, owner_id, agent_kind_rules.checked(kind), model_config_id=model_config_id
        )
    at.tell(ConfigHint(kind=agent_kinds.HINT))
    return written


async def _delete_kind(at: Grant, owner_id: UUID | None, name: str) -> bool:
    deleted = await agent_kinds.delete_kind(at.conn, owner_id, name)
    if deleted:
        at.tell(ConfigHint(kind=agent_kinds.HINT))
    return deleted
