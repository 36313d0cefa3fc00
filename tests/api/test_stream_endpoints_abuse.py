"""Stream clients that misbehave or disconnect: they are closed, others are not affected, and no error is logged."""

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

from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig
from tests.eventually import until

UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model()
    return ChatRig(rig, ada)


@asynccontextmanager
async def following(chat_rig: ChatRig, chat: str) -> AsyncIterator[ClientConnection]:
    url = f"{chat_rig.rig.url.replace('http', 'ws', 1)}{CHATS}/{chat}/stream"
    headers = {"Authorization": f"Bearer {chat_rig.person.token}"}
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


async def test_client_that_floods_is_sent_away_and_others_go_on(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    async with following(chat_rig, chat) as flooding, following(chat_rig, chat) as quiet:
        for number in range(21):
            await flooding.send(json.dumps({"type": "ping", "id": number}))

        assert await close_code(flooding) == 1008
        await chat_rig.send(chat, "And you?")
        await until_told(quiet, "queue_update")


async def test_client_with_a_frame_that_is_too_long_is_sent_away_and_others_go_on(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    async with following(chat_rig, chat) as shouting, following(chat_rig, chat) as quiet:
        await shouting.send("x" * 65 * 1024)

        assert await close_code(shouting) == 1009
        await chat_rig.send(chat, "And you?")
        await until_told(quiet, "queue_update")


@pytest.mark.parametrize("upgrade", [UPGRADE, ""], ids=["websocket", "sse"])
async def test_client_that_left_before_its_answer_is_no_failure(
    chat_rig: ChatRig, caplog: pytest.LogCaptureFixture, upgrade: str
) -> None:
    """The response takes some time; when it is ready, the client has disconnected."""
    chat = await chat_rig.create()
    parts = urlsplit(chat_rig.rig.url)
    async with chat_rig.rig.database.worker.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE chats IN ACCESS EXCLUSIVE MODE")
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        head = f"GET {CHATS}/{chat}/stream HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        writer.write(f"{head}Authorization: Bearer {chat_rig.person.token}\r\n{upgrade}\r\n".encode())
        await until(lambda: is_blocked(chat_rig.rig))
        writer.transport.abort()

    await until(lambda: is_quiet(chat_rig.rig))
    await until(lambda: len(chat_rig.rig.replica.streams.sessions) == 0)
    assert (await chat_rig.http.get(CHATS)).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def is_blocked(rig: ApiRig) -> bool:
    return bool(await rig.database.worker.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def is_quiet(rig: ApiRig) -> bool:
    """Return whether no query waits for the table or reads it."""
    running = "SELECT count(*) FROM pg_locks WHERE relation = 'chats'::regclass AND pid <> pg_backend_pid()"
    return not await rig.database.worker.fetchval(running)
