"""`rookery chat` without a command: reads a message, shows the turn, and repeats.

The prompt is read outside the event loop, where the terminal edits lines and Ctrl-C works as usual. Each turn is
followed over its own stream, so no connection is open while the user types.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import UUID

import msgspec

from rookery.cli.chat import approvals, chat_actions, error_messages, mcp_servers, permission_modes
from rookery.cli.chat.approvals import Asked
from rookery.cli.chat.chat_actions import NewChat, Terminal
from rookery.cli.exit_codes import Exit, Refused
from rookery.client import ApprovalAnswer, AsyncRookery, Conflict, NotFound, RookeryError, errors
from rookery.client.content import PermissionMode

PROMPT = "> "
HELP = (
    "/stop   stop the running turn (Ctrl-C while it is shown)",
    "/plan   turn plan mode on or off: the agent plans, but changes nothing",
    "/mode   show the mode; /mode ask, /mode auto or /mode read-only changes it",
    "/new    start another chat",
    "/help   show this list",
    "/quit   leave (Ctrl-D); the chat is kept: rookery chat attach ID",
)
PLAN_MODE_ON = "Plan mode is on: the agent reads, asks and plans, but changes nothing. /plan turns it off."
PLAN_MODE_OFF = "Plan mode is off: the agent does what you say."
PLAN_CHOICES = "Reply with changes, or accept it: /plan turns plan mode off, then tell the agent to go ahead."
# A turn that proposes a plan ends soon after it, so the plan is among its last messages.
PLAN_LOOK_BACK = 10

ReadLine = Callable[[str], str]


class PromptLoop:
    """One user at one terminal. `chat_id` is None until the first message creates a chat."""

    def __init__(self, at: Terminal, runner: asyncio.Runner, *, new_chat: NewChat, chat_id: UUID | None = None) -> None:
        self._at = at
        self._runner = runner
        self._new_chat = new_chat
        self._chat_id = chat_id
        self._asked_servers: set[str] = set()
        self._files = new_chat.files  # attached to the next message

    def run(self, read_line: ReadLine) -> int:
        """Run until the user ends the loop."""
        self._at.screen.lines("Type a message; /help lists the commands.")
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
            self._at.screen.lines(f"Continue with: rookery chat attach {chat_actions.short(self._chat_id)}")
        return Exit.OK

    def _handle(self, line: str) -> bool:
        """Execute the line. Return whether the chat may ask a question afterwards."""
        with self._errors_shown():
            match line:
                case "/help":
                    self._at.screen.lines(*HELP)
                case "/stop":
                    self._runner.run(self._stop())
                case "/plan":
                    self._at.screen.lines(PLAN_MODE_ON if self._runner.run(self._plan()) else PLAN_MODE_OFF)
                case "/mode":
                    self._at.screen.lines(*permission_modes.lines(self._runner.run(self._mode())))
                case _ if line.startswith("/mode "):
                    self._at.screen.lines(self._runner.run(self._set_mode(line.removeprefix("/mode "))))
                case "/new":
                    self._chat_id = None
                    self._new_chat = msgspec.structs.replace(self._new_chat, plan_mode=False)
                    self._at.screen.lines("The next message starts another chat.")
                case _ if line.startswith("/") and " " not in line:
                    self._at.screen.lines(f"There is no command {line}.", *HELP)
                case _:
                    self._runner.run(self._send(line))
                    return True
        return False

    def _answer_questions(self, read_line: ReadLine) -> None:
        """Prompt for approvals as long as the chat asks for them."""
        with self._errors_shown():
            while questions := self._runner.run(self._questions()):
                first = questions[0]
                if first.title is not None:
                    self._at.screen.lines(*approvals.subagent_question_lines(first.title, first.calls))
                try:
                    answers = approvals.ask(first.calls, read_line)
                except approvals.Undecided:
                    self._at.screen.lines("", "The question stays open. /stop drops it; any other message waits.")
                    return
                self._runner.run(self._answer(first, answers))
            self._answer_about_servers(read_line)

    def _answer_about_servers(self, read_line: ReadLine) -> None:
        """Ask whether MCP servers of the project may run.

        Each entry is asked about once. The chat does not wait for the answer.
        """
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
            self._at.screen.lines(*mcp_servers.question_lines(server))
            try:
                answer = mcp_servers.ask(server, read_line)
            except approvals.Undecided:
                self._at.screen.lines("", "It does not run. To allow it later: rookery chat servers CHAT --agree NAME")
                continue
            with suppress(NotFound):  # it has changed meanwhile, so the user is asked again
                self._runner.run(mcp_servers.send(self._at.client, workspace_id, server, answer))

    async def _questions(self) -> list[Asked]:
        return [] if self._chat_id is None else await approvals.find_questions(self._at.client, self._chat_id)

    async def _answer(self, asked: Asked, answers: Sequence[ApprovalAnswer]) -> None:
        assert self._chat_id is not None
        known = await self._at.client.messages.list(self._chat_id, limit=1)
        # The answer continues the chat that asked. A root chat continues when its subagent is done, and may be at rest
        # meanwhile.
        since = known.snapshot_version + 1 if asked.chat_id == self._chat_id else 0
        try:
            await self._at.client.chats.answer_approvals(asked.chat_id, answers)
        except Conflict:
            self._at.screen.lines("Another client has already answered.")
            since = 0  # the result may already be complete
        await self._follow(since=since, after_id=known.items[0].id if known.items else 0)

    @contextmanager
    def _errors_shown(self) -> Iterator[None]:
        """Show errors of a command instead of ending the loop."""
        try:
            yield
        except Refused as error:
            self._at.screen.error(str(error))
        except RookeryError as error:
            _, text = error_messages.explain(error, self._at.client.base_url, has_token=True)
            self._at.screen.error(text)
            if isinstance(error, errors.ChatDeleted | errors.AccessWithdrawn):
                self._chat_id = None
        except KeyboardInterrupt:
            self._at.screen.error("Interrupted.")

    async def _send(self, line: str) -> None:
        at = self._at
        said = await chat_actions.content(at.client, line, self._files)
        if self._chat_id is None:
            made = await chat_actions.create(at.client, said, self._new_chat)
            self._chat_id, since, after_id = made.id, made.snapshot_version, 0
        else:
            sent, after_id = await chat_actions.say(at, self._chat_id, said, busy="queue")
            since = sent.chat.snapshot_version
        self._files = ()
        await self._follow(since=since, after_id=after_id)
        if (plan := await find_plan(at.client, self._chat_id)) is not None:
            at.screen.lines("", *plan.splitlines(), "", PLAN_CHOICES)

    async def _plan(self) -> bool:
        if self._chat_id is not None:
            return await switch_plan_mode(self._at.client, self._chat_id)
        self._new_chat = msgspec.structs.replace(self._new_chat, plan_mode=not self._new_chat.plan_mode)
        return self._new_chat.plan_mode

    async def _mode(self) -> PermissionMode:
        if self._chat_id is None:
            return self._new_chat.permission_mode
        return permission_modes.stored(await self._at.client.chats.get(self._chat_id))

    async def _set_mode(self, name: str) -> str:
        """Change the mode. Return what it means, or which modes there are."""
        if (wanted := permission_modes.named(name)) is None:
            return permission_modes.CHOICES
        if self._chat_id is not None:
            await self._at.client.chats.update(self._chat_id, permission_mode=wanted)
        self._new_chat = msgspec.structs.replace(self._new_chat, permission_mode=wanted)
        return permission_modes.line(wanted)

    async def _follow(self, *, since: int, after_id: int) -> None:
        assert self._chat_id is not None
        self._at.screen.busy("asking the model")
        await chat_actions.turn(self._at, self._chat_id, since=since, after_id=after_id, until_asked=True)

    async def _stop(self) -> None:
        if self._chat_id is None:
            self._at.screen.lines("There is no chat yet.")
            return
        try:
            await self._at.client.chats.interrupt(self._chat_id)
        except Conflict:
            self._at.screen.lines("No turn is running.")
            return
        self._at.screen.lines("Stopping.")


async def switch_plan_mode(client: AsyncRookery, chat_id: UUID) -> bool:
    """Toggle the plan mode of a chat. Return whether it is on now."""
    wanted = not (await client.chats.get(chat_id)).plan_mode
    await client.chats.update(chat_id, plan_mode=wanted)
    return wanted


async def find_plan(client: AsyncRookery, chat_id: UUID) -> str | None:
    """Return the plan that the newest turn has proposed, as text."""
    page = await client.messages.list(chat_id, limit=PLAN_LOOK_BACK)
    for message in page.items:
        if message.role == "user":
            break
        for part in message.content:
            if part.type == "tool-result" and part.tool_name == "propose_plan" and not part.is_error:
                file_id = part.result.get("file_id") if isinstance(part.result, dict) else None
                if isinstance(file_id, str):
                    return (await client.files.download(file_id)).decode("utf-8", "replace")
    return None


def read_line(prompt: str) -> str:
    """Read a line from the terminal, with the history of this session if Python has readline."""
    with suppress(ImportError):
        import readline  # noqa: F401 - importing it is what makes `input` edit lines
    return input(prompt)
