"""`rookery admin provider` and `rookery admin model`: adding models, and hints about the next step."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import pytest

from rookery.cli.admin import arguments as admin_arguments
from rookery.domain.models.context_window import Learned, LearnedFrom
from rookery.domain.models.options import ProviderType
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.secret_str import SecretStr
from rookery.store.db.hints import CHANNELS, ConfigHint
from rookery.store.models import context_windows, model_configs, preset_providers, providers
from tests.cli.serve.server_process import SCRIPT, environment, rookery, serving
from tests.eventually import until
from tests.store.models.provider_rows import ModelRows, open_nest

KEY = "sk-ant-very-secret-0123456789"
RING = new_key("ring")


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as opened:
        yield opened


@pytest.fixture
def desk(rows: ModelRows, tmp_path: Path) -> Desk:
    return Desk(rows, tmp_path)


class Desk:
    """Runs admin commands with the test's database."""

    def __init__(self, rows: ModelRows, home: Path) -> None:
        self.conn = rows.conn
        self.env = environment(home, ROOKERY_SECRET_KEYS=RING, ROOKERY_DATABASE_URL=rows.url)

    async def run(
        self, command: str, *more: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [SCRIPT, "admin", *command.split(), *more],
            env=self.env | variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    async def ok(self, command: str, *more: str, stdin: str = "") -> str:
        done = await self.run(command, *more, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def json(self, command: str, *more: str, stdin: str = "") -> Any:
        return json.loads(await self.ok(command, "--json", *more, stdin=stdin))


def test_types_and_prices_of_the_arguments_are_those_of_the_store() -> None:
    assert list(admin_arguments.PROVIDER_TYPES) == [str(type_) for type_ in ProviderType]
    assert [f"price_{name}" for name in admin_arguments.PRICES] == list(model_configs.PRICES)


# Providers


async def test_key_from_stdin_is_sealed_and_shown_nowhere(desk: Desk) -> None:
    done = await desk.run("provider add anthropic claude --key-stdin", stdin=f"{KEY}\n")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "Provider claude is added. Add a model to it:",
        "  rookery admin model add claude MODEL --context-limit TOKENS",
    ]
    stored = await providers.find_provider_named(desk.conn, "claude")
    assert stored is not None
    assert stored.api_key_enc is not None
    place = {"table": providers.TABLE, "row_id": str(stored.id), "column": providers.COLUMN}
    assert KeyRing.parse(RING).open(stored.api_key_enc, **place) == SecretStr(KEY)
    listed = await desk.ok("provider list") + await desk.ok("provider list", "--json")
    assert KEY not in listed
    assert stored.api_key_enc not in listed


async def test_key_is_asked_for_on_a_terminal_without_showing_it(desk: Desk) -> None:
    code, screen = await asyncio.to_thread(
        typed, [SCRIPT, "admin", "provider", "add", "openai", "gpt"], desk.env, asked="API key for gpt: ", answer=KEY
    )

    assert code == 0, screen
    assert KEY not in screen
    assert "Provider gpt is added." in screen
    assert (await desk.json("provider list"))["providers"][0]["has_key"]


async def test_ctrl_c_at_the_prompt_ends_the_command(desk: Desk) -> None:
    command = [SCRIPT, "admin", "provider", "add", "openai", "gpt"]

    code, _ = await asyncio.to_thread(typed, command, desk.env, asked="API key for gpt: ", answer=None)

    assert code == 130
    assert await providers.list_providers(desk.conn) == []


def typed(command: list[str], env: dict[str, str], *, asked: str, answer: str | None) -> tuple[int, str]:
    """Run on a terminal, answer the one question (None is Ctrl-C), and return exit code and screen."""
    leader, follower = pty.openpty()
    with open(leader, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            command, env=env, stdin=follower, stdout=follower, stderr=follower, start_new_session=True
        )
        os.close(follower)
        seen, is_answered = b"", False
        while read := _read(screen):
            seen += read
            if is_answered or asked.encode() not in seen:
                continue
            is_answered = True
            if answer is None:
                process.send_signal(signal.SIGINT)
            else:
                os.write(leader, f"{answer}\n".encode())
        return process.wait(30), seen.decode()


def _read(screen: IO[bytes]) -> bytes:
    try:
        return screen.read(65_536)
    except OSError:  # Linux reports a closed terminal this way
        return b""


async def test_local_server_needs_no_key(desk: Desk) -> None:
    await desk.ok("provider add openai_compat ollama --base-url http://127.0.0.1:11434/v1/")

    assert (await desk.ok("provider list")).splitlines() == [
        "name    type           base url                   key          models  state",
        "ollama  openai_compat  http://127.0.0.1:11434/v1  none needed       0  enabled",
    ]


async def test_headers_are_sealed_also_without_a_key(desk: Desk) -> None:
    header = ("--option", 'headers={"X-Team": "birds-secret"}')
    await desk.ok("provider add openai_compat ollama --base-url http://127.0.0.1:11434/v1/", *header)

    made = await desk.json("model add ollama llama --context-limit 1000", *header)

    assert made["options"] == {"headers": {"X-Team": "***"}}
    (provider,) = await providers.list_providers(desk.conn)
    (config,) = await model_configs.list_model_configs(desk.conn)
    assert provider.headers_enc is not None
    assert config.headers_enc is not None
    assert config.options.headers == {"X-Team": "***"}


async def test_everything_said_about_a_provider_is_stored(desk: Desk) -> None:
    made = await desk.json(
        "provider add openai gpt --key-stdin --allow-user-key --no-fallback --send-correlation",
        *("--display-name", "The Big One", "--base-url", "https://gateway.example.org/v1"),
        *("--option", "organization=org-1", "--option", 'headers={"X-Team": "birds-secret"}'),
        stdin=KEY,
    )

    assert made.pop("id")
    assert made == {
        "name": "gpt",
        "type": "openai",
        "display_name": "The Big One",
        "enabled": True,
        "source": "db",
        "central_key_enabled": True,
        "allow_user_key": True,
        "allow_central_fallback": False,
        "send_correlation": True,
        "base_url": "https://gateway.example.org/v1",
        "has_key": True,
        "options": {"headers": {"X-Team": "***"}, "organization": "org-1"},
        "models": 0,
    }
    stored = await providers.find_provider_named(desk.conn, "gpt")
    assert stored is not None
    assert stored.options.headers == {"X-Team": "***"}
    assert stored.headers_enc is not None


@pytest.mark.parametrize(
    ("command", "stdin", "code", "said"),
    [
        ("provider add antropic a", "", 2, "TYPE must be one of anthropic, "),
        ("provider add anthropic a", "", 2, "there is no terminal to ask for it. Pipe it in with --key-stdin."),
        ("provider add anthropic a --key-stdin", "", 2, "There is no key on stdin."),
        ("provider add anthropic a --key-stdin", " x y ", 2, "the key: The key is empty or has white space around it."),
        ("provider add anthropic a --key-stdin", "x" * 20_000, 2, "the key: The key is longer than 10240 bytes."),
        ("provider add anthropic A_b --key-stdin", KEY, 2, "NAME: A name has at most 64 characters"),
        ("provider add anthropic a --no-key", "", 2, "the key: The central key is enabled, but there is none."),
        ("provider add openai_compat a", "", 2, "--base-url: A provider of type openai_compat needs a base URL."),
        ("provider add scripted a --base-url ftp://x", "", 2, "--base-url: The base URL must be an absolute http"),
        ("provider add scripted a --option x=1", "", 2, "--option x: There is no option 'x'."),
        ("provider add scripted a --option x", "", 2, "--option is given as NAME=VALUE"),
        ("provider add scripted a --option x=1 --option x=2", "", 2, "--option x is given twice."),
        ("provider add anthropic a --no-central-key", "", 2, "--no-central-key: Allow the central key"),
        ("provider add anthropic a --no-central-key --key-stdin", KEY, 2, "which contradicts --no-central-key"),
        ("provider remove nobody", "", 1, "There is no provider nobody. `rookery admin provider list` shows"),
        ("model add nobody m --context-limit 1", "", 1, "There is no provider nobody."),
        ("model default nothing", "", 1, "There is no model nothing. `rookery admin model list` shows"),
        ("model remove nothing", "", 1, "There is no model nothing."),
        ("model add x y", "", 2, "--context-limit is missing"),
    ],
)
async def test_refusal_names_what_to_do(desk: Desk, command: str, stdin: str, code: int, said: str) -> None:
    done = await desk.run(command, stdin=stdin)

    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert await providers.list_providers(desk.conn) == []


async def test_refusal_is_a_document_for_programs(desk: Desk) -> None:
    done = await desk.run("provider add openai_compat a --json")

    assert done.returncode == 2
    assert json.loads(done.stdout) == {
        "error": {
            "exit_code": 2,
            "message": "--base-url: A provider of type openai_compat needs a base URL.",
            "field": "base_url",
        }
    }


async def test_second_provider_of_a_name_is_refused(desk: Desk) -> None:
    await desk.ok("provider add scripted offline")

    done = await desk.run("provider add scripted offline --json")

    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "already_exists"


async def test_key_cannot_be_saved_without_a_ring_or_with_a_wrong_one(desk: Desk) -> None:
    without = await desk.run("provider add anthropic a --key-stdin", stdin=KEY, ROOKERY_SECRET_KEYS="")
    await desk.ok("provider add anthropic a --key-stdin", stdin=KEY)
    wrong = await desk.run("provider add anthropic b --key-stdin", stdin=KEY, ROOKERY_SECRET_KEYS=new_key("other"))

    assert (without.returncode, wrong.returncode) == (2, 2)
    assert "Set ROOKERY_SECRET_KEYS" in without.stderr
    assert "This ring did not seal the keys in the database." in wrong.stderr
    assert len((await desk.json("provider list"))["providers"]) == 1


async def test_provider_of_the_environment_cannot_be_removed(desk: Desk) -> None:
    await preset_providers.ensure_env_providers(desk.conn, {"ANTHROPIC_API_KEY": KEY})

    done = await desk.run("provider remove anthropic --yes")

    assert done.returncode == 5
    assert "Environment variables of the server define provider" in done.stderr
    assert "ANTHROPIC_API_KEY" in await desk.ok("provider list")


async def test_provider_with_models_is_removed_only_when_that_is_meant(desk: Desk) -> None:
    await desk.ok("provider add scripted offline")
    await desk.ok("model add offline echo --context-limit 1000")

    asked = await desk.run("provider remove offline")
    meant = await desk.ok("provider remove offline --yes")

    assert asked.returncode == 1
    assert "This also removes 1 model(s) of offline" in asked.stderr
    assert meant == "Provider offline is removed, with 1 model(s) and every key for it.\n"
    assert await providers.list_providers(desk.conn) == []


# Models


async def test_first_model_is_the_default_and_the_next_takes_over_when_told(desk: Desk) -> None:
    await desk.ok("provider add scripted offline")

    first = await desk.ok("model add offline guide --context-limit 100_000")
    second = await desk.ok("model add offline echo --context-limit 5000")
    changed = await desk.ok("model default offline/echo")

    assert first == "Model offline/guide is added, and is the default.\n"
    assert second == "Model offline/echo is added.\n"
    assert changed == "Model offline/echo is the default.\n"
    listed = (await desk.json("model list"))["models"]
    assert [(model["model"], model["is_default"], model["state"]) for model in listed] == [
        ("echo", True, "ready"),
        ("guide", False, "ready"),
    ]
    assert await desk.ok("model remove echo") == "Model offline/echo is removed.\nThe default is offline/guide now.\n"
    assert await desk.ok("model remove guide") == "Model offline/guide is removed.\nThere is no model left.\n"


async def test_model_is_shown_with_who_says_how_much_it_reads_and_what_was_learned_is_forgotten(desk: Desk) -> None:
    await desk.ok("provider add openai_compat vllm --base-url http://127.0.0.1:8000/v1")
    made = await desk.json("model add vllm qwen --context-limit 100000")
    await context_windows.learn(desk.conn, UUID(made["id"]), Learned(32_768, LearnedFrom.PROVIDER))

    shown = (await desk.json("model show vllm/qwen"))["window"]
    (listed,) = (await desk.json("model list"))["models"]
    words = await desk.ok("model show qwen")
    forgotten = await desk.ok("model forget-window qwen")

    assert (shown["effective"], shown["learned"], shown["learned_from"]) == (32_768, 32_768, "provider")
    assert shown["differs"]
    assert listed["window"] == shown
    assert "learned from the provider's refusal" in words
    assert forgotten == "The learned context window of vllm/qwen is removed.\n"
    assert (await desk.json("model show qwen"))["window"]["effective"] == 100_000
    assert await desk.ok("model forget-window qwen") == "vllm/qwen has no learned context window.\n"


async def test_everything_said_about_a_model_is_stored(desk: Desk) -> None:
    await desk.ok("provider add openai_compat vllm --base-url http://127.0.0.1:8000/v1")

    made = await desk.json(
        "model add vllm Qwen/Qwen3-32B --context-limit 32768 --compression-threshold 60 --disabled",
        *("--display-name", "Qwen at home", "--price-input", "0.10", "--price-output", "0.40"),
        *("--option", "temperature=0.6", "--option", "think_tags=true", "--option", "max_tokens_field=max_tokens"),
        *("--option", 'capabilities={"json_schema": true}'),
    )

    assert made.pop("id")
    assert made.pop("window")["effective"] == 32768
    assert made == {
        "provider": "vllm",
        "model": "Qwen/Qwen3-32B",
        "display_name": "Qwen at home",
        "enabled": False,
        "is_default": True,
        "state": "disabled",
        "context_limit": 32768,
        "compression_threshold": 60,
        "options": {
            "temperature": 0.6,
            "think_tags": True,
            "max_tokens_field": "max_tokens",
            "capabilities": {"json_schema": True},
        },
        "prices": {"input": "0.10", "output": "0.40", "cache_read": None, "cache_write": None, "cache_write_1h": None},
        "prices_are_own": True,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("offline tour --context-limit 1000", "MODEL: The scripted provider has guide and echo."),
        ("offline echo --context-limit 0", "--context-limit: The context limit must be a number of tokens above 0."),
        ("offline echo --context-limit many", "--context-limit must be a whole number, not many."),
        ("offline echo --context-limit 1 --compression-threshold 101", "--compression-threshold: The threshold must"),
        ("offline echo --context-limit 1 --price-input cheap", "--price-input: A price is a number of dollars"),
        ("offline echo --context-limit 1 --price-input 1", "--price-output: Set the prices of both input and output"),
        ("offline echo --context-limit 1 --price-input -1 --price-output 1", "--price-input: A price is in dollars"),
        ("offline echo --context-limit 1 --option cache_ttl=1h", "--option cache_ttl: Option cache_ttl does not"),
        (
            "offline echo --context-limit 1 --option temperature=hot",
            "--option temperature: Option temperature must be a number from 0 to 2.",
        ),
        ("offline echo --context-limit 1 --disabled --default", "MODEL: A disabled model cannot be the default."),
    ],
)
async def test_model_the_store_refuses_is_a_usage_error(desk: Desk, arguments: str, said: str) -> None:
    await desk.ok("provider add scripted offline")

    done = await desk.run(f"model add {arguments}")

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert await model_configs.list_model_configs(desk.conn) == []


