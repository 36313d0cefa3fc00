"""While a model writes, text that arrives within a short time is read together, and pieces of one text are merged."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.llm.errors import TransportError, TransportFault
from rookery.llm.http import HttpClients, HttpStream, Tls, _Stream
from rookery.llm.response_stream import has_text, joined
from rookery.llm.types import Finish, ReasoningDelta, ReasoningStart, StreamPart, TextDelta, TextStart, ToolInputDelta
from rookery.runtime.shared_tick import TICK_SECONDS, SharedTick
from tests.certificates import make_certificate
from tests.eventually import until
from tests.live.part_buffer_rig import Timers
from tests.llm.model_rig import CALL, DONE, HELLO, drain, model_at
from tests.llm.raw_server import END, Connection, Handler, answer, chunk, serving, stream_head

FOR_EVER = 3600.0
Say = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def reading(tick_seconds: float) -> AsyncIterator[tuple[HttpStream, Say, asyncio.Event]]:
    """Return a stream whose first chunk was read, a function to send more, and one to end inside the body."""
    connected: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + chunk(b"one "))
        connected.set_result(connection)
        await leave.wait()

    clients = HttpClients(tick=SharedTick(tick_seconds))
    async with serving(handle) as server:
        stream = await clients.client(server.url).open(server.url, headers={}, body=b"{}")
        assert await anext(stream.chunks()) == b"one "
        connection = await connected
        yield stream, connection.send, leave
        await clients.close()
        leave.set()


async def test_reads_are_a_moment_apart() -> None:
    async with reading(0.05) as (stream, say, _), asyncio.timeout(30):
        loop = asyncio.get_running_loop()
        await say(chunk(b"two"))
        began = loop.time()
        assert await stream.gathered() == b"two"
        await say(chunk(b"three"))
        assert await stream.gathered() == b"three"
        # Timers of the event loop have a resolution of whole milliseconds.
        assert loop.time() - began >= 0.098


async def test_the_end_is_not_waited_for() -> None:
    async with reading(FOR_EVER) as (stream, say, _), asyncio.timeout(30):
        waiting = asyncio.create_task(stream.gathered())
        await say(chunk(b"two") + END)

        assert await waiting == b"two"
        with pytest.raises(StopAsyncIteration):
            await stream.gathered()


async def test_fast_sender_is_read_without_delay_and_delays_no_other_task() -> None:
    much = b"x" * 4_000_000

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + chunk(much))
        await connection.wait_until_lost()

    clients = HttpClients(tick=SharedTick(1.0))
    async with serving(handle) as server, asyncio.timeout(30):
        stream = await clients.client(server.url).open(server.url, headers={}, body=b"{}")
        loop = asyncio.get_running_loop()
        received = len(await stream.gathered())
        began, turns = loop.time(), 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        others = asyncio.create_task(take_turns())
        while received < len(much):
            before = turns
            received += len(await stream.gathered())
            assert turns > before
        others.cancel()
        # It arrives in about thirty reads. With a pause between them, it would take half a minute.
        assert loop.time() - began < 10
        await clients.close()


async def test_closing_and_cancelling_end_the_wait() -> None:
    async with reading(FOR_EVER) as (stream, _, _), asyncio.timeout(30):
        waiting = asyncio.create_task(stream.gathered())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        waiting = asyncio.create_task(stream.gathered())
        await asyncio.sleep(0)
        stream.close()
        with pytest.raises(TransportError) as raised:
            await waiting
        assert raised.value.reason is TransportFault.CUT


async def test_lost_connection_is_told_after_the_moment() -> None:
    async with reading(0.01) as (stream, _, leave), asyncio.timeout(30):
        leave.set()
        with pytest.raises(TransportError) as raised:
            await stream.gathered()
        assert raised.value.reason is TransportFault.CUT


@pytest.mark.parametrize("is_tls", [False, True])
async def test_words_wait_in_the_socket_between_ticks(is_tls: bool, tmp_path: Path) -> None:
    """Only a tick reads the socket, but a silence gives it back to the event loop. So does the end of the answer."""
    connected: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + chunk(b"one "))
        connected.set_result(connection)
        await connection.read_request()
        await connection.send(answer(b"again"))

    timers = Timers()
    pem, context = make_certificate(tmp_path, "localhost"), None
    if is_tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pem)
    clients = HttpClients(tick=SharedTick(call_later=timers.call_later))
    async with serving(handle, tls=context) as server, asyncio.timeout(30):
        client = clients.client(server.url, Tls(ca_file=pem))
        stream = await client.open(server.url, headers={}, body=b"{}")
        assert isinstance(stream, _Stream)
        assert await anext(stream.chunks()) == b"one "
        say = (await connected).send

        async def ticking() -> asyncio.Task[bytes]:
            reading = asyncio.create_task(stream.gathered())
            await until(lambda: timers.armed)
            return reading

        reading = await ticking()
        await say(chunk(b"two "))
        timers.fire()
        assert await reading == b"two "

        reading = await ticking()
        await say(chunk(b"three "))
        await say(chunk(b"four "))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not reading.done()
        assert stream._response.content.total_bytes == len(b"one two ")
        timers.fire()
        assert await reading == b"three four "

        reading = await ticking()
        timers.fire()
        await until(lambda: stream._paused is None)
        await say(chunk(b"five "))
        assert await reading == b"five ", "the first words after a silence wait for no tick"

        reading = await ticking()
        await say(END)
        timers.fire()
        with pytest.raises(StopAsyncIteration):
            await reading
        stream.close()

        again = await client.open(server.url, headers={}, body=b"{}")
        assert await again.read(10) == b"again"
        assert len(server.connections) == 1
        assert timers.armed == []
        await clients.close()


async def test_words_begin_at_once_and_are_gathered_behind_the_first() -> None:
    """The first word is shown immediately. All words after it arrive as one piece with the end."""
    shown = asyncio.Event()

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + chunk(b'data: {"other": 1}\n\n'))
        await connection.send(chunk(HELLO))
        await shown.wait()
        await connection.send(chunk(HELLO) + chunk(HELLO))
        await connection.send(chunk(HELLO) + chunk(DONE) + END)

    parts = []
    async with asyncio.timeout(30), _asking(handle) as stream:
        async for part in stream:
            parts.append(part)
            if isinstance(part, TextDelta):
                shown.set()

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["hello", "hellohellohello"]
    assert isinstance(parts[-1], Finish)


async def test_data_received_before_the_connection_broke_is_not_lost() -> None:
    """The last words and the end have arrived, and only the body is not complete. A late reader must not lose them."""
    shown = asyncio.Event()

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + chunk(HELLO))
        await shown.wait()
        await connection.send(chunk(HELLO) + chunk(DONE))

    parts = []
    async with asyncio.timeout(30), _asking(handle, tick_seconds=0.5) as stream:
        async for part in stream:
            parts.append(part)
            shown.set()

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["hello", "hello"]
    assert isinstance(parts[-1], Finish)


async def test_break_behind_words_is_told_after_them() -> None:
    async with reading(0.2) as (stream, say, leave), asyncio.timeout(30):
        await say(chunk(b"two"))
        leave.set()
        assert await stream.gathered() == b"two"
        with pytest.raises(TransportError) as raised:
            await stream.gathered()
        assert raised.value.reason is TransportFault.CUT


async def test_whole_answer_is_the_same_however_long_is_gathered() -> None:
    pieces = [chunk(HELLO)] * 50 + [chunk(DONE), END]

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head())
        for piece in pieces:
            await connection.send(piece)

    for seconds in (0.0, 0.001, TICK_SECONDS, FOR_EVER):
        clients = HttpClients(tick=SharedTick(seconds))
        async with asyncio.timeout(30), serving(handle) as server:
            parts = await drain(model_at(server.url, clients), CALL)
            await clients.close()
        assert "".join(part.text for part in parts if isinstance(part, TextDelta)) == "hello" * 50
        assert isinstance(parts[-1], Finish)


DELTAS = st.builds(
    lambda kind, block, text: kind(block, text),
    st.sampled_from([TextDelta, ReasoningDelta, ToolInputDelta]),
    st.sampled_from("ab"),
    st.text(max_size=3),
)
OTHERS: st.SearchStrategy[StreamPart] = st.sampled_from([TextStart("a"), ReasoningStart("b")])


def spelled(parts: list[StreamPart]) -> list[object]:
    """Return every character with its block, and all other parts in their position."""
    found: list[object] = []
    for part in parts:
        if isinstance(part, TextDelta | ReasoningDelta):
            found += [(type(part), part.id, character) for character in part.text]
        elif isinstance(part, ToolInputDelta):
            found += [(type(part), part.id, character) for character in part.json]
        else:
            found.append(part)
    return found


@given(st.lists(DELTAS | OTHERS, max_size=12))
def test_joining_keeps_every_character_in_its_block_and_order(parts: list[StreamPart]) -> None:
    result = list(joined(parts))

    assert spelled(result) == spelled(parts)
    assert has_text(result) == has_text(parts)
    for one, other in pairwise(result):
        if isinstance(one, TextDelta | ReasoningDelta | ToolInputDelta) and type(one) is type(other):
            assert one.id != other.id


@asynccontextmanager
async def _asking(handle: Handler, *, tick_seconds: float = FOR_EVER) -> AsyncIterator[AsyncIterator[StreamPart]]:
    clients = HttpClients(tick=SharedTick(tick_seconds))
    async with serving(handle) as server:
        yield model_at(server.url, clients).stream(CALL)
        await clients.close()
