"""Connections on which nobody has said yet who they are: so many for each address, so that no one takes them all.

A connection is a guest until a request on it was authenticated. Proxies that are trusted speak for many addresses, and
are not counted.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

MAX_GUESTS = 100


class Guests:
    """Of one server: how many there are, by address."""

    __slots__ = ("_by_key", "_limit")

    def __init__(self, limit: int = MAX_GUESTS) -> None:
        self._limit = limit
        self._by_key: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(self._by_key.values())

    def admit(self, key: str) -> bool:
        """Whether there is room for one more. Who was admitted has to `leave`."""
        if self._by_key[key] >= self._limit:
            return False
        self._by_key[key] += 1
        return True

    def leave(self, key: str) -> None:
        self._by_key[key] -= 1
        if not self._by_key[key]:
            del self._by_key[key]


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
