"""`Store.as_actor`: the store on behalf of an actor. Routers, tools and streams use only this."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from rookery.domain.access.rights import Actor, Role, UserActor
from rookery.runtime.clock import Clock
from rookery.store.authorized import rights
from rookery.store.authorized.accounts import Accesses, Sessions, Tokens, Users
from rookery.store.authorized.agent_kinds import AgentKinds
from rookery.store.authorized.approvals import Approvals
from rookery.store.authorized.audit_and_replicas import Installation
from rookery.store.authorized.chat_changes import Turns
from rookery.store.authorized.chats import Chats
from rookery.store.authorized.debug import Debug
from rookery.store.authorized.files import Files
from rookery.store.authorized.folders import Folders
from rookery.store.authorized.mcp_servers import McpServers
from rookery.store.authorized.messages import Messages
from rookery.store.authorized.models import Models, ProviderKeys, Providers
from rookery.store.authorized.rights import Context
from rookery.store.authorized.saved_prompts import SavedPrompts
from rookery.store.authorized.settings import Preferences, Settings
from rookery.store.authorized.usage import Usage
from rookery.store.authorized.workspaces import Contexts, Templates, WorkspaceMcpServers, Workspaces
from rookery.store.machine import Machine, Publisher
from rookery.store.models.sealed_headers import Sealer
from rookery.store.people.audit import NO_REQUEST, RequestInfo


class ActorStore:
    """The store on behalf of one actor, for one request. It has no state between calls and is cheap to create."""

    __slots__ = (
        "accesses",
        "actor",
        "agent_kinds",
        "approvals",
        "chats",
        "contexts",
        "debug",
        "files",
        "folders",
        "installation",
        "mcp_servers",
        "messages",
        "models",
        "preferences",
        "provider_keys",
        "providers",
        "saved_prompts",
        "sessions",
        "settings",
        "templates",
        "tokens",
        "turns",
        "usage",
        "users",
        "workspace_mcp_servers",
        "workspaces",
    )

    def __init__(self, context: Context, *, ring: Sealer | None) -> None:
        self.actor = context.actor
        self.agent_kinds = AgentKinds(context)
        self.chats = Chats(context)
        self.contexts = Contexts(context)
        self.debug = Debug(context)
        self.mcp_servers = McpServers(context, ring)
        self.turns = Turns(context)
        self.approvals = Approvals(context)
        self.messages = Messages(context)
        self.files = Files(context)
        self.folders = Folders(context)
        self.users = Users(context)
        self.sessions = Sessions(context)
        self.accesses = Accesses(context)
        self.tokens = Tokens(context)
        self.providers = Providers(context, ring)
        self.models = Models(context, ring)
        self.settings = Settings(context)
        self.preferences = Preferences(context)
        self.provider_keys = ProviderKeys(context, ring)
        self.usage = Usage(context)
        self.installation = Installation(context)
        self.saved_prompts = SavedPrompts(context)
        self.templates = Templates(context)
        self.workspace_mcp_servers = WorkspaceMcpServers(context)
        self.workspaces = Workspaces(context)


class Store:
    """Creates actor stores. Each process has one `Store`."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        machine: Machine,
        publisher: Publisher,
        clock: Clock,
        ring: Sealer | None = None,
    ) -> None:
        self._pool = pool
        self._machine = machine
        self._publisher = publisher
        self._clock = clock
        self._ring = ring

    def as_actor(
        self,
        actor: Actor,
        *,
        request: RequestInfo = NO_REQUEST,
        break_glass: str | None = None,
        credential_id: UUID | None = None,
    ) -> ActorStore:
        """Return the store on behalf of this actor.

        `break_glass` is the reason that an administrator gave with the request. `credential_id` is the session or API
        token of the request; methods that grant lasting access check it again.
        """
        context = Context(
            self._pool,
            machine=self._machine,
            publisher=self._publisher,
            clock=self._clock,
            actor=actor,
            request=request,
            break_glass=break_glass,
            credential_id=credential_id,
        )
        return ActorStore(context, ring=self._ring)

    async def require_credential(self, actor: UserActor, credential_id: UUID) -> None:
        """Raise `Unauthenticated` unless the session or API token is valid and the user still has the actor's role."""
        async with self._pool.acquire() as conn:
            is_admin = actor.role is Role.ADMIN
            await rights.require_credential(conn, credential_id, user_id=actor.id, is_admin=is_admin)
