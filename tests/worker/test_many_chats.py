"""Many chats on one replica: none of them keeps the event loop from the others."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rookery.domain.chat.states import Status
from rookery.llm.scripted import Say, Wait
from rookery.llm.types import Call
from tests.eventually import until
from tests.worker.worker_rig import open_house

CHATS = 200
WORDS = 25
# worker.md, "Acceptance", and architecture.md, "Budgets".
MAX_LAG_SECONDS = 0.1


@asynccontextmanager
async def waits_watched() -> AsyncIterator[list[float]]:
    """How long the loop's thread is at work whenever somebody waits for a moment. Not by the clock: others have their
    share of the machine, and a loop that waits for them is not late by its own fault."""
    busy: list[float] = []

    async def watch() -> None:
        while True:
            started = time.thread_time()
            await asyncio.sleep(0.005)
            busy.append(time.thread_time() - started)

    # What other tests have left behind is not walked through meanwhile.
    gc.collect()
    gc.freeze()
    task = asyncio.create_task(watch())
    try:
        yield busy
    finally:
        task.cancel()
        gc.unfreeze()


async def test_two_hundred_streaming_chats_do_not_hold_up_the_event_loop(database_url: str) -> None:
    streaming = 0
    all_there = asyncio.Event()

    def script(call: Call) -> tuple[Say | Wait, ...]:
        nonlocal streaming
        streaming += 1
        if streaming == CHATS:
            all_there.set()
        # 50 words a second.
        return tuple(step for _ in range(WORDS) for step in (Say("word "), Wait(0.02)))

    async with open_house(database_url, script=script) as house:
        await house.set("chats", {"running_roots": 0})
        async with waits_watched() as busy:
            chats = [await house.ask(f"hello {number}") for number in range(CHATS)]
            await all_there.wait()
            await until(
                lambda: house.sql("SELECT count(*) = $1 FROM chats WHERE status = 'waiting'", CHATS), timeout=120.0
            )

        assert {(await house.chat(chat_id)).status for chat_id in chats[:3]} == {Status.WAITING}
        assert max(busy) < MAX_LAG_SECONDS
