from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx2
import pytest

from rookery.api.rate_limits import Limit, RateLimits
from rookery.domain.access.rights import Role
from rookery.store.people import users
from rookery.store.people.users import UserPatch
from rookery.testing.clock import FakeClock
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig, fields, text
from tests.api.more_servers import open_door

FILES = "/api/v1/files"


def png(width: int = 1, height: int = 1) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


def jpeg(width: int = 1, height: int = 1) -> bytes:
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00"
    return b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0" + struct.pack(">H", len(frame) + 2) + frame + b"\xff\xd9"


def webp(width: int = 1, height: int = 1) -> bytes:
    body = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0"
    body += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


GIF = b"GIF89a" + struct.pack("<HH", 1, 1) + b"\0\0\0;"
PDF = b"%PDF-1.7\n%%EOF"


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> AsyncIterator[ChatRig]:
    """A user without an upload limit."""
    await rig.add_model()
    limits = RateLimits(clock=rig.clock, per_minute=dict.fromkeys(Limit, 100_000))
    async with open_door(rig, limits=limits) as url:
        http = httpx2.AsyncClient(base_url=url, headers=ada.http.headers, timeout=20.0)
        async with http:
            yield ChatRig(rig, Person(ada.user, ada.token, http))


async def upload(
    http: httpx2.AsyncClient, data: bytes, name: str = "file", kind: str | None = None, **query: str
) -> httpx2.Response:
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}"}
    if kind is not None:
        headers["Content-Type"] = kind
    return await http.post(FILES, content=data, headers=headers, params=query)


async def stored(http: httpx2.AsyncClient, data: bytes = b"hello", name: str = "a.txt") -> dict[str, Any]:
    made = await upload(http, data, name)
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


# Accepted uploads


# The bytes, the declared type, and the detected type.
KINDS: tuple[tuple[bytes, str, str | None, str], ...] = (
    (png(), "a.png", "image/png", "image/png"),
    (jpeg(), "a.jpg", "image/jpeg", "image/jpeg"),
    (GIF, "a.gif", "image/gif", "image/gif"),
    (webp(), "a.webp", "image/webp", "image/webp"),
    (PDF, "a.pdf", "application/pdf", "application/pdf"),
    (b"hello", "a.txt", "text/plain", "text/plain"),
    (b"# hello", "a.MD", "text/markdown", "text/markdown"),
    (b"a,b", "a.csv", "text/csv", "text/csv"),
    (b"{}", "a.json", "application/json", "application/json"),
    (png(), "a.bin", "application/octet-stream", "image/png"),
    (png(), "a.bin", None, "image/png"),
    (b"# hello", "a.markdown", "text/plain; charset=utf-8", "text/markdown"),
    (b"a,b", "a.csv", "text/plain", "text/csv"),
    (b"{}", "a.json", "text/plain", "application/json"),
    (b"{", "a.json", "text/plain", "text/plain"),
    (b"print()", "a.py", "text/x-python", "text/plain"),
    ("grün".encode(), "a", None, "text/plain"),
    (b"", "empty.txt", None, "text/plain"),
)


async def test_bytes_decide_what_a_file_is(chat_rig: ChatRig) -> None:
    for data, name, declared, kind in KINDS:
        made = await upload(chat_rig.http, data, name, declared)

        assert made.status_code == 201, made.text
        assert (made.json()["mime_type"], made.json()["size_bytes"], made.json()["name"]) == (kind, len(data), name)
        assert made.headers["location"] == f"{FILES}/{made.json()['id']}"


# The bytes, the declared type, and words of the error message.
REFUSED: tuple[tuple[bytes, str, str | None, str], ...] = (
    (png(), "a.png", "text/plain", "text/plain, but its bytes are image/png"),
    (b"hello", "a.txt", "application/json", "application/json, but its bytes are text/plain"),
    (b"hello", "a.txt", "image/png", "image/png, but its bytes are text/plain"),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "a.svg", "image/svg+xml", "SVG"),
    (b"\xef\xbb\xbf<?xml version='1.0'?><!-- x --><!DOCTYPE svg [<!ENTITY a 'b'>]>\n<svg>", "a.txt", None, "SVG"),
    (b"<x:SVG xmlns:x='y'>", "a.md", "text/plain", "SVG"),
    ("<svg>".encode("utf-16"), "a.txt", None, "SVG"),
    (b"MZ\x00\x01", "a.exe", None, "not accepted"),
    (b"\xff\xfe\x00", "a.txt", None, "not accepted"),
    (png(10_000, 10_000), "a.png", None, "40 megapixels"),
    (jpeg(10_000, 4_001), "a.jpg", None, "40 megapixels"),
    (webp(16_000, 16_000), "a.webp", None, "40 megapixels"),
    (b"\x89PNG\r\n\x1a\n", "a.png", None, "damaged"),
)


