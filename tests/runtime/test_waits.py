"""The waits: one defers a cancellation, and the other needs a timer only if it has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from rookery.runtime.waits import Uninterrupted, WithTimeout

Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


async def _wait_twice(first: asyncio.Future[str], second: asyncio.Future[str]) -> str:
    return await first + await second


async def _unbroken(first: asyncio.Future[str], second: asyncio.Future[str]) -> tuple[str, bool]:
    wait = Uninterrupted(_wait_twice(first, second).__await__())
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
        wait = Uninterrupted(_wait_twice(first, second).__await__())

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
        wait = Uninterrupted(give_turns().__await__())

        async def outer() -> tuple[str, bool]:
            return await wait, wait.cancelled is not None

        waiting = asyncio.ensure_future(outer())
        await asyncio.sleep(0)
        waiting.cancel()
        assert await waiting == ("done", True)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@LOOPS
def test_wait_that_ends_immediately_needs_no_timer(new_loop: Loop) -> None:
    async def there() -> str:
        return "there"

    async def run() -> None:
        # The limit has already passed, so a timer would fail the wait.
        assert await WithTimeout(-1.0, there().__await__()) == "there"

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@LOOPS
def test_waiting_goes_on_through_several_steps(new_loop: Loop) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()

        async def outer() -> str:
            return await WithTimeout(60.0, _wait_twice(first, second).__await__())

        waiting = asyncio.ensure_future(outer())
        await asyncio.sleep(0)
        first.set_result("a")
        await asyncio.sleep(0)
        second.set_result("b")
        assert await waiting == "ab"

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@LOOPS
def test_wait_that_takes_too_long_ends_and_what_was_waited_for_can_clean_up(new_loop: Loop) -> None:
    cleaned: list[str] = []

    async def endless() -> str:
        try:
            await asyncio.Event().wait()
            return "never"
        finally:
            cleaned.append("up")

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await WithTimeout(0.001, endless().__await__())
        assert cleaned == ["up"]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@LOOPS
def test_cancellation_and_errors_reach_what_is_waited_for(new_loop: Loop) -> None:
    async def swallowing(future: asyncio.Future[str]) -> str:
        try:
            return await future
        except asyncio.CancelledError:
            return "caught"

    async def run() -> None:
        loop = asyncio.get_running_loop()

        async def outer(future: asyncio.Future[str]) -> str:
            return await WithTimeout(60.0, swallowing(future).__await__())

        waiting = asyncio.ensure_future(outer(loop.create_future()))
        await asyncio.sleep(0)
        waiting.cancel()
        assert await waiting == "caught"

        failing: asyncio.Future[str] = loop.create_future()
        waiting = asyncio.ensure_future(outer(failing))
        await asyncio.sleep(0)
        failing.set_exception(ConnectionResetError("gone"))
        with pytest.raises(ConnectionResetError):
            await waiting

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@LOOPS
def test_error_of_what_is_waited_for_reaches_the_steps(new_loop: Loop) -> None:
    """The steps may have to release something, such as a connection that is in use."""
    let_go: list[str] = []

    async def main() -> None:
        failing = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                await failing
            finally:
                let_go.append("the connection")

        asyncio.get_running_loop().call_soon(failing.set_exception, ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await Uninterrupted(work().__await__())

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())

    assert let_go == ["the connection"]
