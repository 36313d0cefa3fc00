"""Background tasks: time limits, logs, and the end of the process."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

import pytest

from rookery.testing.clock import FakeClock
from rookery.worker.follow_up_work import FollowUpWork

FIELD: ContextVar[str] = ContextVar("FIELD", default="unset")


@pytest.fixture
async def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def inflight(clock: FakeClock) -> FollowUpWork:
    return FollowUpWork(clock)


class Effect:
    """Work that waits for the test."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.is_done = False
        self.go_on = asyncio.Event()

    async def __call__(self) -> None:
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        self.is_done = True


async def test_work_runs_by_itself_and_is_counted_until_it_ends(inflight: FollowUpWork) -> None:
    effect = Effect()

    inflight.start(effect, name="effect", seconds=5)
    assert len(inflight) == 1
    effect.go_on.set()
    await inflight.wait_idle()

    assert effect.is_done
    assert len(inflight) == 0


async def test_idle_set_does_not_keep_anybody_waiting(inflight: FollowUpWork) -> None:
    await asyncio.wait_for(inflight.wait_idle(), 10)
    await asyncio.wait_for(inflight.close(5), 10)


async def test_failing_work_is_logged_and_affects_no_other_work(
    inflight: FollowUpWork, caplog: pytest.LogCaptureFixture
) -> None:
    effect = Effect()

    async def fail() -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR):
        inflight.start(fail, name="broken", seconds=5)
        inflight.start(effect, name="effect", seconds=5)
        effect.go_on.set()
        await inflight.wait_idle()

    assert [record.getMessage() for record in caplog.records] == ["follow_up_failed"]
    assert effect.is_done


async def test_slow_work_is_stopped_at_its_limit(inflight: FollowUpWork, clock: FakeClock) -> None:
    slow, slower = Effect(), Effect()
    inflight.start(slow, name="slow", seconds=5)
    inflight.start(slower, name="slower", seconds=60)

    await clock.fire("follow-up-slow")

    assert slow.is_cancelled
    assert not slower.is_cancelled
    assert clock.monotonic() == 5
    slower.go_on.set()
    await inflight.wait_idle()


async def test_work_cancelled_from_within_ends_and_affects_no_other_work(inflight: FollowUpWork) -> None:
    async def cancel() -> None:
        raise asyncio.CancelledError

    inflight.start(cancel, name="cancel", seconds=5)
    await inflight.wait_idle()

    assert len(inflight) == 0


async def test_log_fields_bound_by_work_stay_in_it(inflight: FollowUpWork) -> None:
    seen: list[str] = []
    FIELD.set("the caller's")

    async def bind() -> None:
        seen.append(FIELD.get())
        FIELD.set("the effect's")

    inflight.start(bind, name="bind", seconds=5)
    await inflight.wait_idle()

    assert seen == ["the caller's"]
    assert FIELD.get() == "the caller's"


async def test_close_waits_for_what_runs_and_takes_nothing_more(inflight: FollowUpWork) -> None:
    effect, late = Effect(), Effect()
    inflight.start(effect, name="effect", seconds=60)

    closing = asyncio.ensure_future(inflight.close(5))
    await asyncio.sleep(0)
    inflight.start(late, name="late", seconds=60)
    assert len(inflight) == 1
    effect.go_on.set()
    await asyncio.wait_for(closing, 10)

    assert effect.is_done
    assert not late.is_done


async def test_close_cancels_what_takes_too_long_and_waits_for_its_end(
    inflight: FollowUpWork, clock: FakeClock
) -> None:
    effect = Effect()
    inflight.start(effect, name="effect", seconds=60)

    closing = asyncio.ensure_future(inflight.close(5))
    await clock.fire("follow-up-close")
    await asyncio.wait_for(closing, 10)

    assert effect.is_cancelled
    assert len(inflight) == 0


async def test_close_may_be_called_twice(inflight: FollowUpWork, clock: FakeClock) -> None:
    effect = Effect()
    inflight.start(effect, name="effect", seconds=60)

    both = asyncio.gather(inflight.close(5), inflight.close(5))
    await clock.until_waiting("follow-up-close", 2)
    await clock.fire("follow-up-close")
    await asyncio.wait_for(both, 10)
    await inflight.close(5)

    assert effect.is_cancelled
