"""Access checks. Every call on behalf of an actor is checked on the connection on which it runs.

`AuthorizedMethods` is the base class of the objects that routers, tools and streams use. Each public method declares
its resource and action with `@authz`; a class with another public method fails at import. `domain.access.rights` has
the rules.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.access import rights
from rookery.domain.access.rights import (
    Action,
    Actor,
    AdminAccess,
    ChatFacts,
    Relation,
    Resource,
    Role,
    SystemActor,
    UserActor,
    Verdict,
)
from rookery.domain.chat.errors import ChatNotFound, InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import Clock
from rookery.store.chats import shares
from rookery.store.db.hints import AccessHint, Hint, WatchHint, WatchKind
from rookery.store.db.pool import Connection
from rookery.store.machine import Bundle, Machine, Publisher
from rookery.store.people import audit, tokens
from rookery.store.people.audit import NO_REQUEST, Event, RequestInfo
from rookery.store.people.errors import (
    AccessError,
    FileNotFound,
    Forbidden,
    NoActor,
    OwnerOnly,
    ScopeMissing,
    TokenNotFound,
    Unauthenticated,
    UserNotFound,
)
from rookery.store.workspaces import operation_rows, workspaces
from rookery.store.workspaces.operation_rows import OperationNotFound
from rookery.store.workspaces.workspaces import WorkspaceNotFound

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="AuthorizedMethods")
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

MIN_REASON_CHARS, MAX_REASON_CHARS = 10, 200
_BREAK_GLASS_HEADER = "Rookery-Break-Glass"

FACTS = f"""
    SELECT c.owner_id, coalesce(c.root_chat_id, c.id) AS root_id, c.snapshot_version,
           {shares.SHARED_WITH.format(user="$2")} AS is_shared,
           (SELECT value ->> 'admin_access' FROM settings WHERE key = 'chats') AS admin_access
      FROM chats c
     WHERE c.id = $1
"""
# A file can be read by its owner and by the readers of a chat that links it. `others` is a chat that links it, which an
# administrator must be allowed to read.
FILE_FACTS = f"""
    SELECT f.owner_id,
           EXISTS (SELECT FROM chat_file_links l JOIN chats c ON c.id = l.chat_id
                    WHERE l.file_id = f.id
                      AND (c.owner_id = $2 OR {shares.SHARED_WITH.format(user="$2")})) AS is_readable,
           (SELECT l.chat_id FROM chat_file_links l WHERE l.file_id = f.id LIMIT 1) AS others
      FROM chat_files f
     WHERE f.id = $1
"""

# $3: the user was an administrator when the request was authenticated. The user must still be one.
CREDENTIAL_COUNTS = """
    SELECT EXISTS (SELECT FROM users u
                    WHERE u.id = $2
                      AND u.status = 'active'
                      AND (u.role = 'admin' OR NOT $3)
                      AND (EXISTS (SELECT FROM sessions s WHERE s.id = $1 AND s.user_id = u.id)
                           OR EXISTS (SELECT FROM api_tokens t WHERE t.id = $1 AND t.user_id = u.id)))
