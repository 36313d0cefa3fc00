"""Requests and losses at critical moments: while a stream opens, and while a client does not read."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from rookery.store import machine
from rookery.store.db.hints import MiscHint
from rookery.stream.access_monitor import Grant
from rookery.stream.follow import MAX_DEBUG_PENDING
from rookery.stream.query_parameters import StreamParams
from tests.eventually import until
from tests.stream.stream_rig import MemoryTransport, Rig


async def test_client_that_does_not_read_piles_up_few_debug_hints(rig: Rig) -> None:
    chat_id = await rig.chat("one")
    transport = MemoryTransport()
    viewer = await rig.site.view(chat_id, debug=True, transport=transport)
    await viewer.until("synced")
    transport.gate.clear()
    for n in range(10_000):
        rig.site.bus.dispatch(MiscHint(topic=f"debug:{chat_id}", data={"kind": "run", "run_id": f"r{n}"}))
        if n < 10:
            await asyncio.sleep(0)
    transport.gate.set()
    await until(lambda: viewer.of("debug_update")[-1:] and viewer.of("debug_update")[-1]["run_id"] == "r9999")

    assert len(viewer.of("debug_update")) <= 10 + MAX_DEBUG_PENDING


async def test_chat_deleted_while_its_stream_opens_shows_nothing(rig: Rig) -> None:
    chat_id = await rig.chat("secret")
    grant = Grant(user_id=uuid4(), credential="c", chat_id=chat_id, root_id=chat_id)
    opened = await rig.site.streams.open_chat(grant, StreamParams())
    await rig.chats.machine.bundle(lambda bundle: machine.delete_family(bundle, chat_id))

    viewer = rig.site._run(opened.run, None)

    assert (await viewer.ended())[0] == 4404
    assert viewer.events == []
