"""Model configs in the database: one default, checked options and prices, soft deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.models import options as models_options
from rookery.domain.models.options import FAMILIES, ModelOptions, ProviderType
from rookery.store.models import key_rotation, model_configs, providers
from rookery.store.models.errors import KeysMissing, ModelConfigNotFound, ProviderUnavailable
from rookery.store.models.model_configs import ModelConfigDraft, ModelConfigPatch
from rookery.store.models.providers import ProviderPatch
from tests.store.models.provider_rows import RING, ModelRows, open_nest


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as rows:
        yield rows


async def defaults(rows: ModelRows) -> list[str]:
    """The models that are marked as default."""
    return [row[0] for row in await rows.conn.fetch("SELECT model FROM model_configs WHERE is_default")]


async def change(rows: ModelRows, config: model_configs.ModelConfig, **fields: Any) -> model_configs.ModelConfig:
    return await model_configs.update_model_config(rows.conn, config.id, patch=ModelConfigPatch(**fields), by=None)


async def test_first_config_becomes_the_default_and_a_new_one_replaces_it_only_when_asked(rows: ModelRows) -> None:
    provider = await rows.provider()

    await rows.config(provider, "first")
    await rows.config(provider, "second")
    assert await defaults(rows) == ["first"]

    await rows.config(provider, "third", is_default=True)
    assert await defaults(rows) == ["third"]


async def test_two_concurrent_first_creates_leave_one_default(rows: ModelRows) -> None:
    provider = await rows.provider()

    async def create(number: int) -> None:
        async with rows.connection() as conn:
            draft = ModelConfigDraft(provider_id=provider.id, model=f"m{number}", context_limit=1)
            await model_configs.create_model_config(conn, draft, by=None)

    await asyncio.gather(*(create(number) for number in range(6)))

    assert len(await model_configs.list_model_configs(rows.conn)) == 6
    assert len(await defaults(rows)) == 1


async def test_deleting_the_default_promotes_the_first_usable_one(rows: ModelRows) -> None:
    off = await rows.provider()
    on = await rows.provider()
    default = await rows.config(on, "default")
    await rows.config(off, "provider off")
    await rows.config(on, "disabled", enabled=False)
    await rows.config(on, "usable")
    await rows.config(on, "later")
    await providers.update_provider(rows.conn, off.id, patch=ProviderPatch(enabled=False), ring=RING)

    await model_configs.delete_model_config(rows.conn, default.id, by=None)

    assert await defaults(rows) == ["usable"]
    with pytest.raises(ModelConfigNotFound):
        await model_configs.get_model_config(rows.conn, default.id)
    kept = await model_configs.find_model_config(rows.conn, default.id)
    assert kept is not None
    assert kept.deleted


@pytest.mark.parametrize("how", [{"is_default": False}, {"enabled": False}], ids=["cleared", "disabled"])
async def test_clearing_or_disabling_the_default_promotes_another(rows: ModelRows, how: dict[str, Any]) -> None:
    provider = await rows.provider()
    default = await rows.config(provider, "default")
    await rows.config(provider, "other")

    await change(rows, default, **how)

    assert await defaults(rows) == ["other"]


async def test_promotion_takes_any_when_none_is_usable_and_the_last_one_keeps_the_role(rows: ModelRows) -> None:
    provider = await rows.provider()
    default = await rows.config(provider, "default")
    other = await rows.config(provider, "other", enabled=False)

    await change(rows, default, enabled=False)
    assert await defaults(rows) == ["other"]
    await model_configs.delete_model_config(rows.conn, default.id, by=None)
    await change(rows, other, is_default=False)
    assert await defaults(rows) == ["other"]
    await model_configs.delete_model_config(rows.conn, other.id, by=None)

    assert await defaults(rows) == []


async def test_disabled_config_cannot_be_made_the_default(rows: ModelRows) -> None:
    provider = await rows.provider()
    await rows.config(provider, "default")
    disabled = await rows.config(provider, "off", enabled=False)

    with pytest.raises(InvalidInput) as caught:
        await change(rows, disabled, is_default=True)

    assert caught.value.field == "is_default"
    assert await defaults(rows) == ["default"]


async def test_config_needs_a_provider_that_is_there_and_enabled(rows: ModelRows) -> None:
    disabled = await rows.provider(enabled=False)

    for provider_id in (disabled.id, uuid4()):
        draft = ModelConfigDraft(provider_id=provider_id, model="m", context_limit=1)
        with pytest.raises(ProviderUnavailable):
            await model_configs.create_model_config(rows.conn, draft, by=None)


async def test_patch_that_leaves_provider_and_model_alone_does_not_check_them_again(rows: ModelRows) -> None:
    provider = await rows.provider()
    config = await rows.config(provider)
    await providers.update_provider(rows.conn, provider.id, patch=ProviderPatch(enabled=False), ring=RING)

    assert (await change(rows, config, display_name="Still mine")).display_name == "Still mine"
    with pytest.raises(ProviderUnavailable):
        await change(rows, config, model="another")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": ""}, "model"),
        ({"model": " m"}, "model"),
        ({"model": "a\nb"}, "model"),
        ({"context_limit": 0}, "context_limit"),
        ({"compression_threshold": 101}, "compression_threshold"),
        ({"compression_threshold": -1}, "compression_threshold"),
        ({"price_input": Decimal(1)}, "price_output"),
        ({"price_output": Decimal(1)}, "price_input"),
        ({"price_cache_read": Decimal(1)}, "price_input"),
        ({"price_input": Decimal(-1), "price_output": Decimal(1)}, "price_input"),
        ({"price_input": Decimal("NaN"), "price_output": Decimal(1)}, "price_input"),
        ({"options": {"fallbacks": [str(uuid4())]}}, "options.fallbacks"),
        ({"options": {"heat": 1}}, "options.heat"),
        ({"is_default": True, "enabled": False}, "is_default"),
    ],
)
async def test_bad_config_is_refused_by_field(rows: ModelRows, fields: dict[str, Any], field: str) -> None:
    provider = await rows.provider()

    with pytest.raises(InvalidInput) as caught:
        await rows.config(provider, **fields)

    assert caught.value.field == field
    assert await model_configs.list_model_configs(rows.conn) == []


async def test_prices_are_stored_exactly_and_cleared_with_none(rows: ModelRows) -> None:
    price = Decimal("0.0375000000001")
    config = await rows.config(await rows.provider(), price_input=price, price_output=Decimal(15))

    found = await model_configs.get_model_config(rows.conn, config.id)
    cleared = await change(rows, config, price_input=None, price_output=None)

    assert (found.price_input, found.price_output) == (price, Decimal(15))
    assert (cleared.price_input, cleared.price_output) == (None, None)


@pytest.mark.parametrize("fields", [{"name": "openrouter-eu"}, {"base_url": "https://openrouter.ai/api/v1"}])
async def test_openrouter_model_at_an_openai_provider_points_to_the_right_type(
    rows: ModelRows, fields: dict[str, str]
) -> None:
    provider = await rows.provider("openai", **fields)

    with pytest.raises(InvalidInput, match="type openrouter"):
        await rows.config(provider, "anthropic/claude-sonnet-4.5")

    assert (await rows.config(provider, "gpt-5")).model == "gpt-5"


# Options

GOOD: dict[str, Any] = {
    "max_output_tokens": 1000,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "presence_penalty": -1.5,
    "frequency_penalty": 1,
    "reasoning_effort": {"default": "low", "max": "high"},
    "fallbacks": ["00000000-0000-0000-0000-000000000001"],
    "capabilities": {"max_output": 5, "efforts": ["low"], "media_types": ["image/*"]},
    "send_reasoning": False,
    "thinking": {"budget_tokens": 1024},
    "thinking_display": "omitted",
    "disable_parallel_tool_use": True,
    "cache_ttl": "1h",
    "context_1m": True,
    "web_search_enabled": True,
    "web_search_version": "web_search_20260209",
    "web_search_max_uses": 3,
    "web_search_user_location": {"country": "DE"},
    "web_search_context_size": "low",
    "allowed_domains": ["example.org"],
    "blocked_domains": ["example.org"],
    "use_responses_api": False,
    "store": True,
    "reasoning_summary": "detailed",
    "text_verbosity": "low",
    "parallel_tool_calls": False,
    "max_tool_calls": 5,
    "service_tier": "priority",
    "prompt_cache_key": "k",
    "metadata": {"team": "a"},
    "strict_json_schema": True,
    "logit_bias": {"50256": -100},
    "top_logprobs": 5,
    "prediction": {"type": "content", "content": "x"},
    "max_tokens_field": "max_completion_tokens",
    "include_usage": False,
    "replay_reasoning": "always",
    "think_tags": True,
    "extra_body": {"seed": 1},
    "headers": {"x-team": "a"},
    "first_byte_seconds": 600,
    "silence_seconds": 240,
}
BAD: dict[str, Any] = {
    "max_output_tokens": 0,
    "temperature": 2.1,
    "top_p": -0.1,
    "top_k": 0,
    "presence_penalty": 3,
    "frequency_penalty": "1",
    "reasoning_effort": {"default": "low"},
    "fallbacks": ["x"],
    "capabilities": {"magic": True},
    "thinking": {"budget_tokens": 100},
    "web_search_version": "latest",
    "web_search_user_location": {"planet": "Mars"},
    "allowed_domains": ["with space"],
    "blocked_domains": "example.org",
    "prompt_cache_key": "",
    "metadata": {"n": 1},
    "logit_bias": {"1": 101},
    "top_logprobs": 21,
    "prediction": [],
    "extra_body": {"x": float("nan")},
    "headers": {"Authorization": "Bearer x"},
    "first_byte_seconds": 0,
    "silence_seconds": "long",
}


@pytest.mark.parametrize("name", ModelOptions.__struct_fields__)
def test_every_option_is_taken_where_it_belongs_and_refused_by_name_elsewhere(name: str) -> None:
    takers = [type_ for type_ in ProviderType if name in FAMILIES[type_]]
    assert takers

    for type_ in ProviderType:
        if type_ in takers:
            parsed = models_options.parse_model_options(type_, {name: GOOD[name]})
            stored = models_options.encode(parsed)
            assert name in msgspec.json.decode(stored)
            assert models_options.read_model_options(stored) == parsed
        else:
            with pytest.raises(InvalidInput) as caught:
                models_options.parse_model_options(type_, {name: GOOD[name]})
            assert caught.value.field == f"options.{name}"


@pytest.mark.parametrize("name", ModelOptions.__struct_fields__)
def test_every_option_refuses_a_value_it_cannot_be(name: str) -> None:
    [type_, *_] = [type_ for type_ in ProviderType if name in FAMILIES[type_]]

    with pytest.raises(InvalidInput) as caught:
        models_options.parse_model_options(type_, {name: BAD.get(name, "nonsense")})

    assert caught.value.field == f"options.{name}"


def test_option_rules_that_span_two_values() -> None:
    both = {"allowed_domains": ["a.org"], "blocked_domains": ["b.org"]}
    upside_down = {"reasoning_effort": {"default": "max", "max": "low"}}

    for options, field in ((both, "options.blocked_domains"), (upside_down, "options.reasoning_effort")):
        with pytest.raises(InvalidInput) as caught:
            models_options.parse_model_options(ProviderType.ANTHROPIC, options)
        assert caught.value.field == field


async def test_options_come_back_as_they_were_saved(rows: ModelRows) -> None:
    provider = await rows.provider()
    fallback = await rows.config(provider, "fallback")
    config = await rows.config(
        provider,
        options={
            "fallbacks": [str(fallback.id)],
            "reasoning_effort": {"default": "low", "max": "high"},
            "max_output_tokens": 32_000,
        },
    )

    renamed = await change(rows, config, display_name="x")

    assert renamed.options.fallbacks == (fallback.id,)
    assert renamed.options.max_output_tokens == 32_000
    assert renamed.options.reasoning_effort == models_options.EffortRange(Effort.LOW, Effort.HIGH)


async def test_option_of_a_newer_version_does_not_hide_the_rest(rows: ModelRows) -> None:
    config = await rows.config(await rows.provider(), options={"top_k": 5})
    await rows.conn.execute("""UPDATE model_configs SET options = options || '{"future": 1, "temperature": "hot"}'""")

    found = await model_configs.get_model_config(rows.conn, config.id)

    assert (found.options.top_k, found.options.temperature) == (5, None)


# Headers

HEADERS = {"X-Gate": "gate-secret-1", "X-Team": "birds-secret"}


async def stored_text(rows: ModelRows) -> str:
    """Return the whole content of the table as text."""
    return "\n".join(row[0] for row in await rows.conn.fetch("SELECT c::text FROM model_configs c"))


async def model_with_headers(rows: ModelRows) -> model_configs.ModelConfig:
    provider = await rows.provider("openai_compat", base_url="http://localhost:1/v1")
    return await rows.config(provider, options={"headers": HEADERS, "think_tags": True})


async def test_values_of_a_models_headers_are_sealed_and_masked(rows: ModelRows) -> None:
    config = await model_with_headers(rows)

    assert config.options.headers == {"X-Gate": "***", "X-Team": "***"}
    assert model_configs.open_headers(config, RING) == HEADERS
    assert model_configs.open_headers(config, None) == {}
    assert "secret" not in await stored_text(rows)


async def test_masked_header_of_a_model_keeps_its_value_and_one_that_never_was_is_refused(rows: ModelRows) -> None:
    config = await model_with_headers(rows)
    patch = ModelConfigPatch(options={"headers": {"x-gate": "***", "X-New": "n"}})
    never = ModelConfigPatch(options={"headers": {"X-Never": "***"}})

    changed = await model_configs.update_model_config(rows.conn, config.id, patch=patch, by=None, ring=RING)
    with pytest.raises(InvalidInput, match="means a saved value"):
        await model_configs.update_model_config(rows.conn, config.id, patch=never, by=None, ring=RING)

    assert model_configs.open_headers(changed, RING) == {"x-gate": "gate-secret-1", "X-New": "n"}
    assert "secret" not in await stored_text(rows)


async def test_other_changes_of_a_model_need_no_ring_and_keep_its_headers(rows: ModelRows) -> None:
    config = await model_with_headers(rows)

    renamed = await change(rows, config, display_name="Renamed")
    same = ModelConfigPatch(options={"headers": {"X-Gate": "***", "X-Team": "***"}, "think_tags": True})
    saved = await model_configs.update_model_config(rows.conn, config.id, patch=same, by=None, ring=RING)
    with pytest.raises(KeysMissing):
        await change(rows, config, options={"headers": {"X-Gate": "another"}})

    assert config.headers_enc == renamed.headers_enc == saved.headers_enc
    assert model_configs.open_headers(saved, RING) == HEADERS


async def test_headers_that_an_older_version_stored_unsealed_are_sealed_once_and_never_lost(rows: ModelRows) -> None:
    config = await model_with_headers(rows)
    await rows.conn.execute(
        "UPDATE model_configs SET headers_enc = NULL, options = jsonb_set(options, '{headers}', $1)",
        msgspec.json.encode(HEADERS).decode(),
    )
    renamed = await change(rows, config, display_name="Renamed")
    assert model_configs.open_headers(renamed, None) == HEADERS

    done = [await model_configs.seal_unsealed_headers(rows.conn, RING) for _ in range(2)]

    sealed = await model_configs.get_model_config(rows.conn, config.id)
    assert done == [1, 0]
    assert model_configs.open_headers(sealed, RING) == HEADERS
    assert sealed.options.think_tags is True
    assert "secret" not in await stored_text(rows)


async def test_sealed_headers_of_a_model_move_to_another_key_of_the_ring(rows: ModelRows) -> None:
    config = await model_with_headers(rows)

    rotation = await key_rotation.rotate(rows.conn, RING, full=True)

    moved = await model_configs.get_model_config(rows.conn, config.id)
    assert rotation.unreadable == 0
    assert moved.headers_enc != config.headers_enc
    assert model_configs.open_headers(moved, RING) == HEADERS


@pytest.mark.parametrize("what", ["model", "provider"])
async def test_headers_of_a_model_go_with_it_or_with_its_provider(rows: ModelRows, what: str) -> None:
    config = await model_with_headers(rows)

    if what == "model":
        await model_configs.delete_model_config(rows.conn, config.id, by=None)
    else:
        await providers.delete_provider(rows.conn, config.provider_id)

    kept = await model_configs.find_model_config(rows.conn, config.id)
    assert kept is not None
    assert kept.headers_enc is None
