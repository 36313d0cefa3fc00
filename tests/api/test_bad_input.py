"""Invalid requests: too large, too slow, not JSON, not text."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import httpx2
import pytest

from rookery.domain.access.rights import Role
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CALL_ID, CHATS, ChatRig
from tests.api.more_servers import KEY, open_door
from tests.api.openapi_operations import ALL

LOGIN = "/api/v1/auth/login"
TOKENS = "/api/v1/tokens"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model()
    return ChatRig(rig, ada)


async def test_body_that_is_not_json_is_malformed(rig: ApiRig, ada: Person) -> None:
    for content in (
        b"",
        b"{",
        b'{"login": "ada",}',
        b"\xff\xfe",  # no text
        b'{"login": "\xff", "password": "x"}',
        b'{"login": "\\ud800", "password": "x"}',  # half a character
        b"[" * 10_000,
        b'{"login": "ada", "password": NaN}',
    ):
        strangers = await rig.nobody.post(LOGIN, content=content, headers=JSON)
        known = await ada.http.post(TOKENS, content=content, headers=JSON)

        told = {(each.status_code, each.json()["code"]) for each in (strangers, known)}
        assert told == {(400, "malformed")}, content[:40]
        assert strangers.json()["message"].endswith(".")


async def test_number_that_json_does_not_know_is_malformed_wherever_it_stands(chat_rig: ChatRig) -> None:
    """Also in fields of any type: some JSON parsers accept such numbers, but other parts of the server do not."""
    chat = await chat_rig.asking()
    for number in ("NaN", "Infinity", "-Infinity"):
        results = f'{{"results": [{{"tool_call_id": "{CALL_ID}", "output": {{"x": {number}}}}}]}}'
        display = f'{{"display": {{"x": {number}}}}}'

        refused = [
            await chat_rig.http.post(f"{CHATS}/{chat}/tool-results", content=results.encode(), headers=JSON),
            await chat_rig.http.patch("/api/v1/me/settings", content=display.encode(), headers=JSON),
        ]
        taken = await chat_rig.http.patch("/api/v1/me/settings", json={"display": {"x": number}})

        assert [(each.status_code, each.json()["code"]) for each in refused] == [(400, "malformed")] * 2
        assert (await chat_rig.get(chat))["status"] == "requires_action"
        assert taken.json()["display"] == {"x": number}


async def test_json_that_is_no_object_is_invalid(rig: ApiRig) -> None:
    for content in (b"7", b"null", b"[]", b'"text"'):
        refused = await rig.nobody.post(LOGIN, content=content, headers=JSON)

        assert (refused.status_code, refused.json()["code"]) == (400, "invalid")
        assert [each["field"] for each in refused.json()["fields"]] == ["body"]


async def test_wrong_types_and_unknown_members_are_all_named(rig: ApiRig) -> None:
    refused = await rig.nobody.post(LOGIN, json={"login": 7, "password": ["x"], "remember": True})

    assert {each["field"] for each in refused.json()["fields"]} == {"login", "password", "remember"}
    assert all(each["message"].endswith(".") for each in refused.json()["fields"])


async def test_error_never_quotes_a_password(rig: ApiRig) -> None:
    refused = await rig.nobody.post(LOGIN, json={"login": 7, "password": {"secret": "tops3cret"}})

    assert "tops3cret" not in refused.text


async def test_body_that_is_not_declared_as_json_is_refused(rig: ApiRig, ada: Person) -> None:
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {"Content-Type": kind} if kind else {}

        refused = [
            await rig.nobody.post(LOGIN, content=b"{}", headers=headers),
            await ada.http.post(TOKENS, content=b"{}", headers=headers),
        ]

        assert {(each.status_code, each.json()["code"]) for each in refused} == {(415, "unsupported_media_type")}


async def raw(rig: ApiRig, request: bytes, *, url: str | None = None) -> bytes:
    """Send raw bytes that no library would send, and return the whole response."""
    target = httpx2.URL(url or rig.url)
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        writer.write(request)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.close()


async def test_declared_size_is_refused_before_the_body_is_read(rig: ApiRig) -> None:
    head = "POST /api/v1/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    answered = await raw(rig, f"{head}Content-Length: 2097152\r\n\r\n".encode())

    assert answered.startswith(b"HTTP/1.1 413 ")
    assert b"larger than 16 KiB" in answered


async def test_body_without_a_declared_size_is_read_no_further_than_the_limit(rig: ApiRig, ada: Person) -> None:
    head = "POST /api/v1/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    endless = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"400\r\n" + b" " * 1024 + b"\r\n401\r\n"

    async with open_door(rig, max_body=1024) as url:
        answered = await raw(rig, endless + b" " * 16, url=url)
        exact = await ada.http.post(f"{url}{TOKENS}", content=b" " * 1024, headers=JSON)

    assert answered.startswith(b"HTTP/1.1 413 ")
    assert b"larger than 1 KiB" in answered
    assert exact.status_code == 400


async def test_body_that_takes_too_long_is_given_up(rig: ApiRig) -> None:
    head = "POST /api/v1/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    async with open_door(rig, read_seconds=0.05) as url:
        answered = await raw(rig, f'{head}Content-Length: 100\r\n\r\n{{"login":'.encode(), url=url)

    assert answered.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"too_slow"' in answered
    assert b"connection: close" in answered.lower()


async def test_request_with_too_much_before_its_body_is_refused(rig: ApiRig, ada: Person) -> None:
    cases: tuple[tuple[str, dict[str, str], int, str], ...] = (
        ("/api/v1/version?" + "q" * 9000, {}, 414, "url_too_long"),
        ("/api/v1/" + "v" * 9000, {}, 414, "url_too_long"),
        ("/api/v1/version", {"X-Big": "x" * 33_000}, 431, "headers_too_large"),
        ("/api/v1/version", {f"X-{n}": "x" * 700 for n in range(50)}, 431, "headers_too_large"),
    )
    for path, headers, status, code in cases:
        refused = await ada.http.get(path, headers=headers)

        assert (refused.status_code, refused.json()["code"]) == (status, code)


async def test_header_that_never_ends_is_cut_off(rig: ApiRig) -> None:
    answered = await raw(rig, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"x" * 200_000)

    assert answered.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 ", b"reset"))


async def test_request_that_is_none_is_refused(rig: ApiRig) -> None:
    for lines in (
        b"GET /api/v1/version HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /api/v1/version HTTP/1.1\r\n\r\n",  # no host
        b"GET /api/v1/version HTTP/1.0\r\n\r\n",
        b"GET /api/v1/version HTTP/1.1\r\nHost: localhost\r\nX-A: a\0b\r\n\r\n",
        b"NONSENSE\r\n\r\n",
    ):
        answered = await raw(rig, lines.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

        assert answered.split(b" ")[1] == b"400", lines


async def test_malformed_credential_is_unauthenticated(rig: ApiRig) -> None:
    cookies = ["", ";;;", "rookery_session", "rookery_session=", "\xff"]
    tokens = ["", "Bearer", "Bearer rk_", "Bearer \xff", "rk_x", "Basic eDp5"]
    for name, values in (("Cookie", cookies), ("Authorization", tokens)):
        for value in values:
            headers: Any = {name: value.encode("latin-1")}

            refused = await rig.nobody.get("/api/v1/version", headers=headers)

            assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated"), (name, value)
    for key in ("", "rk_k_x", "\xff"):
        halves: Any = {"Cookie": "rookery_session=rk_s_x", KEY: key.encode("latin-1")}
        assert (await rig.nobody.get("/api/v1/version", headers=halves)).status_code == 401


async def test_text_that_no_column_takes_is_no_bug_in_any_parameter(rig: ApiRig) -> None:
    chief = await rig.add("chief", role=Role.ADMIN)
    await rig.add_model()
    known = {"chat": await ChatRig(rig, chief).create(), "message": "1", "queued": "1"}
    failed = []
    for asked in ALL:
        named = {name: known.get(name, str(UUID(int=1))) for name in asked.parameters}
        urls = [f"{asked.path.format(**named)}?{name}=a%00b" for name in asked.queries]
        urls += [asked.path.format(**{**named, name: "a%00b"}) for name in asked.parameters]
        for url in urls:
            status = (await chief.http.request(asked.method, url, json={})).status_code
            if status >= 500 or status == 429:
                failed.append((asked.method, url, status))
    body = {"template": "a\0b"}
    refused = await chief.http.post("/api/v1/workspaces", json=body)

    assert failed == []
    assert [each["field"] for each in refused.json()["fields"]] == ["template"]


async def test_client_that_leaves_in_the_middle_of_its_body_is_forgotten(rig: ApiRig, ada: Person) -> None:
    target = httpx2.URL(rig.url)
    _, writer = await asyncio.open_connection(target.host, target.port)
    writer.write(
        b"POST /api/v1/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    await writer.drain()
    writer.close()

    assert (await ada.http.get("/api/v1/version")).status_code == 200


async def test_answer_to_a_body_that_is_wrong_everywhere_names_twenty_places(rig: ApiRig, ada: Person) -> None:
    body = {f"wrong_{number}": number for number in range(1000)}

    refused = await ada.http.post("/api/v1/tokens", json={"name": "x", "scopes": ["all"], **body})

    assert (refused.status_code, refused.json()["code"]) == (400, "invalid")
    assert len(refused.json()["fields"]) == 20
    assert "(999 more)" in refused.json()["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/auth/login", {"login": "ada", "password": "x"}),
        ("/api/v1/auth/link", {"token": "rk_l_x", "password": "a long sentence of mine"}),
        ("/api/v1/setup", {"token": "x", "email": "a@example.org", "password": "a long sentence of mine"}),
    ],
)
async def test_unauthenticated_bodies_have_at_most_sixteen_kib(
    rig: ApiRig, ada: Person, path: str, body: dict[str, str]
) -> None:
    short = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}

    large = await rig.nobody.post(path, content=short.ljust(16 * 1024 + 1), headers=headers)
    fits = await rig.nobody.post(path, content=short.ljust(16 * 1024), headers=headers)

    assert (large.status_code, large.json()["code"]) == (413, "body_too_large")
    assert large.json()["message"] == "The body is larger than 16 KiB."
    assert fits.status_code in (401, 410)
