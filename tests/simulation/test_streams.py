"""Anything, in any order, over three replicas: clients of the SDK show what is stored, at every step and at the end.

Hypothesis chooses; the replicas, PostgreSQL, the sockets between replicas and those of the clients are real.

HYPOTHESIS_PROFILE=thorough runs many more and other examples than the default, which repeats the same ones.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.simulation.play import run_plays, running_town

COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True)
PROFILES = {
    "ci": settings(COMMON, max_examples=6, stateful_step_count=40, derandomize=True, phases=[Phase.generate]),
    "thorough": settings(COMMON, max_examples=200, stateful_step_count=60),
}
PROFILE = PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "ci")]


@pytest.mark.parametrize("is_apart", [False, True], ids=["anywhere", "never at the owner"])
def test_clients_show_what_is_stored_whatever_happens(database_url: str, tmp_path: Path, is_apart: bool) -> None:
    with asyncio.Runner() as runner, running_town(database_url, tmp_path, runner) as town:
        run_plays(town, runner, PROFILE, is_apart=is_apart)
