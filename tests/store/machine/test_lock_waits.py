"""Lock waits of bundles and their retries, and reads of a chat with and without its lock."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.domain.chat.errors import ChatNotFound, InvariantViolation
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.runtime.clock import SystemClock
from rookery.store import machine
from rookery.store.db.errors import DatabaseUnavailable, LockTimeout
from rookery.store.machine import Bundle, Machine, Tx, View, bundle_runner
from tests.store.machine.held_bundles import held, until_blocked, updating
from tests.store.machine.machine_rig import Rig, make_rig


class CountingClock(SystemClock):
    """A clock that counts the pauses between two tries and does not wait."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float, tag: str) -> None:
        assert tag == "machine-retry"
        self.pauses.append(seconds)


async def nothing(tx: Tx) -> None:
    """An empty callback."""


# Tries and timeouts


async def test_waits_inside_a_bundle_are_bounded_and_the_bounds_end_with_it(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    settings = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"

    async def look(view: Tx | View) -> tuple[str, str]:
        record = await view.conn.fetchrow(settings)
        assert record is not None
        return record[0], record[1]

    assert await rig.update(chat_id, look) == ("5s", "15s")
    assert await rig.machine.lock(chat_id, look) == ("5s", "15s")
    async with rig.pool.acquire() as conn:
        assert tuple(await conn.fetchrow(settings) or ()) == ("0", "0")


async def raising(tx: Tx, sqlstate: str) -> None:
    await tx.conn.execute(f"DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{sqlstate}'; END $$")


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
async def test_conflict_runs_the_whole_bundle_again(rig: Rig, sqlstate: str) -> None:
    chat_id = await rig.chat(State.W)
    start = (await rig.load(chat_id)).snapshot_version
    clock = CountingClock()
    rig.machine = Machine(rig.pool, rig.published, clock=clock, rng=random.Random(1))
    tries: list[int] = []

    async def stumble_twice(tx: Tx) -> None:
        tries.append(tx.chat.snapshot_version)
        await machine.send_message(tx, rig.message(f"try {len(tries)}"), BusyBehavior.QUEUE)
        if len(tries) < 3:
            await raising(tx, sqlstate)

    await rig.update(chat_id, stumble_twice)

    assert tries == [start + 1] * 3
    assert len(await rig.history(chat_id)) == 2
    assert len(rig.published.chats()) == 1
    assert len(clock.pauses) == 2
    assert all(0.02 <= pause <= 0.2 for pause in clock.pauses)


async def test_conflict_that_does_not_end_becomes_a_lock_timeout_after_three_tries(rig: Rig) -> None:
    chat_id, other = await rig.chat(State.W), await rig.chat(State.W)
    before = await rig.trace(chat_id)
    rig.machine = Machine(rig.pool, rig.published, clock=CountingClock())
    tries = 0

    async def touch_the_locked_one(bundle: Bundle) -> None:
        nonlocal tries
        tries += 1
        await bundle.open(chat_id)
        await bundle.conn.execute("SET LOCAL lock_timeout = '20ms'")
        await bundle.open(other)

    async with held(updating(rig, other, nothing)):
        with pytest.raises(LockTimeout) as refusal:
            await rig.machine.bundle(touch_the_locked_one)

    assert tries == 3
    assert isinstance(refusal.value.__cause__, asyncpg.LockNotAvailableError)
    assert await rig.trace(chat_id) == before
    assert [hint.chat_id for hint in rig.published.chats()] == [other]


async def test_plain_lock_that_is_not_granted_becomes_a_lock_timeout_too(rig: Rig) -> None:
    chat_id, other = await rig.chat(State.W), await rig.chat(State.W)
    rig.machine = Machine(rig.pool, rig.published, clock=CountingClock())
    tries = 0

    async def touch_the_locked_one(view: View) -> None:
        nonlocal tries
        tries += 1
        await view.conn.execute("SET LOCAL lock_timeout = '20ms'")
        await view.conn.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", other)

    async with held(updating(rig, other, nothing)):
        with pytest.raises(LockTimeout):
            await rig.machine.lock(chat_id, touch_the_locked_one)

    assert tries == 3


async def test_two_bundles_that_deadlock_both_end_well(rig: Rig) -> None:
    first, second = await rig.chat(State.W), await rig.chat(State.W)
    met = asyncio.Barrier(2)
    tries = 0

    async def cross(mine: ChatId, theirs: ChatId) -> None:
        is_first_try = True

        async def run(bundle: Bundle) -> None:
            nonlocal is_first_try, tries
            tries += 1
            await bundle.conn.execute("SET LOCAL lock_timeout = '10s'")
            await bundle.open(mine)
            if is_first_try:
                is_first_try = False
                await met.wait()
            await bundle.open(theirs)

        await rig.machine.bundle(run)

    async with asyncio.timeout(20):
        await asyncio.gather(cross(first, second), cross(second, first))

    assert tries == 3
    assert len(rig.published.chats()) == 4
    assert {(await rig.load(chat_id)).snapshot_version for chat_id in (first, second)} == {4}


async def test_statement_that_takes_too_long_fails_the_bundle_at_once(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)
    tries = 0

    async def dawdle(tx: Tx) -> None:
        nonlocal tries
        tries += 1
        await tx.conn.execute("SET LOCAL statement_timeout = '20ms'")
        await tx.conn.execute("SELECT pg_sleep(10)")

    with pytest.raises(DatabaseUnavailable):
        await rig.update(chat_id, dawdle)

    assert tries == 1
    assert await rig.trace(chat_id) == before


# Lock and read


async def test_plain_lock_moves_no_version_and_announces_nothing(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    before = await rig.load(chat_id)

    async def rename(view: View) -> UUID:
        assert view.chat == before
        await view.conn.execute("UPDATE chats SET title = 'renamed' WHERE id = $1", chat_id)
        return view.chat.id

    assert await rig.machine.chat(chat_id).lock(rename) == chat_id

    assert (await rig.load(chat_id)) == before
    assert await rig.value("SELECT title FROM chats WHERE id = $1", chat_id) == "renamed"
    assert rig.published.hints == []


async def test_plain_lock_keeps_transitions_out_until_it_ends(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    reached, gate = asyncio.Event(), asyncio.Event()

    async def hold(view: View) -> None:
        reached.set()
        await gate.wait()
        assert await view.conn.fetchval("SELECT status FROM chats WHERE id = $1", chat_id) == "waiting"

    async with asyncio.timeout(10):
        locking = asyncio.ensure_future(rig.machine.lock(chat_id, hold))
        await reached.wait()
        sending = asyncio.ensure_future(rig.send(chat_id, "later"))
        await until_blocked(rig)
        gate.set()
        await asyncio.gather(locking, sending)

    assert await rig.state(chat_id) is State.R0


async def test_plain_lock_undoes_its_writes_on_error_and_reports_bugs(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    before = await rig.trace(chat_id)

    async def rename_and_stumble(view: View) -> None:
        await view.conn.execute("UPDATE chats SET title = 'never' WHERE id = $1", chat_id)
        raise LookupError

    async def bypass(view: View) -> None:
        await view.conn.execute("UPDATE chats SET status = 'interrupting' WHERE id = $1", chat_id)

    with pytest.raises(LookupError):
        await rig.machine.lock(chat_id, rename_and_stumble)
    with pytest.raises(InvariantViolation):
        await rig.machine.lock(chat_id, bypass)

    assert await rig.trace(chat_id) == before


async def test_read_is_one_consistent_view_that_cannot_write(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.load(chat_id)

    async def look(view: View) -> int:
        await rig.send(chat_id, "meanwhile")
        found = await view.conn.fetchval("SELECT snapshot_version FROM chats WHERE id = $1", chat_id)
        assert found == view.chat.snapshot_version == before.snapshot_version
        return int(await view.conn.fetchval("SELECT count(*) FROM chat_messages WHERE chat_id = $1", chat_id))

    async def write(view: View) -> None:
        await view.conn.execute("UPDATE chats SET title = 'never' WHERE id = $1", chat_id)

    assert await rig.machine.chat(chat_id).read(look) == 1
    assert len(await rig.history(chat_id)) == 2
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await rig.machine.read(chat_id, write)


async def test_read_neither_waits_for_an_open_bundle_nor_holds_one_up(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    reached, gate = asyncio.Event(), asyncio.Event()

    async def hold(view: View) -> State:
        reached.set()
        await gate.wait()
        return view.chat.state

    async with held(updating(rig, chat_id, machine.retry_turn)) as retry:
        reading = asyncio.ensure_future(rig.machine.read(chat_id, hold))
        await reached.wait()
        await retry.finish()
        await rig.update(chat_id, machine.interrupt)
        gate.set()
        assert await reading is State.W

    assert await rig.state(chat_id) is State.I0


async def test_lock_and_read_of_a_missing_chat_say_that_there_is_none(rig: Rig) -> None:
    async def never(view: View) -> None:
        raise AssertionError("there is nothing to look at")

    for look in (rig.machine.lock, rig.machine.read):
        with pytest.raises(ChatNotFound):
            await look(uuid4(), never)


async def test_connection_lost_before_the_commit_fails_the_bundle_and_spares_the_pool(database_url: str) -> None:
    async with make_rig(database_url, pool_size=2) as rig:
        chat_id = await rig.chat(State.W)
        before = await rig.trace(chat_id)

        async def lose_the_connection(tx: Tx) -> None:
            pid = await tx.conn.fetchval("SELECT pg_backend_pid()")
            await rig.sql("SELECT pg_terminate_backend($1, 5000)", pid)
            await tx.conn.execute("SELECT 1")

        with pytest.raises(DatabaseUnavailable):
            await rig.update(chat_id, lose_the_connection)

        assert await rig.trace(chat_id) == before
        assert rig.published.hints == []
        await asyncio.gather(*(rig.update(chat_id, nothing) for _ in range(4)))


async def test_pool_without_a_free_connection_says_that_the_database_is_unavailable(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_runner, "POOL_TIMEOUT_SECONDS", 0.01)
    async with make_rig(database_url, pool_size=1) as rig:
        chat_id = await rig.chat(State.W)

        async with rig.pool.acquire():
            with pytest.raises(DatabaseUnavailable):
                await rig.update(chat_id, nothing)
