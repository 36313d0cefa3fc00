"""Users' own keys for providers that accept them. They are write-only, and used for the user's own chats."""

from __future__ import annotations

from uuid import UUID

import msgspec
from pydantic import Field, SecretStr
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import Items, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.runtime.secret_str import SecretStr as StoredKey
from rookery.store.models.providers import MAX_KEY_BYTES
from rookery.store.models.user_keys import KeyStatus


class ProviderOfKey(msgspec.Struct, frozen=True):
    id: UUID
    type: str
    name: str
    display_name: str
    enabled: bool


class ProviderKeyView(msgspec.Struct, frozen=True):
    """Whether the user has a key, and whether the installation has one."""

    provider: ProviderOfKey
    has_user_key: bool
    has_central_key: bool
    user_key_allowed: bool


class ProviderKeyPut(Body):
    api_key: SecretStr = Field(min_length=1, max_length=MAX_KEY_BYTES)


def router(services: ApiServices) -> Routes:
    routes = Routes("own provider keys")

    @routes.get("/me/provider-keys", "provider_keys.list", returns=Items[ProviderKeyView])
    async def list_keys(caller: Caller) -> Response:
        """List the enabled providers, and also disabled ones for which the caller has a key."""
        return answer(Items(tuple(map(_view, await caller.store.provider_keys.list(caller.user.id)))))

    @routes.put("/me/provider-keys/{provider}", "provider_keys.put", body=ProviderKeyPut, errors=(404, 412))
    async def put(caller: Caller, provider: UUID) -> Response:
        """Save or replace your key for a provider.

        403 if user keys are not allowed, 412 while the provider is disabled.
        """
        body = await caller.read(ProviderKeyPut, may=lambda: caller.store.provider_keys.require(caller.user.id))
        key = StoredKey(body.api_key.get_secret_value())
        await caller.store.provider_keys.put(caller.user.id, provider, api_key=key)
        return nothing()

    @routes.delete("/me/provider-keys/{provider}", "provider_keys.delete", errors=(404,))
    async def delete(caller: Caller, provider: UUID) -> Response:
        """Delete your key for a provider, even if the provider is disabled or deleted."""
        await caller.store.provider_keys.delete(caller.user.id, provider)
        return nothing()

    return routes


def _view(status: KeyStatus) -> ProviderKeyView:
    provider = ProviderOfKey(status.provider_id, status.type, status.name, status.display_name, status.enabled)
    return ProviderKeyView(provider, status.has_user_key, status.has_central_key, status.user_key_allowed)
