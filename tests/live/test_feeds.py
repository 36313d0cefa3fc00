"""Subscriptions: replay, following, waiting, and all reasons of an end."""

from __future__ import annotations

import asyncio

import pytest

from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import Source, Text
from rookery.live import deltas
from rookery.live.deltas import PartEvent
from rookery.live.feeds import EndReason, Feed, Subscription
from rookery.testing.clock import FakeClock
from tests.live.part_buffer_rig import KEY, OTHER, Rig, read, texts


async def collect(subscription: Subscription) -> tuple[str, EndReason | None]:
    """Read to the end."""
    said = ""
    with subscription:
        async for batch in subscription:
            said += "".join(texts(batch))
    return said, subscription.end


async def settle() -> None:
    """Run all tasks that can run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_late_subscriber_gets_all_parts_and_then_follows() -> None:
    rig = Rig()
    episode = rig.episode()
    rig.say("a", "b", episode=episode)
    rig.timers.fire()
    reader = asyncio.create_task(collect(rig.buffer.subscribe(KEY)))
    await settle()

    rig.say("c", episode=episode)
    rig.timers.fire()
    await settle()
    rig.say("d", episode=episode)
    rig.close()

    assert await reader == ("abcd", EndReason.CLOSED)


async def test_early_subscriber_waits_for_the_episode() -> None:
    rig = Rig()
    reader = asyncio.create_task(collect(rig.buffer.subscribe(KEY)))
    await settle()

    episode = rig.episode()
    await settle()
    assert not reader.done()
    rig.say("a", "b", episode=episode)
    rig.close()

    assert await reader == ("ab", EndReason.CLOSED)


async def test_early_subscriber_of_one_attempt_hears_nothing_of_another() -> None:
    rig = Rig()
    early = rig.buffer.subscribe(KEY)

    rig.say("a", episode=rig.episode(OTHER))

    assert early.pull() == []


async def test_subscriber_from_the_middle_gets_the_rest() -> None:
    rig = Rig()
    episode = rig.episode()
    for text in "abcd":
        rig.say(text, episode=episode)
        rig.timers.fire()

    assert texts(rig.buffer.subscribe(KEY, 3).pull()) == ["c", "d"]


async def test_subscriber_from_beyond_the_end_waits_for_its_number() -> None:
    rig = Rig()
    episode = rig.episode()
    rig.say("a", episode=episode)
    subscription = rig.buffer.subscribe(KEY, 3)

    assert subscription.pull() == []
    rig.say("b", episode=episode)
    rig.timers.fire()
    assert subscription.pull() == []
    rig.say("c", episode=episode)
    rig.timers.fire()

    assert texts(subscription.pull()) == ["c"]


async def test_batch_holds_everything_that_is_pending() -> None:
    rig = Rig()
    episode = rig.episode()
    subscription = rig.buffer.subscribe(KEY)
    for text in "abc":
        rig.say(text, episode=episode)
        rig.timers.fire()

    assert texts(await anext(subscription)) == ["a", "b", "c"]


async def test_cancelled_wait_loses_nothing() -> None:
    rig = Rig()
    episode = rig.episode()
    subscription = rig.buffer.subscribe(KEY)
    wait = asyncio.ensure_future(anext(subscription))
    await settle()

    # The reader is woken and cancelled in the same pass of the event loop. The next wait must return the part.
    rig.say("a", episode=episode)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait

    assert texts(await anext(subscription)) == ["a"]


async def test_second_reader_of_one_subscription_is_refused() -> None:
    rig = Rig()
    subscription = rig.buffer.subscribe(KEY)
    wait = asyncio.ensure_future(anext(subscription))
    await settle()

    with pytest.raises(RuntimeError, match="one reader"):
        await anext(subscription)

    subscription.close()
    with pytest.raises(StopAsyncIteration):
        await wait
    assert subscription.end is None


async def test_last_batch_of_a_closed_episode_already_tells_the_end() -> None:
    rig = Rig()
    rig.say("a", episode=rig.episode())
    rig.close()
    subscription = rig.buffer.subscribe(KEY)
    assert subscription.end is None

    batch = subscription.pull()

    assert texts(batch) == ["a"]
    assert subscription.end is EndReason.CLOSED
    assert subscription.pull() == []
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)


async def test_closed_subscription_reads_nothing_and_may_be_closed_again() -> None:
    rig = Rig()
    rig.say("a", episode=rig.episode())
    subscription = rig.buffer.subscribe(KEY)

    subscription.close()
    subscription.close()

    assert subscription.pull() == []
    assert rig.buffer.stats().subscribers == 0


# Wake-ups


async def test_reader_is_woken_once_until_it_has_read_everything() -> None:
    rig = Rig()
    episode = rig.episode()
    woken: list[str] = []
    subscription = rig.buffer.subscribe(KEY, wake=lambda: woken.append("!"))

    for text in "abc":
        rig.say(text, episode=episode)
        rig.timers.fire()
    assert woken == ["!"]
    subscription.pull()
    rig.say("d", episode=episode)
    rig.timers.fire()
    assert woken == ["!", "!"]


async def test_reader_is_woken_for_the_end() -> None:
    rig = Rig()
    rig.episode()
    woken: list[EndReason | None] = []
    subscription = rig.buffer.subscribe(KEY, wake=lambda: woken.append(subscription.end))

    rig.close()

    assert woken == [EndReason.CLOSED]


async def test_reader_may_pull_and_close_others_while_it_is_woken() -> None:
    rig = Rig()
    episode = rig.episode()
    got: list[str] = []

    def greedy() -> None:
        got.extend(texts(first.pull()))
        second.close()

    first = rig.buffer.subscribe(KEY, wake=greedy)
    second = rig.buffer.subscribe(KEY, wake=lambda: got.append("woken after its end"))
    for text in "ab":
        rig.say(text, episode=episode)
        rig.timers.fire()

    assert got == ["a", "b"]


# Stalled readers


async def test_stalled_reader_is_dropped_while_others_go_on() -> None:
    rig = Rig()
    episode = rig.episode()
    woken: list[str] = []
    stalled, healthy = rig.buffer.subscribe(KEY, wake=lambda: woken.append("!")), rig.buffer.subscribe(KEY)
    rig.say("a", episode=episode)
    healthy.pull()

    await rig.clock.advance(9.9)
    rig.buffer.sweep()
    assert stalled.end is None
    await rig.clock.advance(0.1)
    rig.buffer.sweep()
    rig.say("b", episode=episode)
    rig.timers.fire()

    assert stalled.end is EndReason.EVICTED
    assert stalled.pull() == []
    assert stalled.next_seq == 1
    assert woken == ["!", "!"]
    assert texts(healthy.pull()) == ["b"]
    assert rig.buffer.stats().evicted == 1


async def test_reader_with_nothing_to_read_never_stalls() -> None:
    rig = Rig()
    episode = rig.episode()
    rig.say("a", episode=episode)
    caught_up, early = rig.buffer.subscribe(KEY), rig.buffer.subscribe(OTHER)
    caught_up.pull()

    await rig.clock.advance(1000)
    rig.buffer.sweep()

    assert (caught_up.end, early.end) == (None, None)


async def test_burst_alone_evicts_no_reader() -> None:
    rig = Rig()
    episode = rig.episode()
    subscription = rig.buffer.subscribe(KEY)

    for _ in range(5000):
        episode.add_part(Role.ASSISTANT, Source("https://example.org"))
    await rig.clock.advance(9)
    rig.buffer.sweep()

    assert len(read(subscription)) == 5000


async def test_slow_reader_that_pulls_stays() -> None:
    rig = Rig()
    episode = rig.episode()
    big = Source("https://" + "x" * 300_000)
    for _ in range(4):
        episode.add_part(Role.ASSISTANT, big)
    subscription = rig.buffer.subscribe(KEY)

    for seq in range(1, 5):
        await rig.clock.advance(9)
        rig.buffer.sweep()
        assert [each for each, _, _ in subscription.pull()] == [seq]


async def test_reader_that_never_read_a_closed_episode_is_dropped_too() -> None:
    rig = Rig()
    rig.say("a", episode=rig.episode())
    subscription = rig.buffer.subscribe(KEY)
    rig.close()

    await rig.clock.advance(10)
    rig.buffer.sweep()

    assert subscription.end is EndReason.EVICTED


# Feeds of other replicas, whose events are encoded and may be merged


def event(seq: int, n: int, text: str) -> PartEvent:
    return seq, n, deltas.encode(seq, Role.ASSISTANT, Text(text), n=n)


async def test_mirror_replays_merged_events_and_follows() -> None:
    feed = Feed(FakeClock())
    feed.append(event(70, 70, "a"))
    feed.append(event(71, 1, "b"))
    subscription = feed.subscribe()

    assert [(seq, n) for seq, n, _ in subscription.pull()] == [(70, 70), (71, 1)]
    feed.append(event(72, 1, "c"))
    feed.finish(EndReason.CLOSED)
    assert texts(subscription.pull()) == ["c"]
    assert subscription.end is EndReason.CLOSED


async def test_reader_whose_place_was_merged_away_gets_the_merged_event() -> None:
    feed = Feed(FakeClock())
    feed.append(event(70, 70, "a"))

    # `n` shows that the requested number is inside this event, so the reader starts again.
    assert [(seq, n) for seq, n, _ in feed.subscribe(40).pull()] == [(70, 70)]


async def test_feed_keeps_its_first_end() -> None:
    feed = Feed(FakeClock())
    feed.finish(EndReason.TRUNCATED)
    feed.finish(EndReason.CLOSED)
    feed.cut(EndReason.SHUTDOWN)

    assert feed.subscribe().end is EndReason.TRUNCATED
