"""Time, injected: everything that waits or stamps takes a `Clock`, so that tests drive time instead of waiting."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time and sleeping. `tag` names the wait, for tests and for debugging."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float, tag: str) -> None: ...


class SystemClock:
    """The real thing."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float, tag: str) -> None:
        await asyncio.sleep(seconds)
