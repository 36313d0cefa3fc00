"""The first run: shows whether the server has an administrator, and creates the first one."""

from __future__ import annotations

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from rookery.api import account_requests, request_bodies
from rookery.api.account_requests import Email, LoginView, Name, NewPassword, Username
from rookery.api.errors import ApiError
from rookery.api.request_bodies import Body
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.store.people import first_admin
from rookery.store.people.users import UserDraft


class SetupStatus(msgspec.Struct, frozen=True):
    needed: bool


class SetupBody(Body):
    """The first administrator.

    `token` is the part after the # of the address that the server printed at its first start.
    """

    token: str = Field(max_length=512)
    email: Email
    username: Username | None = None
    name: Name = ""
    password: NewPassword


class _Token(msgspec.Struct):
    token: str


def router(services: ApiServices) -> Routes:
    routes = Routes("setup")
    is_done = False

    @routes.get("/setup", "setup.get", returns=SetupStatus, is_public=True)
    async def status() -> Response:
        """Return whether the server still needs its first administrator.

        Until it has one, all other requests are refused.
        """
        nonlocal is_done
        if not is_done:
            async with services.pool.acquire() as conn:
                is_done = not await first_admin.is_setup_needed(conn)
        return answer(SetupStatus(not is_done))

    @routes.post(
        "/setup", "setup.complete", returns=LoginView, status=201, body=SetupBody, errors=(403, 410), is_public=True
    )
    async def complete(request: Request) -> Response:
        """Create the first administrator and log them in. Works only once."""
        data = await account_requests.read_raw_body(request, services)
        try:
            body = request_bodies.parse(SetupBody, data)
        except ApiError:
            await _require_token(data)
            raise
        done = await first_admin.complete(
            services.pool,
            services.passwords,
            token=body.token,
            draft=UserDraft(email=body.email, username=body.username, name=body.name),
            password=body.password,
            clock=services.clock,
            request=account_requests.request_info(request),
        )
        # The next start would remove the file as well, but a used secret should not stay on disk until then.
        first_admin.forget_file(services.data_dir)
        return account_requests.login_response(request, services, done.user, session=done.session, status=201)

    async def _require_token(data: bytes) -> None:
        """Check the token before errors in other fields are reported.

        A caller without the token learns nothing else.
        """
        try:
            token = msgspec.json.decode(data, type=_Token).token
        except (msgspec.MsgspecError, UnicodeDecodeError):
            token = None
        async with services.pool.acquire() as conn:
            await first_admin.require(conn, token)

    return routes
