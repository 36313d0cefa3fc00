"""A replica is killed while its chats call an MCP server. `make chaos-mcp` is the long version."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.mcp_kills import Goal, kill_mcp

SEED = 20261118
KILLS = 3


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path for the sockets of the replica."""
    folder = Path(tempfile.mkdtemp(prefix="rkm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def test_no_call_is_made_twice_that_must_not_be(database_url: str, folder: Path) -> None:
    outcome = await kill_mcp(database_url, folder, seed=SEED, goal=Goal(kills=KILLS), say=print)

    assert outcome.faults == [], f"seed {SEED}, open at a kill: {outcome.struck}"
    # Otherwise no call was open at a kill, and the run proves nothing.
    assert outcome.struck.total() > 0, outcome.struck
