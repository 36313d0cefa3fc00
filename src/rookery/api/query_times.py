"""Moments in queries: any offset is taken, none is UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from rookery.api.errors import BadFields, FieldError


def utc(moment: datetime, field: str) -> datetime:
    """The same moment in UTC. Some of the first and last day that a date can have are in no other offset's reach."""
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise BadFields([FieldError(field, "This is out of the range of dates.")]) from None
