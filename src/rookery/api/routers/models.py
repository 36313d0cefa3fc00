"""The models that pickers offer: the enabled ones, and whether the caller can use them."""

from __future__ import annotations

from uuid import UUID

import msgspec
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.chat.messages import Effort
from rookery.llm import reasoning_effort
from rookery.store.authorized.models import PublicModel


class ModelView(msgspec.Struct, frozen=True):
    """A model. `reasoning_efforts` are its efforts, from least to most.

    `compression_threshold` is the percentage of the context at which chats are summarized, unless the user has set
    another.
    """

    id: UUID
    model: str
    display_name: str
    context_limit: int
    reasoning_efforts: tuple[Effort, ...]
    is_default: bool
    compression_threshold: int


class ModelsOfProvider(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a provider.

    `unavailable_reason` is `missing_api_key` or `user_api_key_required`: the caller can add their own key.
    """

    id: UUID
    type: str
    display_name: str
    icon: str
    available: bool
    unavailable_reason: str | None
    models: tuple[ModelView, ...]


class ModelsView(msgspec.Struct, frozen=True):
    providers: tuple[ModelsOfProvider, ...]


def router(services: ApiServices) -> Routes:
    routes = Routes("models")

    @routes.get("/models", "models.list", returns=ModelsView)
    async def list_models(caller: Caller) -> Response:
        """List the enabled models by provider and name, with the reason if the caller cannot use them."""
        grouped: dict[UUID, list[PublicModel]] = {}
        for found in await caller.store.models.list_enabled():
            grouped.setdefault(found.provider.id, []).append(found)
        shown = [await _view(each, caller.user.id) for each in grouped.values()]
        shown.sort(key=lambda provider: provider.display_name.casefold())
        return answer(ModelsView(tuple(shown)))

    async def _view(found: list[PublicModel], user_id: UUID) -> ModelsOfProvider:
        provider = found[0].provider
        if provider.id not in (await services.directory.snapshot()).providers:
            # Another replica has just created it, and its notification has not arrived yet.
            services.directory.invalidate()
        reason = await services.directory.unavailable(provider.id, user_id=user_id)
        return ModelsOfProvider(
            id=provider.id,
            type=provider.type,
            display_name=provider.display_name or provider.name,
            icon=provider.icon,
            available=reason is None,
            unavailable_reason=reason,
            models=tuple(_model(each) for each in found),
        )

    return routes


def _model(found: PublicModel) -> ModelView:
    config = found.config
    return ModelView(
        config.id,
        config.model,
        config.display_name or config.model,
        config.context_limit,
        reasoning_effort.selectable(config.options.reasoning_effort),
        config.is_default,
        config.compression_threshold,
    )
