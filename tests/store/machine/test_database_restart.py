"""A restart of the database server: running chats keep their runners, and no work is committed twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from rookery.domain.chat.errors import StaleFence
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.errors import DatabaseUnavailable
from rookery.store.machine import Tx
from tests.eventually import until
from tests.store.machine.machine_rig import Rig, add_replica, assistant, make_rig, words


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path / "data", options={"fsync": "off"})
    await server.start()
    try:
        connection = await asyncpg.connect(server.url)
        await migrate.migrate(connection)
        await connection.close()
        yield server
    finally:
        await server.stop()
        shutil.rmtree(tmp_path, ignore_errors=True)


async def restart_immediately(server: EmbeddedServer) -> None:
    """Restart PostgreSQL with SIGQUIT, which flushes nothing: the next start recovers from the log."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    await until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    await server.start()
    assert server.pid != pid


async def yes(tx: Tx) -> bool:
    return True


async def test_running_chats_keep_their_runners_through_a_crash_of_the_database(server: EmbeddedServer) -> None:
    async with make_rig(server.url) as rig:
        chats = {chat_id: await rig.acquire(chat_id) for chat_id in [await rig.chat(State.R0) for _ in range(3)]}
        cut_off = asyncio.ensure_future(rig.update(next(iter(chats)), _until_the_crash))
        await until(lambda: _is_asleep(rig))
        before = {chat_id: await rig.trace(chat_id) for chat_id in chats}
        await restart_immediately(server)
        with pytest.raises(DatabaseUnavailable):
            await cut_off
    async with asyncpg.create_pool(server.url, min_size=0, max_size=4) as pool:
        back = _rig_on(pool, rig)

        assert {chat_id: await back.trace(chat_id) for chat_id in chats} == before
        assert all([(await back.load(chat_id)).leased for chat_id in chats])
        assert await _candidates(back) == set()
        await _nobody_can_take(back, list(chats))
        for chat_id, fence in chats.items():
            await back.update(chat_id, lambda tx: machine.commit_step(tx, [assistant("went on")]), fence=fence)
        assert back.published.ownership() == []


async def test_after_the_loss_of_all_leases_a_chat_is_taken_over_and_has_one_committer(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    old = await rig.acquire(chat_id)
    await rig.sql("DELETE FROM chat_heartbeats")
    assert await _candidates(rig) == {chat_id}
    async with rig.pool.acquire() as conn:
        other = await add_replica(conn)

    taken = await machine.try_acquire(rig.machine, chat_id, worker_id=other, runner_id=uuid4(), admit=yes)

    assert taken is not None
    with pytest.raises(StaleFence):
        await rig.update(chat_id, lambda tx: machine.commit_step(tx, [assistant("old")]), fence=old)
    await rig.update(chat_id, lambda tx: machine.commit_step(tx, [assistant("new")]), fence=rig.fence(taken))
    assert [words(message) for message in await rig.history(chat_id)] == ["hello", "new"]


async def _until_the_crash(tx: Tx) -> None:
    await machine.commit_step(tx, [assistant("never committed")])
    await tx.conn.execute("SELECT pg_sleep(15)")


async def _is_asleep(rig: Rig) -> bool:
    return bool(await rig.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))


def _rig_on(pool: asyncpg.Pool[asyncpg.Record], rig: Rig) -> Rig:
    """Return the same rig with new connections."""
    return Rig(pool, user=rig.user, model=rig.model, worker=rig.worker)


async def _candidates(rig: Rig) -> set[ChatId]:
    async with rig.pool.acquire() as conn:
        return {candidate.chat_id for candidate in await machine.list_candidates(conn, 20)}


async def _nobody_can_take(rig: Rig, chats: list[ChatId]) -> None:
    async with rig.pool.acquire() as conn:
        other = await add_replica(conn)
    for chat_id in chats:
        assert await machine.try_acquire(rig.machine, chat_id, worker_id=other, runner_id=uuid4(), admit=yes) is None
