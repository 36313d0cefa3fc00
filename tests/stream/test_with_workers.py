"""Streams with real workers: hints through PostgreSQL, runners, and scripted models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

from rookery.client import reducer
from rookery.client.reducer import Client
from rookery.llm.scripted import Say
from rookery.runtime.clock import SystemClock
from rookery.store.db.replica_presence import Replica as ReplicaRow
from rookery.store.machine import Machine
from rookery.stream.access_monitor import Grant, Right
from rookery.stream.query_parameters import StreamParams
from rookery.stream.relay.dial_tokens import TokenCheck
from rookery.stream.relay.hub import RelayHub
from rookery.stream.relay.link import Dialer
from rookery.stream.relay.server import RelayEndpoint
from rookery.stream.service import Streams, StreamServices
from tests.eventually import until
from tests.stream.stream_rig import KEY, MemoryTransport, Viewer, internal_unix
from tests.worker.worker_rig import Replica, WorkerRig, open_house


async def keep(grants: Sequence[Grant]) -> Sequence[Right]:
    return [Right.KEPT] * len(grants)


@asynccontextmanager
async def streams_of(rig: WorkerRig, replica: Replica, sockets: Path) -> AsyncIterator[Streams]:
    clock = SystemClock()

    async def find(worker_id: UUID) -> ReplicaRow | None:
        path = str(sockets / f"{str(worker_id)[:8]}.sock")
        return ReplicaRow(
            id=worker_id, host_id="h", hostname="h", pid=1, version="0", schema_version=1, relay_unix=path
        )

    async def is_live(_: UUID) -> bool:
        return True

    dialer = Dialer(replica_id=replica.id, host_id="h", key=KEY, find=find, clock=clock, rng=Random(1))
    buffer = replica.worker.buffer
    hub = RelayHub(replica.id, buffer, dialer)
    check = TokenCheck(KEY, me=replica.id, clock=clock, is_live=is_live)
    streams = Streams(
        StreamServices(
            replica_id=replica.id,
            machine=Machine(rig.database.api, replica.notifier),
            pool=rig.database.api,
            bus=replica.bus,
            sources=hub,
            check=keep,
            clock=clock,
            rng=Random(1),
        )
    )
    path = sockets / f"{str(replica.id)[:8]}.sock"
    async with internal_unix(RelayEndpoint(replica.id, buffer, check=check), path), streams.running():
        yield streams
        await hub.close()


async def test_whole_answers_reach_clients_on_both_replicas(database_url: str, tmp_path: Path) -> None:
    words = tuple(f"word{n} " for n in range(40))
    async with open_house(database_url, script=tuple(Say(word) for word in words), workers=2) as rig:
        one, two = rig.replicas
        async with streams_of(rig, one, tmp_path) as first, streams_of(rig, two, tmp_path) as second:
            chat_id = await rig.ask("count")
            viewers = [await connect(streams, chat_id) for streams in (first, second)]
            await rig.rested(chat_id)
            for viewer in viewers:
                await until(lambda viewer=viewer: shown(viewer).view.status == "waiting")  # type: ignore[misc]

            stored = [(message.id, str(message.role)) for message in await rig.messages(chat_id)]
            for viewer in viewers:
                view = shown(viewer).view
                assert [(number, each["role"]) for number, each in view.messages.items()] == stored
                assert view.preview == ()
                await viewer.close()


async def connect(streams: Streams, chat_id: UUID) -> Viewer:
    user = uuid4()
    grant = Grant(user_id=user, credential=str(user), chat_id=chat_id)
    opened = await streams.open_chat(grant, StreamParams())
    transport = MemoryTransport()
    return Viewer(transport, asyncio.ensure_future(opened.run(transport)))


def shown(viewer: Viewer) -> Client:
    client = Client()
    for frame in viewer.transport.frames:
        client = reducer.reduce(client, frame)
    return client
