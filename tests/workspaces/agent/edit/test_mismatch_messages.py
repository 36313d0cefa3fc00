"""Error messages of edits that cannot be applied."""

from __future__ import annotations

import time

import pytest

from rookery.workspaces.agent.edit import edit
from rookery.workspaces.agent.edit.edit import Edit


def failure(text: str, old: str, new: str = "new", *, exact: bool = False) -> str:
    with pytest.raises(edit.EditFailed) as caught:
        edit.apply(text, [Edit(old, new, exact=exact)])
    return caught.value.message


def test_empty_text_is_refused() -> None:
    assert "old_text is empty" in failure("a\n", "")


def test_ambiguous_text_names_count_lines_and_two_ways_out() -> None:
    message = failure("x\na\nx\nb\nx\n", "x")

    assert "occurs 3 times (lines 1, 3, 5)" in message
    assert "replace_all" in message
    assert "Add the lines around" in message


def test_ambiguous_text_names_five_lines_at_most() -> None:
    assert "(lines 1, 2, 3, 4, 5 and 4 more)" in failure("x\n" * 9, "x")


def test_missing_text_asks_to_check_whitespace_and_gives_no_hint_out_of_nothing() -> None:
    message = failure("abc\n", "something else")

    assert message == "old_text was not found. Check whitespace, blank lines and line breaks against the file."


def test_blank_lines_count() -> None:
    assert "not found" in failure("a\n\nb\n", "a\nb\n")


def test_exact_does_not_look_past_blanks() -> None:
    assert "With exact set" in failure("\tfoo()\n", "    foo()\n", exact=True)


def test_miscounted_character_is_named_with_both_counts_and_lines() -> None:
    message = failure("# ─────\nx = 1\n# ─────\n", "# ───────\nx = 1\n")

    assert "Line 1 of old_text has 7 of '─' (U+2500 BOX DRAWINGS LIGHT HORIZONTAL)" in message
    assert "line 1 has 5; line 3 has 5." in message


def test_miscount_on_both_sides_of_a_title_is_found() -> None:
    assert "has 6 of '='" in failure("== Title ==\n", "=== Title ===\n")


def test_long_lines_that_begin_alike_do_not_hold_the_agent_up() -> None:
    text = "".join(f"{'x, ' * 300}{n}\n" for n in range(4000))
    wanted = "".join(f"{'x, ' * 299}y{n}\n" for n in range(100))

    began = time.process_time()
    failure(text, wanted)

    assert time.process_time() - began < 30  # a loop over characters would take minutes


def test_miscount_names_five_places_and_three_lines() -> None:
    text = "".join(f"{mark * 4}\n" for mark in "-=+*~" for _ in range(7))

    message = failure(text, "".join(f"{mark * 3}!\n" for mark in "x") + "-----\n=====\n+++++\n*****\n~~~~~\n")

    assert "line 1 has 4; line 2 has 4; line 3 has 4; line 4 has 4; line 5 has 4; and 2 more." in message
    assert message.count("of old_text has") == 3
    assert message.endswith("And 2 more of this kind.")


def test_single_character_more_or_less_is_no_miscount() -> None:
    # A character that is missing completely is a different text, not a wrong count.
    assert "of old_text has" not in failure("ab\n", "axb\nnothing\n")


def test_searched_line_that_is_in_the_file_is_not_called_miscounted() -> None:
    assert "of old_text has" not in failure("}\n}}\n", "}\nmissing\n")


def test_swapped_texts_are_pointed_out_with_lines() -> None:
    message = failure("old\nnew\nnew\n", "missing", "new")

    assert "did you swap" in message
    assert "(lines 2, 3)" in message


def test_swapped_texts_are_found_by_lines_too() -> None:
    assert "(line 2): did you swap" in failure("a\n\tnew line\n", "missing", "  new line\n")


def test_overlapping_starts_count_once_a_line() -> None:
    assert "(lines 1, 2, 3): did you swap" in failure("aaa\naa\naa\n", "missing", "aa")


def test_miscount_keeps_the_other_hint_away() -> None:
    message = failure("--\nnew\n", "---", "new")

    assert "of '-'" in message
    assert "swap" not in message


def test_change_of_endings_that_does_not_match_speaks_of_endings_only() -> None:
    message = failure("--\r\nb\r\n", "---\nb\n", "---\r\nb\r\n")

    assert "line endings" in message
    assert "mostly has CRLF" in message
    assert "of '-'" not in message


def test_change_of_endings_is_made_literally_or_not_at_all() -> None:
    """A match by lines would keep the endings, which this edit changes."""
    message = failure("a \nb\n", "a\nb\n", "a\r\nb\r\n")

    assert "line endings" in message
