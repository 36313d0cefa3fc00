"""`rookery admin run` below the process: its functions on a real database, with streams that are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from rookery.app import installation
from rookery.cli.admin.run import run as run_run
from rookery.cli.admin.run.run import Interrupts
from rookery.cli.admin.run.run_arguments import Request
from rookery.cli.chat.terminal_screen import Screen
from rookery.cli.output import Output
from rookery.domain.models.options import ProviderType
from rookery.llm.scripted import Say, Script, Step
from rookery.llm.types import Call
from rookery.loop.tool import Tool
from rookery.models.connector import default_scripts
from rookery.models.key_ring import KeyRing
from rookery.settings import settings
from rookery.store.db.pool import Database
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfig, ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from rookery.tools.step_tools import PlainToolbox
from rookery.workspaces.drivers.driver_interface import Driver

HELLO = (Say("Good morning."),)


class Stream(StringIO):
    """A stream that records its output, and can claim to be a terminal.

    Two streams of the same terminal share a `screen`, which keeps their pieces in order.
    """

    def __init__(
        self,
        *,
        is_terminal: bool = False,
        on_write: Callable[[str], None] | None = None,
        screen: list[str] | None = None,
    ) -> None:
        super().__init__()
        self._is_terminal = is_terminal or screen is not None
        self._on_write = on_write
        self._screen = screen

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._screen is not None:
            self._screen.append(text)
        if self._on_write is not None:
            self._on_write(self.getvalue())
        return written


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str

    @property
    def notes(self) -> list[str]:
        return self.stderr.splitlines()


class RunRig:
    """Runs prompts against the test's database. The scripts of its model are given with each of them."""

    def __init__(self, database: Database, config: settings.Settings) -> None:
        self.database = database
        self.settings = config

    async def model(self, name: str = "test", *, provider: str = "acme", **fields: Any) -> ModelConfig:
        async with self.database.api.acquire() as conn:
            owner = await providers.find_provider_named(conn, provider)
            if owner is None:
                draft = ProviderDraft(type=ProviderType.SCRIPTED, name=provider)
                owner = await providers.create_provider(conn, draft, ring=None)
            config = ModelConfigDraft(provider_id=owner.id, model=name, context_limit=100_000, **fields)
            return await model_configs.create_model_config(conn, config, by=None)

    async def run(
        self,
        prompt: str = "hello",
        *,
        script: Script = HELLO,
        tools: Sequence[Tool] = (),
        is_terminal: bool = False,
        json: bool = False,
        interrupts: Interrupts | None = None,
        stdout: Stream | None = None,
        stderr: Stream | None = None,
        driver: Driver | None = None,
        **request: Any,
    ) -> Done:
        stdout, stderr = stdout or Stream(is_terminal=is_terminal), stderr or Stream(is_terminal=is_terminal)
        out = Output(stdout, stderr, json=json)
        scripts = default_scripts()
        asked = Request(prompt=prompt, **request)
        screen = Screen(out, quiet=asked.quiet, environ={"NO_COLOR": "1"})
        usual = run_run.choices_for(out, ring=None, environ={})
        choices = replace(usual, scripts=scripts, toolbox=PlainToolbox(tools))
        if driver is not None:
            ring = KeyRing([("test", bytes(32))])
            made = run_run.choices_for(out, ring=ring, environ={}, has_workspace=asked.has_workspace)
            choices = replace(made, scripts=scripts, drivers={"local": driver})
        with scripts.registered("test", lambda call: steps_of(script, call)):
            code = await run_run.converse(
                self.settings, self.database, asked, out=out, screen=screen, choices=choices, interrupts=interrupts
            )
        out.finish()
        return Done(code, stdout.getvalue(), stderr.getvalue())

    async def sql(self, statement: str, *arguments: object) -> Any:
        return await self.database.api.fetchval(statement, *arguments)


def steps_of(script: Script, call: Call) -> Sequence[Step]:
    """Short texts after the turn are asked of the same model, and must not take a script of the turn."""
    if call.format is not None:
        return (Say('{"label": "Work is done", "summary": "It was done."}'),)
    return script(call) if callable(script) else script


@asynccontextmanager
async def open_desk(database_url: str, home: Path) -> AsyncIterator[RunRig]:
    flags = {"data_dir": str(home / "data"), "database_url": database_url}
    config = settings.load(flags, {"HOME": str(home)}).settings
    async with await Database.connect(installation.database_config(config, database_url)) as database:
        yield RunRig(database, config)
