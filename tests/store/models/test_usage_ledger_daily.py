"""Usage by day: sums of the ledger, which are computed again while a day may still change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from rookery.store.models import usage_ledger
from rookery.store.models.model_configs import ModelConfig
from rookery.store.models.usage_ledger import CallStatus, Entry, KeySource
from tests.store.models.provider_rows import ModelRows, open_nest

NOW = datetime(2030, 5, 15, 0, 30, tzinfo=UTC)
TODAY = NOW.date()


@pytest.fixture
async def nest(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as nest:
        yield nest


@pytest.fixture
async def config(nest: ModelRows) -> ModelConfig:
    return await nest.config(await nest.provider(name="first-one"))


async def used(nest: ModelRows, owner: UUID, config: ModelConfig, **fields: Any) -> None:
    values: dict[str, Any] = {
        "owner_id": owner,
        "chat_id": None,
        "purpose": "turn",
        "provider_id": config.provider_id,
        "model_config_id": config.id,
        "model": config.model,
        "key_source": KeySource.CENTRAL,
        "status": CallStatus.OK,
        "at": NOW,
    }
    await usage_ledger.record_call(nest.conn, Entry(**{**values, **fields}))


async def days(nest: ModelRows) -> list[tuple[date, int, int]]:
    rows = await nest.conn.fetch("SELECT day, requests, cost_micros FROM usage_daily ORDER BY day, requests")
    return [tuple(row) for row in rows]


async def test_calls_of_a_kind_are_one_row(nest: ModelRows, config: ModelConfig) -> None:
    owner = await nest.user()
    await used(nest, owner, config, input_tokens=10, output_tokens=3, cost_micros=7, runtime_ms=100)
    await used(nest, owner, config, input_tokens=5, cache_read_tokens=2, reasoning_tokens=1, runtime_ms=50)

    assert await usage_ledger.roll_up(nest.conn, now=NOW) == 1

    row = await nest.conn.fetchrow("SELECT * FROM usage_daily")
    assert row is not None
    assert dict(row) == {
        "day": TODAY,
        "user_id": owner,
        "model_config_id": config.id,
        "provider": "first-one",
        "model": config.model,
        "purpose": "turn",
        "key_source": "central",
        "input_tokens": 15,
        "cache_read_tokens": 2,
        "cache_write_tokens": 0,
        "output_tokens": 3,
        "reasoning_tokens": 1,
        "cost_micros": 7,
        "unpriced_requests": 1,
        "requests": 2,
        "runtime_ms": 150,
    }


async def test_owner_purpose_and_key_are_told_apart_and_calls_without_a_config_count(
    nest: ModelRows, config: ModelConfig
) -> None:
    owner = await nest.user()
    await used(nest, owner, config)
    await used(nest, await nest.user(), config)
    await used(nest, owner, config, purpose="title")
    await used(nest, owner, config, key_source=KeySource.USER)
    await used(nest, owner, config, model_config_id=None)

    assert await usage_ledger.roll_up(nest.conn, now=NOW) == 5


async def test_recent_days_are_recomputed_and_older_ones_are_kept(nest: ModelRows, config: ModelConfig) -> None:
    owner = await nest.user()
    for back in range(4):
        await used(nest, owner, config, at=NOW - timedelta(days=back), cost_micros=1)
    await usage_ledger.roll_up(nest.conn, now=NOW, days=4)

    for back in range(4):
        await used(nest, owner, config, at=NOW - timedelta(days=back), cost_micros=1)
    await usage_ledger.roll_up(nest.conn, now=NOW)

    assert await days(nest) == [
        (TODAY - timedelta(days=3), 1, 1),
        (TODAY - timedelta(days=2), 1, 1),
        (TODAY - timedelta(days=1), 2, 2),
        (TODAY, 2, 2),
    ]


async def test_replicas_that_roll_up_together_leave_one_set_of_rows(nest: ModelRows, config: ModelConfig) -> None:
    await used(nest, await nest.user(), config, cost_micros=4)

    async def run() -> None:
        async with nest.connection() as conn:
            await usage_ledger.roll_up(conn, now=NOW)

    await asyncio.gather(*(run() for _ in range(4)))

    assert await days(nest) == [(TODAY, 1, 4)]
