"""Live parts between two replicas in one process, over unix sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import InvalidStatus

from rookery.domain.chat.messages import ChatId
from rookery.live.feeds import EndReason
from rookery.live.part_buffer import EpisodeKey
from rookery.server.listener import INTERNAL_MAX_BYTES, serving
from rookery.store import machine
from rookery.stream.relay import dial_tokens, frames
from rookery.stream.relay.dial_tokens import TokenCheck, TokenRefused
from rookery.stream.relay.frames import Batch, Drop, End, Hello, Parts, Select
from rookery.stream.relay.hub import LINK_IDLE_SECONDS, MIRROR_IDLE_SECONDS
from rookery.stream.relay.link import ReplicaUnreachable, check_url
from rookery.testing import FakeClock
from tests.eventually import until
from tests.otlp_collector import exporting, otlp_collector
from tests.store.machine.machine_rig import assistant
from tests.stream.stream_rig import KEY, Rig, key_of, open_rig, say


@pytest.fixture
async def pair(database_url: str, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(database_url, sites=2, sockets=tmp_path) as opened:
        yield opened


async def test_parts_of_another_replica_arrive_in_order(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, chat = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    episode = there.episode(chat)

    say(episode, "a ", "b ")
    await viewer.until("message_part", 2)
    late = await here.view(chat_id)
    say(episode, "c")
    await late.until("message_part", 3)
    await viewer.until("message_part", 3)

    assert [part["seq"] for part in viewer.of("message_part")] == [1, 2, 3]
    assert [part["seq"] for part in late.of("message_part")] == [1, 2, 3]
    assert viewer.preview() == late.preview() == "a b c"


async def test_dial_of_a_link_is_a_span_that_ends_with_the_dial(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, chat = await pair.running(worker=there.id)
    with otlp_collector() as collector:
        async with exporting(collector):
            viewer = await here.view(chat_id)
            say(there.episode(chat), "a")
            await viewer.until("message_part", 1)
            (dial,) = await collector.until("relay dial")

    assert dial.attributes == {"rookery.replica.id": str(there.id)}
    assert not dial.has_failed


async def test_selection_waits_for_an_episode_that_does_not_exist_yet(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, chat = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    await until(lambda: there.endpoint.stats.selections == 1)

    say(there.episode(chat), "at last")
    await viewer.until("message_part")

    assert viewer.preview() == "at last"


async def test_next_episode_replaces_one_that_never_came(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, first = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    await until(lambda: there.endpoint.stats.selections == 1)
    second = await pair.attempt(chat_id, worker=there.id)
    await until(lambda: there.endpoint.stats.selections == 2)

    say(there.episode(second), "second")
    say(there.episode(first), "first")
    await viewer.until("message_part")
    await pair.chats.commit(chat_id, assistant("second"))
    await viewer.until("message", 2)

    assert [part["part"]["text"] for part in viewer.of("message_part")] == ["second"]


async def test_lost_link_costs_neither_part_nor_repeats_one(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, chat = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    episode = there.episode(chat)
    say(episode, "a ", "b ")
    await viewer.until("message_part", 2)

    cut_links(pair)
    say(episode, "c ", "d")
    await viewer.until("message_part", 4)

    assert [part["seq"] for part in viewer.of("message_part")] == [1, 2, 3, 4]
    assert here.hub.stats.dials >= 2


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_resync_shows_the_running_preview_again_from_its_first_part(pair: Rig, is_elsewhere: bool) -> None:
    owner = pair.sites[is_elsewhere]
    chat_id, chat = await pair.running(worker=owner.id)
    viewer = await pair.sites[0].view(chat_id)
    episode = owner.episode(chat)
    say(episode, "a ", "b ")
    await viewer.until("message_part", 2)
    viewer.fresh()

    viewer.transport.say(type="resync")
    await viewer.until("message_part", 4)
    cut_links(pair)
    say(episode, "c")
    await viewer.until("message_part", 5)

    events = viewer.fresh()
    assert [event["type"] for event in events[:5]] == [
        "history_reset",
        "message",
        "queue_update",
        "preview_reset",
        "synced",
    ]
    assert events[3]["reason"] == "rebase"
    assert [event["seq"] for event in events[5:]] == [1, 2, 3]
    assert viewer.preview() == "a b c"


async def test_death_of_the_owner_brings_the_next_attempt(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, chat = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    say(there.episode(chat), "half an answer")
    await viewer.until("message_part")

    del pair.addresses[there.id]
    cut_links(pair)
    taken = await pair.attempt(chat_id, worker=here.id)
    say(here.episode(taken), "a whole answer")
    await until(lambda: viewer.preview() == "a whole answer")
    await pair.chats.commit(chat_id, assistant("a whole answer"))
    await viewer.until("message", 2)

    assert [reset["reason"] for reset in viewer.of("preview_reset")][:2] == ["history", "attempt"]
    assert viewer.texts()[-1] == "a whole answer"


async def test_many_viewers_cost_one_selection(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, chat = await pair.running(worker=there.id)
    viewers = [await here.view(chat_id) for _ in range(50)]
    say(there.episode(chat), "to all")

    for viewer in viewers:
        await viewer.until("message_part")

    assert there.endpoint.stats.selections == 1
    assert there.endpoint.stats.links == 1


async def test_draining_owner_ends_the_preview_and_no_stream(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, chat = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    say(there.episode(chat), "before")
    await viewer.until("message_part")

    there.endpoint.drain()
    await until(lambda: here.hub.links()[0].mirror_count == 0)
    await pair.chats.commit(chat_id, assistant("before and after"))
    await viewer.until("message", 2)

    assert not viewer.task.done()


async def test_truncated_and_closed_episodes_end_as_they_do_at_home(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, chat = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    episode = there.episode(chat)
    say(episode, "x" * 3_000_000)
    with pytest.raises(Exception, match="full"):
        say(episode, "x" * 3_000_000)

    await viewer.until("preview_truncated")

    assert len(viewer.preview()) == 3_000_000


async def test_other_keys_are_refused_and_durable_events_go_on(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_rig(database_url, sites=2, sockets=tmp_path, keys=(KEY, b"other" * 8)) as rig:
        here, there = rig.sites
        chat_id, chat = await rig.running(worker=there.id)
        viewer = await here.view(chat_id)
        say(there.episode(chat), "unheard")

        await until(lambda: here.hub.stats.refused == 1)
        await rig.chats.commit(chat_id, assistant("heard"))
        await viewer.until("message", 2)

        assert viewer.of("message_part") == []
        assert here.hub.stats.dials == 1
        assert [record.levelname for record in caplog.records if record.message == "relay_refused"] == ["ERROR"]


async def test_other_protocol_means_no_preview_and_a_healthy_stream(pair: Rig) -> None:
    here, there = pair.sites
    assert here.hub._dialer is not None
    object.__setattr__(here.hub._dialer, "protocol", 99)
    chat_id, chat = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    say(there.episode(chat), "unheard")

    await until(lambda: here.hub.stats.protocol_mismatches == 1)
    await pair.chats.commit(chat_id, assistant("heard"))
    await viewer.until("message", 2)

    assert viewer.of("message_part") == []
    assert viewer.texts()[-1] == "heard"


async def test_mirrors_and_links_without_viewers_are_given_up(database_url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_rig(database_url, sites=2, sockets=tmp_path, clock=clock) as rig:
        here, there = rig.sites
        chat_id, chat = await rig.running(worker=there.id)
        viewer = await here.view(chat_id)
        say(there.episode(chat), "a")
        await viewer.until("message_part")
        await viewer.close()

        await clock.advance(MIRROR_IDLE_SECONDS)
        here.hub.sweep()
        mirrors = here.hub.links()[0].mirror_count
        await until(lambda: there.buffer.stats().subscribers == 0)
        await clock.advance(LINK_IDLE_SECONDS)
        here.hub.sweep()

        assert mirrors == 0
        assert here.hub.links() == []
        await until(lambda: there.endpoint.stats.links == 0)


async def test_evicted_selection_is_made_again_behind_the_last_part(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, chat = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    episode = there.episode(chat)
    say(episode, "a ", "b ")
    await viewer.until("message_part", 2)

    for subscription in tuple(episode._feed._subscriptions):
        subscription._finish(EndReason.EVICTED)
    say(episode, "c")
    await viewer.until("message_part", 3)

    assert [part["seq"] for part in viewer.of("message_part")] == [1, 2, 3]
    assert there.endpoint.stats.selections == 2


async def test_replica_is_dialed_over_tcp_when_there_is_no_socket(pair: Rig) -> None:
    here, there = pair.sites
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"ws://127.0.0.1:{listening.getsockname()[1]}"
    pair.addresses[there.id] = replace(pair.addresses[there.id], relay_unix=None, relay_url=url)
    async with serving(there.endpoint, listening, ws_max_size=INTERNAL_MAX_BYTES):
        chat_id, chat = await pair.running(worker=there.id)
        viewer = await here.view(chat_id)
        say(there.episode(chat), "over tcp")
        await viewer.until("message_part")

        assert viewer.preview() == "over tcp"
        await viewer.close()
        await here.hub.close()


async def test_replica_without_an_address_is_tried_again(pair: Rig) -> None:
    here, there = pair.sites
    address = pair.addresses[there.id]
    pair.addresses[there.id] = replace(address, relay_unix=None)
    chat_id, chat = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    say(there.episode(chat), "found")
    await until(lambda: here.hub.stats.failed >= 2)

    pair.addresses[there.id] = address
    await viewer.until("message_part")

    assert viewer.preview() == "found"


async def test_second_selection_under_a_number_replaces_the_first(pair: Rig) -> None:
    _, there = pair.sites
    first, second = key(1), key(2)
    for each in (first, second):
        say(there.buffer.create_episode(each), f"of {each.generation_attempt}")

    async with await dial(pair, there.id) as link:
        await link.send(frames.encode(select(1, first, generation=1)))
        answers = [frames.decode_from_owner(await recv(link)) for _ in range(2)]
        await link.send(frames.encode(select(1, second, generation=2)))
        replaced = frames.decode_from_owner(await recv(link))
        there.buffer.close_episode(first)
        there.buffer.close_episode(second)
        ended = frames.decode_from_owner(await recv(link))
        await link.send(frames.encode(Drop(1)))

    assert isinstance(answers[0], Hello)
    assert isinstance(answers[1], Parts)
    assert isinstance(replaced, Parts)
    assert (replaced.generation, replaced.parts[0][0]) == (2, 1)
    assert b"of 2" in replaced.parts[0][2]
    assert ended == End(1, 1, "closed", 2)


@pytest.mark.parametrize("reads_batches", [True, False])
async def test_parts_of_several_chats_are_one_frame_if_the_viewer_reads_such_frames(
    pair: Rig, reads_batches: bool
) -> None:
    there = pair.owner
    keys = [key(attempt) for attempt in (1, 2, 3)]
    episodes = [there.buffer.create_episode(each) for each in keys]
    async with await dial(pair, there.id) as link:
        await recv(link)
        await link.send(frames.encode(Hello(frames.PROTOCOL, uuid4(), reads_batches=reads_batches)))
        for sid, each in enumerate(keys):
            await link.send(frames.encode(select(sid, each, generation=1)))
        await until(lambda: there.endpoint.stats.selections == len(keys))
        for episode in episodes:
            say(episode, "a")
        there.buffer.close_episode(keys[1])

        received: list[frames.FromOwner] = []
        while not any(isinstance(frame, End) for frame in received) or len(parts_of(received)) < len(keys):
            received.append(frames.decode_from_owner(await recv(link)))
        say(episodes[0], "b")
        received.append(frames.decode_from_owner(await recv(link)))

    batches = [frame for frame in received if isinstance(frame, Batch)]
    assert [len(batch.items) for batch in batches] == ([len(keys)] if reads_batches else [])
    assert [(item.sid, [seq for seq, _, _ in item.parts]) for item in parts_of(received)] == [
        (0, [1]),
        (1, [1]),
        (2, [1]),
        (0, [2]),
    ]
    assert [(frame.sid, frame.reason, frame.last_seq) for frame in received if isinstance(frame, End)] == [
        (1, "closed", 1)
    ]


@pytest.mark.parametrize("fault", ["replayed", "expired", "other receiver", "unknown sender", "none", "garbage"])
async def test_bad_token_is_refused(pair: Rig, fault: str) -> None:
    here, there = pair.sites
    clock = pair.site.streams.services.clock
    token = {
        "expired": dial_tokens.mint(
            KEY, src=here.id, dst=there.id, clock=FakeClock(start=clock.now() - timedelta(minutes=1))
        ),
        "other receiver": dial_tokens.mint(KEY, src=there.id, dst=here.id, clock=clock),
        "unknown sender": dial_tokens.mint(KEY, src=uuid4(), dst=there.id, clock=clock),
        "replayed": dial_tokens.mint(KEY, src=here.id, dst=there.id, clock=clock),
        "none": "",
        "garbage": "a.b.c",
    }[fault]
    if fault == "replayed":
        async with await dial(pair, there.id, token=token):
            pass

    with pytest.raises(InvalidStatus) as refused:
        await dial(pair, there.id, token=token)

    assert refused.value.response.status_code == 401


async def test_token_is_good_once_and_for_half_a_minute() -> None:
    clock, me, peer = FakeClock(), uuid4(), uuid4()

    async def is_live(replica_id: object) -> bool:
        return replica_id == peer

    check = TokenCheck(KEY, me=me, clock=clock, is_live=is_live)
    token, late = (dial_tokens.mint(KEY, src=peer, dst=me, clock=clock) for _ in range(2))

    assert await check.check(token) == peer
    with pytest.raises(TokenRefused, match="before"):
        await check.check(token)
    await clock.advance(31)
    with pytest.raises(TokenRefused, match="expired"):
        await check.check(late)


@pytest.mark.parametrize("url", ["ws://10.0.0.5:9000", "http://127.0.0.1:1", "ws://example.org"])
def test_relay_beyond_this_machine_is_encrypted(url: str) -> None:
    with pytest.raises(ReplicaUnreachable):
        check_url(url)


@pytest.mark.parametrize("url", ["wss://10.0.0.5:9000", "ws://127.0.0.1:9000", "ws://[::1]:9000"])
def test_relay_may_be_plain_on_this_machine(url: str) -> None:
    check_url(url)


async def test_nonsense_on_a_link_ends_that_link_only(pair: Rig) -> None:
    _, there = pair.sites

    async with await dial(pair, there.id) as link:
        await link.recv()
        await link.send(msgspec.msgpack.encode({"type": "surprise"}))
        await link.wait_closed()

    assert link.close_code == 1008
    async with await dial(pair, there.id) as link:
        assert isinstance(frames.decode_from_owner(await recv(link)), Hello)


async def test_committed_text_is_complete_after_any_fault_of_the_link(pair: Rig) -> None:
    here, there = pair.sites
    chat_id, chat = await pair.running(worker=there.id)
    viewer = await here.view(chat_id)
    episode = there.episode(chat)
    for n in range(5):
        say(episode, f"{n} ")
        cut_links(pair)
    there.buffer.close_episode(key_of(chat))
    await pair.chats.commit(chat_id, assistant("0 1 2 3 4 "))
    await pair.chats.run(chat_id, machine.finish_turn)

    await viewer.until("message", 2)

    assert viewer.texts()[-1] == "0 1 2 3 4 "


def parts_of(received: list[frames.FromOwner]) -> list[Parts]:
    """Return the parts of all frames, in order."""
    found: list[Parts] = []
    for frame in received:
        found += frame.items if isinstance(frame, Batch) else [frame] if isinstance(frame, Parts) else []
    return found


def cut_links(rig: Rig) -> None:
    """Cut every connection between the replicas, without a close frame."""
    for site in rig.sites:
        for link in site.hub.links():
            if link._connection is not None:
                link._connection.transport.abort()


def key(attempt: int) -> EpisodeKey:
    return EpisodeKey(ChatId(uuid4()), 1, attempt)


def select(sid: int, episode: EpisodeKey, *, generation: int) -> Select:
    return Select(sid, episode.chat_id, episode.history_version, episode.generation_attempt, generation=generation)


async def dial(rig: Rig, to: UUID, *, token: str | None = None) -> ClientConnection:
    site = rig.sites[0]
    address = rig.addresses[to]
    if token is None:
        token = dial_tokens.mint(KEY, src=site.id, dst=address.id, clock=site.streams.services.clock)
    return await unix_connect(
        address.relay_unix,
        f"ws://localhost{frames.PATH}",
        additional_headers={"Authorization": f"Bearer {token}"},
        compression=None,
    )


async def recv(link: ClientConnection) -> bytes:
    async with asyncio.timeout(5):
        data = await link.recv()
    assert isinstance(data, bytes)
    return data
