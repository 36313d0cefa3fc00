"""The guide `docs/guide/models.md`: its commands run, its tables are complete, and its providers answer."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol
from uuid import UUID

import asyncpg
import pytest

from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.models.options import CapabilityOverrides, ProviderType
from rookery.llm.types import ErrorKind, Finish, ProviderError, TextDelta
from rookery.models import connector as connect
from rookery.models.connector import Connector
from rookery.models.directory import Directory, ReadyModel
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.clock import SystemClock
from rookery.store.models import preset_providers
from rookery.testing import fake_anthropic, fake_completions, fake_responses_events
from rookery.testing.fake_anthropic import FakeAnthropic
from rookery.testing.fake_completions import FakeCompletions
from rookery.testing.fake_responses import FakeResponses
from rookery.testing.fake_server import RecordedRequest
from tests.cli.serve.server_process import SCRIPT, environment, rookery, serving
from tests.store.models.provider_rows import ModelRows, open_nest
from tests.wire.difficult_prompts import user

GUIDE = (Path(__file__).parents[4] / "docs" / "guide" / "models.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines() if line.strip()]
KEY = "key-0123456789"
RING = new_key("ring")


def test_every_command_of_the_guide_runs_beside_a_server(tmp_path: Path) -> None:
    env = environment(tmp_path, ROOKERY_DATA_DIR=str(tmp_path / "data"))
    env["PATH"] = f"{Path(SCRIPT).parent}:{env['PATH']}"
    for name in re.findall(r"< (\S+\.key)", GUIDE):
        (tmp_path / name).write_text(f"{KEY}\n")

    with serving(tmp_path, ROOKERY_DATA_DIR=env["ROOKERY_DATA_DIR"]):
        for command in COMMANDS:
            done = subprocess.run(
                ["bash", "-c", command],
                env=env,
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), command

    assert len(COMMANDS) > 25


def test_key_of_the_environment_gives_its_provider_a_row(tmp_path: Path) -> None:
    place = ("--data-dir", str(tmp_path / "data"))
    with serving(tmp_path, *place, ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL="https://gateway.example.org"):
        listed = rookery(tmp_path, "admin", "provider", "list", *place)
        limit = ("--context-limit", "200000")
        added = rookery(tmp_path, "admin", "model", "add", "anthropic", "claude-sonnet-4-5", *limit, *place)
        removed = rookery(tmp_path, "admin", "provider", "remove", "anthropic", *place)

    assert listed.stdout.splitlines()[1].split() == [
        *("anthropic", "anthropic", "https://gateway.example.org", "ANTHROPIC_API_KEY", "0", "enabled")
    ]
    assert (added.returncode, removed.returncode) == (0, 5)


def test_guide_shows_how_to_add_every_type() -> None:
    added = set(re.findall(r"provider add (\w+) ", GUIDE))

    assert added == {str(type_) for type_ in ProviderType}


def test_tables_of_the_guide_are_complete() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE))

    assert {str(kind) for kind in ErrorKind} <= rows
    assert set(CapabilityOverrides.__struct_fields__) <= rows
    assert all(preset.key_variable in GUIDE for preset in preset_providers.PRESETS)


# Providers that answer


@pytest.fixture
async def nest(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as opened:
        yield opened


async def admin(nest: ModelRows, home: Path, command: str, *, stdin: str = "") -> None:
    env = environment(home, ROOKERY_SECRET_KEYS=RING, ROOKERY_DATABASE_URL=nest.url)
    done = await asyncio.to_thread(
        subprocess.run,
        [SCRIPT, "admin", *command.split()],
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def answer_of_default(nest: ModelRows) -> tuple[str, str]:
    """Return the answer of the default model, and the key of the request."""
    owner_id = await nest.user()
    async with asyncpg.create_pool(nest.url, min_size=1, max_size=2) as pool:
        directory = Directory(pool, ring=KeyRing.parse(RING), environ=os.environ, clock=SystemClock())
        connector = Connector(tokens_per_second=0)
        try:
            return await _asked(directory, connector, owner_id)
        finally:
            await connector.close()
            await directory.close()


async def _asked(directory: Directory, connector: Connector, owner_id: UUID) -> tuple[str, str]:
    default_id = (await directory.snapshot()).default_id
    assert default_id is not None
    ready = await directory.for_generation(default_id, owner_id=owner_id)
    assert isinstance(ready, ReadyModel), ready
    model = await connector.model(ready)
    assert not isinstance(model, ProviderError), model
    call = connect.make_call(ready, model, prompt=Prompt((user("Hello."),)))
    parts = [part async for part in model.stream(call)]
    assert isinstance(parts[-1], Finish), parts[-1]
    return "".join(part.text for part in parts if isinstance(part, TextDelta)), str(ready.key_source)


def messages_server() -> FakeAnthropic:
    fake = FakeAnthropic(api_key=KEY)
    fake.answer(fake_anthropic.Answer([fake_anthropic.Text("Krah.")]))
    return fake


def responses_server() -> FakeResponses:
    fake = FakeResponses(api_key=KEY)
    fake.answer(fake_responses_events.Text(parts=("Krah.",)))
    return fake


def completions_server(api_key: str | None = KEY) -> FakeCompletions:
    fake = FakeCompletions(api_key=api_key)
    fake.enqueue(fake_completions.Answer(text="Krah."))
    return fake


class Fake(Protocol):
    @property
    def requests(self) -> list[RecordedRequest]: ...

    def listening(self) -> AbstractAsyncContextManager[str]: ...


SERVERS: Mapping[str, Callable[[], Fake]] = {
    "/v1/messages": messages_server,
    "/v1/responses": responses_server,
    "/v1/chat/completions": completions_server,
}


@pytest.mark.parametrize(
    ("type_", "model", "path", "auth_header"),
    [
        ("anthropic", "claude-sonnet-4-5", "/v1/messages", "x-api-key"),
        ("openai", "gpt-5.1", "/v1/responses", "authorization"),
        ("azure_openai", "gpt-4.1", "/v1/responses", "api-key"),
        ("openai_compat", "deepseek-reasoner", "/v1/chat/completions", "authorization"),
        ("openrouter", "anthropic/claude-sonnet-4.5", "/v1/chat/completions", "authorization"),
    ],
)
async def test_provider_added_by_hand_answers_with_its_key(
    nest: ModelRows, tmp_path: Path, type_: str, model: str, path: str, auth_header: str
) -> None:
    fake = SERVERS[path]()
    async with fake.listening() as base_url:
        await admin(nest, tmp_path, f"provider add {type_} p --base-url {base_url}/v1 --key-stdin", stdin=f"{KEY}\n")
        await admin(nest, tmp_path, f"model add p {model} --context-limit 100000")

        assert await answer_of_default(nest) == ("Krah.", "central")

    asked = next(request for request in fake.requests if request.method == "POST")
    assert (asked.path, asked.auth_header, asked.body["model"]) == (path, auth_header, model)


async def test_local_server_without_a_key_answers(nest: ModelRows, tmp_path: Path) -> None:
    async with completions_server(api_key=None).listening() as base_url:
        await admin(nest, tmp_path, f"provider add openai_compat ollama --base-url {base_url}/v1")
        await admin(nest, tmp_path, "model add ollama qwen3:8b --context-limit 32768")

        assert await answer_of_default(nest) == ("Krah.", "ambient")


async def test_offline_model_answers(nest: ModelRows, tmp_path: Path) -> None:
    await admin(nest, tmp_path, "provider add scripted offline")
    await admin(nest, tmp_path, "model add offline guide --context-limit 100000")

    text, _ = await answer_of_default(nest)

    assert text.startswith("I am Rookery's scripted model")
