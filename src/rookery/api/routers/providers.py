"""Model providers: their type, address and key. Administrators change them; auditors read them.

Keys are write-only. A response shows only whether there is a key.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from pydantic import Field, SecretStr
from starlette.responses import Response

from rookery.api import headers, masked_headers
from rookery.api.caller import Caller
from rookery.api.errors import ApiError, BadFields, FieldError
from rookery.api.request_bodies import SLUG, Body
from rookery.api.routes import Items, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.models.options import ProviderType
from rookery.models import provider_check
from rookery.runtime.secret_str import SecretStr as StoredKey
from rookery.store.models.errors import ProviderReadOnly
from rookery.store.models.providers import MAX_KEY_BYTES, Provider, ProviderDraft, ProviderPatch, unsaved


class ProviderView(msgspec.Struct, frozen=True, kw_only=True):
    """A provider. `source` is `db`, or `env` for a provider from the server's environment, which is read-only."""

    id: UUID
    type: str
    name: str
    display_name: str
    icon: str
    base_url: str | None
    enabled: bool
    source: str
    options: dict[str, Any]
    send_correlation: bool
    has_key: bool
    central_key_enabled: bool
    allow_user_key: bool
    allow_central_fallback: bool
    created_at: datetime
    updated_at: datetime


class ProviderCreate(Body):
    """A new provider. `allow_central_fallback` defaults to true if central and user keys are both allowed."""

    type: ProviderType
    name: str = Field(min_length=1, max_length=64, pattern=SLUG)
    display_name: str = Field("", max_length=200)
    icon: str = Field("", max_length=200)
    base_url: str | None = Field(None, max_length=2000)
    enabled: bool = True
    options: dict[str, Any] = Field(default_factory=dict)
    send_correlation: bool = False
    api_key: SecretStr | None = Field(None, min_length=1, max_length=MAX_KEY_BYTES)
    central_key_enabled: bool = True
    allow_user_key: bool = False
    allow_central_fallback: bool = Field(default_factory=bool)


class ProviderChange(Body):
    """Changes of a provider. Absent fields keep their values; a null `api_key` removes the key.

    `options` are replaced as a whole; `***` keeps a stored value.
    """

    name: str = Field(default_factory=str, min_length=1, max_length=64, pattern=SLUG)
    display_name: str = Field(default_factory=str, max_length=200)
    icon: str = Field(default_factory=str, max_length=200)
    base_url: str | None = Field(None, max_length=2000)
    enabled: bool = Field(default_factory=bool)
    options: dict[str, Any] = Field(default_factory=dict)
    send_correlation: bool = Field(default_factory=bool)
    api_key: SecretStr | None = Field(None, min_length=1, max_length=MAX_KEY_BYTES)
    central_key_enabled: bool = Field(default_factory=bool)
    allow_user_key: bool = Field(default_factory=bool)
    allow_central_fallback: bool = Field(default_factory=bool)


class ProbeError(msgspec.Struct, frozen=True):
    kind: str
    message: str


class ProbeView(msgspec.Struct, frozen=True):
    """The result of a test: whether the provider answered, and the time that it took."""

    ok: bool
    latency_ms: int
    error: ProbeError | None


class ProviderTry(Body):
    """A provider to try before it is stored.

    With `model`, that model gets a short message. Without it, the models are listed. With `provider_id`, a change of
    that provider is tried: absent fields have its values, and `***` in a header stands for the stored value.
    """

    type: ProviderType
    provider_id: UUID | None = None
    base_url: str | None = Field(None, max_length=2000)
    options: dict[str, Any] = Field(default_factory=dict)
    api_key: SecretStr | None = Field(None, min_length=1, max_length=MAX_KEY_BYTES)
    model: str | None = Field(None, min_length=1, max_length=200)


class TryView(msgspec.Struct, frozen=True):
    """The result of a try. `tried` names the request and its address. `models` are the ids that the provider lists."""

    ok: bool
    tried: str
    latency_ms: int
    models: tuple[str, ...]
    error: ProbeError | None


class UpstreamModel(msgspec.Struct, frozen=True):
    id: str


