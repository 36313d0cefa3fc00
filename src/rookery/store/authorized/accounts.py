"""Users, their sessions and their API tokens on behalf of an actor."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource, Role, Scope, UserActor
from rookery.domain.chat.errors import ChatBusy, InvalidInput
from rookery.store import machine
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authz
from rookery.store.people import admin_accesses, audit, disabled_users, logins, one_time_links, sessions, tokens, users
from rookery.store.people.admin_accesses import AccessNotice, AccessPage
from rookery.store.people.audit import Event
from rookery.store.people.errors import Forbidden, InUse
from rookery.store.people.one_time_links import LinkKind, NewLink
from rookery.store.people.sessions import Session
from rookery.store.people.tokens import NewToken, Token
from rookery.store.people.users import PublicUser, Status, User, UserDraft, UserPage, UserPatch

ROOTS = "SELECT id FROM chats WHERE owner_id = $1 AND parent_chat_id IS NULL ORDER BY created_at, id"


class Invited(msgspec.Struct, frozen=True):
    """A new account. `link` is the one-time link to choose a password; None if a password was given."""

    user: User
    link: NewLink | None


class Users(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.USER, Action.READ, via=Via.USER)
    async def get(self, at: Grant, user_id: UUID) -> User:
        return await users.get_user(at.conn, user_id)

    @authz(Resource.USER, Action.LIST_ALL)
    async def list_all(
        self,
        at: Grant,
        *,
        q: str | None = None,
        role: Role | None = None,
        status: Status | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> UserPage:
        return await users.list_users(at.conn, q=q, role=role, status=status, limit=limit, cursor=cursor)

    @authz(Resource.USER, Action.LIST)
    async def search_directory(self, at: Grant, q: str) -> list[PublicUser]:
        """Return active users by name, to share chats with them."""
        return await users.search_directory(at.conn, q)

    @authz(Resource.USER, Action.CREATE)
    async def require_create(self, at: Grant) -> None:
        """Check only the right. A caller without it is then refused before the request is validated."""

    @authz(Resource.USER, Action.UPDATE, via=Via.USER)
    async def require_update(self, at: Grant, user_id: UUID) -> None:
        """Check only the right, and that the account exists."""
        await users.get_user(at.conn, user_id)

    @authz(Resource.USER, Action.CREATE, how=How.WRITE)
    async def create(self, at: Grant, draft: UserDraft, *, password_hash: str | None = None) -> Invited:
        """Create an account. The caller has checked and hashed the password. Without one, a link is created."""
        await at.require_credential()
        user = await users.create_user(at.conn, draft, password_hash=password_hash)
        await at.log(_event("user.create", user.id, diff=audit.diff("users", None, user)))
        if password_hash is not None:
            return Invited(user, None)
        return Invited(
            user, await one_time_links.create_link(at.conn, user.id, kind=LinkKind.INVITE, now=at.now, by=at.by)
        )

    @authz(Resource.USER, Action.UPDATE, via=Via.USER, how=How.BUNDLE)
    async def update(self, at: Grant, user_id: UUID, patch: UserPatch) -> User:
        """Change an account. A new role or status ends its sessions. Disabling it stops its chats and workspaces."""
        if patch.is_administrative and not at.is_admin:
            raise Forbidden("Only an administrator may change the role, status or spend limit.")
        await at.require_credential()
        change = await users.update_user(at.conn, user_id, patch=patch)
        if diff := audit.diff("users", change.before, change.after):
            await at.log(_event("user.update", user_id, diff=diff))
        if change.changes_access:
            await sessions.end_sessions(at.conn, user_id)
            at.tell_access("user", user_id)
        if change.before.is_active and not change.after.is_active:
            await disabled_users.stop_chats(at.bundle, user_id)
            at.tell(*await disabled_users.stop_workspaces(at.conn, user_id))
        return change.after

    @authz(Resource.USER, Action.ADMINISTER, how=How.WRITE)
    async def reset_password(self, at: Grant, user_id: UUID) -> NewLink:
        """Return a link to choose a new password. All sessions and API tokens of the user end immediately.

        The old password stays valid until the link is used.
        """
        await users.get_user(at.conn, user_id)
        link = await one_time_links.create_link(at.conn, user_id, kind=LinkKind.RESET, now=at.now, by=at.by)
        ended = await logins.end_credentials(at.conn, user_id)
        await at.log(
            Event(
                action=audit.RESET_PASSWORD,
                resource_type=Resource.USER,
                resource_id=str(user_id),
                extra=logins.counts(ended),
                subject_id=user_id,
            )
        )
        at.tell_access("user", user_id)
        return link

    @authz(Resource.USER, Action.ADMINISTER, how=How.BUNDLE)
    async def delete(self, at: Grant, user_id: UUID) -> None:
        """Delete a disabled account with its chats, files and tokens."""
        user = await users.get_user(at.conn, user_id)
        if not user.is_active:
            await _delete_chats(at, user_id)
        await users.delete_user(at.conn, user_id)
        await at.log(_event("user.delete", user_id, diff=audit.diff("users", user, None)))
        at.tell_access("user", user_id)


class Accesses(AuthorizedMethods):
    """Accesses of administrators to the account of the caller. Only the user can read them."""

    __slots__ = ()

    @authz(Resource.SESSION, Action.READ, via=Via.USER)
    async def list(self, at: Grant, user_id: UUID, *, limit: int = 50, cursor: str | None = None) -> AccessPage:
        """List the times when administrators read a chat by break-glass or reset the password, newest first."""
        return await admin_accesses.list_accesses(at.conn, user_id, limit=limit, cursor=cursor)

    @authz(Resource.SESSION, Action.READ, via=Via.USER)
    async def find_notice(self, at: Grant, user_id: UUID) -> AccessNotice | None:
        """Return the accesses that the user has not dismissed."""
        return await admin_accesses.find_notice(at.conn, user_id, credential_id=at.credential_id)

    @authz(Resource.SESSION, Action.DELETE, via=Via.USER, how=How.WRITE)
    async def dismiss_notice(self, at: Grant, user_id: UUID, *, through: int) -> None:
        """Dismiss the notice. Only the user can do this, so that an administrator cannot hide an access."""
        await admin_accesses.dismiss(at.conn, user_id, through=through, credential_id=at.credential_id, now=at.now)


class Sessions(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.SESSION, Action.READ, via=Via.USER)
    async def list(self, at: Grant, user_id: UUID) -> list[Session]:
        return await sessions.list_sessions(at.conn, user_id, now=at.now)

    @authz(Resource.SESSION, Action.DELETE, via=Via.USER)
    async def require_end(self, at: Grant, user_id: UUID) -> None:
        """Check only the right, for `Logins.change_password`, which ends sessions."""

    @authz(Resource.SESSION, Action.DELETE, via=Via.USER, how=How.WRITE)
    async def end(self, at: Grant, user_id: UUID, session_id: UUID) -> None:
        await sessions.end_session(at.conn, user_id, session_id=session_id)
        at.tell_access("session", session_id)

    @authz(Resource.SESSION, Action.DELETE, via=Via.USER, how=How.WRITE)
    async def end_others(self, at: Grant, user_id: UUID, *, but: UUID | None = None) -> int:
        """End all sessions of the user except one. Returns their number."""
        ended = await sessions.end_sessions(at.conn, user_id, but=but)
        at.tell_access("session", *ended)
        return len(ended)


class Tokens(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.TOKEN, Action.READ, via=Via.USER)
    async def list(self, at: Grant, user_id: UUID) -> list[Token]:
        if user_id != at.by:
            await users.get_user(at.conn, user_id)
        return await tokens.list_tokens(at.conn, user_id)

    @authz(Resource.TOKEN, Action.CREATE, via=Via.USER)
    async def require_create(self, at: Grant, user_id: UUID) -> None:
        """Check only the right."""

    @authz(Resource.TOKEN, Action.CREATE, via=Via.USER, how=How.WRITE)
    async def create(
        self,
        at: Grant,
        user_id: UUID,
        *,
        name: str,
        scopes: Collection[Scope],
        days: int = tokens.DEFAULT_DAYS,
        max_days: int = tokens.MAX_DAYS,
    ) -> NewToken:
        role = at.actor.role if isinstance(at.actor, UserActor) else None
        if Scope.ADMIN in scopes and role not in (Role.ADMIN, None):
            raise InvalidInput("scopes", "Only an administrator's token can have the scope admin.")
        await users.lock_user(at.conn, user_id)
        await at.require_credential()
        made = await tokens.create_token(
            at.conn, user_id, name=name, scopes=scopes, now=at.now, days=days, max_days=max_days
        )
        await at.log(
            Event(
                action="token.create",
                resource_type=Resource.TOKEN,
                resource_id=str(made.token.id),
                extra={"name": name, "scopes": sorted(scopes), "user_id": str(user_id)},
            )
        )
        return made

    @authz(Resource.TOKEN, Action.DELETE, via=Via.TOKEN, how=How.WRITE)
    async def delete(self, at: Grant, token_id: UUID) -> None:
        token = await tokens.delete_token(at.conn, token_id)
        await at.log(
            Event(
                action="token.delete",
                resource_type=Resource.TOKEN,
                resource_id=str(token_id),
                extra={"name": token.name, "user_id": str(token.user_id)},
            )
        )
        at.tell_access("token", token_id)


async def _delete_chats(at: Grant, user_id: UUID) -> None:
    try:
        for record in await at.conn.fetch(ROOTS, user_id):
            await machine.delete_family(at.bundle, record["id"])
    except ChatBusy:
        # The chats were interrupted when the account was disabled. The worker may not have stopped yet.
        raise InUse("A chat of this user is still being stopped. Try again in a moment.") from None


def _event(action: str, user_id: UUID, *, diff: dict[str, object] | None = None) -> Event:
    return Event(action=action, resource_type=Resource.USER, resource_id=str(user_id), diff=diff or {})
