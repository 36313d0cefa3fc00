"""The fast path for one more part in an idle stream, and its wake-ups of the session."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import Source, Text
from rookery.live.part_buffer import Episode
from rookery.store.db.hints import MiscHint
from rookery.stream.access_monitor import Grant
from rookery.stream.follow import ChatStream
from rookery.stream.outbox import Frame
from rookery.stream.query_parameters import StreamParams
from tests.eventually import until
from tests.store.machine.machine_rig import assistant
from tests.stream.stream_rig import Rig, say


def is_at_rest(rig: Rig) -> bool:
    """Return whether all sessions have sent everything."""
    return all(slot.session is not None and slot.session._is_resting for slot in rig.site.streams.sessions._slots)


class Reader:
    """Takes frames like a session, and counts wake-ups."""

    def __init__(self, source: ChatStream) -> None:
        self.source = source
        self.rings = 0
        source.attach(self.ring)
        self.frames: list[Frame] = []

    def ring(self) -> None:
        self.rings += 1

    def take(self) -> list[str]:
        """Return the frames up to the first one with `is_all`."""
        taken: list[str] = []
        while (frame := self.source.take()) is not None:
            self.frames.append(frame)
            events: list[dict[str, Any]] = json.loads(frame.data)
            taken += [event["part"].get("text", event["type"])[:1] for event in events if "part" in event]
            if frame.is_all:
                break
        return taken


@asynccontextmanager
async def resting(rig: Rig) -> AsyncIterator[tuple[Reader, Episode, ChatId]]:
    """Return a reader of a running chat that has received the first part."""
    chat_id, chat = await rig.running(worker=rig.owner.id)
    grant = Grant(user_id=uuid4(), credential="c", chat_id=chat_id, root_id=chat_id)
    opened = await rig.site.streams.open_chat(grant, StreamParams(debug=True))
    assert isinstance(opened._source, ChatStream)
    reader = Reader(opened._source)
    reader.take()
    episode = rig.owner.episode(chat)
    say(episode, "a")
    assert reader.take() == ["a"]
    reader.rings = 0
    yield reader, episode, chat_id
    await opened.close()


async def test_single_part_is_all_there_is(rig: Rig) -> None:
    async with resting(rig) as (reader, episode, _):
        for letter in "bcd":
            say(episode, letter)
            assert reader.take() == [letter]
            assert reader.frames[-1].is_all
            assert reader.source.take() is None
        assert reader.rings == 3


async def test_parts_that_do_not_fit_one_batch_are_not_all(rig: Rig) -> None:
    async with resting(rig) as (reader, episode, _):
        # Each is nearly a batch, so they are read one by one, and only the first wakes the reader.
        say(episode, *(letter * 200_000 for letter in "bcdef"))

        assert reader.take() == list("bcdef")
        assert reader.rings == 1
        assert reader.source.take() is None


async def test_several_parts_and_parts_of_other_kinds_come_in_order(rig: Rig) -> None:
    async with resting(rig) as (reader, episode, _):
        say(episode, "b", "c")
        episode.add_part(Role.ASSISTANT, Source("https://example.org"))
        say(episode, "d")

        assert reader.take() == ["b", "c", "m", "d"]
        say(episode, "e")
        assert reader.take() == ["e"]


@pytest.mark.parametrize("before", [True, False])
async def test_end_of_an_episode_is_found_behind_its_last_part(rig: Rig, before: bool) -> None:
    async with resting(rig) as (reader, episode, _):
        if before:
            say(episode, "b")
            assert reader.take() == ["b"]
        else:
            episode.add_part(Role.ASSISTANT, Text("b"))
        rig.owner.buffer.close_episode(episode.key)

        assert reader.take() == ([] if before else ["b"])
        assert reader.source.take() is None
        assert reader.source._subscription is None


async def test_durable_changes_are_not_missed_between_parts(rig: Rig) -> None:
    async with resting(rig) as (reader, episode, chat_id):
        say(episode, "b")
        rig.site.bus.dispatch(MiscHint(topic=f"debug:{chat_id}", data={"kind": "run", "run_id": "r1"}))

        assert reader.take() == ["b"]
        assert b"r1" in b"".join(frame.data for frame in reader.frames)


async def test_part_is_sent_at_once_and_wakes_no_task(rig: Rig) -> None:
    chat_id, chat = await rig.running(worker=rig.site.id)
    first, second = await rig.site.view(chat_id), await rig.site.view(chat_id)
    episode = rig.site.episode(chat)
    say(episode, "a")
    for viewer in (first, second):
        await viewer.until("message_part")
    await until(lambda: is_at_rest(rig))
    sent = rig.site.streams.sessions.stats.sent_frames

    say(episode, "b")
    assert (first.preview(), second.preview()) == ("ab", "ab"), "no task has run since"
    second.transport.gate.clear()
    say(episode, "c")
    assert (first.preview(), second.preview()) == ("abc", "ab"), "a slow client is written to by its own task"
    say(episode, "d")
    assert first.preview() == "abcd"
    assert rig.site.streams.sessions.stats.sent_frames == sent + 4

    second.transport.gate.set()
    await until(lambda: second.preview() == "abcd")
    assert [part["seq"] for part in second.of("message_part")] == [1, 2, 3, 4]


async def test_end_of_an_episode_and_what_follows_come_behind_parts_sent_at_once(rig: Rig) -> None:
    chat_id, chat = await rig.running(worker=rig.site.id)
    viewer = await rig.site.view(chat_id)
    episode = rig.site.episode(chat)
    say(episode, "a")
    await viewer.until("message_part")
    await until(lambda: is_at_rest(rig))

    say(episode, "b")
    rig.site.buffer.close_episode(episode.key)
    await rig.chats.commit(chat_id, assistant("ab"))
    await viewer.until("message", 2)

    kinds = [kind for kind in viewer.types() if kind in ("message_part", "message", "preview_reset")]
    assert kinds[-4:-2] == ["message_part", "message_part"]
    assert set(kinds[-2:]) == {"message", "preview_reset"}