def router(services: ApiServices) -> Routes:
    routes = Routes("model providers")

    @routes.get("/model-providers", "providers.list", returns=Items[ProviderView])
    async def list_providers(caller: Caller) -> Response:
        """List all providers by name."""
        found = await caller.store.providers.list()
        return answer(Items(tuple([await _view(provider) for provider in found])))

    @routes.post(
        "/model-providers",
        "providers.create",
        body=ProviderCreate,
        returns=ProviderView,
        status=201,
        errors=(409, 412),
        gives=[headers.LOCATION],
    )
    async def create(caller: Caller) -> Response:
        """Add a provider. 412 if a key is given but the server has no encryption key."""
        body = await caller.read(ProviderCreate, may=caller.store.providers.require)
        await caller.store.providers.require()
        given = _given(body)
        given["options"] = masked_headers.unmask(body.options)
        made = await caller.store.providers.create(ProviderDraft(**given))
        return answer(await _view(made), 201, Location=f"/api/v1/model-providers/{made.id}")

    @routes.post("/model-providers/try", "providers.try_unsaved", body=ProviderTry, returns=TryView, errors=(404, 409))
    async def try_unsaved(caller: Caller) -> Response:
        """Try a provider without storing it: list its models, or send a short message to one, within 30 seconds.

        The provider charges for the message. It is not part of the usage report.
        """
        body = await caller.read(ProviderTry, may=caller.store.providers.require)
        await caller.store.providers.require()
        key = None if body.api_key is None else StoredKey(body.api_key.get_secret_value())
        base_url, options = body.base_url, body.options
        known_headers: dict[str, str] | None = None
        if body.provider_id is not None:
            known, stored_key = await _changeable(caller, body.provider_id, body.type)
            known_headers = dict(known.options.headers)
            key = key or stored_key
            base_url = base_url if "base_url" in body.given else known.base_url
            options = options if "options" in body.given else msgspec.to_builtins(known.options)
        draft = ProviderDraft(
            type=body.type,
            name=body.type.value.replace("_", "-"),
            display_name="The provider",
            base_url=base_url,
            options=masked_headers.unmask(options, known_headers),
            api_key=key,
        )
        tried = await provider_check.try_unsaved(unsaved(draft), key, body.model, connector=services.connector)
        await caller.store.providers.record_try(body.type)
        error = None if tried.error is None else ProbeError(tried.error.kind, tried.error.message)
        return answer(TryView(error is None, tried.tried, tried.latency_ms, tried.models, error))

    @routes.get("/model-providers/{provider}", "providers.get", returns=ProviderView, errors=(404,))
    async def get(caller: Caller, provider: UUID) -> Response:
        """Return one provider."""
        return answer(await _view(await caller.store.providers.get(provider)))

    @routes.patch(
        "/model-providers/{provider}",
        "providers.update",
        body=ProviderChange,
        returns=ProviderView,
        errors=(404, 409, 412),
    )
    async def update(caller: Caller, provider: UUID) -> Response:
        """Change a provider. The next step of every chat uses the change."""
        body = await caller.read(ProviderChange, may=lambda: caller.store.providers.require(provider))
        given = _given(body)
        if "options" in given:
            await caller.store.providers.require(provider)
            known = await caller.store.providers.get(provider)
            given["options"] = masked_headers.unmask(body.options, known.options.headers)
        return answer(await _view(await caller.store.providers.update(provider, ProviderPatch(**given))))

    @routes.delete("/model-providers/{provider}", "providers.delete", errors=(404, 409))
    async def delete(caller: Caller, provider: UUID) -> Response:
        """Delete a provider with its models and all keys for it. Chats keep their messages."""
        await caller.store.providers.delete(provider)
        return nothing()

    @routes.post("/model-providers/{provider}/test", "providers.test", returns=ProbeView, errors=(404,))
    async def test(caller: Caller, provider: UUID) -> Response:
        """Test a provider with a short call to one of its models, within 30 seconds.

        The provider charges for this call.
        """
        await _present(caller, provider)
        tried = await provider_check.try_provider(
            provider,
            user_id=caller.user.id,
            directory=services.directory,
            connector=services.connector,
            now=services.clock.now(),
        )
        await caller.store.providers.record_test(provider, tried.call)
        error = None if tried.error is None else ProbeError(tried.error.kind, tried.error.message)
        return answer(ProbeView(error is None, tried.latency_ms, error))

    @routes.get(
        "/model-providers/{provider}/upstream-models",
        "providers.upstream_models",
        returns=Items[UpstreamModel],
        errors=(404, 502),
    )
    async def upstream(caller: Caller, provider: UUID) -> Response:
        """List the ids of the models that the provider offers."""
        await _present(caller, provider)
        try:
            found = await provider_check.upstream_models(
                provider, directory=services.directory, connector=services.connector
            )
        except provider_check.ModelListUnavailable as error:
            raise ApiError(502, "upstream_failed", str(error)) from None
        return answer(Items(tuple(UpstreamModel(each) for each in found)))

    async def _present(caller: Caller, provider_id: UUID) -> None:
        await caller.store.providers.require(provider_id)
        if provider_id not in (await services.directory.snapshot()).providers:
            # Another replica has just created it, and its notification has not arrived yet.
            services.directory.invalidate()

    async def _changeable(caller: Caller, provider_id: UUID, type: ProviderType) -> tuple[Provider, StoredKey | None]:
        """Return a stored provider that can be changed, with its open headers and its central key."""
        await caller.store.providers.require(provider_id)
        services.directory.invalidate()  # the values of the moment, also after a change by another replica
        snapshot = await services.directory.snapshot()
        known = snapshot.providers[provider_id]
        if known.is_env:
            # Its key must not be sent to an address from the request.
            raise ProviderReadOnly(known.name)
        if known.type != type:
            raise BadFields([FieldError("type", "This provider has another type.")])
        return known, snapshot.keys.get(provider_id)

    async def _view(provider: Provider) -> ProviderView:
        has_key = provider.api_key_enc is not None
        if provider.is_env:
            has_key = provider.id in (await services.directory.snapshot()).keys
        return ProviderView(
            id=provider.id,
            type=provider.type,
            name=provider.name,
            display_name=provider.display_name,
            icon=provider.icon,
            base_url=provider.base_url,
            enabled=provider.enabled,
            source=provider.source,
            options=masked_headers.mask(provider.options),
            send_correlation=provider.send_correlation,
            has_key=has_key,
            central_key_enabled=provider.central_key_enabled,
            allow_user_key=provider.allow_user_key,
            allow_central_fallback=provider.allow_central_fallback,
            created_at=provider.created_at,
            updated_at=provider.updated_at,
        )

    return routes


def _given(body: ProviderCreate | ProviderChange) -> dict[str, Any]:
    """Return the fields that were sent, with the key in a type that is never printed."""
    given: dict[str, Any] = {name: getattr(body, name) for name in body.given}
    if isinstance(body.api_key, SecretStr):
        given["api_key"] = StoredKey(body.api_key.get_secret_value())
    return given
