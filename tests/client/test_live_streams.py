"""Following a chat on a real server: each message arrives once, despite cut and silent connections."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rookery.client import AsyncRookery, errors
from rookery.client.reconnecting_stream import Transport
from rookery.domain.chat.chat import LastError
from rookery.domain.chat.messages import MessageId
from rookery.domain.chat.parts import Text
from rookery.domain.chat.states import State
from rookery.server import listener
from rookery.store import machine
from tests.client.client_rig import Rig, follow, preview, texts, write
from tests.eventually import until

BOTH = pytest.mark.parametrize("transport", ["websocket", "sse"])


def kinds(events: Any) -> list[str]:
    return [event["type"] for event in events]


@BOTH
async def test_history_arrives_as_one_change(rig: Rig, transport: Transport) -> None:
    chat_id = await rig.chat("hello", "good morning", "how are you?", "well")

    async with rig.client.chats.stream(chat_id, transport=transport) as live:
        changes = await follow(live, lambda: live.state.status == "waiting")

    committed = [change for change in changes if change.is_committed]
    assert kinds(committed[0].events) == ["history_reset", *["message"] * 4, "status", "synced"]
    assert texts(live) == ["hello", "good morning", "how are you?", "well"]
    assert [message.role for message in live.messages] == ["user", "assistant"] * 2


@BOTH
async def test_server_on_a_unix_socket_is_followed(rig: Rig, transport: Transport) -> None:
    chat_id = await rig.chat("hello", "good morning")

    with (
        tempfile.TemporaryDirectory(prefix="rk") as folder,
        listener.unix_socket(Path(folder) / "api.sock") as listening,
    ):
        socket_path = str(Path(folder) / "api.sock")
        async with (
            listener.serving(rig.rig.replica.application, listening),
            AsyncRookery("http://localhost", token=rig.person.token, unix_socket=socket_path) as client,
            client.chats.stream(chat_id, transport=transport) as live,
        ):
            await follow(live, lambda: live.state.status == "waiting")
            assert (await client.chats.get(chat_id)).id == chat_id

    assert texts(live) == ["hello", "good morning"]


@BOTH
async def test_live_parts_come_before_the_message_that_they_become(rig: Rig, transport: Transport) -> None:
    chat_id, episode = await rig.running()

    async with rig.client.chats.stream(chat_id, transport=transport) as live:
        await follow(live, lambda: live.state.status == "running")
        write(episode, "good ", "morning")
        await follow(live, lambda: preview(live) == "good morning")
        await rig.say(chat_id, "good morning")
        await rig.finish(chat_id)
        await follow(live, lambda: live.state.status == "waiting")

    assert preview(live) == ""
    assert texts(live) == ["hello", "good morning"]


@BOTH
async def test_cut_connection_is_made_up_for_without_loss_or_repeat(rig: Rig, transport: Transport) -> None:
    chat_id, episode = await rig.running()

    async with rig.client.chats.stream(chat_id, transport=transport) as live:
        await follow(live, lambda: live.state.status == "running")
        write(episode, "half an ")
        await follow(live, lambda: bool(preview(live)))
        last = live.state.last_message_id

        rig.proxy.cut()
        following = asyncio.create_task(follow(live, lambda: live.state.status == "waiting"))
        await rig.clock.until_waiting("stream-retry")
        await rig.say(chat_id, "an answer")
        await rig.finish(chat_id)
        await rig.clock.fire("stream-retry")
        changes = await following

    told = changes[0].events[0]
    assert told["type"] == "disconnected"
    assert 0.7 <= told["retry_in_seconds"] <= 1.3
    hello = next(event for change in changes for event in change.events if event["type"] == "hello")
    assert hello["resume"] == "delta"
    assert f"after_id={last}".encode() in bytes(rig.proxy.requests)
    assert texts(live) == ["hello", "an answer"]


@BOTH
async def test_preview_of_a_lost_connection_is_dropped_when_the_next_one_begins(rig: Rig, transport: Transport) -> None:
    chat_id, episode = await rig.running()

    async with rig.client.chats.stream(chat_id, transport=transport) as live:
        write(episode, "half ", "an answer")
        await follow(live, lambda: preview(live) == "half an answer")
        rig.proxy.cut()
        following = asyncio.create_task(follow(live, lambda: rig.proxy.connections == 2 and bool(preview(live))))
        await rig.clock.fire("stream-retry")
        await following
        await follow(live, lambda: len(preview(live)) >= len("half an answer"))

        assert preview(live) == "half an answer"


async def test_delays_grow_up_to_ten_seconds_and_are_reset_after_a_connection(rig: Rig) -> None:
    chat_id = await rig.chat()

    async with rig.client.chats.stream(chat_id) as live:
        await follow(live, lambda: live.state.status == "waiting")
        following = asyncio.create_task(follow(live, lambda: False))
        rig.proxy.is_down = True
        rig.proxy.cut()
        waits = [await wait_and_fire(rig) for _ in range(6)]
        rig.proxy.is_down = False
        before = await wait_and_fire(rig)
        await rig.clock.until_waiting("stream-silence")
        rig.proxy.cut()
        first = await wait_and_fire(rig)
        following.cancel()
        await asyncio.wait([following])

    for wait, plain in zip(waits, (1.0, 2.0, 4.0, 8.0, 10.0, 10.0), strict=True):
        assert 0.7 * plain - 1e-6 <= wait <= min(1.3 * plain, 10.0) + 1e-6
    assert before >= 7.0
    assert first <= 1.3


async def wait_and_fire(rig: Rig) -> float:
    await rig.clock.until_waiting("stream-retry")
    wait = rig.clock.waiting("stream-retry")[0].due - rig.clock.monotonic()
    await rig.clock.fire("stream-retry")
    return wait


@BOTH
async def test_server_that_is_silent_for_fifty_seconds_is_left(rig: Rig, transport: Transport) -> None:
    chat_id = await rig.chat()

    async with rig.client.chats.stream(chat_id, transport=transport) as live:
        await follow(live, lambda: live.state.status == "waiting")
        rig.proxy.hang()
        following = asyncio.create_task(follow(live, lambda: rig.proxy.connections == 2))
        await rig.clock.until_waiting("stream-silence")
        assert rig.clock.waiting("stream-silence")[0].due - rig.clock.monotonic() == 50.0
        await rig.clock.fire("stream-silence")
        await rig.clock.until_waiting("stream-retry")
        rig.proxy.flow()
        await rig.clock.fire("stream-retry")
        changes = await following

    assert changes[0].events[0]["reason"] == "the server was silent for 50 s"


@BOTH
async def test_server_that_leaves_says_when_to_come_back(rig: Rig, transport: Transport) -> None:
    chat_id = await rig.chat()

    async with rig.client.chats.stream(chat_id, transport=transport) as live:
        await follow(live, lambda: live.state.status == "waiting")
        following = asyncio.create_task(follow(live, lambda: rig.proxy.connections == 2))
        await rig.rig.replica.streams.sessions.goodbye()
        await rig.clock.until_waiting("stream-retry")
        await rig.clock.fire("stream-retry")
        changes = await following

    goodbye, told = [event for change in changes for event in change.events][:2]
    assert goodbye["type"] == "goodbye"
    assert told["retry_in_seconds"] == goodbye["retry_after_ms"] / 1000


@BOTH
async def test_deleted_chat_ends_the_stream_for_good(rig: Rig, transport: Transport) -> None:
    chat_id = await rig.chat()

    async with rig.client.chats.stream(chat_id, transport=transport) as live:
        await follow(live, lambda: live.state.status == "waiting")
        await rig.chats.run(chat_id, machine.set_archived, True)
        await rig.rig.replica.store.as_actor(rig.actor).chats.delete(chat_id)
        with pytest.raises(errors.ChatDeleted) as caught:
            await follow(live, lambda: False)

    assert caught.value.close_code == 4404


@BOTH
async def test_token_that_ends_is_told_apart_from_a_lost_connection(rig: Rig, transport: Transport) -> None:
    chat_id = await rig.chat()

    async with rig.client.chats.stream(chat_id, transport=transport) as live:
        await follow(live, lambda: live.state.status == "waiting")
        store = rig.rig.replica.store.as_actor(rig.actor)
        (token,) = await store.tokens.list(rig.person.id)
        await store.tokens.delete(token.id)
        with pytest.raises(errors.LoggedOut):
            await follow(live, lambda: False)


@BOTH
async def test_refusals_of_a_stream_are_those_of_requests(rig: Rig, transport: Transport) -> None:
    nobody = await rig.connect(None)
    stranger = await rig.connect("rk_nonsense")

    with pytest.raises(errors.NotFound) as caught:
        await open_stream(rig.client, transport, chat="6f7c1a4e-0000-4000-8000-000000000001")
    for client in (nobody, stranger):
        with pytest.raises(errors.Unauthenticated):
            await open_stream(client, transport, chat=str(await rig.chat()))

    assert caught.value.code == "chat_not_found"
    assert caught.value.request_id


async def open_stream(client: AsyncRookery, transport: Transport, *, chat: str) -> None:
    async with client.chats.stream(chat, transport=transport):
        pass


@BOTH
async def test_edit_during_a_disconnection_resets_the_history(rig: Rig, transport: Transport) -> None:
    chat_id = await rig.chat("hello", "good morning")

    async with rig.client.chats.stream(chat_id, transport=transport) as live:
        await follow(live, lambda: live.state.status == "waiting")
        rig.proxy.cut()
        following = asyncio.create_task(follow(live, lambda: live.state.status == "running"))
        await rig.clock.until_waiting("stream-retry")
        first = MessageId(next(iter(live.state.messages)))
        await rig.chats.run(
            chat_id, machine.edit_message, first, content=(Text("good evening"),), edited_by=rig.person.id
        )
        await rig.clock.fire("stream-retry")
        await following

    assert texts(live) == ["good evening"]


async def test_waiting_for_rest_does_not_take_an_older_rest_for_it(rig: Rig) -> None:
    chat_id = await rig.chat("hello", "good morning")

    async with rig.client.chats.stream(chat_id) as live:
        await live.wait_idle()
        await rig.chats.send(chat_id, "and now?")
        waiting = asyncio.create_task(live.answer((await rig.load(chat_id)).snapshot_version))
        await rig.say(chat_id, "evening")
        await rig.finish(chat_id)

        assert await waiting == "evening"


async def test_turn_that_fails_raises_its_error(rig: Rig) -> None:
    chat_id, _ = await rig.running()

    async with rig.client.chats.stream(chat_id) as live:
        await rig.chats.run(chat_id, machine.finish_error, LastError(message="It broke.", retryable=True))
        with pytest.raises(errors.TurnFailed, match="It broke"):
            await live.answer()


async def test_turn_that_waits_for_tools_of_the_program_says_so(rig: Rig) -> None:
    chat_id = await rig.chats.chat(State.A0)

    async with rig.client.chats.stream(chat_id) as live:
        with pytest.raises(errors.ActionRequired, match="pick_colour") as caught:
            await live.answer()

    assert [call["tool_call_id"] for call in caught.value.action["tool_calls"]] == ["call-1"]


async def test_list_is_watched_over_lost_connections(rig: Rig) -> None:
    async with rig.client.watch() as watch:
        ready = await anext(watch)
        chat_id = await rig.chat()
        created = await anext(watch)
        while "status_change" not in created.kinds:
            created = await anext(watch)
        rig.proxy.cut()
        lost = await anext(watch)
        coming = asyncio.ensure_future(anext(watch))
        await rig.clock.fire("stream-retry")
        again = await coming

    assert [event.type for event in (ready, lost, again)] == ["ready", "disconnected", "ready"]
    assert created.chat is not None
    assert (created.chat.id, created.chat.status, created.chat.my_role) == (chat_id, "waiting", "owner")


@BOTH
async def test_reader_that_is_cancelled_may_read_on(rig: Rig, transport: Transport) -> None:
    chat_id = await rig.chat()

    async with rig.client.chats.stream(chat_id, transport=transport) as live:
        await follow(live, lambda: live.state.status == "waiting")
        reading = asyncio.ensure_future(anext(live))
        await rig.clock.until_waiting("stream-silence")
        reading.cancel()
        await asyncio.wait([reading])
        await rig.chats.send(chat_id, "and now?")
        following = asyncio.create_task(follow(live, lambda: live.state.status == "running"))
        if transport == "sse":  # the response was read by the canceled task; another connection continues
            await rig.clock.fire("stream-retry")
        await following

    assert texts(live) == ["hello", "and now?"]


@BOTH
async def test_stream_that_is_closed_leaves_nothing_behind(rig: Rig, transport: Transport) -> None:
    chat_id = await rig.chat()

    async def look() -> None:
        async with rig.client.chats.stream(chat_id, transport=transport) as live:
            await live.wait_idle()

    await look()
    await until(lambda: not rig.proxy.is_used)
    tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        await look()

    await until(lambda: not rig.proxy.is_used)
    await until(lambda: len(asyncio.all_tasks()) <= tasks and len(os.listdir("/proc/self/fd")) <= files)


async def test_stream_that_is_closed_ends_its_iteration(rig: Rig) -> None:
    live = rig.client.chats.stream(await rig.chat())

    async with live:
        await live.wait_idle()

    assert [change async for change in live] == []
    with pytest.raises(errors.StreamEnded, match="before the chat came to rest"):
        await live.wait_idle(10**9)
