"""The export of debug records: one JSON document with whole runs, generated piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from rookery.debug import record_views
from rookery.debug.record_views import ExportedStepView, RunView
from rookery.domain.chat.messages import ChatId
from rookery.store.debug.export import MAX_EXPORTED_RUNS, ExportedRun, ExportedStep

VERSION = 1
# An export beyond this size has fewer runs. Most programs could not open a larger file.
MAX_EXPORT_BYTES = 256 * 1024 * 1024
_PIECE_BYTES = 256 * 1024

Scope = Literal["chat", "run"]
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


class Export:
    """An export. `pieces` yields the document; `run_count` and `is_complete` are known after the last piece."""

    def __init__(
        self,
        runs: Sequence[ExportedRun],
        chat_id: ChatId,
        run_id: UUID | None,
        *,
        exported_at: datetime,
        max_bytes: int = MAX_EXPORT_BYTES,
    ) -> None:
        self.run_count = 0
        self.is_complete = True
        self._runs = runs
        self._head = {
            "version": VERSION,
            "scope": _scope(run_id),
            "exported_at": exported_at,
            "chat_id": chat_id,
            "limited_to_most_recent": MAX_EXPORTED_RUNS,
        }
        self._max_bytes = max_bytes
        self._pending = bytearray()
        self._size = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the document in pieces. A step is read from the database when its piece is requested."""
        self._put(_encode(self._head)[:-1] + b',"runs":[')
        for run in self._runs:
            if self._is_full():
                break
            self._put(b"," if self.run_count else b"")
            async for piece in self._run(run):
                yield piece
            self.run_count += 1
        tail = _encode({"run_count": self.run_count, "is_complete": self.is_complete})
        self._put(b"]," + tail[1:])
        yield self._take()

    async def _run(self, exported: ExportedRun) -> AsyncIterator[bytes]:
        self._put(_encode(record_views.run(exported.run))[:-1] + b',"steps":[')
        separator = b""
        async for step in exported.steps():
            if self._is_full():
                break
            # A step with a long prompt takes milliseconds to encode.
            self._put(separator + await asyncio.to_thread(_encoded, step))
            separator = b","
            if len(self._pending) > _PIECE_BYTES:
                yield self._take()
        self._put(b"]}")

    def _is_full(self) -> bool:
        if self._size > self._max_bytes:
            self.is_complete = False
        return not self.is_complete

    def _put(self, data: bytes) -> None:
        self._pending += data
        self._size += len(data)

    def _take(self) -> bytes:
        data, self._pending = bytes(self._pending), bytearray()
        return data


def _encoded(exported: ExportedStep) -> bytes:
    return _encode(record_views.exported_step(exported.step, exported.attempts))


def _scope(run_id: UUID | None) -> Scope:
    return "chat" if run_id is None else "run"
