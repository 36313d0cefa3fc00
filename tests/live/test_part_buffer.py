"""Episodes: parts, numbers, limits and retention."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID

import pytest
from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import File, HookContext, Reasoning, Source, Text, ToolCall, ToolResult
from rookery.live.feeds import EndReason
from rookery.live.part_buffer import (
    BufferClosed,
    EpisodeClosed,
    EpisodeExists,
    EpisodeFull,
    EpisodeNotFound,
    PartBuffer,
    PartLimits,
)
from rookery.runtime.clock import SystemClock
from rookery.runtime.shared_tick import SharedTick
from tests.live.part_buffer_rig import KEY, OTHER, START, Rig, as_json, read, texts


async def test_part_is_encoded_as_the_event_clients_get() -> None:
    rig = Rig()
    episode = rig.episode()

    first = episode.add_part(Role.ASSISTANT, Text("Hello"))
    second = episode.add_part(Role.TOOL, ToolResult("c1", "look", result=Raw(b'{"output": 1.50}')))

    assert (first, second) == (1, 2)
    assert [data for _, _, data in rig.buffer.subscribe(KEY).pull()] == [
        b'{"type":"message_part","seq":1,"role":"assistant","part":{"type":"text","text":"Hello"}}',
        b'{"type":"message_part","seq":2,"role":"tool","part":'
        b'{"type":"tool-result","tool_call_id":"c1","tool_name":"look","result":{"output": 1.50}}}',
    ]


async def test_every_subscriber_gets_the_same_bytes() -> None:
    rig = Rig()
    rig.say("Hello", episode=rig.episode())

    ((_, _, first),) = rig.buffer.subscribe(KEY).pull()
    ((_, _, second),) = rig.buffer.subscribe(KEY).pull()

    assert first is second


async def test_internal_fields_are_kept_in_the_draft_and_from_clients() -> None:
    rig = Rig()
    episode = rig.episode()
    file = File("image/png", file_id=UUID(int=1), data="AAAA")
    signed = Reasoning("", provider_meta={"signature": "s"})

    episode.add_part(Role.ASSISTANT, signed)
    episode.add_part(Role.TOOL, file)
    before = episode.add_part(Role.ASSISTANT, Text("x"))
    after = episode.add_part(Role.ASSISTANT, HookContext("for the model only"))

    assert before == after
    assert [as_json(event)["part"] for event in read(rig.buffer.subscribe(KEY))] == [
        {"type": "reasoning", "text": ""},
        {"type": "file", "media_type": "image/png", "file_id": str(UUID(int=1))},
        {"type": "text", "text": "x"},
    ]
    assert rig.close()[:2] == [signed, file]


async def test_half_a_character_is_shown_as_it_will_be_stored() -> None:
    rig = Rig()

    rig.say("a\ud83d", episode=rig.episode())

    assert texts(read(rig.buffer.subscribe(KEY))) == ["a\ufffd"]


async def test_episode_is_created_once() -> None:
    rig = Rig()
    rig.episode()

    with pytest.raises(EpisodeExists):
        rig.episode()


async def test_unknown_and_awaited_episodes_take_no_parts() -> None:
    rig = Rig()

    with pytest.raises(EpisodeNotFound):
        rig.buffer.add_part(KEY, Role.ASSISTANT, part=Text("x"))
    with rig.buffer.subscribe(KEY), pytest.raises(EpisodeNotFound):
        rig.buffer.add_part(KEY, Role.ASSISTANT, part=Text("x"))
    with pytest.raises(EpisodeNotFound):
        rig.buffer.get_parts(KEY)


async def test_parts_can_be_added_and_read_by_key() -> None:
    rig = Rig()
    rig.episode()

    seqs = [rig.buffer.add_part(KEY, Role.ASSISTANT, part=Text(text)) for text in "abc"]

    assert seqs == [1, 2, 2]
    assert [live.part for live in rig.buffer.get_parts(KEY)] == [Text("a"), Text("bc")]


async def test_closed_episode_takes_no_parts_and_gives_its_draft_again() -> None:
    rig = Rig()
    episode = rig.episode()
    rig.say("a", "b", "c", episode=episode)

    draft = rig.buffer.close_episode(KEY)

    with pytest.raises(EpisodeClosed):
        episode.add_part(Role.ASSISTANT, Text("d"))
    with pytest.raises(EpisodeClosed):
        rig.buffer.add_part(KEY, Role.ASSISTANT, part=Text("d"))
    assert draft is not None
    assert [live.part for live in draft] == [Text("a"), Text("bc")]
    assert rig.buffer.close_episode(KEY) == draft


async def test_closing_an_unknown_episode_keeps_a_late_generation_out() -> None:
    rig = Rig()

    assert rig.buffer.close_episode(KEY) is None
    assert rig.buffer.close_episode(KEY) is None
    with pytest.raises(EpisodeExists):
        rig.episode()


async def test_closing_an_awaited_episode_ends_those_who_waited() -> None:
    rig = Rig()
    subscription = rig.buffer.subscribe(KEY)

    assert rig.buffer.close_episode(KEY) is None
    assert subscription.end is EndReason.CLOSED


async def test_created_episode_without_parts_has_an_empty_draft() -> None:
    rig = Rig()
    rig.episode()

    assert rig.buffer.close_episode(KEY) == ()


async def test_model_invocation_is_stamped_with_the_clock() -> None:
    rig = Rig()
    assert rig.buffer.model_invoked_at(KEY) is None
    with pytest.raises(EpisodeNotFound):
        rig.buffer.start_model_invocation(KEY)
    rig.episode()
    assert rig.buffer.model_invoked_at(KEY) is None

    rig.buffer.start_model_invocation(KEY)
    await rig.clock.advance(5)

    assert rig.buffer.model_invoked_at(KEY) == START
    rig.buffer.close_episode(KEY)
    with pytest.raises(EpisodeClosed):
        rig.buffer.start_model_invocation(KEY)


# The size limit


async def test_twenty_thousand_deltas_fit_even_if_each_has_a_window_of_its_own() -> None:
    rig = Rig()
    episode = rig.episode()
    subscription = rig.buffer.subscribe(KEY)

    for number in range(20_000):
        assert episode.add_part(Role.ASSISTANT, Text(f" w{number % 10}")) == number + 1
        rig.timers.fire()

    rig.buffer.close_episode(KEY)
    assert "".join(texts(read(subscription))) == "".join(f" w{number % 10}" for number in range(20_000))
    assert subscription.end is EndReason.CLOSED


async def test_full_is_full_for_smaller_parts_too() -> None:
    rig = Rig(PartLimits(episode_max_bytes=300))
    episode = rig.episode()
    follower = rig.buffer.subscribe(KEY)
    episode.add_part(Role.ASSISTANT, Text("fits"))

    with pytest.raises(EpisodeFull):
        episode.add_part(Role.ASSISTANT, Source("https://example.org/" + "x" * 300))
    with pytest.raises(EpisodeFull):
        episode.add_part(Role.ASSISTANT, Text("small"))

    late = rig.buffer.subscribe(KEY)
    for subscription in (follower, late):
        assert texts(read(subscription)) == ["fits"]
        assert subscription.end is EndReason.TRUNCATED
    assert rig.buffer.stats().dropped == 2


async def test_size_counts_the_encoded_bytes_exactly() -> None:
    size = len(b'{"type":"message_part","seq":1,"role":"assistant","part":{"type":"text","text":"x"}}')
    fits, too_small = Rig(PartLimits(episode_max_bytes=size)), Rig(PartLimits(episode_max_bytes=size - 1))

    assert fits.say("x", episode=fits.episode()) == [1]
    assert fits.buffer.stats().size_bytes == size
    with pytest.raises(EpisodeFull):
        too_small.say("x", episode=too_small.episode())


async def test_full_episode_still_knows_what_an_interruption_keeps() -> None:
    rig = Rig(PartLimits(episode_max_bytes=300))
    episode = rig.episode()
    result = ToolResult("c1", "look", result=Raw(b"{}"))
    episode.add_part(Role.ASSISTANT, Text("shown"))

    for part in (Source("https://" + "x" * 300), ToolResult("c1", "look", result_delta="running"), result):
        with pytest.raises(EpisodeFull):
            episode.add_part(Role.TOOL, part)

    assert rig.close() == [Text("shown"), Source("https://" + "x" * 300), result]


async def test_closing_a_full_episode_changes_nothing_for_readers() -> None:
    rig = Rig(PartLimits(episode_max_bytes=100))
    with pytest.raises(EpisodeFull):
        rig.say("x", "y" * 600, episode=rig.episode())

    rig.close()

    late = rig.buffer.subscribe(KEY)
    assert texts(read(late)) == ["x"]
    assert late.end is EndReason.TRUNCATED


# Dropped episodes


async def test_closed_episode_is_kept_for_a_while_and_then_forgotten() -> None:
    rig = Rig()
    rig.episode()
    rig.close()

    await rig.clock.advance(14.9)
    rig.buffer.sweep()
    assert rig.buffer.get_parts(KEY) == ()
    await rig.clock.advance(0.1)
    with pytest.raises(EpisodeNotFound):
        rig.buffer.get_parts(KEY)
    assert rig.buffer.stats().episodes == 0


async def test_open_episode_is_never_forgotten() -> None:
    rig = Rig()
    rig.episode()

    await rig.clock.advance(100_000)
    rig.buffer.sweep()

    assert rig.buffer.stats().open_episodes == 1


async def test_episode_with_a_reader_is_kept_and_others_are_not() -> None:
    rig = Rig()
    for key in (KEY, OTHER):
        rig.say("a", episode=rig.episode(key))
        rig.close(key)
    await rig.clock.advance(14)
    reader = rig.buffer.subscribe(KEY)

    await rig.clock.advance(2)
    rig.buffer.sweep()

    assert rig.buffer.stats().episodes == 1
    assert texts(read(reader)) == ["a"]
    assert reader.end is EndReason.CLOSED
    assert rig.buffer.stats().episodes == 0


async def test_closed_episodes_share_a_limit_and_the_oldest_without_readers_are_dropped_first() -> None:
    rig = Rig(PartLimits(closed_max_bytes=4_000))
    keys = [KEY._replace(generation_attempt=number) for number in range(1, 5)]
    for key in keys:
        rig.say("x" * 900, episode=rig.episode(key))
    reader = rig.buffer.subscribe(keys[0])
    for key in keys[:3]:
        rig.close(key)
    assert rig.buffer.stats().episodes == 4

    rig.buffer.sweep()

    # The first has a reader, the second is dropped, and the last is still open.
    assert [rig.buffer._episodes.get(key) is not None for key in keys] == [True, False, True, True]
    reader.close()


async def test_creating_an_episode_collects_old_ones_without_a_sweep() -> None:
    rig = Rig()
    rig.buffer.close_episode(KEY)
    await rig.clock.advance(15)

    rig.episode(OTHER)

    assert rig.buffer.stats().episodes == 1


async def test_awaited_episode_goes_with_its_last_subscriber() -> None:
    rig = Rig()
    first, second = rig.buffer.subscribe(KEY), rig.buffer.subscribe(KEY)

    first.close()
    assert rig.buffer.stats().episodes == 1
    second.close()
    assert rig.buffer.stats().episodes == 0


async def test_refused_subscription_leaves_nothing_behind() -> None:
    rig = Rig()

    with pytest.raises(ValueError, match="numbered from 1"):
        rig.buffer.subscribe(KEY, 0)

    assert rig.buffer.stats().episodes == 0


async def test_a_thousand_finished_episodes_leave_nothing_behind() -> None:
    rig = Rig()
    for attempt in range(1, 1001):
        key = KEY._replace(generation_attempt=attempt)
        episode = rig.episode(key)
        with rig.buffer.subscribe(key) as subscription:
            rig.say("a", "b", episode=episode)
            subscription.pull()
        rig.close(key)

    await rig.clock.advance(15)
    rig.buffer.sweep()

    assert rig.buffer.stats() == type(rig.buffer.stats())(0, 0, 0, 0, 0, 0)
    assert rig.timers.armed == []


# The end


async def test_closing_the_buffer_ends_readers_and_refuses_everything() -> None:
    rig = Rig()
    episode = rig.episode()
    rig.say("a", "b", episode=episode)
    behind, awaiting = rig.buffer.subscribe(KEY), rig.buffer.subscribe(OTHER)

    rig.buffer.close()
    rig.buffer.close()

    assert (behind.end, awaiting.end) == (EndReason.SHUTDOWN, EndReason.SHUTDOWN)
    assert behind.pull() == []
    assert rig.timers.armed == []
    for call in (
        lambda: rig.buffer.create_episode(OTHER),
        lambda: rig.buffer.add_part(KEY, Role.ASSISTANT, part=Text("x")),
        lambda: rig.buffer.close_episode(KEY),
        lambda: rig.buffer.get_parts(KEY),
        lambda: rig.buffer.start_model_invocation(KEY),
        lambda: rig.buffer.model_invoked_at(KEY),
        lambda: rig.buffer.subscribe(KEY),
        lambda: rig.buffer.sweep(),
        lambda: episode.add_part(Role.ASSISTANT, Text("x")),
    ):
        with pytest.raises(BufferClosed):
            call()


async def test_running_buffer_evicts_and_collects_until_it_is_closed() -> None:
    rig = Rig()
    running = asyncio.create_task(rig.buffer.run())
    rig.say("a", episode=rig.episode())
    stalled = rig.buffer.subscribe(KEY)
    rig.close()
    await rig.clock.until_waiting("part-sweep")

    await rig.clock.advance(9)
    assert stalled.end is None
    await rig.clock.advance(2)
    assert stalled.end is EndReason.EVICTED
    await rig.clock.advance(10)
    assert rig.buffer.stats().episodes == 0

    rig.buffer.close()
    await rig.clock.advance(1)
    async with asyncio.timeout(5):
        await running


async def test_another_thread_may_not_touch_the_buffer() -> None:
    rig = Rig()
    episode = rig.episode()
    caught: list[BaseException] = []

    def intrude() -> None:
        for call in (lambda: rig.buffer.subscribe(KEY), lambda: episode.add_part(Role.ASSISTANT, Text("x"))):
            try:
                call()
            except AssertionError as error:
                caught.append(error)

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()

    assert len(caught) == 2


async def test_buffer_uses_the_timers_of_the_running_loop() -> None:
    buffer = PartBuffer(SystemClock(), tick=SharedTick(0.001))
    episode = buffer.create_episode(KEY)
    with buffer.subscribe(KEY) as subscription:
        for text in "abc":
            episode.add_part(Role.ASSISTANT, Text(text))

        async with asyncio.timeout(5):
            first = await anext(subscription)
            second = await anext(subscription)

    assert texts([*first, *second]) == ["a", "bc"]
    buffer.close()


async def test_call_is_announced_before_its_arguments() -> None:
    rig = Rig()
    episode = rig.episode()
    subscription = rig.buffer.subscribe(KEY)

    episode.add_part(Role.ASSISTANT, ToolCall("c1", "look"))
    episode.add_part(Role.ASSISTANT, ToolCall("c1", "look", args_delta='{"path"'))

    assert texts(subscription.pull()) == ["", '{"path"']
