"""Errors of providers, keys, model configs and spending.

ModelError
├── ProviderNotFound, ModelConfigNotFound, UserKeyNotFound
├── NameTaken               a live provider has this name
├── ProviderReadOnly        environment variables define the provider
├── ProviderUnavailable     the provider does not exist or is disabled, so nothing can be saved for it
├── KeysMissing             the server has no key ring to seal a key with
├── UserKeysDisabled        the provider does not accept keys of users
└── SpendLimitReached       the owner has reached the limit of the period
InvalidInput (in rookery.domain.chat.errors)
├── ModelUnusable           the named model cannot be used; `reason` says why
└── NoDefaultModel          no model was named, and there is no usable default
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar
from uuid import UUID

from rookery.domain.chat.errors import InvalidInput


class ModelError(Exception):
    """Base class. `code` is for programs. The message is for people and says what to do."""

    code: ClassVar[str] = "invalid"


class ProviderNotFound(ModelError):
    code = "not_found"

    def __init__(self, provider: UUID | str) -> None:
        self.provider = provider
        super().__init__(f"There is no provider {provider}. It may have been deleted.")


class ModelConfigNotFound(ModelError):
    code = "not_found"

    def __init__(self, model_config_id: UUID) -> None:
        self.model_config_id = model_config_id
        super().__init__(f"There is no model config {model_config_id}. It may have been deleted.")


class UserKeyNotFound(ModelError):
    code = "not_found"

    def __init__(self) -> None:
        super().__init__("You have no key for this provider.")


class NameTaken(ModelError):
    code = "already_exists"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"A provider named {name} already exists. Choose another name.")


class ProviderReadOnly(ModelError):
    code = "pinned"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Environment variables of the server define provider {name}. Change them instead.")


class ProviderUnavailable(ModelError):
    code = "provider_unavailable"

    def __init__(self, provider_id: UUID) -> None:
        self.provider_id = provider_id
        super().__init__("This provider does not exist or is disabled. Enable it, or choose another.")


class KeysMissing(ModelError):
    code = "keys_missing"

    def __init__(self) -> None:
        super().__init__(
            "The server has no key ring to encrypt with. Set ROOKERY_SECRET_KEYS, then save the key again."
        )


class UserKeysDisabled(ModelError):
    code = "disabled"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Provider {name} does not accept keys of users. Ask an administrator.")


class SpendLimitReached(ModelError):
    code = "usage_limit"

    def __init__(self, *, spent_micros: int, limit_micros: int, resets_at: datetime) -> None:
        self.spent_micros = spent_micros
        self.limit_micros = limit_micros
        self.resets_at = resets_at
        super().__init__(
            f"You've reached your ${limit_micros / 1_000_000:,.2f} limit. It resets at {resets_at:%Y-%m-%d %H:%M} UTC; "
            "an administrator can raise it."
        )


class Unusable(StrEnum):
    """The reason why a model cannot be used. Model pickers show the last two reasons for a whole provider as well."""

    UNKNOWN = "unknown"
    DISABLED = "disabled"
    PROVIDER_DISABLED = "provider_disabled"
    MISSING_API_KEY = "missing_api_key"
    USER_API_KEY_REQUIRED = "user_api_key_required"

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    Unusable.UNKNOWN: "This model no longer exists. Choose another.",
    Unusable.DISABLED: "This model is disabled. Choose another.",
    Unusable.PROVIDER_DISABLED: "The provider of this model is disabled. Choose another model.",
    Unusable.MISSING_API_KEY: "There is no API key for the provider of this model. Ask an administrator to add one.",
    Unusable.USER_API_KEY_REQUIRED: "This model needs your own API key. Add one in your settings.",
}


class ModelUnusable(InvalidInput):
    def __init__(self, reason: Unusable, model_config_id: UUID | None = None) -> None:
        self.reason = reason
        self.model_config_id = model_config_id
        super().__init__("model_config_id", reason.sentence)


class NoDefaultModel(InvalidInput):
    """Raised if no model was named and no default is usable. `reason` is None if there is no default at all."""

    def __init__(self, reason: Unusable | None = None) -> None:
        self.reason = reason
        message = (
            "No model is configured. Ask an administrator to add one."
            if reason is None
            else f"No model was chosen, and the default cannot be used: {reason.sentence}"
        )
        super().__init__("model_config_id", message, code="no_default_model")