async def test_file_that_is_not_taken_is_refused_with_the_reason(chat_rig: ChatRig) -> None:
    for data, name, declared, words in REFUSED:
        refused = await upload(chat_rig.http, data, name, declared)

        assert refused.status_code == 400, refused.text
        assert words in refused.json()["message"]
    assert await chat_rig.count("chat_files") == 0


async def test_file_has_at_most_10_mib(chat_rig: ChatRig) -> None:
    limit = 10 * 1024 * 1024

    assert (await upload(chat_rig.http, b"x" * limit)).status_code == 201
    refused = await upload(chat_rig.http, b"x" * (limit + 1))
    assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")


async def test_name_of_a_file_is_cleaned(chat_rig: ChatRig) -> None:
    for name, cleaned in (
        ("../../etc/passwd", "....etcpasswd"),
        ("a\x00b\nc", "abc"),
        (" x ", "x"),
        ("\u202egnp.exe", "gnp.exe"),
        ("ü" * 300, "ü" * 127),  # cut between characters
    ):
        assert (await stored(chat_rig.http, name=name))["name"] == cleaned


async def test_file_without_a_name_is_refused(chat_rig: ChatRig) -> None:
    for headers in (
        {},
        {"Content-Disposition": "attachment"},
        {"Content-Disposition": "attachment; filename*=UTF-8''%20"},
    ):
        refused = await chat_rig.http.post(FILES, content=b"x", headers=headers)
        assert list(fields(refused)) == ["filename"]


async def test_plain_name_is_taken_where_there_is_no_other(chat_rig: ChatRig) -> None:
    both = "attachment; filename=plain.txt; filename*=UTF-8''extended.txt"
    for given, name in (('attachment; filename="a \\"b\\".txt"', 'a "b".txt'), (both, "extended.txt")):
        made = await chat_rig.http.post(FILES, content=b"x", headers={"Content-Disposition": given})
        assert made.json()["name"] == name


async def test_name_in_an_encoding_that_headers_do_not_know_is_refused(chat_rig: ChatRig) -> None:
    latin = await chat_rig.http.post(
        FILES, content=b"x", headers={"Content-Disposition": "attachment; filename*=ISO-8859-1''%FC.txt"}
    )
    assert latin.json()["name"] == "ü.txt"

    for encoding in ("idna", "unicode_escape", "base64", "klingon", ""):
        given = f"attachment; filename*={encoding}''a%ff.txt"
        refused = await chat_rig.http.post(FILES, content=b"x", headers={"Content-Disposition": given})
        assert list(fields(refused)) == ["Content-Disposition"]


async def test_uploads_are_limited(ada: Person) -> None:
    answers = [await upload(ada.http, b"x") for _ in range(13)]

    assert [each.status_code for each in answers] == [201] * 12 + [429]


async def test_user_holds_a_bounded_number_of_files_that_no_chat_uses(chat_rig: ChatRig) -> None:
    async with chat_rig.rig.database.api.acquire() as conn:
        await conn.execute(
            """
            INSERT INTO chat_files (owner_id, name, mime_type, size_bytes)
            SELECT $1, 'x', 'text/plain', 0 FROM generate_series(1, 200)
            """,
            chat_rig.person.id,
        )

    refused = await upload(chat_rig.http, b"x")

    assert (refused.status_code, refused.json()["code"]) == (409, "quota_exceeded")


# Reading


