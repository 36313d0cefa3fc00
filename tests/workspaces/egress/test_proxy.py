"""One connection of a workspace through the proxy, with real sockets on both sides."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.runtime.address_guard import Lookups
from rookery.workspaces.egress.byte_relay import ByteStream
from rookery.workspaces.egress.policy import Policy
from rookery.workspaces.egress.proxy import EgressStats, Proxy, Timeouts
from tests.eventually import until
from tests.workspaces.egress.outside_servers import HERE, Names, Outside, outside

MEBIBYTE = 1024 * 1024
QUICK = Timeouts(head=0.3, connect=2.0, idle=0.5, half=0.3, linger=0.3)


class Rig:
    """A proxy with an outside. Each connection is one end of a socket pair, whose other end the proxy serves."""

    def __init__(self, out: Outside) -> None:
        self.out = out
        self.names = Names()
        self.names.set("listed.test", [HERE])
        self.stats = EgressStats()
        self.times = Timeouts(linger=0.5)
        self.hosts: tuple[str, ...] = ()
        self.allow: tuple[str, ...] = ()
        self.is_public = False
        self.lookups = Lookups(3)
        self.tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> ByteStream:
        near, far = socket.socketpair(socket.AF_UNIX)
        for each in (near, far):
            each.setblocking(False)
        proxy = Proxy(self.names.guard(*self.allow), self.stats, self.times)
        served = await ByteStream.from_socket(far)

        async def serve() -> None:
            try:
                policy = Policy(1, self.hosts, is_public=self.is_public)
                await proxy.serve(served, "w1", policy, lookups=self.lookups)
            finally:
                served.abort()

        self.tasks.append(asyncio.create_task(serve()))
        return await ByteStream.from_socket(near)

    async def ask(self, request: bytes, *, close_sending: bool = False) -> bytes:
        """Return everything that comes back."""
        client = await self.connect()
        try:
            await client.write(request)
            if close_sending:
                client.close_sending()
            return await everything(client)
        finally:
            client.abort()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def everything(client: ByteStream) -> bytes:
    found = b""
    async with asyncio.timeout(30):
        while data := await client.read():
            found += data
    return found


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with outside(tmp_path) as out:
        made = Rig(out)
        try:
            yield made
        finally:
            await made.close()


async def test_plain_request_reaches_the_listed_host(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    port = await rig.out.web()
    rig.hosts = (f"listed.test:{port}",)

    with caplog.at_level(logging.INFO, "rookery.workspaces.egress"):
        answer = await rig.ask(f"GET http://LISTED.test:{port}/x HTTP/1.1\r\nHost: other.test\r\n\r\n".encode())
        await asyncio.wait(rig.tasks)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"Connection: close\r\n\r\nhello from outside")
    assert rig.out.heard == [f"GET /x HTTP/1.1\r\nHost: listed.test:{port}\r\nConnection: close\r\n\r\n".encode()]
    assert rig.stats.requests == {"allowed": 1}
    assert rig.stats.bytes == {"received": len("hello from outside")}
    (line,) = [record for record in caplog.records if record.message == "egress"]
    assert {"host": "listed.test", "port": port, "received": 18, "sent": 0, "status": 200}.items() <= vars(line)[
        "fields"
    ].items()


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("other.test", "other.test is not one of the hosts"),
        ("listed.test:1", "allowed on other ports than 1"),
        ("listed.test.other.test", "is not one of the hosts"),
        ("127.0.0.1", "is an address"),
        ("[::1]", "is an address"),
        ("localhost", "is not one of the hosts"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "CONNECT"])
async def test_other_hosts_are_refused_with_what_is_allowed(rig: Rig, method: str, host: str, why: str) -> None:
    rig.hosts = ("listed.test", "*.wide.test:8443")
    port = "" if host == "listed.test:1" else ":80"
    target = f"http://{host}/" if method == "GET" else f"{host}{port}"

    answer = (await rig.ask(f"{method} {target} HTTP/1.1\r\n\r\n".encode())).decode()

    assert answer.startswith("HTTP/1.1 403 ")
    assert why in answer
    assert "Allowed: listed.test, *.wide.test:8443; ports 80 and 443 unless another is named." in answer
    assert "X-Rookery-Egress: not_listed" in answer
    assert rig.names.asked == []  # not even its name


@pytest.mark.parametrize(
    "addresses", [["127.0.0.2"], ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["::ffff:127.0.0.2"], [HERE, "10.0.0.1"]]
)
async def test_listed_name_that_leads_into_a_private_network_is_refused(rig: Rig, addresses: list[str]) -> None:
    port = await rig.out.web(host="127.0.0.2")
    rig.hosts = (f"inside.test:{port}",)
    rig.names.set("inside.test", addresses)

    answer = (await rig.ask(f"CONNECT inside.test:{port} HTTP/1.1\r\n\r\n".encode())).decode()

    assert answer.startswith("HTTP/1.1 403 inside.test leads to a private address")
    assert "net_allow_private" in answer
    assert not any(address in answer for address in addresses)
    assert rig.out.heard == []
    assert rig.stats.requests == {"blocked_address": 1}


async def test_name_that_rebinds_is_resolved_once(rig: Rig) -> None:
    port, inside = await rig.out.web("public"), await rig.out.web("inside", host="127.0.0.2")
    rig.hosts = (f"rebinds.test:{port}", f"rebinds.test:{inside}")
    rig.names.set("rebinds.test", [HERE], ["127.0.0.2"])

    first = await rig.ask(f"GET http://rebinds.test:{port}/ HTTP/1.1\r\n\r\n".encode())
    second = await rig.ask(f"GET http://rebinds.test:{inside}/ HTTP/1.1\r\n\r\n".encode())

    assert first.endswith(b"public")
    assert second.startswith(b"HTTP/1.1 403 ")
    assert rig.names.asked == ["rebinds.test", "rebinds.test"]


async def test_host_that_does_not_answer_is_told(rig: Rig) -> None:
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
    rig.hosts = (f"listed.test:{port}", "unknown.test")

    closed = (await rig.ask(f"CONNECT listed.test:{port} HTTP/1.1\r\n\r\n".encode())).decode()
    unknown = (await rig.ask(b"GET http://unknown.test/ HTTP/1.1\r\n\r\n")).decode()

    assert closed.startswith("HTTP/1.1 502 listed.test cannot be reached")
    assert "connection refused" in closed
    assert "its name is not known" in unknown
    assert rig.stats.requests == {"unreachable": 2}


@pytest.mark.parametrize(
    ("request_bytes", "status", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, "This server is a proxy"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "first line"),
        (b"GET http://listed.test/ HTTP/1.1\nHost: x\n\n", 400, "CR LF"),
        (b"GET http://listed.test/ HTTP/1.1\r\nA: b\nC: d\r\n\r\n", 400, "one of its headers"),
        (
            b"GET http://listed.test/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "the end of its body is ambiguous",
        ),
        (b"GET http://listed.test/ HTTP/1.1\r\nX: " + b"y" * 40_000, 431, "at most 32768 bytes"),
        (b"X" * 40_000, 431, "at most 32768 bytes"),
    ],
)
async def test_request_that_cannot_be_understood_is_answered_with_the_reason(
    rig: Rig, request_bytes: bytes, status: int, why: str
) -> None:
    rig.hosts = ("listed.test",)

    answer = (await rig.ask(request_bytes)).decode()

    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert why in answer
    assert rig.stats.requests == {"malformed": 1}
    assert rig.names.asked == []


async def test_half_a_request_is_not_waited_for_without_end(rig: Rig) -> None:
    rig.times = QUICK

    assert (await rig.ask(b"GET http://listed.test/ HTTP/1.1\r\nX: ")).startswith(b"HTTP/1.1 408 ")
    assert (await rig.ask(b"GET http://listed.test/ HTTP/1.1\r\nX: ", close_sending=True)).startswith(b"HTTP/1.1 400 ")
    assert await rig.ask(b"", close_sending=True) == b""


async def test_second_request_on_a_connection_is_not_forwarded(rig: Rig) -> None:
    port = await rig.out.web()
    rig.hosts = (f"listed.test:{port}",)
    one = f"GET http://listed.test:{port}/one HTTP/1.1\r\n\r\n".encode()
    hidden = f"GET http://listed.test:{port}/two HTTP/1.1\r\n\r\nGET /three HTTP/1.1\r\nHost: inner\r\n\r\n".encode()

    answer = await rig.ask(one + hidden)

    assert answer.count(b"HTTP/1.1 ") == 1
    assert [heard.split(b" ")[1] for heard in rig.out.heard] == [b"/one"]
    assert b"two" not in rig.out.heard[0]
    assert b"three" not in rig.out.heard[0]


async def test_body_is_sent_as_long_as_it_says(rig: Rig) -> None:
    port = await rig.out.web()
    rig.hosts = (f"listed.test:{port}",)
    post = f"POST http://listed.test:{port}/ HTTP/1.1\r\n".encode()

    await rig.ask(post + b"Content-Length: 5\r\n\r\nhelloGET /x HTTP/1.1\r\n\r\n")
    await rig.ask(
        post + b"Transfer-Encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n0A\r\n" + b"0" * 10 + b"\r\n0\r\nT: x\r\n\r\n"
    )

    bodies = [heard.partition(b"\r\n\r\n")[2] for heard in rig.out.heard]
    assert bodies == [b"hello", b"5\r\nhello\r\na\r\n" + b"0" * 10 + b"\r\n0\r\n\r\n"]
    assert rig.stats.bytes["sent"] == 20


@pytest.mark.parametrize(
    "body", [b"zz\r\n", b"5\r\nhelloworld\r\n0\r\n\r\n", b"-1\r\n\r\n", b"1" * 20 + b"\r\n", b"5\r\nhe"]
)
async def test_body_that_is_framed_wrongly_is_cut_off(rig: Rig, body: bytes) -> None:
    whole = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.read(-1)).endswith(b"0\r\n\r\n"):
            whole.set()

    port = await rig.out.serve(hear)
    rig.hosts = (f"listed.test:{port}",)
    head = f"POST http://listed.test:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()

    answer = await rig.ask(head + body, close_sending=True)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"its body does not have the announced length" in answer
    assert not whole.is_set()


async def test_answer_may_come_before_the_body_is_sent(rig: Rig) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()

    port = await rig.out.serve(refuse)
    rig.hosts = (f"listed.test:{port}",)

    answer = await rig.ask(f"PUT http://listed.test:{port}/ HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n".encode())

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"no")


async def test_client_that_asks_first_is_told_to_go_on(rig: Rig) -> None:
    async def go_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(3)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body)

    port = await rig.out.serve(go_on)
    rig.hosts = (f"listed.test:{port}",)
    client = await rig.connect()
    head = f"PUT http://listed.test:{port}/ HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"

    await client.write(head.encode())
    interim = await client.read_head(1000)
    await client.write(b"abc")
    answer = await everything(client)
    client.abort()

    assert interim == b"HTTP/1.1 100 Continue"
    assert answer.endswith(b"abc")


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000]
)
async def test_host_that_does_not_speak_http_is_told_as_that(rig: Rig, said: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)

    port = await rig.out.serve(talk)
    rig.hosts = (f"listed.test:{port}",)

    answer = await rig.ask(f"GET http://listed.test:{port}/ HTTP/1.1\r\n\r\n".encode())

    assert answer.startswith(b"HTTP/1.1 502 listed.test did not respond")


async def test_tunnel_carries_bytes_both_ways_and_ends_with_its_ends(rig: Rig) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write(b"bye")

    port = await rig.out.serve(echo)
    rig.hosts = (f"listed.test:{port}",)
    client = await rig.connect()

    await client.write(f"CONNECT listed.test:{port} HTTP/1.1\r\n\r\nearly ".encode())
    head = await client.read_head(1000)
    sending = asyncio.create_task(client.write(b"x" * (3 * MEBIBYTE)))
    await sending
    client.close_sending()
    back = await everything(client)
    client.abort()
    await asyncio.wait(rig.tasks)

    assert head == b"HTTP/1.1 200 Connection established"
    assert back == b"early " + b"x" * (3 * MEBIBYTE) + b"bye"
    assert rig.stats.bytes == {"sent": 3 * MEBIBYTE + 6, "received": 3 * MEBIBYTE + 9}


async def test_large_answer_arrives_whole_at_a_reader_that_is_late(rig: Rig) -> None:
    size = 2 * MEBIBYTE

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        writer.write(b"z" * size)
        await writer.drain()

    port = await rig.out.serve(flood)
    rig.hosts = (f"listed.test:{port}",)
    client = await rig.connect()

    await client.write(f"GET http://listed.test:{port}/ HTTP/1.0\r\n\r\n".encode())
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: rig.stats.bytes["received"] > 0)
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    answer = await everything(client)
    client.abort()

    assert answer.count(b"z") == size


async def test_peer_that_never_reads_holds_little_memory_and_is_given_up(rig: Rig) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"z" * 65536)
            await writer.drain()
            sent += 65536

    port = await rig.out.serve(flood)
    rig.hosts = (f"listed.test:{port}",)
    rig.times = QUICK
    client = await rig.connect()
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]

    await client.write(f"GET http://listed.test:{port}/ HTTP/1.1\r\n\r\n".encode())
    await asyncio.wait(rig.tasks, timeout=30)
    client.abort()
    await until(lambda: rig.out.open == 0)

    assert all(task.done() for task in rig.tasks)
    # About what the kernel buffers between three sockets: without a limit it would be gigabytes by now.
    assert sent < 32 * MEBIBYTE
    assert rig.stats.bytes["received"] < 2 * MEBIBYTE


async def test_tunnel_on_which_nothing_moves_is_ended(rig: Rig) -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    port = await rig.out.serve(wait)
    rig.hosts = (f"listed.test:{port}",)
    rig.times = QUICK

    tunnel = await rig.ask(f"CONNECT listed.test:{port} HTTP/1.1\r\n\r\n".encode())
    plain = await rig.ask(f"GET http://listed.test:{port}/ HTTP/1.1\r\n\r\n".encode())

    assert tunnel.startswith(b"HTTP/1.1 200 ")
    assert plain.startswith(b"HTTP/1.1 502 listed.test did not respond")
    await until(lambda: rig.out.open == 0)


async def test_client_that_has_its_answer_and_leaves_is_not_kept_for_long(rig: Rig) -> None:
    async def stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read(-1)  # it was told that the connection ends, and does not close it

    port = await rig.out.serve(stay)
    rig.hosts = (f"listed.test:{port}",)
    rig.times = Timeouts(idle=3600, half=0.2, linger=0.2)
    client = await rig.connect()

    await client.write(f"GET http://listed.test:{port}/ HTTP/1.1\r\n\r\n".encode())
    head = await client.read_head(1000)
    client.abort()

    assert head.startswith(b"HTTP/1.1 200 OK")
    await until(lambda: rig.out.open == 0)
    await until(lambda: all(task.done() for task in rig.tasks))


async def test_tunnel_in_use_outlives_the_time_of_an_idle_one(rig: Rig) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(10):
            writer.write(data)

    port = await rig.out.serve(echo)
    rig.hosts = (f"listed.test:{port}",)
    rig.times = QUICK
    client = await rig.connect()
    await client.write(f"CONNECT listed.test:{port} HTTP/1.1\r\n\r\n".encode())
    await client.read_head(1000)
    loop = asyncio.get_running_loop()
    began = loop.time()

    for tick in range(1, 6):
        await until(lambda tick=tick: loop.time() > began + tick * QUICK.idle / 2)  # type: ignore[misc]
        await client.write(b".")
        assert await client.read() == b"."

    client.abort()


async def test_every_public_host_and_port_is_reached_where_the_network_is_public(rig: Rig) -> None:
    rig.is_public = True
    port = await rig.out.web()
    rig.names.set("any.test", [HERE])

    for place in (f"any.test:{port}", f"listed.test:{port}", f"{HERE}:{port}", f"[::ffff:{HERE}]:{port}"):
        assert (await rig.ask(f"GET http://{place}/ HTTP/1.1\r\n\r\n".encode())).endswith(b"hello from outside"), place
    assert rig.names.asked == ["any.test", "listed.test"]  # an address needs no lookup
    assert rig.stats.requests == {"allowed": 4}


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.2", "0.0.0.0", "10.1.2.3", "192.168.0.1", "169.254.169.254", "168.63.129.16", "100.100.100.200"),
        *("[::1]", "[::]", "[::ffff:127.0.0.2]", "[fd00:ec2::254]", "[fe80::1]", "inside.test", "half.test"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "CONNECT"])
async def test_addresses_that_are_not_public_are_refused_with_the_network_public(
    rig: Rig, method: str, host: str
) -> None:
    rig.is_public = True
    port = await rig.out.web(host="127.0.0.2")
    rig.names.set("inside.test", ["127.0.0.2"])
    rig.names.set("half.test", [HERE, "10.0.0.1"])
    target = f"http://{host}:{port}/" if method == "GET" else f"{host}:{port}"

    answer = (await rig.ask(f"{method} {target} HTTP/1.1\r\n\r\n".encode())).decode()

    assert answer.startswith("HTTP/1.1 403 ")
    assert "X-Rookery-Egress: blocked_address" in answer
    assert rig.out.heard == []


async def test_slow_name_lookups_delay_only_their_own_workspace(rig: Rig) -> None:
    rig.is_public = True
    rig.times = Timeouts(connect=0.3, linger=0.3)
    port = await rig.out.web()
    asked, answers = rig.names.asked, asyncio.Event()

    async def slow(host: str, port: int) -> list[str]:
        asked.append(host)
        if host.startswith("slow"):
            await answers.wait()
        return [HERE]

    rig.names.resolve = slow
    mine = [asyncio.create_task(rig.ask(f"CONNECT slow{n}.test:1 HTTP/1.1\r\n\r\n".encode())) for n in range(12)]
    await asyncio.gather(*mine)
    late = await rig.ask(f"GET http://listed.test:{port}/ HTTP/1.1\r\n\r\n".encode())
    rig.lookups = Lookups(3)  # another workspace's
    theirs = await rig.ask(f"GET http://listed.test:{port}/ HTTP/1.1\r\n\r\n".encode())

    # The three requests have ended, but their threads are still busy.
    assert asked == ["slow0.test", "slow1.test", "slow2.test", "listed.test"]
    assert b"did not answer in time" in late
    assert theirs.endswith(b"hello from outside")
    answers.set()


async def test_head_that_comes_byte_by_byte_is_not_searched_again_and_again(rig: Rig) -> None:
    class Counted(bytearray):
        looked_at = 0

        def find(self, what: bytes, start: int = 0, close_sending: int = 0) -> int:  # type: ignore[override]
            Counted.looked_at += len(self) - start
            return super().find(what, start, close_sending)

    near, far = socket.socketpair(socket.AF_UNIX)
    client, served = await ByteStream.from_socket(near), await ByteStream.from_socket(far)
    served._unread = Counted()
    head = b"GET http://listed.test/ HTTP/1.1\r\nX: " + b"y" * 3000

    reading = asyncio.create_task(served.read_head(32_768))
    for number in range(len(head)):
        await client.write(head[number : number + 1])
        await asyncio.sleep(0)
    await client.write(b"\r\n\r\n")

    assert await reading == head
    assert Counted.looked_at < 10 * len(head)
    client.abort()
    served.abort()
