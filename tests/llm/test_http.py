"""The HTTP client over real sockets: faults of servers, and their effect on connections."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import traceback
from collections.abc import AsyncIterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rookery.llm.errors import TransportError, TransportFault
from rookery.llm.http import HttpClients, HttpStream, Tls
from tests.llm.raw_server import END, Connection, Handler, answer, answering, chunk, serving, stream_head

KEY = "sk-test-0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {KEY}", "content-type": "application/json"}


@pytest.fixture
async def clients() -> AsyncIterator[HttpClients]:
    clients = HttpClients(write_seconds=0.2)
    yield clients
    await clients.close()


async def post(clients: HttpClients, url: str, body: bytes = b"{}", tls: Tls = Tls()) -> HttpStream:  # noqa: B008
    return await clients.client(url, tls).open(url + "/v1/x", headers=HEADERS, body=body)


async def test_chunks_are_the_body_and_headers_are_lower_case(clients: HttpClients) -> None:
    head = stream_head(extra="Request-ID: req_1\r\nX-Two: a\r\nX-Two: b\r\n")

    async with serving(answering(head + chunk(b"one") + chunk(b"two") + END)) as server:
        stream = await post(clients, server.url)
        body = b"".join([piece async for piece in stream.chunks()])

    assert stream.status == 200
    assert body == b"onetwo"
    assert stream.headers["request-id"] == "req_1"
    assert stream.headers["x-two"] == "a, b"


async def test_connection_that_takes_too_long_is_given_up_after_the_time_that_was_set() -> None:
    clients = HttpClients(connect_seconds=0.1)
    greeted = asyncio.Event()

    async def handle(connection: Connection) -> None:
        greeted.set()
        await asyncio.Event().wait()  # never sends TLS data

    async with serving(handle) as server:
        with pytest.raises(TransportError, match=r"No connection within 0\.1 s\.") as refusal:
            await post(clients, server.url.replace("http:", "https:"))
        assert greeted.is_set()
    await clients.close()

    assert refusal.value.reason is TransportFault.CONNECT


async def test_request_is_a_post_with_exactly_our_headers_and_body(clients: HttpClients) -> None:
    seen = []

    async def handle(connection: Connection) -> None:
        seen.append(await connection.read_request())
        await connection.send(answer(b""))

    body = b"x" * 3_000_000
    async with serving(handle) as server:
        (await post(clients, server.url, body)).close()

    assert seen[0].line == "POST /v1/x HTTP/1.1"
    assert seen[0].body == body
    assert seen[0].headers["authorization"] == f"Bearer {KEY}"
    assert seen[0].headers["accept-encoding"] == "identity"
    assert "user-agent" not in seen[0].headers
    assert "cookie" not in seen[0].headers


async def test_read_takes_no_more_than_its_limit(clients: HttpClients) -> None:
    async with serving(answering(answer(b"x" * 1_000_000, status="500 Oops"))) as server:
        stream = await post(clients, server.url)
        body = await stream.read(64_000)
        stream.close()

    assert stream.status == 500
    assert body == b"x" * 64_000


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_redirects_are_not_followed(clients: HttpClients, status: str) -> None:
    async with serving(answering(answer(b"", status=status, extra="location: /elsewhere\r\n"))) as server:
        stream = await post(clients, server.url)
        stream.close()

        assert stream.status == int(status[:3])
        assert len(server.connections) == 1


async def test_cookies_are_not_kept(clients: HttpClients) -> None:
    seen = []

    async def handle(connection: Connection) -> None:
        while True:
            seen.append(await connection.read_request())
            await connection.send(answer(b"", extra="set-cookie: a=b; path=/\r\n"))

    async with serving(handle) as server:
        for _ in range(2):
            (await post(clients, server.url)).close()

    assert "cookie" not in seen[1].headers


async def test_connection_is_used_again_after_the_body_was_read(clients: HttpClients) -> None:
    async with serving(answering(answer(b"data"))) as server:
        for _ in range(3):
            stream = await post(clients, server.url)
            assert await stream.read(100) == b"data"
            stream.close()

        assert len(server.connections) == 1


async def test_connection_is_used_again_when_the_end_follows_what_was_read(clients: HttpClients) -> None:
    go_on = asyncio.Event()

    async def handle(connection: Connection) -> None:
        while True:
            await connection.read_request()
            await connection.send(stream_head() + chunk(b"last event"))
            await go_on.wait()
            await connection.send(END)

    async with serving(handle) as server:
        for _ in range(2):
            go_on.clear()
            stream = await post(clients, server.url)
            assert await anext(stream.chunks()) == b"last event"
            go_on.set()
            await stream.finish()

        assert len(server.connections) == 1


async def test_finish_closes_a_connection_that_does_not_end(clients: HttpClients) -> None:
    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + chunk(b"last event"))
        await connection.wait_until_lost()

    async with serving(handle) as server:
        stream = await post(clients, server.url)
        await anext(stream.chunks())
        await stream.finish()
        await asyncio.wait_for(server.connections[0].lost.wait(), 1)


async def test_close_after_the_end_does_not_break_the_next_request_on_the_connection(clients: HttpClients) -> None:
    async with serving(answering(stream_head() + chunk(b"all of it") + END)) as server:
        first = await post(clients, server.url)
        await anext(first.chunks())
        second = await post(clients, server.url)
        first.close()

        assert await second.read(100) == b"all of it"
        second.close()


async def stalls_before_headers(connection: Connection) -> None:
    await connection.read_request()
    await connection.wait_until_lost()


async def stalls_in_the_body(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(stream_head() + chunk(b"one"))
    await connection.wait_until_lost()


async def drain(clients: HttpClients, url: str, tls: Tls = Tls()) -> None:  # noqa: B008
    stream = await post(clients, url, tls=tls)
    try:
        async for _ in stream.chunks():
            pass
    finally:
        stream.close()


@pytest.mark.parametrize("handler", [stalls_before_headers, stalls_in_the_body])
async def test_cancelling_closes_the_socket_within_a_second(clients: HttpClients, handler: Handler) -> None:
    reached = asyncio.Event()

    async def handle(connection: Connection) -> None:
        reached.set()
        await handler(connection)

    async with serving(handle) as server:
        task = asyncio.create_task(drain(clients, server.url))
        await reached.wait()
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.connections[0].lost.wait(), 1)


async def test_cancelling_while_the_request_is_written_closes_the_socket() -> None:
    clients = HttpClients()
    reached = asyncio.Event()

    async def handle(connection: Connection) -> None:
        # The server reads only a little, so most of the request waits in the client.
        await connection.reader.readexactly(10)
        reached.set()
        await asyncio.Event().wait()

    body = b"x" * 50_000_000
    async with serving(handle) as server:
        task = asyncio.create_task(post(clients, server.url, body))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        # Data that the library has not passed to the socket is not sent any more.
        received = await asyncio.wait_for(server.connections[0].wait_until_lost(), 1)
        assert received < len(body)
    await clients.close()


async def test_request_that_is_not_taken_is_given_up(clients: HttpClients) -> None:
    async def handle(connection: Connection) -> None:
        await connection.reader.readexactly(10)
        await asyncio.Event().wait()

    async with serving(handle) as server:
        with pytest.raises(TransportError) as caught:
            await post(clients, server.url, b"x" * 50_000_000)

    assert caught.value.reason is TransportFault.WRITE


async def test_slow_answer_is_not_taken_for_a_request_that_is_not_taken(clients: HttpClients) -> None:
    async def handle(connection: Connection) -> None:
        await connection.read_request()
        # Longer than the limit for writing, which does not apply after the request is written.
        with suppress(TimeoutError):
            await asyncio.wait_for(connection.wait_until_lost(), 0.5)
        await connection.send(answer(b"at last"))

    async with serving(handle) as server:
        stream = await post(clients, server.url)

        assert await stream.read(100) == b"at last"
        stream.close()


async def test_refused_connection_is_a_connect_error(clients: HttpClients) -> None:
    async with serving(stalls_before_headers) as server:
        url = server.url

    with pytest.raises(TransportError) as caught:
        await post(clients, url)

    assert caught.value.reason is TransportFault.CONNECT


async def test_every_way_to_break_a_connection_is_a_transport_error_without_the_key(clients: HttpClients) -> None:
    whole = stream_head() + chunk(b"some data") + chunk(b"more") + END

    for size in range(len(whole)):
        for resets in (False, True):

            async def handle(connection: Connection, size: int = size, resets: bool = resets) -> None:
                await connection.read_request()
                await connection.send(whole[:size])
                if resets:
                    connection.reset()

            async with serving(handle) as server:
                with pytest.raises(TransportError) as caught:
                    await drain(clients, server.url)

            assert caught.value.reason is TransportFault.CUT, (size, resets)
            assert KEY not in "".join(traceback.format_exception(caught.value))
            assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", stream_head() + b"not a size\r\nxx\r\n"],
)
async def test_invalid_http_is_a_transport_error_without_the_key(clients: HttpClients, garbage: bytes) -> None:
    async with serving(answering(garbage)) as server:
        with pytest.raises(TransportError) as caught:
            await drain(clients, server.url)

    assert KEY not in repr(caught.value) + str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("url", ["nonsense", "ftp://localhost/", "http://", "http://[::1"])
async def test_url_that_cannot_be_asked_is_a_request_error(clients: HttpClients, url: str) -> None:
    with pytest.raises(TransportError) as caught:
        await clients.client(url).open(url, headers={}, body=b"")

    assert caught.value.reason is TransportFault.REQUEST


async def test_header_with_a_line_break_is_a_request_error(clients: HttpClients) -> None:
    async with serving(answering(answer(b""))) as server:
        with pytest.raises(TransportError) as caught:
            await clients.client(server.url).open(server.url, headers={"x-api-key": f"{KEY}\nx: y"}, body=b"")

    assert caught.value.reason is TransportFault.REQUEST
    assert KEY not in repr(caught.value)


async def test_proxy_of_the_environment_is_used_unless_the_host_is_exempt(
    clients: HttpClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    async def handle(connection: Connection) -> None:
        seen.append(await connection.read_request())
        await connection.send(answer(b"", extra="connection: close\r\n"))

    async with serving(handle) as proxy, serving(answering(answer(b"direct"))) as server:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:secret@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        (await post(clients, "http://provider.invalid")).close()
        direct = await post(clients, server.url)

        assert await direct.read(100) == b"direct"
        direct.close()

    assert seen[0].line == "POST http://provider.invalid/v1/x HTTP/1.1"
    assert seen[0].headers["proxy-authorization"].startswith("Basic ")


async def test_netrc_does_not_meddle_with_the_key(
    clients: HttpClients, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    async def handle(connection: Connection) -> None:
        seen.append(await connection.read_request())
        await connection.send(answer(b""))

    (tmp_path / "netrc").write_text("default login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with serving(handle) as server:
        (await post(clients, server.url)).close()

    assert seen[0].headers["authorization"] == f"Bearer {KEY}"


async def test_closing_the_clients_ends_open_streams_and_refuses_new_ones(clients: HttpClients) -> None:
    async with serving(stalls_in_the_body) as server:
        client = clients.client(server.url)
        stream = await client.open(server.url, headers={}, body=b"")
        await anext(stream.chunks())
        waiting = asyncio.ensure_future(anext(stream.chunks()))
        await asyncio.sleep(0)
        await clients.close()

        with pytest.raises(TransportError):
            await asyncio.wait_for(waiting, 1)
        with pytest.raises(TransportError):
            await anext(stream.chunks())
        with pytest.raises(TransportError):
            await client.open(server.url, headers={}, body=b"")


async def test_clients_share_a_pool_for_the_same_base_url_and_checks(clients: HttpClients) -> None:
    assert clients.client("http://a/v1") is clients.client("http://a/v1/")
    assert clients.client("http://a") is not clients.client("http://b")
    assert clients.client("http://a") is not clients.client("http://a", Tls(verify=False))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """Return the file of a self-signed certificate for localhost, and a server context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    file = folder / "certificate.pem"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = folder / "key.pem"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file, private)
    return file, context


