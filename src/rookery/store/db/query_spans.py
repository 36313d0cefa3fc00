"""Spans of database queries. They have a short form of the statement, and never its arguments.

Queries are recorded only below an open span, so that polls of idle loops do not begin traces.
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import TracebackType

import asyncpg

from rookery.telemetry.tracing import names, spans
from rookery.telemetry.tracing.spans import NO_SPAN, Kind, Span

# Our statements have keywords in upper case and names in lower case, so `FOR UPDATE OF` names no table.
_CHANGE = re.compile(r"\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+([a-z_][a-z0-9_.]*)")
_SELECT = re.compile(r"\bSELECT\b.*?\bFROM\s+([a-z_][a-z0-9_.]*)", re.DOTALL)
_INNERMOST = re.compile(r"\([^()]*\)")
_WORD = re.compile(r"\s*([A-Za-z]+)")


class QuerySpan:
    """The span of one query, for a `with` block."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._span.fail(_error_type(error))
        self._span.end()


_OFF = QuerySpan(NO_SPAN)


def query_span(statement: str) -> QuerySpan:
    """Start the span of a query below the current span. Do nothing if that span is not exported or has ended."""
    if not spans.current().is_open:
        return _OFF
    operation, collection = summary(statement)
    short = operation if collection is None else f"{operation} {collection}"
    attributes = {
        names.DB_SYSTEM: "postgresql",
        names.DB_OPERATION: operation,
        names.DB_COLLECTION: collection,
        names.DB_SUMMARY: short,
    }
    return QuerySpan(spans.start(f"db {short}", Kind.CLIENT, attributes))


@lru_cache(maxsize=2048)
def summary(statement: str) -> tuple[str, str | None]:
    """Return the operation of a statement, and the first table that it changes, or that its outer SELECT reads."""
    if (change := _CHANGE.search(statement)) is not None:
        return change[1].split()[0], change[2]
    if (select := _SELECT.search(_without_parentheses(statement))) is not None:
        return "SELECT", select[1]
    word = _WORD.match(statement)
    return ("QUERY" if word is None else word[1].upper()), None


def _without_parentheses(statement: str) -> str:
    while (shorter := _INNERMOST.sub(" ", statement)) != statement:
        statement = shorter
    return statement


def _error_type(error: BaseException) -> str:
    """Return the SQLSTATE of an error of the server, else the name of its class."""
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate:
        return str(error.sqlstate)
    return spans.error_type(error)
