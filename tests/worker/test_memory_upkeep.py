"""Memory upkeep: caches are swept periodically, and free pages are returned to the system."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from rookery.domain.chat.retry_policy import RetryPolicy
from rookery.domain.chat.states import Status
from rookery.llm.scripted import CallTool, Fail, Say
from rookery.llm.types import ErrorKind
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.testing import FakeClock
from rookery.testing.fake_completions import Answer, FakeCall, FakeCompletions
from rookery.worker.memory_upkeep import BUSY_TRIM_SECONDS, SWEEP_SECONDS, TRIM_SECONDS, Memory
from tests import scripted_tools
from tests.eventually import until
from tests.worker.test_client_tool_timeout import PICK
from tests.worker.worker_rig import WorkerRig, in_turn, open_house

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "agent_loop.py"
WORDS = "one two three four " * 200


async def test_chat_at_rest_is_in_no_cache_after_its_age(database_url: str) -> None:
    fake, clock = FakeCompletions(), FakeClock()
    fake.enqueue(Answer(text=WORDS), Answer(text=WORDS))
    async with fake.listening() as url, open_house(database_url, server=url, clock=clock) as rig:
        chat_id = await rig.ask()
        await rig.until_status(chat_id, Status.WAITING)
        await rig.send(chat_id, "And now?")
        await rig.until_status(chat_id, Status.RUNNING, Status.WAITING)
        await rig.until_status(chat_id, Status.WAITING)
        await rig.worker.wait_idle()
        kept = {cache.name: len(cache) for cache in rig.worker.caches if len(cache)}

        await _sweep_for(clock, CHAT_SECONDS + SWEEP_SECONDS)

        assert kept == {"histories": 1, "prompts": 1, "requests": 1}
        assert sum(cache.size_bytes for cache in rig.worker.caches) == 0


async def test_step_that_takes_minutes_finds_everything_in_the_caches(database_url: str) -> None:
    fake, clock, minutes = FakeCompletions(), FakeClock(), scripted_tools.slow(600, "build", deadline_seconds=3600)
    fake.enqueue(Answer(calls=[FakeCall("build", "{}")]), Answer(text=WORDS))
    async with (
        fake.listening() as url,
        open_house(database_url, server=url, tools=[minutes], clock=clock) as rig,
    ):
        chat_id = await rig.ask()
        await clock.until_waiting("tool-build")
        misses = _misses(rig)

        await clock.advance(600)
        await rig.until_status(chat_id, Status.WAITING)
        await rig.worker.wait_idle()

        assert len(fake.requests) == 2
        assert _misses(rig) == misses == {"histories": 1, "prompts": 1, "requests": 1}
        await _sweep_for(clock, CHAT_SECONDS + SWEEP_SECONDS)
        assert sum(cache.size_bytes for cache in rig.worker.caches) == 0


async def _sweep_for(clock: FakeClock, seconds: float) -> None:
    """Move time on, one sweep after the other.

    A sweep may trim the heap in a thread. `advance` would not wait for that, and would leave out the sweeps after it.
    """
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        await clock.fire("memory-sweep")


def _misses(rig: WorkerRig) -> dict[str, int]:
    """Return the misses of the caches that each step of a plain chat uses."""
    caches = {cache.name: cache.stats().misses for cache in rig.worker.caches}
    return {name: caches[name] for name in ("histories", "prompts", "requests")}


async def test_entries_of_running_chats_are_known_by_every_kind_of_key() -> None:
    clock, at_rest, chat_id = FakeClock(), uuid4(), uuid4()
    running = [chat_id]
    cache: Cache[object, str] = Cache("words", max_bytes=1000, max_age_seconds=CHAT_SECONDS, clock=clock)
    memory = Memory(
        [cache],
        clock=clock,
        running_chats=lambda: running,
        count_turns=lambda: 0,
        is_busy=lambda: False,
        trim=lambda: None,
    )
    kept = [chat_id, (chat_id, uuid4()), (str(chat_id), uuid4(), "model")]
    for key in (*kept, at_rest, (at_rest, chat_id), (str(at_rest), uuid4(), "model")):
        cache.keep(key, "value", size_bytes=10)
    task = asyncio.create_task(memory.run())

    await _sweep_for(clock, 10 * CHAT_SECONDS)
    assert (len(cache), [key in cache for key in kept]) == (3, [True] * 3)
    running.clear()
    await _sweep_for(clock, CHAT_SECONDS - SWEEP_SECONDS)
    assert len(cache) == 3, "the age counts from the runner's end"
    await _sweep_for(clock, 2 * SWEEP_SECONDS)
    assert len(cache) == 0
    task.cancel()


def make(clock: FakeClock, turns: list[int], busy: list[bool]) -> tuple[Memory, Cache[str, str]]:
    cache: Cache[str, str] = Cache("words", max_bytes=100, max_age_seconds=CHAT_SECONDS, clock=clock)
    memory = Memory(
        [cache],
        clock=clock,
        running_chats=lambda: (),
        count_turns=lambda: turns[0],
        is_busy=lambda: busy[0],
        trim=lambda: None,
    )
    return memory, cache


async def test_caches_are_swept_by_themselves() -> None:
    clock = FakeClock()
    memory, cache = make(clock, [0], [False])
    cache.keep("a", "one", size_bytes=40)
    running = asyncio.create_task(memory.run())

    await _sweep_for(clock, CHAT_SECONDS + SWEEP_SECONDS)

    assert len(cache) == 0
    running.cancel()


async def test_pages_are_given_back_after_turns_and_sweeps_and_not_more_often_than_needed() -> None:
    clock, turns, busy = FakeClock(), [0], [False]
    memory, cache = make(clock, turns, busy)

    await clock.advance(TRIM_SECONDS)
    assert not memory.is_trim_due()  # nothing was freed
    turns[0], busy[0] = 3, True
    assert not memory.is_trim_due()  # a chat is running
    busy[0] = False
    assert memory.is_trim_due()
    assert not memory.is_trim_due()
    turns[0] = 4
    await clock.advance(TRIM_SECONDS - 1)
    assert not memory.is_trim_due()  # too soon
    await clock.advance(1)
    assert memory.is_trim_due()
    cache.keep("a", "one", size_bytes=40)
    await clock.advance(CHAT_SECONDS)
    assert not memory.is_trim_due()
    memory.sweep()
    assert memory.is_trim_due()


async def test_pages_are_given_back_every_few_minutes_on_a_server_that_is_never_quiet() -> None:
    clock, turns, busy = FakeClock(), [3], [True]
    memory, _ = make(clock, turns, busy)

    await clock.advance(BUSY_TRIM_SECONDS - 1)
    assert not memory.is_trim_due()
    await clock.advance(1)
    assert memory.is_trim_due()
    turns[0] = 4
    await clock.advance(TRIM_SECONDS)
    assert not memory.is_trim_due()
    await clock.advance(BUSY_TRIM_SECONDS)
    assert memory.is_trim_due()


async def test_chats_that_only_wait_do_not_keep_pages_from_being_given_back(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, trims = FakeClock(), []
    monkeypatch.setattr("rookery.worker.memory_upkeep.trim_heap", lambda: trims.append(clock.monotonic()))
    tool = scripted_tools.slow(TRIM_SECONDS * 3, "build")
    script = in_turn((CallTool("pick"),), (Fail(ErrorKind.OVERLOADED),), (CallTool("build"),), (Say("Built."),))
    late = RetryPolicy(first_delay=timedelta(hours=1), max_delay=timedelta(hours=1))
    async with open_house(database_url, script=script, tools=[tool], clock=clock, retry=late) as rig:
        await rig.until_status(await rig.ask(dynamic_tools=PICK), Status.REQUIRES_ACTION)
        await clock.until_waiting("action-deadline")
        await rig.ask()
        await clock.until_waiting("generation-retry")
        chat_id = await rig.ask()
        await clock.until_waiting("tool-build")
        assert rig.worker.manager.is_at_work

        await clock.fire("tool-build")
        await rig.until_status(chat_id, Status.WAITING)
        await until(lambda: len(rig.worker.manager) == 2)
        worked_until = clock.monotonic()
        await clock.advance(TRIM_SECONDS)
        await until(lambda: trims)

        assert trims[0] > worked_until
        assert len(rig.worker.manager) == 2


async def test_finished_turns_leave_next_to_nothing_in_the_process(database_url: str) -> None:
    # A separate process, because its memory is measured from outside. The provider is a third process.
    command = (BENCHMARK, "--only", "memory", "--quick", "--database-url", database_url)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, errors = await process.communicate()

    assert process.returncode == 0, f"{said.decode()[-2000:]} {errors.decode()[-2000:]}"
    claims = json.loads(said.splitlines()[-1])
    assert [claim["budget"] for claim in claims.values()] == [10, 20]
    assert all(claim["value"] <= claim["budget"] for claim in claims.values())
