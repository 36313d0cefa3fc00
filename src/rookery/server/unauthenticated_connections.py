"""Unauthenticated connections: limited per client address, so that no address can take all connections of the server.

A connection is counted until a request on it is authenticated. When an address has the maximum number, a new connection
replaces the oldest idle one. Trusted proxies connect for many addresses and are not counted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

MAX_UNAUTHENTICATED = 100


class LimitedConnection(Protocol):
    """A connection without an authenticated request."""

    @property
    def is_idle(self) -> bool:
        """Whether the server waits for this client. If not, the client waits for the server."""

    def evict(self) -> None:
        """Close the connection. It is no longer counted."""


class ConnectionLimits:
    """The unauthenticated connections of one server, by address, the oldest first."""

    __slots__ = ("_by_key", "_limit")

    def __init__(self, limit: int = MAX_UNAUTHENTICATED) -> None:
        self._limit = limit
        self._by_key: dict[str, dict[LimitedConnection, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def admit(self, key: str, connection: LimitedConnection) -> bool:
        """Count a new connection. If necessary, close the oldest idle one. Return False if all connections are busy.

        Call `leave` when the connection is authenticated or closed.
        """
        present = self._by_key.setdefault(key, {})
        if len(present) >= self._limit:
            oldest = next((each for each in present if each.is_idle), None)
            if oldest is None:
                return False
            del present[oldest]
            oldest.evict()
        present[connection] = None
        return True

    def leave(self, key: str, connection: LimitedConnection) -> None:
        """Stop counting a connection. An evicted connection may be passed as well."""
        present = self._by_key.get(key, {})
        present.pop(connection, None)
        if not present:
            self._by_key.pop(key, None)


def address_key(address: str | None) -> str:
    """Return the key of an address. For IPv6 it is the 64-bit network, because a client may own that many addresses."""
    if address is None:
        return "unknown"
    try:
        parsed = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:  # an IPv4 address on a socket for both families
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def is_trusted(address: str | None, proxies: Sequence[str] | str | None) -> bool:
    """Return whether the address is that of a trusted proxy."""
    if address is None or not proxies:
        return False
    return _is_among(address, tuple(proxies.split(",")) if isinstance(proxies, str) else tuple(proxies))


@lru_cache(maxsize=1024)
def _is_among(address: str, proxies: tuple[str, ...]) -> bool:
    try:
        parsed = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return address in proxies
    return any(parsed in network for each in proxies if (network := _network(each)) is not None)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return None
