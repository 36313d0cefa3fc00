"""Streams opened through the API: their first events, and refusals before the upgrade."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.typing import Origin, Subprotocol

from rookery.api.host_and_origin import Origins
from rookery.domain.access.rights import Role, Scope
from rookery.store.db.hints import AccessHint
from rookery.store.db.pool import Connection
from rookery.store.people import tokens
from rookery.store.people.tokens import AuthenticatedToken
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig, said
from tests.api.more_servers import credentials, log_in, open_door
from tests.eventually import until

WATCH = f"{CHATS}/watch"


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model()
    return ChatRig(rig, ada)


def bearer(person: Person | str) -> dict[str, str]:
    return {"Authorization": f"Bearer {person if isinstance(person, str) else person.token}"}


@asynccontextmanager
async def opened(rig: ApiRig, path: str, **headers: str) -> AsyncIterator[ClientConnection]:
    async with connect(f"{rig.url.replace('http', 'ws', 1)}{path}", additional_headers=headers, proxy=None) as socket:
        yield socket


async def until_synced(socket: ClientConnection) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != "synced":
        events += json.loads(await socket.recv())
    return events


async def close_code(socket: ClientConnection) -> int | None:
    with contextlib.suppress(ConnectionClosedError):
        async for _ in socket:
            pass
    return socket.close_code


async def refusal(rig: ApiRig, path: str, **headers: str) -> tuple[int, str]:
    """Return the status and code of the response that refuses a WebSocket."""
    with pytest.raises(InvalidStatus) as refused:
        async with opened(rig, path, **headers):
            pass
    body = json.loads(refused.value.response.body or b"{}")
    return refused.value.response.status_code, body.get("code", "")


async def test_socket_begins_with_hello_and_comes_to_be_synced(rig: ApiRig, chat_rig: ChatRig) -> None:
    chat = await chat_rig.create("Hello there")

    async with opened(rig, f"{CHATS}/{chat}/stream", **bearer(chat_rig.person)) as socket:
        events = await until_synced(socket)

    assert (events[0]["type"], events[0]["chat_id"], events[0]["protocol"]) == ("hello", chat, 1)
    assert [said(event["message"]) for event in events if event["type"] == "message"] == ["Hello there"]
    assert {"status"} <= {event["type"] for event in events}


async def test_plain_get_becomes_a_stream_of_the_same_events(rig: ApiRig, chat_rig: ChatRig) -> None:
    chat = await chat_rig.create("Hello there")

    async with chat_rig.http.stream("GET", f"{CHATS}/{chat}/stream", headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = await _until_synced_lines(answer)

    assert events[0]["type"] == "hello"
    assert [said(event["message"]) for event in events if event["type"] == "message"] == ["Hello there"]


async def _until_synced_lines(answer: httpx2.Response) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            events += json.loads(line.removeprefix("data: "))
        if events and events[-1]["type"] == "synced":
            return events
    raise AssertionError("The stream ended before it was synced.")


async def test_message_that_is_sent_reaches_the_stream_as_it_was_answered(rig: ApiRig, chat_rig: ChatRig) -> None:
    chat = await chat_rig.waiting()
    async with opened(rig, f"{CHATS}/{chat}/stream", **bearer(chat_rig.person)) as socket:
        await until_synced(socket)

        sent = (await chat_rig.send(chat, "Go on")).json()["message"]
        events: list[dict[str, Any]] = []
        while not any(event["type"] == "message" for event in events):
            events += json.loads(await socket.recv())

    assert next(event["message"] for event in events if event["type"] == "message") == sent


async def test_watch_tells_of_a_new_chat(rig: ApiRig, chat_rig: ChatRig) -> None:
    async with opened(rig, WATCH, **bearer(chat_rig.person)) as socket:
        first = json.loads(await socket.recv())[0]
        chat = await chat_rig.create()
        text = ""
        while chat not in text:
            text = str(await socket.recv())

    assert first["type"] == "ready"
    assert "created" in text


async def test_hidden_rows_are_not_streamed(rig: ApiRig, chat_rig: ChatRig) -> None:
    chat = await chat_rig.create(system_prompt="The password is swordfish.")

    async with opened(rig, f"{CHATS}/{chat}/stream", **bearer(chat_rig.person)) as socket:
        events = await until_synced(socket)

    assert "swordfish" not in json.dumps(events)


@pytest.mark.parametrize("query", ["tail=1001", "tail=x", "after_id=-1", "parts=perhaps", "colour=red"])
async def test_bad_parameter_is_refused_before_the_upgrade(rig: ApiRig, chat_rig: ChatRig, query: str) -> None:
    chat = await chat_rig.create()

    assert await refusal(rig, f"{CHATS}/{chat}/stream?{query}", **bearer(chat_rig.person)) == (400, "invalid")
    plain = await chat_rig.http.get(f"{CHATS}/{chat}/stream?{query}")
    assert (plain.status_code, plain.json()["fields"][0]["field"]) == (400, query.partition("=")[0])


async def test_stream_is_refused_to_a_user_who_may_not_read_the_chat(
    rig: ApiRig, chat_rig: ChatRig, ben: Person
) -> None:
    boss = await rig.add("boss", role=Role.ADMIN)
    chat = await chat_rig.create()
    path = f"{CHATS}/{chat}/stream"
    usage_only = await rig.token_of(chat_rig.person.user, scopes=frozenset({Scope.USAGE_READ}))

    assert await refusal(rig, path) == (401, "unauthenticated")
    assert await refusal(rig, path, **bearer("rk_nonsense")) == (401, "unauthenticated")
    assert await refusal(rig, path, **bearer(ben)) == (404, "chat_not_found")
    assert await refusal(rig, path, **bearer(boss)) == (403, "forbidden")
    assert await refusal(rig, path, **bearer(usage_only)) == (403, "scope")
    assert await refusal(rig, WATCH, **bearer(usage_only)) == (403, "scope")
    assert await refusal(rig, f"{CHATS}/{uuid4()}/stream", **bearer(ben)) == (404, "chat_not_found")
    assert await refusal(rig, f"{CHATS}/nine/stream", **bearer(ben)) == (400, "invalid")
    assert await refusal(rig, f"{WATCH}?tail=1", **bearer(ben)) == (400, "invalid")


async def test_page_of_another_site_opens_no_stream(rig: ApiRig, chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    session = credentials(await log_in(rig, chat_rig.person))
    path = f"{CHATS}/{chat}/stream"

    assert await refusal(rig, path, **session, Origin="https://evil.example") == (403, "origin_rejected")
    assert await refusal(rig, path, **session, Origin="null") == (403, "origin_rejected")
    assert await refusal(rig, path, **session) == (403, "origin_rejected")
    async with opened(rig, path, **session, Origin=rig.url) as socket:
        assert (await until_synced(socket))[0]["type"] == "hello"


async def test_page_that_is_not_listed_opens_no_stream_with_a_token_either(rig: ApiRig, chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    path, token = f"{CHATS}/{chat}/stream", bearer(chat_rig.person)

    for origin in ("https://evil.example", "null"):
        assert await refusal(rig, path, **token, Origin=origin) == (403, "origin_rejected")
        plain = await rig.nobody.get(path, headers={**token, "Origin": origin})
        assert (plain.status_code, plain.json()["code"]) == (403, "origin_rejected")
    assert await refusal(rig, f"{path}?token={chat_rig.person.token}") == (401, "unauthenticated")
    async with opened(rig, path, **token, Origin=rig.url) as socket:
        assert (await until_synced(socket))[0]["type"] == "hello"


async def test_page_of_a_listed_origin_sends_its_token_as_a_subprotocol_that_is_not_echoed(
    rig: ApiRig, chat_rig: ChatRig, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("uvicorn", "rookery"):
        caplog.set_level(logging.DEBUG, name)
    chat, page = await chat_rig.create(), "https://tools.example"
    offered = [Subprotocol("rookery.v1"), Subprotocol(f"rookery.bearer.{chat_rig.person.token}")]

    async with open_door(rig, origins=Origins(allowed_origins=(page,))) as url:
        target = f"{url.replace('http', 'ws', 1)}{CHATS}/{chat}/stream"
        async with connect(target, origin=Origin(page), subprotocols=offered, proxy=None) as socket:
            assert (await until_synced(socket))[0]["type"] == "hello"

    assert socket.subprotocol == "rookery.v1"
    assert socket.response is not None
    assert chat_rig.person.token not in str(socket.response.headers) + caplog.text


async def test_stream_marks_what_its_caller_may_mark(rig: ApiRig, chat_rig: ChatRig) -> None:
    boss = await rig.add("boss", role=Role.ADMIN)
    narrow = await rig.token_of(chat_rig.person.user, scopes=frozenset({Scope.CHAT_READ}))
    chat = await chat_rig.waiting()
    readers = "SELECT user_id FROM chat_read_cursors"

    for headers in ({**bearer(boss), "Rookery-Break-Glass": "the owner asked for help"}, bearer(narrow)):
        async with opened(rig, f"{CHATS}/{chat}/stream?mark_read=true", **headers) as socket:
            last = (await until_synced(socket))[-1]["last_message_id"]
            await socket.send(json.dumps({"type": "read", "message_id": last}))
        await until(lambda: len(rig.replica.streams.sessions) == 0)
    assert await rig.database.api.fetch(readers) == []
    async with opened(rig, f"{CHATS}/{chat}/stream?mark_read=true", **bearer(chat_rig.person)) as socket:
        await until_synced(socket)

    await until(lambda: len(rig.replica.streams.sessions) == 0)
    assert [each["user_id"] for each in await rig.database.api.fetch(readers)] == [chat_rig.person.id]


async def test_stopping_server_says_when_to_come_back(rig: ApiRig, chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    rig.replica.streams.sessions.stop_admitting()

    refused = await chat_rig.http.get(f"{CHATS}/{chat}/stream")

    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert refused.headers["retry-after"] == "2"
    assert await refusal(rig, f"{CHATS}/{chat}/stream", **bearer(chat_rig.person)) == (503, "unavailable")


async def test_reader_follows_until_the_share_ends(rig: ApiRig, chat_rig: ChatRig, ben: Person) -> None:
    chat = await chat_rig.create()
    await chat_rig.share(chat, ben)
    async with opened(rig, f"{CHATS}/{chat}/stream", **bearer(ben)) as socket:
        await until_synced(socket)

        await chat_rig.http.patch(f"{CHATS}/{chat}/acl", json={"users": {str(ben.id): None}})
        assert await close_code(socket) == 4403


async def test_stream_of_a_deleted_chat_ends(rig: ApiRig, chat_rig: ChatRig) -> None:
    chat = await chat_rig.archived()
    async with opened(rig, f"{CHATS}/{chat}/stream", **bearer(chat_rig.person)) as socket:
        await until_synced(socket)

        await chat_rig.http.delete(f"{CHATS}/{chat}")
        assert await close_code(socket) == 4404


@pytest.mark.parametrize("watches", [True, False])
async def test_credential_that_ends_behind_the_login_check_shows_nothing(
    rig: ApiRig, chat_rig: ChatRig, monkeypatch: pytest.MonkeyPatch, watches: bool
) -> None:
    chat = await chat_rig.create("secret")
    authenticate = tokens.authenticate

    async def ending(conn: Connection, text: str, *, now: datetime) -> AuthenticatedToken:
        found = await authenticate(conn, text, now=now)
        await tokens.delete_token(conn, found.token.id)
        rig.replica.bus.dispatch(AccessHint(kind="token", id=str(found.token.id)))
        return found

    monkeypatch.setattr(tokens, "authenticate", ending)
    async with opened(rig, WATCH if watches else f"{CHATS}/{chat}/stream", **bearer(chat_rig.person)) as socket:
        with pytest.raises(ConnectionClosedError):
            await socket.recv()

    assert socket.close_code == 4401
