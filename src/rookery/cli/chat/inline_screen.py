"""The screen of the interactive terminal client.

It has the methods of `Screen`. Finished blocks are printed once, above the input, into the scrollback of the terminal.
The unfinished block is only kept: the input's own redraw shows its last lines.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw

from rookery.cli.chat.block_renderer import MAX_LINE, MarkdownBlocks, Renderer, neutralize
from rookery.cli.chat.terminal_screen import Style, cut, wrapped
from rookery.domain.chat import parts
from rookery.domain.chat.parts import ToolResult

# Chosen: the number of lines of the unfinished block that are redrawn.
OPEN_LINES = 4
# Chosen: what `/output` can show again.
MAX_KEPT_OUTPUT = 1 << 20


class InlineScreen:
    """Renders a chat into `write`, block by block. `changed` asks for a redraw of the open block."""

    def __init__(
        self,
        renderer: Renderer,
        *,
        write: Callable[[str], None],
        changed: Callable[[], None],
        width: Callable[[], int],
    ) -> None:
        self._renderer = renderer
        self._write = write
        self._changed = changed
        self._width = width
        self._blocks = MarkdownBlocks()
        self._thought = MarkdownBlocks()
        self._is_thinking = False
        self._in_text = False
        self._live_output = ""  # the end of the output of a running tool
        self._has_gap = True  # the last printed line is empty
        self._held: list[str] = []  # notices that wait for the end of the open block
        self.last_output = ""
        self.waits_for = ""

    def text(self, piece: str) -> None:
        """Add a piece of the answer. Blocks that it finishes are printed."""
        self._end_thought()
        self._in_text = True
        self.waits_for = ""
        for block in self._blocks.feed(piece):
            self._print_markdown(block)
        self._changed()

    def end_block(self) -> None:
        self._end_text()

    def thought(self, piece: str) -> None:
        self._end_text()
        self._is_thinking = True
        self.waits_for = ""
        for block in self._thought.feed(piece):
            self._print_thought(block)
        self._changed()

    def end_thought(self) -> None:
        self._end_thought()

    def note(self, text: str, *, style: Style = Style.DIM) -> None:
        paint = self._renderer.red if style is Style.RED else self._renderer.dim
        self._line(paint(cut(neutralize(text).replace("\n", "\\n"), self._width() - 1)))

    def lines(self, *texts: str) -> None:
        self._line(*(self._renderer.dim(neutralize(text)) for text in texts))

    def say(self, *sentences: str, indent: int = 0) -> None:
        """Print sentences of this program, broken between words."""
        width = self._width() - 1
        rows = [row for text in sentences for row in wrapped(neutralize(text), width, indent=indent)]
        self._line(*(self._renderer.dim(row) for row in rows))

    def notice(self, text: str) -> None:
        """Print a sentence as soon as no block is open, so that it does not cut an answer in two."""
        if self._in_text or self._is_thinking:
            self._held.append(text)
        else:
            self.say(text)

    def error(self, text: str) -> None:
        self._line(*(self._renderer.red(row) for row in wrapped(neutralize(text), self._width() - 1)))

    def user(self, text: str) -> None:
        """Print a message of the user."""
        self._leave_gap()
        self._line(*(self._renderer.bold(f"> {line}") for line in neutralize(text).splitlines()), "")

    def output(self, piece: str) -> None:
        """Show the end of the live output of a tool until its result is printed."""
        self._live_output = f"{self._live_output}{piece}"[-MAX_LINE:]
        self._changed()

    def busy(self, text: str) -> None:
        self.waits_for = text
        self._changed()

    def result(self, result: ToolResult) -> None:
        """Print the output of a command, or the diff of an edit, below the line of its tool."""
        self._live_output = ""
        value = parts.json_value(result.result) if isinstance(result.result, Raw) else None
        if not isinstance(value, dict):
            return
        for diff in _diffs(value):
            self._line(self._renderer.diff(diff, self._width()))
        output = value.get("output")
        if isinstance(output, str) and output.strip():
            self.last_output = output[-MAX_KEPT_OUTPUT:]
            self._line(self._renderer.output(output))

    def show_output(self) -> None:
        """Print the last output whole."""
        if self.last_output:
            self._line(self._renderer.output(self.last_output, lines=None))
        else:
            self.lines("No command has printed anything yet.")

    def mute(self) -> None:
        """Do nothing: an interactive terminal has no reader that goes away."""

    def close(self) -> None:
        """Print blocks that were not complete yet."""
        self._end_thought()
        self._end_text()
        self._live_output = self.waits_for = ""
        self._changed()

    def open_lines(self) -> list[str]:
        """Return the last lines of the unfinished block, safe to show, at most one terminal line each."""
        width = self._width() - 1
        if self._live_output and not self._in_text and not self._is_thinking:
            rows = neutralize(self._live_output.rstrip("\n")).split("\n")[-OPEN_LINES:]
            return [cut(f"  {row}", width) for row in rows]
        blocks = self._thought if self._is_thinking else self._blocks
        shown = []
        for line in blocks.open_tail(OPEN_LINES):
            safe = neutralize(line[-MAX_LINE:])
            shown.extend(wrapped(safe, width))
        return shown[-OPEN_LINES:]

    def _line(self, *texts: str) -> None:
        self._end_thought()
        self._end_text()
        if texts:
            self._write("".join(f"{text}\n" for text in texts))
            self._has_gap = not texts[-1]

    def _end_text(self) -> None:
        if self._in_text:
            self._in_text = False
            for block in self._blocks.finish():
                self._print_markdown(block)
            self._print_held()

    def _end_thought(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            for block in self._thought.finish():
                self._print_thought(block)
            self._print_held()

    def _print_held(self) -> None:
        held, self._held = self._held, []
        if held:
            self.say(*held)

    def _leave_gap(self) -> None:
        """Print an empty line, unless the last printed line is empty."""
        if not self._has_gap:
            self._line("")

    def _print_markdown(self, block: str) -> None:
        gap = "" if self._has_gap else "\n"
        self._write(f"{gap}{self._renderer.markdown(block, self._width() - 1)}\n\n")
        self._has_gap = True

    def _print_thought(self, block: str) -> None:
        self._has_gap = False
        self._write(f"{self._renderer.dim(neutralize(block.rstrip()))}\n")


def _diffs(value: dict[str, object]) -> list[str]:
    rows = [value, *(each for name in ("files", "edits", "changes") for each in _rows(value.get(name)))]
    return [diff for row in rows if isinstance(diff := row.get("diff"), str) and diff.strip()]


def _rows(value: object) -> list[dict[str, object]]:
    try:
        return msgspec.convert(value, list[dict[str, object]])
    except msgspec.ValidationError:
        return []
