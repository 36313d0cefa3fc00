"""The rules of saved prompts."""

from __future__ import annotations

import pytest

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.content import saved_prompts


@pytest.mark.parametrize("name", ["a", "review", "fix-2", "0", "x" * 64])
def test_name_that_can_be_typed_is_taken(name: str) -> None:
    saved_prompts.check_name(name)


@pytest.mark.parametrize(
    "name", ["", "-a", "Review", "a b", "a/b", "../x", "é", "a\n", "x" * 65, "<b>", "a\0", "\u202ea"]
)
def test_name_that_cannot_be_typed_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        saved_prompts.check_name(name)


def test_text_is_bounded_in_bytes() -> None:
    assert saved_prompts.checked_text("  a\r\nb ") == "a\nb"
    assert saved_prompts.checked_text("x" * 65_536)
    for text in ("", " \n ", "é" * 32_769, "a\0b"):
        with pytest.raises(InvalidInput):
            saved_prompts.checked_text(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("no variable", ()),
        ("{{file}} and {{ goal }} and {{file}}", ("file", "goal")),
        ("{{}} {{ }} {file} {{a{{b}}", ("b",)),
        ("{{" * 30_000, ()),
        ("{{a b-c_1}}", ("a b-c_1",)),
    ],
)
def test_variables_are_the_names_in_double_braces(text: str, names: tuple[str, ...]) -> None:
    assert saved_prompts.variables(text) == names


def test_summary_is_one_short_line() -> None:
    assert saved_prompts.summary("First\n\n  second\tthird") == "First second third"
    assert len(saved_prompts.summary("word " * 10_000)) <= saved_prompts.SUMMARY_CHARS
