"""The connector to an agent on another machine, through a replica on that machine.

Replicas authenticate each other with tokens that are valid for one request. The agent authenticates the server by the
token of the workspace, which is part of the request. After a failure another replica is chosen.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from rookery.runtime.clock import Clock
from rookery.workspaces.drivers.driver_interface import DriverError

# The prefix of relayed paths. The id of the workspace and the agent's path follow.
PATH = "/internal/v1/agent"
TOKEN_HEADER = "X-Rookery-Relay"  # noqa: S105 - a name, not a secret
# Present in responses that come from the replica, and not from the agent.
REFUSED_HEADER = "X-Rookery-Relay-Refused"
# A choice is used for this long. Then the list of replicas is read again.
FRESH_SECONDS = 5.0


class Peer(msgspec.Struct, frozen=True):
    """A replica on another machine. `url` is None if it has no address for other replicas."""

    id: UUID
    url: str | None


class Peers(Protocol):
    """The other replicas that can relay to agents."""

    @property
    def tls(self) -> ssl.SSLContext | None: ...

    async def of_node(self, node: str) -> Sequence[Peer]:
        """Return the replicas on a machine."""
        ...

    def mint(self, peer: Peer) -> str:
        """Return a token for one request."""
        ...


class Target(msgspec.Struct, frozen=True):
    """The URL of one request, and the headers with the token for its replica."""

    url: str
    headers: dict[str, str]


class RelayedConnector:
    """A `Connector` without a socket. Each request gets its address from `target`."""

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
        """Return the target of the next request. Raise `DriverError` if no replica on that machine is reachable."""
        peer = await self._choose()
        return Target(f"{peer.url}{PATH}/{self._workspace_id}", {TOKEN_HEADER: self._peers.mint(peer)})

    def failed(self) -> None:
        """Report a failure of the chosen replica. The next request uses another one, if there is one."""
        if self._chosen is not None:
            self._failed, self._chosen = self._chosen.id, None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise DriverError("driver_unavailable", "An agent on another machine accepts relayed requests only.")

    async def close(self) -> None:
        self._chosen = None

    async def _choose(self) -> Peer:
        now = self._clock.monotonic()
        if self._chosen is not None and now - self._chosen_at < FRESH_SECONDS:
            return self._chosen
        found = [peer for peer in await self._peers.of_node(self._node) if peer.url is not None]
        if not found:
            raise DriverError("driver_unavailable", "No server on the workspace's machine can be reached.")
        # The replica that failed last comes last. Otherwise the current choice is kept.
        found.sort(key=lambda peer: (peer.id == self._failed, peer.id != (self._chosen and self._chosen.id)))
        self._chosen, self._chosen_at = found[0], now
        return found[0]
