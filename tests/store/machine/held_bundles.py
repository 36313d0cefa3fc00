"""Forced races: a bundle that is held open at a chosen point, and a query for the transactions that wait for its
lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar
from uuid import UUID

from rookery.domain.chat.chat import Fence
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.machine import Bundle, Tx
from tests.eventually import until
from tests.store.machine.machine_rig import Rig, assistant, words

T = TypeVar("T")
LIMIT_SECONDS = 20.0

Hold = Callable[[], Awaitable[None]]
Action = Callable[[Hold], Awaitable[T]]

_WAITING = """
    SELECT count(*)
      FROM pg_stat_activity
     WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def pass_through() -> None:
    """A hold that does not wait."""


async def until_blocked(rig: Rig, sessions: int = 1) -> None:
    """Wait until this many sessions of the database wait for a lock."""

    async def enough() -> bool:
        return await rig.value(_WAITING) == sessions

    await until(enough)


def updating(rig: Rig, chat_id: UUID, fn: Callable[[Tx], Awaitable[T]], *, fence: Fence | None = None) -> Action[T]:
    """Run an update whose bundle is held after its callback, before the commit."""

    async def run(hold: Hold) -> T:
        async def body(tx: Tx) -> T:
            result = await fn(tx)
            await hold()
            return result

        return await rig.update(chat_id, body, fence=fence)

    return run


def bundling(rig: Rig, fn: Callable[[Bundle], Awaitable[T]]) -> Action[T]:
    """Run a bundle that opens its chats itself, and hold it before the commit."""

    async def run(hold: Hold) -> T:
        async def body(bundle: Bundle) -> T:
            result = await fn(bundle)
            await hold()
            return result

        return await rig.machine.bundle(body)

    return run


class Held(Generic[T]):
    """An action with an open bundle, which holds its locks until `finish`."""

    def __init__(self, task: asyncio.Task[T], gate: asyncio.Event) -> None:
        self.task = task
        self._gate = gate

    async def finish(self) -> T:
        self._gate.set()
        return await self.task


@asynccontextmanager
async def held(action: Action[T]) -> AsyncIterator[Held[T]]:
    """Run the action up to its commit, and hold it there."""
    reached, gate = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await gate.wait()

    async with asyncio.timeout(LIMIT_SECONDS):
        task = asyncio.ensure_future(action(hold))
        arrival = asyncio.ensure_future(reached.wait())
        await asyncio.wait((task, arrival), return_when=asyncio.FIRST_COMPLETED)
        arrival.cancel()
        if task.done():
            task.result()  # it failed before it could be held: say why
            raise AssertionError("the action ended without being held")
        try:
            yield Held(task, gate)
        finally:
            gate.set()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()


async def in_order(rig: Rig, first: Action[T], second: Action[object]) -> tuple[T, object]:
    """Commit `first` while `second` waits for its lock. Return both outcomes; a refused action gives its error."""
    async with held(first) as leader:
        follower = asyncio.ensure_future(_outcome(second))
        await until_blocked(rig)
        return await leader.finish(), await follower


async def _outcome(action: Action[object]) -> object:
    try:
        return await action(pass_through)
    except Exception as error:
        return error


# What both files of races act with


def sending(rig: Rig, chat_id: ChatId, said: str, busy: BusyBehavior = BusyBehavior.QUEUE) -> Action[machine.Sent]:
    return updating(rig, chat_id, lambda tx: machine.send_message(tx, rig.message(said), busy))


def stepping(rig: Rig, chat_id: ChatId, fence: Fence, said: str = "answer") -> Action[machine.StepCommitted]:
    return updating(rig, chat_id, lambda tx: machine.commit_step(tx, [assistant(said)]), fence=fence)


def finishing(rig: Rig, chat_id: ChatId, fence: Fence) -> Action[machine.TurnFinished]:
    return updating(rig, chat_id, machine.finish_turn, fence=fence)


async def spoken(rig: Rig, chat_id: ChatId) -> list[str]:
    return [words(message) for message in await rig.history(chat_id)]


async def backlog(rig: Rig, chat_id: ChatId) -> list[str]:
    return [words(row) for row in await rig.queue(chat_id)]


async def owned(rig: Rig, state: State, *, queued: int = 1) -> tuple[ChatId, Fence]:
    chat_id = await rig.chat(state, queued=queued)
    fence = await rig.acquire(chat_id)
    rig.published.clear()
    return chat_id, fence
