"""The address guard: blocked addresses, and that connections use only checked addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator
from ipaddress import ip_address

import pytest

from rookery.runtime import address_guard
from rookery.runtime.address_guard import Blocked, Guard, Unreachable

PUBLIC = "93.184.215.14"


def answers(*given: Iterable[str]) -> address_guard.Resolve:
    """Return a resolver that gives each answer once and repeats the last one."""
    left = [list(each) for each in given]

    async def resolve(host: str, port: int) -> list[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server that listens on two addresses of the machine."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)):
            yield port


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
        *("224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.88.99.1"),
        *("::", "::1", "fe80::1", "fe80::1%lo", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "100::1", "2001:db8::1"),
        *("2001::1", "2001:2::1", "3fff::1", "64:ff9b:1::1", "5f00::1"),
        # IPv4 addresses inside IPv6 addresses: mapped, compatible, NAT64, 6to4.
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::a00:1"),
        *("2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:101::"),
        # Metadata services of clouds, also those with public addresses.
        *("168.63.129.16", "::ffff:168.63.129.16", "192.80.8.124", "100.100.100.200", "192.0.0.192", "169.254.170.2"),
        *("169.254.42.42", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fd00:c1::a9fe:a9fe"),
    ],
)
def test_special_addresses_are_blocked(address: str) -> None:
    assert Guard().is_blocked(ip_address(address))


@pytest.mark.parametrize(
    "address", [PUBLIC, "1.1.1.1", "172.32.0.1", "2606:4700:4700::1111", f"::ffff:{PUBLIC}", f"64:ff9b::{PUBLIC}"]
)
def test_public_addresses_are_not_blocked(address: str) -> None:
    assert not Guard().is_blocked(ip_address(address))


def test_operators_exempt_networks_in_every_form_of_their_addresses() -> None:
    exempt = Guard(["10.1.0.0/16", "fd00::/8"])

    free = ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00::1"]
    assert [each for each in free if exempt.is_blocked(ip_address(each))] == []
    assert exempt.is_blocked(ip_address("10.2.0.1"))
    assert exempt.is_blocked(ip_address("127.0.0.1"))


WIDE = ("0.0.0.0/0", "::/0", "0.0.0.0/1", "100.64.0.0/10", "169.254.0.0/16", "fd00::/8", "::/1")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.0.0.2", "::ffff:127.0.0.1", "::1", "0.0.0.0", "::", "169.254.169.254", "fe80::1"),
        *("168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"),
    ],
)
def test_wide_exemption_does_not_include_this_machine_or_the_metadata_of_clouds(address: str) -> None:
    assert Guard(WIDE).is_blocked(ip_address(address))
    # An entry with a single address is always intended.
    assert not Guard([f"{_plain(address)}/{ip_address(_plain(address)).max_prefixlen}"]).is_blocked(ip_address(address))


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")


def test_exemption_that_holds_an_address_of_this_machine_does_not_include_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_guard, "is_own", lambda address: str(address) == "10.1.2.3")

    exempt = Guard(["10.0.0.0/8"])

    assert exempt.is_blocked(ip_address("10.1.2.3"))
    assert not exempt.is_blocked(ip_address("10.1.2.4"))
    assert not Guard(["10.1.2.3/32"]).is_blocked(ip_address("10.1.2.3"))


def test_networks_within_the_loopback_are_meant_when_they_are_named() -> None:
    exempt = Guard(["127.0.0.0/24"])

    assert not exempt.is_blocked(ip_address("127.0.0.9"))
    assert exempt.is_blocked(ip_address("127.0.1.9"))


async def test_ports_of_the_server_itself_are_never_exempt() -> None:
    exempt = Guard(["127.0.0.0/8", "::1/128", "10.0.0.0/8"], resolve=answers(["127.0.0.1"]), own_ports=[7117])
    exempt.add_own_port(7118)

    for port in (7117, 7118):
        for host in ("here.test", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
            with pytest.raises(Blocked):
                await exempt.find(host, port)
    assert await exempt.find("here.test", 8081) == [ip_address("127.0.0.1")]
    assert await exempt.find("10.1.2.3", 7117) == [ip_address("10.1.2.3")]  # an address of another machine


async def test_addresses_are_not_looked_up() -> None:
    asked = answers(["10.0.0.1"])

    assert await Guard(resolve=asked).find(PUBLIC, 80) == [ip_address(PUBLIC)]
    assert await Guard(resolve=asked).find("2606:4700::1111", 80) == [ip_address("2606:4700::1111")]
    with pytest.raises(Blocked):
        await Guard(resolve=asked).find("192.168.0.1", 80)


def test_public_address_of_this_machine_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_guard, "_BLOCKED_V4", ())

    # Without the table of special networks, only the check for the machine's own addresses is left.
    assert Guard().is_blocked(ip_address("127.0.0.1"))
    assert not Guard().is_blocked(ip_address(PUBLIC))


async def test_one_blocked_address_among_public_ones_is_enough() -> None:
    with pytest.raises(Blocked) as caught:
        await Guard(resolve=answers([PUBLIC, "10.0.0.1"])).find("half.test", 443)

    assert str(caught.value.address) == "10.0.0.1"


async def test_connection_goes_to_the_address_that_was_looked_at(server: int) -> None:
    rebinding = Guard(["127.0.0.1/32"], resolve=answers(["127.0.0.1"], ["127.0.0.2"]))

    made = await rebinding.connect("rebinds.test", server)

    assert made.getpeername()[0] == "127.0.0.1"
    made.close()
    with pytest.raises(Blocked):
        await rebinding.connect("rebinds.test", server)


async def test_next_address_is_tried_when_the_first_does_not_answer(server: int) -> None:
    allowing = Guard(["127.0.0.0/8"], resolve=answers(["127.0.0.3", "127.0.0.2"]))

    made = await allowing.connect("two.test", server)

    assert made.getpeername()[0] == "127.0.0.2"
    made.close()


async def test_unreachable_host_is_reported_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    allowing = Guard(["127.0.0.0/8"], resolve=answers(["127.0.0.1"]))

    with pytest.raises(Unreachable, match="refused"):
        await allowing.connect("closed.test", port)
    with pytest.raises(Unreachable, match="no address"):
        await Guard(resolve=answers([])).connect("empty.test", 80)


async def test_resolver_that_takes_too_long_is_given_up() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(Unreachable, match="in time"):
        await Guard(resolve=never).connect("slow.test", 80, seconds=0.05)


@pytest.mark.parametrize("name", ["no-such-name.invalid", "a..b", "x" * 300])
async def test_name_that_the_system_does_not_know_is_unreachable(name: str) -> None:
    with pytest.raises(Unreachable, match="not known"):
        await Guard().find(name, 80)


async def test_names_of_this_machine_are_blocked_as_the_system_resolves_them() -> None:
    with pytest.raises(Blocked):
        await Guard().find("localhost", 80)
    with pytest.raises(Blocked):
        await Guard().find("127.1", 80)
