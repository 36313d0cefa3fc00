"""Requests of users who are not logged in yet, and the response that logs them in."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rookery.api import cookies, request_bodies
from rookery.api.middleware import is_secure
from rookery.api.request_bodies import Body
from rookery.api.routes import answer
from rookery.api.services import ApiServices
from rookery.store.people.audit import RequestInfo
from rookery.store.people.sessions import NewSession
from rookery.store.people.users import User

# A login, an invitation or the set-up needs a few hundred bytes. Unauthenticated requests may not send more.
MAX_BODY_BYTES = 16 * 1024

B = TypeVar("B", bound=Body)


class LoginView(User, frozen=True):
    """The logged-in user. Later requests send the cookie of this response and the `session_key`."""

    session_key: str


async def read(request: Request, model: type[B], parts: ApiServices) -> B:
    """Return the validated body. Validation errors reveal no accounts, so they need no login."""
    return request_bodies.parse(model, await read_bytes(request, parts))


async def read_bytes(request: Request, parts: ApiServices) -> bytes:
    request_bodies.require_json(request)
    return await request_bodies.read(request, limit=min(parts.max_body, MAX_BODY_BYTES), seconds=parts.read_seconds)


def info(request: Request) -> RequestInfo:
    """Return the origin of the request (address, user agent, request id), as the middleware found it."""
    found = request.scope["rookery.info"]
    assert isinstance(found, RequestInfo)
    return found


def welcome(request: Request, parts: ApiServices, user: User, *, session: NewSession, status: int = 200) -> Response:
    """Return the user and the session key, with the session cookie."""
    cookie = cookies.keep(session.session, session.cookie, secure=is_secure(request, parts))
    view = LoginView(**msgspec.structs.asdict(user), session_key=session.key)
    return answer(view, status, Set_Cookie=cookie)
