"""What a process printed: the first and the last bytes of it, and how a model or a watcher sees them.

Positions count the bytes the process has written, so a cursor stays right whatever was dropped in between. A view is
valid UTF-8 of bounded size: cuts are made between characters, and bytes that are no text are replaced.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any

HEAD_BYTES = 64 * 1024
TAIL_BYTES = 256 * 1024
SMALL_BYTES = 16 * 1024  # of each end, for a process that ended long ago when room is needed
VIEW_BYTES = 32 * 1024
LINE_BYTES = 2048
LINE_SUFFIX = b" ... [line truncated%b]"
_MARKER_ROOM = 64


@dataclass(frozen=True)
class View:
    """The text for a model. `truncated` is None when it is everything the process printed."""

    text: str
    truncated: dict[str, Any] | None


@dataclass(frozen=True)
class Kept:
    """The file that has what was printed from the first byte on, and whether that is all of it."""

    path: str
    size: int
    is_whole: bool

    def described(self) -> str:
        what = "all of it is" if self.is_whole else f"the first {self.size} bytes are"
        return f"; {what} in {self.path}"


@dataclass(frozen=True)
class Piece:
    """The text after a cursor. `gap` counts bytes between the cursor asked for and this text that were dropped."""

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
        """Take more output; gives by how many bytes the memory held has grown."""
        before = self.held
        self.total += len(data)
        room = self._head_room - len(self._head)
        # The head is filled once: what follows a dropped byte must not be joined to it.
        if room > 0 and not self._tail:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_room :]
        if len(self._tail) > self._tail_room:
            del self._tail[: len(self._tail) - self._tail_room]
        return self.held - before

    def mask(self, text: bytes) -> None:
        """Cover every occurrence of a text with as many asterisks, so that positions stay right."""
        for held in (self._head, self._tail):
            start = held.find(text)
            while start >= 0:
                held[start : start + len(text)] = b"*" * len(text)
                start = held.find(text, start + len(text))

    def shrink(self) -> int:
        """Keep only what a view needs of an output that has ended; gives by how many bytes the memory has shrunk."""
        before = self.held
        if before > 2 * SMALL_BYTES:
            data = bytes(self._head + self._tail)
            self._head = bytearray(data[:SMALL_BYTES])
            self._tail = bytearray(data[-SMALL_BYTES:])
        return before - self.held

    def everything(self) -> bytes:
        """All that is held; all there is as long as nothing was dropped."""
        return bytes(self._head + self._tail)

    def view(self, *, ended: bool, kept: Kept | None = None) -> View:
        """First and last part with a marker between them, or everything when it is short enough.

        The marker names the file in which the rest was kept; where there is none, the lines that were cut do.
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
        """The bytes from a cursor on, as one piece without holes that reaches to the end."""
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
        """Whether there is text after a cursor; the first bytes of a character that is not whole yet are none."""
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
    """The text, and how many bytes at the end are the begin of a character that has not come whole yet."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=ended)
    return text, len(decoder.getstate()[0])


def _clean(data: bytes, *, ended: bool) -> bytes:
    return _decode(data, ended=ended)[0].encode()


def _from_character(data: bytes) -> bytes:
    """Without the rest of a character whose begin was dropped."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def _first(data: bytes, size: int) -> bytes:
    """At most `size` bytes of valid UTF-8 from the begin."""
    if len(data) <= size:
        return data
    while size > 0 and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[:size]


def _last(data: bytes, size: int) -> bytes:
    return _from_character(data[-size:]) if size > 0 else b""


def _cut_lines(data: bytes, where: bytes = b"") -> bytes:
    """Lines of bounded length, for one of a megabyte would fill the view and say nothing; else the data itself."""
    if len(data) <= LINE_BYTES:
        return data
    lines = data.split(b"\n")
    if max(map(len, lines)) <= LINE_BYTES:
        return data
    suffix = LINE_SUFFIX % where
    return b"\n".join(_first(line, LINE_BYTES) + suffix if len(line) > LINE_BYTES else line for line in lines)
