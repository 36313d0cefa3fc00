"""Access rules: roles, scopes, actors, and the tables of rights. Pure.

The store reads the facts (owner, shares, settings) and calls `judge` or `judge_chat`. Only the owner may send messages
to a chat, because a turn uses the owner's keys and workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

import msgspec


class Role(StrEnum):
    MEMBER = "member"
    ADMIN = "admin"
    AUDITOR = "auditor"


class Scope(StrEnum):
    """The scopes of an API token. A token does not allow more than the rights of its user."""

    ALL = "all"
    CHAT_READ = "chat:read"
    CHAT_WRITE = "chat:write"
    USAGE_READ = "usage:read"
    ADMIN = "admin"


EVERYTHING = frozenset({Scope.ALL})


class AdminAccess(StrEnum):
    """The access of administrators to other users' chats: none, with a reason that the owner sees, or unrestricted."""

    NONE = "none"
    BREAK_GLASS = "break_glass"
    FULL = "full"


class SystemName(StrEnum):
    """The parts of the server that act without a user."""

    WORKER = "worker"
    JOBS = "jobs"
    STREAM_SYNC = "stream_sync"
    REPLICA = "replica"
    SETUP = "setup"
    CLI = "cli"


class UserActor(msgspec.Struct, frozen=True):
    """A user who is authenticated by a session, which has all scopes, or by an API token."""

    id: UUID
    role: Role = Role.MEMBER
    scopes: frozenset[Scope] = EVERYTHING


class OwnerActor(msgspec.Struct, frozen=True):
    """An agent that acts for the owner of its chat.

    It has the rights of a member, even if the owner has another role.
    """

    id: UUID


class SystemActor(msgspec.Struct, frozen=True):
    """A part of the server. It has only the rights in `GRANTS`."""

    name: SystemName

    def __post_init__(self) -> None:
        SystemName(self.name)  # raises for unknown names


Actor: TypeAlias = UserActor | OwnerActor | SystemActor


class Resource(StrEnum):
    CHAT = "chat"
    MESSAGE = "message"
    QUEUE = "queue"
    SHARE = "share"
    FOLDER = "folder"
    SAVED_PROMPT = "saved_prompt"
    FILE = "file"
    COST = "cost"
    USER = "user"
    SESSION = "session"
    TOKEN = "token"  # noqa: S105 -- a resource name, not a secret
    PREFERENCES = "preferences"
    PROVIDER_KEY = "provider_key"
    PROVIDER = "provider"
    MODEL = "model"
    SETTINGS = "settings"
    USAGE = "usage"
    AUDIT = "audit"
    REPLICA = "replica"
    TEMPLATE = "template"
    WORKSPACE = "workspace"
    OPERATION = "operation"
    MCP_SERVER = "mcp_server"
    MCP_LOGIN = "mcp_login"


class Action(StrEnum):
    """Actions on resources. Those of the first group apply to a chat and everything in it."""

    READ = "read"
    INSPECT = "inspect"  # read debug records, which show more than the chat
    DRIVE = "drive"
    PATCH = "patch"
    INTERRUPT = "interrupt"
    ARCHIVE = "archive"
    DELETE = "delete"
    SHARE = "share"
    SEE_SHARES = "see_shares"
    MARK = "mark"  # the caller's own pin and read cursor
    LEAVE = "leave"  # remove the caller's own entry from the list of readers

    CREATE = "create"
    LIST = "list"
    LIST_ALL = "list_all"
    UPDATE = "update"
    ADMINISTER = "administer"


class Relation(StrEnum):
    """The relation of an actor to a chat."""

    OWNER = "owner"
    READER = "reader"
    ADMIN = "admin"
    AUDITOR = "auditor"
    STRANGER = "stranger"
    SYSTEM = "system"


class Verdict(StrEnum):
    ALLOWED = "allowed"
    NOT_FOUND = "not_found"
    FORBIDDEN = "forbidden"
    OWNER_ONLY = "owner_only"
    NEEDS_REASON = "needs_reason"  # an administrator may do this if a reason is given


class ChatFacts(msgspec.Struct, frozen=True):
    """The facts about a chat that rights depend on. `is_shared`: sharing is enabled, and the actor is a reader."""

    owner_id: UUID
    is_shared: bool
    admin_access: AdminAccess = AdminAccess.BREAK_GLASS


