"""Stop requests for a serving process: signals, or the parent that started it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rookery.cli.exit_codes import Exit
from rookery.telemetry import log

# Supervisors signal a process and its group. A second signal within this time is the same request.
ECHO_SECONDS = 0.5

_log = log.get_logger("serve")


class Stop:
    """The handling of SIGTERM and SIGINT. The first signal requests an orderly end, the second one skips the wait for
    running work, and the third one exits immediately.

    Before `serving` is set, there is nothing to end in order, and the first signal already skips the wait. With
    `is_alone`, only this process ends, and other processes continue to serve the same port.
    """

    def __init__(
        self, hard_end_seconds: float, *, has_siblings: bool = False, on_asked: Callable[[], None] = lambda: None
    ) -> None:
        self.requested = asyncio.Event()
        self.serving = False
        self.is_alone = False
        self._has_siblings = has_siblings
        self._hard_end_seconds = hard_end_seconds
        self._on_asked = on_asked
        self._work: asyncio.Task[None] | None = None
        self._is_cut = False
        self._count = 0
        self._last_at = float("-inf")

    @contextmanager
    def watching(self, work: asyncio.Task[None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._work = work
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, number.name)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def ask(self, *, is_alone: bool = False) -> None:
        """Request an orderly end. Repeated calls have no effect."""
        if self.requested.is_set():
            return
        self.is_alone = is_alone
        # The process ends within this time, even if a part of it hangs, because the operator asked for it.
        asyncio.get_running_loop().call_later(self._hard_end_seconds, leave_at_once)
        self.requested.set()
        if not self.serving:
            self.cut()
            return
        self._on_asked()

    def cut(self) -> None:
        """Skip the wait for running work.

        Only the first call has an effect, because a second one would interrupt the cleanup.
        """
        if self._work is not None and not self._is_cut:
            self._is_cut = True
            self._work.cancel()

    def _received(self, name: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last_at < ECHO_SECONDS:
            return
        self._last_at = now
        self._count += 1
        _log.info("stop_requested", signal=name, count=self._count)
        self.ask(is_alone=self._has_siblings)
        if self._count == 2:
            self.cut()
        if self._count > 2:
            leave_at_once()


def leave_at_once() -> None:
    os._exit(Exit.FAILED)
