"""Snapshots that viewers share."""

from __future__ import annotations

import asyncio

from rookery.store import machine
from rookery.stream.snapshots import ClientPosition
from rookery.testing import FakeClock
from tests.eventually import until
from tests.store.machine.machine_rig import assistant
from tests.stream.stream_rig import Rig, open_rig


async def test_shared_read_that_began_too_early_is_followed_by_another(rig: Rig) -> None:
    chat_id = await rig.chats.create()
    # The queue is read after the chat, in the same snapshot.
    reader, position = rig.site.streams.reader, ClientPosition(chat_id, 0, -1, 0, 200)
    async with rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE chat_queued_messages IN ACCESS EXCLUSIVE MODE")
        early = asyncio.ensure_future(reader.read(position))
        await until(lambda: is_blocked(rig))
        await rig.chats.run(chat_id, machine.interrupt)
        newer = (await rig.load(chat_id)).snapshot_version
        late = asyncio.ensure_future(reader.read(position, at_least=newer))
        content = asyncio.ensure_future(reader.read(position))
        await asyncio.sleep(0)

    versions = [(await read).chat.snapshot_version for read in (early, content, late)]

    assert versions == [newer - 1, newer - 1, newer]
    assert (reader.stats().reads, reader.stats().shared) == (2, 2)


async def test_resync_is_not_answered_by_a_read_that_began_before_it(database_url: str) -> None:
    """The clock stands still, so that no poll makes up for it."""
    async with open_rig(database_url, clock=FakeClock()) as rig:
        chat_id = await rig.chats.create()
        viewer = await rig.site.view(chat_id)
        await viewer.until("synced")
        rig.wire.is_cut = True
        seen = await rig.load(chat_id)
        held = viewer.of("synced")[-1]["last_message_id"]
        await rig.chats.commit(chat_id, assistant("missed"))

        async with rig.pool.acquire() as conn, conn.transaction():
            await conn.execute("LOCK TABLE chat_messages IN ACCESS EXCLUSIVE MODE")
            reader, position = (
                rig.site.streams.reader,
                ClientPosition(chat_id, seen.history_version, seen.queue_version, held, 200),
            )
            early = asyncio.ensure_future(reader.read(position))
            await until(lambda: is_blocked(rig))
            await rig.chats.run(chat_id, machine.interrupt)
            rig.site.bus.resync()
            await until(lambda: reader.stats().shared)

        await early
        await until(lambda: viewer.of("status")[-1]["status"] == "interrupting")
        assert viewer.texts()[-1] == "missed"


async def test_reader_that_gives_up_does_not_take_the_read_with_it(rig: Rig) -> None:
    chat_id = await rig.chats.create()
    reader, position = rig.site.streams.reader, ClientPosition(chat_id, 0, 0, 0, 200)
    first, second = (asyncio.ensure_future(reader.read(position)) for _ in range(2))
    await asyncio.sleep(0)

    first.cancel()

    assert (await second).chat.id == chat_id
    assert first.cancelled()


async def is_blocked(rig: Rig) -> bool:
    return bool(await rig.chats.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))
