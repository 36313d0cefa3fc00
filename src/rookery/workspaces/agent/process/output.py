"""The output of a process: keeps its first and last bytes in memory, and makes views of it.

A cursor counts the bytes that the process has written, so it stays valid when bytes in between are dropped. A view is
valid UTF-8 of limited size: cuts are between characters, and invalid bytes are replaced.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any

HEAD_BYTES = 64 * 1024
TAIL_BYTES = 256 * 1024
SMALL_BYTES = 16 * 1024  # the bytes that are kept of each end after `shrink`
VIEW_BYTES = 32 * 1024
LINE_BYTES = 2048
LINE_SUFFIX = b" ... [line truncated%b]"
_MARKER_ROOM = 64


@dataclass(frozen=True)
class View:
    """The text for the model. `truncated` is None if it is the complete output."""

    text: str
    truncated: dict[str, Any] | None


@dataclass(frozen=True)
class SpilledOutput:
    """The file with the output from its first byte on. It may be incomplete."""

    path: str
    size: int
    is_complete: bool

    def described(self) -> str:
        what = "all of it is" if self.is_complete else f"the first {self.size} bytes are"
        return f"; {what} in {self.path}"


@dataclass(frozen=True)
class Piece:
    """The text after a cursor. `gap` is the number of dropped bytes between the requested cursor and the text."""

    text: str
    cursor: int
    gap: int


class Output:
    """The output of one process, in limited memory."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._head_room = HEAD_BYTES
        self._tail_room = TAIL_BYTES
        self.total = 0

    @property
    def held(self) -> int:
        return len(self._head) + len(self._tail)

    @property
    def dropped(self) -> int:
        return self.total - self.held

    def append(self, data: bytes) -> int:
        """Append output. Return by how many bytes the used memory has grown."""
        before = self.held
        self.total += len(data)
        room = self._head_room - len(self._head)
        # The head is filled only once: after bytes were dropped, further bytes do not follow it directly.
        if room > 0 and not self._tail:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_room :]
        if len(self._tail) > self._tail_room:
            del self._tail[: len(self._tail) - self._tail_room]
        return self.held - before

    def mask(self, text: bytes) -> None:
        """Replace every occurrence of a text by as many asterisks, so that cursors stay valid."""
        for held in (self._head, self._tail):
            start = held.find(text)
            while start >= 0:
                held[start : start + len(text)] = b"*" * len(text)
                start = held.find(text, start + len(text))

    def shrink(self) -> int:
        """Keep only the bytes that a view needs. Return by how many bytes the used memory has shrunk."""
        before = self.held
        if before > 2 * SMALL_BYTES:
            data = bytes(self._head + self._tail)
            self._head = bytearray(data[:SMALL_BYTES])
            self._tail = bytearray(data[-SMALL_BYTES:])
        return before - self.held

    def everything(self) -> bytes:
        """Return all bytes in memory: the complete output, if nothing was dropped."""
        return bytes(self._head + self._tail)

    def view(self, *, ended: bool, spilled: SpilledOutput | None = None) -> View:
        """Return the output, or if it is too long, its beginning and end with a marker between them.

        The marker contains the number of omitted bytes and the file with the complete output, if there is one.
        """
        where = b"" if spilled is None else spilled.described().encode("utf-8", "replace")
        if self.dropped == 0:
            clean = _clean(bytes(self._head + self._tail), ended=ended)
            whole = _cut_lines(clean, where)
            if len(whole) <= VIEW_BYTES:
                return View(whole.decode(), None if whole is clean else self._truncated(len(whole)))
            first = last = _cut_lines(clean)
        else:
            first = _cut_lines(_clean(bytes(self._head), ended=False))
            last = _cut_lines(_clean(_skip_partial_character(bytes(self._tail)), ended=ended))
        half = max((VIEW_BYTES - _MARKER_ROOM - len(where)) // 2, 0)
        first, last = _first(first, half), _last(last, half)
        truncated = self._truncated(len(first) + len(last))
        marker = b"\n[... %d bytes omitted%b ...]\n" % (truncated["omitted_bytes"], where)
        return View((first + marker + last).decode(), truncated)

    def after(self, since: int, *, ended: bool) -> Piece:
        """Return the text after a cursor, or after the dropped bytes if the cursor is before or among them."""
        tail_start = self.total - len(self._tail)
        if self.dropped == 0:
            start, data = since, bytes(self._head + self._tail)[since:]
        elif since >= tail_start:
            start, data = since, bytes(self._tail[since - tail_start :])
        else:
            data = _skip_partial_character(bytes(self._tail))
            start = self.total - len(data)
        text, rest = _decode(data, ended=ended)
        return Piece(text, self.total - rest, start - since)

    def has_more(self, since: int) -> bool:
        """Return whether there is text after a cursor. An incomplete character does not count."""
        return self.total - since > 3 or bool(self.after(since, ended=False).text)

    def _truncated(self, retained: int) -> dict[str, Any]:
        retained = min(retained, self.total)
        return {
            "original_bytes": self.total,
            "retained_bytes": retained,
            "omitted_bytes": self.total - retained,
            "strategy": "head_tail",
        }


def _decode(data: bytes, *, ended: bool) -> tuple[str, int]:
    """Return the text, and the number of bytes of an incomplete character at the end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=ended)
    return text, len(decoder.getstate()[0])


def _clean(data: bytes, *, ended: bool) -> bytes:
    return _decode(data, ended=ended)[0].encode()


def _skip_partial_character(data: bytes) -> bytes:
    """Return the data without the rest of a character whose beginning was dropped."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def _first(data: bytes, size: int) -> bytes:
    """Return at most `size` bytes from the beginning, cut between two characters."""
    if len(data) <= size:
        return data
    while size > 0 and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[:size]


def _last(data: bytes, size: int) -> bytes:
    return _skip_partial_character(data[-size:]) if size > 0 else b""


def _cut_lines(data: bytes, where: bytes = b"") -> bytes:
    """Cut long lines, because one of them could fill the whole view. If there are none, return `data` itself."""
    if len(data) <= LINE_BYTES:
        return data
    lines = data.split(b"\n")
    if max(map(len, lines)) <= LINE_BYTES:
        return data
    suffix = LINE_SUFFIX % where
    return b"\n".join(_first(line, LINE_BYTES) + suffix if len(line) > LINE_BYTES else line for line in lines)
