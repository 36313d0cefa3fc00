"""Any actions in any order with three replicas: clients of the SDK show the stored state at every step and at the end.

Hypothesis chooses the actions. The replicas, PostgreSQL and all sockets are real.

HYPOTHESIS_PROFILE=thorough runs more and different examples; the default repeats the same ones.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.simulation.follower import ORDER
from tests.simulation.scenario import CLIENTS, run_scenarios, running_replicas

LENGTH = 100  # actions in a scenario
COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True)
PROFILES = {
    "ci": settings(COMMON, max_examples=5, derandomize=True, phases=[Phase.generate]),
    "thorough": settings(COMMON, max_examples=100),
}
PROFILE = PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "ci")]

# Without these actions, a scenario has not reached the critical states.
TOLD = {*ORDER, "disconnected", "hello", "message_part"}


@pytest.mark.parametrize("is_apart", [False, True], ids=["anywhere", "never at the owner"])
def test_clients_show_the_stored_chat_after_any_sequence_of_faults(
    database_url: str, tmp_path: Path, is_apart: bool
) -> None:
    with asyncio.Runner() as runner, running_replicas(database_url, tmp_path, runner) as rig:
        run_scenarios(rig, runner, PROFILE, length=LENGTH, is_apart=is_apart)

    assert rig.told.keys() >= TOLD
    assert rig.told["hello"] > 1.5 * PROFILE.max_examples * len(CLIENTS), "too few were cut off"
