"""Accounts: the caller's own, all of them for administrators, and the directory for sharing."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from rookery.api import headers
from rookery.api.account_requests import Email, Name, NewPassword, Username
from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import PREFIX, Items, Page, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.access import rights
from rookery.domain.access.rights import Action, Resource, Role, UserActor, Verdict
from rookery.store.people.admin_accesses import AccessNotice, AccessPage
from rookery.store.people.audit import MAX_ID
from rookery.store.people.audit import MAX_LIMIT as AUDIT_LIMIT
from rookery.store.people.one_time_links import NewLink
from rookery.store.people.users import MAX_LIMIT, PublicUser, Status, User, UserDraft, UserPatch

# The page of the web application that sets a password. Only the browser sees the secret after the #.
LINK_PAGE = "/link#"


def _absent() -> Any:
    """The default of the fields of a PATCH. The value of a field that was not sent is never read."""
    return None


class NewUserBody(Body):
    """A new user. Without a password, a one-time link is created with which the user sets one."""

    email: Email
    username: Username | None = None
    name: Name = ""
    role: Role = Role.MEMBER
    password: NewPassword | None = None


class UserPatchBody(Body):
    """Changes of a user.

    Absent fields keep their values. Only administrators can change role, status and spend limit.
    """

    name: Name | None = None
    email: Email = Field(default_factory=_absent)
    username: Username = Field(default_factory=_absent)
    role: Role = Field(default_factory=_absent)
    status: Status = Field(default_factory=_absent)
    spend_limit_micros: Annotated[int, Field(gt=0, lt=2**53)] | None = None


class OneTimeLink(msgspec.Struct, frozen=True):
    """A link with which a user sets a password, once. `url` has the token after its #."""

    url: str
    token: str
    expires_at: datetime


class NewUser(User, frozen=True):
    """A new user. `link` is null if a password was given."""

    link: OneTimeLink | None


class Warning(StrEnum):
    """Warnings to administrators. `in_the_clear`: other machines reach the server without https."""

    IN_THE_CLEAR = "in_the_clear"


class Me(User, frozen=True):
    """The caller's account. `permissions` are the rights of this session or token beyond the caller's own data.

    Each permission has the form `resource:action`. `access_notice` counts the accesses of administrators to the
    caller's account and chats since the last notice was dismissed; it is always null for tokens without the scope
    `all`. `warnings` concern the server, and only administrators get them.
    """

    permissions: tuple[str, ...]
    access_notice: AccessNotice | None
    warnings: tuple[Warning, ...]


class SeenBody(Body):
    """The dismissed notice. `through` is its value. Accesses after it are shown in the next notice."""

    through: Annotated[int, Field(ge=1, le=MAX_ID)]


