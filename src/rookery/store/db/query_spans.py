"""Spans of database queries. They have a short form of the statement, and never its arguments.

Queries are recorded only below an open span, so that polls of idle loops do not begin traces of their own.
"""

from __future__ import annotations

import re
from functools import lru_cache

import asyncpg
from asyncpg.connection import LoggedQuery

from rookery.telemetry.tracing import names, spans
from rookery.telemetry.tracing.spans import Kind

# Our statements have keywords in upper case and names in lower case, so `FOR UPDATE OF` names no table.
_CHANGE = re.compile(r"\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+([a-z_][a-z0-9_.]*)")
_SELECT = re.compile(r"\bSELECT\b.*?\bFROM\s+([a-z_][a-z0-9_.]*)", re.DOTALL)
_INNERMOST = re.compile(r"\([^()]*\)")
_WORD = re.compile(r"\s*([A-Za-z]+)")


def query_ended(query: LoggedQuery) -> None:
    """Record a query that has ended. A callback of asyncpg, which calls it with the context of the query's task."""
    if not spans.current().is_open:
        return
    operation, collection = summary(query.query)
    short = operation if collection is None else f"{operation} {collection}"
    span = spans.start(
        f"db {short}",
        Kind.CLIENT,
        {
            names.DB_SYSTEM: "postgresql",
            names.DB_OPERATION: operation,
            names.DB_COLLECTION: collection,
            names.DB_SUMMARY: short,
        },
        ago_seconds=query.elapsed,
    )
    if query.exception is not None:
        span.fail(_error_type(query.exception))
    span.end()


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
