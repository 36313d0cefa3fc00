"""Rendering of a transcript for the terminal: Markdown, diffs and the output of commands.

Everything a model or a tool has written is neutralized first: only this module's own escape sequences reach the
terminal. Rich is imported on first use, so that the prompt appears earlier.
"""

from __future__ import annotations

import io
import re
import unicodedata

from rookery.telemetry.redaction import printable

# Chosen: enough to see how a command ended. `/output` prints the rest.
FOLDED_LINES = 10
# Chosen: a line of minified code must not fill several screens.
MAX_LINE = 2000
# Chosen: a longer block, such as a very long code block, is printed in pieces.
MAX_BLOCK = 16_384

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LIST_ITEM = re.compile(r" {0,3}([-*+]|\d{1,9}[.)])(\s|$)")


def neutralize(text: str) -> str:
    """Escape every character that could control the terminal or reorder text. Line ends are kept, tabs are expanded."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(_hidden_written(printable(line.expandtabs(4))) for line in lines)


def _hidden_written(line: str) -> str:
    if line.isascii():
        return line
    return "".join(f"\\u{ord(each):04x}" if _is_hidden(each) else each for each in line)


def _is_hidden(character: str) -> bool:
    # The zero-width joiner and the variation selectors belong to emoji and to several scripts.
    return unicodedata.category(character) in ("Cf", "Zl", "Zp", "Cs") and character not in "\u200d\u200c"


class MarkdownBlocks:
    """Splits text that arrives in pieces into blocks that can be rendered on their own.

    A block ends at an empty line outside of a fence, or at the end of its fence. `open_tail` is the end of the text
    that is not part of a finished block.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line: list[str] = []  # the pieces of the unfinished line
        self._line_size = 0
        self._size = 0
        self._fence = ""
        self._opening = ""  # the line that opened the fence

    def feed(self, piece: str) -> list[str]:
        """Add a piece. Return the blocks that are finished now."""
        first, *rest = piece.split("\n")
        self._extend(first)
        blocks = []
        for following in rest:
            blocks += self._end_line()
            self._extend(following)
        if self._line_size > MAX_BLOCK:
            blocks += self._end_line()
        return blocks

    def finish(self) -> list[str]:
        """Return the rest as the last blocks."""
        blocks = self._end_line() if self._line_size else []
        blocks += self._take()
        self._fence = ""
        return blocks

    def open_tail(self, lines: int) -> list[str]:
        """Return the last lines that are not part of a finished block."""
        last = ["".join(self._line)] if self._line_size else []
        return [*self._lines[-lines:], *last][-lines:]

    def _extend(self, piece: str) -> None:
        if piece:
            self._line.append(piece)
            self._line_size += len(piece)

    def _end_line(self) -> list[str]:
        line = "".join(self._line)
        self._line, self._line_size = [], 0
        blocks = []
        if not self._fence and self._is_after_list(line):
            blocks = self._take()
        self._lines.append(line)
        self._size += len(line) + 1
        if self._fence:
            if line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
                self._fence = ""
                return self._take()
            return self._split_fence() if self._size > MAX_BLOCK else []
        if match := _FENCE.match(line):
            self._fence, self._opening = match[1], line
            return blocks
        is_list = bool(_LIST_ITEM.match(self._lines[0]))
        if (not line.strip() and not is_list) or self._size > MAX_BLOCK:
            blocks += self._take()
        return blocks

    def _is_after_list(self, line: str) -> bool:
        """Return whether this line ends a list: text at the margin after an empty line."""
        if len(self._lines) < 2 or self._lines[-1].strip() or not _LIST_ITEM.match(self._lines[0]):
            return False
        return bool(line.strip()) and not line.startswith(" ") and not _LIST_ITEM.match(line)

    def _split_fence(self) -> list[str]:
        self._lines.append(self._fence)
        blocks = self._take()
        self._lines, self._size = [self._opening], len(self._opening) + 1
        return blocks

    def _take(self) -> list[str]:
        block = "\n".join(self._lines)
        self._lines, self._size = [], 0
        return [block] if block.strip() else []


class Renderer:
    """Renders blocks as text with escape sequences of its own; without color, as plain text."""

    def __init__(self, *, has_color: bool) -> None:
        self._has_color = has_color

    def markdown(self, block: str, width: int) -> str:
        from rich.markdown import Markdown

        return self._render(Markdown(neutralize(block), code_theme="ansi_dark", hyperlinks=False), width)

    def diff(self, text: str, width: int) -> str:
        """Return a diff with its added and removed lines marked."""
        del width  # lines of a diff are never broken by us: the terminal wraps them, and copies them whole
        return "\n".join(self._styled(line[:MAX_LINE], _diff_style(line)) for line in neutralize(text).splitlines())

    def output(self, text: str, *, lines: int | None = FOLDED_LINES) -> str:
        """Return the output of a command. Only its last lines are kept, with the number of lines before them."""
        rows = neutralize(text.rstrip("\n")).split("\n")
        head = []
        if lines is not None and len(rows) > lines + 1:
            head = [self.dim(f"  ... {len(rows) - lines} lines before; /output shows all of them")]
            rows = rows[-lines:]
        return "\n".join([*head, *(self.dim(f"  {row[:MAX_LINE]}".rstrip()) for row in rows)])

    def dim(self, text: str) -> str:
        return self._styled(text, "2")

    def red(self, text: str) -> str:
        return self._styled(text, "31")

    def bold(self, text: str) -> str:
        return self._styled(text, "1")

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._has_color and code else text

    def _render(self, block: object, width: int) -> str:
        from rich.console import Console

        file = io.StringIO()
        console = Console(
            file=file,
            width=max(width, 20),
            force_terminal=self._has_color,
            color_system="standard" if self._has_color else None,
            no_color=not self._has_color,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
        )
        console.print(block)
        # Rich pads lines to the width. The padding would wrap when the window becomes narrower.
        rows = [row.rstrip() for row in file.getvalue().rstrip().split("\n")]
        while rows and not rows[0]:
            rows.pop(0)
        return "\n".join(rows)


def _diff_style(line: str) -> str:
    if line.startswith(("+++", "---")):
        return "1"
    return {"+": "32", "-": "31", "@": "36"}.get(line[:1], "")
