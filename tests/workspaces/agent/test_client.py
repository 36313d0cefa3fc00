"""The server's client with the real agent: files, edits and repositories."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from rookery.runtime.clock import SystemClock
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp, ChatHeaders
from rookery.workspaces.agent_messages import Edit, FileEdits
from rookery.workspaces.errors import AgentError
from tests.workspaces.agent import agent_rig as rigs
from tests.workspaces.agent.agent_rig import Rig
from tests.workspaces.agent.git.test_git import repository

CHAT = UUID(int=1)


class Socket:
    """A connector to a socket that exists already."""

    def __init__(self, path: str) -> None:
        self.unix_path: str | None = path

    async def prepare(self) -> None:
        return

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self.unix_path is not None
        return await asyncio.open_unix_connection(self.unix_path)

    async def close(self) -> None:
        return


@pytest.fixture
async def conn(rig: Rig) -> AsyncIterator[AgentConn]:
    http = AgentHttp(Socket(rig.socket), token=rigs.TOKEN, generation=1, clock=SystemClock())
    yield AgentConn(http, ChatHeaders(CHAT))
    await http.close()


async def test_files_are_written_read_listed_and_resolved(rig: Rig, conn: AgentConn) -> None:
    path = str(rig.directory / "large.txt")
    data = b"a line of text\n" * 200_000  # 3 MB: more than one piece in every buffer on the way

    written = await conn.write_file(path, data, key=uuid4())
    pieces = [piece async for piece in conn.read_file(path, offset=5)]
    lines = await conn.read_lines(path, offset=199_999, limit=10)
    listing = await conn.list_dir(str(rig.directory))
    (rig.home / "link").symlink_to(rig.directory)

    assert (written.bytes, written.created) == (len(data), True)
    assert b"".join(pieces) == data[5:]
    assert (lines.ok, lines.lines_read, lines.total_lines, lines.next_offset) == (True, 2, 200_000, None)
    assert [(entry.name, entry.size) for entry in listing.entries] == [("large.txt", len(data))]
    assert await conn.resolve_path(f"{rig.home}/link/large.txt") == path


async def test_edit_and_its_refusal_arrive_in_words(rig: Rig, conn: AgentConn) -> None:
    path = rig.directory / "f"
    path.write_text("a\n")
    wanted = FileEdits(path=str(path), edits=(Edit(old_text="a", new_text="b"),))
    key = uuid4()

    (first,) = await conn.edit_files([wanted], key=key)
    (again,) = await conn.edit_files([wanted], key=key)
    with pytest.raises(AgentError) as caught:
        await conn.edit_files([wanted], key=uuid4())

    assert first == again
    assert "-a\n+b\n" in first.diff
    assert [(edit.matches, edit.pass_) for edit in first.edits] == [(1, 1)]
    assert caught.value.status == 400
    assert "did you swap" in caught.value.message


async def test_changes_of_a_repository_arrive(rig: Rig, conn: AgentConn) -> None:
    root = repository(rig.home / "code", a="1\n")
    watch = conn.watch_git(CHAT)
    first = await anext(watch)

    await conn.write_file(str(root / "a"), b"2\n")
    told = await anext(watch)
    while not told.repositories:
        told = await anext(watch)
    scanned = await conn.scan_git(CHAT)
    await watch.aclose()  # it is a generator

    assert first.repositories == ()
    assert [(found.root, found.branch, found.additions) for found in told.repositories] == [(str(root), "main", 1)]
    assert scanned.repositories == told.repositories