# Rights on chats by relation. The setting `admin_access` may add READ and INSPECT for administrators. A subagent's chat
# has the rights of its root.
CHAT_RIGHTS: Mapping[Action, frozenset[Relation]] = {
    Action.READ: frozenset({Relation.OWNER, Relation.READER}),
    Action.INSPECT: frozenset({Relation.OWNER}),
    Action.DRIVE: frozenset({Relation.OWNER}),
    Action.PATCH: frozenset({Relation.OWNER}),
    Action.INTERRUPT: frozenset({Relation.OWNER, Relation.ADMIN}),
    Action.ARCHIVE: frozenset({Relation.OWNER, Relation.ADMIN}),
    Action.DELETE: frozenset({Relation.OWNER, Relation.ADMIN}),
    Action.SHARE: frozenset({Relation.OWNER}),
    Action.SEE_SHARES: frozenset({Relation.OWNER}),
    Action.MARK: frozenset({Relation.OWNER, Relation.READER}),
    Action.LEAVE: frozenset({Relation.READER}),
}
# Actions of the owner only. Their refusal is `OWNER_ONLY`.
_OWNER_ACTIONS = frozenset({Action.INSPECT, Action.DRIVE, Action.PATCH, Action.SHARE, Action.SEE_SHARES})


class RoleRule(msgspec.Struct, frozen=True):
    """A rule for resources other than chats: the roles that have the right and, with `own`, the resource's owner."""

    roles: frozenset[Role] = frozenset()
    own: bool = False


_ALL_ROLES = RoleRule(frozenset(Role))
_ADMINS = RoleRule(frozenset({Role.ADMIN}))
_STAFF = RoleRule(frozenset({Role.ADMIN, Role.AUDITOR}))
_OWN = RoleRule(own=True)
_OWN_OR_ADMIN = RoleRule(frozenset({Role.ADMIN}), own=True)
_OWN_OR_STAFF = RoleRule(frozenset({Role.ADMIN, Role.AUDITOR}), own=True)

RULES: Mapping[tuple[Resource, Action], RoleRule] = {
    (Resource.CHAT, Action.CREATE): _ALL_ROLES,
    (Resource.CHAT, Action.LIST): _OWN,
    (Resource.CHAT, Action.LIST_ALL): _STAFF,
    (Resource.FOLDER, Action.LIST): _OWN,
    (Resource.FOLDER, Action.UPDATE): _OWN,
    (Resource.SAVED_PROMPT, Action.LIST): _OWN,
    (Resource.SAVED_PROMPT, Action.UPDATE): _OWN,
    (Resource.FILE, Action.CREATE): _ALL_ROLES,
    (Resource.FILE, Action.DELETE): _OWN,
    (Resource.USER, Action.READ): _OWN_OR_STAFF,
    (Resource.USER, Action.LIST): _ALL_ROLES,  # the directory: active users, by name
    (Resource.USER, Action.LIST_ALL): _STAFF,
    (Resource.USER, Action.CREATE): _ADMINS,
    (Resource.USER, Action.UPDATE): _OWN_OR_ADMIN,
    (Resource.USER, Action.ADMINISTER): _ADMINS,
    (Resource.SESSION, Action.READ): _OWN,
    (Resource.SESSION, Action.DELETE): _OWN,
    (Resource.TOKEN, Action.READ): _OWN_OR_ADMIN,
    (Resource.TOKEN, Action.CREATE): _OWN,
    (Resource.TOKEN, Action.DELETE): _OWN_OR_ADMIN,
    (Resource.PREFERENCES, Action.READ): _OWN,
    (Resource.PREFERENCES, Action.UPDATE): _OWN,
    (Resource.PROVIDER_KEY, Action.READ): _OWN,
    (Resource.PROVIDER_KEY, Action.UPDATE): _OWN,
    (Resource.PROVIDER, Action.READ): _STAFF,
    (Resource.PROVIDER, Action.ADMINISTER): _ADMINS,
    (Resource.MODEL, Action.LIST): _ALL_ROLES,  # enabled models only
    (Resource.MODEL, Action.READ): _STAFF,
    (Resource.MODEL, Action.ADMINISTER): _ADMINS,
    (Resource.SETTINGS, Action.LIST): _ALL_ROLES,  # public keys only; the store knows which keys are public
    (Resource.SETTINGS, Action.READ): _STAFF,
    (Resource.SETTINGS, Action.ADMINISTER): _ADMINS,
    (Resource.USAGE, Action.READ): _OWN_OR_STAFF,
    (Resource.USAGE, Action.LIST_ALL): _STAFF,
    (Resource.AUDIT, Action.READ): _STAFF,
    (Resource.REPLICA, Action.READ): _STAFF,
    (Resource.TEMPLATE, Action.LIST): _ALL_ROLES,  # templates that the user may use
    (Resource.TEMPLATE, Action.READ): _STAFF,
    (Resource.TEMPLATE, Action.ADMINISTER): _ADMINS,
    (Resource.WORKSPACE, Action.LIST): _OWN_OR_STAFF,
    (Resource.WORKSPACE, Action.LIST_ALL): _STAFF,
    (Resource.WORKSPACE, Action.READ): _OWN_OR_STAFF,
    (Resource.WORKSPACE, Action.CREATE): _ALL_ROLES,
    (Resource.WORKSPACE, Action.UPDATE): _OWN,  # start or rename
    (Resource.WORKSPACE, Action.INTERRUPT): _OWN_OR_ADMIN,  # stop
    (Resource.WORKSPACE, Action.DELETE): _OWN_OR_ADMIN,
    (Resource.OPERATION, Action.READ): _OWN_OR_ADMIN,
    (Resource.MCP_SERVER, Action.LIST): _ALL_ROLES,  # servers that the user may use
    (Resource.MCP_SERVER, Action.READ): _STAFF,
    (Resource.MCP_SERVER, Action.UPDATE): _OWN,  # servers of the user's own
    (Resource.MCP_SERVER, Action.ADMINISTER): _ADMINS,
    (Resource.MCP_LOGIN, Action.READ): _OWN,
    (Resource.MCP_LOGIN, Action.UPDATE): _OWN,
}

