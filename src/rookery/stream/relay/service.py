"""The relay of one replica, put together: the sockets that other replicas dial, and the hub that dials theirs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import asyncpg

from rookery.clock import Clock
from rookery.store import replicas
from rookery.store.replicas import Replica
from rookery.stream.follow import PartSource
from rookery.stream.listening import INTERNAL_MAX_BYTES, remove_dead_sockets, serving, unix_socket
from rookery.stream.relay.hub import RelayHub
from rookery.stream.relay.link import Dialer
from rookery.stream.relay.server import RelayEndpoint
from rookery.stream.relay.tokens import TokenCheck

# As long as the name of the database's socket beside it: where that one fits, this one does.
_SOCKET_NAME = "r{}.s"
_SOCKETS = "r*.s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Sockets that are open, and what to tell others about them. `tls` are options of the server on the port."""

    host_id: str
    key: bytes
    unix: socket.socket
    unix_path: Path
    tcp: socket.socket | None = None
    url: str | None = None
    tls: dict[str, Any] | None = None
    dial_tls: ssl.SSLContext | None = None


@contextmanager
def named_socket(directory: Path, replica_id: UUID) -> Iterator[tuple[socket.socket, Path]]:
    """The internal socket of a replica, and its path. What killed replicas left there goes."""
    remove_dead_sockets(directory, _SOCKETS)
    path = directory / _SOCKET_NAME.format(replica_id.hex[:12])
    with unix_socket(path) as listening:
        yield listening, path


class Relay:
    """Where the streams of this replica get live parts from, and where others get its own.

    Without sockets there are no links: chats of other replicas are shown without preview.
    """

    def __init__(
        self,
        replica_id: UUID,
        buffer: PartSource,
        *,
        listening: Listening | None,
        pool: asyncpg.Pool,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._pool = pool
        self._listening = listening
        self.endpoint: RelayEndpoint | None = None
        dialer: Dialer | None = None
        if listening is not None:
            check = TokenCheck(listening.key, me=replica_id, clock=clock, is_live=self._is_live)
            self.endpoint = RelayEndpoint(replica_id, buffer, check=check)
            dialer = Dialer(
                replica_id=replica_id,
                host_id=listening.host_id,
                key=listening.key,
                find=self._find,
                clock=clock,
                rng=rng,
                tls=listening.dial_tls,
            )
        self.hub = RelayHub(replica_id, buffer, dialer)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve and dial until the end of the block; then links hear that their selections end here."""
        if self._listening is None:
            yield
            return
        async with AsyncExitStack() as stack:
            for listening, options in self._listeners(self._listening):
                await stack.enter_async_context(
                    serving(self.endpoint, listening, ws_max_size=INTERNAL_MAX_BYTES, **options)
                )
            sweeping = asyncio.create_task(self.hub.run(), name="relay-sweep")
            try:
                yield
            finally:
                sweeping.cancel()
                self.drain()
                await self.hub.close()

    def drain(self) -> None:
        """Others get nothing more from here; what this replica shows of theirs goes on."""
        if self.endpoint is not None:
            self.endpoint.drain()

    def _listeners(self, found: Listening) -> Iterator[tuple[socket.socket, dict[str, Any]]]:
        yield found.unix, {}
        if found.tcp is not None:
            yield found.tcp, found.tls or {}

    async def _find(self, replica_id: UUID) -> Replica | None:
        async with self._pool.acquire() as conn:
            return await replicas.find_replica(conn, replica_id)

    async def _is_live(self, replica_id: UUID) -> bool:
        return await self._find(replica_id) is not None
