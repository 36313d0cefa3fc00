"""Login and logout, the caller's sessions and password, and one-time links."""

from __future__ import annotations

import contextlib
from datetime import datetime
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from rookery.api import account_requests, cookies
from rookery.api.account_requests import LoginView, NewPassword, TypedPassword
from rookery.api.caller import Caller
from rookery.api.errors import ApiError
from rookery.api.middleware import bearer, is_secure
from rookery.api.request_bodies import Body
from rookery.api.routes import Items, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.store.db.hints import AccessHint
from rookery.store.people import one_time_links
from rookery.store.people.errors import Forbidden, LinkInvalid, SessionNotFound
from rookery.store.people.logins import MAX_LOGIN_CHARS
from rookery.store.people.one_time_links import LinkKind
from rookery.store.people.sessions import Session


class LoginBody(Body):
    """The credentials of a login. `login` is an email address or a username.

    `stay_signed_in` keeps the cookie when the browser is closed (the default).
    """

    login: str = Field(max_length=MAX_LOGIN_CHARS)
    password: TypedPassword
    stay_signed_in: bool = True


class PasswordBody(Body):
    """A new password. With `revoke_tokens`, all API tokens are deleted, and programs that use them need new ones."""

    current_password: TypedPassword
    new_password: NewPassword
    revoke_tokens: bool


class LinkBody(Body):
    """The token of a one-time link: the part of the link after the #."""

    token: str = Field(max_length=512)
    password: NewPassword


class SessionView(msgspec.Struct, frozen=True):
    """A session. `current` is true for the session of this request."""

    id: UUID
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    ip: str | None
    user_agent: str | None
    current: bool


class LinkView(msgspec.Struct, frozen=True):
    """The user whose password a one-time link sets, and the time at which the link expires."""

    kind: LinkKind
    username: str
    name: str
    email: str | None
    expires_at: datetime


def router(services: ApiServices) -> Routes:
    routes = Routes("auth")

    @routes.post("/auth/login", "auth.login", returns=LoginView, body=LoginBody, errors=(401, 403, 409), is_public=True)
    async def log_in(request: Request) -> Response:
        """Open a session.

        Every failed login gets the same response. After five failures, each further attempt has to wait.
        """
        body = await account_requests.read_body(request, LoginBody, services)
        # Programs may send `Sec-Fetch-Mode`, as the fetch of Node.js does. Only browsers send `Sec-Fetch-Site`.
        is_page = request.headers.get("sec-fetch-site") == "same-origin"
        if is_page and "stay_signed_in" not in body.model_fields_set:
            # An old page would discard the session key and ask for the password repeatedly.
            raise ApiError(
                409,
                "page_outdated",
                "This page is older than the server. Reload it, then log in. Pages send `stay_signed_in`.",
            )
        done = await services.logins.log_in(
            body.login, body.password, stays=body.stay_signed_in, request=account_requests.request_info(request)
        )
        return account_requests.login_response(request, services, done.user, session=done.session)

    @routes.post("/auth/logout", "auth.logout")
    async def log_out(caller: Caller, request: Request) -> Response:
        """End this session and the streams that were opened with it."""
        if caller.session_id is None:
            raise Forbidden("An API token has no session to end. Delete the token instead.")
        with contextlib.suppress(SessionNotFound):  # already ended by another request
            await caller.store.sessions.end(caller.user.id, caller.session_id)
        return nothing(Set_Cookie=_no_cookie(request))

    @routes.get("/auth/sessions", "sessions.list", returns=Items[SessionView])
    async def list_sessions(caller: Caller) -> Response:
        """List your sessions, the most recently used first."""
        found = await caller.store.sessions.list(caller.user.id)
        return answer(Items(tuple(_view(each, caller.session_id) for each in found)))

    @routes.delete("/auth/sessions/{session}", "sessions.end", errors=(404,))
    async def end_session(session: UUID, caller: Caller, request: Request) -> Response:
        """End one of your sessions."""
        await caller.store.sessions.end(caller.user.id, session)
        return nothing(Set_Cookie=_no_cookie(request)) if session == caller.session_id else nothing()

    @routes.delete("/auth/sessions", "sessions.end_others")
    async def end_others(caller: Caller) -> Response:
        """End all of your sessions except the one of this request."""
        await caller.store.sessions.end_others(caller.user.id, but=caller.session_id)
        return nothing()

    @routes.post("/auth/password", "auth.change_password", body=PasswordBody)
    async def change_password(caller: Caller) -> Response:
        """Set a new password. All other sessions end, and on request all other API tokens."""
        store = caller.store
        body = await caller.read(PasswordBody, may=lambda: store.sessions.require_end(caller.user.id))
        await store.sessions.require_end(caller.user.id)
        ended = await services.logins.change_password(
            caller.user,
            current=body.current_password,
            new=body.new_password,
            revoke_tokens=body.revoke_tokens,
            keep=caller.credential_id,
            request=caller.info,
        )
        services.publisher.publish(
            [AccessHint(kind="session", id=str(each)) for each in ended.sessions]
            + [AccessHint(kind="token", id=str(each)) for each in ended.tokens]
        )
        return nothing()

    @routes.get("/auth/link", "links.get", returns=LinkView, errors=(401,), is_public=True)
    async def look_at_link(request: Request) -> Response:
        """Show whether a one-time link is still valid, and for which user.

        The link's token is sent like an API token, never in the URL.
        """
        secret = bearer(request)
        if secret is None:
            raise LinkInvalid
        async with services.pool.acquire() as conn:
            found = await one_time_links.find_link(conn, secret, now=services.clock.now())
        user = found.user
        return answer(LinkView(found.kind, user.username, user.name, user.email, found.expires_at))

    @routes.post("/auth/link", "links.use", returns=LoginView, body=LinkBody, errors=(401, 403), is_public=True)
    async def use_link(request: Request) -> Response:
        """Set a password with a one-time link and log in. All earlier sessions and API tokens end."""
        body = await account_requests.read_body(request, LinkBody, services)
        done = await services.logins.choose_password(
            body.token, body.password, request=account_requests.request_info(request)
        )
        services.publisher.publish([AccessHint(kind="user", id=str(done.user.id))])
        return account_requests.login_response(request, services, done.user, session=done.session)

    def _no_cookie(request: Request) -> str:
        return cookies.delete_header(secure=is_secure(request, services))

    return routes


def _view(session: Session, current: UUID | None) -> SessionView:
    return SessionView(
        session.id,
        session.created_at,
        session.last_seen_at,
        session.expires_at,
        session.ip,
        session.user_agent,
        session.id == current,
    )
