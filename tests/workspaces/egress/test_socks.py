"""SOCKS 5 at the socket of a workspace: what is parsed, what is refused, and that hostile input gets no further."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.runtime.address_guard import Guard, Lookups
from rookery.workspaces.egress import hosts, socks
from rookery.workspaces.egress.byte_relay import Broken, ByteStream
from rookery.workspaces.egress.policy import Policy
from rookery.workspaces.egress.proxy import EgressStats, Proxy, Timeouts
from rookery.workspaces.egress.requests import Refusal, Request
from tests.workspaces.egress.outside_servers import HERE
from tests.workspaces.egress.test_proxy import QUICK, Rig, everything, rig

__all__ = ["rig"]

HELLO, WELCOME, UNWILLING = b"\x05\x01\x00", b"\x05\x00", b"\x05\xff"
BOUND = b"\x00\x01" + bytes(6)


def connect(host: str | bytes, port: int, *, command: int = 1, reserved: int = 0, kind: int | None = None) -> bytes:
    """Return a request with the matching address type."""
    if isinstance(host, bytes):
        place, found = bytes((len(host),)) + host, 3
    else:
        place, found = ip_address(host).packed, 1 if ip_address(host).version == 4 else 4
    return bytes((5, command, reserved, kind or found)) + place + port.to_bytes(2, "big")


def reply(code: int) -> bytes:
    return bytes((5, code)) + BOUND


@pytest.mark.parametrize("pieces", ["at once", "step by step", "byte by byte"])
@pytest.mark.parametrize("host", [b"listed.test", b"LISTED.test.", HERE, b"127.0.0.1", "::ffff:127.0.0.1"])
async def test_tunnel_is_made_to_names_and_to_public_addresses(
    rig: Rig, host: str | bytes, pieces: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig.is_public = True
    port = await rig.out.web()
    client = await rig.connect()
    asked = HELLO + connect(host, port) + b"GET /x HTTP/1.1\r\n\r\n"

    with caplog.at_level(logging.INFO, "rookery.workspaces.egress"):
        if pieces == "step by step":
            await client.write(HELLO)
            assert await client.read_exactly(2) == WELCOME
            await client.write(asked[len(HELLO) :])
        elif pieces == "at once":
            await client.write(asked)
        else:
            for number in range(len(asked)):
                await client.write(asked[number : number + 1])
                await asyncio.sleep(0)
        answer = await everything(client)
        client.abort()
        await asyncio.wait(rig.tasks)

    answer = answer if pieces == "step by step" else answer.removeprefix(WELCOME)
    assert answer.startswith(reply(0) + b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"hello from outside")
    assert rig.out.heard == [b"GET /x HTTP/1.1\r\n\r\n"]
    assert rig.stats.requests == {"allowed": 1}
    assert rig.stats.bytes["sent"] == len(rig.out.heard[0])
    (line,) = [record for record in caplog.records if record.message == "egress"]
    assert {"method": "CONNECT", "protocol": "socks5", "port": port, "decision": "allowed"}.items() <= vars(line)[
        "fields"
    ].items()


@pytest.mark.parametrize(
    ("asked", "code", "decision"),
    [
        (connect(b"other.test", 443), 2, "not_listed"),
        (connect(b"listed.test", 22), 2, "not_listed"),
        (connect("127.0.0.1", 443), 2, "not_listed"),
        (connect(b"127.0.0.1", 443), 2, "not_listed"),
        (connect("2001:db8::1", 443), 2, "not_listed"),
        (connect(b"inside.test", 443), 2, "blocked_address"),
        (connect(b"unknown.test", 443), 4, "unreachable"),
        (connect(b"listed.test", 443, command=2), 7, "malformed"),
        (connect(b"listed.test", 443, command=3), 7, "malformed"),
        (connect(b"listed.test", 443, command=0), 7, "malformed"),
        (connect(b"listed.test", 443, kind=2), 8, "malformed"),
        (connect(b"listed.test", 443, kind=255), 8, "malformed"),
        (connect(b"listed.test", 443, reserved=1), 1, "malformed"),
        (connect(b"listed.test", 0), 1, "malformed"),
        (connect(b"", 443), 1, "malformed"),
        (connect(b"a b", 443), 1, "malformed"),
        (connect(b"a\0b", 443), 1, "malformed"),
        (connect(b"a/../b", 443), 1, "malformed"),
        (connect(b"\xff\xfe", 443), 1, "malformed"),
        (connect(b"x" * 255, 443), 1, "malformed"),
        (connect(b"127.1", 443), 1, "malformed"),
        (connect(b"0x7f000001", 443), 1, "malformed"),
        (connect(b"fe80::1%lo", 443), 1, "malformed"),
        (b"\x04" + connect(b"listed.test", 443)[1:], 1, "malformed"),
    ],
)
async def test_refusal_has_its_reply_code_and_is_counted(rig: Rig, asked: bytes, code: int, decision: str) -> None:
    rig.hosts = ("listed.test", "inside.test", "unknown.test")
    rig.names.set("inside.test", ["10.0.0.1"])

    assert await rig.ask(HELLO + asked) == WELCOME + reply(code)
    assert rig.stats.requests == {decision: 1}
    assert "listed.test" not in rig.names.asked


@pytest.mark.parametrize("hello", [b"\x05\x00", b"\x05\x01\x02", b"\x05\x02\x01\x02", b"\x05\xff" + b"\x80" * 255])
async def test_client_that_wants_to_say_who_it_is_is_refused(rig: Rig, hello: bytes) -> None:
    assert await rig.ask(hello + connect(b"listed.test", 443)) == UNWILLING
    assert rig.stats.requests == {"malformed": 1}


@pytest.mark.parametrize("said", [b"\x05", b"\x05\xff\x01", HELLO, HELLO + connect(b"listed.test", 443)[:-1]])
async def test_half_a_request_is_not_waited_for_without_end(rig: Rig, said: bytes) -> None:
    rig.times = QUICK

    answer = await rig.ask(said)
    ended = await rig.ask(said, close_sending=True)

    greeted = said.startswith(HELLO)
    assert answer == ended == (WELCOME + reply(1) if greeted else UNWILLING)
    assert rig.stats.requests == {"malformed": 2}


async def test_addresses_that_are_not_public_are_refused_in_every_form(rig: Rig) -> None:
    rig.is_public = True
    port = await rig.out.web(host="127.0.0.2")
    private = ["127.0.0.2", "0.0.0.0", "10.0.0.1", "169.254.169.254", "168.63.129.16", "100.100.100.200", "::1", "::"]
    private += ["::ffff:127.0.0.2", "64:ff9b::7f00:2", "2002:7f00:2::", "fd00:ec2::254", "fe80::1", "224.0.0.1"]

    for address in private:
        assert await rig.ask(HELLO + connect(address, port)) == WELCOME + reply(2), address
    assert rig.stats.requests == {"blocked_address": len(private)}
    assert rig.out.heard == []


ADDRESSES = st.ip_addresses().map(str)
LABELS = st.from_regex(r"\A[a-zA-Z0-9]([a-zA-Z0-9-]{0,10}[a-zA-Z0-9])?\Z")
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join).filter(lambda name: not hosts.is_address(name.lower()))


async def _parsed(data: bytes, cuts: Sequence[int]) -> Request | str:
    """Return the result of these bytes when they arrive in these pieces and then end."""
    near, far = socket.socketpair(socket.AF_UNIX)
    client, served = await ByteStream.from_socket(near), await ByteStream.from_socket(far)

    async def send() -> None:
        at = 0
        for cut in sorted({min(cut, len(data)) for cut in cuts} | {len(data)}):
            with contextlib.suppress(OSError):
                await client.write(data[at:cut])
            at = cut
            await asyncio.sleep(0)
        client.close_sending()

    sending = asyncio.create_task(send())
    try:
        await socks.negotiate(served)
        return await socks.read_request(served)
    except Refusal as refusal:
        return refusal.decision
    except Broken:
        return "broken"
    finally:
        await sending
        client.abort()
        served.abort()


@given(
    host=st.one_of(ADDRESSES, NAMES.map(str.encode)),
    port=st.integers(1, 65_535),
    methods=st.binary(max_size=254),
    cuts=st.lists(st.integers(0, 600), max_size=8),
)
def test_every_sound_request_is_understood_however_it_is_cut(
    host: str | bytes, port: int, methods: bytes, cuts: list[int]
) -> None:
    hello = bytes((5, len(methods) + 1)) + methods + b"\0"

    found = asyncio.run(_parsed(hello + connect(host, port), cuts))

    assert isinstance(found, Request)
    assert (found.port, found.method, found.protocol) == (port, "CONNECT", "socks5")
    assert found.host == (host.decode().lower() if isinstance(host, bytes) else str(ip_address(host)))


@given(
    data=st.one_of(
        st.binary(max_size=600).map(lambda rest: b"\x05" + rest),
        st.binary(max_size=300).map(lambda rest: HELLO + b"\x05\x01\x00" + rest),
        st.binary(max_size=255).map(lambda name: HELLO + connect(name, 443)),
    ),
    cuts=st.lists(st.integers(0, 600), max_size=6),
)
def test_noise_comes_to_a_refusal_or_to_a_host_that_can_be_checked(data: bytes, cuts: list[int]) -> None:
    found, whole = asyncio.run(_parsed(data, cuts)), asyncio.run(_parsed(data, []))

    assert found == whole
    if isinstance(found, Request):
        assert 1 <= found.port <= 65_535
        assert hosts.canonical_address(found.host) == found.host or hosts.canonical_name(found.host) == found.host
    else:
        assert found in ("malformed", "broken")


@given(data=st.binary(min_size=1, max_size=400), first=st.sampled_from([b"\x05", b"\x04", b"", b"C", b"\x00"]))
def test_no_noise_reaches_anybody_or_is_left_unanswered(data: bytes, first: bytes) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["10.0.0.1"]

    async def serve() -> None:
        near, far = socket.socketpair(socket.AF_UNIX)
        client, served = await ByteStream.from_socket(near), await ByteStream.from_socket(far)
        proxy = Proxy(Guard(resolve=resolve), EgressStats(), Timeouts(head=5, linger=1))
        await client.write(first + data)
        client.close_sending()
        async with asyncio.timeout(20):
            # Only listed hosts, and none of them: every valid request is refused before a host is contacted.
            await proxy.serve(served, "w", Policy(1, ("only.test:1",)), lookups=Lookups(1))
        served.abort()
        client.abort()

    asyncio.run(serve())

    assert asked in ([], ["only.test"])
