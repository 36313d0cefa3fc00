"""Spans of queries: they have a short form of the statement and no arguments, and exist only within a trace."""

from __future__ import annotations

import asyncpg
import pytest

from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.db.query_spans import summary
from rookery.telemetry.tracing import spans
from tests.otlp_collector import exporting, otlp_collector

SHORT = {
    "SELECT 1": ("SELECT", None),
    "SELECT a, (SELECT x FROM other) FROM chats WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED": ("SELECT", "chats"),
    "SELECT extract(epoch FROM clock_timestamp())": ("SELECT", None),
    "WITH a AS (SELECT b FROM c) SELECT d FROM a": ("SELECT", "a"),
    "  INSERT INTO chat_messages (a) VALUES ($1) ON CONFLICT DO UPDATE SET a = 1": ("INSERT", "chat_messages"),
    "WITH x AS (SELECT FROM y), z AS (UPDATE chats SET a = 1) SELECT 1 FROM z": ("UPDATE", "chats"),
    "DELETE FROM replicas WHERE id = $1": ("DELETE", "replicas"),
    "BEGIN; SET LOCAL x = 1": ("BEGIN", None),
    "": ("QUERY", None),
}


@pytest.mark.parametrize("statement", SHORT)
def test_short_form_of_a_statement(statement: str) -> None:
    assert summary(statement) == SHORT[statement]


async def test_queries_are_spans_below_the_current_one_without_their_arguments(database_url: str) -> None:
    with otlp_collector() as collector:
        async with exporting(collector), await Database.connect(DatabaseConfig(database_url)) as database:
            await database.api.fetchval("SELECT count(*) FROM users")
            with spans.span("request"):
                async with database.api.acquire() as conn:
                    await conn.fetchval("SELECT count(*) FROM users WHERE username = $1", "classified")
                    await conn.executemany("DELETE FROM users WHERE username = $1", [("classified",), ("b",)])
                    with pytest.raises(asyncpg.UndefinedTableError):
                        await conn.execute("DELETE FROM no_such_table")
            await database.api.fetchval("SELECT count(*) FROM users")

    request = collector.one("request")
    select, delete, failed = collector.named("db ")
    assert [each.name for each in (select, delete, failed)] == [
        "db SELECT users",
        "db DELETE users",
        "db DELETE no_such_table",
    ]
    assert {(each.trace_id, each.parent_id) for each in (select, delete, failed)} == {request.id}
    assert request.started_ns <= select.started_ns < select.ended_ns <= request.ended_ns
    assert (failed.has_failed, failed.attributes["error.type"]) == (True, "42P01")
    assert b"classified" not in b"".join(collector.bodies)
