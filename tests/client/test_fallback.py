"""The fallback to server-sent events if WebSockets do not work."""

from __future__ import annotations

import asyncio
import socket
from random import Random

import msgspec
import pytest

from rookery.client import AsyncRookery, errors
from rookery.server.listener import serving
from rookery.testing import FakeClock
from tests.client.client_rig import Rig, follow, texts
from tests.client.raw_server import RawServer, Reply, refused

CHAT = "6f7c1a4e-0000-4000-8000-000000000001"
BATCH = msgspec.json.encode(
    [
        {"type": "status", "status": "waiting", "archived": False},
        {"type": "synced", "snapshot_version": 1, "history_version": 1, "queue_version": 0, "last_message_id": 5},
    ]
)
STREAM = b"retry: 1000\n\n: hb\n\nevent: batch\nid: 5\ndata: " + BATCH + b"\n\n"
OVER = b'event: close\ndata: {"code":1000,"reason":""}\n\n'
EVENTS = Reply(200, STREAM + OVER, {"Content-Type": "text/event-stream; charset=utf-8"})
FIREWALL = Reply(403, b"<html>Blocked by policy</html>")


async def test_upgrade_that_is_swallowed_is_given_up_for_a_plain_stream(rig: Rig) -> None:
    chat_id = await rig.chat("hello", "good morning")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with (
            serving(rig.rig.replica.application, listening, ws="none", log_level="critical"),
            AsyncRookery(url, token=rig.person.token, clock=rig.clock, rng=Random(1)) as client,
        ):
            live = client.chats.stream(chat_id)
            opening = asyncio.create_task(live.__aenter__())
            await rig.clock.fire("stream-open")
            await opening
            await follow(live, lambda: live.state.status == "waiting")
            await live.close()

    assert texts(live) == ["hello", "good morning"]


async def test_upgrade_that_a_firewall_refuses_is_given_up_for_a_plain_stream() -> None:
    async with (
        RawServer(FIREWALL, EVENTS).listening() as server,
        AsyncRookery(server.url, token="rk_t", clock=FakeClock()) as client,
        client.chats.stream(CHAT) as live,
    ):
        changes = [change async for change in live]

    assert [request.headers.get("upgrade") for request in server.requests] == ["websocket", None]
    assert server.requests[1].headers["accept"] == "text/event-stream"
    assert (live.state.status, live.state.last_message_id) == ("waiting", 5)
    assert changes[-1].is_committed


async def test_plain_stream_stays_the_choice_when_it_is_lost() -> None:
    clock = FakeClock()
    cut = Reply(200, STREAM + b'event: reconnect\ndata: {"code":1012,"reason":"bye"}\n\n', EVENTS.headers)
    async with (
        RawServer(FIREWALL, cut, EVENTS).listening() as server,
        AsyncRookery(server.url, clock=clock, rng=Random(1)) as client,
        client.chats.stream(CHAT) as live,
    ):
        following = asyncio.create_task(follow(live, lambda: len(server.requests) == 3))
        await clock.fire("stream-retry")
        await following

    assert server.requests[2].headers.get("upgrade") is None
    assert server.requests[2].target.endswith("?after_id=5")


async def test_client_that_requires_a_websocket_gets_an_error_if_it_is_not_forwarded() -> None:
    async with (
        RawServer(FIREWALL).listening() as server,
        AsyncRookery(server.url, clock=FakeClock(), max_retries=0) as client,
    ):
        with pytest.raises(errors.Unreachable, match="WebSockets are not forwarded"):
            await client.chats.stream(CHAT, transport="websocket").__aenter__()


async def test_refusal_of_the_server_itself_is_no_reason_to_try_another_way() -> None:
    async with (
        RawServer(refused(404, "chat_not_found")).listening() as server,
        AsyncRookery(server.url, clock=FakeClock()) as client,
    ):
        with pytest.raises(errors.NotFound):
            await client.chats.stream(CHAT).__aenter__()

    assert len(server.requests) == 1


async def test_server_that_is_starting_is_tried_again_as_often_as_any_request() -> None:
    clock = FakeClock()
    async with (
        RawServer(refused(503, "unavailable", Retry_After="2")).listening() as server,
        AsyncRookery(server.url, clock=clock, max_retries=1, rng=Random(1)) as client,
    ):
        opening = asyncio.create_task(client.chats.stream(CHAT).__aenter__())
        await clock.until_waiting("stream-retry")
        assert clock.waiting("stream-retry")[0].due == 2.0
        await clock.fire("stream-retry")
        with pytest.raises(errors.Unavailable):
            await opening

    assert len(server.requests) == 2


async def test_server_that_asks_for_too_long_a_wait_is_an_error_at_once() -> None:
    async with (
        RawServer(refused(503, "unavailable", Retry_After="31")).listening() as server,
        AsyncRookery(server.url, clock=FakeClock()) as client,
    ):
        with pytest.raises(errors.Unavailable):
            await client.chats.stream(CHAT).__aenter__()

    assert len(server.requests) == 1


async def test_refused_reconnect_waits_as_long_as_is_asked_and_no_longer_than_half_a_minute() -> None:
    clock = FakeClock()
    cut = Reply(200, STREAM + b'event: reconnect\ndata: {"code":1011,"reason":""}\n\n', EVENTS.headers)
    busy, closed = refused(503, "unavailable", Retry_After="20"), refused(503, "unavailable", Retry_After="7200")
    waits = []
    async with (
        RawServer(cut, busy, closed, EVENTS).listening() as server,
        AsyncRookery(server.url, clock=clock, rng=Random(1)) as client,
        client.chats.stream(CHAT, transport="sse") as live,
    ):
        following = asyncio.create_task(follow(live, lambda: len(server.requests) == 4))
        for _ in range(3):
            await clock.until_waiting("stream-retry")
            waits.append(clock.waiting("stream-retry")[0].due - clock.monotonic())
            await clock.fire("stream-retry")
        await following

    assert waits[0] <= 1.3
    assert waits[1:] == pytest.approx([20.0, 30.0])


async def test_garbage_in_a_stream_is_an_error_and_not_a_loss() -> None:
    garbage = Reply(200, b"event: batch\ndata: {not json\n\n", EVENTS.headers)
    async with (
        RawServer(garbage).listening() as server,
        AsyncRookery(server.url, clock=FakeClock()) as client,
        client.chats.stream(CHAT, transport="sse") as live,
    ):
        with pytest.raises(errors.UnexpectedAnswer):
            await anext(live)
