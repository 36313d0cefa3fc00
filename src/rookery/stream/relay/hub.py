"""The source of live parts for streams: the local part buffer, or a mirror of an episode on another replica.

There is one mirror per episode, not per viewer. A thousand viewers of one remote chat require one copy on the link, and
a slow viewer delays no other viewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn
from uuid import UUID

from rookery.live.feeds import Subscription, Take
from rookery.live.part_buffer import BufferClosed, EpisodeKey
from rookery.stream.follow import PartSource
from rookery.stream.relay.link import Dialer, Link, RelayStats

SWEEP_SECONDS = 1.0
MIRROR_IDLE_SECONDS = 15.0
LINK_IDLE_SECONDS = 60.0
STALL_SECONDS = 10.0


class RelayHub:
    """All links of this process. `run` sweeps until canceled; `close` ends the links.

    Without a dialer there are no links, and chats of other replicas are shown without a preview.
    """

    def __init__(self, replica_id: UUID, local: PartSource, dialer: Dialer | None) -> None:
        self._replica_id = replica_id
        self._local = local
        self._dialer = dialer
        self._links: dict[UUID, tuple[Link, asyncio.Task[None]]] = {}
        self._is_closed = False
        self.stats = RelayStats()

    def source(self, worker_id: UUID) -> PartSource | None:
        """Return the source of that replica's parts."""
        if worker_id == self._replica_id:
            return self._local
        return None if self._dialer is None else _Remote(self, worker_id)

    def link(self, worker_id: UUID) -> Link:
        """Return the link to a replica. It is dialed on its first use."""
        if self._is_closed:
            raise BufferClosed
        assert self._dialer is not None, "there is a source only with a dialer"
        found = self._links.get(worker_id)
        if found is None:
            link = Link(worker_id, self._dialer, self.stats)
            found = self._links[worker_id] = (link, asyncio.create_task(link.run(), name="relay-link"))
        return found[0]

    def links(self) -> list[Link]:
        return [link for link, _ in self._links.values()]

    async def run(self) -> NoReturn:
        assert self._dialer is not None, "nothing to sweep without links"
        while True:
            await self._dialer.clock.sleep(SWEEP_SECONDS, "relay-sweep")
            self.sweep()

    def sweep(self) -> None:
        """End stalled readers, drop mirrors without viewers, close links without mirrors."""
        if self._dialer is None:
            return
        now = self._dialer.clock.monotonic()
        for worker_id, (link, task) in tuple(self._links.items()):
            link.sweep(stalled_before=now - STALL_SECONDS, idle_before=now - MIRROR_IDLE_SECONDS)
            if link.idle_since is not None and link.idle_since <= now - LINK_IDLE_SECONDS:
                del self._links[worker_id]
                task.cancel()

    async def close(self) -> None:
        self._is_closed = True
        links, self._links = self._links, {}
        for link, task in links.values():
            link.cut()
            task.cancel()
        await asyncio.gather(*(task for _, task in links.values()), return_exceptions=True)


class _Remote:
    """Another replica as a source of parts."""

    __slots__ = ("_hub", "_worker_id")

    def __init__(self, hub: RelayHub, worker_id: UUID) -> None:
        self._hub = hub
        self._worker_id = worker_id

    def subscribe(
        self, key: EpisodeKey, from_seq: int = 1, *, wake: Callable[[], None] | None = None, take: Take | None = None
    ) -> Subscription:
        return self._hub.link(self._worker_id).mirror(key).subscribe(from_seq, wake, take)
