"""Requests about accounts: validated fields, the bodies of requests before login, and the login response."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from pydantic import AfterValidator, Field, ValidationInfo
from starlette.requests import Request
from starlette.responses import Response

from rookery.api import cookies, request_bodies
from rookery.api.middleware import is_secure
from rookery.api.request_bodies import Body, faults, rule
from rookery.api.routes import answer
from rookery.api.services import ApiServices
from rookery.domain.chat.errors import InvalidInput
from rookery.store.people import passwords, users
from rookery.store.people.audit import RequestInfo
from rookery.store.people.sessions import NewSession
from rookery.store.people.users import User

# A login, an invitation or the set-up needs a few hundred bytes. Unauthenticated requests may not send more.
MAX_BODY_BYTES = 16 * 1024
# Longer than any accepted password, and short enough that hashing it does not keep the server busy.
MAX_TYPED_CHARS = 1024

B = TypeVar("B", bound=Body)


def _check_password(password: str, others: ValidationInfo) -> str:
    """Check the password against the user's names, which are fields declared before it in the same body."""
    names = [others.data[name] for name in ("email", "username") if others.data.get(name)]
    try:
        passwords.check(password, names=names)
    except InvalidInput as error:
        raise faults((error.field, str(error))) from None
    return password


Email = Annotated[str, AfterValidator(str.strip), rule(users.check_email)]
Username = Annotated[str, rule(users.check_username)]
Name = Annotated[str, rule(users.check_name)]
NewPassword = Annotated[str, Field(max_length=MAX_TYPED_CHARS), AfterValidator(_check_password)]
# A password that is compared, not chosen. It is not checked by the password rules, so that errors reveal nothing about
# earlier rules.
TypedPassword = Annotated[str, Field(max_length=MAX_TYPED_CHARS)]


class LoginView(User, frozen=True):
    """The logged-in user. Later requests send the cookie of this response and the `session_key`."""

    session_key: str


async def read_body(request: Request, model: type[B], services: ApiServices) -> B:
    """Return the validated body. Validation errors reveal nothing about accounts, so they are reported before login."""
    return request_bodies.parse(model, await read_raw_body(request, services))


async def read_raw_body(request: Request, services: ApiServices) -> bytes:
    request_bodies.require_json(request)
    return await request_bodies.read(
        request, limit=min(services.max_body, MAX_BODY_BYTES), seconds=services.read_seconds
    )


def request_info(request: Request) -> RequestInfo:
    """Return the client address, the user agent and the request id, as the middleware has set them."""
    found = request.scope["rookery.info"]
    assert isinstance(found, RequestInfo)
    return found


def login_response(
    request: Request, services: ApiServices, user: User, *, session: NewSession, status: int = 200
) -> Response:
    """Return the response to a login: the user, the session key and the session cookie."""
    cookie = cookies.set_header(session.session, session.cookie, secure=is_secure(request, services))
    view = LoginView(**msgspec.structs.asdict(user), session_key=session.key)
    return answer(view, status, Set_Cookie=cookie)
