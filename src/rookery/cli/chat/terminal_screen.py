"""The screen for a followed chat: prints the answer on stdout, and everything else on stderr."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Mapping
from enum import StrEnum

from rookery.cli.output import Output
from rookery.domain.chat.parts import ToolResult
from rookery.telemetry.redaction import printable

NOTE_WIDTH = 160  # for output that is not a terminal

_SHOWN = re.compile(r"[^\n\t]+")


class Style(StrEnum):
    """Escape sequences. They are used on terminals only."""

    DIM = "\x1b[2m"
    RED = "\x1b[31m"
    RESET = "\x1b[0m"


def has_colour(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Return whether to use color. NO_COLOR counts if it is not empty (no-color.org)."""
    return is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class Screen:
    """Prints the answer and notes. With `quiet`, only the answer and errors are shown. `close` ends open lines.

    After the reader of stdout has closed it, `mute` lets the work continue without output.
    """

    def __init__(self, out: Output, *, quiet: bool = False, environ: Mapping[str, str] | None = None) -> None:
        self._out = out
        self._quiet = quiet
        self._is_muted = False
        self._is_shared = out.stdout_is_terminal and out.stderr_is_terminal and not out.json
        self._has_colour = has_colour(os.environ if environ is None else environ, is_terminal=out.stderr_is_terminal)
        self._has_text = False
        self._is_block_over = False
        self._newlines = 0  # the line ends at the end of stdout's output so far
        self._is_thinking = False  # a line of reasoning is open on stderr
        self._is_torn = False  # a line of stderr was printed after the last text, on the same terminal

    def text(self, piece: str) -> None:
        """Print a piece of the answer immediately."""
        if not piece or self._is_muted:
            return
        self._end_thought()
        self._out.text(self._separator() + (_safe(piece) if self._out.stdout_is_terminal else piece))
        self._newlines = _newlines_at_end(piece, before=self._newlines)
        self._has_text = True
        self._is_block_over = self._is_torn = False

    def end_block(self) -> None:
        """End the paragraph. The next text is separated from it."""
        self._is_block_over = True

    def thought(self, piece: str) -> None:
        """Print a piece of the model's reasoning."""
        if not piece or self._quiet or self._out.json or self._is_muted:
            return
        if not self._is_thinking:
            self._leave_text()
            self._is_thinking = True
        self._out.aside(self._styled(_safe(piece), Style.DIM))

    def end_thought(self) -> None:
        self._end_thought()

    def note(self, text: str, *, style: Style = Style.DIM) -> None:
        """Print a line about the progress, cut to the width of the terminal."""
        if self._quiet:
            return
        self._line(cut(printable(text), self._width()), style)

    def lines(self, *texts: str) -> None:
        """Print lines without cutting them, because they may contain commands to copy."""
        if not self._quiet:
            for text in texts:
                self._line(printable(text), Style.DIM)

    def error(self, text: str) -> None:
        """Print an error, even with `quiet`."""
        self._end_thought()
        self._leave_text()
        self._out.error(text)

    def busy(self, text: str) -> None:
        """Show the reason of a wait until there is other output. On terminals only."""
        at_line_start = not self._is_thinking and (self._is_torn or self._newlines > 0 or not self._has_text)
        if self._out.stderr_is_terminal and not self._quiet and at_line_start:
            self._out.progress(text)

    def user(self, text: str) -> None:
        """Print a message of the user."""
        self.lines(*(f"> {line}" for line in text.splitlines()))

    def result(self, result: ToolResult) -> None:
        """Print nothing: this screen shows only the line of the tool call."""

    def output(self, piece: str) -> None:
        """Print nothing: this screen does not show live output of tools."""

    def mute(self) -> None:
        self._is_muted = True

    def close(self) -> None:
        """End the last line, so that the shell's prompt starts on a new one."""
        self._end_thought()
        if self._has_text and not self._newlines and not self._is_torn and not self._is_muted:
            self._out.text("\n")
            self._newlines = 1

    def _line(self, text: str, style: Style) -> None:
        self._end_thought()
        self._leave_text()
        self._out.aside(f"{self._styled(text, style)}\n")

    def _end_thought(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            self._out.aside("\n")

    def _leave_text(self) -> None:
        """Start a new line before stderr writes to a terminal that shows the answer."""
        if not self._is_shared or not self._has_text or self._is_torn:
            return
        if not self._newlines:
            self._out.aside("\n")
        self._is_torn = True

    def _separator(self) -> str:
        """Return the line breaks before a new paragraph. On a terminal, none are needed after a line of stderr."""
        if not self._has_text or not self._is_block_over or self._is_torn:
            return ""
        return "\n" * max(0, 2 - self._newlines)

    def _styled(self, text: str, style: Style) -> str:
        return f"{style}{text}{Style.RESET}" if self._has_colour else text

    def _width(self) -> int:
        return shutil.get_terminal_size().columns - 1 if self._out.stderr_is_terminal else NOTE_WIDTH


def _safe(text: str) -> str:
    """Escape control characters, because a model may write any text. Line ends and tabs are kept."""
    return _SHOWN.sub(lambda match: printable(match[0]), text)


def _newlines_at_end(piece: str, *, before: int) -> int:
    count = len(piece) - len(piece.rstrip("\n"))
    return count + before if count == len(piece) else count


def cells(text: str) -> int:
    """Return the number of columns that a text takes. East Asian characters and emoji take two, accents none."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def cut(text: str, width: int) -> str:
    """Return the text, cut to this number of columns."""
    if cells(text) <= width:
        return text
    return f"{split_at(text, max(width - 3, 0))[0]}..."


def wrapped(text: str, width: int, *, indent: int = 0) -> list[str]:
    """Return the text as lines of at most this number of columns, broken between words if possible.

    All lines but the first are indented.
    """
    width = max(width, 2)
    indent = indent if indent < width // 2 else 0
    lines = []
    while cells(text) > width:
        line, rest = split_at(text, width)
        if not rest.startswith(" ") and (space := line.rfind(" ")) > max(indent, len(line) // 3):
            line, rest = line[:space], line[space:] + rest
        lines.append(line.rstrip())
        text = " " * indent + rest.lstrip(" ")
    return [*lines, text]


def split_at(text: str, width: int) -> tuple[str, str]:
    """Return the beginning of a text that fits into this number of columns, and the rest."""
    if text.isascii():
        return text[:width], text[width:]
    used = 0
    for at, character in enumerate(text):
        used += _cells(character)
        if used > width:
            return text[:at], text[at:]
    return text, ""


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
