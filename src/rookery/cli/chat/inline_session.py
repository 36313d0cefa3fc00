"""`rookery chat` at a terminal: one input line with a status line, and the chat above it in the scrollback.

The input stays open while the chat works. One task follows the stream; keys and commands start short tasks. No
alternate screen is used, so the terminal's own scrollback, search and copy work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec
from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, HSplit, Window
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output import Output as TerminalOutput

from rookery.cli.chat import (
    approvals,
    chat_actions,
    error_messages,
    mcp_servers,
    permission_modes,
    prompt_loop,
    saved_prompts,
    status_line,
    stream_follower,
    terminal_input,
)
from rookery.cli.chat.block_renderer import Renderer, neutralize
from rookery.cli.chat.chat_actions import NewChat
from rookery.cli.chat.inline_screen import InlineScreen
from rookery.cli.chat.stream_follower import Follower
from rookery.cli.chat.terminal_screen import cut, wrapped
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.client import ApprovalAnswer, AsyncRookery, Chat, Conflict, NotFound, RookeryError, errors
from rookery.client.content import BusyBehavior, PermissionMode
from rookery.client.live_streams import AT_REST, Change
from rookery.client.models import Elicitation, WorkspaceMcpServer
from rookery.client.reducer import Event, View
from rookery.runtime.clock import Clock, SystemClock

# Chosen: a frame costs as much as many tokens, see "CPU per token" in benchmarks/terminal.py. Keys are shown at once.
REDRAW_SECONDS = 0.25
# Chosen: a longer paste cannot be edited in a line. It becomes a file.
MAX_PASTE_CHARACTERS = 16 * 1024
MAX_FILE_BYTES = 10 << 20
# Chosen: how long Esc waits for the rest of a key sequence. Over a slow line the sequence may come in two pieces.
ESCAPE_SECONDS = 0.1
# Chosen: a key answers a question only if the question has been visible for this time. Otherwise a letter of a message
# that the user is typing would answer a question that has just appeared.
KEY_GUARD_SECONDS = 0.5
# Chosen: the pause before the list of chats is watched again, after that has failed.
WATCH_PAUSE_SECONDS = 5.0
# Chosen: after this time without a word of the model, and then as often, the chat may be waiting for a free slot.
SLOT_SECONDS = 3
TAIL = 10

COMMANDS: Mapping[str, str] = {
    "/list": "show your chats",
    "/switch ID": "continue another chat",
    "/new": "start another chat with the next message",
    "/stop": "stop the running turn (Esc)",
    "/steer TEXT": "send into the running turn (Alt-Enter)",
    "/retry": "try the failed turn again",
    "/approve": "allow the action (y)",
    "/always": "allow it always in this chat (a)",
    "/deny REASON": "refuse the action (n)",
    "/model NAME": "use another model; no name lists them",
    "/mode NAME": "ask, auto or read-only; no name shows it (Alt-M)",
    "/plan": "turn plan mode on or off",
    "/file PATH": "attach a file to the next message (@PATH)",
    "/connect NAME": "log in to an MCP server; no name lists them",
    "/output": "show the last output of a command whole",
    "/help": "show this list",
    "/quit": "leave (Ctrl-D); the chat continues",
}
# Shown by /help, and not completed.
PROMPT_HELP = {"/NAME": "insert the saved prompt of this name"}
KEYS = (
    "Enter sends or queues. Alt-Enter steers. Ctrl-J starts a new line. Alt-M changes the mode. Esc stops. "
    "Ctrl-D leaves."
)

Word: TypeAlias = Literal["y", "n", "a", "p"]
Source: TypeAlias = Literal["chat", "subagent", "server"]


class Question(msgspec.Struct, frozen=True):
    """A question that keys answer. `choices` are the keys and their meanings; `answer` gets a key and a reason."""

    source: Source
    key: str
    text: str
    choices: Mapping[Word, str]
    answer: Callable[[Word, str], None]
    shown_at: float


class Printer:
    """Collects output and prints it above the input of an application, once per turn of the event loop.

    prompt_toolkit's own way (`in_terminal`) switches the terminal to its line mode for each output. Keys that arrive in
    that moment would be echoed, Enter would not be recognized, and Ctrl-C would end the process.
    """

    def __init__(self, app: Application[str]) -> None:
        self._app = app
        self._pending: list[str] = []

    def write(self, text: str) -> None:
        if not self._pending:
            asyncio.get_running_loop().call_soon(self.flush)
        self._pending.append(text)

    def flush(self) -> None:
        """Print what is pending."""
        text, self._pending = "".join(self._pending), []
        app = self._app
        if not text:
            return
        if not app.is_running or app.renderer.last_rendered_screen is None:  # nothing is drawn yet
            app.output.write_raw(text)
            app.output.flush()
            return
        with set_app(app):
            app.renderer.erase()
            app.output.write_raw(text)
            app.renderer.render(app, app.layout)


class InlineSession:
    """One user at one terminal."""

    def __init__(
        self,
        client: AsyncRookery,
        out: Output,
        *,
        new_chat: NewChat,
        has_color: bool,
        clock: Clock | None = None,
        history_path: Path | None = None,
        input: Input | None = None,
        output: TerminalOutput | None = None,
    ) -> None:
        self._client = client
        self._out = out
        self._clock = clock or SystemClock()
        self._new_chat = new_chat
        self._files: list[Path | tuple[str, bytes]] = list(new_chat.files)
        self._chat_id: UUID | None = None
        self._view = View()
        self._chat: Chat | None = None  # the chat in the list of chats
        self._follower: Follower | None = None
        self._is_synced = False
        self._is_lost = False
        self._is_heard = False  # the running turn has sent a part
        self._turn_after_id = 0
        self._turn_began: float | None = None
        self._phase = ("", 0.0)  # what the chat does, and since when
        self._is_stopping = False
        self._questions: list[Question] = []
        self._options: list[str] = []
        self._answered: set[str] = set()
        self._following: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()  # messages are sent in the order in which they were typed
        self._pastes = 0
        self._redraw: asyncio.TimerHandle | None = None  # the next frame of a streamed answer
        self._prompt: PromptSession[str] = PromptSession(
            message=FormattedText([("bold", prompt_loop.PROMPT)]),
            key_bindings=self._bindings(),
            completer=terminal_input.CommandCompleter(COMMANDS, partial(saved_prompts.find, client)),
            complete_while_typing=False,
            history=terminal_input.history(history_path),
            multiline=True,
            color_depth=None if has_color else ColorDepth.MONOCHROME,
            erase_when_done=True,
            input=input or terminal_input.terminal_input(max_paste=MAX_FILE_BYTES),
            output=output or terminal_input.terminal_output(),
        )
        # Not a part of the prompt's message, which prompt_toolkit takes apart by character for each frame.
        layout = self._prompt.layout.container
        assert isinstance(layout, HSplit)
        layout.children.insert(0, Window(FormattedTextControl(self._above_input), dont_extend_height=True))
        self._prompt.app.ttimeoutlen = ESCAPE_SECONDS
        self._prompt.app.timeoutlen = ESCAPE_SECONDS
        self._printer = Printer(self._prompt.app)
        self.screen = InlineScreen(
            Renderer(has_color=has_color), write=self._printer.write, changed=self._changed_soon, width=self._width
        )

    # Running

    async def run(self, reference: str | None, *, tail: int = TAIL) -> int:
        """Run until the user leaves."""
        user = await self._client.me()
        self.screen.say(f"At {self._client.base_url} as {user.username}. /help lists the commands.")
        if reference is not None:
            self._open(await chat_actions.find_chat(self._client, reference), tail=tail)
        # Before the input is drawn: tmux keeps what is erased from the top of the screen in its history.
        self._printer.flush()
        ticking = asyncio.ensure_future(self._tick())
        try:
            with suppress(EOFError):
                await self._prompt.prompt_async()
        finally:
            tasks = [task for task in (ticking, self._following, *self._work) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.screen.close()
            if self._chat_id is not None:
                self.screen.lines(f"Continue with: rookery chat attach {chat_actions.short(self._chat_id)}")
            self._printer.flush()
        return Exit.OK

    async def _tick(self) -> None:
        """Redraw the age of a running turn."""
        while True:
            await asyncio.sleep(1)
            if self._is_running:
                self._changed()
                age = self._turn_seconds or 0.0
                if not self._is_heard and age > 1 and int(age) % SLOT_SECONDS == 0:
                    self._start(self._load_chat())

    @property
    def _is_running(self) -> bool:
        return self._view.status is not None and self._view.status not in AT_REST

    @property
    def _turn_seconds(self) -> float | None:
        return None if self._turn_began is None else self._clock.monotonic() - self._turn_began

    @property
    def _can_stop(self) -> bool:
        return self._is_running or self._view.status == "requires_action"

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._guarded(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _guarded(self, work: Awaitable[None]) -> None:
        """Show errors instead of ending the session."""
        try:
            await work
        except (Refused, OSError) as error:
            self.screen.error(str(error))
        except RookeryError as error:
            self.screen.error(error_messages.explain(error, self._client.base_url, has_token=True)[1])
            if isinstance(error, errors.ChatDeleted | errors.AccessWithdrawn):
                self._leave_chat()

    # Following

    def _open(self, chat_id: UUID, *, tail: int | None) -> None:
        self._leave_chat()
        self._chat_id = chat_id
        self._following = asyncio.ensure_future(self._guarded(self._follow(chat_id, tail)))

    def _leave_chat(self) -> None:
        if self._following is not None and self._following is not asyncio.current_task():
            self._following.cancel()
        self._following = None
        self.screen.close()
        self._chat_id, self._view, self._turn_began, self._is_synced = None, View(), None, False
        self._chat, self._follower, self._is_lost, self._is_heard = None, None, False, False
        self._questions, self._options, self._turn_after_id, self._is_stopping = [], [], 0, False
        self._changed()

    async def _follow(self, chat_id: UUID, tail: int | None) -> None:
        watching = asyncio.ensure_future(self._watch_family(chat_id))
        try:
            async with self._client.chats.stream(chat_id, tail=tail, mark_read=True) as live:
                follower = Follower(live, screen=self.screen, out=self._out, clock=self._clock, prompts=True)
                self._follower = follower
                async for change in live:
                    self._note_phase(change)
                    follower.show(change)
                    if change.is_committed:
                        self._committed(change.state)
        except RookeryError:
            # Without a stream, answers would not be shown.
            if self._chat_id == chat_id:
                self._leave_chat()
            raise
        finally:
            watching.cancel()

    async def _watch_family(self, chat_id: UUID) -> None:
        while True:
            with suppress(RookeryError):
                async for change in approvals.watch_family(self._client, chat_id):
                    if self._chat_id != chat_id:
                        return
                    if change.chat is not None:
                        self._note_chat(change.chat)
                    if change.questions is not None:
                        self._show_subagent_questions(change.questions)
            await asyncio.sleep(WATCH_PAUSE_SECONDS)

    async def _load_chat(self) -> None:
        """Load the chat. Events do not say whether it waits for a free slot."""
        if (chat_id := self._chat_id) is not None:
            found = await self._client.chats.get(chat_id)
            if self._chat_id == chat_id:
                self._note_chat(found)

    def _note_chat(self, found: Chat) -> None:
        if self._chat is None or found.snapshot_version >= self._chat.snapshot_version:
            self._chat = found
            self._changed()

    def _show_subagent_questions(self, found: list[approvals.Asked]) -> None:
        open_keys = {_key(asked.chat_id, call.tool_call_id) for asked in found for call in asked.calls}
        self._questions = [each for each in self._questions if each.source != "subagent" or each.key in open_keys]
        for asked in found:
            if self._ask_approvals(asked, "subagent"):
                self.screen.lines(*approvals.subagent_question_lines(asked.title or "", asked.calls))
        self._changed()

    def _note_phase(self, change: Change) -> None:
        for event in change.events:
            if event["type"] in ("disconnected", "hello"):
                self._is_lost = event["type"] == "disconnected"
                self._changed()
            elif event["type"] == "message_part":
                self._is_heard = True
            phase = _phase_of(event)
            if phase is not None and phase != self._phase[0]:
                self._phase = (phase, self._clock.monotonic())

    def _committed(self, state: View) -> None:
        self._view = state
        is_first, self._is_synced = not self._is_synced, True
        if state.status != "requires_action":
            self._questions = [each for each in self._questions if each.source != "chat"]
        if self._is_running:
            self._options = []
            if self._turn_began is None:
                self._turn_began, self._is_heard = self._clock.monotonic(), False
        elif state.status == "requires_action":
            self._start(self._find_questions())
        elif self._turn_began is not None:
            self._rest(state)
        if is_first and not self._is_running:
            self.screen.close()
            self._turn_after_id = state.last_message_id
            self._options = _options(state)
            self._say_end(state)
            self._start(self._find_servers())
        self._changed()

    def _rest(self, state: View) -> None:
        self.screen.close()
        seconds = self._clock.monotonic() - (self._turn_began or self._clock.monotonic())
        self._say_end(state)
        self.screen.note(f"{stream_follower.figures(state, self._turn_after_id)}{seconds:.1f} s")
        self._is_stopping, self._turn_began = False, None
        self._turn_after_id = state.last_message_id
        self._options = _options(state)
        self._start(self._show_plan())
        self._start(self._find_servers())

    def _say_end(self, state: View) -> None:
        """Say how the last turn ended, if it did not end well, and what the user can do."""
        end = None if self._follower is None else self._follower.take_end()
        if state.status == "error":
            error = state.error or {}
            self.screen.error(f"{error.get('message') or 'The turn failed.'} {error.get('detail') or ''}".rstrip())
            self.screen.say("/retry tries again.")
        elif self._is_stopping or (end is not None and end.error is None):
            self.screen.say("Stopped. The answer so far is saved.")

    async def _show_plan(self) -> None:
        if self._chat_id is None:
            return
        if (plan := await prompt_loop.find_plan(self._client, self._chat_id)) is not None:
            self.screen.text(f"{plan}\n")
            self.screen.close()
            self.screen.say(prompt_loop.PLAN_CHOICES)

    # Questions

    async def _find_servers(self) -> None:
        """Ask about MCP servers of the workspace that need the user's consent. Each is asked about once."""
        waiting = None if self._chat_id is None else await mcp_servers.find_waiting(self._client, self._chat_id)
        if waiting is None:
            return
        workspace_id, servers = waiting
        for server in servers:
            if server.hash not in self._answered:
                self._answered.add(server.hash)
                self.screen.lines(*mcp_servers.question_lines(server))
                self._ask_server(workspace_id, server)

    def _ask_server(self, workspace_id: UUID, server: WorkspaceMcpServer) -> None:
        async def send(word: mcp_servers.Answer) -> None:
            with suppress(NotFound):  # it has changed meanwhile, so the user is asked again
                await mcp_servers.send(self._client, workspace_id, server, word)

        self._ask(
            "server",
            server.hash,
            neutralize(mcp_servers.asked(server)),
            {"y": "yes", "n": "no"},
            lambda word, _: self._start(send("agree" if word == "y" else "deny")),
        )

    async def _find_questions(self) -> None:
        if self._chat_id is None:
            return
        for asked in await approvals.find_questions(self._client, self._chat_id):
            self._ask_approvals(asked, "chat" if asked.chat_id == self._chat_id else "subagent")

    def _ask_approvals(self, asked: approvals.Asked, source: Source) -> bool:
        """Ask about each call, unless it is asked or answered. The answers are sent together (decision 0086)."""
        known = {*self._answered, *(each.key for each in self._questions)}
        if all(_key(asked.chat_id, call.tool_call_id) in known for call in asked.calls):
            return False
        answers: dict[str, ApprovalAnswer] = {}
        for number, call in enumerate(asked.calls, start=1):
            program = call.always.program if call.always is not None else None

            def answer(
                word: Word,
                reason: str,
                call_id: str = call.tool_call_id,
                match: dict[str, str] | None = program,
                form: Elicitation | None = call.elicitation,
            ) -> None:
                answers[call_id] = ApprovalAnswer(
                    tool_call_id=call_id,
                    decision="deny" if word == "n" else "approve",
                    reason=reason if word == "n" else "",
                    always="chat" if word in ("a", "p") else None,
                    match=match if word == "p" else None,
                    responses=approvals.typed_responses(form, reason) if form is not None and word == "y" else None,
                )
                if len(answers) == len(asked.calls):
                    self._start(self._send_answers(asked, list(answers.values())))

            is_on_hold = call.brake is not None
            choices: dict[Word, str] = {"y": "continue" if is_on_hold else "yes", "n": "no"}
            if call.elicitation is not None:
                self.screen.lines(*approvals.elicitation_lines(call.elicitation))
                choices = {"y": approvals.form_hint(call.elicitation), "n": "decline"}
            elif not is_on_hold:
                choices["a"] = "always in this chat"
            if program and not is_on_hold:
                choices["p"] = f"always {neutralize(', '.join(program.values()))}"
            count = f" ({number} of {len(asked.calls)})" if len(asked.calls) > 1 else ""
            verb = "Answer for" if call.elicitation is not None else "Continue with" if is_on_hold else "Allow"
            text = f"{verb} {neutralize(call.tool_name)}{count}?"
            self._ask(source, _key(asked.chat_id, call.tool_call_id), text, choices, answer)
        return True

    async def _send_answers(self, asked: approvals.Asked, answers: list[ApprovalAnswer]) -> None:
        try:
            await self._client.chats.answer_approvals(asked.chat_id, answers)
        except Conflict:
            self.screen.say("Another client has already answered.")
        except RookeryError:
            # The question is still open, so the user is asked again.
            self._answered -= {_key(asked.chat_id, call.tool_call_id) for call in asked.calls}
            self._ask_approvals(asked, "chat" if asked.chat_id == self._chat_id else "subagent")
            raise

    def _ask(
        self,
        source: Source,
        key: str,
        text: str,
        choices: Mapping[Word, str],
        answer: Callable[[Word, str], None],
    ) -> None:
        self._questions.append(Question(source, key, text, choices, answer, self._clock.monotonic()))
        self._changed()

    def _answer(self, word: Word, reason: str = "") -> None:
        if not self._questions:
            self.screen.say("Nothing waits for your answer.")
            return
        question = self._questions[0]
        if word not in question.choices:
            self.screen.say(f"{question.text} Answer with {' or '.join(question.choices)}.")
            return
        self._questions.pop(0)
        self._answered.add(question.key)
        said = {"y": "Allowed.", "n": f"Denied. {reason}".rstrip(), "a": "Allowed, and always in this chat."}
        self.screen.say(said.get(word, f"Allowed, and {question.choices[word]} in this chat."))
        question.answer(word, reason)
        if self._questions:  # the next question has become visible now
            self._questions[0] = msgspec.structs.replace(self._questions[0], shown_at=self._clock.monotonic())

    # Input

    def _accept(self, buffer: Buffer, busy: BusyBehavior) -> None:
        if buffer.text.endswith("\\"):
            text = f"{buffer.text[:-1]}\n"
            buffer.document = Document(text, len(text))
            return
        text = buffer.text.strip()
        if text:
            buffer.append_to_history()
        buffer.reset()
        if not text:
            return
        if text.startswith("/") and "/" not in text[1:].partition(" ")[0]:
            name, _, rest = text.partition(" ")
            self._command(name, rest.strip())
        else:
            self._start(self._send(text, busy))

    def _command(self, name: str, rest: str) -> None:
        match name:
            case "/quit" | "/exit":
                self._prompt.app.exit(exception=EOFError())
            case "/help":
                width = max(map(len, COMMANDS)) + 1
                for usage, meaning in {**COMMANDS, **PROMPT_HELP}.items():
                    self.screen.say(f"{usage:<{width}}{meaning}", indent=width)
                self.screen.say(KEYS)
            case "/stop":
                self._start(self._stop())
            case "/new":
                self._leave_chat()
                self.screen.say("The next message starts another chat.")
            case "/approve":
                self._answer("y")
            case "/always":
                self._answer("a")
            case "/deny":
                self._answer("n", rest)
            case "/output":
                self.screen.show_output()
            case "/list":
                self._start(self._list())
            case "/plan":
                self._start(self._plan())
            case "/mode":
                self._start(self._mode(rest))
            case "/model":
                self._start(self._model(rest))
            case "/retry":
                self._start(self._retry())
            case "/connect":
                self._start(self._connect(rest))
            case "/steer" if rest:
                self._start(self._send(rest, "steer"))
            case "/switch" if rest:
                self._start(self._switch(rest))
            case "/file" if rest:
                self._start(self._attach(Path(os.path.expanduser(rest))))
            case "/steer" | "/switch" | "/file":
                usage = next(usage for usage in COMMANDS if usage.startswith(name))
                self.screen.say(f"Write {usage}.")
            case _:
                self._start(self._insert_prompt(name, rest))

    async def _insert_prompt(self, name: str, rest: str) -> None:
        """Insert a saved prompt into the input. What was typed after its name follows it."""
        found = await saved_prompts.get(self._client, name.removeprefix("/"))
        if found is None:
            self.screen.say(f"There is no command and no saved prompt {name}. /help lists the commands.")
            return
        text = f"{found.text} {rest}".rstrip()
        if found.variables:
            names = ", ".join(f"{{{{{each}}}}}" for each in found.variables)
            self.screen.say(f"Replace {names} before you send the message.")
        before = self._prompt.default_buffer.text  # typed while the prompt was loaded
        self._prompt.default_buffer.document = Document(text + before, saved_prompts.cursor_of(text))
        self._changed()

    async def _connect(self, name: str) -> None:
        """Show where to log in to an MCP server, and wait for it."""
        logins = await mcp_servers.find_logins(self._client)
        server = next((each for each in logins if each.slug == name), None)
        if server is None:
            for line in mcp_servers.login_lines(logins, name):
                self.screen.say(line)
            return
        self.screen.say(mcp_servers.connect_line(self._client.base_url, server))
        is_connected = await mcp_servers.wait_for_login(self._client, server.id)
        self.screen.say(f"{server.slug} is connected." if is_connected else f"{server.slug} is not connected yet.")

    async def _send(self, text: str, busy: BusyBehavior) -> None:
        target = self._chat_id
        try:
            async with self._sending:
                await self._send_to(target or self._chat_id, text, busy)
        except BaseException:
            # The text is not lost: the user can send it again.
            self.screen.busy("")
            if not self._prompt.default_buffer.text:
                self._prompt.default_buffer.insert_text(text)
            raise

    async def _send_to(self, target: UUID | None, text: str, busy: BusyBehavior) -> None:
        files, self._files = self._files, []
        try:
            content = await chat_actions.content(self._client, text, [*files, *terminal_input.mentioned(text)])
            if target is None:
                self.screen.busy("starting")
                made = await chat_actions.create(self._client, content, self._new_chat)
                self._open(made.id, tail=None)
                self._note_chat(made)
                return
            sent = await self._client.messages.send(target, content, busy_behavior=busy)
        except BaseException:
            self._files = files + self._files
            raise
        for warning in sent.warnings:
            self.screen.notice(warning)
        if sent.queued:
            self.screen.notice("Sent into the running turn." if busy == "steer" else "Queued until the turn ends.")

    async def _stop(self) -> None:
        if self._chat_id is None:
            self.screen.say("There is no chat yet.")
            return
        try:
            self._is_stopping = True
            await self._client.chats.interrupt(self._chat_id)
            self._changed()
        except Conflict:
            self._is_stopping = False
            self.screen.say("No turn is running.")

    async def _retry(self) -> None:
        if self._chat_id is None:
            self.screen.say("There is no chat yet.")
        else:
            await self._client.chats.retry(self._chat_id)

    async def _list(self) -> None:
        page = await self._client.chats.list(limit=20)
        for each in page.items:
            mark = "*" if each.id == self._chat_id else " "
            self.screen.note(f"{mark} {chat_actions.short(each.id)}  {chat_actions.state_word(each):<9}  {each.title}")
        if not page.items:
            self.screen.say("There are no chats yet.")

    async def _switch(self, reference: str) -> None:
        found = await self._client.chats.get(await chat_actions.find_chat(self._client, reference))
        self._open(found.id, tail=TAIL)
        self._note_chat(found)
        self.screen.say(f"Chat {chat_actions.short(found.id)}: {found.title}")

    async def _plan(self) -> None:
        if self._chat_id is None:
            self._new_chat = msgspec.structs.replace(self._new_chat, plan_mode=not self._new_chat.plan_mode)
            is_on = self._new_chat.plan_mode
        else:
            is_on = await prompt_loop.switch_plan_mode(self._client, self._chat_id)
        self.screen.say(prompt_loop.PLAN_MODE_ON if is_on else prompt_loop.PLAN_MODE_OFF)

    @property
    def _permission_mode(self) -> PermissionMode:
        return self._new_chat.permission_mode if self._chat is None else permission_modes.stored(self._chat)

    async def _mode(self, name: str) -> None:
        if not name:
            self.screen.lines(*permission_modes.lines(self._permission_mode))
        elif (wanted := permission_modes.named(name)) is None:
            self.screen.say(permission_modes.CHOICES)
        else:
            await self._set_mode(wanted)

    async def _set_mode(self, wanted: PermissionMode) -> None:
        if (chat_id := self._chat_id) is not None:
            changed = await self._client.chats.update(chat_id, permission_mode=wanted)
            if self._chat_id == chat_id:
                self._chat = changed
        # Also the mode of the chats that are started next.
        self._new_chat = msgspec.structs.replace(self._new_chat, permission_mode=wanted)
        self.screen.notice(permission_modes.line(wanted))
        self._changed()

    async def _model(self, name: str) -> None:
        if not name:
            names = [model.model for provider in await self._client.models.list() for model in provider.models]
            self.screen.say("Models: " + ", ".join(names))
            return
        found = await chat_actions.find_model(self._client, name)
        self._new_chat = msgspec.structs.replace(self._new_chat, model=name)
        if self._chat_id is not None:
            await self._client.chats.update(self._chat_id, model_config_id=found)
        self.screen.say(f"The next turn uses {name}.")

    async def _attach(self, path: Path) -> None:
        chat_actions.check_file(path)
        self._files.append(path)
        self.screen.say(f"{path.name} is attached to your next message.")

    def _paste(self, buffer: Buffer, data: str) -> None:
        """Insert a paste. A long one becomes a file of the next message."""
        text = data.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) <= MAX_PASTE_CHARACTERS:
            buffer.insert_text(text)
            return
        body = text.encode("utf-8", "replace")
        if len(body) > MAX_FILE_BYTES:
            self.screen.say("The pasted text is larger than 10 MiB and was not used. Attach a smaller file: /file PATH")
            return
        self._pastes += 1
        name = f"pasted-{self._pastes}.txt"
        self._files.append((name, body))
        size = f"{len(body) / 1024:.0f} KiB"
        self.screen.say(f"The pasted text ({size}) is attached to your next message as {name}.")

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()
        is_empty = Condition(lambda: not self._prompt.default_buffer.text)
        is_asked = is_empty & Condition(self._takes_keys)
        has_options = is_empty & Condition(lambda: bool(self._options))

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            self._accept(event.current_buffer, "queue")

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            self._accept(event.current_buffer, "steer")

        @keys.add("escape", "m")
        def _(event: KeyPressEvent) -> None:
            self._start(self._set_mode(permission_modes.following(self._permission_mode)))

        @keys.add("c-j")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("escape")
        def _(event: KeyPressEvent) -> None:
            if self._can_stop:
                self._start(self._stop())

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            elif self._can_stop:
                self._start(self._stop())
            else:
                self.screen.say("Ctrl-D leaves.")

        @keys.add("c-d", filter=is_empty)
        def _(event: KeyPressEvent) -> None:
            event.app.exit(exception=EOFError())

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            self._paste(event.current_buffer, event.data)

        words: tuple[Word, ...] = ("y", "n", "a", "p")
        for word in words:

            @keys.add(word, filter=is_asked)
            def _(event: KeyPressEvent, word: Word = word) -> None:
                self._answer(word)

        for digit in "123456789":

            @keys.add(digit, filter=has_options)
            def _(event: KeyPressEvent, digit: str = digit) -> None:
                at = int(digit) - 1
                event.current_buffer.insert_text(self._options[at] if at < len(self._options) else digit)

        return keys

    # Drawing

    def _takes_keys(self) -> bool:
        """Return whether keys answer the first question. It must have been visible for a moment."""
        if not self._questions:
            return False
        return self._clock.monotonic() - self._questions[0].shown_at >= KEY_GUARD_SECONDS

    def _above_input(self) -> FormattedText:
        """Return the end of the unfinished block, the question, and the status line."""
        size = self._prompt.output.get_size()
        width = size.columns - 1
        rows = [("", line) for line in self.screen.open_lines()]
        if self._questions:
            question = self._questions[0]
            choices = ", ".join(f"{key}: {meaning}" for key, meaning in question.choices.items())
            rows += [("bold", line) for line in wrapped(f"{question.text} {choices}", width)]
        # A small terminal keeps the status line and the input.
        rows = rows[-max(size.rows - 3, 1) :]
        rows.append(("reverse", cut(self._status_line(), width)))
        *upper, (style, last) = rows
        return FormattedText([*((each, f"{text}\n") for each, text in upper), (style, last)])

    def _status_line(self) -> str:
        phase, since = self._phase
        words = status_line.state_words(
            status_line.Shown(
                view=self._view,
                chat=self._chat,
                has_chat=self._chat_id is not None,
                is_synced=self._is_synced,
                is_lost=self._is_lost,
                is_stopping=self._is_stopping,
                is_asked=bool(self._questions),
                turn_seconds=self._turn_seconds,
                phase=(phase, self._clock.monotonic() - since) if phase else None,
                starting=self.screen.waits_for,
            )
        )
        if self._view.queue:
            words.append(f"{len(self._view.queue)} queued")
        if self._files:
            words.append(f"{len(self._files)} attached")
        words.append("Esc stops" if self._can_stop else "/help")
        is_planning = self._new_chat.plan_mode if self._chat is None else self._chat.plan_mode
        words.append("plan mode" if is_planning else permission_modes.WORDS[self._permission_mode])
        words.append("new chat" if self._chat_id is None else f"chat {chat_actions.short(self._chat_id)}")
        return f" {' | '.join(words)} "

    def _changed(self) -> None:
        self._prompt.app.invalidate()

    def _changed_soon(self) -> None:
        """Redraw with the next frame."""
        if self._redraw is None:
            self._redraw = asyncio.get_running_loop().call_later(REDRAW_SECONDS, self._draw_frame)

    def _draw_frame(self) -> None:
        self._redraw = None
        self._changed()

    def _width(self) -> int:
        return self._prompt.output.get_size().columns


