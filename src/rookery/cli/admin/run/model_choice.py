"""The model choice of `rookery admin run`: the named model, the default, or the built-in offline model.

An installation without any model gets the offline model, so that a new user's first command is answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from rookery.cli.exit_codes import Exit, Refused
from rookery.domain.models.options import ProviderType
from rookery.models import model_resolution
from rookery.models.directory import Directory
from rookery.store.db.pool import Connection
from rookery.store.models import model_configs, providers
from rookery.store.models.errors import NoDefaultModel
from rookery.store.models.model_configs import ModelConfig
from rookery.store.models.providers import Provider

# The suggested first model by provider type, and its context window.
_SUGGESTED = {
    ProviderType.ANTHROPIC: ("claude-sonnet-4-5", 200_000),
    ProviderType.OPENAI: ("gpt-5.1", 400_000),
}


class Named(NamedTuple):
    config: ModelConfig
    provider: Provider

    @property
    def name(self) -> str:
        return f"{self.provider.name}/{self.config.model}"

    @property
    def is_offline(self) -> bool:
        return self.provider.type == ProviderType.SCRIPTED

    def document(self) -> dict[str, object]:
        config = self.config
        return {
            "id": config.id,
            "provider": self.provider.name,
            "model": config.model,
            "display_name": config.display_name,
        }


async def list_models(conn: Connection) -> list[Named]:
    """Return the models that are not deleted, with their providers."""
    by_id = {provider.id: provider for provider in await providers.list_providers(conn, with_deleted=True)}
    return [Named(config, by_id[config.provider_id]) for config in await model_configs.list_model_configs(conn)]


def find_model(found: Sequence[Named], reference: str) -> Named:
    """Return the only model that matches: by id, by `provider/model`, by name, or by display name."""
    fitting = [model for model in found if reference in (str(model.config.id), model.name)]
    if not fitting:
        folded = reference.casefold()
        fitting = [
            model for model in found if folded in (model.config.model.casefold(), model.config.display_name.casefold())
        ]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise Refused(f"There is no model {reference}. There are: {_names(found)}.", code=Exit.USAGE)
    choices = ", ".join(f"{model.name} ({model.config.id})" for model in fitting)
    raise Refused(f"{reference} names {len(fitting)} models. Name one by its id: {choices}.", code=Exit.USAGE)


async def choose(
    found: Sequence[Named], reference: str | None, *, directory: Directory, owner_id: UUID, last: UUID | None = None
) -> Named:
    """Return the model of the next turn. `last` is the model that a continued chat used before.

    If no model was named and the chosen one cannot be used, raise an error that lists the others.
    """
    models = await directory.models(owner_id)
    if reference is not None:
        model = find_model(found, reference)
        model_resolution.for_new_chat(models, requested=model.config.id)
        return model
    try:
        if last is None:
            choice = model_resolution.for_new_chat(models, requested=None)
        else:
            choice = model_resolution.for_message(models, requested=None, last=last)
    except NoDefaultModel as error:
        usable = [model for model in found if models.is_usable(model.config.id)]
        more = f" Choose with --model: {_names(usable)}." if usable else ""
        raise Refused(f"{error}{more}", code=Exit.USAGE) from None
    return next(model for model in found if model.config.id == choice.model_config_id)


def advice(found: Sequence[Provider]) -> list[str]:
    """Return commands that add a real model. If a provider exists, only a model is needed."""
    for provider in found:
        if provider.is_live and provider.type in _SUGGESTED:
            return [_model_command(provider.name, ProviderType(provider.type))]
    return [
        "  rookery admin provider add anthropic anthropic",
        _model_command("anthropic", ProviderType.ANTHROPIC),
    ]


def _model_command(provider: str, type_: ProviderType) -> str:
    model, limit = _SUGGESTED[type_]
    return f"  rookery admin model add {provider} {model} --context-limit {limit} --default"


def _names(found: Sequence[Named]) -> str:
    return ", ".join(model.name for model in found) or "none"
