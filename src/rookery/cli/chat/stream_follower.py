"""The follower of a chat's stream: prints the answer on stdout, and everything else on stderr.

A step may be sent twice: after a lost connection, or if its live parts restart. Parts that were already printed are not
printed again: their characters are counted, and the same number is skipped.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from rookery.cli.chat import approvals
from rookery.cli.chat.inline_screen import InlineScreen
from rookery.cli.chat.terminal_screen import Screen, Style
from rookery.cli.chat.transcript_printer import EndMark, TranscriptPrinter, end_line, ended_agent
from rookery.cli.output import Output
from rookery.client import AsyncRookery, Change, Conflict, LiveChat
from rookery.client.live_streams import AT_REST
from rookery.client.models import Agent
from rookery.client.reducer import Event, View
from rookery.domain.chat.chat import RetryState
from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import Part, Reasoning, Text
from rookery.runtime.clock import Clock

# Wrapper programs forward a signal that the terminal has also sent to this process. A second signal within this time is
# the same key press.
ECHO_SECONDS = 0.2

_parts = msgspec.json.Decoder(tuple[Part, ...])


class UserLeft(Exception):
    """Raised when the user ends the command. The chat continues."""


class Follower:
    """Shows one chat. `after_id` is the last message that the user has already seen.

    With `lines` every event is printed as JSON instead, one per line; with `prompts` the user's messages are shown too.
    `approval_note` is printed below a tool call that waits for approval.
    """

    def __init__(
        self,
        live: LiveChat,
        *,
        screen: Screen | InlineScreen,
        out: Output,
        clock: Clock,
        after_id: int = 0,
        lines: bool = False,
        prompts: bool = False,
        approval_note: str = "",
    ) -> None:
        self._live = live
        self._screen = screen
        self._out = out
        self._lines = lines
        self._prompts = prompts
        self._approval_note = approval_note
        self._clock = clock
        self._printer = TranscriptPrinter(screen)
        self._seen_id = after_id
        self._attempt: tuple[int, int] | None = None
        self._told: dict[type[Part], int] = {}
        self._skip: dict[type[Part], int] = {}
        self._is_lost = False

    async def to_rest(self, since: int = 0, *, at_rest: Collection[str] = AT_REST) -> View:
        """Show everything until the chat has one of these statuses. The next output always starts on its own line."""
        try:
            async for change in self._live:
                self.show(change)
                if change.is_committed and change.state.status in at_rest and change.state.snapshot_version >= since:
                    break
        finally:
            self._screen.close()
        return self._live.state

    def tell_agents(self, agents: Iterable[Agent]) -> None:
        """Print subagents that have ended while the chat runs, if an earlier output has named them."""
        for agent in agents:
            if agent.outcome is not None:
                self._printer.tell_agent(ended_agent(agent.chat_id, agent.title, agent.outcome))

    def take_end(self) -> EndMark | None:
        """Return the mark of the last turn, if it was stopped or has failed. It is not printed then."""
        return self._printer.take_end()

    def tell_stop(self) -> None:
        """Print the mark of the last turn if it was stopped. The error of a failed turn is told with the state."""
        if (end := self.take_end()) is not None and end.error is None:
            self._screen.lines(end_line(end))

    def show(self, change: Change) -> None:
        if self._lines:
            for event in change.events:
                self._out.text(msgspec.json.encode(event).decode() + "\n")
            return
        for event in change.events:
            self._show(event)

    def _show(self, event: Event) -> None:
        match event["type"]:
            case "message_part":
                self._show_part(event)
            case "message":
                self._show_message(event["message"])
            case "preview_reset":
                self._begin((event["history_version"], event["generation_attempt"]))
            case "retry" if event["retry"] is not None:
                self._printer.tell_retry(msgspec.convert(event["retry"], RetryState))
            case "action_required" if event.get("kind") == "approval":
                for call in event["tool_calls"]:
                    self._printer.wait_for_user(call["tool_call_id"])
                self._screen.lines(*approvals.question_lines(event["tool_calls"]))
                if self._approval_note:
                    self._screen.note(self._approval_note)
            case "action_required":
                self._screen.note("The chat waits for tools that its own client executes; this command has none.")
            case "disconnected":
                self._tell_loss(event["reason"], event["retry_in_seconds"])
            case "synced" if self._is_lost:
                self._is_lost = False
                self._screen.note("Connected again.")

    def _tell_loss(self, reason: str, seconds: float) -> None:
        """Print the reason once. Later, print only the time until the next try."""
        if self._is_lost:
            text = f"Still no connection. Trying again in {seconds:.0f} s."
        else:
            text = f"Connection lost: {reason.rstrip('.')}. Trying again in {seconds:.0f} s."
        self._is_lost = True
        self._screen.note(text, style=Style.RED)

    def _begin(self, attempt: tuple[int, int]) -> None:
        if attempt == self._attempt:
            self._skip = dict(self._told)  # the same attempt from its start
            return
        if self._attempt is not None and attempt[0] == self._attempt[0]:
            self._printer.begin()
        self._attempt = attempt
        self._told, self._skip = {}, {}

    def _show_part(self, event: Event) -> None:
        try:
            (part,) = _parts.decode(msgspec.json.encode([event["part"]]))
        except msgspec.ValidationError:
            return  # an unknown kind; the committed message has the rest
        if (unseen := self._unseen(part)) is not None:
            self._printer.print_live(unseen, at=self._clock.now())

    def _unseen(self, part: Part) -> Part | None:
        """Return the part without the text that was already shown; None if nothing is left.

        Calls and results are matched by id.
        """
        if not isinstance(part, Text | Reasoning):
            return part
        kind = type(part)
        skipped = min(self._skip.get(kind, 0), len(part.text))
        self._skip[kind] = self._skip.get(kind, 0) - skipped
        self._told[kind] = self._told.get(kind, 0) + len(part.text) - skipped
        if skipped and skipped == len(part.text):
            return None
        return msgspec.structs.replace(part, text=part.text[skipped:])

    def _show_message(self, message: Event) -> None:
        if message["id"] <= self._seen_id:
            return
        self._seen_id = message["id"]
        self._told, self._skip = {}, {}
        if self._prompts and message["role"] == "user":
            texts = [part["text"] for part in message["content"] if part["type"] == "text"]
            self._printer.print_end()
            self._screen.user("\n".join(texts))
        try:
            content = _parts.decode(msgspec.json.encode(message["content"]))
        except msgspec.ValidationError as error:
            self._screen.note(f"Message {message['id']} cannot be read: {error}", style=Style.RED)
            return
        created_at = datetime.fromisoformat(message["created_at"])
        is_interrupted = message.get("finish_reason") == "interrupted"
        self._printer.print_committed(Role(message["role"]), content, at=created_at, is_interrupted=is_interrupted)


class Interrupts:
    """The handling of Ctrl-C. The first one stops the followed turn, and the second one leaves it running."""

    def __init__(self, client: AsyncRookery, chat_id: UUID, screen: Screen) -> None:
        self._client = client
        self._chat_id = chat_id
        self._screen = screen
        self._work: asyncio.Task[Any] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._last_at = float("-inf")
        self.is_stopped = False
        self.is_leaving = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._work = asyncio.current_task()
        loop.add_signal_handler(signal.SIGINT, self._received)
        try:
            yield
        except asyncio.CancelledError:
            if not self.is_leaving:
                raise
            assert self._work is not None
            self._work.uncancel()  # it was our own cancellation, and ends here
            raise UserLeft from None
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _received(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last_at < ECHO_SECONDS:
            return
        self._last_at = now
        if self.is_stopped:
            self.is_leaving = True
            assert self._work is not None
            self._work.cancel()
            return
        self.is_stopped = True
        self._screen.note("Stopping; Ctrl-C again leaves the chat running.")
        self._stopping = asyncio.ensure_future(self._stop())

    async def _stop(self) -> None:
        # The chat is already at rest, or another client has stopped it.
        with suppress(Conflict):
            await self._client.chats.interrupt(self._chat_id)

    async def settle(self) -> None:
        """Wait for the request to stop the chat, so that its failure is raised here."""
        if self._stopping is not None:
            await self._stopping

    async def abandon(self) -> None:
        """Stop waiting for the request."""
        if self._stopping is not None:
            self._stopping.cancel()
            await asyncio.wait([self._stopping])


def figures(state: View, after_id: int) -> str:
    """Return the usage of the steps after a message, as the beginning of a line."""
    rows = [message for number, message in state.messages.items() if number > after_id]
    usages = [message.get("usage") or {} for message in rows if message["role"] == "assistant"]
    names = ("input_tokens", "cache_read_tokens", "cache_write_tokens")
    read = sum(usage.get(name) or 0 for usage in usages for name in names)
    written = sum(usage.get("output_tokens") or 0 for usage in usages)
    costs = [message["cost_micros"] for message in rows if message.get("cost_micros") is not None]
    return figures_line(read, written, sum(costs) if costs else None)


def figures_line(read: int, written: int, cost_micros: int | None) -> str:
    """Return the figures of a turn, as the beginning of a line; empty if nothing was counted."""
    if not read and not written:
        return ""
    cost = "" if cost_micros is None else f"${cost_micros / 1_000_000:.4f}, "
    return f"{read} tokens in, {written} out, {cost}"
