"""Ledger rows of calls that failed or were stopped, also while the database is unavailable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from rookery.domain.chat.messages import ChatId
from rookery.llm.types import Usage
from rookery.store.models.model_configs import ModelConfig
from rookery.store.models.usage_ledger import CallStatus, Entry, KeySource, record_call
from rookery.testing.clock import FakeClock
from rookery.worker import billing
from rookery.worker.billing import Ledger
from rookery.worker.follow_up_work import FollowUpWork
from tests.store.machine.lossy_proxy import Fault, Proxy
from tests.store.models.provider_rows import ModelRows, open_nest

ROWS = "SELECT status, output_tokens, chat_id, at FROM model_usage ORDER BY id"


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as rows:
        yield rows


@pytest.fixture
async def config(rows: ModelRows) -> ModelConfig:
    return await rows.config(await rows.provider())


@pytest.fixture
async def door(database_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(database_url).listen() as proxy:
        yield proxy


@pytest.fixture
async def pool(door: Proxy) -> AsyncIterator[asyncpg.Pool]:
    pool = await asyncpg.create_pool(door.url, min_size=1, max_size=1)
    yield pool
    pool.terminate()


async def failed_call(rows: ModelRows, config: ModelConfig, **fields: Any) -> Entry:
    values: dict[str, Any] = {
        "owner_id": await rows.user(),
        "chat_id": None,
        "purpose": "turn",
        "provider_id": config.provider_id,
        "model_config_id": config.id,
        "model": config.model,
        "key_source": KeySource.CENTRAL,
        "status": CallStatus.FAILED,
        "output_tokens": 7,
    }
    return Entry(**{**values, **fields})


async def test_row_is_written_once_the_connection_is_back_and_keeps_its_time(
    rows: ModelRows, config: ModelConfig, door: Proxy, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    inflight = FollowUpWork(clock)
    ledger = Ledger(pool, inflight)
    door.fault, door.statement = Fault.LOSE_REQUEST, b"model_usage"
    recorded_at = clock.now()

    with caplog.at_level(logging.INFO):
        ledger.record(await failed_call(rows, config))
        ledger.record(await failed_call(rows, config, output_tokens=8))
        await clock.until_waiting("usage-retry")
        written = asyncio.create_task(inflight.wait_idle())
        async with asyncio.timeout(30):
            # The pool may return the lost connection once more. Only the wait is advanced, because more time would also
            # end the write.
            while not written.done():
                if clock.waiting("usage-retry"):
                    await clock.fire("usage-retry")
                await asyncio.sleep(0.01)

    first, second = await rows.conn.fetch(ROWS)
    assert (first["status"], first["output_tokens"], first["at"]) == ("failed", 7, recorded_at)
    assert second["output_tokens"] == 8
    assert [record.exc_info for record in caplog.records if record.exc_info] == []
    assert "usage_waits" in caplog.text


async def test_row_of_a_chat_that_is_gone_is_its_owners_all_the_same(
    rows: ModelRows, config: ModelConfig, pool: asyncpg.Pool
) -> None:
    inflight = FollowUpWork(FakeClock())

    Ledger(pool, inflight).record(await failed_call(rows, config, chat_id=ChatId(uuid4())))
    await inflight.wait_idle()

    (row,) = await rows.conn.fetch(ROWS)
    assert (row["output_tokens"], row["chat_id"]) == (7, None)


async def test_rows_that_wait_for_a_database_are_bounded_and_end_with_the_process(
    rows: ModelRows, config: ModelConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(billing, "MAX_WAITING", 3)
    clock = FakeClock()
    inflight = FollowUpWork(clock)
    nowhere = asyncpg.create_pool("postgresql://127.0.0.1:1/none", min_size=0)
    await nowhere
    ledger = Ledger(nowhere, inflight)
    row = await failed_call(rows, config)

    ledger.record(row)
    await clock.until_waiting("usage-retry")
    for _ in range(5):
        ledger.record(row)
    await inflight.close(0)

    lost = [record.getMessage() for record in caplog.records if "usage_not_recorded" in record.getMessage()]
    assert len(lost) == 3
    assert len(inflight) == 0
    nowhere.terminate()


async def test_row_whose_answer_got_lost_is_not_written_twice(
    rows: ModelRows, config: ModelConfig, pool: asyncpg.Pool
) -> None:
    """The row was committed with its step, but the response was lost, so the call looks failed."""
    clock = FakeClock()
    inflight = FollowUpWork(clock)
    row = await failed_call(rows, config, status=CallStatus.OK, at=clock.now())
    await record_call(rows.conn, row)

    Ledger(pool, inflight).record(msgspec.structs.replace(row, status=CallStatus.INTERRUPTED))
    await inflight.wait_idle()

    assert [(found["status"], found["output_tokens"]) for found in await rows.conn.fetch(ROWS)] == [("ok", 7)]


REPORTED = Usage(input=100, cache_read=900, output=3, total=1003)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        # Nothing is reported before the end: all of it is estimated.
        (Usage(), Usage(input=200, cache_read=800, output=250)),
        # The prompt is reported at the start: only the answer is estimated.
        (REPORTED, Usage(input=100, cache_read=900, output=250)),
        # A report that exceeds the estimate is kept.
        (Usage(input=100, output=400, total=500), Usage(input=100, output=400, total=500)),
    ],
)
def test_stopped_call_counts_what_the_provider_has_not_reported_yet(reported: Usage, expected: Usage) -> None:
    assert billing.stopped_usage(reported, prompt_tokens=1000, cached_tokens=800, written=1000) == expected


def test_stopped_call_without_a_word_counts_its_prompt() -> None:
    found = billing.stopped_usage(Usage(), prompt_tokens=10, cached_tokens=50, written=3)
    assert (found.input, found.cache_read, found.output) == (0, 10, None)
