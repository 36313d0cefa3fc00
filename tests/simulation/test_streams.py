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

from tests.simulation.follower import ORDER
from tests.simulation.scenario import CLIENTS, run_plays, running_town

LENGTH = 100  # acts in a play
COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True)
PROFILES = {
    "ci": settings(COMMON, max_examples=5, derandomize=True, phases=[Phase.generate]),
    "thorough": settings(COMMON, max_examples=100),
}
PROFILE = PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "ci")]

# Without these a play has not been to the places where things go wrong.
TOLD = {*ORDER, "disconnected", "hello", "message_part"}


@pytest.mark.parametrize("is_apart", [False, True], ids=["anywhere", "never at the owner"])
def test_clients_show_what_is_stored_whatever_happens(database_url: str, tmp_path: Path, is_apart: bool) -> None:
    with asyncio.Runner() as runner, running_town(database_url, tmp_path, runner) as town:
        run_plays(town, runner, PROFILE, length=LENGTH, is_apart=is_apart)

    assert town.told.keys() >= TOLD
    assert town.told["hello"] > 1.5 * PROFILE.max_examples * len(CLIENTS), "too few were cut off"
