"""The PostgreSQL proxy: notifications are dropped, repeated and reordered, and all other messages are unchanged."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from random import Random

import asyncpg
import pytest

from tests.chaos.postgres_proxy import Commit, Garbler, PostgresProxy
from tests.eventually import until


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def garbled(data: bytes, *, seed: int, cut: int = 65536) -> bytes:
    garbler = Garbler(Random(seed))
    pieces = [data[start : start + cut] for start in range(0, len(data), cut)]
    return b"".join(piece for part in pieces for piece in garbler.feed(part)) + b"".join(garbler.take_held())


NOTES = [message(b"A", b"%03d" % number) for number in range(200)]


def test_only_notifications_are_garbled() -> None:
    others = [message(b"D", b"%03d" % number) for number in range(200)]
    mixed = b"".join(each for pair in zip(NOTES, others, strict=True) for each in pair)

    after = garbled(mixed, seed=1)

    assert [part for part in _messages(after) if part[:1] == b"D"] == others


def test_notifications_are_dropped_repeated_and_reordered() -> None:
    after = _messages(garbled(b"".join(NOTES), seed=1))

    times = Counter(after)
    assert {times[note] for note in NOTES} >= {0, 1, 2}
    assert sorted(after) != after
    assert set(after) <= set(NOTES)


@pytest.mark.parametrize("cut", [1, 3, 7, 64])
def test_messages_survive_any_cut_of_the_stream(cut: int) -> None:
    assert garbled(b"".join(NOTES), seed=1, cut=cut) == garbled(b"".join(NOTES), seed=1)


async def test_lost_commit_is_rolled_back_and_a_done_one_is_not(database_url: str) -> None:
    direct = await asyncpg.connect(database_url)
    await direct.execute("CREATE TABLE kept (fate text)")
    async with PostgresProxy(lambda: database_url).listening() as proxy:
        for fate in Commit:
            met = asyncio.Event()
            conn = await asyncpg.connect(proxy.url)
            await conn.execute("BEGIN")
            await conn.execute("INSERT INTO kept VALUES ($1)", fate.name)
            proxy.meet_commit(fate, met.set)

            with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
                await conn.execute("COMMIT")

            assert met.is_set()
            assert not proxy.forget_commit()
    try:
        await until(lambda: direct.fetchval("SELECT count(*) = 1 FROM kept"))
        assert await direct.fetchval("SELECT fate FROM kept") == Commit.DONE.name
    finally:
        await direct.close()


async def test_shut_door_lets_nothing_through_until_it_opens(database_url: str) -> None:
    async with PostgresProxy(lambda: database_url).listening() as proxy:
        conn = await asyncpg.connect(proxy.url)
        proxy.shut()
        answer = asyncio.create_task(conn.fetchval("SELECT 1"))
        done, _ = await asyncio.wait([answer], timeout=0.05)
        assert not done

        proxy.open()

        assert await answer == 1
        await conn.close()


async def test_cut_breaks_all_connections(database_url: str) -> None:
    async with PostgresProxy(lambda: database_url).listening() as proxy:
        conn = await asyncpg.connect(proxy.url)

        proxy.cut()

        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await conn.fetchval("SELECT 1")


def _messages(data: bytes) -> list[bytes]:
    found = []
    while data:
        end = 1 + struct.unpack_from("!I", data, 1)[0]
        found.append(data[:end])
        data = data[end:]
    return found
