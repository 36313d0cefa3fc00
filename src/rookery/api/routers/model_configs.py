"""Model configs: the models available on this server, with their limits, options and prices."""

from __future__ import annotations

import asyncio
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.responses import Response

from rookery.api import headers, masked_headers
from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import Items, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.chat.messages import Effort
from rookery.llm import reasoning_effort
from rookery.models.directory import windows_of
from rookery.store.authorized.models import KnownModel
from rookery.store.models.model_configs import (
    DEFAULT_COMPRESSION_THRESHOLD,
    MAX_CONTEXT_LIMIT,
    MAX_PRICE,
    ModelConfigDraft,
    ModelConfigPatch,
)

# Prices in dollars per million tokens. A string keeps its digits; a number is accepted as well.
Price = Annotated[Decimal, Field(ge=0, lt=MAX_PRICE, max_digits=14, decimal_places=8)]


class ModelConfigView(msgspec.Struct, frozen=True, kw_only=True):
    """A model config. Prices are in dollars per million tokens, as strings; null if they are not set."""

    id: UUID
    provider_id: UUID
    model: str
    display_name: str
    enabled: bool
    is_default: bool
    context_limit: int
    compression_threshold: int
    window: WindowView
    options: dict[str, Any]
    reasoning_efforts: tuple[Effort, ...]
    price_input: Decimal | None
    price_output: Decimal | None
    price_cache_read: Decimal | None
    price_cache_write: Decimal | None
    price_cache_write_1h: Decimal | None
    created_by: UUID | None
    updated_by: UUID | None
    created_at: datetime
    updated_at: datetime


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the model's context window in tokens, by source; null means unknown. `effective` is the smallest of
    them.

    `catalogued` is from this version's table, `reported` from the provider's own endpoint, and `learned` from requests
    that were refused as too long: `learned_from` is `provider` for a number that the provider named, `halving` for an
    estimate. `differs` is true if one of them differs by more than a tenth from `context_limit`.
    """

    effective: int
    catalogued: int | None
    reported: int | None
    reported_at: datetime | None
    learned: int | None
    learned_from: Literal["provider", "halving"] | None
    learned_at: datetime | None
    differs: bool


class ModelConfigCreate(Body):
    """A new model config. The first config always becomes the default. A new default replaces the old one."""

    provider_id: UUID
    model: str = Field(min_length=1, max_length=200)
    context_limit: int = Field(gt=0, le=MAX_CONTEXT_LIMIT)
    display_name: str = Field("", max_length=200)
    enabled: bool = True
    is_default: bool = False
    compression_threshold: int = Field(DEFAULT_COMPRESSION_THRESHOLD, ge=0, le=100)
    options: dict[str, Any] = Field(default_factory=dict)
    price_input: Price | None = None
    price_output: Price | None = None
    price_cache_read: Price | None = None
    price_cache_write: Price | None = None
    price_cache_write_1h: Price | None = None


class ModelConfigChange(Body):
    """Changes of a model config. Absent fields keep their values; null clears a price.

    `options` are replaced as a whole; `***` keeps a stored value.
    """

    provider_id: UUID = Field(default_factory=lambda: UUID(int=0))
    model: str = Field(default_factory=str, min_length=1, max_length=200)
    context_limit: int = Field(default_factory=int, gt=0, le=MAX_CONTEXT_LIMIT)
    display_name: str = Field(default_factory=str, max_length=200)
    enabled: bool = Field(default_factory=bool)
    is_default: bool = Field(default_factory=bool)
    compression_threshold: int = Field(default_factory=int, ge=0, le=100)
    options: dict[str, Any] = Field(default_factory=dict)
    price_input: Price | None = None
    price_output: Price | None = None
    price_cache_read: Price | None = None
    price_cache_write: Price | None = None
    price_cache_write_1h: Price | None = None


def router(services: ApiServices) -> Routes:
    routes = Routes("model configs")

    @routes.get("/model-configs", "model_configs.list", returns=Items[ModelConfigView])
    async def list_configs(caller: Caller) -> Response:
        """List all model configs by name, including disabled ones."""
        return answer(Items(tuple([await _view(known) for known in await caller.store.models.list()])))

    @routes.post(
        "/model-configs",
        "model_configs.create",
        body=ModelConfigCreate,
        returns=ModelConfigView,
        status=201,
        errors=(412,),
        gives=[headers.LOCATION],
    )
    async def create(caller: Caller) -> Response:
        """Add a model. 412 if its provider does not exist or is disabled."""
        body = await caller.read(ModelConfigCreate, may=caller.store.models.require)
        await caller.store.models.require()
        given = {name: getattr(body, name) for name in body.given}
        draft = ModelConfigDraft(**{**given, "options": masked_headers.unmask(body.options)})
        made = await caller.store.models.create(draft)
        return answer(await _view(made), 201, Location=f"/api/v1/model-configs/{made.config.id}")

    @routes.get("/model-configs/{model_config}", "model_configs.get", returns=ModelConfigView, errors=(404,))
    async def get(caller: Caller, model_config: UUID) -> Response:
        """Return one model config."""
        return answer(await _view(await caller.store.models.get(model_config)))

    @routes.patch(
        "/model-configs/{model_config}",
        "model_configs.update",
        body=ModelConfigChange,
        returns=ModelConfigView,
        errors=(404, 412),
    )
    async def update(caller: Caller, model_config: UUID) -> Response:
        """Change a model. Provider and model id are checked again only when one of them changes."""
        body = await caller.read(ModelConfigChange, may=lambda: caller.store.models.require(model_config))
        given: dict[str, Any] = {name: getattr(body, name) for name in body.given}
        if "options" in given:
            await caller.store.models.require(model_config)
            known = (await caller.store.models.get(model_config)).config
            given["options"] = masked_headers.unmask(body.options, known.options.headers)
        return answer(await _view(await caller.store.models.update(model_config, ModelConfigPatch(**given))))

    @routes.delete("/model-configs/{model_config}", "model_configs.delete", errors=(404,))
    async def delete(caller: Caller, model_config: UUID) -> Response:
        """Remove a model from pickers. Chats that used it continue with the default."""
        await caller.store.models.delete(model_config)
        return nothing()

    @routes.delete(
        "/model-configs/{model_config}/learned-window",
        "model_configs.forget_window",
        returns=ModelConfigView,
        errors=(404,),
    )
    async def forget_window(caller: Caller, model_config: UUID) -> Response:
        """Forget the window size learned from refused requests. The next refusal sets it again."""
        return answer(await _view(await caller.store.models.forget_window(model_config)))

    return routes


async def _view(known: KnownModel) -> ModelConfigView:
    config = known.config
    # In a thread, because the first lookup loads the table.
    window = await asyncio.to_thread(_window, known)
    fields = {name: getattr(config, name) for name in ModelConfigView.__struct_fields__ if hasattr(config, name)}
    fields["options"] = masked_headers.mask(config.options)
    return ModelConfigView(
        **fields, window=window, reasoning_efforts=reasoning_effort.selectable(config.options.reasoning_effort)
    )


def _window(known: KnownModel) -> WindowView:
    windows = windows_of(known.config, known.provider.type, known.window)
    stored = known.window
    return WindowView(
        effective=windows.effective or known.config.context_limit,
        catalogued=windows.catalogued,
        reported=windows.reported,
        reported_at=None if stored is None else stored.reported_at,
        learned=windows.learned,
        learned_from=None if windows.learned_from is None else windows.learned_from.value,
        learned_at=None if stored is None else stored.learned_at,
        differs=windows.differs,
    )
