"""Names of folders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import folders
from rookery.domain.chat.errors import InvalidInput


@pytest.mark.parametrize(
    ("given_name", "stored"),
    [
        ("Work", "Work"),
        ("  two \n\t words ", "two words"),
        ("\u202eevil\u202c\u200b", "evil"),
        ("e\u0301tude", "étude"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("x" * 60, "x" * 60),
    ],
)
def test_name_is_stored_as_it_is_shown(given_name: str, stored: str) -> None:
    assert folders.checked_name(given_name) == stored


@pytest.mark.parametrize("name", ["", "   ", "\u200b\u202e", "x" * 61, "a\0b", "\x1b[31mred", "\ud800"])
def test_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        folders.checked_name(name)


@given(st.text(max_size=300))
def test_name_is_one_short_line_or_refused(name: str) -> None:
    try:
        stored = folders.checked_name(name)
    except InvalidInput:
        return
    assert 1 <= len(stored) <= folders.MAX_NAME_CHARS
    assert stored.isprintable() or not any(char in stored for char in "\n\r\t\0\x1b")
    assert folders.checked_name(stored) == stored
