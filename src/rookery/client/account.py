"""The caller's account: setup of the first account, login and logout, password, approval rules."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rookery.client.content import ApprovalSettings, given
from rookery.client.http import Http
from rookery.client.models import AccessNotice, AccessPage, LoggedIn, Me, Rule, SetupStatus, User


class _OwnSettings(msgspec.Struct, frozen=True):
    approval_rules: tuple[Rule, ...] = ()


class _SettingsGroup(msgspec.Struct, frozen=True):
    values: ApprovalSettings


class AsyncAccount:
    """`client.account`. A client without a token that logs in here keeps the session, as a browser does."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def me(self) -> Me:
        return await self._http.read(Me, "/users/me")

    async def is_setup_needed(self) -> bool:
        """Return whether the server has no account yet; until it has one it refuses all other requests."""
        return (await self._http.read(SetupStatus, "/setup")).needed

    async def set_up(
        self, setup_token: str, *, email: str, password: str, username: str | None = None, name: str | None = None
    ) -> User:
        """Create the first account, an administrator, and log in to it. The token is printed at the first start."""
        body = given(token=setup_token, email=email, password=password)
        body |= {key: value for key, value in (("username", username), ("name", name)) if value is not None}
        return await self._enter("/setup", body)

    async def login(self, login: str, password: str) -> User:
        """Log in. `login` is an email address or a username."""
        return await self._enter("/auth/login", {"login": login, "password": password})

    async def change_password(self, current_password: str, new_password: str, *, revoke_tokens: bool) -> None:
        """Set a new password. All other sessions end; with `revoke_tokens` all other API tokens do, too."""
        body = {"current_password": current_password, "new_password": new_password, "revoke_tokens": revoke_tokens}
        await self._http.send("POST", "/auth/password", body=body)

    async def accesses(self, *, limit: int = 50, cursor: str | None = None) -> AccessPage:
        """Return when administrators read the caller's chats by stating a reason, or reset the password; newest
        first."""
        return await self._http.read(AccessPage, "/me/accesses", {"limit": limit, "cursor": cursor})

    async def dismiss_access_notice(self, notice: AccessNotice) -> None:
        """Dismiss the notice of `me()`. The list of accesses stays as it is."""
        await self._http.send("POST", "/me/accesses/seen", body={"through": notice.through})

    async def approval_rules(self) -> tuple[Rule, ...]:
        """Return the caller's approval rules, for all their chats."""
        return (await self._http.read(_OwnSettings, "/me/settings")).approval_rules

    async def set_approval_rules(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """Replace the caller's approval rules, from the next tool call on."""
        body = {"approval_rules": rules}
        return (await self._http.write(_OwnSettings, "PATCH", "/me/settings", body=body)).approval_rules

    async def approval_settings(self) -> ApprovalSettings:
        """Return the server's approval settings, which apply to all users."""
        return (await self._http.read(_SettingsGroup, "/settings/approvals")).values

    async def set_approval_settings(self, settings: ApprovalSettings) -> ApprovalSettings:
        """Replace the server's approval settings. For administrators."""
        return (await self._http.write(_SettingsGroup, "PUT", "/settings/approvals", body=settings)).values

    async def logout(self) -> None:
        """End the session of this client. Tokens stay valid."""
        await self._http.send("POST", "/auth/logout")
        self._http.session_key = None

    async def _enter(self, path: str, body: object) -> User:
        """Store the session: the cookie of the response together with its key; both are sent from now on."""
        answer = await self._http.send("POST", path, body=body)
        self._http.session_key = self._http.decode(LoggedIn, answer).session_key
        return self._http.decode(User, answer)
