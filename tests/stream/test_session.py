"""One connection: heartbeats, client frames, slow clients, limits, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId
from rookery.live.feeds import EndReason
from rookery.live.part_buffer import Episode
from rookery.store.db.hints import ChatHint
from rookery.stream.access_monitor import Grant
from rookery.stream.errors import ReplicaDraining, TooManyStreams
from rookery.stream.query_parameters import StreamParams
from rookery.stream.session import MAX_INBOUND_BYTES, MAX_INBOUND_FRAMES
from rookery.testing import FakeClock
from tests.eventually import until
from tests.store.machine.machine_rig import assistant
from tests.stream.stream_rig import MemoryTransport, Rig, Viewer, open_rig, say


@pytest.fixture
async def hasty(database_url: str) -> AsyncIterator[Rig]:
    """A rig with a short send timeout."""
    async with open_rig(database_url, send_seconds=0.2) as opened:
        yield opened


async def test_silent_stream_beats(database_url: str) -> None:
    clock = FakeClock()
    async with open_rig(database_url, clock=clock) as rig:
        viewer = await rig.site.view(await rig.chat("one"))
        await viewer.until("synced")
        started = clock.now()

        await clock.fire("stream-heartbeat")
        beat = await viewer.until("heartbeat")

        assert clock.now() - started == timedelta(seconds=20)
        assert beat["server_time"].startswith("2030-01-01T00:00:20")


async def test_stream_that_sends_does_not_beat(database_url: str) -> None:
    clock = FakeClock()
    async with open_rig(database_url, clock=clock) as rig:
        chat_id = await rig.chats.create()
        viewer = await rig.site.view(chat_id)
        await viewer.until("synced")
        await clock.advance(15)
        await rig.chats.commit(chat_id, assistant("answer"))
        await viewer.until("message", 2)

        await clock.advance(15)

        assert viewer.of("heartbeat") == []


async def test_ping_is_answered(rig: Rig) -> None:
    viewer = await rig.site.view(await rig.chat("one"))

    viewer.transport.say(type="ping", id="abc")

    assert (await viewer.until("pong"))["id"] == "abc"


async def test_resync_sends_a_fresh_window(rig: Rig) -> None:
    viewer = await rig.site.view(await rig.chat("one", "two"))
    await viewer.until("synced")
    viewer.fresh()

    viewer.transport.say(type="resync")
    await viewer.until("synced", 2)

    assert [event["type"] for event in viewer.fresh()] == [
        "history_reset",
        "message",
        "message",
        "queue_update",
        "synced",
    ]


@pytest.mark.parametrize("frame", [b"{", b"[]", b"\xff", b'{"type":"dance"}', b'{"type":"read"}', b"{" * 5000])
async def test_nonsense_is_ignored(rig: Rig, frame: bytes) -> None:
    viewer = await rig.site.view(await rig.chat("one"))

    viewer.transport.say_raw(frame)
    viewer.transport.say(type="ping", id=1)

    await viewer.until("pong")
    assert not viewer.task.done()


async def test_frame_that_is_too_long_ends_the_stream(rig: Rig) -> None:
    viewer = await rig.site.view(await rig.chat("one"))

    viewer.transport.say_raw(b"x" * (MAX_INBOUND_BYTES + 1))

    assert (await viewer.ended())[0] == 1009


async def test_too_many_frames_end_the_stream(database_url: str) -> None:
    clock = FakeClock()
    async with open_rig(database_url, clock=clock) as rig:
        viewer = await rig.site.view(await rig.chat("one"))
        for n in range(MAX_INBOUND_FRAMES):
            viewer.transport.say(type="ping", id=n)
        await viewer.until("pong", MAX_INBOUND_FRAMES)
        await clock.advance(10)
        viewer.transport.say(type="ping", id="after a while")
        await viewer.until("pong", MAX_INBOUND_FRAMES + 1)

        for n in range(MAX_INBOUND_FRAMES):
            viewer.transport.say(type="ping", id=n)

        assert (await viewer.ended())[0] == 1008


async def test_read_frame_moves_only_that_readers_cursor(rig: Rig) -> None:
    chat_id = await rig.chat("one", "two")
    ids = [message.id for message in await rig.chats.history(chat_id)]
    reader = await add_user(rig)
    viewer = await rig.site.view(chat_id, user=reader)

    viewer.transport.say(type="read", message_id=ids[1])
    await until(lambda: cursor_is(rig, ids[1]))
    viewer.transport.say(type="read", message_id=ids[0])
    viewer.transport.say(type="ping", id=1)
    await viewer.until("pong")

    assert await rig.chats.value("SELECT last_read_message_id FROM chat_read_cursors") == ids[1]
    assert await rig.chats.value("SELECT user_id FROM chat_read_cursors") == reader


@pytest.mark.parametrize("mark_read", [True, False])
async def test_stream_marks_what_it_showed_only_when_asked_to(rig: Rig, mark_read: bool) -> None:
    chat_id = await rig.chats.create()
    viewer = await rig.site.view(chat_id, user=rig.chats.user, mark_read=mark_read)
    await viewer.until("synced")
    await rig.chats.commit(chat_id, assistant("answer"))
    await viewer.until("message", 2)

    await viewer.close()

    last = await rig.last_id(chat_id)
    count = await rig.chats.value("SELECT count(*) FROM chat_read_cursors WHERE last_read_message_id = $1", last)
    assert count == int(mark_read)


async def test_client_that_never_reads_is_given_up_and_others_go_on(hasty: Rig) -> None:
    chat_id, chat = await hasty.running(worker=hasty.site.id)
    stuck, fast = await hasty.site.view(chat_id), await hasty.site.view(chat_id)
    await stuck.until("synced")
    stuck.transport.gate.clear()
    episode = hasty.site.episode(chat)

    say(episode, "a", "b", "c")
    await until(lambda: fast.preview() == "abc")
    await until(lambda: len(hasty.site.streams.sessions) == 1)

    assert hasty.site.streams.sessions.stats.slow == 1
    assert hasty.site.streams.sessions.stats.closed[4408] == 1
    assert not fast.task.done()


async def test_slow_client_ends_with_the_same_preview_as_a_fast_one(rig: Rig) -> None:
    chat_id, chat = await rig.running(worker=rig.site.id)
    slow, fast = await rig.site.view(chat_id), await rig.site.view(chat_id)
    await slow.until("synced")
    slow.transport.gate.clear()
    episode = rig.site.episode(chat)
    for n in range(2000):
        say(episode, f"{n} ")
    await until(lambda: fast.preview().endswith("1999 "))
    assert rig.site.buffer.stats().size_bytes > 100_000

    slow.transport.gate.set()
    await until(lambda: slow.preview() == fast.preview())

    assert len(slow.of("message_part")) < 50


async def test_evicted_client_starts_over_when_it_is_back(database_url: str) -> None:
    clock = FakeClock()
    async with open_rig(database_url, clock=clock) as rig:
        chat_id, chat = await rig.running(worker=rig.site.id)
        viewer = await rig.site.view(chat_id)
        episode = rig.site.episode(chat)
        say(episode, "one ")
        await viewer.until("message_part")
        viewer.transport.gate.clear()
        say(episode, "two ")
        await until(lambda: bool(episode._feed._idle))  # the frame was taken, and its send is blocked
        say(episode, "three")
        await clock.advance(11)
        rig.site.buffer.sweep()

        viewer.transport.gate.set()
        await until(lambda: viewer.preview() == "one two three")

        assert [reset["reason"] for reset in viewer.of("preview_reset")] == ["history", "lagged"]


async def test_client_that_keeps_falling_behind_starts_over_once_a_second(database_url: str) -> None:
    clock = FakeClock()
    async with open_rig(database_url, clock=clock) as rig:
        chat_id, chat = await rig.running(worker=rig.site.id)
        viewer = await rig.site.view(chat_id)
        episode = rig.site.episode(chat)

        await fall_behind(viewer, episode, "one ", "two ")
        await until(lambda: viewer.preview() == "one two ")
        await fall_behind(viewer, episode, "three ", "four")
        await clock.fire("stream-lagged")
        await until(lambda: viewer.preview() == "one two three four")

        assert [reset["reason"] for reset in viewer.of("preview_reset")] == ["history", "lagged", "lagged"]
        assert clock.monotonic() == 1.0


async def test_user_has_so_many_streams_and_no_more(database_url: str) -> None:
    async with open_rig(database_url, per_user=2, per_replica=3) as rig:
        chat_id, user = await rig.chat("one"), uuid4()
        first = await rig.site.view(chat_id, user=user)
        await rig.site.view(chat_id, user=user)

        with pytest.raises(TooManyStreams):
            await rig.site.view(chat_id, user=user)
        await first.close()
        await rig.site.view(chat_id, user=user)
        await rig.site.view(chat_id)
        with pytest.raises(TooManyStreams):
            await rig.site.view(chat_id)


async def test_goodbye_asks_all_clients_to_reconnect(rig: Rig) -> None:
    chat_id = await rig.chat("one")
    viewers = [await rig.site.view(chat_id) for _ in range(3)]
    watcher = rig.site.watch(rig.chats.user)
    for viewer in viewers:
        await viewer.until("synced")

    await rig.site.streams.sessions.goodbye()

    for viewer in (*viewers, watcher):
        assert (await viewer.ended())[0] == 1012
        assert 0 <= viewer.of("goodbye")[0]["retry_after_ms"] <= 2000
    with pytest.raises(ReplicaDraining):
        await rig.site.view(chat_id)


async def test_stream_that_was_admitted_just_before_the_goodbye_leaves_too(rig: Rig) -> None:
    grant = Grant(user_id=uuid4(), credential="c", chat_id=await rig.chat("one"))
    opened = await rig.site.streams.open_chat(grant, StreamParams())
    saying = asyncio.ensure_future(rig.site.streams.sessions.goodbye())
    await asyncio.sleep(0)
    transport = MemoryTransport()

    await opened.run(transport)
    await saying

    assert transport.closed is not None
    assert transport.closed[0] == 1012


async def test_bug_in_a_source_ends_the_stream_with_an_internal_error(rig: Rig) -> None:
    chat_id, chat = await rig.running(worker=rig.site.id)
    viewer = await rig.site.view(chat_id)
    await viewer.until("synced")
    episode = rig.site.episode(chat)
    episode._feed.append((1, 1, "no bytes"))  # type: ignore[arg-type]

    assert (await viewer.ended())[0] == 1011


async def test_stream_without_a_database_waits_and_then_ends(database_url: str) -> None:
    clock = FakeClock()
    async with open_rig(database_url, clock=clock) as rig:
        chat_id, chat = await rig.running(worker=rig.site.id)
        viewer = await rig.site.view(chat_id)
        episode = rig.site.episode(chat)
        await viewer.until("synced")
        await rig.chats.sql("ALTER TABLE chats RENAME TO elsewhere")
        rig.wire.deliver([newer_than(chat)])
        await clock.until_waiting("stream-read-retry")

        say(episode, "still talking")
        await viewer.until("message_part")
        while not viewer.task.done():
            await clock.advance(2)
            await until(lambda: viewer.task.done() or clock.waiting("stream-read-retry"))

        assert (await viewer.ended())[0] == 1013
        assert 25 <= clock.monotonic() <= 35
        await rig.chats.sql("ALTER TABLE elsewhere RENAME TO chats")


async def test_stream_recovers_with_the_database(database_url: str) -> None:
    clock = FakeClock()
    async with open_rig(database_url, clock=clock) as rig:
        chat_id = await rig.chats.create()
        viewer = await rig.site.view(chat_id)
        await viewer.until("synced")
        await rig.chats.commit(chat_id, assistant("before"))
        await viewer.until("message", 2)
        rig.wire.is_cut = True
        await rig.chats.commit(chat_id, assistant("after"))
        newer = await rig.load(chat_id)
        await rig.chats.sql("ALTER TABLE chats RENAME TO elsewhere")
        rig.wire.deliver([newer_than(newer)])
        await clock.until_waiting("stream-read-retry")
        await rig.chats.sql("ALTER TABLE elsewhere RENAME TO chats")

        await clock.fire("stream-read-retry")
        await viewer.until("message", 3)

        assert viewer.texts()[-1] == "after"


async def test_stream_of_no_chat_is_refused_and_leaves_nothing(rig: Rig) -> None:
    with pytest.raises(ChatNotFound):
        await rig.site.view(ChatId(rig.chats.user))

    assert len(rig.site.streams.sessions) == 0
    assert len(rig.site.streams.registry) == 0


async def test_ended_stream_leaves_nothing(rig: Rig) -> None:
    chat_id, chat = await rig.running(worker=rig.site.id)
    viewer = await rig.site.view(chat_id, debug=True)
    say(rig.site.episode(chat), "a")
    await viewer.until("message_part")

    await viewer.close()

    streams = rig.site.streams
    assert (len(streams.sessions), len(streams.registry), len(streams.access)) == (0, 0, 0)
    assert rig.site.buffer.stats().subscribers == 0
    assert rig.site.bus.stats().get("ChatHint", 0) == 0
    assert rig.site.bus.stats().get("MiscHint", 0) == 0


async def fall_behind(viewer: Viewer, episode: Episode, taken: str, pending: str) -> None:
    """Let the client stop reading until it misses an event and is closed; then it reads again."""
    await until(lambda: bool(episode._feed._idle))
    viewer.transport.gate.clear()
    say(episode, taken)
    await until(lambda: bool(episode._feed._idle))
    say(episode, pending)
    for subscription in tuple(episode._feed._subscriptions):
        subscription._finish(EndReason.EVICTED)
    viewer.transport.gate.set()


def newer_than(chat: Chat) -> ChatHint:
    names = set(ChatHint.__struct_fields__) - {"v", "gone", "chat_id", "snapshot_version"}
    values = {name: getattr(chat, name) for name in names}
    version = chat.snapshot_version + 1
    return ChatHint(chat_id=chat.id, snapshot_version=version, **{**values, "history_version": version})


async def add_user(rig: Rig) -> UUID:
    found = await rig.chats.value("INSERT INTO users (username) VALUES ('grace') RETURNING id")
    assert isinstance(found, UUID)
    return found


async def cursor_is(rig: Rig, message_id: int) -> bool:
    return await rig.chats.value("SELECT last_read_message_id FROM chat_read_cursors") == message_id
