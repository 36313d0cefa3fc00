"""`rookery admin provider set-key`: the key of a provider is replaced and never shown."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.cli.admin import providers as admin_providers
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.secret_str import SecretStr
from rookery.settings.settings import Settings, load
from rookery.store.models import preset_providers, providers
from tests.cli.admin.run.run_rig import Stream
from tests.cli.serve.server_process import SCRIPT, environment
from tests.store.models.provider_rows import ModelRows, open_nest

RING = new_key("ring")
OLD, NEW = "sk-old-0123456789", "sk-new-0123456789"


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as opened:
        yield opened


def settings_of(rows: ModelRows, home: Path) -> Settings:
    return load({"database_url": rows.url, "secret_keys": RING}, {"HOME": str(home)}).settings


async def added(
    rows: ModelRows, type_: str = "anthropic", name: str = "claude", **fields: object
) -> providers.Provider:
    draft = providers.ProviderDraft(type=type_, name=name, **fields)  # type: ignore[arg-type]
    return await providers.create_provider(rows.conn, draft, ring=KeyRing.parse(RING))


async def set_key(rows: ModelRows, home: Path, name: str, key: str = NEW) -> tuple[int, str, str]:
    stdout, stderr = Stream(), Stream()
    out = Output(stdout, stderr)
    code = await admin_providers.set_key(settings_of(rows, home), out, name=name, key=SecretStr(key))
    return code, stdout.getvalue(), stderr.getvalue()


async def test_key_from_stdin_replaces_the_stored_one(rows: ModelRows, tmp_path: Path) -> None:
    """Runs as a process, with arguments, a pipe and output."""
    provider = await added(rows, api_key=SecretStr(OLD))

    done = await asyncio.to_thread(
        subprocess.run,
        [SCRIPT, "admin", "provider", "set-key", "claude", "--key-stdin"],
        env=environment(tmp_path, ROOKERY_DATABASE_URL=rows.url, ROOKERY_SECRET_KEYS=RING),
        input=f"{NEW}\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "Provider claude has a new key.\n", "")
    stored = await providers.get_provider(rows.conn, provider.id)
    assert stored.api_key_enc is not None
    place = {"table": providers.TABLE, "row_id": str(provider.id), "column": providers.COLUMN}
    assert KeyRing.parse(RING).open(stored.api_key_enc, **place) == SecretStr(NEW)


async def test_local_server_can_get_a_key_later(rows: ModelRows, tmp_path: Path) -> None:
    provider = await added(rows, "openai_compat", "local", base_url="http://127.0.0.1:1/v1")

    code, said, _ = await set_key(rows, tmp_path, "local")

    assert (code, said) == (Exit.OK, "Provider local has a new key.\n")
    assert (await providers.get_provider(rows.conn, provider.id)).api_key_enc is not None


async def test_key_that_has_no_place_is_refused(rows: ModelRows, tmp_path: Path) -> None:
    await added(rows, api_key=SecretStr(OLD))
    await added(rows, "openai", "own-keys", central_key_enabled=False, allow_user_key=True)
    await added(rows, "scripted", "offline")
    await preset_providers.ensure_env_providers(rows.conn, {"OPENROUTER_API_KEY": OLD})

    refused = {
        name: await set_key(rows, tmp_path, name, key)
        for name, key in (
            ("nobody", NEW),
            ("own-keys", NEW),
            ("offline", NEW),
            ("openrouter", NEW),
            ("claude", "with space "),
        )
    }

    assert {name: code for name, (code, _, _) in refused.items()} == {
        "nobody": Exit.FAILED,
        "own-keys": Exit.FAILED,
        "offline": Exit.FAILED,
        "openrouter": Exit.NOT_ALLOWED,
        "claude": Exit.USAGE,
    }
    said = {name: text for name, (_, _, text) in refused.items()}
    assert "There is no provider nobody." in said["nobody"]
    assert "uses only keys of users" in said["own-keys"]
    assert "needs no key" in said["offline"]
    assert "Environment variables of the server define provider" in said["openrouter"]
    assert "white space around it" in said["claude"]


def test_without_a_terminal_the_key_has_to_be_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Stream())

    with pytest.raises(Refused, match="Pipe it in with --key-stdin") as refused:
        admin_providers.ask_new_key("claude", from_stdin=False)

    assert refused.value.code == Exit.USAGE
