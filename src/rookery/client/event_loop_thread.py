"""The bridge from blocking code to the asynchronous client: coroutines run on an event loop in a separate thread.

The blocking client has no implementation of its own: it runs the methods of the asynchronous client. It works in
programs that run an event loop too, if they call it from another thread. Ctrl-C cancels the running coroutine.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rookery.client.live_streams import Change, LiveChat, Watch, WatchEvent
from rookery.client.models import Message
from rookery.client.reducer import View

T = TypeVar("T")

_END = object()


class Portal:
    """A thread that runs an event loop, and methods that run coroutines on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="rookery-client", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine. Return its result or raise its error."""
        if self.is_closed:
            work.close()
            raise RuntimeError("This client is closed.")
        wait = _Wait(self._loop, work)
        try:
            # Started inside the try. An interrupt (Ctrl-C) can come between any two lines, and there must be a wait to
            # cancel.
            wait.begin()
            return wait.done.result()
        except BaseException:
            wait.cancel()  # no effect on a finished wait, whose own error is raised
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        async def step() -> Any:
            return await anext(source, _END)

        async def end() -> None:
            if isinstance(source, AsyncGenerator):
                await source.aclose()

        try:
            while (item := self.run(step())) is not _END:
                yield item
        finally:
            self.run(end())

    def close(self) -> None:
        if not self.is_closed:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())


class _Wait(Generic[T]):
    """A coroutine for the loop, and the wait for its end.

    Until `begin` it has not started and may still be cancelled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self.done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._is_over = False

    def begin(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    # Runs on the loop. The calls are executed one after the other, in their order.

    def _begin(self) -> None:
        if not self._is_over:
            self._task = self._loop.create_task(self._work)
            self._task.add_done_callback(self._ended)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._is_over:
            self._is_over = True
            self._work.close()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.done.cancel()
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())


class _Blocking(Generic[T]):
    """A stream that is opened by `with` and read by `for`."""

    def __init__(self, inner: Any, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._portal.run(self._inner.close())

    def __iter__(self) -> Iterator[T]:
        return self._portal.iterate(self._inner)


class BlockingLiveChat(_Blocking[Change]):
    """The blocking form of `LiveChat`."""

    def __init__(self, inner: LiveChat, portal: Portal) -> None:
        super().__init__(inner, portal)
        self._live = inner

    @property
    def state(self) -> View:
        return self._live.state

    @property
    def messages(self) -> tuple[Message, ...]:
        return self._live.messages

    def wait_idle(self, since: int = 0) -> View:
        return self._portal.run(self._live.wait_idle(since))

    def answer(self, since: int = 0) -> str:
        return self._portal.run(self._live.answer(since))


class BlockingWatch(_Blocking[WatchEvent]):
    """The blocking form of `Watch`."""

    def __init__(self, inner: Watch, portal: Portal) -> None:
        super().__init__(inner, portal)
