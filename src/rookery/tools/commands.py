"""Commands of `execute`: rewriting before they run, and shortening of their output for the model. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import UUID

import msgspec

from rookery.domain.content.attachments import cut_utf8
from rookery.workspaces.agent_messages import Truncated

MAX_VIEW_BYTES = 32 * 1024
# Not `&&` and not `|&`; an escaped ampersand is part of a word.
_TRAILING_AMPERSAND = re.compile(r"(?<![&|\\>])&\s*\Z")
_NOT_NAMED = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 80
_PRINTS_FILES = re.compile(r"cat\s+(?P<rest>[^|;&<>`$()\n]+)\Z")

# No command of a model may wait for input, draw on a screen, or open an editor.
ENVIRONMENT: Mapping[str, str] = {
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "ROOKERY_CHAT": "1",
}


class View(msgspec.Struct, frozen=True):
    """Output as a model sees it; `truncated` describes what is missing."""

    text: str
    truncated: Truncated | None = None


def environment(chat_id: UUID) -> dict[str, str]:
    return {**ENVIRONMENT, "ROOKERY_CHAT_ID": str(chat_id)}


def split_background(command: str) -> tuple[str, bool]:
    """Return the command without the `&` at its end, and whether there was one."""
    found = _TRAILING_AMPERSAND.search(command)
    return (command, False) if found is None else (command[: found.start()].rstrip(), True)


def note_on(command: str) -> str | None:
    """Return a hint for the model's next commands."""
    if _PRINTS_FILES.match(command.strip()) is not None:
        return "To look at a file, use read_file: it numbers the lines and reads ranges of large files."
    return None


def result_name(call_id: str) -> str:
    """Return the file name for a call's whole output: its id, without characters that file names cannot have."""
    return _NOT_NAMED.sub("_", call_id)[:_MAX_NAME] or "result"


def view(
    text: str, reported: Truncated | None = None, *, max_bytes: int = MAX_VIEW_BYTES, file: str | None = None
) -> View:
    """Return the beginning and the end of the output, at most `max_bytes` with the marker.

    The end is kept so that the last line of a log is never lost. What the agent left out already (`reported`) is
    counted; `file` is where the agent stored all of it.
    """
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return View(text, reported)
    earlier = reported.omitted_bytes if reported is not None else 0
    total = len(data) + earlier if reported is None else max(reported.original_bytes, len(data))
    # The marker's length depends on the number in it; its maximum is reserved.
    room = max_bytes - len(_marker(total, file).encode("utf-8", "replace"))
    head = cut_utf8(data, room // 2)
    tail = _tail(data, room - room // 2)
    kept = len(head) + len(tail)
    omitted = total - kept
    shown = head.decode() + _marker(omitted, file) + tail.decode()
    return View(shown, Truncated(original_bytes=total, retained_bytes=kept, omitted_bytes=omitted))


def _marker(omitted: int, file: str | None) -> str:
    where = f"; the output is in {file}" if file else ""
    return f"\n... [{omitted} bytes omitted{where}] ...\n"


def _tail(data: bytes, size: int) -> bytes:
    tail = data[-size:]
    start = 0
    while start < len(tail) and tail[start] & 0xC0 == 0x80:
        start += 1
    return tail[start:]
