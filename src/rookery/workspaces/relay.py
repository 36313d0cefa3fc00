"""The way to an agent of another machine: through a replica there, which passes requests on (workspaces.md, "Nodes").

Replicas know each other by tokens that are good for one request; the agent knows the server by the workspace's own
token, which travels with it. Which replica is asked is chosen anew after a failure: they come and go, the agent stays.
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

# Below it the id of the workspace, then the path of the agent.
PATH = "/internal/v1/agent"
TOKEN_HEADER = "X-Rookery-Relay"  # noqa: S105 - a name, not a secret
# In answers that are the replica's own and not the agent's.
REFUSED_HEADER = "X-Rookery-Relay-Refused"
# How long a choice stands without another look at who is there.
FRESH_SECONDS = 5.0


class Peer(msgspec.Struct, frozen=True):
    """A replica of another machine. `url` is None when it has no address that may be dialed from here."""

    id: UUID
    url: str | None


class Peers(Protocol):
    """The other replicas, as far as agents can be reached through them."""

    @property
    def tls(self) -> ssl.SSLContext | None: ...

    async def of_node(self, node: str) -> Sequence[Peer]:
        """Those that live on this machine."""
        ...

    def mint(self, peer: Peer) -> str:
        """A token for one request."""
        ...


class Target(msgspec.Struct, frozen=True):
    """Where one request goes, and what it carries for the replica there."""

    url: str
    headers: dict[str, str]


class RelayedConnector:
    """A `Connector` without a socket of its own: every request asks for its `target`."""

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
        """Raises `DriverError` when nobody on that machine can be asked."""
        peer = await self._choose()
        return Target(f"{peer.url}{PATH}/{self._workspace_id}", {TOKEN_HEADER: self._peers.mint(peer)})

    def failed(self) -> None:
        """The replica that was chosen last is not there any more, or does not want to: another one is, if there is."""
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
        # The one that failed last comes last; otherwise all workspaces of a machine go through one of its replicas.
        found.sort(key=lambda peer: (peer.id == self._failed, peer.id != (self._chosen and self._chosen.id)))
        self._chosen, self._chosen_at = found[0], now
        return found[0]
