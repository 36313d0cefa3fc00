"""Model resolution: pure functions that choose the model and the key of a call.

A request that names a model gets that model or an error. A user's choice is replaced only if the function's docstring
says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Literal
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import Effort
from rookery.domain.models.options import KEYLESS
from rookery.llm.types import ErrorKind, ProviderError
from rookery.store.models.errors import ModelUnusable, NoDefaultModel, Unusable
from rookery.store.models.providers import Provider
from rookery.store.models.usage_ledger import KeySource
from rookery.telemetry.log import get_logger

log = get_logger("models.model_resolution")

# After this many failures of these kinds, the turn continues with the next fallback.
FALLBACK_ATTEMPTS = 5
FALLBACK_KINDS = frozenset(
    {
        ErrorKind.OVERLOADED,
        ErrorKind.RATE_LIMIT,
        ErrorKind.TIMEOUT,
        ErrorKind.CONTENT_FILTER,
        ErrorKind.PROVIDER_DISABLED,
    }
)


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a model config for one chat owner. `key` is the source of the key, or why there is no key."""

    id: UUID
    provider_name: str
    enabled: bool
    deleted: bool
    provider_is_live: bool
    key: KeySource | Unusable

    @property
    def unusable(self) -> Unusable | None:
        if self.deleted:
            return Unusable.UNKNOWN
        if not self.enabled:
            return Unusable.DISABLED
        if not self.provider_is_live:
            return Unusable.PROVIDER_DISABLED
        return self.key if isinstance(self.key, Unusable) else None


class Models(msgspec.Struct, frozen=True):
    """All model configs for one owner, including deleted ones."""

    by_id: Mapping[UUID, ModelState]
    default_id: UUID | None

    def unusable(self, model_config_id: UUID) -> Unusable | None:
        state = self.by_id.get(model_config_id)
        return Unusable.UNKNOWN if state is None else state.unusable

    def is_usable(self, model_config_id: UUID | None) -> bool:
        return model_config_id is not None and self.unusable(model_config_id) is None


class Override(msgspec.Struct, frozen=True):
    """A model that a user or administrators have set for a purpose. Only the mode `model` names a config."""

    mode: Literal["model", "chat_default", "deployment_default"] = "model"
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None


class Choice(msgspec.Struct, frozen=True):
    """The chosen model. `reasoning_effort` is from an override; None means the effort of the chat."""

    model_config_id: UUID
    reasoning_effort: Effort | None = None


def choose_key(provider: Provider, *, has_user_key: bool, has_central_key: bool) -> KeySource | Unusable:
    """Return the key of a call: the user's own key, else the central key if the provider's policy allows it."""
    if provider.allow_user_key and has_user_key:
        return KeySource.USER
    if provider.central_key_enabled and (not provider.allow_user_key or provider.allow_central_fallback):
        if has_central_key:
            return KeySource.ENV if provider.is_env else KeySource.CENTRAL
        if provider.type in KEYLESS:
            return KeySource.AMBIENT
    return Unusable.USER_API_KEY_REQUIRED if provider.allow_user_key else Unusable.MISSING_API_KEY


def read_override(stored: object) -> tuple[Override | None, bool]:
    """Return a stored override, and whether it is invalid. An invalid override counts as not set."""
    if stored is None:
        return None, False
    try:
        override = msgspec.convert(stored, type=Override)
    except msgspec.ValidationError:
        return None, True
    if (override.mode == "model") != (override.model_config_id is not None):
        return None, True
    return override, False


def for_new_chat(models: Models, *, requested: UUID | None, personal: Override | None = None) -> Choice:
    """Return the model of a new root chat. `personal` is the owner's `root` override if administrators allow it."""
    if requested is not None:
        return Choice(_usable(models, requested))
    if personal is not None and (chosen := _of_override(models, personal)):
        return chosen
    return Choice(_usable_default(models))


def for_message(models: Models, *, requested: UUID | None, last: UUID) -> Choice:
    """Return the model of a sent or edited message: the requested one, else the chat's last, else the default."""
    if requested is not None:
        return Choice(_usable(models, requested))
    state = models.by_id.get(last)
    if state is not None and is_kept(state):
        return Choice(last)
    return Choice(_usable_default(models))


def is_kept(state: ModelState) -> bool:
    """Return whether a chat continues with the model that it used last.

    A missing key does not change the model; the turn reports it as an error.
    """
    return state.enabled and not state.deleted


def for_generation(models: Models, model_config_id: UUID) -> Choice | ProviderError:
    """Return the model of a running turn. The default replaces a deleted config; a disabled config ends the turn."""
    state = models.by_id.get(model_config_id)
    if state is None or state.deleted:
        if models.default_id is None:
            return _refusal(None, ErrorKind.CONFIG, str(NoDefaultModel()))
        state = models.by_id[models.default_id]
    reason = state.unusable
    if reason is None:
        return Choice(state.id)
    return _refusal(state, _KINDS[reason], reason.sentence)


