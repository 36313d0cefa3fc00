"""Providers in the database: their rules, their keys, presets of the environment, rotation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.models.options import KEYLESS, ProviderType
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.secret_str import SecretStr
from rookery.store.models import key_rotation, model_configs, preset_providers, providers, user_keys
from rookery.store.models.errors import (
    KeysMissing,
    NameTaken,
    ProviderNotFound,
    ProviderReadOnly,
    ProviderUnavailable,
    UserKeyNotFound,
    UserKeysDisabled,
)
from rookery.store.models.providers import ProviderDraft, ProviderPatch
from tests.store.models.provider_rows import KEY, RING, ModelRows, open_nest


@pytest.fixture
async def nest(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as nest:
        yield nest


async def dump(nest: ModelRows) -> str:
    """Return all stored bytes that could contain a key."""
    rows = await nest.conn.fetch(
        "SELECT p::text FROM model_providers p UNION ALL SELECT k::text FROM user_provider_keys k"
    )
    return "\n".join(row[0] for row in rows)


async def test_saved_key_is_ciphertext_in_the_database_and_opens_with_the_ring(nest: ModelRows) -> None:
    provider = await nest.provider()

    assert provider.api_key_enc is not None
    assert KEY not in await dump(nest)
    assert KEY not in repr(provider)
    opened = RING.open(provider.api_key_enc, table="model_providers", row_id=str(provider.id), column="api_key_enc")
    assert opened == SecretStr(KEY)


async def test_key_cannot_be_saved_without_a_ring(nest: ModelRows) -> None:
    draft = ProviderDraft(type=ProviderType.ANTHROPIC, name="a", api_key=SecretStr(KEY))

    with pytest.raises(KeysMissing):
        await providers.create_provider(nest.conn, draft, ring=None)

    assert await providers.list_providers(nest.conn) == []


@pytest.mark.parametrize("key", ["", " lead-42", "trail-42\n", "k" * 10_241, "kéy", "a\x00b"], ids=range(6))
async def test_bad_key_is_refused_and_never_quoted(nest: ModelRows, key: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await nest.provider(key=key)

    assert caught.value.field == "api_key"
    assert not key.strip() or key.strip() not in str(caught.value)


async def test_longest_key_is_taken(nest: ModelRows) -> None:
    assert (await nest.provider(key="k" * 10_240)).api_key_enc is not None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "Upper"}, "name"),
        ({"name": "a--b"}, "name"),
        ({"name": "-a"}, "name"),
        ({"base_url": "ftp://host"}, "base_url"),
        ({"base_url": "/v1"}, "base_url"),
        ({"base_url": "https://user:pass@host/v1"}, "base_url"),
        ({"base_url": "https://host/v1?key=1"}, "base_url"),
        ({"base_url": "https://host:99999"}, "base_url"),
        ({"type_": "azure_openai"}, "base_url"),
        ({"central_key_enabled": False}, "central_key_enabled"),
        ({"allow_central_fallback": True}, "allow_central_fallback"),
        ({"key": None}, "api_key"),
        ({"options": {"nonsense": 1}}, "options.nonsense"),
        ({"options": {"region": "eu"}}, "options.region"),
        ({"options": {"auth_style": "basic"}}, "options.auth_style"),
        ({"options": {"api_version": "newest"}}, "options.api_version"),
        ({"options": {"send_user_hash": "yes"}}, "options.send_user_hash"),
        ({"type_": "openai", "options": {"auth_style": "bearer"}}, "options.auth_style"),
        ({"type_": "google", "options": {"send_user_hash": True}}, "options.send_user_hash"),
        ({"options": {"headers": {"Authorization": "x"}}}, "options.headers"),
        ({"options": {"headers": {"a b": "x"}}}, "options.headers"),
        ({"options": {"headers": {"a": "x\r\ny: z"}}}, "options.headers"),
        ({"display_name": "bell\x07"}, "display_name"),
    ],
)
async def test_bad_provider_is_refused_by_field(nest: ModelRows, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await nest.provider(**fields)

    assert caught.value.field == field


async def test_central_key_may_be_missing_where_none_is_needed(nest: ModelRows) -> None:
    for type_ in sorted(KEYLESS):
        assert (await nest.provider(type_, key=None, base_url="http://localhost:1/v1")).api_key_enc is None


async def test_fallback_to_the_central_key_is_on_where_both_are_allowed(nest: ModelRows) -> None:
    provider = await nest.provider(allow_user_key=True)
    assert provider.allow_central_fallback

    narrowed = await providers.update_provider(
        nest.conn, provider.id, patch=ProviderPatch(allow_user_key=False), ring=RING
    )

    assert not narrowed.allow_central_fallback


async def test_name_is_unique_among_live_providers(nest: ModelRows) -> None:
    first = await nest.provider(name="one")

    with pytest.raises(NameTaken):
        await nest.provider(name="one")
    await providers.delete_provider(nest.conn, first.id)

    assert (await nest.provider(name="one")).id != first.id


async def test_patch_changes_what_it_names_and_keeps_the_key(nest: ModelRows) -> None:
    provider = await nest.provider(display_name="Old", options={"headers": {"x-team": "a"}})

    changed = await providers.update_provider(
        nest.conn, provider.id, patch=ProviderPatch(display_name="New", base_url="https://host/v1/"), ring=None
    )

    assert (changed.display_name, changed.base_url) == ("New", "https://host/v1")
    assert changed.api_key_enc == provider.api_key_enc
    assert changed.options == provider.options
    assert changed.updated_at > provider.updated_at


HEADERS = {"X-Gate": "gate-secret-1", "X-Team": "birds-secret"}


async def test_values_of_headers_are_sealed_and_masked(nest: ModelRows) -> None:
    provider = await nest.provider(options={"headers": HEADERS})

    assert provider.options.headers == {"X-Gate": "***", "X-Team": "***"}
    assert providers.open_headers(provider, RING) == HEADERS
    assert providers.open_headers(provider, None) == {}
    stored = await dump(nest)
    assert "gate-secret-1" not in stored
    assert "birds-secret" not in stored


async def test_masked_header_keeps_its_value_and_one_that_never_was_is_refused(nest: ModelRows) -> None:
    provider = await nest.provider(options={"headers": HEADERS})

    changed = await providers.update_provider(
        nest.conn,
        provider.id,
        patch=ProviderPatch(options={"headers": {"x-gate": "***", "X-New": "n"}}),
        ring=RING,
    )
    with pytest.raises(InvalidInput, match="means a saved value"):
        await providers.update_provider(
            nest.conn, provider.id, patch=ProviderPatch(options={"headers": {"X-Never": "***"}}), ring=RING
        )

    assert providers.open_headers(changed, RING) == {"x-gate": "gate-secret-1", "X-New": "n"}


async def test_headers_cannot_be_saved_without_a_ring(nest: ModelRows) -> None:
    provider = await nest.provider()

    with pytest.raises(KeysMissing):
        await providers.update_provider(
            nest.conn, provider.id, patch=ProviderPatch(options={"headers": HEADERS}), ring=None
        )


async def test_headers_of_an_older_version_are_sealed_once(nest: ModelRows) -> None:
    provider = await nest.provider(options={"headers": HEADERS})
    await nest.conn.execute(
        "UPDATE model_providers SET headers_enc = NULL, options = jsonb_set(options, '{headers}', $1)",
        msgspec.json.encode(HEADERS).decode(),
    )
    clear = await providers.get_provider(nest.conn, provider.id)
    assert providers.open_headers(clear, RING) == HEADERS

    done = [await providers.seal_unsealed_headers(nest.conn, RING) for _ in range(2)]

    moved = await providers.get_provider(nest.conn, provider.id)
    assert done == [1, 0]
    assert providers.open_headers(moved, RING) == HEADERS
    assert "gate-secret-1" not in await dump(nest)


async def test_sealed_headers_move_to_another_key_of_the_ring(nest: ModelRows) -> None:
    provider = await nest.provider(options={"headers": HEADERS})

    rotation = await key_rotation.rotate(nest.conn, RING, full=True)

    moved = await providers.get_provider(nest.conn, provider.id)
    assert rotation.unreadable == 0
    assert moved.headers_enc != provider.headers_enc
    assert providers.open_headers(moved, RING) == HEADERS


async def test_key_is_replaced_and_removed_by_patch(nest: ModelRows) -> None:
    provider = await nest.provider("openai_compat", base_url="http://localhost:1/v1")

    replaced = await providers.update_provider(
        nest.conn, provider.id, patch=ProviderPatch(api_key=SecretStr("another-key-42")), ring=RING
    )
    removed = await providers.update_provider(nest.conn, provider.id, patch=ProviderPatch(api_key=None), ring=RING)

    assert replaced.api_key_enc not in (None, provider.api_key_enc)
    assert removed.api_key_enc is None


async def test_deleted_provider_is_found_for_history_only_and_forgets_its_keys(nest: ModelRows) -> None:
    provider = await nest.provider(allow_user_key=True)
    user = await nest.user()
    await user_keys.put_user_key(nest.conn, user, provider_id=provider.id, api_key=SecretStr("mine-12345"), ring=RING)

    await providers.delete_provider(nest.conn, provider.id)

    with pytest.raises(ProviderNotFound):
        await providers.get_provider(nest.conn, provider.id)
    kept = await providers.find_provider(nest.conn, provider.id)
    assert kept is not None
    assert (kept.deleted, kept.api_key_enc) == (True, None)
    assert await user_keys.user_keys(nest.conn, user) == {}


async def test_deleting_the_provider_of_the_default_promotes_another(nest: ModelRows) -> None:
    going, staying = await nest.provider(), await nest.provider()
    await nest.config(going)
    other = await nest.config(staying)

    await providers.delete_provider(nest.conn, going.id)

    assert [config.id for config in await model_configs.list_model_configs(nest.conn) if config.is_default] == [
        other.id
    ]


# Keys of users


async def test_user_key_is_saved_replaced_listed_and_deleted(nest: ModelRows) -> None:
    provider = await nest.provider(allow_user_key=True)
    user = await nest.user()

    for key in ("first-user-key", "second-user-key"):
        await user_keys.put_user_key(nest.conn, user, provider_id=provider.id, api_key=SecretStr(key), ring=RING)
    stored = (await user_keys.user_keys(nest.conn, user)).get(provider.id)
    listed = await user_keys.list_key_status(nest.conn, user)
    text = await dump(nest)
    await user_keys.delete_user_key(nest.conn, user, provider_id=provider.id)

    assert stored is not None
    row_id = user_keys.row_id(user, provider.id)
    assert RING.open(stored, table="user_provider_keys", row_id=row_id, column="key_enc") == SecretStr(
        "second-user-key"
    )
    assert "second-user-key" not in text
    assert [(s.has_user_key, s.has_central_key, s.user_key_allowed) for s in listed] == [(True, True, True)]
    with pytest.raises(UserKeyNotFound):
        await user_keys.delete_user_key(nest.conn, user, provider_id=provider.id)


async def test_user_key_is_refused_where_it_cannot_be_used(nest: ModelRows) -> None:
    closed = await nest.provider()
    disabled = await nest.provider(allow_user_key=True, enabled=False)
    fine = await nest.provider(allow_user_key=True)
    user = await nest.user()

    for provider_id, ring, error in (
        (closed.id, RING, UserKeysDisabled),
        (disabled.id, RING, ProviderUnavailable),
        (uuid4(), RING, ProviderNotFound),
        (fine.id, None, KeysMissing),
    ):
        with pytest.raises(error):
            await user_keys.put_user_key(
                nest.conn, user, provider_id=provider_id, api_key=SecretStr("mine-12345"), ring=ring
            )

    assert await user_keys.user_keys(nest.conn, user) == {}


async def test_key_can_be_deleted_after_user_keys_were_forbidden(nest: ModelRows) -> None:
    provider = await nest.provider(allow_user_key=True)
    user = await nest.user()
    await user_keys.put_user_key(nest.conn, user, provider_id=provider.id, api_key=SecretStr("mine-12345"), ring=RING)
    await providers.update_provider(
        nest.conn, provider.id, patch=ProviderPatch(allow_user_key=False, enabled=False), ring=RING
    )

    assert [status.has_user_key for status in await user_keys.list_key_status(nest.conn, user)] == [True]
    await user_keys.delete_user_key(nest.conn, user, provider_id=provider.id)

    assert await user_keys.list_key_status(nest.conn, user) == []


# Presets of the environment

ENV = {"ANTHROPIC_API_KEY": "env-key-12345", "OPENAI_API_KEY": "", "GEMINI_BASE_URL": "http://unused"}


async def test_preset_becomes_a_read_only_provider_whose_key_stays_outside(nest: ModelRows) -> None:
    made = await preset_providers.ensure_env_providers(nest.conn, ENV)

    [provider] = await providers.list_providers(nest.conn)
    assert made == [provider.id]
    assert (provider.type, provider.name, provider.source, provider.api_key_enc) == (
        "anthropic",
        "anthropic",
        "env",
        None,
    )
    assert "env-key" not in await dump(nest)
    with pytest.raises(ProviderReadOnly):
        await providers.update_provider(nest.conn, provider.id, patch=ProviderPatch(enabled=False), ring=RING)
    with pytest.raises(ProviderReadOnly):
        await providers.delete_provider(nest.conn, provider.id)
    with pytest.raises(asyncpg.CheckViolationError):
        await nest.conn.execute("UPDATE model_providers SET api_key_enc = 'x'")


async def test_preset_keeps_its_row_over_restarts_and_follows_its_base_url(nest: ModelRows) -> None:
    [first] = await preset_providers.ensure_env_providers(nest.conn, ENV)

    again = await preset_providers.ensure_env_providers(nest.conn, ENV)
    moved = await preset_providers.ensure_env_providers(nest.conn, {**ENV, "ANTHROPIC_BASE_URL": "https://proxy/"})
    broken = await preset_providers.ensure_env_providers(nest.conn, {**ENV, "ANTHROPIC_BASE_URL": "not a url"})

    assert (again, moved, broken) == ([], [first], [first])
    [provider] = await providers.list_providers(nest.conn)
    assert provider.base_url is None


async def test_preset_yields_to_a_live_provider_of_its_type(nest: ModelRows) -> None:
    await nest.provider("anthropic")
    await nest.provider("openai", name="openrouter")

    made = await preset_providers.ensure_env_providers(nest.conn, {**ENV, "OPENROUTER_API_KEY": "or-key-1234"})

    assert [p.name for p in await providers.list_providers(nest.conn) if p.id in made] == ["openrouter-2"]


async def test_replicas_that_start_together_make_one_preset(nest: ModelRows) -> None:
    async def start() -> None:
        async with nest.connection() as conn:
            await preset_providers.ensure_env_providers(conn, ENV)

    await asyncio.gather(*(start() for _ in range(5)))

    assert len(await providers.list_providers(nest.conn)) == 1


# Rotation


async def test_rotation_takes_every_value_off_the_old_key(nest: ModelRows) -> None:
    old, new = new_key("old"), new_key("new")
    before, both, after = KeyRing.parse(old), KeyRing.parse(f"{new},{old}"), KeyRing.parse(new)
    draft = ProviderDraft(type=ProviderType.ANTHROPIC, name="a", api_key=SecretStr(KEY), allow_user_key=True)
    provider = await providers.create_provider(nest.conn, draft, ring=before)
    user = await nest.user()
    await user_keys.put_user_key(nest.conn, user, provider_id=provider.id, api_key=SecretStr("mine-12345"), ring=before)

    assert await key_rotation.count_by_key_id(nest.conn, both) == {"old": 2}
    rotation = await key_rotation.rotate(nest.conn, both)
    again = await key_rotation.rotate(nest.conn, both)
    full = await key_rotation.rotate(nest.conn, after, full=True)

    assert (rotation.by_key_id, rotation.rewrapped, rotation.unreadable) == ({"new": 2}, 2, 0)
    assert (again.rewrapped, full.rewrapped) == (0, 2)
    stored = await providers.get_provider(nest.conn, provider.id)
    own = (await user_keys.user_keys(nest.conn, user)).get(provider.id)
    assert stored.api_key_enc is not None
    assert own is not None
    row_id = user_keys.row_id(user, provider.id)
    assert after.open(own, table=user_keys.TABLE, row_id=row_id, column=user_keys.COLUMN) == SecretStr("mine-12345")
    assert after.open(
        stored.api_key_enc, table=providers.TABLE, row_id=str(provider.id), column=providers.COLUMN
    ) == SecretStr(KEY)


async def test_rotation_counts_and_keeps_what_it_cannot_open(nest: ModelRows) -> None:
    provider = await nest.provider()

    rotation = await key_rotation.rotate(nest.conn, KeyRing.parse(new_key("other")))

    assert (rotation.by_key_id, rotation.unreadable) == ({"test": 1}, 1)
    assert (await providers.get_provider(nest.conn, provider.id)).api_key_enc == provider.api_key_enc
