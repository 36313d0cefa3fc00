"""Reports as CSV: a header with the names of the columns, then rows, made piece by piece."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

MEDIA_TYPE = "text/csv"


class Format(StrEnum):
    """How a report is answered."""

    JSON = "json"
    CSV = "csv"


# A spreadsheet would take what begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def rows(values: Iterable[Sequence[object]]) -> bytes:
    """These rows. Lines end as RFC 4180 says."""
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
