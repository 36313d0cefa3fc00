"""The functions of `rookery chat` with a real server, recorded output and a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from rookery.cli.chat import chat_actions
from rookery.cli.chat.chat_actions import Terminal
from rookery.cli.output import Output
from rookery.client import AsyncRookery
from rookery.domain.access.rights import Role
from rookery.llm.scripted import Say, Script, Step
from rookery.llm.types import Call
from tests.api.api_rig import ApiRig, Person, open_house
from tests.cli.admin.run.run_rig import Stream

HELLO = (Say("Good morning."),)


class ChatRig:
    """One user at one server. The output is in `stdout` and `stderr`."""

    def __init__(self, rig: ApiRig, person: Person, client: AsyncRookery) -> None:
        self.rig = rig
        self.person = person
        self.client = client
        self.stdout = Stream()
        self.stderr = Stream()

    def terminal(self, *, client: AsyncRookery | None = None, lines: bool = False, json: bool = False) -> Terminal:
        self.stdout, self.stderr = Stream(), Stream()
        out = Output(self.stdout, self.stderr, json=json)
        return chat_actions.terminal(client or self.client, out, {"NO_COLOR": "1"}, lines=lines)

    @property
    def said(self) -> str:
        return self.stdout.getvalue()

    @property
    def notes(self) -> list[str]:
        return self.stderr.getvalue().splitlines()

    @contextmanager
    def script(self, script: Script) -> Iterator[None]:
        def steps(call: Call) -> Sequence[Step]:
            # The same model writes short texts after the turn; they must not use a script of the turn.
            if call.format is not None:
                return (Say('{"title": "Work", "label": "Work is done", "summary": "It was done."}'),)
            return script(call) if callable(script) else script

        with self.rig.replica.connector.scripts.registered("test", steps):
            yield


@asynccontextmanager
async def open_chat_desk(database_url: str, home: Path) -> AsyncIterator[ChatRig]:
    async with open_house(database_url, home, takes_chats=True) as rig:
        await rig.add_model("test", name="acme")
        person = await rig.add("ada", role=Role.ADMIN)
        async with AsyncRookery(rig.url, token=person.token) as client:
            yield ChatRig(rig, person, client)


@contextmanager
def seated(database_url: str, home: Path, script: Script) -> Iterator[tuple[ChatRig, asyncio.Runner]]:
    """Return a rig for commands with their own event loop."""
    with asyncio.Runner() as runner:
        opened = open_chat_desk(database_url, home)
        desk = runner.run(opened.__aenter__())
        try:
            with desk.script(script):
                yield desk, runner
        finally:
            runner.run(opened.__aexit__(None, None, None))