async def test_name_that_fits_two_models_asks_for_an_id(desk: Desk) -> None:
    await desk.ok("provider add scripted one")
    await desk.ok("provider add scripted two")
    first = await desk.json("model add one echo --context-limit 1000")
    second = await desk.json("model add two echo --context-limit 1000")

    done = await desk.run("model default echo")

    assert done.returncode == 2
    assert first["id"] in done.stderr
    assert second["id"] in done.stderr
    assert await desk.ok(f"model default {second['id']}") == "Model two/echo is the default.\n"


async def test_person_is_told_what_a_new_model_lacks(desk: Desk) -> None:
    await desk.ok("provider add anthropic claude --no-central-key --allow-user-key")

    said = await desk.ok("model add claude claude-of-the-future --context-limit 200000")

    assert [re.split("[:,.]", line)[0] for line in said.splitlines()] == [
        "Model claude/claude-of-the-future is added",
        "It cannot be used yet",
        "This version does not know the model",
        "It has no prices",
    ]


async def test_known_model_has_its_list_prices(desk: Desk) -> None:
    await desk.ok("provider add anthropic claude --key-stdin", stdin=KEY)

    assert await desk.ok("model add claude claude-sonnet-4-5 --context-limit 200000") == (
        "Model claude/claude-sonnet-4-5 is added, and is the default.\n"
    )
    (row,) = (await desk.ok("model list")).splitlines()[1:]
    assert row.split()[1:] == ["claude/claude-sonnet-4-5", "yes", "ready", "200000", "200000", "3", "15", "list"]


