"""Users' own provider keys: one per user and provider, stored sealed. A chat uses the key of its owner."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rookery.domain.models.options import KEYLESS
from rookery.store.db.pool import Connection
from rookery.store.models import providers
from rookery.store.models.errors import KeysMissing, ProviderUnavailable, UserKeyNotFound, UserKeysDisabled
from rookery.store.models.sealed_headers import Sealer, Secret

TABLE = "user_provider_keys"
COLUMN = "key_enc"

OF_USER = "SELECT provider_id, key_enc FROM user_provider_keys WHERE user_id = $1"
PUT = """
    INSERT INTO user_provider_keys (user_id, provider_id, key_enc)
    VALUES ($1, $2, $3)
    ON CONFLICT (user_id, provider_id) DO UPDATE SET key_enc = excluded.key_enc, updated_at = clock_timestamp()
"""
DELETE = "DELETE FROM user_provider_keys WHERE user_id = $1 AND provider_id = $2 RETURNING true"
# Disabled providers are listed if the user has a key for them, so that the key can be removed.
LIST = """
    SELECT p.id, p.name, p.display_name, p.type, p.enabled, k.key_enc IS NOT NULL, p.api_key_enc IS NOT NULL,
           p.source = 'env', p.central_key_enabled, p.allow_user_key
      FROM model_providers p
      LEFT JOIN user_provider_keys k ON k.provider_id = p.id AND k.user_id = $1
     WHERE NOT p.deleted
       AND (p.enabled OR k.key_enc IS NOT NULL)
     ORDER BY lower(p.display_name), p.name
"""


class KeyStatus(msgspec.Struct, frozen=True):
    """The keys that exist for a provider, as a user may see them."""

    provider_id: UUID
    name: str
    display_name: str
    type: str
    enabled: bool
    has_user_key: bool
    has_central_key: bool
    user_key_allowed: bool


def row_id(user_id: UUID, provider_id: UUID) -> str:
    """Return the row id of a sealed key. The key is bound to it, and to its table and column."""
    return f"{user_id}/{provider_id}"


async def put_user_key(
    conn: Connection, user_id: UUID, *, provider_id: UUID, api_key: Secret, ring: Sealer | None
) -> None:
    """Save or replace the user's key. The caller publishes a `ConfigHint(kind="provider")` after the commit."""
    async with conn.transaction():
        provider = await providers.get_provider(conn, provider_id)
        if not provider.enabled:
            raise ProviderUnavailable(provider_id)
        if not provider.allow_user_key:
            raise UserKeysDisabled(provider.name)
        value = providers.check_key(api_key)
        if ring is None:
            raise KeysMissing
        sealed = ring.seal(value, table=TABLE, row_id=row_id(user_id, provider_id), column=COLUMN)
        await conn.execute(PUT, user_id, provider_id, sealed)


async def delete_user_key(conn: Connection, user_id: UUID, *, provider_id: UUID) -> None:
    """Delete the user's key, even if the provider is disabled or deleted. Raises `UserKeyNotFound`."""
    if await conn.fetchval(DELETE, user_id, provider_id) is None:
        raise UserKeyNotFound


async def user_keys(conn: Connection, user_id: UUID) -> dict[UUID, str]:
    """Return all sealed keys of a user, by provider."""
    return {record[0]: record[1] for record in await conn.fetch(OF_USER, user_id)}


async def list_key_status(conn: Connection, user_id: UUID) -> list[KeyStatus]:
    found = []
    for record in await conn.fetch(LIST, user_id):
        provider_id, name, display_name, type_, enabled, has_user, has_key, is_env, central, allowed = record
        has_central = central and (has_key or is_env or type_ in KEYLESS)
        found.append(KeyStatus(provider_id, name, display_name, type_, enabled, has_user, has_central, allowed))
    return found
