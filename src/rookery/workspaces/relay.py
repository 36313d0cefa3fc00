"""The connector to an agent on another machine, through a replica there that relays requests.

Replicas authenticate each other with tokens that are valid for one request. The agent authenticates the server by the
workspace's own token, which travels with the request. After a failure another replica is chosen: replicas come and go,
the agent stays.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from rookery.runtime.clock import Clock
from rookery.workspaces.drivers.protocol import DriverError

# Followed by the id of the workspace, then the agent's path.
PATH = "/internal/v1/agent"
TOKEN_HEADER = "X-Rookery-Relay"  # noqa: S105 - a name, not a secret
# Set in responses that come from the replica and not from the agent.
REFUSED_HEADER = "X-Rookery-Relay-Refused"
# How long a choice is kept before the list of replicas is read again.
FRESH_SECONDS = 5.0


class Peer(msgspec.Struct, frozen=True):
    """A replica of another machine. `url` is None when it has no address that may be dialed from here."""

    id: UUID
    url: str | None


class Peers(Protocol):
    """The other replicas that can relay to agents."""

    @property
    def tls(self) -> ssl.SSLContext | None: ...

    async def of_node(self, node: str) -> Sequence[Peer]:
        """Return the replicas of this machine."""
        ...

    def mint(self, peer: Peer) -> str:
        """Return a token for one request."""
        ...


class Target(msgspec.Struct, frozen=True):
    """The destination of one request and the token for the replica there."""

    url: str
    headers: dict[str, str]


class RelayedConnector:
    """A `Connector` without its own socket: every request asks for its `target`."""

    unix_path: str | None = None

    def __init__(self, peers: Peers, node: str, workspace_id: UUID, clock: Clock) -> None:
        self._peers = peers
        self._node = node
        self._workspace_id = workspace_id
        self._clock = clock
        self._chosen: Peer | None = None
        self._chosen_at = 0.0
        self._failed: UUID | None = None

    @property
    def tls(self) -> ssl.SSLContext | None:
        return self._peers.tls

    async def prepare(self) -> None:
        await self._choose()

    async def target(self) -> Target:
        """Return the next request's destination. Raises `DriverError` when no replica of that machine can be asked."""
        peer = await self._choose()
        return Target(f"{peer.url}{PATH}/{self._workspace_id}", {TOKEN_HEADER: self._peers.mint(peer)})

    def failed(self) -> None:
        """Avoid the replica that was chosen last: it is gone or refuses. Another one is chosen if there is one."""
        if self._chosen is not None:
            self._failed, self._chosen = self._chosen.id, None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise DriverError("driver_unavailable", "An agent of another machine is asked by requests only.")

    async def close(self) -> None:
        self._chosen = None

    async def _choose(self) -> Peer:
        now = self._clock.monotonic()
        if self._chosen is not None and now - self._chosen_at < FRESH_SECONDS:
            return self._chosen
        found = [peer for peer in await self._peers.of_node(self._node) if peer.url is not None]
        if not found:
            raise DriverError("driver_unavailable", "No server of the workspace's machine can be reached.")
        # The one that failed last comes last; otherwise all workspaces of a machine use the same replica.
        found.sort(key=lambda peer: (peer.id == self._failed, peer.id != (self._chosen and self._chosen.id)))
        self._chosen, self._chosen_at = found[0], now
        return found[0]
