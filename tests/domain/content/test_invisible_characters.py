"""Cleaning of prompt text: the removed characters, and the time for hostile text."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.content import invisible_characters

# One second is a hundred times the usual time. A search that starts again at every character takes many minutes.
HOSTILE_CHARS = 512 * 1024
SECONDS = 1.0


@given(st.text(" \t\r\n\x0b\u2028\u3000\u200bab", max_size=40))
def test_spaces_at_the_ends_of_lines_are_removed_and_no_others(text: str) -> None:
    cleaned = invisible_characters.clean(text)

    assert invisible_characters.clean(cleaned) == cleaned
    assert not re.search(r"[^\S\n]$", cleaned, re.MULTILINE)
    assert "\u200b" not in cleaned
    assert "\n\n\n" not in cleaned
    assert cleaned.split() == text.replace("\u200b", "").split()


def test_indentation_and_spaces_between_words_stay() -> None:
    assert invisible_characters.clean("a  b \t\r\n  c\u3000\n\n\n\nd\xa0") == "a  b\n  c\n\nd"


@pytest.mark.parametrize("unit", [" ", "\t", "\n", " \n", "\u3000", "\u200b ", "<!--", "<!-- -->", "\r\n "])
@pytest.mark.parametrize("end", ["", "x"])
def test_hostile_text_is_cleaned_in_time_that_grows_with_its_length_only(unit: str, end: str) -> None:
    text = f"x{unit * (HOSTILE_CHARS // len(unit))}{end}"

    began = time.thread_time()
    invisible_characters.clean_markdown(text)

    assert time.thread_time() - began < SECONDS