_READS_CHATS = frozenset({Scope.ALL, Scope.CHAT_READ, Scope.CHAT_WRITE})
_WRITES_CHATS = frozenset({Scope.ALL, Scope.CHAT_WRITE})
_READS_USAGE = frozenset({Scope.ALL, Scope.USAGE_READ})
_ADMINISTERS = frozenset({Scope.ALL, Scope.ADMIN})
_CHAT_READS = frozenset({Action.READ, Action.INSPECT, Action.SEE_SHARES, Action.LIST, Action.LIST_ALL})
_CHAT_RESOURCES = frozenset(
    {
        Resource.CHAT,
        Resource.MESSAGE,
        Resource.QUEUE,
        Resource.SHARE,
        Resource.FOLDER,
        Resource.SAVED_PROMPT,
        Resource.FILE,
        Resource.WORKSPACE,
        Resource.OPERATION,
    }
)

# All users list these to choose from them for a chat.
_LISTED = frozenset({Resource.MODEL, Resource.SETTINGS, Resource.TEMPLATE, Resource.MCP_SERVER})

GRANTS: Mapping[SystemName, frozenset[tuple[Resource, Action]]] = {
    SystemName.WORKER: frozenset(
        {(Resource.CHAT, Action.READ), (Resource.MESSAGE, Action.READ), (Resource.FILE, Action.READ)}
    ),
    SystemName.JOBS: frozenset(
        {(Resource.CHAT, Action.READ), (Resource.CHAT, Action.ARCHIVE), (Resource.CHAT, Action.DELETE)}
    ),
    SystemName.STREAM_SYNC: frozenset(
        {(Resource.CHAT, Action.READ), (Resource.MESSAGE, Action.READ), (Resource.QUEUE, Action.READ)}
    ),
    SystemName.REPLICA: frozenset({(Resource.REPLICA, Action.READ)}),
    SystemName.SETUP: frozenset({(Resource.USER, Action.CREATE)}),
    SystemName.CLI: frozenset(
        {
            (Resource.CHAT, Action.INTERRUPT),
            *(key for key in RULES if key[0] in (Resource.USER, Resource.TOKEN, Resource.PROVIDER, Resource.MODEL)),
            *(key for key in RULES if key[0] in (Resource.SETTINGS, Resource.USAGE, Resource.AUDIT, Resource.REPLICA)),
            *(key for key in RULES if key[0] is Resource.TEMPLATE),
            (Resource.MCP_SERVER, Action.READ),
            (Resource.MCP_SERVER, Action.ADMINISTER),
        }
    ),
}


def scopes_for(resource: Resource, action: Action) -> frozenset[Scope]:
    """Return the scopes that allow the action. A token needs one of them."""
    if resource in _CHAT_RESOURCES:
        return _READS_CHATS if action in _CHAT_READS else _WRITES_CHATS
    if resource is Resource.COST:
        return _READS_CHATS | _READS_USAGE
    if resource is Resource.USAGE or (resource, action) == (Resource.AUDIT, Action.READ):
        return _READS_USAGE
    if action is Action.LIST and resource in _LISTED:
        return _READS_CHATS | _ADMINISTERS
    if (resource, action) == (Resource.USER, Action.LIST):
        return _WRITES_CHATS | _ADMINISTERS  # users are listed to share chats and to administer users
    if (resource, action) in ((Resource.USER, Action.READ), (Resource.USER, Action.UPDATE)):
        return _ADMINISTERS
    return EVERYTHING if RULES[resource, action].own else _ADMINISTERS


