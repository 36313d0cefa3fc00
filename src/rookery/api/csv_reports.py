"""CSV reports (usage, audit log): the times in their queries, and the conversion of rows to CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from rookery.api.errors import BadFields, FieldError

CSV_MEDIA_TYPE = "text/csv"


class Format(StrEnum):
    """The format of a report."""

    JSON = "json"
    CSV = "csv"


# A spreadsheet would treat text that begins with one of these characters as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def utc(moment: datetime, field: str) -> datetime:
    """Return the time in UTC.

    A time without an offset is taken as UTC. Raises `BadFields` if the time in UTC is outside of the years 1 to 9999.
    """
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise BadFields([FieldError(field, "This is out of the range of dates.")]) from None


def csv_rows(values: Iterable[Sequence[object]]) -> bytes:
    """Return the rows as CSV, with the line ends of RFC 4180."""
    made = io.StringIO()
    csv.writer(made).writerows([_cell(value) for value in row] for row in values)
    return made.getvalue().encode("utf-8", "replace")


def _cell(value: object) -> object:
    match value:
        case None:
            return ""
        case bool() | int():
            return value
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case dict():
            return _cell(msgspec.json.encode(value).decode())
        case _:
            text = str(value)
            return f"'{text}" if text.startswith(_FORMULA) else text
