"""The blocking client, with an event loop in another thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rookery.client.event_loop_thread import Portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    opened = Portal()
    yield opened
    opened.close()


def test_result_and_error_come_back(portal: Portal) -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return 10 // number

    assert portal.run(work(5)) == 2
    with pytest.raises(ZeroDivisionError):
        portal.run(work(0))


def test_interrupted_wait_cancels_what_is_waited_for(portal: Portal) -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def press_ctrl_c() -> None:
        started.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press_ctrl_c)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        portal.run(work())
    presser.join()

    assert cancelled.wait(10)


def test_interrupt_between_the_start_of_a_wait_and_its_future_cancels_it_too(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    schedule = portal._loop.call_soon_threadsafe
    calls = 0

    def interrupted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        handle = schedule(*args)
        if calls == 1:
            assert begun.wait(30)  # a coroutine that is canceled before its first line would leave no trace
            raise KeyboardInterrupt
        return handle

    monkeypatch.setattr(portal._loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        portal.run(work())

    assert cancelled.wait(30)


def test_iterator_that_is_left_closes_its_source(portal: Portal) -> None:
    closed = threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(100):
                yield number
        finally:
            closed.set()

    found = []
    for number in portal.iterate(numbers()):
        found.append(number)
        if number == 2:
            break

    assert found == [0, 1, 2]
    assert closed.wait(10)


def test_iterator_ends_with_its_source(portal: Portal) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    assert list(portal.iterate(numbers())) == [1, 2]


def test_closed_portal_leaves_no_thread() -> None:
    portal = Portal()
    portal.close()
    portal.close()

    assert "rookery-client" not in {thread.name for thread in threading.enumerate()}
