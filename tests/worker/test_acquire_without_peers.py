"""Acquisition by a replica without peers: it does not wait before it takes a chat."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rookery.store.db.hints import OwnershipHint
from tests.worker.runner_rig import RunnerRig, make_site


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[RunnerRig]:
    async with make_site(database_url) as made:
        yield made


async def test_replica_without_peers_takes_a_hinted_chat_without_delay(rig: RunnerRig) -> None:
    replica = await rig.replica()
    await rig.rig.sql("DELETE FROM replicas WHERE id <> $1", replica.worker_id)
    await replica.drive(await rig.rig.create())
    replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")
    chat_id = await rig.rig.create()

    replica.bus.dispatch(OwnershipHint(chat_id=chat_id, snapshot_version=1))
    await replica.works.started(2)

    assert replica.clock.waiting("acquire-delay") == []
    assert replica.clock.monotonic() == 0.0