async def test_unknown_certificate_is_refused_and_trusted_when_told_so(
    clients: HttpClients, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    file, context = certificate
    async with serving(answering(answer(b"safe")), tls=context) as server:
        with pytest.raises(TransportError) as caught:
            await post(clients, server.url)
        trusted = await post(clients, server.url, tls=Tls(ca_file=str(file)))
        unchecked = await post(clients, server.url, tls=Tls(verify=False))

        assert caught.value.reason is TransportFault.CERTIFICATE
        assert await trusted.read(100) == await unchecked.read(100) == b"safe"
        trusted.close()
        unchecked.close()


async def test_missing_file_of_authorities_is_a_certificate_error(clients: HttpClients, tmp_path: Path) -> None:
    with pytest.raises(TransportError) as caught:
        await post(clients, "https://localhost:1", tls=Tls(ca_file=str(tmp_path / "none.pem")))

    assert caught.value.reason is TransportFault.CERTIFICATE


async def test_cancelling_over_tls_does_not_wait_for_the_farewell(
    clients: HttpClients, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    file, context = certificate
    reached = asyncio.Event()
    is_deaf = asyncio.Event()

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        reached.set()
        await connection.wait_until_lost()

    async with serving(handle, tls=context) as server:
        port = int(server.url.rpartition(":")[2])

        async def relay(connection: Connection) -> None:
            """Relay bytes until the server stops responding. After that, the TLS close is never answered."""
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answers = asyncio.create_task(pump(reader, connection.writer))
            try:
                while data := await connection.reader.read(65_536):
                    if not is_deaf.is_set():
                        writer.write(data)
            finally:
                answers.cancel()
                writer.close()
                connection.lost.set()

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65_536):
                writer.write(data)

        async with serving(relay) as between:
            url = between.url.replace("http://127.0.0.1", "https://localhost")
            task = asyncio.create_task(drain(clients, url, Tls(ca_file=str(file))))
            await reached.wait()
            is_deaf.set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            await asyncio.wait_for(between.connections[0].lost.wait(), 1)
