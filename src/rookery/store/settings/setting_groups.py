"""The groups of runtime settings: their keys, defaults and ranges, and the keys that all users may read.

This is the only list of groups. If the stored value of a key cannot be read, this key counts as not set, and the other
keys are not affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Struct

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.content import invisible_characters, value_descriptions
from rookery.store.chats import approval_rules, chat_rows, shares
from rookery.store.chats.approval_rules import ApprovalSettings
from rookery.store.chats.shares import SharingSettings
from rookery.store.db.pool import Connection
from rookery.store.mcp import servers as mcp_servers
from rookery.store.mcp.servers import McpSettings
from rookery.store.models import model_configs, providers, spending
from rookery.store.models.model_configs import ModelConfig
from rookery.store.models.spending import SpendSettings
from rookery.store.settings import limit_settings
from rookery.store.settings.limit_settings import (
    AuditSettings,
    ChatSettings,
    DebugSettings,
    SubagentSettings,
    WorkspaceSettings,
)

MAX_NUMBER = 2**53 - 1  # the largest integer that all JSON readers read exactly
_EFFORTS = list(Effort)


class PromptSettings(Struct, frozen=True, kw_only=True):
    """The instructions of new chats. With `include_default`, the built-in prompt precedes the deployment's own."""

    system_prompt: str = ""
    include_default: bool = True
    plan_mode_instructions: str = ""


class ModelOverride(Struct, frozen=True):
    """A model for one purpose. Without an effort, the effort of the chat applies."""

    model_config_id: UUID
    reasoning_effort: Effort | None = None


class ModelSettings(Struct, frozen=True, kw_only=True):
    """The models for titles, summaries and subagents, and the choices that users may make themselves."""

    title_generation: ModelOverride | None = None
    compaction: ModelOverride | None = None
    general_subagents: ModelOverride | None = None
    explore_subagents: ModelOverride | None = None
    allow_personal_overrides: bool = False
    generate_titles: bool = True


class AdvisorSettings(Struct, frozen=True, kw_only=True):
    """The advisor, which agents ask for a second opinion. Without a model, the chat's own model answers.

    `max_uses_per_run` counts since the user's last message. The effort needs a model.
    """

    enabled: bool = False
    max_uses_per_run: Annotated[int, msgspec.Meta(ge=1, le=50)] = 5
    max_output_tokens: Annotated[int, msgspec.Meta(ge=256, le=65_536)] = 16_384
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None


class Group(Struct, frozen=True):
    """A group of settings. All users may read the keys in `public`."""

    name: str
    kind: type[Struct]
    public: frozenset[str] = frozenset()

    @property
    def keys(self) -> tuple[str, ...]:
        return self.kind.__struct_fields__

    def types(self) -> dict[str, Any]:
        """Return the type of each key, with its range."""
        return {field.name: field.type for field in msgspec.structs.fields(self.kind)}


def _all_public(name: str, kind: type[Struct]) -> Group:
    return Group(name, kind, frozenset(kind.__struct_fields__))


PROMPTS = Group("prompts", PromptSettings)
MODELS = Group("models", ModelSettings, frozenset({"allow_personal_overrides"}))
CHATS = _all_public(limit_settings.CHATS, ChatSettings)
SHARING = _all_public(shares.SETTING, SharingSettings)
SPEND = _all_public(spending.SETTING, SpendSettings)
WORKSPACES = _all_public(limit_settings.WORKSPACES, WorkspaceSettings)
SUBAGENTS = _all_public(limit_settings.SUBAGENTS, SubagentSettings)
APPROVALS = _all_public(approval_rules.SETTING, ApprovalSettings)
ADVISOR = Group("advisor", AdvisorSettings, frozenset({"enabled"}))
AUDIT = Group(limit_settings.AUDIT, AuditSettings)
DEBUG = _all_public(limit_settings.DEBUG, DebugSettings)
MCP = _all_public(mcp_servers.SETTING, McpSettings)

_ALL = (PROMPTS, MODELS, CHATS, SUBAGENTS, ADVISOR, APPROVALS, SHARING, SPEND, WORKSPACES, MCP, AUDIT, DEBUG)
GROUPS: Mapping[str, Group] = {group.name: group for group in _ALL}


