"""The cache of configuration: one fill for all callers, independent cancellation, and no stale values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rookery.models.config_cache import ConfigCache
from rookery.testing.clock import FakeClock


class Source:
    """The source of the cache: returns a growing number when the test opens the gate."""

    def __init__(self) -> None:
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def read(self, key: str) -> str:
        self.reads += 1
        answer = f"{key}{self.reads}"
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return answer


@pytest.fixture
async def source() -> Source:
    return Source()


@pytest.fixture
async def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def cache(source: Source, clock: FakeClock) -> AsyncIterator[ConfigCache[str, str]]:
    cache = ConfigCache[str, str](source.read, clock=clock, max_entries=2)
    yield cache
    await cache.close()


async def test_value_is_read_again_only_after_its_time(
    cache: ConfigCache[str, str], source: Source, clock: FakeClock
) -> None:
    assert [await cache.get("a"), await cache.get("a")] == ["a1", "a1"]

    await clock.advance(9.9)
    assert await cache.get("a") == "a1"
    await clock.advance(0.1)
    assert await cache.get("a") == "a2"

    assert cache.stats().hits == 2


async def test_all_who_wait_share_one_fill(cache: ConfigCache[str, str], source: Source) -> None:
    source.gate.clear()
    waiters = [asyncio.create_task(cache.get("a")) for _ in range(50)]
    await asyncio.sleep(0)
    source.gate.set()

    assert set(await asyncio.gather(*waiters)) == {"a1"}
    assert source.reads == 1


async def test_cancelled_waiter_does_not_fail_the_others(cache: ConfigCache[str, str], source: Source) -> None:
    source.gate.clear()
    first, second = asyncio.create_task(cache.get("a")), asyncio.create_task(cache.get("a"))
    await asyncio.sleep(0)

    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    source.gate.set()

    assert await second == "a1"
    assert await cache.get("a") == "a1"


async def test_fill_continues_when_all_callers_are_cancelled(cache: ConfigCache[str, str], source: Source) -> None:
    source.gate.clear()
    only = asyncio.create_task(cache.get("a"))
    await asyncio.sleep(0)
    only.cancel()
    with pytest.raises(asyncio.CancelledError):
        await only

    source.gate.set()

    assert await cache.get("a") == "a1"
    assert source.reads == 1


@pytest.mark.parametrize("key", ["a", None], ids=["one key", "all"])
async def test_fill_that_began_before_an_invalidation_is_not_kept(
    cache: ConfigCache[str, str], source: Source, key: str | None
) -> None:
    source.gate.clear()
    early = asyncio.create_task(cache.get("a"))
    await asyncio.sleep(0)

    cache.invalidate(key)
    late = asyncio.create_task(cache.get("a"))
    await asyncio.sleep(0)
    source.gate.set()

    assert (await early, await late) == ("a1", "a2")
    assert await cache.get("a") == "a2"


async def test_invalidation_forgets_what_is_kept(cache: ConfigCache[str, str]) -> None:
    await cache.get("a")
    await cache.get("b")

    cache.invalidate("a")

    assert (await cache.get("b"), await cache.get("a")) == ("b2", "a3")


async def test_failed_fill_reaches_all_who_wait_and_is_not_kept(cache: ConfigCache[str, str], source: Source) -> None:
    source.error = OSError("down")
    source.gate.clear()
    waiters = [asyncio.create_task(cache.get("a")) for _ in range(2)]
    await asyncio.sleep(0)
    source.gate.set()

    assert [str(error) for error in await asyncio.gather(*waiters, return_exceptions=True)] == ["down", "down"]
    source.error = None
    assert await cache.get("a") == "a2"


async def test_cache_stays_within_its_size_and_drops_the_oldest(cache: ConfigCache[str, str]) -> None:
    for key in ("a", "b", "c"):
        await cache.get(key)

    assert cache.stats().entries == 2
    assert (await cache.get("c"), await cache.get("b"), await cache.get("a")) == ("c3", "b2", "a4")


async def test_close_ends_fills_that_still_run(cache: ConfigCache[str, str], source: Source) -> None:
    source.gate.clear()
    waiter = asyncio.create_task(cache.get("a"))
    await asyncio.sleep(0)

    await cache.close()

    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert cache.stats().filling == 0
