"""Who the caller is: the first account, logging in and out."""

from __future__ import annotations

from rookery.client.content import given
from rookery.client.http import Http
from rookery.client.models import Me, SetupStatus, User


class AsyncAccount:
    """`client.account`. A client without a token that logs in here keeps the session as a browser does."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def me(self) -> Me:
        return await self._http.read(Me, "/users/me")

    async def is_setup_needed(self) -> bool:
        """Whether the server has no account yet; until it has one it answers nothing else."""
        return (await self._http.read(SetupStatus, "/setup")).needed

    async def set_up(
        self, setup_token: str, *, email: str, password: str, username: str | None = None, name: str | None = None
    ) -> User:
        """Make the first account, an administrator, and log in as it. The token is printed at the first start."""
        body = given(token=setup_token, email=email, password=password)
        body |= {key: value for key, value in (("username", username), ("name", name)) if value is not None}
        return await self._http.write(User, "POST", "/setup", body=body)

    async def login(self, login: str, password: str) -> User:
        """`login` is an email address or a username."""
        return await self._http.write(User, "POST", "/auth/login", body={"login": login, "password": password})

    async def logout(self) -> None:
        """End the session of this client. Tokens live on."""
        await self._http.send("POST", "/auth/logout")
