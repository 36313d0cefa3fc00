"""Arguments and output of the process tools: commands, durations, and output shortened for the model. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from uuid import UUID

import msgspec

from rookery.domain.content.attachments import cut_utf8
from rookery.workspaces.agent_messages import Truncated

MAX_VIEW_BYTES = 32 * 1024
# Matches neither `&&` nor `|&` nor an escaped ampersand.
_TRAILING_AMPERSAND = re.compile(r"(?<![&|\\>])&\s*\Z")
_NOT_NAMED = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 80
_PRINTS_FILES = re.compile(r"cat\s+(?P<rest>[^|;&<>`$()\n]+)\Z")
_DURATION_PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

# These variables keep commands from waiting for input, using a terminal, or opening an editor.
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
    """Output as the model sees it. `truncated` counts the bytes that were left out."""

    text: str
    truncated: Truncated | None = None


def environment(chat_id: UUID) -> dict[str, str]:
    return {**ENVIRONMENT, "ROOKERY_CHAT_ID": str(chat_id)}


def split_background(command: str) -> tuple[str, bool]:
    """Return the command without a final `&`, and whether it had one."""
    found = _TRAILING_AMPERSAND.search(command)
    return (command, False) if found is None else (command[: found.start()].rstrip(), True)


def hint_for(command: str) -> str | None:
    """Return a hint for the model if another tool does the same better."""
    if _PRINTS_FILES.match(command.strip()) is not None:
        return "To look at a file, use read_file: it numbers the lines and reads ranges of large files."
    return None


def result_name(call_id: str) -> str:
    """Return the name of the file for a call's complete output: the call id, with unsafe characters replaced."""
    return _NOT_NAMED.sub("_", call_id)[:_MAX_NAME] or "result"


def view(
    text: str, reported: Truncated | None = None, *, max_bytes: int = MAX_VIEW_BYTES, file: str | None = None
) -> View:
    """Return the beginning and the end of the output with a marker between them, at most `max_bytes` in total.

    `reported` counts the bytes that the agent has already left out. `file` is the file with the complete output; the
    marker names it.
    """
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return View(text, reported)
    earlier = reported.omitted_bytes if reported is not None else 0
    total = len(data) + earlier if reported is None else max(reported.original_bytes, len(data))
    # The marker is longest when everything is left out. That much room is reserved.
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


class BadDuration(ValueError):
    """Raised for an invalid duration. The message is for the model."""


def parse_duration(text: str | float, *, field: str, may_be_zero: bool = False) -> float:
    """Parse a duration as models write it: `500ms`, `30s`, `5m`, `1h30m`, or a number of seconds. Return seconds."""
    seconds = float(text) if isinstance(text, int | float) else _seconds(text.strip().lower())
    is_usable = seconds is not None and math.isfinite(seconds) and (seconds > 0 or (may_be_zero and seconds == 0))
    if seconds is None or not is_usable:
        limit = "0 or more" if may_be_zero else "more than 0"
        raise BadDuration(
            f"The argument `{field}` cannot be used: {text!r} is not a duration of {limit}. "
            "Write it like 500ms, 30s, 5m or 1h30m, or as a number of seconds."
        )
    return seconds


def format_duration(seconds: float) -> str:
    """Format a duration for users and models: `1h30m`, `2m5s`, `1.5s`, `250ms`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.3g}s"
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    pieces = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{unit}" for number, unit in pieces if number)


def _seconds(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PIECE.findall(text))
