"""Numbered lines of a file for the model, from any offset and within limits. The file is never read into memory as a
whole.

If the lines cannot be returned, the response has `ok` false and a sentence for the model.
"""

from __future__ import annotations

import mimetypes
import os
from typing import Any, BinaryIO, NamedTuple

from rookery.workspaces.agent import directory_handles, paths
from rookery.workspaces.agent.errors import AgentError

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_LINE_BYTES = 1024
MAX_LINES = 2000
MAX_BYTES = 32 * 1024
CUT = "... [truncated]"

_PROBE_BYTES = 8 * 1024
_CHUNK_BYTES = 256 * 1024
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"\x7fELF", "an executable (ELF)"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"SQLite format 3\x00", "a SQLite database"),
)
_TYPES = mimetypes.MimeTypes(filenames=())


class Window(NamedTuple):
    """The requested part of a file. The caller can lower the limits, but not raise them."""

    offset: int = 1
    limit: int = MAX_LINES
    max_line_bytes: int = MAX_LINE_BYTES
    max_bytes: int = MAX_BYTES


def content_type(path: str) -> str:
    """Return the content type for the name of a file."""
    return _TYPES.guess_type(path)[0] or "application/octet-stream"


def read(path: str, window: Window) -> dict[str, Any]:
    """Return the lines of a window with their numbers, or `ok` false with the reason."""
    try:
        path = paths.absolute(path)
        with os.fdopen(directory_handles.open_regular(path), "rb", buffering=_CHUNK_BYTES) as file:
            return _read(file, path, window)
    except AgentError as error:
        return _failed(error.message)
    except OSError as error:
        return _failed(paths.refusal(error, path).message)


def _failed(message: str) -> dict[str, Any]:
    return {"ok": False, "error": message}


def _read(file: BinaryIO, path: str, window: Window) -> dict[str, Any]:
    size = os.fstat(file.fileno()).st_size
    if size > MAX_FILE_BYTES:
        return _failed(
            f"{path} has {size} bytes; files over {MAX_FILE_BYTES} bytes are not read by lines. "
            "Look at parts of it with grep, sed or awk."
        )
    probe = file.read(_PROBE_BYTES)
    if b"\x00" in probe:
        return _failed(f"{path} is not text: {size} bytes of {_guess(path, probe)}.")
    file.seek(0)
    first = max(window.offset, 1)
    skipped = _skip(file, first - 1)
    shown, cut, full = ([], False, False) if skipped < first - 1 else _collect(file, first, window)
    total = skipped + len(shown) + _count_rest(file)
    if first > max(total, 1):
        lines = "1 line" if total == 1 else f"{total} lines"
        return _failed(f"offset {first} is beyond the end of {path}, which has {lines}.")
    answer: dict[str, Any] = {
        "ok": True,
        "content": "\n".join(shown),
        "file_size": size,
        "total_lines": total,
        "lines_read": len(shown),
    }
    following = first + len(shown)
    if following <= total:
        answer["next_offset"] = following
    if cut or full or following <= total:
        answer["truncated"] = True
    return answer


def _skip(file: BinaryIO, count: int) -> int:
    """Skip `count` lines, or all lines to the end. Return the number of lines skipped."""
    passed = 0
    while passed < count:
        start = file.tell()
        chunk = file.read(_CHUNK_BYTES)
        if not chunk:
            break
        newlines = chunk.count(b"\n")
        if passed + newlines < count:
            passed += newlines
            continue
        at = -1
        for _ in range(count - passed):
            at = chunk.index(b"\n", at + 1)
        file.seek(start + at + 1)
        return count
    return passed + _open_line(file) if passed < count else passed


def _open_line(file: BinaryIO) -> int:
    """Return 1 if the file ends in a line without a newline, else 0. The position must be the end of the file."""
    if file.tell() == 0:
        return 0
    file.seek(-1, os.SEEK_CUR)
    return 0 if file.read(1) == b"\n" else 1


def _collect(file: BinaryIO, number: int, window: Window) -> tuple[list[str], bool, bool]:
    """Return the lines of the window, whether a line was cut, and whether the byte limit ended the window."""
    shown: list[str] = []
    used = 0
    cut = False
    position = file.tell()
    for _ in range(min(window.limit, MAX_LINES)):
        raw = file.readline(window.max_line_bytes + 3)
        if not raw:
            break
        content = _content(raw)
        whole = len(content) <= window.max_line_bytes
        consumed = len(raw) if raw.endswith(b"\n") else len(raw) + _skip_line(file)
        text = f"{number}\t{_text(content) if whole else _cut(content, window.max_line_bytes)}"
        used += (len(text) if text.isascii() else len(text.encode())) + 1
        # The first line is always shown. Otherwise a reader that continues at `next_offset` would make no progress.
        if shown and used > window.max_bytes:
            file.seek(position)
            return shown, cut, True
        position += consumed
        number += 1
        cut = cut or not whole
        shown.append(text)
    return shown, cut, False


def _skip_line(file: BinaryIO) -> int:
    """Skip the rest of a line in pieces, and return its length."""
    passed = 0
    piece = file.readline(_CHUNK_BYTES)
    while piece:
        passed += len(piece)
        if piece.endswith(b"\n"):
            break
        piece = file.readline(_CHUNK_BYTES)
    return passed


def _content(raw: bytes) -> bytes:
    """Return a line without its ending."""
    if raw.endswith(b"\r\n"):
        return raw[:-2]
    return raw[:-1] if raw.endswith(b"\n") else raw


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _cut(content: bytes, max_line_bytes: int) -> str:
    """Return the beginning of a long line, cut between two characters."""
    piece = content[:max_line_bytes]
    for back in range(1, min(4, len(piece)) + 1):
        byte = piece[-back]
        if byte & 0xC0 == 0xC0:
            if back < _width(byte):
                piece = piece[:-back]
            break
        if byte & 0x80 == 0:
            break
    return _text(piece) + CUT


def _width(lead: int) -> int:
    return 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2


def _count_rest(file: BinaryIO) -> int:
    """Return the number of following lines. If the file grows meanwhile, lines beyond the size limit do not count."""
    count = 0
    last = b"\n"
    while file.tell() <= MAX_FILE_BYTES:
        chunk = file.read(_CHUNK_BYTES)
        if not chunk:
            break
        count += chunk.count(b"\n")
        last = chunk
    return count if last.endswith(b"\n") else count + 1


def _guess(path: str, probe: bytes) -> str:
    for magic, name in _MAGIC:
        if probe.startswith(magic):
            return name
    guessed = _TYPES.guess_type(path)[0]
    return guessed or "an unknown type"
