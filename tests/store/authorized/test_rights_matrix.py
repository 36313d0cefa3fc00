"""Every method of the authorized store, by every kind of actor, against own, shared, foreign and child resources."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.domain.access.rights import Action, Actor, OwnerActor, Scope, SystemActor, SystemName, UserActor
from rookery.domain.access.rights import Role as UserRole
from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.mcp_consent import McpDecision
from rookery.domain.chat.messages import ChatId, MessageId, NewMessage, NewQueuedMessage, QueuedMessageId, Role
from rookery.domain.chat.parts import Text
from rookery.domain.chat.transitions import BusyBehavior
from rookery.domain.content.agent_kinds import KindDefinition
from rookery.domain.models.options import ProviderType
from rookery.store.authorized import actor_store as authorized
from rookery.store.authorized.actor_store import ActorStore, Store
from rookery.store.authorized.chats import ChatPatch
from rookery.store.authorized.rights import AuthorizedMethods, Rule
from rookery.store.chats.shares import SharePatch
from rookery.store.chats.subagents import KindSource, NewSubagent
from rookery.store.db import idempotency
from rookery.store.debug.record_rows import DebugMode
from rookery.store.machine import ChatSpec, Machine
from rookery.store.mcp.servers import ServerDraft, ServerPatch
from rookery.store.models.model_configs import ModelConfigDraft, ModelConfigPatch
from rookery.store.models.providers import ProviderDraft, ProviderPatch
from rookery.store.models.usage_ledger import GroupBy
from rookery.store.people.errors import Denied, FileNotFound, ScopeMissing, TokenNotFound, UserNotFound
from rookery.store.people.preferences import PreferencesPatch
from rookery.store.people.users import User, UserDraft, UserPatch
from rookery.store.workspaces.lifecycle_requests import Draft, StartPlan
from rookery.store.workspaces.operation_rows import OperationNotFound
from rookery.store.workspaces.templates import Push, TemplatePatch
from rookery.store.workspaces.workspaces import WorkspaceNotFound
from rookery.testing import FakeClock
from tests.store.authorized.rights_table import (
    CHAT,
    CHAT_RIGHTS,
    FILE,
    METHODS,
    MISSING,
    NOTHING,
    OK,
    OPERATION,
    REFUSED,
    RELATIONS,
    ROLE_RIGHTS,
    SYSTEM,
    TOKEN,
    USER,
    WORKSPACE,
)
from tests.store.builders import StoreRig, open_store_rig
from tests.store.machine.machine_rig import Recorder
from tests.store.people.account_rows import open_pool, person

NOW = datetime(2026, 5, 1, tzinfo=UTC)
PERIOD = {"start": NOW, "end": NOW + timedelta(days=1)}


class Key:
    def reveal(self) -> str:
        return "sk-a-key-of-a-user"


class ActorsRig:
    """An owner with a shared and an unshared family, a reader, and users with every other role."""

    def __init__(self, world: StoreRig, store: Store, people: dict[str, User], chats: dict[str, ChatId]) -> None:
        self.world = world
        self.store = store
        self.people = people
        self.chats = chats

    def actors(self) -> Iterator[tuple[str, str, Actor]]:
        """Tuples of a label, the relation to the owner, and the actor."""
        for name, user in self.people.items():
            yield name, name, user.actor
        yield "agent of ada", "ada", OwnerActor(self.people["ada"].id)
        # Whatever its owner is: an agent is a plain member.
        yield "agent of root", "agent of root", OwnerActor(self.people["root"].id)
        for scope in Scope:
            for name in ("ada", "root"):
                user = self.people[name]
                yield f"{name} by a token for {scope}", name, UserActor(user.id, user.role, frozenset({scope}))

    async def share(self) -> None:
        """Restore the share, because some calls remove it."""
        await self.world.conn.execute(
            "INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            self.chats["shared"],
            self.people["bob"].id,
        )

    async def file(self, chat_id: ChatId | None) -> UUID:
        file_id = await self.world.conn.fetchval(
            "INSERT INTO chat_files (owner_id, name, mime_type, size_bytes) VALUES ($1, 'a', 'text/plain', 0)"
            " RETURNING id",
            self.people["ada"].id,
        )
        if chat_id is not None:
            await self.world.conn.execute("INSERT INTO chat_file_links VALUES ($1, $2)", chat_id, file_id)
        return UUID(str(file_id))

    async def workspace(self) -> tuple[UUID, UUID]:
        """Return a stopped workspace of ada, and the operation that stopped it."""
        workspace_id = await self.world.conn.fetchval(
            "INSERT INTO workspaces (owner_id, name) VALUES ($1, $2) RETURNING id",
            self.people["ada"].id,
            f"w-{uuid4().hex[:8]}",
        )
        operation_id = await self.world.conn.fetchval(
            "INSERT INTO workspace_operations (workspace_id, kind, reason, state, finished_at)"
            " VALUES ($1, 'stop', 'user', 'succeeded', now()) RETURNING id",
            workspace_id,
        )
        return UUID(str(workspace_id)), UUID(str(operation_id))

    async def token(self) -> UUID:
        token_id = uuid4()
        await self.world.conn.execute(
            "INSERT INTO api_tokens (id, user_id, name, scopes, secret_hash, created_at, expires_at)"
            " VALUES ($1, $2, $3, '{all}', $4, $5, $5)",
            token_id,
            self.people["ada"].id,
            str(token_id),
            bytes(32),
            NOW,
        )
        return token_id


@asynccontextmanager
async def open_town(url: str) -> AsyncIterator[ActorsRig]:
    async with open_store_rig(url) as world, open_pool(url) as pool:
        roles = {"root": UserRole.ADMIN, "audrey": UserRole.AUDITOR}
        people = {
            name: await person(world.conn, name, role=roles.get(name, UserRole.MEMBER))
            for name in ("ada", "bob", "eve", "root", "audrey")
        }
        # A second one, so that nothing is refused because an administrator is the last.
        await person(world.conn, "spare", role=UserRole.ADMIN)
        ada = people["ada"].id
        chats = {"shared": await world.chat(ada), "private": await world.chat(ada)}
        chats |= {f"child of {name}": await world.chat(ada, parent=chat) for name, chat in tuple(chats.items())}
        published = Recorder()
        clock = FakeClock()
        yield ActorsRig(world, make_store(pool, published, clock), people, chats)


def make_store(pool: asyncpg.Pool, published: Recorder, clock: FakeClock) -> Store:
    return Store(pool, machine=Machine(pool, published, clock=clock), publisher=published, clock=clock)


@pytest.fixture
async def town(database_url: str) -> AsyncIterator[ActorsRig]:
    async with open_town(database_url) as made:
        yield made


TEXT = (Text("hello"),)
NO_ROW, NO_QUEUED = MessageId(1), QueuedMessageId(1)
Call = Callable[[ActorStore, ActorsRig, Any], Awaitable[object]]


def me(store: ActorStore) -> UUID:
    return uuid4() if isinstance(store.actor, SystemActor) else store.actor.id


def message(store: ActorStore) -> NewQueuedMessage:
    return NewQueuedMessage(content=TEXT, created_by=me(store))


def spec(store: ActorStore, town: ActorsRig) -> ChatSpec:
    first = NewMessage(role=Role.USER, content=TEXT)
    return ChatSpec(owner_id=me(store), title="t", model_config_id=town.world.model_id, messages=(first,))


def terms(parent_id: UUID) -> NewSubagent:
    """Return terms of a subagent that do not match the spec. This is checked only after the rights."""
    return NewSubagent(
        chat_id=ChatId(uuid4()),
        parent_chat_id=ChatId(parent_id),
        tool_call_id="c1",
        kind="general",
        kind_source=KindSource.BUILTIN,
        tools=None,
        max_minutes=60,
    )


def request(store: ActorStore) -> idempotency.Request:
    return idempotency.Request(me(store), "key", "chats.create", b"{}")


def push() -> Push:
    return Push(name="t", revision="0" * 64, manifest="{}", readme="", archive=b"")


def workspace_draft(store: ActorStore) -> Draft:
    """Return a draft with a template that does not exist. This is checked only after the rights."""
    return Draft(
        id=uuid4(),
        owner_id=me(store),
        name=f"w-{uuid4().hex[:8]}",
        template="t",
        revision="0" * 64,
        driver="local",
        node="here",
        parameters={},
        once={},
        idle_stop_after=timedelta(),
    )


def plan() -> StartPlan:
    return StartPlan(revision="0" * 64, parameters={}, once={})


def address() -> str:
    return f"{uuid4().hex}@example.org"


KIND = KindDefinition(name="reviewer", description="Reviews changes.")
REQUIRED = (
    *(Action.READ, Action.INSPECT, Action.DRIVE, Action.PATCH, Action.INTERRUPT),
    *(Action.ARCHIVE, Action.DELETE, Action.SHARE, Action.MARK),
)


def requiring(action: Action) -> Call:
    return lambda s, t, x: s.chats.require(x, action)


CALLS: dict[str, Call] = {
    "chats.get": lambda s, t, x: s.chats.get(x),
    "chats.list_agents": lambda s, t, x: s.chats.list_agents(x),
    "chats.list": lambda s, t, x: s.chats.list(x),
    **{f"chats.require {action}": requiring(action) for action in REQUIRED},
    "chats.patch title": lambda s, t, x: s.chats.patch(x, ChatPatch(title=uuid4().hex)),
    "chats.patch debug_mode": lambda s, t, x: s.chats.patch(x, ChatPatch(debug_mode=DebugMode.OFF)),
    "chats.patch folder": lambda s, t, x: s.chats.patch(x, ChatPatch(folder_id=None)),
    "chats.patch pin": lambda s, t, x: s.chats.patch(x, ChatPatch(pin_order=0)),
    "chats.patch archived": lambda s, t, x: s.chats.patch(x, ChatPatch(archived=False)),
    "chats.delete": lambda s, t, x: s.chats.delete(x),
    "chats.mark_read": lambda s, t, x: s.chats.mark_read(x),
    "chats.list_shares": lambda s, t, x: s.chats.list_shares(x),
    "chats.patch_shares": lambda s, t, x: s.chats.patch_shares(x, SharePatch()),
    "chats.leave": lambda s, t, x: s.chats.leave(x),
    "chats.list_accesses": lambda s, t, x: s.chats.list_accesses(x),
    "folders.list": lambda s, t, x: s.folders.list(x),
    "folders.require": lambda s, t, x: s.folders.require(x),
    "folders.create": lambda s, t, x: s.folders.create(x, name=uuid4().hex),
    "folders.update": lambda s, t, x: s.folders.update(x, uuid4(), name="Work"),
    "folders.delete": lambda s, t, x: s.folders.delete(x, uuid4()),
    "saved_prompts.list": lambda s, t, x: s.saved_prompts.list(x),
    "saved_prompts.get": lambda s, t, x: s.saved_prompts.get(x, "none"),
    "saved_prompts.require_own": lambda s, t, x: s.saved_prompts.require_own(x),
    "saved_prompts.write_own": lambda s, t, x: s.saved_prompts.write_own(x, "review", "Review this."),
    "saved_prompts.delete_own": lambda s, t, x: s.saved_prompts.delete_own(x, "none"),
    "saved_prompts.require_shared": lambda s, t, x: s.saved_prompts.require_shared(),
    "saved_prompts.write_shared": lambda s, t, x: s.saved_prompts.write_shared("review", "Review this."),
    "saved_prompts.delete_shared": lambda s, t, x: s.saved_prompts.delete_shared("none"),
    "agent_kinds.list": lambda s, t, x: s.agent_kinds.list(x),
    "agent_kinds.require_own": lambda s, t, x: s.agent_kinds.require_own(x),
    "agent_kinds.write_own": lambda s, t, x: s.agent_kinds.write_own(x, KIND, None),
    "agent_kinds.delete_own": lambda s, t, x: s.agent_kinds.delete_own(x, "none"),
    "agent_kinds.require_shared": lambda s, t, x: s.agent_kinds.require_shared(),
    "agent_kinds.write_shared": lambda s, t, x: s.agent_kinds.write_shared(KIND, None),
    "agent_kinds.delete_shared": lambda s, t, x: s.agent_kinds.delete_shared("none"),
    "debug.list_runs": lambda s, t, x: s.debug.list_runs(x),
    "debug.get_run": lambda s, t, x: s.debug.get_run(x, uuid4()),
    "debug.get_step": lambda s, t, x: s.debug.get_step(x, uuid4(), uuid4()),
    "debug.search_run": lambda s, t, x: s.debug.search_run(x, uuid4(), query="word"),
    "debug.compare_runs": lambda s, t, x: s.debug.compare_runs(x, uuid4(), uuid4()),
    "debug.get_attempt": lambda s, t, x: s.debug.get_attempt(x, uuid4(), uuid4(), number=1),
    "debug.export": lambda s, t, x: s.debug.export(x, None),
    "debug.get_replay": lambda s, t, x: s.debug.get_replay(x, uuid4(), uuid4()),
    "debug.delete_all": lambda s, t, x: s.debug.delete_all(x),
    "turns.create": lambda s, t, x: s.turns.create(spec(s, t)),
    "turns.spawn": lambda s, t, x: s.turns.spawn(x, spec(s, t), terms(x)),
    "turns.find_answer": lambda s, t, x: s.turns.find_answer(request(s)),
    "turns.find_sent": lambda s, t, x: s.turns.find_sent(x, "c1"),
    "turns.find_spend_limit": lambda s, t, x: s.turns.find_spend_limit(),
    "turns.send": lambda s, t, x: s.turns.send(x, message(s)),
    "turns.send_to_subagent": lambda s, t, x: s.turns.send_to_subagent(
        x, message(s), busy=BusyBehavior.QUEUE, parent_id=x
    ),
    "turns.edit": lambda s, t, x: s.turns.edit(x, NO_ROW, content=TEXT),
    "turns.find_titled": lambda s, t, x: s.turns.find_titled(x),
    "turns.write_title": lambda s, t, x: s.turns.write_title(x, uuid4().hex, seen_title="t"),
    "turns.interrupt": lambda s, t, x: s.turns.interrupt(x),
    "turns.retry": lambda s, t, x: s.turns.retry(x),
    "turns.nudge": lambda s, t, x: s.turns.nudge(x),
    "turns.compact": lambda s, t, x: s.turns.compact(x),
    "turns.submit_results": lambda s, t, x: s.turns.submit_results(x, []),
    "approvals.answer": lambda s, t, x: s.approvals.answer(x, []),
    "approvals.find_question": lambda s, t, x: s.approvals.find_question(x, "call"),
    "approvals.list_rules": lambda s, t, x: s.approvals.list_rules(x),
    "approvals.write_rules": lambda s, t, x: s.approvals.write_rules(x, []),
    "turns.reconcile": lambda s, t, x: s.turns.reconcile(x),
    "turns.delete_queued": lambda s, t, x: s.turns.delete_queued(x, NO_QUEUED),
    "turns.clear_queue": lambda s, t, x: s.turns.clear_queue(x),
    "turns.promote_queued": lambda s, t, x: s.turns.promote_queued(x, NO_QUEUED),
    "turns.move_queued": lambda s, t, x: s.turns.move_queued(x, NO_QUEUED, before=None),
    "turns.edit_queued": lambda s, t, x: s.turns.edit_queued(x, NO_QUEUED, content=TEXT),
    "messages.get": lambda s, t, x: s.messages.get(x, NO_ROW),
    "messages.list": lambda s, t, x: s.messages.list(x),
    "messages.search": lambda s, t, x: s.messages.search(x, "hello"),
    "messages.prompts": lambda s, t, x: s.messages.prompts(x),
    "messages.list_prompts": lambda s, t, x: s.messages.list_prompts(x),
    "messages.list_queue": lambda s, t, x: s.messages.list_queue(x),
    "files.create": lambda s, t, x: s.files.create(name="a", mime_type="text/plain", data=b""),
    "files.get": lambda s, t, x: s.files.get(x),
    "files.read": lambda s, t, x: s.files.read(x),
    "files.delete": lambda s, t, x: s.files.delete(x),
    "files.list_of_chat": lambda s, t, x: s.files.list_of_chat(x),
    "files.find_readable": lambda s, t, x: s.files.find_readable(x, []),
    "users.get": lambda s, t, x: s.users.get(x),
    "users.list_all": lambda s, t, x: s.users.list_all(),
    "users.search_directory": lambda s, t, x: s.users.search_directory("ad"),
    "users.require_create": lambda s, t, x: s.users.require_create(),
    "users.require_update": lambda s, t, x: s.users.require_update(x),
    "users.create": lambda s, t, x: s.users.create(UserDraft(email=address())),
    "users.update": lambda s, t, x: s.users.update(x, UserPatch(name=uuid4().hex)),
    "users.reset_password": lambda s, t, x: s.users.reset_password(t.people["eve"].id),
    "users.delete": lambda s, t, x: s.users.delete(t.people["eve"].id),
    "accesses.list": lambda s, t, x: s.accesses.list(x),
    "accesses.find_notice": lambda s, t, x: s.accesses.find_notice(x),
    "accesses.dismiss_notice": lambda s, t, x: s.accesses.dismiss_notice(x, through=1),
    "sessions.list": lambda s, t, x: s.sessions.list(x),
    "sessions.require_end": lambda s, t, x: s.sessions.require_end(x),
    "sessions.end": lambda s, t, x: s.sessions.end(x, uuid4()),
    "sessions.end_others": lambda s, t, x: s.sessions.end_others(x),
    "tokens.list": lambda s, t, x: s.tokens.list(x),
    "tokens.require_create": lambda s, t, x: s.tokens.require_create(x),
    "tokens.create": lambda s, t, x: s.tokens.create(x, name=uuid4().hex, scopes=[Scope.CHAT_READ]),
    "tokens.delete": lambda s, t, x: s.tokens.delete(x),
    "providers.list": lambda s, t, x: s.providers.list(),
    "providers.get": lambda s, t, x: s.providers.get(uuid4()),
    "providers.require": lambda s, t, x: s.providers.require(),
    "providers.record_test": lambda s, t, x: s.providers.record_test(uuid4(), None),
    "providers.record_try": lambda s, t, x: s.providers.record_try("openai"),
    "providers.create": lambda s, t, x: s.providers.create(
        ProviderDraft(type=ProviderType.SCRIPTED, name=f"p{uuid4().hex}")
    ),
    "providers.update": lambda s, t, x: s.providers.update(uuid4(), ProviderPatch(enabled=True)),
    "providers.delete": lambda s, t, x: s.providers.delete(uuid4()),
    "models.list_enabled": lambda s, t, x: s.models.list_enabled(),
    "models.list": lambda s, t, x: s.models.list(),
    "models.get": lambda s, t, x: s.models.get(uuid4()),
    "models.require": lambda s, t, x: s.models.require(),
    "models.create": lambda s, t, x: s.models.create(
        ModelConfigDraft(provider_id=uuid4(), model="m", context_limit=1000, price_input=Decimal(1))
    ),
    "models.forget_window": lambda s, t, x: s.models.forget_window(uuid4()),
    "models.update": lambda s, t, x: s.models.update(uuid4(), ModelConfigPatch()),
    "models.delete": lambda s, t, x: s.models.delete(uuid4()),
    "settings.count_due": lambda s, t, x: s.settings.count_due(auto_archive_days=1, retention_days=1, now=NOW),
    "settings.list": lambda s, t, x: s.settings.list(),
    "settings.list_public": lambda s, t, x: s.settings.list_public(),
    "settings.require": lambda s, t, x: s.settings.require(),
    "settings.write": lambda s, t, x: s.settings.write("prompts", {"system_prompt": uuid4().hex}),
    "preferences.get": lambda s, t, x: s.preferences.get(x),
    "preferences.override_policy": lambda s, t, x: s.preferences.override_policy(x),
    "preferences.require": lambda s, t, x: s.preferences.require(x),
    "preferences.write": lambda s, t, x: s.preferences.write(x, PreferencesPatch(custom_prompt=uuid4().hex)),
    "provider_keys.list": lambda s, t, x: s.provider_keys.list(x),
    "provider_keys.require": lambda s, t, x: s.provider_keys.require(x),
    "provider_keys.put": lambda s, t, x: s.provider_keys.put(x, uuid4(), api_key=Key()),
    "provider_keys.delete": lambda s, t, x: s.provider_keys.delete(x, uuid4()),
    "usage.family_cost": lambda s, t, x: s.usage.family_cost(x),
    "usage.usage_of": lambda s, t, x: s.usage.usage_of(x, GroupBy.MODEL, **PERIOD),
    "usage.usage_of_all": lambda s, t, x: s.usage.usage_of_all(GroupBy.USER, **PERIOD),
    "usage.spend": lambda s, t, x: s.usage.spend(x),
    "installation.audit": lambda s, t, x: s.installation.audit(),
    "installation.replicas": lambda s, t, x: s.installation.replicas(),
    "installation.job_runs": lambda s, t, x: s.installation.job_runs(),
    "installation.owned_chats": lambda s, t, x: s.installation.owned_chats(),
    "contexts.get": lambda s, t, x: s.contexts.get(x),
    "contexts.refresh": lambda s, t, x: s.contexts.refresh(x),
    "contexts.list_diffs": lambda s, t, x: s.contexts.list_diffs(x),
    "contexts.write_diffs": lambda s, t, x: s.contexts.write_diffs(x, []),
    "templates.list": lambda s, t, x: s.templates.list(),
    "templates.get": lambda s, t, x: s.templates.get("none"),
    "templates.signals": lambda s, t, x: s.templates.signals(),
    "templates.list_all": lambda s, t, x: s.templates.list_all(),
    "templates.require": lambda s, t, x: s.templates.require(),
    "templates.push": lambda s, t, x: s.templates.push(push()),
    "templates.update": lambda s, t, x: s.templates.update("none", TemplatePatch()),
    "templates.delete": lambda s, t, x: s.templates.delete("none"),
    "workspaces.list": lambda s, t, x: s.workspaces.list(x),
    "workspaces.list_all": lambda s, t, x: s.workspaces.list_all(),
    "workspaces.get": lambda s, t, x: s.workspaces.get(x),
    "workspaces.create": lambda s, t, x: s.workspaces.create(workspace_draft(s)),
    "workspaces.require_update": lambda s, t, x: s.workspaces.require_update(x),
    "workspaces.update": lambda s, t, x: s.workspaces.update(x, name=f"w-{uuid4().hex[:8]}"),
    "workspaces.start": lambda s, t, x: s.workspaces.start(x, lambda *_: plan()),
    "workspace_mcp_servers.list": lambda s, t, x: s.workspace_mcp_servers.list(x),
    "workspace_mcp_servers.answer": lambda s, t, x: s.workspace_mcp_servers.answer(x, "0" * 64, McpDecision.AGREE),
    "workspace_mcp_servers.withdraw": lambda s, t, x: s.workspace_mcp_servers.withdraw(x, "0" * 64),
    "mcp_servers.list": lambda s, t, x: s.mcp_servers.list(),
    "mcp_servers.get": lambda s, t, x: s.mcp_servers.get(uuid4()),
    "mcp_servers.list_tools": lambda s, t, x: s.mcp_servers.list_tools(uuid4()),
    "mcp_servers.list_of_deployment": lambda s, t, x: s.mcp_servers.list_of_deployment(),
    "mcp_servers.require": lambda s, t, x: s.mcp_servers.require(),
    "mcp_servers.create": lambda s, t, x: s.mcp_servers.create(
        ServerDraft(slug=f"s{uuid4().hex}", url="https://mcp.example.org/mcp")
    ),
    "mcp_servers.update": lambda s, t, x: s.mcp_servers.update(uuid4(), ServerPatch(enabled=True)),
    "mcp_servers.delete": lambda s, t, x: s.mcp_servers.delete(uuid4()),
    "mcp_servers.record_test": lambda s, t, x: s.mcp_servers.record_test(uuid4()),
    "mcp_servers.require_own": lambda s, t, x: s.mcp_servers.require_own(x),
    "mcp_servers.require_test": lambda s, t, x: s.mcp_servers.require_test(x, uuid4()),
    "mcp_servers.create_own": lambda s, t, x: s.mcp_servers.create_own(
        x, ServerDraft(slug=f"s{uuid4().hex}", url="https://mcp.example.org/mcp")
    ),
    "mcp_servers.update_own": lambda s, t, x: s.mcp_servers.update_own(x, uuid4(), ServerPatch(enabled=True)),
    "mcp_servers.delete_own": lambda s, t, x: s.mcp_servers.delete_own(x, uuid4()),
    "mcp_servers.record_connect": lambda s, t, x: s.mcp_servers.record_connect(x, uuid4()),
    "mcp_servers.record_disconnect": lambda s, t, x: s.mcp_servers.record_disconnect(x, uuid4()),
    "workspaces.stop": lambda s, t, x: s.workspaces.stop(x),
    "workspaces.delete": lambda s, t, x: s.workspaces.delete(x),
    "workspaces.get_operation": lambda s, t, x: s.workspaces.get_operation(x),
    "workspaces.read_log": lambda s, t, x: s.workspaces.read_log(x),
}


BUGS = (AssertionError, TypeError, AttributeError, asyncpg.PostgresError, asyncpg.InterfaceError)


async def outcome(call: Awaitable[object]) -> str:
    """Return whether the rights check passed. A later refusal for another reason counts as passed."""
    try:
        await call
    except (ChatNotFound, FileNotFound, UserNotFound, TokenNotFound, WorkspaceNotFound, OperationNotFound):
        return MISSING
    except ScopeMissing:
        return "scope"
    except Denied:
        return REFUSED
    except BUGS:
        raise
    except Exception:
        return OK
    return OK


async def targets(town: ActorsRig, subject: str) -> list[tuple[str, UUID | None]]:
    match subject:
        case "chat":
            return list(town.chats.items())
        case "file":
            return [
                *[(f"file in {name}", await town.file(chat)) for name, chat in town.chats.items()],
                ("unlinked file", await town.file(None)),
            ]
        case "user":
            return [(name, town.people[name].id) for name in ("ada", "eve")]
        case "token":
            return [("token of ada", await town.token())]
        case "workspace":
            return [("workspace of ada", (await town.workspace())[0])]
        case "operation":
            return [("operation of ada", (await town.workspace())[1])]
    return [("", None)]


def relation(who: str, target: str) -> str:
    if who == "ada":
        return "owner"
    if who == "bob" and "shared" in target:
        return "reader"
    return {"root": "admin", "audrey": "auditor"}.get(who, "stranger")


def expected(name: str, *, who: str, target: str, scopes: set[str]) -> str:
    subject, right, needed = METHODS[name]
    if not scopes & needed:
        return "scope"
    if subject in (CHAT, FILE):
        related = relation(who, target)
        if target == "unlinked file" and related != "owner":
            return MISSING
        if name == "files.delete" and related == "reader":
            return REFUSED
        return CHAT_RIGHTS[right][RELATIONS.index(related)]
    allowed = ROLE_RIGHTS[right]
    owner = target.rpartition(" of ")[2]
    if "own" in allowed and who == owner:
        return OK
    return allowed[{"root": "admin", "audrey": "auditor"}.get(who, "member")]


@pytest.mark.parametrize("name", METHODS)
async def test_every_role_has_exactly_the_rights_of_the_table(town: ActorsRig, name: str) -> None:
    subject = METHODS[name][0]
    wrong = []
    for label, who, actor in town.actors():
        for target, target_id in await targets(town, subject):
            await town.share()
            scopes = {str(scope) for scope in actor.scopes} if isinstance(actor, UserActor) else {"all"}
            wanted = expected(name, who=who, target=target, scopes=scopes)
            got = await outcome(CALLS[name](town.store.as_actor(actor), town, target_id))
            if got != wanted:
                wrong.append(f"{label} -> {target}: {got}, not {wanted}")

    assert wrong == []


@pytest.mark.parametrize("name", METHODS)
async def test_parts_of_rookery_have_their_grants_and_no_others(town: ActorsRig, name: str) -> None:
    subject = METHODS[name][0]
    for system in SystemName:
        granted = any(fnmatch.fnmatch(name, pattern) for pattern in SYSTEM[system])
        store = town.store.as_actor(SystemActor(system))
        for _, target_id in await targets(town, subject):
            assert (await outcome(CALLS[name](store, town, target_id)) == OK) is granted, f"{system}: {name}"


def authorized_methods() -> set[str]:
    found = set()
    for slot, part in vars(authorized).items():
        if inspect.isclass(part) and issubclass(part, AuthorizedMethods) and part is not AuthorizedMethods:
            word = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in slot).lstrip("_")
            public = {name: member for name, member in vars(part).items() if not name.startswith("_")}
            found |= {f"{word}.{name}" for name, member in public.items() if hasattr(member, "authz")}
    return found


def test_every_method_is_in_the_table_and_has_a_call() -> None:
    assert {name.partition(" ")[0] for name in METHODS} == authorized_methods()
    assert set(CALLS) == set(METHODS)
    assert set(SYSTEM) == set(SystemName)
    subjects = {CHAT, FILE, USER, TOKEN, WORKSPACE, OPERATION, NOTHING}
    assert {subject for subject, _, _ in METHODS.values()} == subjects


def test_every_method_carries_its_rule() -> None:
    for word in ActorStore.__slots__:
        if word != "actor":
            part = next(p for p in vars(authorized).values() if getattr(p, "__name__", "") == _class_name(word))
            rules = [member.authz for name, member in vars(part).items() if not name.startswith("_")]
            assert rules
            assert all(isinstance(rule, Rule) for rule in rules)


def _class_name(word: str) -> str:
    return "".join(piece.title() for piece in word.split("_"))
