"""Clients of streams that misbehave or vanish: they are sent away, nobody else notices, nothing looks like a bug."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.api.api_rig import House, Person
from tests.api.chat_rig import CHATS, Talk
from tests.eventually import until

UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@pytest.fixture
async def talk(house: House, ada: Person) -> Talk:
    await house.add_model()
    return Talk(house, ada)


@asynccontextmanager
async def following(talk: Talk, chat: str) -> AsyncIterator[ClientConnection]:
    url = f"{talk.house.url.replace('http', 'ws', 1)}{CHATS}/{chat}/stream"
    headers = {"Authorization": f"Bearer {talk.person.token}"}
    async with connect(url, additional_headers=headers, proxy=None) as connection:
        await until_told(connection, "synced")
        yield connection


async def until_told(connection: ClientConnection, kind: str) -> None:
    async with asyncio.timeout(10):
        while not any(event["type"] == kind for event in json.loads(await connection.recv())):
            pass


async def close_code(connection: ClientConnection) -> int | None:
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionClosed):
            while True:
                await connection.recv()
    return connection.close_code


async def test_client_that_floods_is_sent_away_and_others_go_on(talk: Talk) -> None:
    chat = await talk.create()
    async with following(talk, chat) as flooding, following(talk, chat) as quiet:
        for number in range(21):
            await flooding.send(json.dumps({"type": "ping", "id": number}))

        assert await close_code(flooding) == 1008
        await talk.send(chat, "And you?")
        await until_told(quiet, "queue_update")


async def test_client_with_a_frame_that_is_too_long_is_sent_away_and_others_go_on(talk: Talk) -> None:
    chat = await talk.create()
    async with following(talk, chat) as shouting, following(talk, chat) as quiet:
        await shouting.send("x" * 65 * 1024)

        assert await close_code(shouting) == 1009
        await talk.send(chat, "And you?")
        await until_told(quiet, "queue_update")


@pytest.mark.parametrize("upgrade", [UPGRADE, ""], ids=["websocket", "sse"])
async def test_client_that_left_before_its_answer_is_no_failure(
    talk: Talk, caplog: pytest.LogCaptureFixture, upgrade: str
) -> None:
    """The answer takes its time; when it is there, nobody waits for it any more."""
    chat = await talk.create()
    parts = urlsplit(talk.house.url)
    async with talk.house.database.worker.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE chats IN ACCESS EXCLUSIVE MODE")
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        head = f"GET {CHATS}/{chat}/stream HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        writer.write(f"{head}Authorization: Bearer {talk.person.token}\r\n{upgrade}\r\n".encode())
        await until(lambda: is_blocked(talk.house))
        writer.transport.abort()

    await until(lambda: is_quiet(talk.house))
    await until(lambda: len(talk.house.replica.streams.sessions) == 0)
    assert (await talk.http.get(CHATS)).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def is_blocked(house: House) -> bool:
    return bool(await house.database.worker.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def is_quiet(house: House) -> bool:
    """Nobody waits for the table any more, nor reads it."""
    running = "SELECT count(*) FROM pg_locks WHERE relation = 'chats'::regclass AND pid <> pg_backend_pid()"
    return not await house.database.worker.fetchval(running)
