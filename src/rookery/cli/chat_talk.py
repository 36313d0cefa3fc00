"""`rookery chat` without a command: type, watch the answer, type again.

The prompt is read outside of the event loop, where the terminal edits lines and Ctrl-C works as people know it. A turn
is followed over a stream of its own: nobody serves a connection while somebody thinks about what to type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from rookery.cli import chat, chat_failures
from rookery.cli.chat import Terminal
from rookery.cli.exits import Exit
from rookery.client import Conflict, RookeryError, errors

PROMPT = "> "
HELP = (
    "/stop   stop the turn that runs (Ctrl-C while it is shown)",
    "/new    start another chat",
    "/help   this",
    "/quit   leave (Ctrl-D); the chat is kept: rookery chat attach ID",
)

ReadLine = Callable[[str], str]


class Talk:
    """One person at one terminal. `chat_id` is None until the first message makes a chat."""

    def __init__(self, at: Terminal, runner: asyncio.Runner, *, model: str | None, chat_id: UUID | None = None) -> None:
        self._at = at
        self._runner = runner
        self._model = model
        self._chat_id = chat_id

    def run(self, read_line: ReadLine) -> int:
        """Until somebody leaves."""
        self._at.screen.lines("Type a message; /help lists what else there is.")
        while True:
            try:
                line = read_line(PROMPT).strip()
            except (EOFError, KeyboardInterrupt):
                self._at.out.aside("\n")
                break
            if line == "/quit":
                break
            if line:
                self._handle(line)
        if self._chat_id is not None:
            self._at.screen.lines(f"Go on with: rookery chat attach {chat.short(self._chat_id)}")
        return Exit.OK

    def _handle(self, line: str) -> None:
        """Whatever goes wrong with one line, the next one may be typed."""
        try:
            match line:
                case "/help":
                    self._at.screen.lines(*HELP)
                case "/stop":
                    self._runner.run(self._stop())
                case "/new":
                    self._chat_id = None
                    self._at.screen.lines("The next message starts another chat.")
                case _ if line.startswith("/") and " " not in line:
                    self._at.screen.lines(f"There is no {line}.", *HELP)
                case _:
                    self._runner.run(self._say(line))
        except chat_failures.Refused as error:
            self._at.screen.error(str(error))
        except RookeryError as error:
            _, text = chat_failures.explain(error, self._at.client.base_url, has_token=True)
            self._at.screen.error(text)
            if isinstance(error, errors.ChatDeleted | errors.AccessWithdrawn):
                self._chat_id = None
        except KeyboardInterrupt:
            self._at.screen.error("Interrupted.")

    async def _say(self, line: str) -> None:
        at = self._at
        if self._chat_id is None:
            made = await chat.create(at, line, model=self._model)
            self._chat_id, since, after_id = made.id, made.snapshot_version, 0
        else:
            sent, after_id = await chat.say(at, self._chat_id, line, busy="queue")
            since = sent.chat.snapshot_version
        at.screen.busy("asking the model")
        await chat.turn(at, self._chat_id, since=since, after_id=after_id)

    async def _stop(self) -> None:
        if self._chat_id is None:
            self._at.screen.lines("There is no chat yet.")
            return
        try:
            await self._at.client.chats.interrupt(self._chat_id)
        except Conflict:
            self._at.screen.lines("Nothing runs.")
            return
        self._at.screen.lines("Stopping.")


def read_line(prompt: str) -> str:
    """A line from the terminal, with the history of this session where Python has readline."""
    with suppress(ImportError):
        import readline  # noqa: F401 - importing it is what makes `input` edit lines
    return input(prompt)
