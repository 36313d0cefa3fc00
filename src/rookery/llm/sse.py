"""The decoder for server-sent events: converts chunks of bytes to events.

The data of an event stays bytes, which each wire decodes once with its own types. `feed` has a fast path for chunks
with exactly one event, which is the usual case while a model writes.
"""

from __future__ import annotations

import msgspec

from rookery.llm.errors import EventTooLarge
from rookery.llm.wire import Event

# Large enough for an image, and small enough that a server cannot fill the memory with one event.
MAX_EVENT_BYTES = 32 * 1024 * 1024
DONE = b"[DONE]"
# Limit of the fast path. A longer event is not a token.
_LONGEST_SHORT = 65_536
_BOM = b"\xef\xbb\xbf"


class SseDecoder:
    """Decodes one response. It must not be used after `EventTooLarge`."""

    __slots__ = ("_max_bytes", "_max_short", "_rest", "_skip_newline", "_started")

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._max_short = min(max_event_bytes, _LONGEST_SHORT)
        self._rest = bytearray()
        self._skip_newline = False
        self._started = False

    @property
    def is_between_events(self) -> bool:
        """Whether all bytes so far were complete events."""
        return self._started and not self._rest and not self._skip_newline

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that this chunk completes."""
        if self._started and not self._rest and not self._skip_newline and len(chunk) <= self._max_short:
            event = _single_event(chunk)
            if event is not None:
                return [event]
        if not self._started:
            chunk = self._without_bom(chunk)
        if self._skip_newline or b"\r" in chunk:
            chunk = self._normalize_newlines(chunk)
        rest = self._rest
        if rest:
            is_seam = rest[-1] == 10 and chunk[:1] == b"\n"
            rest += chunk
            # The blank line can only be in the new bytes. Searching the old ones again for every chunk of a large event
            # would take quadratic time.
            if not is_seam and b"\n\n" not in chunk:
                self._check(len(rest))
                return []
            chunk = bytes(rest)
            rest.clear()
        blocks = chunk.split(b"\n\n")
        tail = blocks.pop()
        if tail:
            rest += tail
            self._check(len(tail))
        events = []
        for block in blocks:
            self._check(len(block))
            event = _parse(block)
            if event is not None:
                events.append(event)
        return events

    def end(self) -> list[Event]:
        """End the stream. An event without a blank line after it counts only if its data is complete JSON."""
        event = _parse(bytes(self._rest))
        self._rest.clear()
        return [event] if event is not None and _is_whole(event.data) else []

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            self._rest.clear()
            raise EventTooLarge(self._max_bytes)

    def _without_bom(self, chunk: bytes) -> bytes:
        """Return the first bytes of the stream without a byte order mark. An incomplete mark waits in `_rest`."""
        first = bytes(self._rest) + chunk
        self._rest.clear()
        if len(first) < len(_BOM) and _BOM.startswith(first):
            self._rest += first
            return b""
        self._started = True
        return first.removeprefix(_BOM)

    def _normalize_newlines(self, chunk: bytes) -> bytes:
        r"""Return the chunk with `\n` for every line end.

        If the previous chunk ended with `\r`, a `\n` at the start of this chunk is skipped.
        """
        if self._skip_newline and chunk:
            self._skip_newline = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" not in chunk:
            return chunk
        self._skip_newline = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _single_event(chunk: bytes) -> Event | None:
    """Return the event of a chunk that is exactly one event in a usual form; None for any other chunk."""
    last = len(chunk) - 2
    if not chunk.endswith(b"\n\n") or b"\r" in chunk:
        return None
    if chunk.startswith(b"data: "):
        return Event("", chunk[6:last]) if 6 < last == chunk.find(b"\n") else None
    if chunk.startswith(b"event: "):
        end = chunk.find(b"\n")
        if chunk.startswith(b"data: ", end + 1) and end + 7 < last == chunk.find(b"\n", end + 1):
            return Event(chunk[7:end].decode("utf-8", "replace"), chunk[end + 7 : last])
    return None


def _parse(block: bytes) -> Event | None:
    """Return the event of a block of lines; None if the block has no data."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return Event("", block[6:]) if len(block) > 6 else None
    if block.startswith(b"event: "):
        end = block.find(b"\n")
        if end > 0 and block.startswith(b"data: ", end + 1) and len(block) > end + 7 and block.find(b"\n", end + 1) < 0:
            return Event(block[7:end].decode("utf-8", "replace"), block[end + 7 :])
    return _parse_lines(block)


def _parse_lines(block: bytes) -> Event | None:
    name = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    joined = b"\n".join(data)
    return Event(name.decode("utf-8", "replace"), joined) if joined else None


def _is_whole(data: bytes) -> bool:
    # Only objects and arrays have a visible end. The number 12 may be the beginning of 123.
    if data == DONE:
        return True
    if data[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
