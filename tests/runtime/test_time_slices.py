"""Time slices: a computation returns its result, and other tasks run meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from rookery.runtime import time_slices


def adding(count: int) -> Generator[None, None, int]:
    total = 0
    for each in range(count):
        yield
        total += each
    return total


def failing() -> Generator[None, None, int]:
    yield
    raise ValueError("no result")


async def test_others_have_their_turn_at_every_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "PIECE_SECONDS", -1.0)
    computing = asyncio.create_task(time_slices.in_pieces(adding(10)))
    turns = 0
    while not computing.done():
        turns += 1
        await asyncio.sleep(0)

    assert (computing.result(), turns >= 10) == (45, True)


async def test_a_short_computation_takes_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "PIECE_SECONDS", 3600.0)
    computing = asyncio.create_task(time_slices.in_pieces(adding(10)))
    await asyncio.sleep(0)

    assert computing.done()


async def test_an_error_of_the_computation_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="no result"):
        await time_slices.in_pieces(failing())
