"""The outbox of one client: durable events, then live parts, both bounded.

All durable events in the outbox belong to one synchronization. The next synchronization is not read before they are
sent. Parts wait in a queue of 256 KiB. In a full queue neighbors are merged; if that is not enough, all are dropped and
the client has to restart the preview (`lagged`). Nothing is allocated for a client that is up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rookery.live import deltas
from rookery.live.deltas import PartEvent
from rookery.stream import events

MAX_FRAME_EVENTS = 256
MAX_FRAME_BYTES = 256 * 1024
PREVIEW_MAX_BYTES = 256 * 1024


class Frame(NamedTuple):
    """One frame. `cursor` is set when it ends a synchronization: the id to resume from.

    `is_all`: there are no more frames until the source wakes the session again.
    """

    data: bytes
    cursor: int | None = None
    is_all: bool = False


class Outbox:
    """Two queues. `put` and `show` fill them, `take` empties them, durable events first."""

    __slots__ = ("_cursor", "_durable", "_preview", "_preview_bytes", "_sent", "is_lagged")

    def __init__(self) -> None:
        self._durable: Sequence[bytes] = ()
        self._sent = 0  # how many of them were sent
        self._cursor: int | None = None
        self._preview: list[PartEvent | bytes] = []
        self._preview_bytes = 0
        self.is_lagged = False

    @property
    def is_durable_empty(self) -> bool:
        return self._sent == len(self._durable)

    @property
    def is_preview_empty(self) -> bool:
        return not self._preview

    def put(self, durable: Sequence[bytes], *, cursor: int | None = None, clears_preview: bool = False) -> None:
        """Queue durable events.

        With a cursor, they end a synchronization. If they void the preview, the queued preview is dropped.
        """
        if clears_preview:
            self.clear_preview()
        if self.is_durable_empty:
            self._durable, self._sent = durable, 0
        else:
            self._durable = [*self._durable[self._sent :], *durable]
            self._sent = 0
        if cursor is not None:
            self._cursor = cursor

    def show(self, parts: Sequence[PartEvent]) -> None:
        """Queue accepted parts. An empty queue accepts parts of any size."""
        size = sum(len(part[2]) for part in parts)
        if self._preview and self._preview_bytes + size > PREVIEW_MAX_BYTES:
            self._shrink()
            if self._preview_bytes + size > PREVIEW_MAX_BYTES:
                self.clear_preview()
                self.is_lagged = True
                return
        self._preview.extend(parts)
        self._preview_bytes += size

    def mark(self, event: bytes) -> None:
        """Queue an event that keeps its position among the parts."""
        self._preview.append(event)
        self._preview_bytes += len(event)

    def clear_preview(self) -> None:
        self._preview.clear()
        self._preview_bytes = 0
        self.is_lagged = False

    def take(self) -> Frame | None:
        """Return the next frame, up to its bounds; a single event may be larger. None when empty."""
        if not self.is_durable_empty:
            return self._take_durable()
        if self._preview:
            return Frame(events.frame(self._take_preview()))
        return None

    def _take_durable(self) -> Frame:
        start = stop = self._sent
        size = 0
        while stop < len(self._durable) and stop - start < MAX_FRAME_EVENTS:
            size += len(self._durable[stop])
            if size > MAX_FRAME_BYTES and stop > start:
                break
            stop += 1
        taken = self._durable[start:stop]
        self._sent = stop
        if not self.is_durable_empty:
            return Frame(events.frame(taken))
        cursor, self._cursor = self._cursor, None
        self._durable, self._sent = (), 0
        return Frame(events.frame(taken), cursor)

    def _take_preview(self) -> list[bytes]:
        taken: list[bytes] = []
        size = 0
        for each in self._preview:
            data = each if isinstance(each, bytes) else each[2]
            size += len(data)
            if taken and (size > MAX_FRAME_BYTES or len(taken) == MAX_FRAME_EVENTS):
                break
            taken.append(data)
        del self._preview[: len(taken)]
        self._preview_bytes = 0 if not self._preview else self._preview_bytes - sum(map(len, taken))
        return taken

    def _shrink(self) -> None:
        """Merge neighboring parts between marks."""
        merged: list[PartEvent | bytes] = []
        run: list[PartEvent] = []
        for each in self._preview:
            if isinstance(each, bytes):
                merged.extend(deltas.merged(run))
                merged.append(each)
                run = []
            else:
                run.append(each)
        merged.extend(deltas.merged(run))
        self._preview = merged
        self._preview_bytes = sum(len(each if isinstance(each, bytes) else each[2]) for each in merged)
