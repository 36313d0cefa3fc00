"""The caller's account: first setup, login, password, preferences, API tokens, and the models it can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import UUID

import msgspec

from rookery.client.content import ApprovalSettings, given
from rookery.client.http import Http, path
from rookery.client.models import (
    AccessNotice,
    AccessPage,
    LoggedIn,
    Me,
    Model,
    ModelList,
    ModelProvider,
    NewToken,
    PersonalOverride,
    Preferences,
    Rule,
    SetupStatus,
    Token,
    User,
)
from rookery.client.pages import Items

DEFAULT_SCOPES = ("all",)
# The chats to which a personal model applies: new chats, and the subagents of two built-in kinds.
OverrideKind = Literal["root", "general", "explore"]


class _SettingsGroup(msgspec.Struct, frozen=True):
    values: ApprovalSettings


class AsyncAccount:
    """`client.account`. If a client without a token logs in here, it keeps the session, as a browser does."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def me(self) -> Me:
        return await self._http.read(Me, "/users/me")

    async def is_setup_needed(self) -> bool:
        """Return whether the server has no account yet. Until it has one, it refuses all other requests."""
        return (await self._http.read(SetupStatus, "/setup")).needed

    async def set_up(
        self, setup_token: str, *, email: str, password: str, username: str | None = None, name: str | None = None
    ) -> User:
        """Create the first account, which is an administrator, and log in.

        The server prints the token at its first start.
        """
        body = given(token=setup_token, email=email, password=password)
        body |= {key: value for key, value in (("username", username), ("name", name)) if value is not None}
        return await self._enter("/setup", body)

    async def login(self, login: str, password: str) -> User:
        """Log in. `login` is an email address or a username."""
        return await self._enter("/auth/login", {"login": login, "password": password})

    async def change_password(self, current_password: str, new_password: str, *, revoke_tokens: bool) -> None:
        """Set a new password. All other sessions end. With `revoke_tokens`, all other API tokens end as well."""
        body = {"current_password": current_password, "new_password": new_password, "revoke_tokens": revoke_tokens}
        await self._http.send("POST", "/auth/password", body=body)

    async def accesses(self, *, limit: int = 50, cursor: str | None = None) -> AccessPage:
        """Return the times when administrators read the caller's chats by break-glass or reset the password.

        The newest come first.
        """
        return await self._http.read(AccessPage, "/me/accesses", {"limit": limit, "cursor": cursor})

    async def dismiss_access_notice(self, notice: AccessNotice) -> None:
        """Dismiss the notice of `me()`. The list of accesses does not change."""
        await self._http.send("POST", "/me/accesses/seen", body={"through": notice.through})

    async def preferences(self) -> Preferences:
        """Return the caller's preferences."""
        return await self._http.read(Preferences, "/me/settings")

    async def set_model_overrides(self, overrides: Mapping[OverrideKind, PersonalOverride | None]) -> Preferences:
        """Choose the models of new chats (`root`) and of subagents (`general`, `explore`). None clears a choice.

        Kinds that are not given keep theirs. Raises `Forbidden` unless administrators allow it.
        """
        body = {"model_overrides": overrides}
        return await self._http.write(Preferences, "PATCH", "/me/settings", body=body)

    async def approval_rules(self) -> tuple[Rule, ...]:
        """Return the caller's approval rules, for all their chats."""
        return (await self.preferences()).approval_rules

    async def set_approval_rules(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """Replace the caller's approval rules, from the next tool call on."""
        body = {"approval_rules": rules}
        return (await self._http.write(Preferences, "PATCH", "/me/settings", body=body)).approval_rules

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

    async def _enter(self, target: str, body: object) -> User:
        """Store the session: the cookie of the response and its key. Later requests send both."""
        answer = await self._http.send("POST", target, body=body)
        self._http.session_key = self._http.decode(LoggedIn, answer).session_key
        return self._http.decode(User, answer)


class AsyncTokens:
    """`client.tokens`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self) -> tuple[Token, ...]:
        return (await self._http.read(Items[Token], "/tokens")).items

    async def create(
        self, name: str, *, scopes: Sequence[str] = DEFAULT_SCOPES, expires_in_days: int | None = None
    ) -> NewToken:
        """Create a token for programs. Only this response contains it."""
        body: dict[str, object] = {"name": name, "scopes": scopes}
        if expires_in_days is not None:
            body["expires_in_days"] = expires_in_days
        return await self._http.write(NewToken, "POST", "/tokens", body=body)

    async def delete(self, token_id: UUID | str) -> None:
        await self._http.send("DELETE", path("tokens", token_id))


class AsyncModels:
    """`client.models`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self) -> tuple[ModelProvider, ...]:
        """Return the enabled providers, each with its models."""
        return (await self._http.read(ModelList, "/models")).providers

    async def find(self, name: str) -> Model | None:
        """Return the model with this id or name. The name is that of the provider or the one that users see."""
        for provider in await self.list():
            for model in provider.models:
                if name in (str(model.id), model.model, model.display_name):
                    return model
        return None