"""


class Via(StrEnum):
    """The kind of object that the first argument identifies. Rights depend on the owner of that object."""

    NOTHING = "nothing"  # no object; the role alone decides
    CHAT = "chat"  # a subagent's chat has the rights of its root
    FILE = "file"
    USER = "user"
    TOKEN = "token"  # noqa: S105 -- a resource name, not a secret
    WORKSPACE = "workspace"
    OPERATION = "operation"  # the owner is that of its workspace


class How(StrEnum):
    """The kind of connection on which a method runs."""

    READ = "read"  # a connection
    WRITE = "write"  # a connection with a transaction
    BUNDLE = "bundle"  # a bundle of transitions


class Rule(msgspec.Struct, frozen=True):
    """The declaration of a method by `@authz`.

    `actions` computes the required rights from the arguments. `locks_own`: the method first locks the chat, so the
    check may take that lock if the actor is the owner.
    """

    resource: Resource
    action: Action
    via: Via
    how: How
    actions: Callable[..., frozenset[Action]] | None = None
    locks_own: bool = False


class Grant:
    """An authorized call: its connection, its actor, and its hints, which are published after the commit.

    `credential_id` is the session or API token of the request; None if the call is not part of a request.
    """

    __slots__ = (
        "_bundle",
        "actor",
        "conn",
        "credential_id",
        "hints",
        "now",
        "owner_id",
        "relation",
        "request",
        "root_id",
        "snapshot_version",
    )

    def __init__(
        self,
        conn: Connection,
        actor: Actor,
        *,
        now: datetime,
        request: RequestInfo,
        bundle: Bundle | None,
        credential_id: UUID | None,
    ) -> None:
        self.conn = conn
        self.actor = actor
        self.now = now
        self.request = request
        self.hints: list[Hint] = []
        self.relation = Relation.SYSTEM
        self.owner_id: UUID | None = None
        self.root_id: UUID | None = None
        self.snapshot_version = 0
        self._bundle = bundle
        self.credential_id = credential_id

    @property
    def bundle(self) -> Bundle:
        assert self._bundle is not None, "the method is not declared with How.BUNDLE"
        return self._bundle

    @property
    def user_id(self) -> UUID:
        """Return the acting user. Raises `Forbidden` for a system actor."""
        if isinstance(self.actor, SystemActor):
            raise Forbidden("Only a user can do this.")
        return self.actor.id

    @property
    def by(self) -> UUID | None:
        """Return the user who is recorded as the author of a change; None for a system actor."""
        return None if isinstance(self.actor, SystemActor) else self.actor.id

    @property
    def is_admin(self) -> bool:
        """Return whether the actor is an administrator. The command line counts as one."""
        if isinstance(self.actor, SystemActor):
            return self.actor.name is rights.SystemName.CLI
        may = rights.has_scope(self.actor, Resource.USER, Action.ADMINISTER)
        return may and rights.role_of(self.actor) is Role.ADMIN

    async def require_credential(self) -> None:
        """Raise `Unauthenticated` unless the session or API token of the request is still valid.

        A request is authenticated when its headers arrive. Until its body arrives, the password may be reset or the
        role changed. Methods that grant lasting access call this.
        """
        if self.credential_id is None:
            return
        is_admin = isinstance(self.actor, UserActor) and self.actor.role is Role.ADMIN
        await require_credential(self.conn, self.credential_id, user_id=self.user_id, is_admin=is_admin)

    def tell(self, *hints: Hint) -> None:
        """Add hints, which are published after the commit."""
        self.hints.extend(hints)

    def tell_access(self, kind: str, *ids: UUID) -> None:
        self.tell(*(AccessHint(kind=kind, id=str(each)) for each in ids))

    def tell_watchers(self, chat_id: ChatId, kind: WatchKind, *, users: Sequence[UUID] = ()) -> None:
        """Add hints for viewers of the chat list. A notification has a limited size, so many users need several."""
        assert self.owner_id is not None
        for start in range(0, max(len(users), 1), 100):
            batch = tuple(users[start : start + 100])
            self.tell(
                WatchHint(
                    user_id=self.owner_id,
                    kind=kind,
                    chat_id=chat_id,
                    snapshot_version=self.snapshot_version,
                    users=batch,
                )
            )

    async def log(self, event: Event) -> None:
        """Write to the audit log in the transaction of this call."""
        await audit.record(self.conn, event, actor=self.actor, now=self.now, request=self.request)


async def require_credential(conn: Connection, credential_id: UUID, *, user_id: UUID, is_admin: bool) -> None:
    """Raise `Unauthenticated` unless the user's session or API token is still valid.

    `is_admin`: the user was an administrator when the request was authenticated, and must still be one.
    """
    if not await conn.fetchval(CREDENTIAL_COUNTS, credential_id, user_id, is_admin):
        raise Unauthenticated("Your session or API token ended before the request was complete. Log in again.")


class Context:
    """The actor and the services that the classes of one `ActorStore` share."""

    __slots__ = ("_break_glass", "_credential_id", "_pool", "_publisher", "_request", "actor", "clock", "machine")

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        machine: Machine,
        publisher: Publisher,
        clock: Clock,
        actor: Actor,
        request: RequestInfo = NO_REQUEST,
        break_glass: str | None = None,
        credential_id: UUID | None = None,
    ) -> None:
        if not isinstance(actor, Actor):
            raise NoActor
        self._pool = pool
        self._publisher = publisher
        self._request = request
        self._credential_id = credential_id
        self._break_glass = None if break_glass is None else _checked_reason(break_glass)
        self.machine = machine
        self.clock = clock
        self.actor = actor

    async def run(
        self, rule: Rule, target: UUID | None, actions: frozenset[Action], act: Callable[[Grant], Awaitable[T]]
    ) -> T:
        """Check the rights and call `act` on the same connection. Publish the hints after the commit."""
        for action in actions:
            self._check_scope(rule.resource, action)
        if rule.how is How.BUNDLE:
            done: list[Grant] = []

            async def in_bundle(bundle: Bundle) -> T:
                grant = await self._granted(rule, target, actions, conn=bundle.conn, bundle=bundle)
                result = await act(grant)
                done[:] = [grant]  # a bundle may run more than once
                return result

            result = await self.machine.bundle(in_bundle)
            self._publisher.publish(done[0].hints)
            return result
        async with self._pool.acquire() as conn:
            if rule.how is How.READ:
                grant = await self._granted(rule, target, actions, conn=conn)
                result = await act(grant)
            else:
                async with conn.transaction():
                    grant = await self._granted(rule, target, actions, conn=conn)
                    result = await act(grant)
        if grant.hints:
            self._publisher.publish(grant.hints)
        return result

    def acquire(self) -> AbstractAsyncContextManager[Connection]:
        """Take a connection for the rest of a read that was authorized and is too long for one connection."""
        acquired: AbstractAsyncContextManager[Connection] = self._pool.acquire()
        return acquired

    def owner_of_own(self, resource: Resource, actions: frozenset[Action]) -> UUID | None:
        """Return the actor's id if the actor may do this to own chats; otherwise None."""
        if isinstance(self.actor, SystemActor):
            return None
        for action in actions:
            self._check_scope(resource, action)
        own = ChatFacts(self.actor.id, is_shared=False)
        verdicts = {rights.judge_chat(self.actor, action, facts=own, has_reason=False) for action in actions}
        return self.actor.id if verdicts == {Verdict.ALLOWED} else None

    def _check_scope(self, resource: Resource, action: Action) -> None:
        if not rights.has_scope(self.actor, resource, action):
            # The error names the narrowest scope that would be enough.
            wanted = rights.scopes_for(resource, action) - rights.EVERYTHING or rights.EVERYTHING
            raise ScopeMissing(min(wanted, key=list(rights.Scope).index))

    async def _granted(
        self,
        rule: Rule,
        target: UUID | None,
        actions: frozenset[Action],
        *,
        conn: Connection,
        bundle: Bundle | None = None,
    ) -> Grant:
        grant = Grant(
            conn,
            self.actor,
            now=self.clock.now(),
            request=self._request,
            bundle=bundle,
            credential_id=self._credential_id,
        )
        facts = None
        if rule.locks_own:
            facts = await self._own_facts(grant, target)
        if facts is None and rule.via is Via.CHAT:
            facts = await self._chat_facts(grant, target)
        if isinstance(self.actor, SystemActor):
            if not all(rights.is_granted(self.actor, rule.resource, action) for action in actions):
                raise Forbidden(f"The {self.actor.name} of Rookery may not do this.")
            return grant
        match rule.via:
            case Via.CHAT:
                assert facts is not None
                for action in actions:
                    await self._check_chat(grant, ChatId(_required(target)), facts, action)
            case Via.FILE:
                await self._check_file(grant, _required(target), rule.action)
            case Via.USER:
                self._check_role(rule, owner_id=target, missing=UserNotFound(_required(target)))
            case Via.TOKEN:
                owner_id = await tokens.find_owner(conn, _required(target))
                if owner_id is None:
                    raise TokenNotFound
                self._check_role(rule, owner_id=owner_id, missing=TokenNotFound())
            case Via.WORKSPACE:
                missing = WorkspaceNotFound(_required(target))
                grant.owner_id = await workspaces.find_owner(conn, _required(target))
                self._check_owned(rule, grant.owner_id, missing)
            case Via.OPERATION:
                grant.owner_id = await operation_rows.find_owner(conn, _required(target))
                self._check_owned(rule, grant.owner_id, OperationNotFound(_required(target)))
            case Via.NOTHING:
                self._check_role(rule, owner_id=None, missing=Forbidden())
        return grant

    def _check_owned(self, rule: Rule, owner_id: UUID | None, missing: AccessError) -> None:
        if owner_id is None:
            raise missing
        self._check_role(rule, owner_id=owner_id, missing=missing)

    def _check_role(self, rule: Rule, *, owner_id: UUID | None, missing: AccessError) -> None:
        assert not isinstance(self.actor, SystemActor)
        match rights.judge(self.actor, rule.resource, rule.action, owner_id=owner_id):
            case Verdict.ALLOWED:
                return
            case Verdict.NOT_FOUND:
                raise missing
            case _:
                raise Forbidden

    async def _own_facts(self, grant: Grant, chat_id: UUID | None) -> ChatFacts | None:
        """Lock the chat and return its facts if it belongs to the actor; otherwise None."""
        if isinstance(self.actor, SystemActor):
            return None
        chat = await grant.bundle.lock_own(_required(chat_id), self.actor.id)
        if chat is None:
            return None
        grant.owner_id, grant.root_id = chat.owner_id, chat.root_chat_id or chat.id
        grant.snapshot_version = chat.snapshot_version
        return ChatFacts(chat.owner_id, is_shared=False)

    async def _chat_facts(self, grant: Grant, chat_id: UUID | None) -> ChatFacts:
        user_id = None if isinstance(self.actor, SystemActor) else self.actor.id
        record = await grant.conn.fetchrow(FACTS, chat_id, user_id)
        if record is None:
            raise ChatNotFound(_required(chat_id))
        grant.owner_id, grant.root_id = record["owner_id"], record["root_id"]
        grant.snapshot_version = record["snapshot_version"]
        return ChatFacts(record["owner_id"], record["is_shared"], _access(record["admin_access"]))

    async def _check_chat(self, grant: Grant, chat_id: ChatId, facts: ChatFacts, action: Action) -> None:
        assert not isinstance(self.actor, SystemActor)
        grant.relation = rights.relation(self.actor, facts)
        has_reason = self._break_glass is not None
        match rights.judge_chat(self.actor, action, facts=facts, has_reason=has_reason):
            case Verdict.ALLOWED:
                if has_reason and rights.uses_break_glass(self.actor, action, facts=facts):
                    await self._break(grant, chat_id)
            case Verdict.NOT_FOUND:
                raise ChatNotFound(chat_id)
            case Verdict.OWNER_ONLY:
                raise OwnerOnly
            case Verdict.NEEDS_REASON:
                raise Forbidden(f"Give a reason to read this chat in the header {_BREAK_GLASS_HEADER}.")
            case Verdict.FORBIDDEN:
                raise Forbidden

    async def _check_file(self, grant: Grant, file_id: UUID, action: Action) -> None:
        assert not isinstance(self.actor, SystemActor)
        record = await grant.conn.fetchrow(FILE_FACTS, file_id, self.actor.id)
        if record is None:
            raise FileNotFound(file_id)
        grant.owner_id = record["owner_id"]
        if record["owner_id"] == self.actor.id:
            return
        if not record["is_readable"]:
            await self._check_foreign_file(grant, file_id, record["others"])
        if action is not Action.READ:
            raise Forbidden("Only the user who uploaded a file may delete it.")

    async def _check_foreign_file(self, grant: Grant, file_id: UUID, chat_id: UUID | None) -> None:
        """Check whether an administrator may read a chat that links the file. Other users get `FileNotFound`."""
        if chat_id is None or not isinstance(self.actor, UserActor) or self.actor.role is not Role.ADMIN:
            raise FileNotFound(file_id)
        owner_id = grant.owner_id
        facts = await self._chat_facts(grant, chat_id)
        try:
            # The access is recorded for the owner of the chat, who may be another user than the owner of the file.
            await self._check_chat(grant, ChatId(chat_id), facts, Action.READ)
        except ChatNotFound:
            raise FileNotFound(file_id) from None
        grant.owner_id = owner_id

    async def _break(self, grant: Grant, chat_id: ChatId) -> None:
        """Log the access before the chat is read. `store.people.admin_accesses` lists it for the owner."""
        await grant.log(
            Event(
                action=audit.BREAK_GLASS,
                resource_type=Resource.CHAT,
                resource_id=str(grant.root_id),
                extra={"reason": self._break_glass, "chat_id": str(chat_id)},
                subject_id=grant.owner_id,
            )
        )


