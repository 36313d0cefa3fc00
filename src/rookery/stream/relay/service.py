"""The relay of one replica: the sockets that other replicas dial, and the hub that dials theirs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import asyncpg

from rookery.runtime.clock import Clock
from rookery.server.listener import INTERNAL_MAX_BYTES, remove_dead_sockets, serving, unix_socket
from rookery.store.db import replica_presence
from rookery.store.db.replica_presence import Replica
from rookery.stream.follow import PartSource
from rookery.stream.relay.dial_tokens import TokenCheck
from rookery.stream.relay.hub import RelayHub
from rookery.stream.relay.link import Dialer
from rookery.stream.relay.server import RelayEndpoint
from rookery.stream.relay.workspace_agents import FindAgent, OnCutOff

# As long as the name of the database's socket beside it. If that path is short enough, this path is as well.
_SOCKET_NAME = "r{}.s"
_SOCKETS = "r*.s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Open sockets, and the addresses to publish for them. `tls` are the server options for the port."""

    host_id: str
    key: bytes
    unix: socket.socket
    unix_path: Path
    tcp: socket.socket | None = None
    url: str | None = None
    tls: dict[str, Any] | None = None
    dial_tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The address for replicas on other machines. If `url` is None, it is derived from the listening address."""

    host: str
    port: int
    url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


@contextmanager
def open_sockets(
    directory: Path, replica_id: UUID, *, host_id: str, key: bytes, reach: Reach | None = None, ca: Path | None = None
) -> Iterator[Listening]:
    """Open the internal sockets of a replica. Remove sockets that killed replicas left in the directory.

    Raises OSError when an address is not available or a certificate cannot be read.
    """
    remove_dead_sockets(directory, _SOCKETS)
    path = directory / _SOCKET_NAME.format(replica_id.hex[:12])
    with ExitStack() as stack:
        listening = Listening(
            host_id=host_id,
            key=key,
            unix=stack.enter_context(unix_socket(path)),
            unix_path=path,
            dial_tls=ssl.create_default_context(cafile=ca) if ca is not None else None,
        )
        if reach is not None:
            tls = _server_tls(reach)
            family, _, _, _, target = socket.getaddrinfo(reach.host or "::", reach.port, type=socket.SOCK_STREAM)[0]
            dual = not reach.host
            tcp = stack.enter_context(socket.create_server(target[:2], family=family, dualstack_ipv6=dual))
            listening = replace(listening, tcp=tcp, url=_url(reach, tcp.getsockname()[1]), tls=tls)
        yield listening


def _server_tls(reach: Reach) -> dict[str, Any]:
    if reach.tls_cert is None or reach.tls_key is None:
        return {}
    # Loaded here for its error message. The server would report only that it cannot start.
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(reach.tls_cert, reach.tls_key)
    return {"ssl_certfile": reach.tls_cert, "ssl_keyfile": reach.tls_key}


def _url(reach: Reach, port: int) -> str:
    host = f"[{reach.host}]" if ":" in reach.host else reach.host
    return reach.url or f"{'ws' if reach.tls_cert is None else 'wss'}://{host}:{port}"


class Relay:
    """The source of live parts for the streams of this replica, and the server of its own parts to others.

    Without sockets there are no links, and chats of other replicas are shown without a preview.
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
    async def running(self, around: Callable[[Any], Any] = lambda application: application) -> AsyncIterator[None]:
        """Serve and dial until the end of the block; then the selections of all links are ended.

        `around` wraps the application on the local socket. Replicas on other machines reach only the relay.
        """
        if self._listening is None:
            yield
            return
        found = self._listening
        async with AsyncExitStack() as stack:
            inside = serving(around(self.endpoint), found.unix, ws_max_size=INTERNAL_MAX_BYTES)
            await stack.enter_async_context(inside)
            if found.tcp is not None:
                outside = serving(self.endpoint, found.tcp, ws_max_size=INTERNAL_MAX_BYTES, **(found.tls or {}))
                await stack.enter_async_context(outside)
            sweeping = asyncio.create_task(self.hub.run(), name="relay-sweep")
            try:
                yield
            finally:
                sweeping.cancel()
                self.drain()
                await self.hub.close()

    def serve_agents(self, find: FindAgent, on_cut_off: OnCutOff) -> None:
        """Let replicas on other machines reach the agents of this machine."""
        if self.endpoint is not None:
            self.endpoint.serve_agents(find, on_cut_off)

    def drain(self) -> None:
        """Stop serving parts to other replicas. Mirrors of their parts continue."""
        if self.endpoint is not None:
            self.endpoint.drain()

    async def _find(self, replica_id: UUID) -> Replica | None:
        async with self._pool.acquire() as conn:
            return await replica_presence.find_replica(conn, replica_id)

    async def _is_live(self, replica_id: UUID) -> bool:
        return await self._find(replica_id) is not None
