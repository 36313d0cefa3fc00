"""Replicas are killed while chats and their subagents work. `make chaos-agents` is the long version."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.family_kills import kill_families

SEED = 20261118
# The first faults of a run have 5 kills and a restart of the database, so all of them are in.
KILLS = 6
FAMILIES = 6


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, which is removed, because a run leaves a database."""
    folder = Path(tempfile.mkdtemp(prefix="rkf"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def test_every_end_of_a_subagent_is_told_once_while_processes_die(folder: Path) -> None:
    outcome = await kill_families(folder, seed=SEED, kills=KILLS, families=FAMILIES, say=print)

    assert outcome.faults == [], f"seed {SEED}"
    assert outcome.kills >= KILLS
    assert outcome.struck["RESTART_DATABASE"] >= 1
    # Otherwise one of the ways to tell was not tested.
    assert outcome.told["wait"] > 0, outcome.told
    assert outcome.told["notice"] > 0, outcome.told
    assert outcome.wakes > 0
