"""Polling for a condition with a deadline, where there is no event to wait for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], object | Awaitable[object]], *, timeout: float = 30.0) -> None:
    """Return once the condition is true; fail after `timeout` real seconds."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                result = condition()
                if inspect.isawaitable(result):
                    result = await result
                if result:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"Still not true after {timeout:g} s: {inspect.getsource(condition).strip()}") from None
