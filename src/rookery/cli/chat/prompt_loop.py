"""`rookery chat` without a command: type, watch the answer, type again.

The prompt is read outside of the event loop, where the terminal edits lines and Ctrl-C works as people know it. A turn
is followed over a stream of its own: nobody serves a connection while somebody thinks about what to type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import UUID

from rookery.cli.chat import approvals, chat, mcp_servers, plans
from rookery.cli.chat import errors as chat_errors
from rookery.cli.chat import questions as chat_questions
from rookery.cli.chat.chat import Terminal
from rookery.cli.chat.questions import Asked
from rookery.cli.exit_codes import Exit
from rookery.client import ApprovalAnswer, Conflict, NotFound, RookeryError, errors

PROMPT = "> "
HELP = (
    "/stop   stop the turn that runs (Ctrl-C while it is shown)",
    "/plan   let the agent only look and plan, and end that again",
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
        self._asked_servers: set[str] = set()
        self._plans = False  # in the chat that the next message makes

    def run(self, read_line: ReadLine) -> int:
        """Until somebody leaves."""
        self._at.screen.lines("Type a message; /help lists what else there is.")
        self._answer_questions(read_line)
        while True:
            try:
                line = read_line(PROMPT).strip()
            except (EOFError, KeyboardInterrupt):
                self._at.out.aside("\n")
                break
            if line == "/quit":
                break
            if line and self._handle(line):
                self._answer_questions(read_line)
        if self._chat_id is not None:
            self._at.screen.lines(f"Go on with: rookery chat attach {chat.short(self._chat_id)}")
        return Exit.OK

    def _handle(self, line: str) -> bool:
        """Do what the line says. Whether it may have left a question."""
        with self._told():
            match line:
                case "/help":
                    self._at.screen.lines(*HELP)
                case "/stop":
                    self._runner.run(self._stop())
                case "/plan":
                    self._at.screen.lines(plans.ON if self._runner.run(self._plan()) else plans.OFF)
                case "/new":
                    self._chat_id, self._plans = None, False
                    self._at.screen.lines("The next message starts another chat.")
                case _ if line.startswith("/") and " " not in line:
                    self._at.screen.lines(f"There is no {line}.", *HELP)
                case _:
                    self._runner.run(self._say(line))
                    return True
        return False

    def _answer_questions(self, read_line: ReadLine) -> None:
        """As long as the chat asks whether tools may run, whoever sits here says so."""
        with self._told():
            while questions := self._runner.run(self._questions()):
                first = questions[0]
                if first.title is not None:
                    self._at.screen.lines(*approvals.told_of_subagent(first.title, first.calls))
                try:
                    answers = approvals.ask(first.calls, read_line)
                except approvals.Undecided:
                    self._at.screen.lines("", "The question stays open. /stop drops it; any other message waits.")
                    return
                self._runner.run(self._answer(first, answers))
            self._answer_about_servers(read_line)

    def _answer_about_servers(self, read_line: ReadLine) -> None:
        """Whether servers that the project names may run. Each entry is asked about once; nothing waits for it."""
        if self._chat_id is None:
            return
        waiting = self._runner.run(mcp_servers.find_waiting(self._at.client, self._chat_id))
        if waiting is None:
            return
        workspace_id, named = waiting
        for server in named:
            if server.hash in self._asked_servers:
                continue
            self._asked_servers.add(server.hash)
            self._at.screen.lines(*mcp_servers.told(server))
            try:
                answer = mcp_servers.ask(server, read_line)
            except approvals.Undecided:
                self._at.screen.lines("", "It does not run. Later: rookery chat servers CHAT --agree NAME")
                continue
            with suppress(NotFound):  # changed meanwhile: it is asked about again
                self._runner.run(mcp_servers.send(self._at.client, workspace_id, server, answer))

    async def _questions(self) -> list[Asked]:
        return [] if self._chat_id is None else await chat_questions.find(self._at.client, self._chat_id)

    async def _answer(self, asked: Asked, answers: Sequence[ApprovalAnswer]) -> None:
        assert self._chat_id is not None
        known = await self._at.client.messages.list(self._chat_id, limit=1)
        # The answer moves whoever asked. A root goes on when its subagent is done, and may rest meanwhile.
        since = known.snapshot_version + 1 if asked.chat_id == self._chat_id else 0
        try:
            await self._at.client.chats.answer_approvals(asked.chat_id, answers)
        except Conflict:
            self._at.screen.lines("Somebody else was faster.")
            since = 0  # whatever came of that may be over already
        await self._follow(since=since, after_id=known.items[0].id if known.items else 0)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Whatever goes wrong with one line, the next one may be typed."""
        try:
            yield
        except chat_errors.Refused as error:
            self._at.screen.error(str(error))
        except RookeryError as error:
            _, text = chat_errors.explain(error, self._at.client.base_url, has_token=True)
            self._at.screen.error(text)
            if isinstance(error, errors.ChatDeleted | errors.AccessWithdrawn):
                self._chat_id = None
        except KeyboardInterrupt:
            self._at.screen.error("Interrupted.")

    async def _say(self, line: str) -> None:
        at = self._at
        if self._chat_id is None:
            made = await chat.create(at, line, model=self._model, plan_mode=self._plans)
            self._chat_id, since, after_id = made.id, made.snapshot_version, 0
        else:
            sent, after_id = await chat.say(at, self._chat_id, line, busy="queue")
            since = sent.chat.snapshot_version
        await self._follow(since=since, after_id=after_id)
        if (plan := await plans.find(at.client, self._chat_id)) is not None:
            at.screen.lines("", *plan.splitlines(), "", plans.WHAT_NOW)

    async def _plan(self) -> bool:
        if self._chat_id is not None:
            return await plans.switch(self._at.client, self._chat_id)
        self._plans = not self._plans
        return self._plans

    async def _follow(self, *, since: int, after_id: int) -> None:
        assert self._chat_id is not None
        self._at.screen.busy("asking the model")
        await chat.turn(self._at, self._chat_id, since=since, after_id=after_id, until_asked=True)

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