def has_scope(actor: Actor, resource: Resource, action: Action) -> bool:
    return not isinstance(actor, UserActor) or not actor.scopes.isdisjoint(scopes_for(resource, action))


def is_granted(actor: SystemActor, resource: Resource, action: Action) -> bool:
    return (resource, action) in GRANTS[actor.name]


def role_of(actor: Actor) -> Role:
    return actor.role if isinstance(actor, UserActor) else Role.MEMBER


def relation(actor: UserActor | OwnerActor, facts: ChatFacts) -> Relation:
    """Return the actor's relation to the chat: the first of owner, admin, reader, auditor that applies."""
    if actor.id == facts.owner_id:
        return Relation.OWNER
    role = role_of(actor)
    if role is Role.ADMIN:
        return Relation.ADMIN
    if facts.is_shared:
        return Relation.READER
    return Relation.AUDITOR if role is Role.AUDITOR else Relation.STRANGER


def judge_chat(actor: UserActor | OwnerActor, action: Action, *, facts: ChatFacts, has_reason: bool = False) -> Verdict:
    """Decide whether the actor may do this to the chat. `has_reason`: the request gives a reason (break-glass).

    Besides ALLOWED, the verdicts are:

    - NOT_FOUND: the actor may not read the chat, and must not learn that it exists.
    - NEEDS_REASON: an administrator may read or inspect the chat only with a reason, and gave none.
    - OWNER_ONLY: the actor may read the chat, but only its owner may drive, change or share it.
    - FORBIDDEN: the actor may read the chat, but may not do this.

    An administrator who may read the chat with a reason gets OWNER_ONLY and FORBIDDEN without one.
    """
    related = relation(actor, facts)
    held: set[Relation] = {related}
    if facts.is_shared and related is not Relation.OWNER:
        held.add(Relation.READER)
    if not held.isdisjoint(CHAT_RIGHTS[action]):
        return Verdict.ALLOWED
    reads = _reads(held, facts.admin_access, has_reason=has_reason)
    if action is Action.INSPECT:
        # Administrators inspect a chat as they read it. A share does not include it.
        inspects = _reads(held - {Relation.READER}, facts.admin_access, has_reason=has_reason)
        is_refused_reader = inspects is Verdict.NOT_FOUND and reads is Verdict.ALLOWED
        return Verdict.OWNER_ONLY if is_refused_reader else inspects
    if reads is not Verdict.ALLOWED:
        # A reason allows reading only. Other actions are refused, and no reason is asked for.
        could_read = reads is Verdict.NEEDS_REASON and action is not Action.READ
        return _refusal(action) if could_read else reads
    return Verdict.ALLOWED if action is Action.READ else _refusal(action)


def uses_break_glass(actor: UserActor | OwnerActor, action: Action, *, facts: ChatFacts) -> bool:
    """Return whether the action is allowed only with a reason."""
    is_plain = judge_chat(actor, action, facts=facts) is Verdict.ALLOWED
    return not is_plain and judge_chat(actor, action, facts=facts, has_reason=True) is Verdict.ALLOWED


def judge(actor: UserActor | OwnerActor, resource: Resource, action: Action, *, owner_id: UUID | None) -> Verdict:
    """Decide whether the actor may do this to a resource that is not a chat. `owner_id` is None if it has no owner."""
    rule, role = RULES[resource, action], role_of(actor)
    if role in rule.roles or (rule.own and owner_id == actor.id):
        return Verdict.ALLOWED
    # Actors who may read such resources get FORBIDDEN; the others get NOT_FOUND.
    reads = RULES.get((resource, Action.READ))
    is_seen = reads is not None and role in reads.roles
    return Verdict.NOT_FOUND if rule.own and not is_seen else Verdict.FORBIDDEN


def _reads(held: set[Relation], access: AdminAccess, *, has_reason: bool) -> Verdict:
    if not held.isdisjoint(CHAT_RIGHTS[Action.READ]):
        return Verdict.ALLOWED
    if Relation.ADMIN not in held or access is AdminAccess.NONE:
        return Verdict.NOT_FOUND
    if access is AdminAccess.FULL or has_reason:
        return Verdict.ALLOWED
    return Verdict.NEEDS_REASON


def _refusal(action: Action) -> Verdict:
    return Verdict.OWNER_ONLY if action in _OWNER_ACTIONS else Verdict.FORBIDDEN
