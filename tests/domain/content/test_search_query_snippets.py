"""Snippets, which show why a search found a chat."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.content import search_query
from rookery.domain.content.search_query import snippet

LONG = "hay " * 100 + "the Needle here " + "straw " * 100


def test_a_short_text_is_shown_whole() -> None:
    assert snippet(" The quick\n\n brown  fox. ", ["fox"]) == "The quick brown fox."


def test_marks_of_markdown_are_not_shown() -> None:
    text = "# Plan\n\n- **Run** the `tests`:\n\n```python\nx = 2 ** 3\n__init__ * 2\n```\nDone"

    assert snippet(text, ["tests"]) == "Plan Run the tests: x = 2 ** 3 __init__ * 2 Done"


def test_the_hit_is_in_sight_between_dots() -> None:
    shown = snippet(LONG, ["needle"])

    assert "the Needle here" in shown
    assert shown.startswith("…hay")
    assert shown.endswith("…")


@pytest.mark.parametrize("query", ["absent", "-needle", '-"needle here"', "...", "", "need", "or"])
def test_without_a_hit_the_beginning_is_shown(query: str) -> None:
    assert snippet(LONG, [query]).startswith("hay hay")


@pytest.mark.parametrize("queries", [['"needle here"'], ["absent OR needle"], ["-hay needle"], ["absent", "needle"]])
def test_words_of_any_query_count(queries: list[str]) -> None:
    assert "Needle" in snippet(LONG, queries)


def test_a_hit_far_on_is_not_looked_for() -> None:
    assert snippet("x " * search_query.SOURCE_CHARS + "needle", ["needle"]).startswith("x x")


@given(st.text(max_size=600), st.lists(st.text(max_size=20), max_size=3))
def test_any_text_gives_a_short_line(text: str, queries: list[str]) -> None:
    shown = snippet(text, queries)

    assert len(shown) <= search_query.MAX_SNIPPET_CHARS + 2
    assert "\n" not in shown