async def test_file_is_served_so_that_it_can_do_no_harm(chat_rig: ChatRig) -> None:
    file = await stored(chat_rig.http, b"hello", "notes é.txt")

    found = await chat_rig.http.get(f"{FILES}/{file['id']}")

    assert (found.status_code, found.content) == (200, b"hello")
    assert found.headers["content-type"] == "text/plain; charset=utf-8"
    assert found.headers["content-disposition"] == "inline; filename*=UTF-8''notes%20%C3%A9.txt"
    assert found.headers["content-security-policy"].startswith("sandbox")
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert found.headers["etag"] == f'"{file["sha256"]}"'
    same = await chat_rig.http.get(f"{FILES}/{file['id']}", headers={"If-None-Match": found.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    pdf = await stored(chat_rig.http, PDF, "a.pdf")
    assert (await chat_rig.http.get(f"{FILES}/{pdf['id']}")).headers["content-disposition"].startswith("attachment;")


async def test_range_of_a_file(chat_rig: ChatRig) -> None:
    file = await stored(chat_rig.http)
    cases: list[tuple[str, int, bytes | None, str | None]] = [
        ("bytes=1-3", 206, b"ell", "bytes 1-3/5"),
        ("bytes=3-", 206, b"lo", "bytes 3-4/5"),
        ("bytes=-2", 206, b"lo", "bytes 3-4/5"),
        ("bytes=0-99", 206, b"hello", "bytes 0-4/5"),
        ("bytes=-99", 206, b"hello", "bytes 0-4/5"),
        ("bytes=0-1,3-4", 200, b"hello", None),
        ("bytes=3-1", 200, b"hello", None),
        ("lines=1-2", 200, b"hello", None),
        (f"bytes={'9' * 5000}-", 200, b"hello", None),
        (f"bytes=-{'9' * 5000}", 200, b"hello", None),
        ("bytes=5-", 416, None, "bytes */5"),
        ("bytes=-0", 416, None, "bytes */5"),
    ]

    for wanted, status, data, place in cases:
        found = await chat_rig.http.get(f"{FILES}/{file['id']}", headers={"Range": wanted})

        assert (found.status_code, found.headers.get("content-range")) == (status, place), wanted
        if data is not None:
            assert found.content == data


async def test_range_of_another_version_is_answered_by_all(chat_rig: ChatRig) -> None:
    file = await stored(chat_rig.http)

    found = await chat_rig.http.get(f"{FILES}/{file['id']}", headers={"Range": "bytes=1-2", "If-Range": '"other"'})

    assert (found.status_code, found.content) == (200, b"hello")


async def test_file_is_read_by_its_owner_and_by_readers_of_its_chat(chat_rig: ChatRig, ben: Person) -> None:
    file = await stored(chat_rig.http)
    path = f"{FILES}/{file['id']}"
    chat = await chat_rig.create_with(file["id"])
    assert (await ben.http.get(path)).status_code == 404

    await chat_rig.share(chat, ben)

    assert (await ben.http.get(path)).status_code == 200
    assert (await ben.http.delete(path)).json()["code"] == "forbidden"
    assert (await chat_rig.http.get(f"{FILES}/{uuid4()}")).json()["code"] == "not_found"


async def test_file_goes_only_while_no_chat_uses_it(chat_rig: ChatRig) -> None:
    used, unused = await stored(chat_rig.http), await stored(chat_rig.http)
    await chat_rig.create_with(used["id"])

    refused = await chat_rig.http.delete(f"{FILES}/{used['id']}")
    done = await chat_rig.http.delete(f"{FILES}/{unused['id']}")

    assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
    assert done.status_code == 204
    assert (await chat_rig.http.get(f"{FILES}/{unused['id']}")).status_code == 404


# In messages


async def test_message_says_what_its_file_is(chat_rig: ChatRig) -> None:
    file = await stored(chat_rig.http, b"alpha beta gamma", "words.txt")

    chat = await chat_rig.create_with(file["id"])

    (message,) = (await chat_rig.http.get(f"{CHATS}/{chat}/messages")).json()["items"]
    assert message["content"] == [
        {"type": "file", "media_type": "text/plain", "name": "words.txt", "file_id": file["id"]}
    ]
    found = await chat_rig.get(chat)
    assert found["title"] == "alpha beta gamma"
    assert [each["id"] for each in found["files"]] == [file["id"]]


async def test_file_of_another_user_is_refused_with_its_position(chat_rig: ChatRig, ben: Person) -> None:
    theirs = await stored(ben.http)
    chat = await chat_rig.create()
    content = [*text("look"), {"type": "file", "file_id": theirs["id"]}]

    for path in (CHATS, f"{CHATS}/{chat}/messages"):
        refused = await chat_rig.http.post(path, json={"content": content})
        assert list(fields(refused)) == ["content[1].file_id"]
        assert refused.json()["code"] == "file_unavailable"


async def test_chat_uses_at_most_50_files_and_each_counts_once(chat_rig: ChatRig) -> None:
    files = [(await stored(chat_rig.http, str(n).encode()))["id"] for n in range(51)]
    parts = [{"type": "file", "file_id": each} for each in files]
    chat = await chat_rig.create()

    full = await chat_rig.http.post(f"{CHATS}/{chat}/messages", json={"content": [*parts[:50], parts[0]]})
    again = await chat_rig.http.post(f"{CHATS}/{chat}/messages", json={"content": parts[:1]})
    refused = await chat_rig.http.post(f"{CHATS}/{chat}/messages", json={"content": parts[50:]})

    assert (full.status_code, again.status_code) == (200, 200), full.text
    assert (refused.status_code, refused.json()["code"]) == (400, "file_cap_exceeded")
    assert len(await chat_rig.queued(chat)) == 2


# Signed addresses


async def test_signed_address_works_without_a_login(rig: ApiRig, chat_rig: ChatRig) -> None:
    file = await stored(chat_rig.http)

    signed = (await chat_rig.http.post(f"{FILES}/{file['id']}/download-url")).json()
    found = await rig.nobody.get(signed["url"])

    assert (found.status_code, found.content) == (200, b"hello")
    assert found.headers["cache-control"] == "no-store"
    assert (signed["sha256"], signed["size_bytes"], signed["name"]) == (file["sha256"], 5, "a.txt")
    assert signed["expires_at"].endswith("Z")
    assert "." not in signed["expires_at"]


async def test_signed_address_is_for_one_file_and_as_it_was_made(rig: ApiRig, chat_rig: ChatRig) -> None:
    file, other = await stored(chat_rig.http), await stored(chat_rig.http)
    url = (await chat_rig.http.post(f"{FILES}/{file['id']}/download-url")).json()["url"]
    token = url.partition("token=")[2]

    for path in (
        f"{FILES}/{other['id']}/download?token={token}",
        f"{FILES}/{file['id']}/download?token={token[:-4]}AAAA",
        f"{FILES}/{file['id']}/download?token=%C3%BC",
        f"{FILES}/{file['id']}/download",
        f"{FILES}/nine/download?token={token}",
    ):
        refused = await rig.nobody.get(path)
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found"), path


async def test_signed_address_ends_with_the_right_of_who_made_it(rig: ApiRig, chat_rig: ChatRig, ben: Person) -> None:
    file = await stored(chat_rig.http)
    chat = await chat_rig.create_with(file["id"])
    await chat_rig.share(chat, ben)
    url = (await ben.http.post(f"{FILES}/{file['id']}/download-url")).json()["url"]
    assert (await rig.nobody.get(url)).status_code == 200

    await chat_rig.http.patch(f"{CHATS}/{chat}/acl", json={"users": {str(ben.id): None}})

    assert (await rig.nobody.get(url)).status_code == 404


async def test_break_glass_reader_gets_no_signed_address(rig: ApiRig, chat_rig: ChatRig) -> None:
    """A signed address carries no reason."""
    file = await stored(chat_rig.http)
    await chat_rig.create_with(file["id"])
    boss = await rig.add("boss", role=Role.ADMIN)
    reason = {"Rookery-Break-Glass": "looking for a lost invoice"}

    read = await boss.http.get(f"{FILES}/{file['id']}", headers=reason)
    signed = await boss.http.post(f"{FILES}/{file['id']}/download-url", headers=reason)

    assert read.status_code == 200
    assert (signed.status_code, signed.json()["code"]) == (403, "forbidden")
    assert f"{FILES}/{file['id']}" in signed.json()["message"]


async def test_signed_address_of_a_disabled_user_gives_nothing(rig: ApiRig, chat_rig: ChatRig) -> None:
    file = await stored(chat_rig.http)
    url = (await chat_rig.http.post(f"{FILES}/{file['id']}/download-url")).json()["url"]
    async with rig.database.api.acquire() as conn:
        await users.update_user(conn, chat_rig.person.id, patch=UserPatch(status=users.Status.DISABLED))

    assert (await rig.nobody.get(url)).status_code == 404


async def test_signed_address_is_good_for_5_minutes(rig: ApiRig, chat_rig: ChatRig) -> None:
    file, clock = await stored(chat_rig.http), FakeClock(rig.clock.now())
    async with open_door(rig, clock=clock) as url:
        signing = f"{url}{FILES}/{file['id']}/download-url"
        signed = (await chat_rig.http.post(signing)).json()["url"]

        await clock.advance(timedelta(minutes=4, seconds=58).total_seconds())
        early = await rig.nobody.get(signed)
        await clock.advance(3)
        late = await rig.nobody.get(signed)

    assert (early.status_code, late.status_code) == (200, 404)