class GroupState(Struct, frozen=True):
    """The current values of a group. `values` has the visible keys. `updated_at` is None if all are defaults."""

    values: Mapping[str, object]
    pinned: tuple[str, ...]
    updated_at: datetime | None


def read(group: Group, stored: object) -> Struct:
    """Return the group with defaults for keys that are missing or cannot be read."""
    raw = stored if isinstance(stored, dict) else {}
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(group.kind):
        if field.name in raw:
            try:
                values[field.name] = msgspec.convert(raw[field.name], type=field.type)
            except msgspec.ValidationError:
                continue
    return group.kind(**values)


def changed(group: Group, current: Struct, change: Mapping[str, object]) -> Struct:
    """Return the group with the changed keys. Raises `InvalidInput`, which names the key."""
    types = group.types()
    values: dict[str, Any] = {}
    for key, value in change.items():
        if key not in types:
            raise InvalidInput(key, f"There is no key {key!r} in the group {group.name}.")
        try:
            values[key] = msgspec.convert(value, type=types[key], from_attributes=True)
        except msgspec.ValidationError:
            raise InvalidInput(key, f"This must be {value_descriptions.describe(types[key])}.") from None
        if isinstance(values[key], int) and values[key] > MAX_NUMBER:
            raise InvalidInput(key, f"The number must be at most {MAX_NUMBER}.")
        if group is APPROVALS and key == "rules":
            values[key] = approval_rules.checked(values[key])
        if group is PROMPTS and isinstance(values[key], str):
            values[key] = invisible_characters.check_prompt(chat_rows.storable(values[key]), field=key)
    return msgspec.structs.replace(current, **values)


async def check_models(conn: Connection, change: Mapping[str, object]) -> None:
    """Raise `InvalidInput` if a model of the change cannot be used with its effort. Call it under `config_lock`."""
    for key, override in change.items():
        if isinstance(override, ModelOverride):
            await check_model(conn, override.model_config_id, override.reasoning_effort, field=key)


async def check_advisor(conn: Connection, settings: AdvisorSettings) -> None:
    """Raise `InvalidInput` if the advisor's model cannot be used with its effort. Call it under `config_lock`."""
    if settings.model_config_id is not None:
        await check_named_model(conn, settings.model_config_id, settings.reasoning_effort)
    elif settings.reasoning_effort is not None:
        raise InvalidInput("reasoning_effort", "An effort needs a model. Choose a model, or leave the effort out.")


async def check_named_model(conn: Connection, model_config_id: UUID, effort: Effort | None) -> None:
    """Check that a model can be used with this effort. The model and the effort are separate fields."""
    if await find_enabled(conn, model_config_id) is None:
        raise InvalidInput("model_config_id", "There is no such enabled model. Choose another.")
    await _check_effort(conn, model_config_id, effort, field="reasoning_effort")


async def check_model(conn: Connection, model_config_id: UUID, effort: Effort | None, *, field: str) -> None:
    if await find_enabled(conn, model_config_id) is None:
        raise InvalidInput(f"{field}.model_config_id", "There is no such enabled model. Choose another.")
    await _check_effort(conn, model_config_id, effort, field=f"{field}.reasoning_effort")


async def _check_effort(conn: Connection, model_config_id: UUID, effort: Effort | None, *, field: str) -> None:
    config = await model_configs.get_model_config(conn, model_config_id)
    allowed = config.options.reasoning_effort
    if effort is None or (allowed is not None and _EFFORTS.index(effort) <= _EFFORTS.index(allowed.max)):
        return
    most = "none can be chosen" if allowed is None else f"at most {allowed.max} can be chosen"
    raise InvalidInput(field, f"For this model {most}.")


async def find_enabled(conn: Connection, model_config_id: UUID) -> ModelConfig | None:
    """Return the config if it and its provider are enabled; otherwise None."""
    config = await model_configs.find_model_config(conn, model_config_id)
    if config is None or config.deleted or not config.enabled:
        return None
    provider = await providers.find_provider(conn, config.provider_id)
    return config if provider is not None and provider.is_live else None
