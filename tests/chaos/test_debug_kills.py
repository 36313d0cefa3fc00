"""Debug records of a replica that was killed, with production settings: its runs end soon, and are not wrong.

Either a peer ends them, or the replica that is started in its place.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from rookery.domain.chat.transitions import BusyBehavior
from tests.chaos import debug_records
from tests.chaos.conversation_plans import Plan
from tests.chaos.deployment import Deployment, open_deployment
from tests.eventually import until

MAX_OPEN_SECONDS = 35.0
_RUNS = "SELECT id, status, summary, finished_at FROM chat_debug_runs WHERE chat_id = $1 ORDER BY started_at, id"


async def open_run(deployment: Deployment, chat_id: UUID) -> UUID:
    """Return the run of the chat once it is stored with a step, so that the kill leaves both open."""
    found = "SELECT run_id FROM chat_debug_steps WHERE chat_id = $1 AND finished_at IS NULL"
    await until(lambda: deployment.pool.fetchval(found, chat_id))
    run_id: UUID = await deployment.pool.fetchval(found, chat_id)
    return run_id


@pytest.mark.parametrize("replicas", [1, 2], ids=["restarted", "with a peer"])
async def test_runs_of_a_killed_replica_end_within_35_seconds(database_url: str, tmp_path: Path, replicas: int) -> None:
    async with open_deployment(
        lambda: database_url, tmp_path, seed=1, replicas=replicas, is_fast=False, has_doors=False, has_failures=False
    ) as deployment:
        gate = deployment.providers.gates["c0m0-end"] = asyncio.Event()
        person = deployment.person(0)
        await person.say(str(Plan("c0m0")), BusyBehavior.QUEUE)
        await deployment.providers.until_asked("c0m0-end")
        killed = await open_run(deployment, person.chat_id)
        owner = await deployment.owner(person.chat_id)
        assert owner is not None

        if replicas == 2:
            # This takes the longest: the peer has just swept.
            swept = "SELECT count(DISTINCT replica_id) = 2 FROM job_runs WHERE job = 'debug_sweep'"
            await until(lambda: deployment.pool.fetchval(swept))
        killed_at = time.monotonic()
        owner.kill()
        if replicas == 1:
            await owner.start()
        ended = "SELECT finished_at IS NOT NULL FROM chat_debug_runs WHERE id = $1"
        await until(lambda: deployment.pool.fetchval(ended, killed), timeout=150)
        seconds = time.monotonic() - killed_at

        await deployment.providers.until_asked("c0m0-end", times=2)
        gate.set()
        await deployment.watch.until_rest(person.chat_id)
        await debug_records.settle(deployment.pool)
        first, second = await deployment.pool.fetch(_RUNS, person.chat_id)
        faults = debug_records.find_faults(await debug_records.read(deployment.pool))

    print(f"ended after {seconds:.1f} s")
    assert seconds <= MAX_OPEN_SECONDS
    assert (first["id"], first["status"], second["status"]) == (killed, "interrupted", "completed")
    assert msgspec.json.decode(first["summary"])["step_count"] == 1
    assert msgspec.json.decode(second["summary"])["continues"] == str(killed)
    assert faults == []
