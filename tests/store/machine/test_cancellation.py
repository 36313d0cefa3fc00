"""Cancellation at any point: before the COMMIT nothing is changed, and after it the change is announced."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

import asyncpg
import pytest

from rookery.domain.chat.errors import StaleFence
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.db.errors import CommitOutcomeUnknown
from rookery.store.machine import Bundle, Machine, Tx, View, bundle_runner
from tests.eventually import until
from tests.store.machine.held_bundles import held, until_blocked, updating
from tests.store.machine.lossy_proxy import Fault, Proxy
from tests.store.machine.machine_rig import Recorder, Rig, assistant, make_rig, words

_OPEN_TRANSACTIONS = """
    SELECT count(*)
      FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
"""

Remote = Callable[[], AbstractAsyncContextManager[tuple[Machine, Proxy]]]


@pytest.fixture(autouse=True)
async def quiet_loop() -> AsyncIterator[None]:
    """Fail if the event loop gets errors: asyncpg reports open transactions there, and asyncio reports unhandled errors
    of tasks.
    """
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    yield
    assert complaints == []


@pytest.fixture
async def remote(rig: Rig, database_url: str) -> Remote:
    """A machine with one connection through the proxy, and the same recorder."""

    @asynccontextmanager
    async def make() -> AsyncIterator[tuple[Machine, Proxy]]:
        async with asyncio.timeout(20), Proxy(database_url).listen() as proxy:
            pool = await asyncpg.create_pool(proxy.url, min_size=1, max_size=1)
            try:
                yield Machine(pool, rig.published), proxy
                proxy.let_go.set()
                async with pool.acquire(timeout=5) as conn:  # the one connection came back, or a new one took its place
                    assert await conn.fetchval("SELECT 1") == 1
                    assert not conn.is_in_transaction()
            finally:
                await pool.close()

    return make


async def end(task: asyncio.Future[Any]) -> None:
    """Wait until the task has ended, and check that it was cancelled."""
    async with asyncio.timeout(10):
        await asyncio.wait((task,))
    assert task.cancelled()


async def no_transaction_is_left(rig: Rig) -> None:
    async def none_open() -> bool:
        return await rig.value(_OPEN_TRANSACTIONS) == 0

    await until(none_open)
    await until(lambda: rig.pool.get_idle_size() == rig.pool.get_size())


# Before the COMMIT


async def test_cancelling_the_callback_changes_and_announces_nothing(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    async with held(updating(rig, chat_id, machine.retry_turn)) as retry:
        retry.task.cancel()
        await end(retry.task)

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []
    await no_transaction_is_left(rig)


async def test_cancelling_inside_a_statement_changes_and_announces_nothing(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    async def send_and_dawdle(tx: Tx) -> None:
        await machine.send_message(tx, rig.message("lost"), BusyBehavior.QUEUE)
        await tx.conn.execute("SELECT pg_sleep(10)")

    async def asleep() -> bool:
        return bool(await rig.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))

    task = asyncio.ensure_future(rig.update(chat_id, send_and_dawdle))
    await until(asleep)
    task.cancel()
    await end(task)

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []
    await no_transaction_is_left(rig)


async def test_cancelling_a_wait_for_the_lock_gives_up_the_place_in_the_line(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)

    async with held(updating(rig, chat_id, machine.retry_turn)) as retry:
        waiting = asyncio.ensure_future(rig.send(chat_id, "never"))
        await until_blocked(rig)
        waiting.cancel()
        await end(waiting)
        await until_blocked(rig, 0)
        await retry.finish()

    assert len(await rig.history(chat_id)) == 1
    assert await rig.queue(chat_id) == []
    assert len(rig.published.chats()) == 1
    await no_transaction_is_left(rig)


async def test_cancelling_a_wait_for_the_pool_takes_no_connection(database_url: str) -> None:
    async with make_rig(database_url, pool_size=1) as rig:
        chat_id = await rig.chat(State.W)
        before = await rig.trace(chat_id)

        async with rig.pool.acquire():
            waiting = [asyncio.ensure_future(rig.send(chat_id, "never")) for _ in range(3)]
            for turns in (0, 1, 3):
                for _ in range(turns):
                    await asyncio.sleep(0)
                waiting.pop().cancel()

        await until(lambda: rig.pool.get_idle_size() == 1)
        assert await rig.trace(chat_id) == before
        assert rig.published.hints == []


async def test_second_cancellation_during_the_rollback_still_frees_the_chat(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    async with held(updating(rig, chat_id, machine.retry_turn)) as retry:
        retry.task.cancel()
        await asyncio.sleep(0)
        retry.task.cancel()
        await end(retry.task)

    assert await rig.trace(chat_id) == before
    await no_transaction_is_left(rig)
    await rig.send(chat_id, "the chat is free")


async def test_cancelling_lock_and_read_leaves_nothing_open(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)

    for look in (rig.machine.lock, rig.machine.read):
        reached = asyncio.Event()

        async def stay(view: View, reached: asyncio.Event = reached) -> None:
            reached.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(look(chat_id, stay))
        await reached.wait()
        task.cancel()
        await end(task)

    await no_transaction_is_left(rig)


# During and after the COMMIT


async def test_cancelling_during_the_commit_waits_for_it_and_announces_it(rig: Rig, remote: Remote) -> None:
    chat_id = await rig.chat(State.W)
    async with remote() as (far, proxy):
        proxy.fault = Fault.HOLD_ANSWER
        task = asyncio.ensure_future(far.chat(chat_id).update(machine.retry_turn))
        await proxy.committed.wait()

        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        assert rig.published.hints == []
        proxy.let_go.set()
        await end(task)

    assert await rig.state(chat_id) is State.R0
    assert [hint.status for hint in rig.published.chats()] == ["running"]


async def test_cancelling_the_commit_of_a_plain_lock_waits_for_it_too(rig: Rig, remote: Remote) -> None:
    chat_id = await rig.chat(State.W)

    async def rename(view: View) -> None:
        await view.conn.execute("UPDATE chats SET title = 'renamed' WHERE id = $1", chat_id)

    async with remote() as (far, proxy):
        proxy.fault = Fault.HOLD_ANSWER
        task = asyncio.ensure_future(far.lock(chat_id, rename))
        await proxy.committed.wait()
        task.cancel()
        proxy.let_go.set()
        await end(task)

    assert await rig.value("SELECT title FROM chats WHERE id = $1", chat_id) == "renamed"


async def test_cancelling_while_the_connection_goes_back_does_not_lose_the_announcement(
    rig: Rig, database_url: str
) -> None:
    chat_id = await rig.chat(State.W)
    victim: asyncio.Future[Any] | None = None

    async def cancel_the_user(_: object) -> None:
        if victim is not None:
            victim.cancel()

    published = Recorder()
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1, reset=cancel_the_user) as pool:
        victim = asyncio.ensure_future(Machine(pool, published).chat(chat_id).update(machine.retry_turn))
        await end(victim)
        victim = None

    assert await rig.state(chat_id) is State.R0
    assert [hint.status for hint in published.chats()] == ["running"]


async def test_cancellation_is_passed_on_when_the_commit_fails_and_the_bundle_is_not_run_again(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    await rig.sql(
        """
        CREATE TABLE slow_commits (n int);
        CREATE FUNCTION fail_slowly() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          PERFORM FROM users FOR UPDATE;
          RAISE EXCEPTION 'on purpose' USING ERRCODE = '40001';
        END $$;
        CREATE CONSTRAINT TRIGGER fail_slowly AFTER INSERT ON slow_commits
          DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail_slowly();
        """
    )
    before = await rig.trace(chat_id)
    tries = 0

    async def fail_at_commit(tx: Tx) -> None:
        nonlocal tries
        tries += 1
        await tx.conn.execute("INSERT INTO slow_commits VALUES (1)")

    async with rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM users FOR UPDATE")
        task = asyncio.ensure_future(rig.update(chat_id, fail_at_commit))
        await until_blocked(rig)
        task.cancel()
        await asyncio.sleep(0)
    await end(task)

    assert tries == 1
    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


# The outcome nobody knows


@pytest.mark.parametrize(("fault", "state"), [(Fault.LOSE_REQUEST, State.W), (Fault.LOSE_ANSWER, State.R0)])
async def test_connection_lost_during_the_commit_leaves_the_outcome_unknown(
    rig: Rig, remote: Remote, fault: Fault, state: State
) -> None:
    chat_id = await rig.chat(State.W)
    async with remote() as (far, proxy):
        proxy.fault = fault

        with pytest.raises(CommitOutcomeUnknown):
            await far.chat(chat_id).update(machine.retry_turn)

        if fault is Fault.LOSE_ANSWER:
            assert proxy.committed.is_set()
        assert await rig.state(chat_id) is state
        assert rig.published.hints == []


async def test_repeating_a_fenced_commit_of_unknown_outcome_never_commits_twice(rig: Rig, remote: Remote) -> None:
    chat_id = await rig.chat(State.R0)
    fence = await rig.acquire(chat_id)

    async with remote() as (far, proxy):
        for fault in (Fault.LOSE_REQUEST, Fault.LOSE_ANSWER):
            proxy.fault = fault
            with pytest.raises(CommitOutcomeUnknown):
                await far.chat(chat_id).update(lambda tx: machine.commit_step(tx, [assistant("once")]), fence=fence)
        with pytest.raises(StaleFence):
            await far.chat(chat_id).update(lambda tx: machine.commit_step(tx, [assistant("once")]), fence=fence)

    assert len(await rig.history(chat_id)) == 2


async def test_plain_lock_whose_connection_is_lost_during_the_commit_says_so(rig: Rig, remote: Remote) -> None:
    chat_id = await rig.chat(State.W)

    async def look(view: View) -> None:
        """Nothing to do."""

    async with remote() as (far, proxy):
        proxy.fault = Fault.LOSE_ANSWER
        with pytest.raises(CommitOutcomeUnknown):
            await far.lock(chat_id, look)


async def test_commit_without_an_answer_ends_after_its_timeout(
    rig: Rig, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_runner, "COMMIT_TIMEOUT_SECONDS", 0.2)
    chat_id = await rig.chat(State.W)
    async with remote() as (far, proxy):
        proxy.fault = Fault.HOLD_ANSWER

        with pytest.raises(CommitOutcomeUnknown):
            await far.chat(chat_id).update(machine.retry_turn)

        assert await rig.state(chat_id) is State.R0
        assert rig.published.hints == []


async def test_cancellation_takes_precedence_over_an_outcome_without_a_waiter(rig: Rig, remote: Remote) -> None:
    chat_id = await rig.chat(State.W)
    async with remote() as (far, proxy):
        proxy.fault = Fault.HOLD_ANSWER
        task = asyncio.ensure_future(far.chat(chat_id).update(machine.retry_turn))
        await proxy.committed.wait()
        task.cancel()
        await asyncio.sleep(0)
        proxy.break_off = True
        proxy.let_go.set()
        await end(task)
        proxy.break_off = False

    assert rig.published.hints == []


# Anywhere


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_cancelling_anywhere_keeps_commits_and_announcements_in_step(database_url: str, seed: int) -> None:
    rng = random.Random(seed)
    async with make_rig(database_url, pool_size=4) as rig:
        chats = [await rig.chat(State.R0) for _ in range(2)]
        start = {chat_id: (await rig.load(chat_id)).snapshot_version for chat_id in chats}
        done: list[str] = []

        async def step(number: int) -> None:
            await _step_on_both(rig, rng.choice(chats), chats, f"step {number}")
            done.append(f"step {number}")

        async def step_and_cancel(number: int) -> None:
            task = asyncio.ensure_future(step(number))
            for _ in range(int(10 ** rng.uniform(0, 3.7))):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()

        async with asyncio.timeout(30):
            # On a busy machine none of the first may be fast enough to commit before its cancellation.
            for batch in count():
                if batch >= 12 and rig.published.hints:
                    break
                await asyncio.gather(*(step_and_cancel(batch * 6 + index) for index in range(6)))

        await no_transaction_is_left(rig)
        kept: list[str] = []
        for chat_id in chats:
            announced = [hint.snapshot_version for hint in rig.published.chats() if hint.chat_id == chat_id]
            last = (await rig.load(chat_id)).snapshot_version
            assert sorted(announced) == list(range(start[chat_id] + 1, last + 1))
            history = (await rig.history(chat_id))[1:]
            assert {message.revision for message in history} <= set(announced)
            kept.extend(words(message) for message in history)
        assert set(done) <= set(kept)
        assert len(kept) == len(set(kept))


async def _step_on_both(rig: Rig, target: ChatId, chats: list[ChatId], said: str) -> None:
    """Run a bundle with several round trips over two chats, always in the same order."""

    async def run(bundle: Bundle) -> None:
        for chat_id in chats:
            tx = await bundle.open(chat_id)
            await machine.record_generation_attempt(tx)
            if chat_id == target:
                await machine.commit_step(tx, [assistant(said)])

    await rig.machine.bundle(run)
