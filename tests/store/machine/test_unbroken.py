"""`Unbroken`: what it waits for ends, and the cancellation of its task is kept for later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from rookery.store.machine.unbroken import Unbroken

Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


async def _wait_twice(first: asyncio.Future[str], second: asyncio.Future[str]) -> str:
    return await first + await second


async def _unbroken(first: asyncio.Future[str], second: asyncio.Future[str]) -> tuple[str, bool]:
    wait = Unbroken(_wait_twice(first, second).__await__())
    answer = await wait
    return answer, wait.cancelled is not None


@LOOPS
def test_result_comes_without_a_cancellation(new_loop: Loop) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        waiting = asyncio.ensure_future(_unbroken(first, second))
        await asyncio.sleep(0)
        first.set_result("a")
        await asyncio.sleep(0)
        second.set_result("b")
        assert await waiting == ("ab", False)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@LOOPS
@pytest.mark.parametrize("cancels", [1, 3])
def test_cancelled_task_waits_on_and_is_told_afterwards(new_loop: Loop, cancels: int) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        waiting = asyncio.ensure_future(_unbroken(first, second))
        await asyncio.sleep(0)
        for _ in range(cancels):
            assert waiting.cancel()
            await asyncio.sleep(0)
        assert not waiting.done()
        assert not first.cancelled()
        first.set_result("a")
        await asyncio.sleep(0)
        assert waiting.cancel()
        await asyncio.sleep(0)
        second.set_result("b")
        assert await waiting == ("ab", True)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@LOOPS
def test_error_passes_even_when_the_task_was_cancelled(new_loop: Loop) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        waiting = asyncio.ensure_future(_unbroken(first, second))
        await asyncio.sleep(0)
        waiting.cancel()
        first.set_exception(ConnectionResetError("gone"))
        with pytest.raises(ConnectionResetError):
            await waiting
        second.cancel()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@LOOPS
def test_cancellation_of_what_is_waited_for_is_not_the_tasks_own(new_loop: Loop) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        wait = Unbroken(_wait_twice(first, second).__await__())

        async def outer() -> bool:
            try:
                await wait
            except asyncio.CancelledError:
                return wait.cancelled is None
            return False

        waiting = asyncio.ensure_future(outer())
        await asyncio.sleep(0)
        first.cancel()
        assert await waiting
        second.cancel()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@LOOPS
def test_turns_given_to_others_are_not_cancelled_either(new_loop: Loop) -> None:
    async def give_turns() -> str:
        for _ in range(3):
            await asyncio.sleep(0)
        return "done"

    async def run() -> None:
        wait = Unbroken(give_turns().__await__())

        async def outer() -> tuple[str, bool]:
            return await wait, wait.cancelled is not None

        waiting = asyncio.ensure_future(outer())
        await asyncio.sleep(0)
        waiting.cancel()
        assert await waiting == ("done", True)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
