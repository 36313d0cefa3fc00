"""The export of debug records: one JSON document with whole runs, written piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from rookery.debug import views
from rookery.debug.views import ExportedStepView, RunView
from rookery.domain.chat.messages import ChatId
from rookery.store.debug.export import MAX_EXPORTED_RUNS, ExportedRun, ExportedStep

VERSION = 1
# An export beyond this size has fewer runs. Most programs could not open a larger file.
MAX_EXPORT_BYTES = 256 * 1024 * 1024
_PIECE_BYTES = 256 * 1024

Scope = Literal["chat", "run"]
Write = Callable[[bytes], Awaitable[object]]
_encode = msgspec.json.Encoder().encode


class ExportedRunView(RunView, frozen=True, kw_only=True):
    steps: tuple[ExportedStepView, ...]


class ExportView(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a chat or of one run.

    A request has only its new messages: its first messages and its tools may be those of an earlier step. Only the most
    recent runs are exported; `is_complete` is false if some of them did not fit into the file.
    """

    version: Literal[1]
    scope: Scope
    exported_at: datetime
    chat_id: UUID
    limited_to_most_recent: int
    runs: tuple[ExportedRunView, ...]
    run_count: int
    is_complete: bool


def file_name(chat_id: ChatId, run_id: UUID | None, now: datetime) -> str:
    scope, named = _scope(run_id), chat_id if run_id is None else run_id
    return f"rookery-debug-{scope}-{str(named)[:8]}-{now:%Y%m%dT%H%M%SZ}.json"


class ExportWriter:
    """Writes an export: `begin`, `add` for each run until it returns False, `end`."""

    def __init__(self, write: Write, *, max_bytes: int = MAX_EXPORT_BYTES) -> None:
        self._write = write
        self._max_bytes = max_bytes
        self._pending = bytearray()
        self._size = 0
        self._count = 0
        self._is_complete = True

    def begin(self, chat_id: ChatId, run_id: UUID | None, *, exported_at: datetime) -> None:
        head = {
            "version": VERSION,
            "scope": _scope(run_id),
            "exported_at": exported_at,
            "chat_id": chat_id,
            "limited_to_most_recent": MAX_EXPORTED_RUNS,
        }
        self._put(_encode(head)[:-1] + b',"runs":[')

    async def add(self, exported: ExportedRun) -> bool:
        """Write a run. Return False once the document is full."""
        if self._is_full():
            return False
        self._put(b"," if self._count else b"")
        self._put(_encode(views.run(exported.run))[:-1] + b',"steps":[')
        separator = b""
        async for step in exported.steps():
            if self._is_full():
                break
            # A step with a long prompt takes milliseconds to encode.
            self._put(separator + await asyncio.to_thread(_encoded, step))
            separator = b","
            if len(self._pending) > _PIECE_BYTES:
                await self._flush()
        self._put(b"]}")
        self._count += 1
        return self._is_complete

    async def end(self) -> None:
        tail = _encode({"run_count": self._count, "is_complete": self._is_complete})
        self._put(b"]," + tail[1:])
        await self._flush()

    def _is_full(self) -> bool:
        if self._size > self._max_bytes:
            self._is_complete = False
        return not self._is_complete

    def _put(self, data: bytes) -> None:
        self._pending += data
        self._size += len(data)

    async def _flush(self) -> None:
        data, self._pending = bytes(self._pending), bytearray()
        await self._write(data)


def _encoded(exported: ExportedStep) -> bytes:
    return _encode(views.exported_step(exported.step, exported.attempts))


def _scope(run_id: UUID | None) -> Scope:
    return "chat" if run_id is None else "run"
