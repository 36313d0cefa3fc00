"""Errors of the database are reported as unavailability; all other errors reach the caller unchanged."""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import uuid4

import asyncpg
import pytest

from rookery.domain.chat.errors import InvariantViolation
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.db.errors import DatabaseUnavailable
from rookery.store.machine import Machine, Tx, View, bundle_runner
from tests.store.machine.lossy_proxy import Fault, Proxy
from tests.store.machine.machine_rig import Recorder, Rig

Body: TypeAlias = Callable[[Tx | View], Awaitable[None]]

WAYS = ("update", "lock", "read")


async def nothing(view: Tx | View) -> None:
    """An empty callback."""


async def enter(rig: Rig, way: str, chat_id: ChatId, body: Body) -> None:
    """Run the body in a transaction of one of the three kinds."""
    await getattr(rig.machine.chat(chat_id), way)(body)


# The caller's own


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "own",
    [
        FileNotFoundError("notes.txt"),
        TimeoutError("the caller's own"),
        ConnectionResetError("another server's"),
        asyncpg.InterfaceError("another pool's"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_error_of_the_callback_is_never_taken_for_the_databases(rig: Rig, way: str, own: Exception) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    async def stumble(view: Tx | View) -> None:
        raise own

    with pytest.raises(type(own)) as refusal:
        await enter(rig, way, chat_id, stumble)

    assert refusal.value is own
    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_time_limit_of_the_caller_ends_the_bundle_with_a_timeout(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    async def dawdle(tx: Tx) -> None:
        async with asyncio.timeout(0.01):
            await tx.conn.execute("SELECT pg_sleep(10)")

    with pytest.raises(TimeoutError):
        await rig.update(chat_id, dawdle)

    assert await rig.trace(chat_id) == before


# The database's


@pytest.mark.parametrize("way", WAYS)
async def test_connection_that_is_lost_says_that_the_database_is_unavailable(rig: Rig, way: str) -> None:
    chat_id = await rig.chat(State.W)

    async def lose(view: Tx | View) -> None:
        await _lose_connection(rig, view)
        await view.conn.execute("SELECT 1")

    with pytest.raises(DatabaseUnavailable):
        await enter(rig, way, chat_id, lose)


@pytest.mark.parametrize("way", WAYS)
async def test_connection_used_after_its_loss_says_so_too(rig: Rig, way: str) -> None:
    chat_id = await rig.chat(State.W)

    async def lose(view: Tx | View) -> None:
        await _lose_connection(rig, view)
        with pytest.raises(asyncpg.PostgresError):
            await view.conn.execute("SELECT 1")
        await view.conn.execute("SELECT 1")

    with pytest.raises(DatabaseUnavailable) as refusal:
        await enter(rig, way, chat_id, lose)

    assert isinstance(refusal.value.__cause__, asyncpg.InterfaceError)


@pytest.mark.parametrize("way", WAYS)
async def test_error_of_the_callback_reaches_the_caller_from_a_lost_connection_too(rig: Rig, way: str) -> None:
    chat_id = await rig.chat(State.W)

    async def lose(view: Tx | View) -> None:
        await _lose_connection(rig, view)
        raise FileNotFoundError("notes.txt")

    with pytest.raises(FileNotFoundError):
        await enter(rig, way, chat_id, lose)


@pytest.mark.parametrize("way", WAYS)
async def test_refused_connection_is_reported_as_unavailable(rig: Rig, way: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"postgresql://rookery@127.0.0.1:{taken.getsockname()[1]}/rookery?sslmode=disable"
        async with asyncpg.create_pool(url, min_size=0, max_size=1) as pool:
            with pytest.raises(DatabaseUnavailable):
                await enter(_through(rig, pool), way, ChatId(uuid4()), nothing)


@pytest.mark.parametrize("way", WAYS)
async def test_pool_that_is_closed_is_said_to_be_unavailable(rig: Rig, database_url: str, way: str) -> None:
    async with asyncpg.create_pool(database_url, min_size=0, max_size=1) as pool:
        pass

    with pytest.raises(DatabaseUnavailable):
        await enter(_through(rig, pool), way, ChatId(uuid4()), nothing)


@pytest.mark.parametrize("way", WAYS)
async def test_connection_that_breaks_at_the_begin_is_said_to_be_unavailable(
    rig: Rig, database_url: str, way: str
) -> None:
    chat_id = await rig.chat(State.W)
    async with Proxy(database_url).listen() as proxy, asyncpg.create_pool(proxy.url, min_size=0, max_size=1) as pool:
        proxy.statement, proxy.fault = b"BEGIN", Fault.LOSE_REQUEST

        with pytest.raises(DatabaseUnavailable):
            await enter(_through(rig, pool), way, chat_id, nothing)
        await enter(_through(rig, pool), way, chat_id, nothing)


@pytest.mark.parametrize("way", WAYS)
async def test_network_that_goes_silent_is_said_to_be_unavailable(
    rig: Rig, database_url: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat_id = await rig.chat(State.W)
    monkeypatch.setattr(bundle_runner, "COMMIT_TIMEOUT_SECONDS", 0.05)

    async def ask(view: Tx | View) -> None:
        proxy.statement, proxy.fault = b"'a word'", Fault.HOLD_ANSWER
        await view.conn.execute("SELECT 'a word'", timeout=0.05)

    async with Proxy(database_url).listen() as proxy, asyncpg.create_pool(proxy.url, min_size=0, max_size=1) as pool:
        with pytest.raises(DatabaseUnavailable) as refusal:
            await enter(_through(rig, pool), way, chat_id, ask)
        pool.terminate()

    assert isinstance(refusal.value.__cause__, TimeoutError)


async def test_pool_that_ends_after_the_commit_does_not_fail_the_call(rig: Rig, database_url: str) -> None:
    chat_id = await rig.chat(State.W)
    pool = await asyncpg.create_pool(database_url, min_size=0, max_size=1)
    through = _through(rig, pool)

    class Ending(Recorder):
        def publish(self, hints: Any) -> None:
            super().publish(hints)
            pool.terminate()

    through.machine = Machine(pool, Ending())

    sent = await through.send(chat_id, "committed")

    assert [message.id for message in sent.inserted] == [await rig.last_id(chat_id)]


# What a log may get


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE chats SET title = 'a secret', archived = true WHERE id = $1", InvariantViolation),
        ("UPDATE chats SET title = 'a secret', updated_at = NULL WHERE id = $1", asyncpg.NotNullViolationError),
    ],
)
async def test_report_of_a_broken_constraint_contains_no_user_content(
    rig: Rig, statement: str, expected: type[Exception]
) -> None:
    chat_id = await rig.chat(State.W)

    with pytest.raises(expected) as refusal:
        await rig.update(chat_id, lambda tx: tx.conn.execute(statement, chat_id))

    report = "".join(traceback.format_exception(refusal.value))
    assert "violates" in report
    assert "a secret" not in report.replace(statement, "")


async def test_violation_at_the_commit_is_reported_without_its_rows(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    chat_id = await rig.chat(State.R1, queued=2)

    async def break_late(tx: Tx) -> None:
        await machine.send_message(tx, rig.message("later"), BusyBehavior.QUEUE)
        await tx.conn.execute("UPDATE chat_queued_messages SET position = 7 WHERE chat_id = $1", chat_id)

    with caplog.at_level(logging.DEBUG), pytest.raises(asyncpg.UniqueViolationError) as refusal:
        await rig.update(chat_id, break_late)

    assert "DETAIL" not in str(refusal.value)
    assert "DETAIL" not in caplog.text


async def _lose_connection(rig: Rig, view: Tx | View) -> None:
    pid = await view.conn.fetchval("SELECT pg_backend_pid()")
    await rig.sql("SELECT pg_terminate_backend($1, 5000)", pid)


def _through(rig: Rig, pool: asyncpg.Pool[asyncpg.Record]) -> Rig:
    """Return the same rig over another connection to its database."""
    return Rig(pool, user=rig.user, model=rig.model, worker=rig.worker)
