"""The memory of a finished turn is freed immediately, without the garbage collector.

A full collection blocks the event loop, so it is rare. Objects in a reference cycle would stay in memory until then,
with the whole answer.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.live.part_buffer import PartLimits
from rookery.testing.fake_completions import Answer, FakeCall, FakeCompletions, Style, events
from rookery.testing.fake_server import Scenario, failure
from tests import scripted_tools
from tests.eventually import until
from tests.worker.worker_rig import Records, WorkerRig, open_house

WORDS = "one two three four " * 50
TURNS = 3


async def answered(rig: WorkerRig, fake: FakeCompletions) -> ChatId:
    fake.enqueue(Answer(text=WORDS))
    return await rig.ask()


async def with_a_tool(rig: WorkerRig, fake: FakeCompletions) -> ChatId:
    fake.enqueue(Answer(calls=[FakeCall("look", "{}")]), Answer(text=WORDS))
    return await rig.ask()


async def at_the_second_try(rig: WorkerRig, fake: FakeCompletions) -> ChatId:
    fake.enqueue(failure(429, "Slow down.", retry_after="0"), Answer(text=WORDS))
    return await rig.ask()


async def refused(rig: WorkerRig, fake: FakeCompletions) -> ChatId:
    fake.enqueue(failure(401, "Bad key."))
    return await rig.ask()


async def interrupted(rig: WorkerRig, fake: FakeCompletions) -> ChatId:
    parts = events(Answer(text=WORDS), Style(), model="m")
    fake.enqueue(Scenario(events=[*parts[:3], asyncio.Event()]))
    asked = len(fake.requests)
    chat_id = await rig.ask()
    await until(lambda: len(fake.requests) > asked)
    await rig.interrupt(chat_id)
    return chat_id


@pytest.mark.parametrize("records", [None, Records(is_forced=False), Records()], ids=["plain", "kept", "recorded"])
@pytest.mark.parametrize("turn", [answered, with_a_tool, at_the_second_try, refused, interrupted])
async def test_finished_turn_leaves_nothing_to_the_garbage_collector(
    turn: Callable[[WorkerRig, FakeCompletions], Awaitable[ChatId]], records: Records | None, database_url: str
) -> None:
    fake = FakeCompletions()
    tools = [scripted_tools.echo("look")]
    async with fake.listening() as url, open_house(database_url, server=url, tools=tools, records=records) as rig:
        await finish(rig, await turn(rig, fake))
        with found_garbage() as found:
            for _ in range(TURNS):
                await finish(rig, await turn(rig, fake))

    assert found == {}


async def finish(rig: WorkerRig, chat_id: ChatId) -> None:
    """Wait until no task works on the chat and its preview is dropped."""
    await rig.until_status(chat_id, Status.WAITING, Status.ERROR)
    await rig.worker.wait_idle()
    if (debug := rig.replicas[0].debug) is not None:
        await debug.writer.flush()
    rig.worker.buffer._limits = PartLimits(episode_retention_seconds=0)
    rig.worker.buffer.sweep()


@contextmanager
def found_garbage() -> Iterator[Counter[str]]:
    """Return new objects of our types that only the garbage collector can free, by type."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = [f"{type(each).__module__}.{type(each).__name__}" for each in gc.garbage]
        found.update(kind for kind in kinds if kind.startswith("rookery.") and not kind.startswith("rookery.testing."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
