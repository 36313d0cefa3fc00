"""Connections on which nobody has logged in yet: so many for each address, so that no one takes them all.

A connection is a guest until a request on it was authenticated. When an address has as many guests as it may have, a
new one takes the place of the oldest one for which the server does not work. Proxies that are trusted speak for many
addresses, and are not counted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

MAX_GUESTS = 100


class Guest(Protocol):
    """A connection on which nobody has logged in."""

    @property
    def is_idle(self) -> bool:
        """Whether the server waits for this client, rather than the client for the server."""

    def evict(self) -> None:
        """Close it. It does not count any more."""


class Guests:
    """Of one server: the guests of each address, the oldest first."""

    __slots__ = ("_by_key", "_limit")

    def __init__(self, limit: int = MAX_GUESTS) -> None:
        self._limit = limit
        self._by_key: dict[str, dict[Guest, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def admit(self, key: str, guest: Guest) -> bool:
        """Take one more, in the place of an idle one if need be. False when all are busy.

        A guest who was admitted has to `leave`.
        """
        present = self._by_key.setdefault(key, {})
        if len(present) >= self._limit:
            oldest = next((each for each in present if each.is_idle), None)
            if oldest is None:
                return False
            del present[oldest]
            oldest.evict()
        present[guest] = None
        return True

    def leave(self, key: str, guest: Guest) -> None:
        """May be called for a guest who was evicted."""
        present = self._by_key.get(key, {})
        present.pop(guest, None)
        if not present:
            self._by_key.pop(key, None)


def address_key(address: str | None) -> str:
    """One key per address; a network of 64 bits where somebody owns that many addresses."""
    if address is None:
        return "unknown"
    try:
        parsed = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:  # a socket for both families shows the other one like this
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def is_trusted(address: str | None, proxies: Sequence[str] | str | None) -> bool:
    """Whether the address is that of a proxy in front of us."""
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
