"""Spend limits: the limit of a user in a period, the amount spent, and the next reset.

Periods are in UTC, and a week starts on Monday. A limit can be exceeded by the cost of the calls that are running when
it is reached.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated
from uuid import UUID

import asyncpg
import msgspec

from rookery.store.db.pool import Connection
from rookery.store.models import usage_ledger
from rookery.store.models.errors import SpendLimitReached
from rookery.telemetry.log import get_logger

log = get_logger("store.models.spending")

SETTING = "spend"
READ = """
    SELECT (SELECT value FROM settings WHERE key = $1), (SELECT spend_limit_micros FROM users WHERE id = $2)
"""


class PeriodKind(StrEnum):
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class SpendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The group `spend` of the runtime settings. A limit of 0 means no limit."""

    enabled: bool = False
    default_limit_micros: Annotated[int, msgspec.Meta(ge=0)] = 0
    period: PeriodKind = PeriodKind.MONTH


class Period(msgspec.Struct, frozen=True):
    """A period from `start` to just before `end`."""

    start: datetime
    end: datetime


class SpendStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The spending of a user in the current period. `limit_micros` is None if the user has no limit."""

    period: Period
    spent_micros: int
    limit_micros: int | None

    @property
    def is_reached(self) -> bool:
        return self.limit_micros is not None and self.spent_micros >= self.limit_micros


def period_at(now: datetime, kind: PeriodKind) -> Period:
    """Return the period that contains `now`."""
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match kind:
        case PeriodKind.DAY:
            return Period(day, day + timedelta(days=1))
        case PeriodKind.WEEK:
            monday = day - timedelta(days=day.weekday())
            return Period(monday, monday + timedelta(days=7))
        case PeriodKind.MONTH:
            first = day.replace(day=1)
            # 32 days after the start of a month is always in the next month.
            return Period(first, (first + timedelta(days=32)).replace(day=1))


def limit_of(rules: SpendSettings, own_limit_micros: int | None) -> int | None:
    """Return the user's own limit, or the default limit. None if there is neither or limits are disabled."""
    if not rules.enabled:
        return None
    return own_limit_micros or rules.default_limit_micros or None


async def spend_status(conn: Connection, user_id: UUID, *, now: datetime) -> SpendStatus:
    stored, own = await _read(conn, user_id)
    rules = _rules(stored)
    period = period_at(now, rules.period)
    spent = await usage_ledger.spent_micros(conn, user_id, start=period.start, end=period.end)
    return SpendStatus(period=period, spent_micros=spent, limit_micros=limit_of(rules, own))


async def check_spend(conn: Connection, user_id: UUID, *, now: datetime) -> None:
    """Raise `SpendLimitReached` if this user has reached their limit.

    If the limit cannot be read, the error is logged and the call is allowed: a broken setting must not stop all work.
    """
    try:
        status = await spend_status(conn, user_id, now=now)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, msgspec.MsgspecError) as error:
        log.exception("spend_check_failed", error, user_id=user_id)
        return
    if status.is_reached:
        assert status.limit_micros is not None
        raise SpendLimitReached(
            spent_micros=status.spent_micros, limit_micros=status.limit_micros, resets_at=status.period.end
        )


async def _read(conn: Connection, user_id: UUID) -> tuple[str | None, int | None]:
    record = await conn.fetchrow(READ, SETTING, user_id)
    assert record is not None
    return record[0], record[1]


def _rules(stored: str | None) -> SpendSettings:
    return SpendSettings() if stored is None else msgspec.json.decode(stored, type=SpendSettings)
