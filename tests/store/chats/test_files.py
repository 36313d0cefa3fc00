"""Files: their bytes for a prompt, only for chats that link them, and within the size limit."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.domain.chat.messages import ChatId, NewMessage, Role
from rookery.domain.chat.parts import File
from rookery.domain.content.attachments import StoredFile
from rookery.store.chats import files
from rookery.store.chats.files import FileCache, FileInfo, Origin
from tests.store.machine.machine_rig import Rig, make_rig


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as made:
        yield made


async def upload(rig: Rig, data: bytes, *, name: str = "a.txt", origin: Origin = Origin.UPLOAD) -> FileInfo:
    async with rig.pool.acquire() as conn:
        return await files.create_file(conn, rig.user, name=name, mime_type="text/plain", data=data, origin=origin)


async def chat_with(rig: Rig, *linked: FileInfo) -> ChatId:
    content = tuple(File(each.mime_type, file_id=each.id) for each in linked)
    return await rig.create(NewMessage(role=Role.USER, content=content, created_by=rig.user))


async def load(rig: Rig, chat_id: ChatId, *wanted: UUID, max_bytes: int = 1000) -> dict[UUID, StoredFile]:
    async with rig.pool.acquire() as conn:
        return await files.load_files(conn, chat_id, file_ids=wanted, max_bytes=max_bytes)


async def test_file_has_the_size_and_the_hash_of_its_bytes(rig: Rig) -> None:
    data = bytes(range(256)) * 40

    info = await upload(rig, data, origin=Origin.PASTED)

    assert (info.size_bytes, info.sha256, info.origin) == (len(data), hashlib.sha256(data).digest(), "pasted")
    async with rig.pool.acquire() as conn:
        assert await files.find_files(conn, [info.id, uuid4()]) == {info.id: info}
        assert await files.find_files(conn, []) == {}


async def test_file_that_is_too_large_or_of_no_known_origin_is_refused(rig: Rig) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="chat_files_size"):
        await upload(rig, b"x" * (files.MAX_FILE_BYTES + 1))
    with pytest.raises(asyncpg.CheckViolationError, match="chat_files_origin"):
        await rig.sql("UPDATE chat_files SET origin = 'elsewhere' WHERE id = $1", (await upload(rig, b"x")).id)


async def test_files_come_with_their_bytes(rig: Rig) -> None:
    plain, pasted = await upload(rig, b"one"), await upload(rig, b"\0two", name="b.txt", origin=Origin.PASTED)
    empty = await upload(rig, b"")
    chat_id = await chat_with(rig, plain, pasted, empty)

    found = await load(rig, chat_id, plain.id, pasted.id, empty.id)

    assert {file_id: (file.data, file.name, file.is_pasted) for file_id, file in found.items()} == {
        plain.id: (b"one", "a.txt", False),
        pasted.id: (b"\0two", "b.txt", True),
        empty.id: (b"", "a.txt", False),
    }
    assert not any(file.is_left_out for file in found.values())


async def test_file_that_the_chat_does_not_link_is_not_given_out(rig: Rig) -> None:
    linked, foreign = await upload(rig, b"mine"), await upload(rig, b"secret")
    chat_id = await chat_with(rig, linked)
    await chat_with(rig, foreign)

    assert set(await load(rig, chat_id, linked.id, foreign.id, uuid4())) == {linked.id}
    assert await load(rig, chat_id) == {}


async def test_newest_files_come_first_when_not_all_fit(rig: Rig) -> None:
    chat_files = [await upload(rig, b"x" * 10) for _ in range(3)]
    chat_id = await chat_with(rig, *chat_files)

    found = await load(rig, chat_id, *(each.id for each in chat_files), max_bytes=20)

    assert [(found[each.id].is_left_out, len(found[each.id].data)) for each in chat_files] == [
        (True, 0),
        (False, 10),
        (False, 10),
    ]


async def test_bytes_are_asked_for_once(rig: Rig) -> None:
    first, second = await upload(rig, b"one"), await upload(rig, b"two")
    chat_id, cache = await chat_with(rig, first, second), FileCache()

    async with rig.pool.acquire() as conn:
        await files.load_cached(conn, chat_id, file_ids=[first.id], cache=cache)
        await conn.execute("UPDATE chat_files SET data = 'changed'")
        found = await files.load_cached(conn, chat_id, file_ids=[first.id, second.id], cache=cache)

    assert (found[first.id].data, found[second.id].data) == (b"one", b"changed")


async def test_cached_bytes_are_the_chats_own(rig: Rig) -> None:
    file, cache = await upload(rig, b"secret"), FileCache()
    owner, stranger = await chat_with(rig, file), await rig.create()

    async with rig.pool.acquire() as conn:
        assert await files.load_cached(conn, owner, file_ids=[file.id], cache=cache)
        assert await files.load_cached(conn, stranger, file_ids=[file.id], cache=cache) == {}


async def test_cached_files_keep_their_room(rig: Rig) -> None:
    old, new = await upload(rig, b"x" * 10), await upload(rig, b"y" * 10)
    chat_id, cache = await chat_with(rig, old, new), FileCache()

    async with rig.pool.acquire() as conn:
        await files.load_cached(conn, chat_id, file_ids=[old.id], cache=cache, max_bytes=15)
        found = await files.load_cached(conn, chat_id, file_ids=[old.id, new.id], cache=cache, max_bytes=15)

    assert (found[old.id].is_left_out, found[new.id].is_left_out) == (False, True)
    assert cache.size_bytes == 10


async def test_cache_keeps_those_used_last(rig: Rig) -> None:
    uploads = [await upload(rig, b"x" * 10) for _ in range(3)]
    chat_id, cache = await chat_with(rig, *uploads), FileCache(max_bytes=20)

    async with rig.pool.acquire() as conn:
        for index in (0, 1, 0, 2):
            await files.load_cached(conn, chat_id, file_ids=[uploads[index].id], cache=cache)

    assert [bool(cache.find(chat_id, [each.id])) for each in uploads] == [True, False, True]
    assert cache.size_bytes == 20
