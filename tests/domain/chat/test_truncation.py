"""Truncation of tool results to their share of the context window."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rookery.domain.chat import parts, truncation


@pytest.mark.parametrize(
    ("limit", "budget"),
    [(None, 65_536), (0, 65_536), (-1, 65_536), (1, 16_384), (16_384, 16_384), (200_000, 199_998), (90_000, 90_000)],
)
def test_a_result_may_fill_a_third_of_the_window(limit: int | None, budget: int) -> None:
    assert truncation.budget_bytes(limit) == budget


def test_text_within_the_budget_is_untouched() -> None:
    assert truncation.cut_text("x" * 1000, 1000) == "x" * 1000


def test_text_over_the_budget_keeps_two_thirds_of_head_and_a_third_of_tail() -> None:
    text = "#" * 50_000 + "%" * 50_000

    cut = truncation.cut_text(text, 16_384)

    head, tail = cut.count("#"), cut.count("%")
    assert (head, tail) == ((16_384 - 256) * 2 // 3, (16_384 - 256) // 3)
    assert f"{100_000 - head - tail} bytes" in cut
    assert len(cut) <= 16_384


def test_a_tiny_budget_is_a_plain_cut() -> None:
    assert truncation.cut_text("é" * 400, 501) == "é" * 250


@given(st.text(min_size=1), st.integers(1, 3000), st.integers(500, 4000))
def test_a_cut_is_never_longer_than_its_budget(text: str, times: int, budget: int) -> None:
    cut = truncation.cut_text(text * times, budget)

    assert len(cut.encode()) <= max(budget, 0)


def test_json_stays_json_of_the_same_shape() -> None:
    result = parts.json_raw({"output": "x" * 100_000, "exit_code": 0, "notes": ["short", "y" * 50_000]})

    cut = truncation.cut_json(result, 20_000)

    value = parts.json_value(cut)
    assert len(bytes(cut)) <= 20_000
    assert (value["exit_code"], value["notes"][0]) == (0, "short")
    assert "bytes of this result were removed" in value["output"]


def test_json_within_the_budget_is_untouched() -> None:
    result = parts.json_raw({"output": "x"})

    assert truncation.cut_json(result, 100) is result


def test_json_without_long_strings_becomes_text() -> None:
    result = parts.json_raw({f'"{number}"': number for number in range(20_000)})

    cut = truncation.cut_json(result, 16_384)

    assert len(bytes(cut)) <= 16_384
    assert "removed" in parts.json_value(cut)["output"]


@pytest.mark.parametrize("strings", [1, 5, 40, 150])
def test_json_of_long_strings_keeps_its_shape_and_fits(strings: int) -> None:
    result = parts.json_raw({f"k{number}": "x" * 5_000 for number in range(strings)})

    cut = truncation.cut_json(result, 16_384)

    value = parts.json_value(cut)
    assert len(bytes(cut)) <= 16_384
    assert list(value) == [f"k{number}" for number in range(strings)]
    assert all(len(text) >= 64 for text in value.values())


def test_table_that_fits_at_no_length_is_walked_once() -> None:
    """Ten walks over half a million rows took half a minute."""
    rows = parts.json_raw([{"id": number, "name": f"row {number}"} for number in range(20_000)])
    small = parts.json_raw([{"id": number, "name": f"row {number}"} for number in range(2_000)])

    walks = [_strings_looked_at(result) for result in (small, rows)]

    assert walks == [2_000 + 1, 20_000 + 1]


def _strings_looked_at(result: Raw) -> int:
    """Return the number of texts that were measured to cut this result."""
    seen = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal seen
        seen += event == "call" and frame.f_code is truncation.cut_text.__code__

    sys.setprofile(count)
    try:
        truncation.cut_json(result, 16_384)
    finally:
        sys.setprofile(None)
    return seen
