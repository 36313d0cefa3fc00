from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import titles
from rookery.domain.chat.parts import FileReference, Text


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("fix the login", "fix the login"),
        ("one two three four five six", "one two three four five six"),
        ("one two three four five six seven", "one two three four five six…"),
        ("  \n ", "New chat"),
        ("x" * 200, "x" * 79 + "…"),
        ("two\nlines", "two lines"),
    ],
)
def test_fallback_title_is_the_first_words(text: str, title: str) -> None:
    assert titles.fallback_title(text) == title


@pytest.mark.parametrize("text", ["fix the login", "one two three four five six seven", "x" * 200, ""])
def test_fallback_title_is_recognized(text: str) -> None:
    assert titles.is_fallback_title(titles.fallback_title(text), text)
    assert not titles.is_fallback_title("My own name", text)


def test_title_that_an_older_version_cut_is_known_too() -> None:
    assert titles.is_fallback_title("one two three four five six...", "one two three four five six seven")
    assert titles.is_fallback_title("x" * 77 + "...", "x" * 200)


def test_title_text_has_texts_and_snippets_in_order() -> None:
    parts = (Text("look at"), FileReference("a.py", 1, 2, "x = 1"), Text("please"))

    assert titles.title_text(parts) == "look at a.py: x = 1 please"


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ('"Fix the login test"', "Fix the login test"),
        ("Fix\nthe login.", "Fix the login"),
        ("a b c d e f g h", "a b c d e f g h"),
        ("a b c d e f g h i", None),
        ("", None),
        ("x" * 81, None),
    ],
)
def test_title_has_at_most_eight_words_and_no_quotes(answer: str, title: str | None) -> None:
    assert titles.clean_title(answer) == title


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("Login test fixed", "Login test fixed"),
        ("Fixed", None),
        ("one two three four five six", None),
        ("The tests pass now", None),
        ("I fixed it", None),
        ("Agent is done", None),
        ("Two lines\nhere", None),
        ("Done. All good", None),
    ],
)
def test_label_says_how_the_work_stands_in_two_to_five_words(answer: str, label: str | None) -> None:
    assert titles.clean_label(answer) == label


def test_summary_is_bounded_in_characters_and_sentences() -> None:
    assert titles.clean_summary("It is about logins. They work.") == "It is about logins. They work."
    assert titles.clean_summary("A. B. C. D. E. F. G.") is None
    assert titles.clean_summary("x" * 1001) is None
    assert titles.clean_summary("  ") is None


def test_report_summary_is_the_first_prose_without_markup() -> None:
    report = "# Report\n\n- a list\n\nThe **login** test [fails](http://x). It is slow. It is old. It is mine.\n\nMore."

    assert titles.report_summary(report) == "The login test fails. It is slow. It is old."
    assert titles.report_summary("# Only\n\n- lists") is None


def test_report_with_many_open_brackets_is_summarized_in_time_that_grows_with_its_length_only() -> None:
    began = time.thread_time()
    summary = titles.report_summary("x" + "[" * 1_000_000)

    assert summary is not None
    assert len(summary) == titles.MAX_REPORT
    # A search of the whole rest for every bracket takes hours.
    assert time.thread_time() - began < 1.0


@given(st.text(max_size=400), st.integers(0, 300))
def test_head_and_tail_never_exceeds_the_limit_by_more_than_its_mark(text: str, limit: int) -> None:
    short = titles.head_and_tail(text, limit)

    assert short == text if len(text) <= limit else len(short) <= max(limit, 40)


def test_transcript_keeps_both_ends() -> None:
    text = titles.transcript([("User", "a" * 50), ("Agent", " "), ("User", "z" * 50)], per_turn=40, limit=1000)

    assert text.count("omitted") == 2
    assert "Agent" not in text