async def test_model_of_a_removed_provider_says_so(desk: Desk) -> None:
    await desk.ok("provider add scripted offline")
    await desk.ok("model add offline echo --context-limit 1000")
    await desk.ok("provider remove offline --yes")

    assert "its provider is removed" in await desk.ok("model list")


# While servers run


async def test_running_servers_are_told_of_every_change(desk: Desk) -> None:
    heard: list[dict[str, Any]] = []

    def hear(_: object, __: int, ___: str, payload: object) -> None:
        document = json.loads(str(payload))
        heard.extend(document if isinstance(document, list) else [document])

    await desk.conn.add_listener(CHANNELS[ConfigHint], hear)
    provider = await desk.json("provider add scripted offline")
    model = await desk.json("model add offline echo --context-limit 1000")
    await desk.ok("model default echo")
    await desk.ok("model remove echo")
    await desk.ok("provider remove offline")

    await until(lambda: len(heard) == 5)
    one, other = ("provider", provider["id"]), ("model", model["id"])
    assert [(hint["kind"], hint["id"]) for hint in heard] == [one, other, other, other, one]
    await desk.conn.remove_listener(CHANNELS[ConfigHint], hear)


def test_commands_work_beside_a_server_and_without_one(tmp_path: Path) -> None:
    place = ("--data-dir", str(tmp_path / "data"))
    before = rookery(tmp_path, "admin", "provider", "list", *place)
    with serving(tmp_path, *place):
        beside = rookery(tmp_path, "admin", "provider", "add", "scripted", "rehearsal", *place)
    without = rookery(tmp_path, "admin", "model", "add", "rehearsal", "guide", "--context-limit", "1000", *place)

    assert before.returncode == 1
    assert "`rookery serve` creates it." in before.stderr
    assert (beside.returncode, without.returncode) == (0, 0), beside.stderr + without.stderr


async def test_unreachable_database_is_exit_4(tmp_path: Path) -> None:
    url = f"postgresql://nobody@/nothing?host={tmp_path}"

    done = await asyncio.to_thread(rookery, tmp_path, "admin", "model", "list", "--database-url", url)

    assert done.returncode == 4


async def test_database_without_the_schema_is_exit_3(tmp_path: Path, empty_database_url: str) -> None:
    done = await asyncio.to_thread(rookery, tmp_path, "admin", "model", "list", "--database-url", empty_database_url)

    assert done.returncode == 3
    assert "rookery admin migrate" in done.stderr


async def test_listing_says_how_to_begin(desk: Desk) -> None:
    assert "`rookery admin provider add TYPE NAME` adds one." in await desk.ok("provider list")
    assert "`rookery admin model add PROVIDER MODEL" in await desk.ok("model list")
