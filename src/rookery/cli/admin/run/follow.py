"""The follower of one chat until it rests: committed state by version, live parts of steps that run in this process.

Hints trigger a read; a read every second covers lost hints, and a chat that another process drives.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from uuid import uuid4

import msgspec

from rookery.app.replica import Replica
from rookery.cli.admin.run.terminal_output import Screen
from rookery.cli.admin.run.transcript_printer import TranscriptPrinter
from rookery.domain.chat.chat import Chat, RetryState
from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.live import deltas
from rookery.live.feeds import Subscription
from rookery.live.part_buffer import EpisodeKey
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store import machine
from rookery.store.chats import messages
from rookery.store.db.hints import ChatHint
from rookery.store.machine import Tx, View

POLL_SECONDS = 1.0
# The time an interrupt may take before the command leaves without it: saving partial output is one commit.
INTERRUPT_SECONDS = 20.0
PAGE = 100

WAITS_FOR_CLIENT = "The chat waits for tools that its own client executes; this command has none."
WAITS_FOR_PERSON = (
    "The chat waits for the approval of a tool call, which this command cannot ask for. "
    "Answer in the web application, or stop it with Ctrl-C."
)

AT_REST = frozenset({Status.WAITING, Status.ERROR})


class Stop(StrEnum):
    """The reason to stop a chat before it rests."""

    SIGNAL = "signal"
    TIMEOUT = "timeout"
    NOBODY_READS = "nobody_reads"


class Follower:
    """`follow` returns the chat at rest. `stop` asks the state machine to interrupt it, which keeps the partial output.

    `last` is None until the chat was read; `stopped` is the reason that ended the turn, if any.
    """

    def __init__(self, replica: Replica, chat_id: ChatId, *, screen: Screen, clock: Clock, after_id: int) -> None:
        self._replica = replica
        self._chat_id = chat_id
        self._screen = screen
        self._clock = clock
        self._printer = TranscriptPrinter(screen, clock)
        self._seen_id = after_id
        self._seen_retry = 0
        self._wake = asyncio.Event()
        self._must_look = True
        self._must_interrupt = False
        self._deadline: float | None = None
        self._leave_at: float | None = None
        self._key: EpisodeKey | None = None
        self._parts: Subscription | None = None
        self._has_told_waiting = False
        self.stopped: Stop | None = None

    def stop(self, reason: Stop) -> None:
        """Interrupt the chat. The first reason counts."""
        if self.stopped is None:
            self.stopped = reason
            self._must_interrupt = True
            self._wake.set()

    async def follow(self, *, timeout_seconds: float | None = None) -> Chat:
        """Show everything until the chat rests. After a stop that does not complete, return the chat as it is then.

        Raise `ChatNotFound` if it is deleted meanwhile, and `OutputClosed` if the reader of stdout has left.
        """
        if timeout_seconds is not None:
            self._deadline = self._clock.monotonic() + timeout_seconds
        bus = self._replica.bus
        with bus.subscribe(ChatHint, self._hinted, key=self._chat_id), bus.on_resync(self._look):
            try:
                while True:
                    if (chat := await self._turn()) is not None:
                        return chat
                    await self._until_woken()
            finally:
                self._detach()

    async def _turn(self) -> Chat | None:
        """Show what is new. Return the chat once it rests."""
        now = self._clock.monotonic()
        if self._deadline is not None and now >= self._deadline:
            self.stop(Stop.TIMEOUT)
        if self._must_interrupt:
            self._must_interrupt = False
            self._leave_at = now + INTERRUPT_SECONDS
            await self._interrupt()
            self._must_look = True
        self._show_parts()
        if not self._must_look:
            return None
        self._must_look = False
        chat = await self._read()
        await self._show_messages()
        self._show_state(chat)
        if chat.status in AT_REST or (self._leave_at is not None and self._clock.monotonic() >= self._leave_at):
            return chat
        self._attach(chat)
        await take_if_free(self._replica, chat)
        return None

    async def _until_woken(self) -> None:
        seconds = POLL_SECONDS
        for limit in (self._deadline if self.stopped is None else None, self._leave_at):
            if limit is not None:
                seconds = min(seconds, max(limit - self._clock.monotonic(), 0.0))
        try:
            async with self._clock.deadline(seconds, "run-look"):
                await self._wake.wait()
        except DeadlineExceeded:
            self._must_look = True
        self._wake.clear()

    def _hinted(self, _: ChatHint) -> None:
        self._look()

    def _look(self) -> None:
        self._must_look = True
        self._wake.set()

    async def _read(self) -> Chat:
        async def row(view: View) -> Chat:
            return view.chat

        return await self._replica.machine.chat(self._chat_id).read(row)

    async def _interrupt(self) -> None:
        try:
            await self._replica.machine.chat(self._chat_id).update(machine.interrupt)
        except TransitionNotAllowed:
            return  # it rests, or is stopping already

    # Showing

    def _attach(self, chat: Chat) -> None:
        """Subscribe to the current attempt. An attempt in another process sends nothing here."""
        key = EpisodeKey(self._chat_id, chat.history_version, chat.generation_attempt)
        if chat.status != Status.RUNNING or not chat.generation_attempt or key == self._key:
            return
        is_new_step = self._key is None or key.history_version != self._key.history_version
        self._detach()
        if not is_new_step:
            self._printer.begin()
        self._key = key
        self._parts = self._replica.worker.buffer.subscribe(key, wake=self._wake.set)
        self._show_parts()

    def _detach(self) -> None:
        if self._parts is not None:
            self._parts.close()
            self._parts = None

    def _show_parts(self) -> None:
        while self._parts is not None and (batch := self._parts.pull()):
            for _, _, data in batch:
                event = deltas.decode(data)
                self._printer.print_live(event.role, event.part)

    async def _show_messages(self) -> None:
        """Show what was committed since the last read. The preview of that step is then over."""
        has_more = True
        while has_more:
            async with self._replica.database.api.acquire() as conn:
                page = await messages.list_oldest(conn, self._chat_id, limit=PAGE, after_id=self._seen_id)
            if page.messages:
                # Again: parts of this step may have arrived while the rows were read.
                self._show_parts()
                self._detach()
            for message in page.messages:
                self._printer.print_committed(message)
                self._seen_id = message.id
            has_more = page.has_more

    def _show_state(self, chat: Chat) -> None:
        if chat.retry_state_version != self._seen_retry:
            self._seen_retry = chat.retry_state_version
            if (retry := _retry_of(chat)) is not None:
                self._printer.tell_retry(retry)
        if chat.status == Status.REQUIRES_ACTION and not self._has_told_waiting:
            self._screen.note(WAITS_FOR_PERSON if chat.awaits_approval else WAITS_FOR_CLIENT)
        self._has_told_waiting = chat.status == Status.REQUIRES_ACTION


async def take_if_free(replica: Replica, chat: Chat) -> None:
    """Drive the chat here if it has no worker: its lease was lost, or its other worker is gone.

    Capacity is not checked: the chat was admitted when it began, and the user is waiting for it.
    """
    if chat.leased or not chat.state.is_runnable:
        return
    runner_id = uuid4()
    taken = await machine.try_acquire(
        replica.machine, chat.id, worker_id=replica.id, runner_id=runner_id, admit=_everybody
    )
    if taken is not None and not replica.worker.manager.spawn(chat.id, runner_id):
        await machine.try_abandon(replica.machine, chat.id, worker_id=replica.id, runner_id=runner_id)


async def _everybody(_: Tx) -> bool:
    return True


def _retry_of(chat: Chat) -> RetryState | None:
    try:
        return None if chat.retry_state is None else msgspec.json.decode(chat.retry_state, type=RetryState)
    except msgspec.DecodeError:
        return None
