"""The follower of a chat that this process drives: it shows the turn, stops it on request, and takes the chat again if
it has no worker.

The terminal client's follower shows the turn. Only the acquisition of the chat is specific to this command.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum
from uuid import UUID, uuid4

from rookery.app.replica import Replica
from rookery.cli.chat.stream_follower import Follower
from rookery.cli.chat.terminal_screen import Screen
from rookery.cli.output import Output
from rookery.client import AsyncRookery, Conflict
from rookery.client.reducer import View
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store import machine
from rookery.store.db.hints import ChatHint
from rookery.store.machine import Tx
from rookery.store.machine import View as StoredView

# The chat is read every second, in case a hint is lost.
POLL_SECONDS = 1.0
# The time limit of an interrupt, which saves partial output in one commit. After it, the command ends without waiting.
INTERRUPT_SECONDS = 20.0
WAITS_FOR_PERSON = (
    "The chat waits for the approval of a tool call, which this command cannot ask for. "
    "Answer in the web application, or stop it with Ctrl-C."
)
# A chat that needs an action is not at rest. It continues when another client has answered.
AT_REST = frozenset({"waiting", "error"})


class Stop(StrEnum):
    """The reason to stop a chat before it is at rest."""

    SIGNAL = "signal"
    TIMEOUT = "timeout"
    NOBODY_READS = "nobody_reads"


class TurnFollower:
    """Follows one turn. `follow` returns the chat at rest. `stop` interrupts the chat and keeps the partial output.

    `stopped` is the reason that ended the turn, if any.
    """

    def __init__(
        self, replica: Replica, client: AsyncRookery, chat: Chat, *, screen: Screen, out: Output, clock: Clock
    ) -> None:
        self._replica = replica
        self._client = client
        self._chat = chat
        self._screen = screen
        self._out = out
        self._clock = clock
        self._told = asyncio.Event()
        self.stopped: Stop | None = None

    def stop(self, reason: Stop) -> None:
        """Interrupt the chat. The first reason counts."""
        if self.stopped is None:
            self.stopped = reason
            self._told.set()

    async def follow(self, first_id: int, *, timeout_seconds: float | None = None) -> View:
        """Show the turn that begins with this message until the chat is at rest.

        If the turn is stopped (by the user or the timeout) and the chat does not come to rest, return the chat in its
        current state. Raise `ChatDeleted` if the chat is
        deleted meanwhile, and `OutputClosed` if the reader of stdout has closed it.
        """
        async with self._client.chats.stream(self._chat.id, after_id=first_id - 1) as live:
            follower = Follower(
                live,
                screen=self._screen,
                out=self._out,
                clock=self._clock,
                after_id=first_id,
                approval_note=WAITS_FOR_PERSON,
            )
            showing = asyncio.create_task(follower.to_rest(self._chat.snapshot_version, at_rest=AT_REST))
            stopping = asyncio.create_task(self._stop_when_told(timeout_seconds))
            driving = asyncio.create_task(keep_driven(self._replica, self._chat.id, clock=self._clock))
            tasks = {showing, stopping, driving}
            try:
                while not showing.done() and not stopping.done():
                    done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        await task
                return live.state
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def interrupt(self) -> None:
        """Stop the turn and wait until the chat is at rest, without showing the turn."""
        with suppress(Conflict, TimeoutError):  # a conflict means that the chat is already at rest
            async with asyncio.timeout(INTERRUPT_SECONDS):
                chat = await self._client.chats.interrupt(self._chat.id)
                await self._client.chats.wait_idle(self._chat.id, chat.snapshot_version)

    async def _stop_when_told(self, timeout_seconds: float | None) -> None:
        """Interrupt the chat when the time is over or `stop` is called.

        Return after the chat had enough time to come to rest.
        """
        if timeout_seconds is None:
            await self._told.wait()
        else:
            try:
                async with self._clock.deadline(timeout_seconds, "run-timeout"):
                    await self._told.wait()
            except DeadlineExceeded:
                self.stop(Stop.TIMEOUT)
        with suppress(Conflict):
            await self._client.chats.interrupt(self._chat.id)
        await self._clock.sleep(INTERRUPT_SECONDS, "run-interrupt")


async def keep_driven(replica: Replica, chat_id: ChatId, *, clock: Clock) -> None:
    """Drive the chat here whenever it has no worker, because its lease was lost or its other worker has ended."""
    wake = asyncio.Event()

    def hinted(_: ChatHint) -> None:
        wake.set()

    async def row(view: StoredView) -> Chat:
        return view.chat

    with replica.bus.subscribe(ChatHint, hinted, key=chat_id), replica.bus.on_resync(wake.set):
        while True:
            wake.clear()
            try:
                await take_if_free(replica, await replica.machine.chat(chat_id).read(row))
            except ChatNotFound:
                return  # the stream raises the reason
            with suppress(DeadlineExceeded):
                async with clock.deadline(POLL_SECONDS, "run-look"):
                    await wake.wait()


async def take_if_free(replica: Replica, chat: Chat) -> None:
    """Drive the chat here if it has no worker.

    Capacity is not checked, because the chat was admitted when it began, and the user is waiting for it.
    """
    if chat.leased or not chat.state.is_runnable:
        return
    runner_id: UUID = uuid4()
    taken = await machine.try_acquire(
        replica.machine, chat.id, worker_id=replica.id, runner_id=runner_id, admit=_everybody
    )
    if taken is not None and not replica.worker.manager.spawn(chat.id, runner_id):
        await machine.try_abandon(replica.machine, chat.id, worker_id=replica.id, runner_id=runner_id)


async def _everybody(_: Tx) -> bool:
    return True
