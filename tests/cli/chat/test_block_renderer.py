"""Blocks of Markdown, diffs and output at the terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.cli.chat.block_renderer import MarkdownBlocks, Renderer, neutralize

OWN_SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\u202eevil\r\x08\x00"


def split(text: str, size: int) -> list[str]:
    blocks = MarkdownBlocks()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    found = [block for piece in pieces for block in blocks.feed(piece)]
    return [*found, *blocks.finish()]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_blocks_are_the_same_for_any_size_of_pieces(size: int) -> None:
    text = "# Title\n\nOne\ntwo.\n\n```py\na\n\nb\n```\n- x\n\n- y\n\nEnd"

    found = [block.strip() for block in split(text, size)]

    assert found == ["# Title", "One\ntwo.", "```py\na\n\nb\n```", "- x\n\n- y", "End"]


@given(st.text(), st.integers(1, 7))
def test_no_character_of_an_answer_is_lost(text: str, size: int) -> None:
    assert "".join("".join(split(text, size)).split()) == "".join(text.split())


@pytest.mark.parametrize("has_color", [True, False])
def test_text_of_a_model_or_a_tool_never_controls_the_terminal(has_color: bool) -> None:
    renderer = Renderer(has_color=has_color)
    shown = [renderer.markdown(HOSTILE, 80), renderer.diff(f"+{HOSTILE}", 80), renderer.output(HOSTILE)]
    shown.append(renderer.markdown(f"```\n{HOSTILE}\n```", 80))

    for text in shown:
        rest = OWN_SEQUENCE.sub("", text) if has_color else text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", rest)


def test_long_output_is_folded_to_its_end() -> None:
    lines = Renderer(has_color=False).output("\n".join(map(str, range(100)))).splitlines()

    assert lines[0] == "  ... 90 lines before; /output shows all of them"
    assert [line.strip() for line in lines[1:]] == [str(number) for number in range(90, 100)]


def test_emoji_and_tabs_stay_readable() -> None:
    assert neutralize("a\tb \U0001f469\u200d\U0001f4bb") == "a   b \U0001f469\u200d\U0001f4bb"
