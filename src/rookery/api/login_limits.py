"""Requests of people who are not logged in yet, and the answer that logs them in."""

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

# A login, a link or the set-up needs a few hundred bytes. Strangers send no more.
MAX_BODY_BYTES = 16 * 1024

B = TypeVar("B", bound=Body)


class LoginView(User, frozen=True):
    """The user who is logged in now. Requests of the session send the cookie of this answer and the `session_key`."""

    session_key: str


async def read(request: Request, model: type[B], parts: ApiServices) -> B:
    """The body, checked. Nothing is hidden from somebody without an account but what accounts there are."""
    return request_bodies.parse(model, await read_bytes(request, parts))


async def read_bytes(request: Request, parts: ApiServices) -> bytes:
    request_bodies.require_json(request)
    return await request_bodies.read(request, limit=min(parts.max_body, MAX_BODY_BYTES), seconds=parts.read_seconds)


def info(request: Request) -> RequestInfo:
    """Where the request came from, as the edge found it."""
    found = request.scope["rookery.info"]
    assert isinstance(found, RequestInfo)
    return found


def welcome(request: Request, parts: ApiServices, user: User, *, session: NewSession, status: int = 200) -> Response:
    """The user with the session key, and the cookie that belongs to it."""
    cookie = cookies.keep(session.session, session.cookie, secure=is_secure(request, parts))
    view = LoginView(**msgspec.structs.asdict(user), session_key=session.key)
    return answer(view, status, Set_Cookie=cookie)
