"""The routes that read, list and write files: `/v1/files`, `/v1/files/lines|resolve|list`, and `/v1/results`."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
from collections.abc import AsyncIterator, Iterator
from io import FileIO
from typing import Any

from rookery.workspaces.agent import directory_handles, file_lines, file_replace, journal, paths
from rookery.workspaces.agent.disk_limit import Disk
from rookery.workspaces.agent.errors import AgentError, invalid
from rookery.workspaces.agent.journal import Attempt
from rookery.workspaces.agent.process import spill_file
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.shared_state import Agent

MAX_WRITE_BYTES = 16 * 1024 * 1024
MAX_RESULT_BYTES = 16 * 1024 * 1024
MAX_ENTRIES = 2000
# Chosen: uploads are in memory until they are complete. This many take 64 MiB.
UPLOADS_AT_ONCE = 4
UPLOAD_S = 120.0
_CHUNK_BYTES = 256 * 1024
_MIN_OFFSET = -(10**15)


class Files:
    """The handlers for single files and folders."""

    def __init__(self, agent: Agent, disk: Disk) -> None:
        self._agent = agent
        self._disk = disk
        self._uploads: asyncio.Semaphore | None = None

    async def read(self, request: Request) -> Response:
        path = paths.absolute(request.text("path"))
        offset = request.number("offset", 0)
        limit = request.optional_number("limit")
        # The file object closes the descriptor, even if the client disconnects before the first byte.
        opened = await asyncio.to_thread(directory_handles.open_regular, path, links=request.follows_links)
        file = os.fdopen(opened, "rb", buffering=0)
        length = max(os.fstat(file.fileno()).st_size - offset, 0)
        if limit is not None:
            length = min(length, limit)
        stream = _bytes_of(file, offset, length)
        return Response.streamed(stream, content_type=file_lines.content_type(path), length=length)

    async def read_lines(self, request: Request) -> Response:
        window = file_lines.Window(
            offset=request.number("offset", 1, minimum=_MIN_OFFSET),
            limit=min(request.number("limit", file_lines.MAX_LINES, minimum=1), _capped(request, "max_lines")),
            max_line_bytes=_capped(request, "max_line_bytes"),
            max_bytes=_capped(request, "max_bytes"),
        )
        return Response.json(await asyncio.to_thread(file_lines.read, request.query.get("path", ""), window))

    async def resolve(self, request: Request) -> Response:
        path = paths.absolute(request.text("path"))
        return Response.json({"path": await asyncio.to_thread(paths.resolve, path)})

    async def list(self, request: Request) -> Response:
        path = self._folder(await request.json())
        return Response.json(await asyncio.to_thread(_list, path))

    async def write(self, request: Request) -> Response:
        path = paths.absolute(request.text("path"))
        data = await self._upload(request)

        async def run(attempt: Attempt) -> Response:
            real = await asyncio.to_thread(directory_handles.resolved, path, links=request.follows_links)
            async with self._agent.locks.hold([real]):
                created = await asyncio.to_thread(self._write, real, data)
            self._agent.touched.record(request.chat, real)
            return Response.json({"ok": True, "bytes": len(data), "created": created})

        key = request.idempotency_key
        digest = journal.hash_of(path, data) if key is not None else ""
        return await self._agent.journal.once(key, "write", digest, run)

    async def _upload(self, request: Request) -> bytes:
        if self._uploads is None:
            self._uploads = asyncio.Semaphore(UPLOADS_AT_ONCE)  # on 3.9 it belongs to the running loop
        async with self._uploads:
            try:
                return await asyncio.wait_for(request.read(MAX_WRITE_BYTES), UPLOAD_S)
            except asyncio.TimeoutError:
                raise AgentError(408, "slow_upload", f"The body did not arrive within {UPLOAD_S:g} s.") from None

    def _write(self, real: str, data: bytes) -> bool:
        """Write one file and return whether it is new."""
        self._disk.require(len(data) - _size_of(real))
        staged = file_replace.stage(real, data)
        file_replace.commit([staged])
        return staged.is_new

    def _folder(self, body: dict[str, Any]) -> str:
        if body.get("path") is not None:
            return paths.absolute(body["path"])
        bases = {"home": self._agent.config.home, "root": "/"}
        base, parts = body.get("base", "root"), body.get("parts", [])
        if not isinstance(base, str) or base not in bases:
            raise invalid("base", "must be home or root")
        if not isinstance(parts, list) or not all(isinstance(part, str) and "/" not in part for part in parts):
            raise invalid("parts", "must be a list of names without slashes")
        return paths.absolute("/".join([bases[base], *parts]))


class Results:
    """Stores tool results that are too large for the prompt as files of the workspace."""

    def __init__(self, agent: Agent, disk: Disk) -> None:
        self._agent = agent
        self._disk = disk

    async def write(self, request: Request) -> Response:
        name = request.text("name")
        if not spill_file.is_name(name):
            raise invalid("name", "must be letters, digits, hyphens and underscores")
        data = await request.read(MAX_RESULT_BYTES)

        async def run(attempt: Attempt) -> Response:
            return Response.json({"path": await asyncio.to_thread(self._write, name, data)})

        digest = journal.hash_of(name, data) if request.idempotency_key is not None else ""
        return await self._agent.journal.once(request.idempotency_key, "result", digest, run)

    def _write(self, name: str, data: bytes) -> str:
        self._disk.require(len(data))
        home = self._agent.config.home
        try:
            descriptor, path = spill_file.new_file(home, name)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError as error:
            raise paths.refusal(error, os.path.join(home, spill_file.FOLDER)) from error
        return path


def register(router: Router, agent: Agent, disk: Disk) -> None:
    files = Files(agent, disk)
    router.add("GET", "/v1/files", files.read, query=["path", "offset", "limit"])
    router.add("PUT", "/v1/files", files.write, query=["path"])
    limits = ["max_lines", "max_line_bytes", "max_bytes"]
    router.add("GET", "/v1/files/lines", files.read_lines, query=["path", "offset", "limit", *limits])
    router.add("GET", "/v1/files/resolve", files.resolve, query=["path"])
    router.add("POST", "/v1/files/list", files.list)
    router.add("PUT", "/v1/results", Results(agent, disk).write, query=("name",))


def _capped(request: Request, name: str) -> int:
    caps = {
        "max_lines": file_lines.MAX_LINES,
        "max_line_bytes": file_lines.MAX_LINE_BYTES,
        "max_bytes": file_lines.MAX_BYTES,
    }
    return min(request.number(name, caps[name], minimum=1), caps[name])


async def _bytes_of(file: FileIO, offset: int, length: int) -> AsyncIterator[bytes]:
    """Stream the bytes of an open file, then close it. If the file has shrunk, the stream ends early."""
    with file:
        while length > 0:
            chunk = await asyncio.to_thread(os.pread, file.fileno(), min(length, _CHUNK_BYTES), offset)
            if not chunk:
                return
            offset += len(chunk)
            length -= len(chunk)
            yield chunk


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _list(path: str) -> dict[str, Any]:
    try:
        with directory_handles.directory(paths.resolve(path)) as handle:
            listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
        try:
            # Entries are read through this descriptor, so it stays open until all are read.
            with os.scandir(listed) as found:
                # A folder may have millions of entries. Only those that are shown stay in memory.
                entries = heapq.nsmallest(MAX_ENTRIES + 1, _entries(found), key=lambda entry: (not entry[1], entry[0]))
        finally:
            os.close(listed)
    except OSError as error:
        raise paths.refusal(error, path) from error
    shown = [
        {
            "name": _shown(name),
            "path": _shown(os.path.join(path, name)),
            "is_dir": is_dir,
            "size": status.st_size,
            "mtime": status.st_mtime,
        }
        for name, is_dir, status in entries[:MAX_ENTRIES]
    ]
    return {"path": _shown(path), "entries": shown, "truncated": len(entries) > MAX_ENTRIES}


def _entries(found: Iterator[os.DirEntry[str]]) -> Iterator[tuple[str, bool, os.stat_result]]:
    for entry in found:
        with contextlib.suppress(OSError):
            try:
                yield entry.name, entry.is_dir(), entry.stat()
            except FileNotFoundError:  # a dangling link
                yield entry.name, False, entry.stat(follow_symlinks=False)


def _shown(name: str) -> str:
    """Return a name as text. Bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(name).decode("utf-8", "replace")