def _options(state: View) -> list[str]:
    """Return the choices of the question that the last turn has asked, if it asked only one."""
    for message in reversed(list(state.messages.values())[-10:]):
        if message["role"] == "user":
            break
        for part in message["content"]:
            if part["type"] == "tool-result" and part.get("tool_name") == "ask_user_question":
                result = part.get("result")
                asked = result.get("questions") if isinstance(result, dict) else None
                if isinstance(asked, list) and len(asked) == 1 and isinstance(asked[0], dict):
                    rows = asked[0].get("options") or []
                    return [str(row.get("label", "")) for row in rows if isinstance(row, dict)][:9]
    return []


def _phase_of(event: Event) -> str | None:
    """Return the activity of the chat after this event; None if the event does not change it."""
    match event["type"]:
        case "message_part":
            part = event["part"]
            match part["type"]:
                case "text":
                    return "writing"
                case "reasoning":
                    return "thinking"
                case "tool-call":
                    return f"running {neutralize(str(part.get('tool_name', '')))}"
                case "tool-result" if "result" in part:
                    return "waiting for the model"
        case "message":
            calls = [part for part in event["message"]["content"] if part["type"] == "tool-call"]
            return f"running {neutralize(calls[-1]['tool_name'])}" if calls else "waiting for the model"
        case "retry" if event["retry"] is not None:
            return "trying again"
    return None


def _key(chat_id: UUID, tool_call_id: str) -> str:
    return f"{chat_id} {tool_call_id}"