def for_subagent(
    models: Models,
    *,
    parent: UUID,
    requested: UUID | None = None,
    personal: Override | None = None,
    admin: Override | None = None,
) -> Choice:
    """Return the model of a subagent. Raise `ModelUnusable` if the requested one cannot be used.

    The user's mode `chat_default` means the model of the parent chat; `deployment_default` means the administrators'
    setting.
    """
    if requested is not None:
        return Choice(_usable(models, requested))
    if personal is not None and personal.mode != "deployment_default":
        if personal.mode == "chat_default":
            return Choice(parent, personal.reasoning_effort)
        if chosen := _of_override(models, personal):
            return chosen
        log.info("subagent_model_unusable", override="personal", model_config_id=personal.model_config_id)
    if admin is not None and admin.mode != "chat_default":
        if chosen := _of_override(models, admin):
            return chosen
        log.info("subagent_model_unusable", override="deployment", model_config_id=admin.model_config_id)
    return Choice(parent, admin.reasoning_effort if admin is not None and admin.mode == "chat_default" else None)


def for_title(models: Models, *, chat: UUID, admin: Override | None, preferred: Sequence[UUID]) -> Choice | None:
    """Return the model that writes titles; None for no title. `preferred` are the small models, cheapest first.

    If administrators have set a model and it cannot be used, there is no title.
    """
    if admin is not None:
        if admin.mode == "chat_default":
            return Choice(chat, admin.reasoning_effort) if models.is_usable(chat) else None
        return _of_override(models, admin)
    for model_config_id in (*preferred, chat):
        if models.is_usable(model_config_id):
            return Choice(model_config_id)
    return None


def for_compaction(models: Models, *, chat: UUID, admin: Override | None) -> Choice:
    """Return the model that summarizes a chat: the administrators' setting, else the chat's own model."""
    if admin is None or admin.mode == "chat_default":
        return Choice(chat, admin.reasoning_effort if admin else None)
    if chosen := _of_override(models, admin):
        return chosen
    log.warning("compaction_model_unusable", model_config_id=admin.model_config_id or models.default_id)
    return Choice(chat)


def with_fallbacks(
    models: Models, chain: Sequence[UUID], *, last: UUID | None, failed: str | None, attempts: int
) -> UUID:
    """Return the model of the next attempt. `chain` is the chat's own model, followed by its fallbacks.

    `last` is the model of the turn's newest answer; a turn that has changed to a fallback stays with it. `failed` is
    the kind of the last attempt's error, and `attempts` is the number of attempts at this step.
    """
    usable = [chain[0], *(each for each in chain[1:] if models.is_usable(each))]
    index = usable.index(last) if last in usable else 0
    if failed in FALLBACK_KINDS:
        index += attempts // FALLBACK_ATTEMPTS
    return usable[min(index, len(usable) - 1)]


def small_models(candidates: Sequence[tuple[UUID, str, Decimal | None]]) -> tuple[UUID, ...]:
    """Return the ids of small models, ordered by family and then by price. Candidates are (id, model, output price)."""
    ranked = []
    for model_config_id, model, price in candidates:
        family = next((rank for rank, words in enumerate(_SMALL_FAMILIES) if words.search(model.lower())), None)
        if family is not None:
            ranked.append((family, price is None, price or 0, str(model_config_id), model_config_id))
    return tuple(each[-1] for each in sorted(ranked))


_SMALL_FAMILIES = (re.compile("haiku"), re.compile(r"gpt.*-(mini|nano)\b"), re.compile("gemini.*flash"))
_KINDS = {
    Unusable.UNKNOWN: ErrorKind.CONFIG,
    Unusable.DISABLED: ErrorKind.CONFIG,
    Unusable.PROVIDER_DISABLED: ErrorKind.PROVIDER_DISABLED,
    Unusable.MISSING_API_KEY: ErrorKind.MISSING_KEY,
    Unusable.USER_API_KEY_REQUIRED: ErrorKind.MISSING_KEY,
}


def _usable(models: Models, model_config_id: UUID) -> UUID:
    if reason := models.unusable(model_config_id):
        raise ModelUnusable(reason, model_config_id)
    return model_config_id


def _usable_default(models: Models) -> UUID:
    if models.default_id is None:
        raise NoDefaultModel
    if reason := models.unusable(models.default_id):
        raise NoDefaultModel(reason)
    return models.default_id


def _of_override(models: Models, override: Override) -> Choice | None:
    """Return the model of an override; None if it cannot be used."""
    if override.mode == "chat_default":
        return None
    wanted = models.default_id if override.mode == "deployment_default" else override.model_config_id
    if wanted is None or not models.is_usable(wanted):
        return None
    return Choice(wanted, override.reasoning_effort)


def _refusal(state: ModelState | None, kind: ErrorKind, message: str) -> ProviderError:
    provider = "" if state is None else state.provider_name
    return ProviderError(kind=kind, message=message, retryable=False, provider=provider)
