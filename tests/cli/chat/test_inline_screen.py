"""The screen of the interactive session: printed lines and redrawn lines."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from rookery.cli.chat.block_renderer import Renderer
from rookery.cli.chat.inline_screen import OPEN_LINES, InlineScreen
from rookery.domain.chat.parts import ToolResult


class Printed(InlineScreen):
    """A screen of 40 columns that keeps its text."""

    def __init__(self) -> None:
        self.printed = ""
        super().__init__(Renderer(has_color=False), write=self._keep, changed=lambda: None, width=lambda: 41)

    def _keep(self, text: str) -> None:
        self.printed += text


def result(**value: object) -> ToolResult:
    return ToolResult(tool_call_id="c", tool_name="execute", result=Raw(msgspec.json.encode(value)))


def test_live_output_is_drawn_until_the_result_is_printed() -> None:
    screen = Printed()
    screen.note("execute make")
    for number in range(9):
        screen.output(f"line {number}\n")
    live = screen.open_lines()
    screen.result(result(output="line 0\nline 8\n"))

    assert live == [f"  line {number}" for number in range(9 - OPEN_LINES, 9)]
    assert screen.open_lines() == []
    assert screen.printed == "execute make\n  line 0\n  line 8\n"


def test_live_output_cannot_control_the_terminal_and_is_bounded() -> None:
    screen = Printed()
    screen.output("\x1b[2J\x07" + "x" * 10_000_000)
    screen.output("\x1b[2Jend")

    assert len(screen.open_lines()) == 1
    assert not any("\x1b" in line or len(line) > 40 for line in screen.open_lines())


def test_answers_are_separated_from_tools_and_messages_by_one_empty_line() -> None:
    screen = Printed()
    screen.user("hi")
    screen.text("First.\n\n")
    screen.note("execute make")
    screen.text("Second.")
    screen.close()
    screen.user("more")

    assert screen.printed == "> hi\n\nFirst.\n\nexecute make\n\nSecond.\n\n> more\n\n"


def test_own_sentences_are_broken_between_words_and_indented() -> None:
    screen = Printed()
    screen.say("/file PATH  attach a file to the next message (@PATH)", indent=12)

    assert screen.printed == "/file PATH  attach a file to the next\n            message (@PATH)\n"


def test_notice_during_an_answer_does_not_cut_it_in_two() -> None:
    screen = Printed()
    screen.text("Red or ")
    screen.notice("Queued until the turn ends.")
    screen.text("blue.\n")
    screen.close()
    screen.notice("Sent into the running turn.")

    assert screen.printed == "Red or blue.\n\nQueued until the turn ends.\nSent into the running turn.\n"
