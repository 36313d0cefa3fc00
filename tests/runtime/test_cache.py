"""Caches: the size limit, the maximum age, and the statistics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rookery.runtime.cache import Cache
from rookery.testing import FakeClock


async def make(max_bytes: int = 100, max_age_seconds: float = 60.0) -> tuple[Cache[str, str], FakeClock]:
    clock = FakeClock()
    return Cache("words", max_bytes=max_bytes, max_age_seconds=max_age_seconds, clock=clock), clock


async def test_those_used_last_are_kept_within_the_bytes_there_are() -> None:
    cache, _ = await make()
    cache.keep("a", "one", size_bytes=40)
    cache.keep("b", "two", size_bytes=40)
    assert cache.find("a") == "one"

    cache.keep("c", "three", size_bytes=40)

    assert [cache.find(key) for key in ("a", "b", "c")] == ["one", None, "three"]
    assert (cache.size_bytes, cache.stats().evicted) == (80, 1)


async def test_value_larger_than_the_cache_replaces_what_was_kept_and_is_not_kept() -> None:
    cache, _ = await make()
    cache.keep("a", "one", size_bytes=40)

    cache.keep("a", "two", size_bytes=101)

    assert (cache.find("a"), len(cache), cache.size_bytes) == (None, 0, 0)


async def test_value_that_was_taken_is_not_found_again() -> None:
    cache, _ = await make()
    cache.keep("a", "one", size_bytes=40)

    assert (cache.take("a"), cache.take("a"), cache.size_bytes) == ("one", None, 0)
    assert (cache.stats().hits, cache.stats().misses) == (1, 1)


async def test_value_that_was_not_used_for_its_age_is_freed_by_the_sweep() -> None:
    cache, clock = await make()
    cache.keep("a", "one", size_bytes=40)
    await clock.advance(30)
    cache.keep("b", "two", size_bytes=30)

    await clock.advance(30)

    assert cache.sweep() == 40
    assert (len(cache), cache.size_bytes, cache.stats().expired) == (1, 30, 1)
    assert cache.sweep() == 0


async def test_value_that_is_too_old_is_not_found_before_the_sweep_either() -> None:
    cache, clock = await make()
    cache.keep("a", "one", size_bytes=40)

    await clock.advance(60)

    assert cache.find("a") is None
    assert (len(cache), cache.size_bytes) == (0, 0)


async def test_use_makes_a_value_young_again() -> None:
    cache, clock = await make()
    cache.keep("a", "one", size_bytes=40)
    cache.keep("b", "two", size_bytes=40)
    await clock.advance(59)
    assert cache.find("a") == "one"

    await clock.advance(59)

    assert cache.sweep() == 40
    assert (cache.find("a"), cache.find("b")) == ("one", None)


async def test_value_in_use_does_not_age_until_its_use_ends() -> None:
    cache, clock = await make()
    cache.keep("a", "one", size_bytes=40)
    cache.keep("b", "two", size_bytes=30)
    for _ in range(20):
        await clock.advance(30)
        cache.sweep(lambda key: key == "a")

    assert (cache.peek("a"), cache.peek("b"), cache.size_bytes) == ("one", None, 40)
    await clock.advance(59)
    assert cache.sweep() == 0
    await clock.advance(1)
    assert cache.sweep() == 40


@given(
    st.lists(
        st.tuples(st.sampled_from(["keep", "find", "take", "drop"]), st.sampled_from("abcde"), st.integers(0, 60)),
        max_size=60,
    )
)
def test_bytes_are_those_of_the_entries_and_never_more_than_the_bound(steps: list[tuple[str, str, int]]) -> None:
    cache: Cache[str, int] = Cache("numbers", max_bytes=100, max_age_seconds=1e9)
    for action, key, size in steps:
        match action:
            case "keep":
                cache.keep(key, size, size_bytes=size)
            case "find":
                cache.find(key)
            case "take":
                cache.take(key)
            case _:
                cache.drop(key)
        assert cache.size_bytes <= 100

    found = [cache.find(key) for key in "abcde"]
    assert cache.size_bytes == sum(size for size in found if size is not None)
