"""All sources of metrics, with real components around a rig with one worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from uuid import uuid4

from rookery.llm.wire_stats import ModelCounters
from rookery.metrics.export import Sources
from rookery.metrics.infrastructure import Build, PubSub
from rookery.runtime.clock import SystemClock
from rookery.store.db import replica_presence
from rookery.store.db.pubsub import Bus, Listener, Notifier, NotifyProbe
from rookery.store.db.replica_presence import Presence
from rookery.store.machine import Machine
from rookery.stream.access_monitor import Grant, Right
from rookery.stream.relay.service import Relay
from rookery.stream.service import Streams, StreamServices
from rookery.telemetry.http_stats import HttpStats
from rookery.telemetry.loop_lag import LagMonitor
from rookery.workspaces.shared_services import WorkspaceStats
from tests.worker.worker_rig import WorkerRig


@asynccontextmanager
async def all_sources(rig: WorkerRig) -> AsyncIterator[Sources]:
    """Return the sources of a replica, with their loops running."""
    clock, rng, bus, replica_id = SystemClock(), Random(1), Bus(), uuid4()
    database, worker = rig.database, rig.worker
    notifier = Notifier(database.worker, bus)
    listener = Listener(lambda: database.dedicated("listen"), bus, clock=clock, rng=rng)
    probe = NotifyProbe(notifier, bus, replica_id=replica_id, clock=clock)
    presence = Presence(lambda: database.dedicated("presence"), _identity(), clock=clock, rng=rng)
    lag = LagMonitor(clock)
    relay = Relay(replica_id, worker.buffer, listening=None, pool=database.api, clock=clock, rng=rng)
    streams = Streams(
        StreamServices(
            replica_id=replica_id,
            machine=Machine(database.api, notifier),
            pool=database.api,
            bus=bus,
            sources=relay.hub,
            check=_allow,
            clock=clock,
            rng=rng,
        )
    )
    await presence.start()
    loops = [asyncio.create_task(run()) for run in (listener.run, notifier.run, lag.run)]
    await listener.wait_connected()
    loops.append(asyncio.create_task(probe.run()))
    try:
        yield Sources(
            build=Build("1.2.3", 7),
            worker=worker,
            debug=None if rig.replicas[0].debug is None else rig.replicas[0].debug.stats,
            models=ModelCounters(),
            http=HttpStats(),
            streams=streams,
            relay=relay,
            database=database,
            pubsub=PubSub(notifier, listener, probe),
            lag=lag,
            presence=presence,
            workspaces=WorkspaceStats(),
        )
    finally:
        await notifier.close()
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await presence.close()


async def _allow(grants: Sequence[Grant]) -> Sequence[Right]:
    raise AssertionError("nobody opens a stream here")


def _identity() -> replica_presence.Replica:
    return replica_presence.Replica(
        id=uuid4(), host_id="test", hostname="test", pid=1, version="test", schema_version=1
    )
