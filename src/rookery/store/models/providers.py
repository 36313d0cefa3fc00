"""Model providers and their keys.

Keys and header values are stored sealed, and only the key ring opens them (`sealed_headers`). Every write holds
`config_lock`, and its caller publishes a `ConfigHint(kind="provider")` after the commit. Providers that environment
variables define are rows, too, because model configs and messages refer to them. Their keys are never stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.models import options as models_options
from rookery.domain.models.options import DEFAULT_BASE_URLS, KEYLESS, ProviderOptions, ProviderType
from rookery.store.db.pool import Connection
from rookery.store.models import config_lock, context_windows, sealed_headers
from rookery.store.models.errors import KeysMissing, NameTaken, ProviderNotFound, ProviderReadOnly
from rookery.store.models.sealed_headers import Sealer, Secret

TABLE = "model_providers"
COLUMN = "api_key_enc"
MAX_KEY_BYTES = 10_240
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

_NEED_BASE_URL = frozenset({ProviderType.AZURE_OPENAI, ProviderType.OPENAI_COMPAT})
COLUMNS = (
    "id, type, name, display_name, icon, base_url, enabled, deleted, source, options, send_correlation, api_key_enc, "
    "headers_enc, central_key_enabled, allow_user_key, allow_central_fallback, created_at, updated_at"
)
FIND = f"SELECT {COLUMNS} FROM model_providers WHERE id = $1"
FIND_LIVE = f"{FIND} AND NOT deleted"
FIND_NAMED = f"SELECT {COLUMNS} FROM model_providers WHERE name = $1 AND NOT deleted"
LIST = f"""
    SELECT {COLUMNS}
      FROM model_providers
     WHERE $1 OR NOT deleted
     ORDER BY lower(display_name), name
"""
# Both statements write all columns. A patch is applied to the row that was read under the lock.
INSERT = f"""
    INSERT INTO model_providers (id, type, name, display_name, icon, base_url, enabled, source, options,
                                 send_correlation, api_key_enc, headers_enc, central_key_enabled, allow_user_key,
                                 allow_central_fallback)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
    RETURNING {COLUMNS}
"""
UPDATE = f"""
    UPDATE model_providers
       SET type = $2, name = $3, display_name = $4, icon = $5, base_url = $6, enabled = $7, source = $8, options = $9,
           send_correlation = $10, api_key_enc = $11, headers_enc = $12, central_key_enabled = $13,
           allow_user_key = $14, allow_central_fallback = $15, updated_at = clock_timestamp()
     WHERE id = $1
    RETURNING {COLUMNS}
"""
DELETE = """
    UPDATE model_providers
       SET deleted = true, api_key_enc = NULL, headers_enc = NULL, updated_at = clock_timestamp()
     WHERE id = $1
"""
LIST_UNSEALED_HEADERS = f"""
    SELECT {COLUMNS}
      FROM model_providers
     WHERE headers_enc IS NULL
       AND options -> 'headers' <> '{{}}'::jsonb
       AND NOT deleted
"""
DELETE_KEYS = "DELETE FROM user_provider_keys WHERE provider_id = $1"
DELETE_MODEL_HEADERS = "UPDATE model_configs SET headers_enc = NULL WHERE provider_id = $1 AND headers_enc IS NOT NULL"


Maybe: TypeAlias = UnsetType


class Provider(msgspec.Struct, frozen=True):
    """A provider as stored. `type` is text, so that a type of a newer version can be listed as unavailable."""

    id: UUID
    type: str
    name: str
    display_name: str
    icon: str
    base_url: str | None
    enabled: bool
    deleted: bool
    source: str
    options: ProviderOptions
    send_correlation: bool
    api_key_enc: str | None
    headers_enc: str | None
    central_key_enabled: bool
    allow_user_key: bool
    allow_central_fallback: bool
    created_at: datetime
    updated_at: datetime

    @property
    def is_env(self) -> bool:
        return self.source == "env"

    @property
    def is_live(self) -> bool:
        return self.enabled and not self.deleted

    @property
    def effective_base_url(self) -> str | None:
        return self.base_url or DEFAULT_BASE_URLS.get(self.type)


class ProviderDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A provider to create. Fallback to the central key is on by default if central and user keys are allowed."""

    type: ProviderType
    name: str
    display_name: str = ""
    icon: str = ""
    base_url: str | None = None
    enabled: bool = True
    options: Mapping[str, object] = {}
    send_correlation: bool = False
    api_key: Secret | None = None
    central_key_enabled: bool = True
    allow_user_key: bool = False
    allow_central_fallback: bool | Maybe = UNSET


class ProviderPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a provider. A field that is UNSET keeps its value, and `api_key=None` removes the key.

    The type of a provider never changes.
    """

    name: str | Maybe = UNSET
    display_name: str | Maybe = UNSET
    icon: str | Maybe = UNSET
    base_url: str | Maybe | None = UNSET
    enabled: bool | Maybe = UNSET
    options: Mapping[str, object] | Maybe = UNSET
    send_correlation: bool | Maybe = UNSET
    api_key: Secret | Maybe | None = UNSET
    central_key_enabled: bool | Maybe = UNSET
    allow_user_key: bool | Maybe = UNSET
    allow_central_fallback: bool | Maybe = UNSET


async def find_provider(conn: Connection, provider_id: UUID) -> Provider | None:
    """Return a provider, including a deleted one, because messages refer to it."""
    record = await conn.fetchrow(FIND, provider_id)
    return None if record is None else from_record(record)


async def find_provider_named(conn: Connection, name: str) -> Provider | None:
    record = await conn.fetchrow(FIND_NAMED, name)
    return None if record is None else from_record(record)


async def get_provider(conn: Connection, provider_id: UUID) -> Provider:
    """Return a provider. Raises `ProviderNotFound` if it does not exist or is deleted."""
    record = await conn.fetchrow(FIND_LIVE, provider_id)
    if record is None:
        raise ProviderNotFound(provider_id)
    return from_record(record)


async def list_providers(conn: Connection, *, with_deleted: bool = False) -> list[Provider]:
    """Return the providers in order of their names. `with_deleted` includes the deleted ones."""
    return [from_record(record) for record in await conn.fetch(LIST, with_deleted)]


async def create_provider(conn: Connection, draft: ProviderDraft, *, ring: Sealer | None) -> Provider:
    provider_id = uuid4()
    now = datetime.min  # not written: the database sets both times
    options = models_options.parse_provider_options(draft.type, draft.options)
    provider = Provider(
        id=provider_id,
        type=draft.type,
        name=draft.name,
        display_name=draft.display_name,
        icon=draft.icon,
        base_url=checked_base_url(draft.base_url),
        enabled=draft.enabled,
        deleted=False,
        source="db",
        options=with_masks(options),
        send_correlation=draft.send_correlation,
        api_key_enc=_sealed(provider_id, draft.api_key, ring=ring),
        headers_enc=sealed_headers.seal(options.headers, table=TABLE, row_id=provider_id, ring=ring),
        central_key_enabled=draft.central_key_enabled,
        allow_user_key=draft.allow_user_key,
        allow_central_fallback=_fallback(draft.allow_central_fallback, draft.central_key_enabled, draft.allow_user_key),
        created_at=now,
        updated_at=now,
    )
    check(provider)
    async with config_lock.held(conn):
        return await _write(conn, INSERT, provider)


def unsaved(draft: ProviderDraft) -> Provider:
    """Return the provider that this draft would create, for a try before it is stored. Header values are not masked.

    Raises `InvalidInput` as a creation would.
    """
    if draft.api_key is not None:
        check_key(draft.api_key)
    provider = Provider(
        id=uuid4(),
        type=draft.type,
        name=draft.name,
        display_name=draft.display_name,
        icon=draft.icon,
        base_url=checked_base_url(draft.base_url),
        enabled=True,
        deleted=False,
        source="db",
        options=models_options.parse_provider_options(draft.type, draft.options),
        send_correlation=False,
        api_key_enc=None if draft.api_key is None else "",
        headers_enc=None,
        central_key_enabled=True,
        allow_user_key=False,
        allow_central_fallback=False,
        created_at=datetime.min,
        updated_at=datetime.min,
    )
    check(provider)
    return provider


async def update_provider(
    conn: Connection, provider_id: UUID, *, patch: ProviderPatch, ring: Sealer | None
) -> Provider:
    async with config_lock.held(conn):
        current = await get_provider(conn, provider_id)
        if current.is_env:
            raise ProviderReadOnly(current.name)
        changed = _patched(current, patch, ring=ring)
        check(changed)
        if (changed.type, changed.base_url) != (current.type, current.base_url):
            await context_windows.drop_of_provider(conn, provider_id)
        return await _write(conn, UPDATE, changed)


async def delete_provider(conn: Connection, provider_id: UUID) -> None:
    """Mark the provider as deleted, which hides its models, and delete all its keys and header values.

    The row stays, because messages refer to it.
    """
    async with config_lock.held(conn):
        current = await get_provider(conn, provider_id)
        if current.is_env:
            raise ProviderReadOnly(current.name)
        await conn.execute(DELETE_KEYS, provider_id)
        await conn.execute(DELETE_MODEL_HEADERS, provider_id)
        await conn.execute(DELETE, provider_id)
        await config_lock.promote_if_unusable(conn)


def check(provider: Provider) -> None:
    """Check the fields of a provider. Raises `InvalidInput` with the name of the field."""
    if not NAME.fullmatch(provider.name) or len(provider.name) > 64:
        raise InvalidInput("name", "A name has at most 64 characters: a-z, 0-9 and single hyphens between them.")
    _check_text("display_name", provider.display_name)
    _check_text("icon", provider.icon)
    if provider.base_url is None and provider.type in _NEED_BASE_URL:
        raise InvalidInput("base_url", f"A provider of type {provider.type} needs a base URL.")
    if not provider.central_key_enabled and not provider.allow_user_key:
        raise InvalidInput("central_key_enabled", "Allow the central key, keys of users, or both.")
    if provider.allow_central_fallback and not (provider.central_key_enabled and provider.allow_user_key):
        raise InvalidInput(
            "allow_central_fallback",
            "Fallback to the central key requires that it and keys of users are allowed.",
        )
    if provider.central_key_enabled and provider.api_key_enc is None and provider.type not in KEYLESS:
        raise InvalidInput("api_key", "The central key is enabled, but there is none. Add a key, or disable it.")


def check_key(api_key: Secret) -> str:
    """Return the value of the key. Raises `InvalidInput` if it is invalid; the message never quotes the value."""
    value = api_key.reveal()
    if not value or value != value.strip():
        raise InvalidInput("api_key", "The key is empty or has white space around it. Copy it again.")
    if not value.isprintable() or not value.isascii():
        raise InvalidInput("api_key", "The key has characters that cannot be sent in a header. Copy it again.")
    if len(value) > MAX_KEY_BYTES:
        raise InvalidInput("api_key", f"The key is longer than {MAX_KEY_BYTES} bytes.")
    return value


def from_record(record: asyncpg.Record) -> Provider:
    values: list[Any] = list(record)
    values[_OPTIONS] = models_options.read_provider_options(values[_OPTIONS])
    return Provider(*values)


_OPTIONS = Provider.__struct_fields__.index("options")


def _patched(current: Provider, patch: ProviderPatch, *, ring: Sealer | None) -> Provider:
    given = {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
    if "base_url" in given:
        given["base_url"] = checked_base_url(given["base_url"])
    if "options" in given:
        options = models_options.parse_provider_options(ProviderType(current.type), given["options"])
        headers = sealed_headers.restored(options.headers, open_headers(current, ring))
        given["options"] = with_masks(options)
        given["headers_enc"] = sealed_headers.seal(headers, table=TABLE, row_id=current.id, ring=ring)
    if "api_key" in given:
        given["api_key_enc"] = _sealed(current.id, given.pop("api_key"), ring=ring)
    changed = msgspec.structs.replace(current, **given)
    if patch.allow_central_fallback is UNSET and current.allow_central_fallback:
        # The patch does not set the fallback, so it is turned off together with the keys that it needs.
        both = changed.central_key_enabled and changed.allow_user_key
        changed = msgspec.structs.replace(changed, allow_central_fallback=both)
    return changed


def _fallback(asked: bool | Maybe, central: bool, user: bool) -> bool:
    return central and user if isinstance(asked, UnsetType) else asked


def _sealed(provider_id: UUID, api_key: Secret | None, *, ring: Sealer | None) -> str | None:
    if api_key is None:
        return None
    value = check_key(api_key)
    if ring is None:
        raise KeysMissing
    return ring.seal(value, table=TABLE, row_id=str(provider_id), column=COLUMN)


def with_masks(options: ProviderOptions) -> ProviderOptions:
    """Return the options as stored and shown, with masks in place of header values."""
    return msgspec.structs.replace(options, headers=sealed_headers.masked(options.headers))


def open_headers(provider: Provider, ring: Sealer | None) -> Mapping[str, str]:
    """Return the headers with their values, or no headers if this ring cannot open them."""
    if provider.headers_enc is None:
        return provider.options.headers  # there are none, or an older version stored them unsealed
    return sealed_headers.unseal(provider.headers_enc, table=TABLE, row_id=provider.id, ring=ring)


async def seal_unsealed_headers(conn: Connection, ring: Sealer) -> int:
    """Seal headers that an older version stored unsealed. Returns the number of providers."""
    async with config_lock.held(conn):
        found = [from_record(record) for record in await conn.fetch(LIST_UNSEALED_HEADERS)]
        for provider in found:
            sealed = msgspec.structs.replace(
                provider,
                options=with_masks(provider.options),
                headers_enc=sealed_headers.seal(provider.options.headers, table=TABLE, row_id=provider.id, ring=ring),
            )
            await _write(conn, UPDATE, sealed)
    return len(found)


def checked_base_url(url: str | None) -> str | None:
    """Return the address without a trailing slash. Raises `InvalidInput`."""
    if url is None:
        return None
    wrong = InvalidInput("base_url", "The base URL must be an absolute http or https URL without user name or query.")
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port != 0
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        raise wrong
    if parts.username is not None or parts.query or parts.fragment or re.search(r"[\s\x00-\x1f\\]|[?#]$", url):
        raise wrong
    return url.rstrip("/")


def _check_text(field: str, text: str) -> None:
    if len(text) > 200 or re.search("[\x00-\x1f\x7f\ud800-\udfff]", text):
        raise InvalidInput(field, "This text is longer than 200 characters or has control characters.")


async def _write(conn: Connection, statement: str, provider: Provider) -> Provider:
    try:
        # With the savepoint, the caller's transaction stays usable if the name is taken.
        async with conn.transaction():
            record = await conn.fetchrow(
                statement,
                provider.id,
                provider.type,
                provider.name,
                provider.display_name,
                provider.icon,
                provider.base_url,
                provider.enabled,
                provider.source,
                models_options.encode(provider.options),
                provider.send_correlation,
                provider.api_key_enc,
                provider.headers_enc,
                provider.central_key_enabled,
                provider.allow_user_key,
                provider.allow_central_fallback,
            )
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name != "model_providers_name":
            raise
        raise NameTaken(provider.name) from None
    assert record is not None
    return from_record(record)
