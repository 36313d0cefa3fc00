"""Many chats on one replica: the cost per chat does not grow with their number, and no callback blocks the event loop.

The CPU time of the loop's thread is compared with that of a few chats in the same run, so that the speed and load of
the machine affect both sides.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rookery.llm.scripted import Say, Wait
from tests.eventually import until
from tests.worker.worker_rig import WorkerRig, open_house

FEW, MANY = 20, 200
# 50 words a second.
ANSWER = tuple(step for _ in range(25) for step in (Say("word "), Wait(0.02)))


@contextmanager
def callbacks_timed() -> Iterator[list[float]]:
    """Collect the CPU time of each callback of the event loop.

    A callback cannot be interrupted, so other tasks wait for it. The number of callbacks in one pass of the loop
    depends on the machine.
    """
    times: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        run(handle)
        times.append(time.thread_time() - started)

    # Prevent the garbage collector from visiting the objects of other tests.
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed)
        try:
            yield times
        finally:
            gc.unfreeze()


async def stream_chats(rig: WorkerRig, count: int) -> list[float]:
    """Stream an answer in this many new chats. Return the CPU time of each callback."""
    before = await rig.sql("SELECT count(*) FROM chats")
    with callbacks_timed() as times:
        for number in range(count):
            await rig.ask(f"hello {number}")
        await until(
            lambda: rig.sql("SELECT count(*) = $1 FROM chats WHERE status = 'waiting'", before + count), timeout=120.0
        )
    return times


async def test_two_hundred_streaming_chats_do_not_hold_up_the_event_loop(database_url: str) -> None:
    async with open_house(database_url, script=ANSWER) as rig:
        await rig.set("chats", {"running_roots": 0})
        of_few = await stream_chats(rig, FEW)
        of_many = await stream_chats(rig, MANY)

    chat_among_few, chat_among_many = sum(of_few) / FEW, sum(of_many) / MANY
    assert chat_among_many < 2 * chat_among_few
    # A turn has about 350 callbacks. A callback that visits each of 200 chats costs as much as several turns, and is
    # called again and again. A single long callback may be a page fault or an import.
    assert sorted(of_many)[-10] < 3 * chat_among_few
