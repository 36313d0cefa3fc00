"""Where the server connects on somebody else's word: never into its own machine or the networks around it.

A name is resolved once. When any of its addresses is blocked, all are refused, and the connection goes to an address
that was looked at: a name that answers differently the next time gains nothing (debug-and-operations.md, "Outbound
requests").
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TypeAlias

CONNECT_SECONDS = 10.0
# Chosen: a name with several addresses of which the first is dead is still reached in time.
ATTEMPT_SECONDS = 4.0
MAX_ADDRESSES = 4
RESOLVER_THREADS = 8

Address: TypeAlias = IPv4Address | IPv6Address
# A name and a port to the addresses of that name, in the order they are to be tried.
Resolve: TypeAlias = Callable[[str, int], Awaitable[Iterable[str]]]

_BLOCKED_V4 = tuple(
    ip_network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
# What the internet uses of IPv6; loopback, private, link-local and multicast addresses are all outside of it.
_GLOBAL_V6 = ip_network("2000::/3")
_BLOCKED_V6 = tuple(ip_network(each) for each in ("2001::/23", "2001:db8::/32", "3fff::/20"))
_NAT64 = ip_network("64:ff9b::/96")
# Belongs to no machine: who may bind to it may bind to anything, and learns nothing by it.
_NOWHERE = ip_address("192.0.2.1")


class Blocked(Exception):
    """A name leads to an address that nobody may be sent to."""

    def __init__(self, host: str, address: Address) -> None:
        super().__init__(f"{host} leads to {address}, an address of this machine or of a private network.")
        self.host = host
        self.address = address


class Unreachable(Exception):
    """A name has no address, or nobody answers at those it has. The message is the end of a sentence."""


class Guard:
    """`allow` are networks that operators exempt (`net_allow_private`); `resolve` replaces the system's resolver."""

    def __init__(self, allow: Iterable[str] = (), *, resolve: Resolve | None = None) -> None:
        self._allow = tuple(ip_network(each, strict=False) for each in allow)
        self._resolve = resolve or _look_up

    async def find(self, host: str, port: int) -> list[Address]:
        """The addresses of a host, all of them checked. Raises `Blocked`, or `Unreachable` when there are none."""
        try:
            texts = list(dict.fromkeys(await self._resolve(host, port)))
            found = [ip_address(text) for text in texts]
        except (OSError, UnicodeError, ValueError) as error:
            # A name that cannot be encoded is as unknown as one that is not registered.
            raise Unreachable("its name is not known") from error
        for address in found:
            if self.is_blocked(address):
                raise Blocked(host, address)
        if not found:
            raise Unreachable("its name has no address")
        return found[:MAX_ADDRESSES]

    async def connect(self, host: str, port: int, *, seconds: float = CONNECT_SECONDS) -> socket.socket:
        """A connection to the host, by an address that was checked. Raises as `find` does."""
        why = "it did not answer in time"
        try:
            async with asyncio.timeout(seconds):
                for address in await self.find(host, port):
                    try:
                        async with asyncio.timeout(ATTEMPT_SECONDS):
                            return await _dial(address, port)
                    except TimeoutError:
                        why = "it did not answer in time"
                    except OSError as error:
                        # By its number: the text of an event loop names the address.
                        why = os.strerror(error.errno).lower() if error.errno else "it cannot be reached"
        except TimeoutError:
            pass
        raise Unreachable(why)

    def is_blocked(self, address: Address) -> bool:
        inner = _unwrapped(address)
        if any(each in network for network in self._allow for each in (address, inner)):
            return False
        return _is_special(inner) or is_own(inner)


def _unwrapped(address: Address) -> Address:
    """The address that is meant: several forms of IPv6 hold one of IPv4."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return address


def _is_special(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return any(address in network for network in _BLOCKED_V4)
    return address not in _GLOBAL_V6 or any(address in network for network in _BLOCKED_V6)


def is_own(address: Address) -> bool:
    """Whether a public address is this machine's: behind it is all that listens here, whatever the firewall says to
    those outside."""
    return not _binds_anywhere() and _binds(address)


@cache
def _binds_anywhere() -> bool:
    """Some machines let programs bind to addresses they do not have."""
    return _binds(_NOWHERE)


def _binds(address: Address) -> bool:
    try:
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


async def _dial(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (str(address), port))
    except BaseException:
        made.close()
        raise
    return made


@cache
def _resolvers() -> ThreadPoolExecutor:
    """Threads of their own: names that are answered slowly must not hold up what else the process does in threads."""
    return ThreadPoolExecutor(RESOLVER_THREADS, "resolver")


async def _look_up(host: str, port: int) -> Iterable[str]:
    def ask() -> list[str]:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

    return await asyncio.get_running_loop().run_in_executor(_resolvers(), ask)
