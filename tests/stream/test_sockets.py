"""Streams on real sockets: close codes, keepalive, clients that stop reading, cursors of SSE."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from websockets.asyncio.client import connect, unix_connect
from websockets.typing import Subprotocol

from rookery.server.listener import USER_TIMEOUT_MS, limit_unacknowledged, serving
from rookery.stream import ws
from tests.eventually import until
from tests.store.machine.machine_rig import assistant
from tests.stream.socket_clients import EventStreamEnd, Sockets, SocketServer, open_sockets
from tests.stream.stream_rig import Rig, Site, Viewer, leave, open_rig, say

KINDS = ("websocket", "sse")
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@pytest.fixture(params=KINDS)
async def served(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> AsyncIterator[Rig]:
    async with (
        open_rig(database_url, send_seconds=0.3) as rig,
        open_sockets(rig.site.streams, tmp_path / "door", request.param) as sockets,
    ):
        rig.site.sockets = sockets
        yield rig
        await leave(rig.site)


@pytest.fixture
async def plain(database_url: str, tmp_path: Path) -> AsyncIterator[tuple[Rig, Sockets]]:
    """WebSocket only, with a short ping interval."""
    async with (
        open_rig(database_url) as rig,
        open_sockets(
            rig.site.streams, tmp_path / "door", "websocket", ws_ping_interval=0.1, ws_ping_timeout=0.3
        ) as sockets,
    ):
        rig.site.sockets = sockets
        yield rig, sockets
        await leave(rig.site)


async def test_ends_are_told_with_their_code(served: Rig) -> None:
    viewer = await served.site.view(await served.chat("one"))
    await viewer.until("synced")

    await served.site.streams.sessions.goodbye()
    code, word = await viewer.ended()

    assert code == 1012
    assert viewer.of("goodbye")
    if isinstance(viewer.transport, EventStreamEnd):
        assert word == "reconnect"


async def test_client_that_left_is_forgotten(served: Rig) -> None:
    viewer = await served.site.view(await served.chat("one"))
    await viewer.until("synced")

    viewer.transport.leave()

    await until(lambda: len(served.site.streams.sessions) == 0)


async def test_client_that_stops_reading_is_given_up(served: Rig, tmp_path: Path) -> None:
    """The buffers of the sockets fill up, a send waits, and the session ends; other sessions are not affected."""
    chat_id, chat = await served.running(worker=served.site.id)
    watcher = await served.site.view(chat_id)
    await watcher.until("synced")
    kind = sockets_of(served.site).kind
    reader, writer = await asyncio.open_unix_connection(tmp_path / "door", limit=1024)
    upgrade = UPGRADE if kind == "websocket" else ""
    writer.write(f"GET /chats/{chat_id}/stream HTTP/1.1\r\nHost: x\r\nX-User: {uuid4()}\r\n{upgrade}\r\n".encode())
    await reader.readline()
    await until(lambda: len(served.site.streams.sessions) == 2)

    episode = served.site.episode(chat)
    for _ in range(30):
        say(episode, "x" * 100_000)
    await until(lambda: len(served.site.streams.sessions) == 1)
    await until(lambda: len(watcher.preview()) == 3_000_000)

    assert served.site.streams.sessions.stats.slow == 1
    writer.close()


async def test_subprotocol_is_answered_without_the_token(
    plain: tuple[Rig, Sockets], caplog: pytest.LogCaptureFixture
) -> None:
    rig, sockets = plain
    caplog.set_level(logging.DEBUG, "uvicorn")
    chat_id = await rig.chat("one")
    offered = [Subprotocol("rookery.v1"), Subprotocol("rookery.bearer.s3cret")]

    async with unix_connect(
        str(sockets.path),
        f"ws://localhost/chats/{chat_id}/stream",
        subprotocols=offered,
        additional_headers={"X-User": str(uuid4())},
    ) as connection:
        await connection.recv()

        assert connection.subprotocol == "rookery.v1"
        assert connection.response is not None
        assert "s3cret" not in str(connection.response.headers)
    assert "s3cret" not in caplog.text


def test_token_is_found_among_the_subprotocols() -> None:
    assert ws.bearer_token({"subprotocols": ["rookery.v1", "rookery.bearer.abc"]}) == "abc"
    assert ws.bearer_token({"subprotocols": ["rookery.bearer.abc"]}) is None
    assert ws.bearer_token({"subprotocols": ["rookery.v1"]}) is None


async def test_frame_over_the_limit_ends_the_stream(plain: tuple[Rig, Sockets]) -> None:
    rig, _ = plain
    viewer = await rig.site.view(await rig.chat("one"))
    await viewer.until("synced")

    await viewer.transport.connection.send("x" * 65 * 1024)

    assert (await viewer.ended())[0] == 1009


async def test_data_from_the_client_does_not_stop_the_keepalive(plain: tuple[Rig, Sockets]) -> None:
    rig, _ = plain
    viewer = await rig.site.view(await rig.chat("one"))
    await viewer.until("synced")

    for n in range(1, 7):
        viewer.transport.say(type="ping", id=n)
        await viewer.until("pong", n)
        await pinged(viewer)

    assert not viewer.task.done()


async def test_client_that_answers_no_ping_is_closed(plain: tuple[Rig, Sockets]) -> None:
    rig, sockets = plain
    chat_id = await rig.chat("one")
    reader, writer = await asyncio.open_unix_connection(sockets.path)
    writer.write(f"GET /chats/{chat_id}/stream HTTP/1.1\r\nHost: x\r\nX-User: {uuid4()}\r\n{UPGRADE}\r\n".encode())
    await until(lambda: len(rig.site.streams.sessions) == 1)

    async with asyncio.timeout(5):
        while await reader.read(4096):
            pass
    writer.close()

    await until(lambda: len(rig.site.streams.sessions) == 0)


async def test_event_stream_has_its_headers_its_retry_and_resumes_by_last_event_id(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        open_rig(database_url) as rig,
        open_sockets(rig.site.streams, tmp_path / "door", "sse") as sockets,
    ):
        rig.site.sockets = sockets
        chat_id = await rig.chat("one", "two", "three")
        ids = [message.id for message in await rig.chats.history(chat_id)]
        first = await rig.site.view(chat_id)
        await first.until("synced")
        end = await sockets.connect(chat_id, {"after_id": ids[0]}, Last_Event_ID=str(ids[1]))
        second = Viewer(end, asyncio.ensure_future(end.run()))
        rig.site.viewers.append(second)
        await second.until("synced")

        headers = first.transport.response.headers
        assert headers["content-type"].startswith("text/event-stream")
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")
        assert first.transport.retry == 1000
        assert first.transport.cursors == [ids[2]]
        assert second.texts() == ["three"]
        await leave(rig.site)


async def test_event_stream_beats_with_comments(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookery.stream.sse.EventStreamTransport.heartbeat_seconds", 0.05)
    async with (
        open_rig(database_url) as rig,
        open_sockets(rig.site.streams, tmp_path / "door", "sse") as sockets,
    ):
        rig.site.sockets = sockets
        viewer = await rig.site.view(await rig.chat("one"))

        await until(lambda: len(viewer.transport.comments) >= 2)

        assert set(viewer.transport.comments) == {"hb"}
        assert viewer.of("heartbeat") == []
        await leave(rig.site)


async def test_line_ends_inside_json_do_not_break_an_event_stream(database_url: str, tmp_path: Path) -> None:
    async with (
        open_rig(database_url) as rig,
        open_sockets(rig.site.streams, tmp_path / "door", "sse") as sockets,
    ):
        rig.site.sockets = sockets
        chat_id, chat = await rig.running(worker=rig.site.id)
        viewer = await rig.site.view(chat_id)
        await viewer.until("synced")
        feed = rig.site.episode(chat)._feed

        data = b'{"type":"message_part",\r\n"seq":1,\n"role":"assistant","part":{"type":"text","text":"a\\nb"}}'
        feed.append((1, 1, data))
        await viewer.until("message_part")

        assert viewer.preview() == "a\nb"
        await leave(rig.site)


async def test_client_goes_on_at_another_replica_without_loss_or_repeat(database_url: str, tmp_path: Path) -> None:
    async with (
        open_rig(database_url, sites=2) as rig,
        open_sockets(rig.sites[0].streams, tmp_path / "one", "websocket") as one,
        open_sockets(rig.sites[1].streams, tmp_path / "two", "websocket") as two,
    ):
        rig.sites[0].sockets, rig.sites[1].sockets = one, two
        chat_id = await rig.chats.create()
        first = await rig.sites[0].view(chat_id)
        await rig.chats.commit(chat_id, assistant("before"))
        await first.until("message", 2)

        await rig.sites[0].streams.sessions.goodbye()
        assert (await first.ended())[0] == 1012
        await rig.chats.commit(chat_id, assistant("between"))
        second = await rig.sites[1].view(chat_id, after_id=first.of("synced")[-1]["last_message_id"])
        await rig.chats.commit(chat_id, assistant("after"))
        await second.until("message", 2)

        assert [*first.texts(), *second.texts()] == ["hello", "before", "between", "after"]
        for site in rig.sites:
            await leave(site)


async def test_accepted_sockets_inherit_the_limit_of_the_kernel(rig: Rig) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    assert limit_unacknowledged(listening)
    port = listening.getsockname()[1]
    chat_id = await rig.chat("one")

    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = listening.accept()
    limit = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    client.close()
    accepted.close()
    async with (
        serving(SocketServer(rig.site.streams), listening),
        connect(
            f"ws://127.0.0.1:{port}/chats/{chat_id}/stream", additional_headers={"X-User": str(uuid4())}, proxy=None
        ) as connection,
    ):
        first = await connection.recv()

    assert limit == USER_TIMEOUT_MS
    assert '"hello"' in str(first)


def sockets_of(site: Site) -> Sockets:
    assert site.sockets is not None
    return site.sockets


async def pinged(viewer: Viewer) -> None:
    """Wait for a ping of the server, by a ping of the client that takes longer than the interval."""
    connection = viewer.transport.connection
    async with asyncio.timeout(5):
        await (await connection.ping())
    loop = asyncio.get_running_loop()
    due = loop.time() + 0.12
    await until(lambda: loop.time() >= due)
