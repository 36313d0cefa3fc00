"""The directory: configs and keys for calls, and the effect of changes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.llm.types import ErrorKind, ProviderError
from rookery.models.directory import Directory, ReadyModel
from rookery.models.key_ring import KeyRing, new_key
from rookery.models.model_resolution import Choice
from rookery.runtime.secret_str import SecretStr
from rookery.store.db.hints import ConfigHint
from rookery.store.db.pubsub import Bus
from rookery.store.models import model_configs, preset_providers, providers, user_keys
from rookery.store.models.errors import Unusable
from rookery.store.models.model_configs import ModelConfigPatch
from rookery.store.models.providers import ProviderPatch
from rookery.store.models.usage_ledger import KeySource
from rookery.store.settings import settings
from rookery.telemetry.redaction import SecretRegistry
from rookery.testing.clock import FakeClock
from tests.store.models.provider_rows import KEY, RING, ModelRows, open_nest

ENVIRON = {"ANTHROPIC_API_KEY": "env-key-0123456789"}


class Rig:
    def __init__(self, rows: ModelRows, pool: asyncpg.Pool) -> None:
        self.rows = rows
        self.clock = FakeClock()
        self.bus = Bus()
        self.registry = SecretRegistry()
        self._pool = pool
        self.made: list[Directory] = []

    def directory(self, ring: KeyRing | None = RING) -> Directory:
        made = Directory(self._pool, ring=ring, environ=ENVIRON, clock=self.clock, registry=self.registry)
        self.made.append(made)
        return made

    async def user_key(self, user: UUID, provider_id: UUID, key: str) -> None:
        await user_keys.put_user_key(self.rows.conn, user, provider_id=provider_id, api_key=SecretStr(key), ring=RING)

    async def rename(self, model_config_id: UUID, name: str) -> None:
        patch = ModelConfigPatch(display_name=name)
        await model_configs.update_model_config(self.rows.conn, model_config_id, patch=patch, by=None)


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with open_nest(database_url) as rows, asyncpg.create_pool(database_url, min_size=1, max_size=2) as pool:
        rig = Rig(rows, pool)
        yield rig
        for directory in rig.made:
            await directory.close()


def ready(answer: ReadyModel | ProviderError) -> ReadyModel:
    assert isinstance(answer, ReadyModel), answer
    return answer


async def test_call_gets_the_owners_key_then_the_central_one(rig: Rig) -> None:
    provider = await rig.rows.provider(allow_user_key=True)
    config = await rig.rows.config(provider)
    with_key, without = await rig.rows.user(), await rig.rows.user()
    await rig.user_key(with_key, provider.id, "own-key-0123456789")
    directory = rig.directory()

    own = ready(await directory.for_generation(config.id, owner_id=with_key))
    central = ready(await directory.for_generation(config.id, owner_id=without))

    assert (own.key, own.key_source) == (SecretStr("own-key-0123456789"), KeySource.USER)
    assert (central.key, central.key_source) == (SecretStr(KEY), KeySource.CENTRAL)


async def test_opened_keys_are_hidden_in_texts_and_absent_from_reprs(rig: Rig) -> None:
    provider = await rig.rows.provider(allow_user_key=True)
    config = await rig.rows.config(provider)
    user = await rig.rows.user()
    await rig.user_key(user, provider.id, "own-key-0123456789")
    directory = rig.directory()

    model = ready(await directory.for_generation(config.id, owner_id=user))
    shown = repr((model, await directory.snapshot(), directory))

    assert KEY not in shown
    assert "own-key" not in shown
    assert rig.registry.hide(f"{KEY} own-key-0123456789").count("[REDACTED:") == 2


async def test_headers_of_a_model_are_opened_for_calls_and_hidden_in_texts(rig: Rig) -> None:
    provider = await rig.rows.provider("openai_compat", base_url="http://localhost:1/v1")
    config = await rig.rows.config(provider, options={"headers": {"X-Gate": "gate-secret-1"}})

    model = ready(await rig.directory().for_generation(config.id, owner_id=await rig.rows.user()))

    assert model.config.options.headers == {"X-Gate": "gate-secret-1"}
    assert "gate-secret-1" not in rig.registry.hide("refused: gate-secret-1")


async def test_provider_is_told_users_apart_and_not_who_they_are_if_it_is_told_at_all(rig: Rig) -> None:
    told = await rig.rows.config(await rig.rows.provider(options={"send_user_hash": True}))
    untold = await rig.rows.config(await rig.rows.provider())
    users = [uuid4(), uuid4()]

    async def hash_of(config_id: UUID, user: UUID) -> str | None:
        return ready(await rig.directory().ready(Choice(config_id), owner_id=user)).user_hash

    first, second = [await hash_of(told.id, user) for user in users]
    assert first is not None
    assert first != second
    assert first == await hash_of(told.id, users[0])
    assert users[0].hex not in first
    assert len(first) <= 64
    assert await hash_of(untold.id, users[0]) is None


async def test_key_of_the_environment_is_used_from_there(rig: Rig) -> None:
    [provider_id] = await preset_providers.ensure_env_providers(rig.rows.conn, ENVIRON)
    provider = await providers.get_provider(rig.rows.conn, provider_id)
    config = await rig.rows.config(provider, "claude-opus-5")

    model = ready(await rig.directory().for_generation(config.id, owner_id=uuid4()))

    assert (model.key, model.key_source) == (SecretStr("env-key-0123456789"), KeySource.ENV)
    assert model.capabilities("anthropic").thinking.adaptive
    assert model.prices(rig.clock.now()) is not None


@pytest.mark.parametrize("ring", [None, KeyRing.parse(new_key("other"))], ids=["no ring", "another ring"])
async def test_key_that_cannot_be_opened_counts_as_missing(
    rig: Rig, ring: KeyRing | None, caplog: pytest.LogCaptureFixture
) -> None:
    provider = await rig.rows.provider()
    config = await rig.rows.config(provider)
    directory = rig.directory(ring)

    with caplog.at_level(logging.DEBUG, "rookery"):
        answer = await directory.for_generation(config.id, owner_id=uuid4())

    assert isinstance(answer, ProviderError)
    assert answer.kind is ErrorKind.MISSING_KEY
    assert KEY not in repr(answer)
    assert not any(KEY in str(record.__dict__) for record in caplog.records)
    assert await directory.unavailable(provider.id, user_id=uuid4()) is Unusable.MISSING_API_KEY


async def test_models_without_credentials_work_without_a_key(rig: Rig) -> None:
    config = await rig.rows.config(await rig.rows.provider("scripted", key=None), "echo")

    model = ready(await rig.directory(None).for_generation(config.id, owner_id=uuid4()))

    assert (model.key, model.key_source) == (None, KeySource.AMBIENT)


async def test_change_is_visible_within_the_time_to_live_without_any_hint(rig: Rig) -> None:
    config = await rig.rows.config(await rig.rows.provider())
    replicas = [rig.directory(), rig.directory()]
    for replica in replicas:
        await replica.snapshot()

    await rig.rename(config.id, "New")
    assert [(await replica.snapshot()).configs[config.id].display_name for replica in replicas] == ["", ""]
    await rig.clock.advance(10)

    assert [(await replica.snapshot()).configs[config.id].display_name for replica in replicas] == ["New", "New"]


@pytest.mark.parametrize("how", ["model", "provider", "resync"])
async def test_hint_makes_a_change_visible_at_once(rig: Rig, how: str) -> None:
    config = await rig.rows.config(await rig.rows.provider())
    directory = rig.directory()
    directory.follow(rig.bus)
    await directory.snapshot()
    await rig.rename(config.id, "New")

    if how == "resync":
        rig.bus.resync()
    else:
        rig.bus.dispatch(ConfigHint(kind=how, id=str(config.id)))

    assert (await directory.snapshot()).configs[config.id].display_name == "New"


async def test_settings_are_cached_until_a_hint(rig: Rig) -> None:
    user = await rig.rows.user()
    directory = rig.directory()
    directory.follow(rig.bus)

    async def read() -> list[Any]:
        return [await directory.setting("models"), await directory.user_setting(user, "model_overrides")]

    assert await read() == [None, None]
    await settings.write_setting(rig.rows.conn, "models", value={"general": None})
    await settings.write_user_setting(rig.rows.conn, user, key="model_overrides", value={})
    assert await read() == [None, None]
    for kind in ("settings", "user_prompt"):
        rig.bus.dispatch(ConfigHint(kind=kind))

    assert await read() == [{"general": None}, {}]


async def test_disabled_and_deleted_things_end_a_turn_as_the_table_says(rig: Rig) -> None:
    provider, other = await rig.rows.provider(), await rig.rows.provider()
    default = await rig.rows.config(other, "default")
    disabled = await rig.rows.config(other, "off", enabled=False)
    deleted = await rig.rows.config(other, "gone")
    orphan = await rig.rows.config(provider, "orphan")
    await model_configs.delete_model_config(rig.rows.conn, deleted.id, by=None)
    await providers.update_provider(rig.rows.conn, provider.id, patch=ProviderPatch(enabled=False), ring=RING)
    directory = rig.directory()

    async def outcome(model_config_id: UUID) -> object:
        answer = await directory.for_generation(model_config_id, owner_id=uuid4())
        return answer.config.id if isinstance(answer, ReadyModel) else answer.kind

    assert await outcome(disabled.id) is ErrorKind.CONFIG
    assert await outcome(deleted.id) == default.id
    assert await outcome(orphan.id) is ErrorKind.PROVIDER_DISABLED


async def test_small_enabled_models_are_candidates_for_titles(rig: Rig) -> None:
    provider = await rig.rows.provider()
    await rig.rows.config(provider, "claude-opus-5")
    small = await rig.rows.config(provider, "claude-haiku-4-5")
    await rig.rows.config(provider, "claude-haiku-5-5", enabled=False)

    assert await rig.directory().title_candidates() == (small.id,)
