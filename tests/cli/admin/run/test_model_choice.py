"""The model choice of `rookery admin run`, and the error if no model can be used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.cli.admin.run import model_choice
from rookery.cli.exit_codes import Exit, Refused
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.models.options import ProviderType
from rookery.llm.scripted import Say
from rookery.runtime.secret_str import SecretStr
from rookery.store.models import model_configs, preset_providers, providers
from rookery.store.models.model_configs import ModelConfigPatch
from rookery.store.models.providers import ProviderDraft
from tests.cli.admin.run.run_rig import RunRig, open_desk
from tests.store.models.provider_rows import RING


@pytest.fixture
async def rig(database_url: str, tmp_path: Path) -> AsyncIterator[RunRig]:
    async with open_desk(database_url, tmp_path) as opened:
        yield opened


async def test_installation_without_models_gets_the_offline_one(rig: RunRig) -> None:
    done = await rig.run("hello")

    assert done.code == Exit.OK
    assert done.stdout.startswith("I am Rookery's scripted model")
    assert done.notes[:3] == [
        "offline/guide answers: the built-in model, which follows fixed rules. To add a real one:",
        "  rookery admin provider add anthropic anthropic",
        "  rookery admin model add anthropic claude-sonnet-4-5 --context-limit 200000 --default",
    ]
    assert await rig.sql("SELECT model FROM model_configs WHERE is_default") == "guide"


async def test_two_first_commands_at_once_make_one_model(rig: RunRig) -> None:
    async def ensure() -> object:
        async with rig.database.api.acquire() as conn:
            return await preset_providers.ensure_offline_model(conn)

    made = await asyncio.gather(*(ensure() for _ in range(4)))

    assert len([one for one in made if one is not None]) == 1
    assert await rig.sql("SELECT count(*) FROM model_configs") == 1


async def test_name_of_the_offline_provider_may_be_taken(rig: RunRig) -> None:
    async with rig.database.api.acquire() as conn:
        taken = ProviderDraft(type=ProviderType.OPENAI_COMPAT, name="offline", base_url="http://127.0.0.1:1/v1")
        await providers.create_provider(conn, taken, ring=None)

        assert await preset_providers.ensure_offline_model(conn) is not None

        found = await model_choice.list_models(conn)
    assert [model.name for model in found] == ["offline-2/guide"]


async def test_provider_that_is_there_needs_only_a_model(rig: RunRig) -> None:
    async with rig.database.api.acquire() as conn:
        draft = ProviderDraft(type=ProviderType.OPENAI, name="gpt", api_key=SecretStr("key-0123456789"))
        provider = await providers.create_provider(conn, draft, ring=RING)

    assert model_choice.advice([provider]) == ["  rookery admin model add gpt gpt-5.1 --context-limit 400000 --default"]


@pytest.mark.parametrize("reference", ["test", "acme/test", "The Test", "the test", "id"])
async def test_model_is_named_in_every_way_people_know_it(rig: RunRig, reference: str) -> None:
    await rig.model("echo")
    config = await rig.model("test", display_name="The Test")

    done = await rig.run(
        script=(Say("It is me."),), model=str(config.id) if reference == "id" else reference, quiet=True
    )

    assert done.stdout == "It is me.\n"


async def test_unknown_model_is_refused_with_those_there_are(rig: RunRig) -> None:
    await rig.model("echo")
    await rig.model("test")

    with pytest.raises(Refused, match=r"There is no model tset\. There are: acme/echo, acme/test\.") as refused:
        await rig.run(model="tset")

    assert refused.value.code == Exit.USAGE
    assert await rig.sql("SELECT count(*) FROM chats") == 0


async def test_name_of_two_models_is_refused_with_their_ids(rig: RunRig) -> None:
    first, second = await rig.model("test"), await rig.model("test", provider="other")

    with pytest.raises(Refused, match="test names 2 models") as refused:
        await rig.run(model="test")

    assert refused.value.code == Exit.USAGE
    assert str(first.id) in str(refused.value)
    assert str(second.id) in str(refused.value)


async def test_named_model_that_is_disabled_is_refused(rig: RunRig) -> None:
    await rig.model("echo")
    await rig.model("test", enabled=False)

    with pytest.raises(InvalidInput, match="This model is disabled"):
        await rig.run(model="test")


async def test_default_that_cannot_be_used_is_refused_with_those_that_can(rig: RunRig) -> None:
    async with rig.database.api.acquire() as conn:
        draft = ProviderDraft(type=ProviderType.ANTHROPIC, name="claude", api_key=SecretStr("key-0123456789"))
        provider = await providers.create_provider(conn, draft, ring=RING)
        config = model_configs.ModelConfigDraft(provider_id=provider.id, model="m", context_limit=1000)
        claude = await model_configs.create_model_config(conn, config, by=None)
        await model_configs.update_model_config(conn, claude.id, patch=ModelConfigPatch(is_default=True), by=None)
    await rig.model("test")

    # This process has no ring, so the key counts as missing.
    with pytest.raises(Refused, match=r"There is no API key .+ Choose with --model: acme/test\.") as refused:
        await rig.run()

    assert refused.value.code == Exit.USAGE
