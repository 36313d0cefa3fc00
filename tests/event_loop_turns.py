"""Counting of the work in one turn of the event loop, independent of time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any

import pytest

from rookery.domain.chat.approval_patterns import Texts
from rookery.runtime import time_slices

# Shorter texts are names of tools, whose matches are cached.
LONG_TEXT = 1000


@contextlib.asynccontextmanager
async def matches_by_turn(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counter[int]]:
    """Count how many patterns are matched against long texts in each turn of the event loop."""
    match = Texts.match
    async with _turns(monkeypatch) as (turn, found):

        def counted(self: Texts, pattern: str, spend: Callable[[int], None]) -> int:
            if self.size > LONG_TEXT:
                found[turn()] += 1
            return match(self, pattern, spend)

        monkeypatch.setattr(Texts, "match", counted)
        yield found


@contextlib.asynccontextmanager
async def calls_by_turn(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> AsyncIterator[Counter[int]]:
    """Count how often a function is called in each turn of the event loop."""
    function = getattr(module, name)
    async with _turns(monkeypatch) as (turn, found):

        def counted(*given: Any, **named: Any) -> Any:
            found[turn()] += 1
            return function(*given, **named)

        monkeypatch.setattr(module, name, counted)
        yield found


@contextlib.asynccontextmanager
async def _turns(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Callable[[], int], Counter[int]]]:
    """Number the turns of the event loop.

    Every point at which a computation may be interrupted starts a turn, independent of the speed of the machine.
    """
    monkeypatch.setattr(time_slices, "PIECE_SECONDS", -1.0)
    turn, is_over = 0, False

    async def count() -> None:
        nonlocal turn
        while not is_over:
            turn += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield lambda: turn, Counter()
    finally:
        is_over = True
        await counting
