"""The usage ledger, and the sums that spend limits use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.store.models import spending, usage_ledger
from rookery.store.models.errors import SpendLimitReached
from rookery.store.models.model_configs import ModelConfig
from rookery.store.models.spending import PeriodKind, SpendSettings
from rookery.store.models.usage_ledger import CallStatus, Entry, GroupBy, KeySource
from rookery.store.settings import settings
from tests.store.models.provider_rows import ModelRows, open_nest

LIMIT = "UPDATE users SET spend_limit_micros = $2 WHERE id = $1"
NOW = datetime(2030, 5, 15, 12, tzinfo=UTC)  # a Wednesday


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as rows:
        yield rows


@pytest.fixture
async def config(rows: ModelRows) -> ModelConfig:
    return await rows.config(await rows.provider())


def entry(owner: UUID, config: ModelConfig, **fields: Any) -> Entry:
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
    return Entry(**{**values, **fields})


async def test_titles_and_compactions_are_in_the_ledger_and_move_no_version(
    rows: ModelRows, config: ModelConfig
) -> None:
    owner = await rows.user()
    chat = await rows.chat(owner, config)
    before = await rows.conn.fetchrow("SELECT c::text FROM chats c WHERE id = $1", chat)

    for purpose in ("title", "compaction"):
        await usage_ledger.record_call(rows.conn, entry(owner, config, chat_id=chat, purpose=purpose, cost_micros=5))

    cost = await usage_ledger.family_cost(rows.conn, ChatId(chat))
    assert (cost.total.cost_micros, cost.total.request_count) == (10, 2)
    assert await rows.conn.fetchrow("SELECT c::text FROM chats c WHERE id = $1", chat) == before


async def test_cost_of_a_family_is_the_same_from_root_and_child(rows: ModelRows, config: ModelConfig) -> None:
    owner = await rows.user()
    root = await rows.chat(owner, config)
    child = await rows.chat(owner, config, parent=root)
    stranger = await rows.chat(owner, config)
    await usage_ledger.record_call(
        rows.conn, entry(owner, config, chat_id=root, cost_micros=1, input_tokens=10, runtime_ms=7)
    )
    await usage_ledger.record_call(rows.conn, entry(owner, config, chat_id=child, cost_micros=2, model="other"))
    await usage_ledger.record_call(rows.conn, entry(owner, config, chat_id=child, status=CallStatus.FAILED))
    await usage_ledger.record_call(rows.conn, entry(owner, config, chat_id=stranger, cost_micros=100))

    of_root = await usage_ledger.family_cost(rows.conn, ChatId(root))

    assert of_root == await usage_ledger.family_cost(rows.conn, ChatId(child))
    total = of_root.total
    assert (total.cost_micros, total.request_count, total.unpriced_request_count) == (3, 3, 1)
    assert (total.input_tokens, total.runtime_ms) == (10, 7)
    assert {key: f.cost_micros for key, f in of_root.by_chat.items()} == {str(root): 1, str(child): 2}
    assert {key: f.request_count for key, f in of_root.by_model.items()} == {"m": 2, "other": 1}


async def test_cost_without_calls_is_zero(rows: ModelRows, config: ModelConfig) -> None:
    chat = await rows.chat(await rows.user(), config)

    assert (await usage_ledger.family_cost(rows.conn, ChatId(chat))).total.request_count == 0


async def test_ledger_is_append_only_and_outlives_its_chats_and_users(rows: ModelRows, config: ModelConfig) -> None:
    owner = await rows.user()
    chat = await rows.chat(owner, config)
    await usage_ledger.record_call(rows.conn, entry(owner, config, chat_id=chat, cost_micros=5))

    for statement in ("UPDATE model_usage SET cost_micros = 1", "DELETE FROM model_usage"):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await rows.conn.execute(statement)
        assert caught.value.sqlstate == "RK002"
    await rows.conn.execute("DELETE FROM chats")
    await rows.conn.execute("DELETE FROM users")

    record = await rows.conn.fetchrow("SELECT owner_id, chat_id, root_chat_id, cost_micros, priced FROM model_usage")
    assert record is not None
    assert tuple(record) == (owner, None, None, 5, True)


async def test_call_of_a_chat_that_is_gone_is_still_recorded(rows: ModelRows, config: ModelConfig) -> None:
    owner = await rows.user()
    chat = await rows.chat(owner, config)
    await rows.conn.execute("DELETE FROM chats")

    await usage_ledger.record_call(rows.conn, entry(owner, config, chat_id=chat, cost_micros=5))

    assert await rows.conn.fetchval("SELECT chat_id FROM model_usage") is None
    assert await usage_ledger.spent_micros(rows.conn, owner, start=NOW, end=NOW + timedelta(days=1)) == 5


async def test_every_reported_figure_is_stored_in_its_column(rows: ModelRows, config: ModelConfig) -> None:
    owner = await rows.user()
    names = [name for name in Entry.__struct_fields__ if name.endswith(("_tokens", "web_searches"))]
    figures = {name: number for number, name in enumerate(names, start=1)}

    await usage_ledger.record_call(
        rows.conn, entry(owner, config, **figures, runtime_ms=50, request_id="r", cost_micros=0)
    )

    record = await rows.conn.fetchrow("SELECT * FROM model_usage")
    assert record is not None
    assert {name: record[name] for name in names} == figures
    assert (record["runtime_ms"], record["request_id"], record["priced"], record["at"]) == (50, "r", True, NOW)


async def test_report_groups_by_what_is_asked(rows: ModelRows, config: ModelConfig) -> None:
    one, two = await rows.user(), await rows.user()
    await usage_ledger.record_call(rows.conn, entry(one, config, cost_micros=1))
    await usage_ledger.record_call(
        rows.conn, entry(one, config, cost_micros=2, purpose="title", at=NOW + timedelta(hours=13))
    )
    await usage_ledger.record_call(rows.conn, entry(two, config, cost_micros=4, model="other"))
    start, end = NOW - timedelta(days=1), NOW + timedelta(days=2)

    async def costs(by: GroupBy, user: UUID | None = None) -> dict[str, int]:
        found = await usage_ledger.report(rows.conn, by, start=start, end=end, user_id=user)
        return {key: figures.cost_micros for key, figures in found.items()}

    assert await costs(GroupBy.USER) == {str(one): 3, str(two): 4}
    assert await costs(GroupBy.DAY) == {"2030-05-15": 5, "2030-05-16": 2}
    assert await costs(GroupBy.MODEL) == {"m": 3, "other": 4}
    assert await costs(GroupBy.PURPOSE, one) == {"turn": 1, "title": 2}
    assert await costs(GroupBy.PROVIDER) == {str(config.provider_id): 7}


async def test_report_covers_a_year_at_most(rows: ModelRows) -> None:
    for days in (0, 367):
        with pytest.raises(InvalidInput):
            await usage_ledger.report(rows.conn, GroupBy.DAY, start=NOW, end=NOW + timedelta(days=days))


# Limits


@pytest.mark.parametrize(
    ("kind", "now", "start", "end"),
    [
        ("day", "2030-05-15T00:00:00", "2030-05-15", "2030-05-16"),
        ("day", "2030-12-31T23:59:59.999999", "2030-12-31", "2031-01-01"),
        ("week", "2030-05-13T00:00:00", "2030-05-13", "2030-05-20"),
        ("week", "2030-05-19T23:59:59", "2030-05-13", "2030-05-20"),
        ("week", "2030-01-01T12:00:00", "2029-12-31", "2030-01-07"),
        ("month", "2028-02-29T12:00:00", "2028-02-01", "2028-03-01"),
        ("month", "2030-12-31T12:00:00", "2030-12-01", "2031-01-01"),
    ],
)
def test_period_of_a_moment(kind: str, now: str, start: str, end: str) -> None:
    period = spending.period_at(datetime.fromisoformat(now).replace(tzinfo=UTC), PeriodKind(kind))

    assert (f"{period.start:%Y-%m-%d}", f"{period.end:%Y-%m-%d}") == (start, end)


def test_period_is_of_utc_wherever_the_clock_is() -> None:
    east = datetime(2030, 6, 1, 1, tzinfo=timezone(timedelta(hours=2)))

    assert spending.period_at(east, PeriodKind.MONTH).start == datetime(2030, 5, 1, tzinfo=UTC)


async def test_limit_is_reached_exactly_at_the_limit_and_says_when_it_ends(
    rows: ModelRows, config: ModelConfig
) -> None:
    owner = await rows.user()
    limited = SpendSettings(enabled=True, default_limit_micros=100)
    await settings.write_setting(rows.conn, spending.SETTING, value=limited)
    await usage_ledger.record_call(rows.conn, entry(owner, config, cost_micros=99))

    await spending.check_spend(rows.conn, owner, now=NOW)
    await usage_ledger.record_call(rows.conn, entry(owner, config, cost_micros=1))
    with pytest.raises(SpendLimitReached) as caught:
        await spending.check_spend(rows.conn, owner, now=NOW)

    assert (caught.value.spent_micros, caught.value.limit_micros) == (100, 100)
    assert caught.value.resets_at == datetime(2030, 6, 1, tzinfo=UTC)
    await spending.check_spend(rows.conn, owner, now=caught.value.resets_at)


async def test_calls_on_a_users_own_key_do_not_count(rows: ModelRows, config: ModelConfig) -> None:
    owner = await rows.user()
    for source in KeySource:
        await usage_ledger.record_call(rows.conn, entry(owner, config, cost_micros=10, key_source=source))

    status = await spending.spend_status(rows.conn, owner, now=NOW)

    assert (status.spent_micros, status.limit_micros) == (30, None)


async def test_own_limit_wins_over_the_deployments(rows: ModelRows) -> None:
    owner = await rows.user()
    rules = SpendSettings(enabled=True, default_limit_micros=100)
    await settings.write_setting(rows.conn, spending.SETTING, value=rules)

    await rows.conn.execute(LIMIT, owner, 7)
    own = (await spending.spend_status(rows.conn, owner, now=NOW)).limit_micros
    await rows.conn.execute(LIMIT, owner, None)
    shared = (await spending.spend_status(rows.conn, owner, now=NOW)).limit_micros
    await settings.write_setting(rows.conn, spending.SETTING, value=SpendSettings(default_limit_micros=100))
    switched_off = (await spending.spend_status(rows.conn, owner, now=NOW)).limit_micros

    assert (own, shared, switched_off) == (7, 100, None)
    with pytest.raises(asyncpg.CheckViolationError):
        await rows.conn.execute(LIMIT, owner, 0)


async def test_deleting_chats_does_not_lower_spend(rows: ModelRows, config: ModelConfig) -> None:
    owner = await rows.user()
    chat = await rows.chat(owner, config)
    await usage_ledger.record_call(rows.conn, entry(owner, config, chat_id=chat, cost_micros=9))

    await rows.conn.execute("DELETE FROM chats")

    assert (await spending.spend_status(rows.conn, owner, now=NOW)).spent_micros == 9


async def test_broken_setting_lets_calls_through(rows: ModelRows) -> None:
    owner = await rows.user()
    await settings.write_setting(rows.conn, "spend", value={"enabled": True, "default_limit_micros": "lots"})

    await spending.check_spend(rows.conn, owner, now=NOW)

    with pytest.raises(Exception, match="default_limit_micros"):
        await spending.spend_status(rows.conn, owner, now=NOW)


async def test_spend_is_read_from_its_index(rows: ModelRows, config: ModelConfig) -> None:
    owner = await rows.user()
    await rows.conn.execute("SET enable_seqscan = off")

    plan = await rows.conn.fetch(
        "EXPLAIN " + usage_ledger.SPENT.replace("$1", f"'{owner}'").replace("$2", "now()").replace("$3", "now()")
    )

    assert "model_usage_spend" in "\n".join(row[0] for row in plan)


async def test_setting_is_written_only_when_it_changes(rows: ModelRows) -> None:
    user = await rows.user()

    assert await settings.write_setting(rows.conn, "g", value={"a": 1}, by=user)
    assert not await settings.write_setting(rows.conn, "g", value={"a": 1})
    assert await settings.write_user_setting(rows.conn, user, key="k", value=[1])
    assert not await settings.write_user_setting(rows.conn, user, key="k", value=[1])

    row = await settings.find_setting_row(rows.conn, "g")
    assert row is not None
    assert (row.value, row.updated_by) == ({"a": 1}, user)
    assert await settings.find_user_setting(rows.conn, user, key="k") == [1]
    assert await settings.find_setting(rows.conn, "none") is None
