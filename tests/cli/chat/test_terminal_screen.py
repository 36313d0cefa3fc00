"""The screen of a followed chat: two streams, which may be one terminal."""

from __future__ import annotations

from io import BytesIO, TextIOWrapper

import pytest

from rookery.cli.chat.terminal_screen import Screen, Style, cells, cut, has_colour, wrapped
from rookery.cli.output import Output
from tests.cli.admin.run.run_rig import Stream


def test_colour_is_for_terminals_whose_owner_wants_it() -> None:
    assert has_colour({"TERM": "xterm"}, is_terminal=True)
    assert has_colour({"TERM": "xterm", "NO_COLOR": ""}, is_terminal=True)
    assert not has_colour({"TERM": "xterm"}, is_terminal=False)
    assert not has_colour({"TERM": "xterm", "NO_COLOR": "1"}, is_terminal=True)
    assert not has_colour({"TERM": "dumb"}, is_terminal=True)


def test_notes_are_dim_on_a_terminal_and_one_line_of_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stderr = Stream(is_terminal=True)
    screen = Screen(Output(Stream(), stderr), environ={"TERM": "xterm"})

    screen.note("one\ntwo\x1b[31m and very much more")

    assert stderr.getvalue() == f"{Style.DIM}one\\ntwo\\u001b[3...{Style.RESET}\n"


def test_piped_text_is_not_changed() -> None:
    stdout = Stream()
    screen = Screen(Output(stdout, Stream()), environ={})

    screen.text("tab\there\x1b[0m\n")
    screen.close()

    assert stdout.getvalue() == "tab\there\x1b[0m\n"


def test_thoughts_end_their_line_before_anything_else_is_shown() -> None:
    terminal: list[str] = []
    screen = Screen(Output(Stream(screen=terminal), Stream(screen=terminal)), environ={"TERM": "dumb"})

    screen.thought("First ")
    screen.thought("this.")
    screen.text("Answer")
    screen.thought("Second.")
    screen.note("tool")
    screen.text("more")
    screen.error("It broke.")
    screen.close()

    assert "".join(terminal) == "First this.\nAnswer\nSecond.\ntool\nmore\nrookery: It broke.\n"


def test_answer_that_an_old_terminal_cannot_show_does_not_end_the_command() -> None:
    raw = BytesIO()
    screen = Screen(Output(TextIOWrapper(raw, encoding="ascii"), Stream()), environ={})

    screen.text("Grüße")

    assert raw.getvalue() == b"Gr??e"


def test_wide_characters_take_two_columns_and_accents_none() -> None:
    assert (cells("abc"), cells("日本"), cells("e\u0301")) == (3, 4, 1)
    assert cut("日本語のテキスト", 9) == "日本語..."
    assert wrapped("日本語x", 4) == ["日本", "語x"]
    assert wrapped("", 4) == [""]


def test_lines_are_broken_between_words() -> None:
    assert wrapped("the quick brown fox", 10) == ["the quick", "brown fox"]
    assert wrapped("a word-that-is-too-long", 10) == ["a word-tha", "t-is-too-l", "ong"]
    assert wrapped("/stop  stop the turn", 12, indent=4) == ["/stop  stop", "    the turn"]