def router(services: ApiServices) -> Routes:
    routes = Routes("users")

    @routes.get("/users/me", "users.me", returns=Me)
    async def me(caller: Caller) -> Response:
        """Return the caller. Tokens with any scope may do this."""
        notice = None
        if rights.has_scope(caller.actor, Resource.SESSION, Action.READ):
            notice = await caller.store.accesses.find_notice(caller.user.id)
        me = msgspec.structs.asdict(caller.user)
        warnings = (Warning.IN_THE_CLEAR,) if services.is_in_the_clear and caller.actor.role is Role.ADMIN else ()
        return answer(Me(**me, permissions=permissions_of(caller.actor), access_notice=notice, warnings=warnings))

    @routes.get("/me/accesses", "users.accesses", returns=AccessPage)
    async def list_accesses(
        caller: Caller,
        limit: Annotated[int, Field(ge=1, le=AUDIT_LIMIT)] = 50,
        cursor: Annotated[str | None, Field(max_length=200)] = None,
    ) -> Response:
        """List the times when administrators read your chats by break-glass, or reset your password; newest first."""
        return answer(await caller.store.accesses.list(caller.user.id, limit=limit, cursor=cursor))

    @routes.post("/me/accesses/seen", "users.dismiss_access_notice", body=SeenBody)
    async def dismiss_access_notice(caller: Caller) -> Response:
        """Dismiss the notice about accesses. The list of accesses is kept.

        For 30 days after a password reset, the notice is dismissed only for this session or API token, because the
        reset link may have been used by another person. Later, it is dismissed for all of your logins.
        """
        store = caller.store
        body = await caller.read(SeenBody, may=lambda: store.sessions.require_end(caller.user.id))
        await store.accesses.dismiss_notice(caller.user.id, through=body.through)
        return nothing()

    @routes.get("/users/directory", "users.directory", returns=Items[PublicUser])
    async def directory(
        caller: Caller,
        q: Annotated[str, Field(description="Part of a name, at least two characters, or a whole email address.")],
    ) -> Response:
        """Search active users by name, to share chats with them; at most 20."""
        return answer(Items(tuple(await caller.store.users.search_directory(q))))

    @routes.get("/users", "users.list", returns=Page[User])
    async def list_users(
        caller: Caller,
        q: Annotated[str | None, Field(description="Part of the username, name or email.")] = None,
        role: Role | None = None,
        status: Status | None = None,
        limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50,
        cursor: str | None = None,
    ) -> Response:
        """List all accounts by username."""
        page = await caller.store.users.list_all(q=q, role=role, status=status, limit=limit, cursor=cursor)
        return answer(Page(page.users, page.next_cursor))

    @routes.post(
        "/users",
        "users.create",
        returns=NewUser,
        status=201,
        body=NewUserBody,
        errors=(409,),
        gives=[headers.LOCATION],
    )
    async def create(caller: Caller, request: Request) -> Response:
        """Create an account."""
        store = caller.store
        body = await caller.read(NewUserBody, may=store.users.require_create)
        hashed = None
        if body.password is not None:
            await store.users.require_create()  # checked before hashing the password, which is expensive
            hashed = await services.passwords.hash(body.password)
        draft = UserDraft(email=body.email, username=body.username, name=body.name, role=body.role)
        made = await store.users.create(draft, password_hash=hashed)
        link = None if made.link is None else _link(request, made.link)
        shown = NewUser(**msgspec.structs.asdict(made.user), link=link)
        return answer(shown, 201, Location=f"{PREFIX}/users/{made.user.id}")

    @routes.get("/users/{user}", "users.get", returns=User, errors=(404,))
    async def get(user: UUID, caller: Caller) -> Response:
        """Return one account."""
        return answer(await caller.store.users.get(user))

    @routes.patch("/users/{user}", "users.update", returns=User, body=UserPatchBody, errors=(404, 409))
    async def update(user: UUID, caller: Caller) -> Response:
        """Change an account. A new role or status ends its sessions; disabling it stops its chats and workspaces."""
        store = caller.store
        body = await caller.read(UserPatchBody, may=lambda: store.users.require_update(user))
        given = {name: getattr(body, name) for name in body.given}
        if "name" in given:
            given["name"] = given["name"] or ""
        return answer(await store.users.update(user, UserPatch(**given)))

    @routes.post("/users/{user}/reset-password", "users.reset_password", returns=OneTimeLink, errors=(404,))
    async def reset_password(user: UUID, caller: Caller, request: Request) -> Response:
        """Create a link with which the user sets a new password. Their sessions and API tokens end immediately.

        The user is notified: in the list of accesses, and at the next login.
        """
        return answer(_link(request, await caller.store.users.reset_password(user)))

    @routes.delete("/users/{user}", "users.delete", errors=(404, 409))
    async def delete(user: UUID, caller: Caller) -> Response:
        """Delete a disabled account with its chats, files and tokens."""
        await caller.store.users.delete(user)
        return nothing()

    def _link(request: Request, link: NewLink) -> OneTimeLink:
        base = services.origins.external_url or f"{request.url.scheme}://{request.url.netloc}"
        return OneTimeLink(f"{base.rstrip('/')}{LINK_PAGE}{link.secret}", link.secret, link.expires_at)

    return routes


def permissions_of(actor: UserActor) -> tuple[str, ...]:
    """Return the rights of the role beyond the user's own data, limited to the token's scopes."""
    return tuple(
        f"{resource}:{action}"
        for resource, action in rights.RULES
        if rights.has_scope(actor, resource, action)
        and rights.judge(actor, resource, action, owner_id=None) is Verdict.ALLOWED
    )