class AuthorizedMethods:
    """The base class of the methods of an actor's store. Every public method must be declared with `@authz`."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def __init_subclass__(cls) -> None:
        for name, member in vars(cls).items():
            if not name.startswith("_") and not isinstance(getattr(member, "authz", None), Rule):
                raise TypeError(f"{cls.__name__}.{name} is not declared with @authz")


def authz(
    resource: Resource,
    action: Action,
    *,
    via: Via = Via.NOTHING,
    how: How = How.READ,
    actions: Callable[..., frozenset[Action]] | None = None,
    locks_own: bool = False,
) -> Callable[
    [Callable[Concatenate[S, Grant, P], Coroutine[Any, Any, T]]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
]:
    """Declare the rights that a method needs.

    The method gets a `Grant` before its arguments. `via` describes the first of these arguments.
    """
    assert not locks_own or (via is Via.CHAT and how is How.BUNDLE), "only a bundle locks chats"
    rule = Rule(resource, action, via, how, actions, locks_own)

    def decorate(
        fn: Callable[Concatenate[S, Grant, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        assert inspect.iscoroutinefunction(fn)

        @functools.wraps(fn)
        async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            target = args[0] if via is not Via.NOTHING else None
            assert target is None or isinstance(target, UUID), "the first argument is the id, by position"
            needed = frozenset({action}) if actions is None else actions(*args, **kwargs)
            return await self._context.run(rule, target, needed, lambda grant: fn(self, grant, *args, **kwargs))

        run.authz = rule  # type: ignore[attr-defined]
        return run

    return decorate


def authorized_by(checked: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[[F], F]:
    """Declare that a public method calls this `@authz` method, which checks the rights."""

    def decorate(fn: F) -> F:
        fn.authz = checked.authz  # type: ignore[attr-defined]
        return fn

    return decorate


def _required(target: UUID | None) -> UUID:
    assert target is not None
    return target


def _access(stored: str | None) -> AdminAccess:
    """Return the setting. An unreadable value counts as the default."""
    return AdminAccess(stored) if stored in set(AdminAccess) else AdminAccess.BREAK_GLASS


def _checked_reason(reason: str) -> str:
    text = reason.strip()
    if not MIN_REASON_CHARS <= len(text) <= MAX_REASON_CHARS:
        raise InvalidInput(
            _BREAK_GLASS_HEADER, f"A reason must have {MIN_REASON_CHARS} to {MAX_REASON_CHARS} characters."
        )
    return text
