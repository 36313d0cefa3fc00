"""Replicas with real workspaces are killed while agents work in them. `make chaos-tools` is the long version."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.tool_kills import kill_tools
from tests.workspaces.drivers.driver_rig import known_machine

SEED = 20261116
KILLS = 6
CHATS = 2
SECONDS = 40.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path for the sockets of workspaces. Skip the test on a machine that cannot run them."""
    known_machine()
    folder = Path(tempfile.mkdtemp(prefix="rkc"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def test_every_effect_of_a_tool_happens_once_while_the_worker_dies(database_url: str, folder: Path) -> None:
    outcome = await kill_tools(database_url, folder, seed=SEED, kills=KILLS, chats=CHATS, say=print, seconds=SECONDS)

    assert outcome.faults == [], f"seed {SEED}, calls without a result at a kill: {outcome.struck}"
    # Otherwise no replica was killed during work, and the run proves nothing.
    assert outcome.struck.total() > 0, outcome.struck
    assert outcome.taken.total() > 0, outcome.struck
