"""The poller, which makes up for lost hints."""

from __future__ import annotations

import asyncio
from random import Random

from rookery.stream.hint_inbox import Inbox, Registry
from rookery.stream.poller import Poller, gone
from rookery.testing import FakeClock
from tests.store.machine.machine_rig import assistant
from tests.stream.stream_rig import Rig, open_rig


async def test_no_stream_costs_no_query(rig: Rig) -> None:
    await rig.site.streams.poller.tick()

    assert rig.site.streams.poller.stats().queries == 0


async def test_many_viewers_of_few_chats_cost_one_query(rig: Rig) -> None:
    for chat_id in [await rig.chat("one"), await rig.chat("two")]:
        for _ in range(3):
            await rig.site.view(chat_id)

    await rig.site.streams.poller.tick()

    assert rig.site.streams.poller.stats().queries == 1


async def test_lost_hint_is_made_up_for_within_eleven_seconds(database_url: str) -> None:
    clock = FakeClock()
    async with open_rig(database_url, clock=clock) as rig:
        chat_id = await rig.chats.create()
        viewer = await rig.site.view(chat_id)
        await viewer.until("synced")
        rig.wire.is_cut = True
        await rig.chats.commit(chat_id, assistant("answer"))

        await clock.fire("stream-poll")
        await viewer.until("message", 2)

        assert 9 <= clock.monotonic() <= 11


async def test_deaf_replica_polls_faster(rig: Rig) -> None:
    clock, registry = FakeClock(), Registry(rig.site.bus)
    poller = Poller(rig.pool, registry, clock=clock, rng=Random(1), is_deaf=lambda: True)
    running = asyncio.ensure_future(poller.run())

    await clock.fire("stream-poll")

    assert clock.monotonic() < 3
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_failing_query_is_skipped(rig: Rig) -> None:
    await rig.site.view(await rig.chat("one"))
    await rig.chats.sql("ALTER TABLE chats RENAME TO elsewhere")

    await rig.site.streams.poller.tick()

    await rig.chats.sql("ALTER TABLE elsewhere RENAME TO chats")
    assert rig.site.streams.poller.stats().failed == 1


async def test_inbox_keeps_the_newest_and_never_forgets_that_a_chat_is_gone(rig: Rig) -> None:
    woken: list[int] = []
    inbox = Inbox(rig.chats.user, lambda: woken.append(1))
    chat_id = await rig.chats.create()
    rig.wire.keeps = True
    for n in range(3):
        await rig.chats.commit(chat_id, assistant(f"{n}"))
    hints = [hint for hint in rig.wire.kept if type(hint).__name__ == "ChatHint"]

    for hint in (hints[1], hints[0], hints[2], hints[1]):
        inbox.post(hint)  # type: ignore[arg-type]
    newest, _ = inbox.take()
    inbox.post(gone(chat_id))
    inbox.post(hints[2])  # type: ignore[arg-type]
    last, _ = inbox.take()

    assert newest == hints[2]
    assert last is not None
    assert last.gone
    assert len(woken) == 3
    assert inbox.is_empty
