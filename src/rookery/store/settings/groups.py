"""The groups of runtime settings: their keys, defaults, ranges, and which keys are public.

This is the only list of them. A group or a key is listed here once something reads it: an option that is ignored is
worse than none. Stored values that cannot be read count as not set, key by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.content import prompt_text
from rookery.store.chats import approval_rules, chat_rows, shares
from rookery.store.chats.approval_rules import ApprovalSettings
from rookery.store.chats.shares import SharingSettings
from rookery.store.db.pool import Connection
from rookery.store.models import model_configs, providers, spending
from rookery.store.models.model_configs import ModelConfig
from rookery.store.models.spending import SpendSettings
from rookery.store.settings import audit, workspaces
from rookery.store.settings import chats as chat_settings
from rookery.store.settings.audit import AuditSettings
from rookery.store.settings.chats import ChatSettings
from rookery.store.settings.workspaces import WorkspaceSettings

MAX_NUMBER = 2**53 - 1  # every JSON reader keeps it exactly
_EFFORTS = list(Effort)


class PromptSettings(Struct, frozen=True, kw_only=True):
    """The first instructions of every new chat. `include_default` puts the built-in prompt before the
    deployment's own.
    """

    system_prompt: str = ""
    include_default: bool = True
    plan_mode_instructions: str = ""


class ModelOverride(Struct, frozen=True):
    """A model for one purpose. Without an effort the chat's own applies."""

    model_config_id: UUID
    reasoning_effort: Effort | None = None


class ModelSettings(Struct, frozen=True, kw_only=True):
    """The models that write titles and summaries, and what users may decide for themselves."""

    title_generation: ModelOverride | None = None
    compaction: ModelOverride | None = None
    allow_personal_overrides: bool = False
    generate_titles: bool = True


class Group(Struct, frozen=True):
    """A group of settings. `public`: keys that members see."""

    name: str
    kind: type[Struct]
    public: frozenset[str] = frozenset()

    @property
    def keys(self) -> tuple[str, ...]:
        return self.kind.__struct_fields__

    def types(self) -> dict[str, Any]:
        """The type of each key, with its range."""
        return {field.name: field.type for field in msgspec.structs.fields(self.kind)}


def _all_public(name: str, kind: type[Struct]) -> Group:
    return Group(name, kind, frozenset(kind.__struct_fields__))


PROMPTS = Group("prompts", PromptSettings)
MODELS = Group("models", ModelSettings, frozenset({"allow_personal_overrides"}))
CHATS = _all_public(chat_settings.SETTING, ChatSettings)
SHARING = _all_public(shares.SETTING, SharingSettings)
SPEND = _all_public(spending.SETTING, SpendSettings)
WORKSPACES = _all_public(workspaces.SETTING, WorkspaceSettings)
APPROVALS = _all_public(approval_rules.SETTING, ApprovalSettings)
AUDIT = Group(audit.SETTING, AuditSettings)

GROUPS: Mapping[str, Group] = {
    group.name: group for group in (PROMPTS, MODELS, CHATS, APPROVALS, SHARING, SPEND, WORKSPACES, AUDIT)
}


class GroupState(Struct, frozen=True):
    """A group as it is in effect. `values` are the visible keys; `updated_at` is None for all defaults."""

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
    """Return the group with some keys replaced, checked. Raises `InvalidInput`, which names the key."""
    types = group.types()
    values: dict[str, Any] = {}
    for key, value in change.items():
        if key not in types:
            raise InvalidInput(key, f"There is no key {key!r} in the group {group.name}.")
        try:
            values[key] = msgspec.convert(value, type=types[key], from_attributes=True)
        except msgspec.ValidationError as error:
            # The message names types and fields, never the value.
            raise InvalidInput(key, f"{error}.") from None
        if isinstance(values[key], int) and values[key] > MAX_NUMBER:
            raise InvalidInput(key, f"The number must be at most {MAX_NUMBER}.")
        if group is APPROVALS and key == "rules":
            values[key] = approval_rules.checked(values[key])
        if group is PROMPTS and isinstance(values[key], str):
            values[key] = prompt_text.check_prompt(chat_rows.storable(values[key]), field=key)
    return msgspec.structs.replace(current, **values)


async def check_models(conn: Connection, change: Mapping[str, object]) -> None:
    """Check that the models of a change can be used, with the given effort. Call it under the lock of models."""
    for key, override in change.items():
        if isinstance(override, ModelOverride):
            await check_model(conn, override.model_config_id, override.reasoning_effort, field=key)


async def check_model(conn: Connection, model_config_id: UUID, effort: Effort | None, *, field: str) -> None:
    config = await find_enabled(conn, model_config_id)
    if config is None:
        raise InvalidInput(f"{field}.model_config_id", "There is no such enabled model. Choose another.")
    allowed = config.options.reasoning_effort
    if effort is None or (allowed is not None and _EFFORTS.index(effort) <= _EFFORTS.index(allowed.max)):
        return
    most = "none can be chosen" if allowed is None else f"at most {allowed.max} can be chosen"
    raise InvalidInput(f"{field}.reasoning_effort", f"For this model {most}.")


async def find_enabled(conn: Connection, model_config_id: UUID) -> ModelConfig | None:
    """Return a config that users can choose: enabled, of an enabled provider."""
    config = await model_configs.find_model_config(conn, model_config_id)
    if config is None or config.deleted or not config.enabled:
        return None
    provider = await providers.find_provider(conn, config.provider_id)
    return config if provider is not None and provider.is_live else None
