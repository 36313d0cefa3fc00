"""A short chaos run for every `make test`. `make chaos` is the long one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.run import chaos

SEED = 20261116
KILLS = 8
CHATS = 20


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is removed, unlike pytest's, because a run leaves a database."""
    folder = Path(tempfile.mkdtemp(prefix="rookery-chaos-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def test_nothing_is_lost_or_done_twice_while_processes_die_and_the_database_restarts(folder: Path) -> None:
    outcome = await chaos(folder, seed=SEED, kills=KILLS, chats=CHATS, say=print)

    assert outcome.faults == [], f"seed {SEED}"
    assert outcome.kills >= KILLS
    assert outcome.chats >= CHATS
    assert outcome.debug_runs >= CHATS
