"""How a serving process is told to end: signals, or the parent that started it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rookery.cli.exit_codes import Exit
from rookery.telemetry import log

# Supervisors signal a process and its group: what comes this soon after another is the same request.
ECHO_SECONDS = 0.5

_log = log.get_logger("serve")


class Stop:
    """SIGTERM and SIGINT: the first asks for an orderly end, the second skips the waiting, the third leaves at once.

    Before `serving` is set there is nothing to end in order yet, and the first one already cuts off. `is_alone`: only
    this process ends, and others go on at the same port.
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
        """Ask for an orderly end. Asked again, nothing changes."""
        if self.requested.is_set():
            return
        self.is_alone = is_alone
        # Whatever hangs, hangs no longer than this: the operator asked for the process to end.
        asyncio.get_running_loop().call_later(self._hard_end_seconds, leave_at_once)
        self.requested.set()
        if not self.serving:
            self.cut()
            return
        self._on_asked()

    def cut(self) -> None:
        """Skip the waiting. Once: a second time would cut off the cleaning up."""
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
