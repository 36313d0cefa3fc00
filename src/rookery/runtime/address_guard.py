"""The address guard for outgoing connections to hosts that users, models or templates name.

It blocks the server's own machine and private networks. A name is resolved once, and the connection uses the checked
address, so a name that resolves differently the next time (DNS rebinding) has no effect. If one address of a name is
blocked, the name is refused.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias, TypeVar

CONNECT_SECONDS = 10.0
# Limit per address, so that a second address can be tried within `CONNECT_SECONDS`.
ATTEMPT_SECONDS = 4.0
MAX_ADDRESSES = 4
RESOLVER_THREADS = 32

T = TypeVar("T")
Address: TypeAlias = IPv4Address | IPv6Address
# Resolves a name and a port to the addresses of that name, in the order to try them.
Resolve: TypeAlias = Callable[[str, int], Awaitable[Iterable[str]]]

_BLOCKED_V4 = tuple(
    ip_network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
# The public range of IPv6. Loopback, private, link-local and multicast addresses are outside of it.
_GLOBAL_V6 = ip_network("2000::/3")
_BLOCKED_V6 = tuple(ip_network(each) for each in ("2001::/23", "2001:db8::/32", "3fff::/20"))
_NAT64 = ip_network("64:ff9b::/96")
_LOOPBACK_V4 = IPv4Network("127.0.0.0/8")
_LOOPBACK = (_LOOPBACK_V4, IPv6Network("::1/128"))
# Metadata services of clouds, whose responses contain the machine's credentials. Some have public addresses.
_METADATA = tuple(
    ip_network(each)
    for each in (
        *("169.254.0.0/16", "fe80::/10"),  # link-local: most clouds
        *("168.63.129.16/32", "192.80.8.124/32"),  # Azure, Equinix Metal
        *("100.100.100.200/32", "fd00:100::100:200/128"),  # Alibaba
        *("192.0.0.192/32", "fd00:c1::a9fe:a9fe/128"),  # Oracle
        *("fd00:ec2::/32", "fd20:ce::254/128"),  # Amazon, Google
        *("fd00:42::42/128", "fd00:a9fe:a9fe::1/128"),  # Scaleway, Linode
    )
)
# These addresses also reach the machine itself.
_UNSPECIFIED = (ip_network("0.0.0.0/8"), ip_network("::/128"))
# A documentation address that no machine has. If it can be bound, any address can be bound.
_NOWHERE = ip_address("192.0.2.1")


class Blocked(Exception):
    """Raised when a name resolves to a blocked address."""

    def __init__(self, host: str, address: Address) -> None:
        super().__init__(f"{host} resolves to {address}, an address of this machine or of a private network.")
        self.host = host
        self.address = address


class Unreachable(Exception):
    """Raised when a name has no address, or none of its addresses answers. The message completes a sentence."""


class Lookups:
    """Limits the number of concurrent name lookups of one party.

    A slot is held until the resolver answers, even if the caller is cancelled, because a thread of the resolver cannot
    be stopped.
    """

    def __init__(self, most: int) -> None:
        self._slots = asyncio.Semaphore(most)

    async def wait(self, asking: Awaitable[T]) -> T:
        try:
            await self._slots.acquire()
        except BaseException:
            if asyncio.iscoroutine(asking):
                asking.close()  # it was not started
            raise
        task = asyncio.ensure_future(asking)
        task.add_done_callback(self._release)
        return await asyncio.shield(task)

    def _release(self, task: asyncio.Future[T]) -> None:
        self._slots.release()
        if not task.cancelled():
            task.exception()  # retrieved, because the caller may have been cancelled


class Guard:
    """Checks addresses. `allow` are the networks that the operator exempts (`net_allow_private`).

    An exempt network does not include this machine, link-local addresses and metadata services, because an operator who
    exempts `10.0.0.0/8` does not mean the server's own address in it. These are exempt only if an entry is a single
    address or lies in the loopback network. The ports of the server itself (`own_ports`) are never exempt on this
    machine. `resolve` replaces the resolver of the system.
    """

    def __init__(
        self, allow: Iterable[str] = (), *, resolve: Resolve | None = None, own_ports: Iterable[int] = ()
    ) -> None:
        self._allow = tuple(ip_network(each, strict=False) for each in allow)
        self._resolve = resolve or _look_up
        self._own_ports = set(own_ports)

    def add_own_port(self, port: int) -> None:
        """Add a port on which the server listens and that is known only after the start."""
        self._own_ports.add(port)

    async def find(self, host: str, port: int, *, lookups: Lookups | None = None) -> list[Address]:
        """Return the checked addresses of a host. Raise `Blocked`, or `Unreachable` if there are none."""
        try:
            if is_literal(host):
                texts = [host]
            else:
                asking = self._resolve(host, port)
                texts = list(dict.fromkeys(await (asking if lookups is None else lookups.wait(asking))))
            found = [ip_address(text) for text in texts]
        except (OSError, UnicodeError, ValueError) as error:
            # A name that cannot be encoded counts as unknown.
            raise Unreachable("its name is not known") from error
        for address in found:
            if self.is_blocked(address, port):
                raise Blocked(host, address)
        if not found:
            raise Unreachable("its name has no address")
        return found[:MAX_ADDRESSES]

    async def connect(
        self, host: str, port: int, *, seconds: float = CONNECT_SECONDS, lookups: Lookups | None = None
    ) -> socket.socket:
        """Connect to a checked address of the host. Raise `Blocked` or `Unreachable`."""
        why = "it did not answer in time"
        try:
            async with asyncio.timeout(seconds):
                for address in await self.find(host, port, lookups=lookups):
                    try:
                        async with asyncio.timeout(ATTEMPT_SECONDS):
                            return await _dial(address, port)
                    except TimeoutError:
                        why = "it did not answer in time"
                    except OSError as error:
                        # The text of the error number is used, because the event loop's text contains the address.
                        why = os.strerror(error.errno).lower() if error.errno else "it cannot be reached"
        except TimeoutError:
            pass
        raise Unreachable(why)

    def is_blocked(self, address: Address, port: int | None = None) -> bool:
        inner = _unwrapped(address)
        if not self._is_exempt(address, inner):
            return _is_special(inner) or is_own(inner)
        return port in self._own_ports and _is_this_machine(inner)

    def _is_exempt(self, address: Address, inner: Address) -> bool:
        if _is_this_machine(inner) or _is_in(inner, _METADATA):
            return any(inner in network and _names_machines(network) for network in self._allow)
        return any(each in network for network in self._allow for each in (address, inner))


def is_literal(host: str) -> bool:
    """Return whether this is an address and not a name. IPv6 addresses with a zone are not accepted."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def _names_machines(network: IPv4Network | IPv6Network) -> bool:
    """Return whether the network is a single address, or lies in the loopback network."""
    return network.num_addresses == 1 or (network.version == 4 and network.subnet_of(_LOOPBACK_V4))


def _is_this_machine(address: Address) -> bool:
    return _is_in(address, _LOOPBACK) or _is_in(address, _UNSPECIFIED) or is_own(address)


def _is_in(address: Address, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address contains; else the address itself."""
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
    if _is_in(address, _METADATA):
        return True
    if isinstance(address, IPv4Address):
        return _is_in(address, _BLOCKED_V4)
    return address not in _GLOBAL_V6 or _is_in(address, _BLOCKED_V6)


def is_own(address: Address) -> bool:
    """Return whether an address belongs to this machine.

    Connections to it reach every listening port, even those that a firewall blocks from outside.
    """
    return not _binds_anywhere() and _binds(address)


@cache
def _binds_anywhere() -> bool:
    """Return whether programs can bind to addresses that the machine does not have."""
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
    # Separate threads, so that slow name servers do not delay other work in threads.
    return ThreadPoolExecutor(RESOLVER_THREADS, "resolver")


async def _look_up(host: str, port: int) -> Iterable[str]:
    def ask() -> list[str]:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

    return await asyncio.get_running_loop().run_in_executor(_resolvers(), ask)
