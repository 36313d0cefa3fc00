"""The preferences of a user."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routers.approvals import RulesList
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.chat import approvals
from rookery.domain.chat.approvals import Rule
from rookery.domain.chat.messages import Effort
from rookery.store.people.preferences import PersonalOverride, Preferences, PreferencesPatch
from rookery.store.settings.setting_groups import ModelOverride

MAX_PROMPT_CHARS = 256 * 1024  # before cleaning; the cleaned text has its own limit


class OverridesView(msgspec.Struct, frozen=True):
    """The caller's own models: for new chats, and for subagents of the kinds `general` and `explore`."""

    root: PersonalOverride | None
    general: PersonalOverride | None
    explore: PersonalOverride | None


class DeploymentOverridesView(msgspec.Struct, frozen=True):
    """The administrators' models for subagents. Without one, a subagent has the model of its parent."""

    general: ModelOverride | None
    explore: ModelOverride | None


class PreferencesView(msgspec.Struct, frozen=True, kw_only=True):
    """The preferences. `model_overrides` apply only while `overrides_allowed` is true; `display` belongs to the web
    application.

    `context_auto_refresh`: each turn starts with the current context of the workspace, without a request to refresh it.
    `debug`: model calls of the caller's chats are recorded, unless the chat or the server decides otherwise.
    """

    custom_prompt: str
    context_auto_refresh: bool
    model_overrides: OverridesView
    deployment_overrides: DeploymentOverridesView
    overrides_allowed: bool
    compaction_thresholds: dict[UUID, int]
    approval_rules: tuple[Rule, ...]
    debug: bool
    display: dict[str, Any]


def _absent() -> None:
    """The default of fields that are merged. The value of a field that was not sent is never read."""
    return None


class OverrideChange(Body):
    mode: Literal["chat_default", "model"]
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None


class SubagentOverrideChange(Body):
    """`chat_default` is the model of the parent. `deployment_default` is the administrators' choice for the kind."""

    mode: Literal["chat_default", "deployment_default", "model"]
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None


class OverridesChange(Body):
    root: OverrideChange | None = Field(default_factory=_absent)
    general: SubagentOverrideChange | None = Field(default_factory=_absent)
    explore: SubagentOverrideChange | None = Field(default_factory=_absent)


class PreferencesChange(Body):
    """Changes of preferences.

    Absent fields keep their values; null clears one. `display` is merged (RFC 7396); its limit is 16 KiB.
    """

    custom_prompt: str | None = Field(None, max_length=MAX_PROMPT_CHARS)
    context_auto_refresh: bool | None = None
    model_overrides: OverridesChange | None = None
    compaction_thresholds: dict[UUID, Annotated[int, Field(ge=0, le=100)] | None] | None = None
    approval_rules: RulesList | None = None
    debug: bool | None = None
    display: dict[str, Any] | None = None


def router(services: ApiServices) -> Routes:
    routes = Routes("own preferences")

    @routes.get("/me/settings", "preferences.get", returns=PreferencesView)
    async def get(caller: Caller) -> Response:
        """Return the caller's preferences."""
        return await _answer(caller, await caller.store.preferences.get(caller.user.id))

    @routes.patch("/me/settings", "preferences.update", body=PreferencesChange, returns=PreferencesView)
    async def update(caller: Caller) -> Response:
        """Change the given preferences: all of them, or none if one is refused.

        403 `disabled` if the request has model overrides or debug records and the server does not allow them.
        """
        body = await caller.read(PreferencesChange, may=lambda: caller.store.preferences.require(caller.user.id))
        given: dict[str, Any] = {name: getattr(body, name) for name in body.given}
        if isinstance(body.model_overrides, OverridesChange):
            changed = body.model_overrides
            given["model_overrides"] = {kind: _override(getattr(changed, kind)) for kind in changed.given}
        if body.approval_rules is not None and "approval_rules" in body.given:
            given["approval_rules"] = [each.rule() for each in body.approval_rules]
        return await _answer(caller, await caller.store.preferences.write(caller.user.id, PreferencesPatch(**given)))

    return routes


async def _answer(caller: Caller, found: Preferences) -> Response:
    policy, own = await caller.store.preferences.override_policy(caller.user.id), found.model_overrides
    return answer(
        PreferencesView(
            custom_prompt=found.custom_prompt,
            context_auto_refresh=found.context_auto_refresh,
            model_overrides=OverridesView(
                own.get("root"),
                general=own.get("general"),
                explore=own.get("explore"),
            ),
            deployment_overrides=DeploymentOverridesView(policy.general, policy.explore),
            overrides_allowed=policy.is_allowed,
            compaction_thresholds=dict(found.compaction_thresholds),
            approval_rules=approvals.with_problems(found.approval_rules),
            debug=found.debug,
            display=dict(found.display),
        )
    )


def _override(change: OverrideChange | SubagentOverrideChange | None) -> PersonalOverride | None:
    if change is None:
        return None
    return PersonalOverride(change.mode, change.model_config_id, change.reasoning_effort)
