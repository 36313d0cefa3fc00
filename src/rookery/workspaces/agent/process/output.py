"""The output of a process: its first and last bytes, and its views for models and watchers.

Positions count the bytes the process has written, so a cursor stays valid whatever was dropped in between. A view is
valid UTF-8 of bounded size: cuts are made between characters, and bytes that are not text are replaced.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any

HEAD_BYTES = 64 * 1024
TAIL_BYTES = 256 * 1024
SMALL_BYTES = 16 * 1024  # of each end, for a process that ended long ago, when memory is needed
VIEW_BYTES = 32 * 1024
LINE_BYTES = 2048
LINE_SUFFIX = b" ... [line truncated%b]"
_MARKER_ROOM = 64


@dataclass(frozen=True)
class View:
    """The text for a model. `truncated` is None when it is the complete output."""

    text: str
    truncated: dict[str, Any] | None


@dataclass(frozen=True)
class Kept:
    """The file with the output from the first byte on, and whether it is complete."""

    path: str
    size: int
    is_whole: bool

    def described(self) -> str:
        what = "all of it is" if self.is_whole else f"the first {self.size} bytes are"
        return f"; {what} in {self.path}"


@dataclass(frozen=True)
class Piece:
    """The text after a cursor. `gap` counts dropped bytes between the requested cursor and this text."""

    text: str
    cursor: int
    gap: int


class Output:
    """The output of one process, in bounded memory."""

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
        """Append output; return by how many bytes the held memory has grown."""
        before = self.held
        self.total += len(data)
        room = self._head_room - len(self._head)
        # The head is filled once: bytes that follow a dropped byte must not be joined to it.
        if room > 0 and not self._tail:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_room :]
        if len(self._tail) > self._tail_room:
            del self._tail[: len(self._tail) - self._tail_room]
        return self.held - before

    def mask(self, text: bytes) -> None:
        """Replace every occurrence of a text by as many asterisks, so that positions stay valid."""
        for held in (self._head, self._tail):
            start = held.find(text)
            while start >= 0:
                held[start : start + len(text)] = b"*" * len(text)
                start = held.find(text, start + len(text))

    def shrink(self) -> int:
        """Keep only what a view of an ended output needs; return by how many bytes the memory has shrunk."""
        before = self.held
        if before > 2 * SMALL_BYTES:
            data = bytes(self._head + self._tail)
            self._head = bytearray(data[:SMALL_BYTES])
            self._tail = bytearray(data[-SMALL_BYTES:])
        return before - self.held

    def everything(self) -> bytes:
        """Return all held bytes, which is the complete output as long as nothing was dropped."""
        return bytes(self._head + self._tail)

    def view(self, *, ended: bool, kept: Kept | None = None) -> View:
        """Return the first and last part with a marker between them, or everything when it is short enough.

        The marker names the file with the complete output; without a file, it names the lines that were cut.
        """
        where = b"" if kept is None else kept.described().encode("utf-8", "replace")
        if self.dropped == 0:
            clean = _clean(bytes(self._head + self._tail), ended=ended)
            whole = _cut_lines(clean, where)
            if len(whole) <= VIEW_BYTES:
                return View(whole.decode(), None if whole is clean else self._truncated(len(whole)))
            first = last = _cut_lines(clean)
        else:
            first = _cut_lines(_clean(bytes(self._head), ended=False))
            last = _cut_lines(_clean(_from_character(bytes(self._tail)), ended=ended))
        half = max((VIEW_BYTES - _MARKER_ROOM - len(where)) // 2, 0)
        first, last = _first(first, half), _last(last, half)
        truncated = self._truncated(len(first) + len(last))
        marker = b"\n[... %d bytes omitted%b ...]\n" % (truncated["omitted_bytes"], where)
        return View((first + marker + last).decode(), truncated)

    def after(self, since: int, *, ended: bool) -> Piece:
        """Return the bytes from a cursor to the end, as one piece without gaps."""
        tail_start = self.total - len(self._tail)
        if self.dropped == 0:
            start, data = since, bytes(self._head + self._tail)[since:]
        elif since >= tail_start:
            start, data = since, bytes(self._tail[since - tail_start :])
        else:
            data = _from_character(bytes(self._tail))
            start = self.total - len(data)
        text, rest = _decode(data, ended=ended)
        return Piece(text, self.total - rest, start - since)

    def has_more(self, since: int) -> bool:
        """Return whether there is text after a cursor. The first bytes of an incomplete character do not count."""
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
    """Return the text, and how many bytes at the end belong to an incomplete character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=ended)
    return text, len(decoder.getstate()[0])


def _clean(data: bytes, *, ended: bool) -> bytes:
    return _decode(data, ended=ended)[0].encode()


def _from_character(data: bytes) -> bytes:
    """Remove the rest of a character whose beginning was dropped."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def _first(data: bytes, size: int) -> bytes:
    """Return at most `size` bytes of valid UTF-8 from the beginning."""
    if len(data) <= size:
        return data
    while size > 0 and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[:size]


def _last(data: bytes, size: int) -> bytes:
    return _from_character(data[-size:]) if size > 0 else b""


def _cut_lines(data: bytes, where: bytes = b"") -> bytes:
    """Cut overlong lines, because a line of a megabyte would fill the whole view. Return the data itself if there are
    none.
    """
    if len(data) <= LINE_BYTES:
        return data
    lines = data.split(b"\n")
    if max(map(len, lines)) <= LINE_BYTES:
        return data
    suffix = LINE_SUFFIX % where
    return b"\n".join(_first(line, LINE_BYTES) + suffix if len(line) > LINE_BYTES else line for line in lines)
