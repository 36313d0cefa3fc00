"""Glob patterns: their matches, compared with slow and simple definitions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import approval_patterns
from rookery.domain.chat.approval_patterns import Texts

UNSAFE = set(";&|<>$`(){}\\\u2028\u2029") | {chr(code) for code in (*range(32), *range(127, 160))}
ALPHABET = "abAB*?\\; .\u00e4\u00c4\u0130\u0131\u017f\u212asS\U0001f600\n\ud800"
globs = st.text(alphabet=ALPHABET, max_size=9)
texts = st.text(alphabet=ALPHABET, max_size=12)


def reference(pattern: str, text: str, *, is_narrow: bool) -> bool:
    """Match by definition: try every length for each wildcard."""
    if not pattern:
        return not text
    first, rest = pattern[0], pattern[1:]
    if first == "*":
        if reference(rest, text, is_narrow=is_narrow):
            return True
        return bool(text) and is_wild(text[0], is_narrow) and reference(pattern, text[1:], is_narrow=is_narrow)
    if not text:
        return False
    if first == "?":
        return is_wild(text[0], is_narrow) and reference(rest, text[1:], is_narrow=is_narrow)
    if first == "\\":
        first, rest = (rest[0], rest[1:]) if rest else ("\\", "")
    same = first == text[0] if is_narrow else approval_patterns.fold(first) == approval_patterns.fold(text[0])
    return same and reference(rest, text[1:], is_narrow=is_narrow)


def is_wild(character: str, is_narrow: bool) -> bool:
    return not is_narrow or character not in UNSAFE


@pytest.mark.parametrize("is_narrow", [True, False])
@given(globs, texts)
def test_a_pattern_matches_what_the_definition_says(is_narrow: bool, pattern: str, text: str) -> None:
    expected = reference(pattern, text, is_narrow=is_narrow)

    assert approval_patterns.matches(pattern, text, is_narrow=is_narrow) is expected


@pytest.mark.parametrize("is_narrow", [True, False])
@given(globs, st.lists(texts, max_size=6))
def test_many_texts_are_matched_each_by_itself(is_narrow: bool, pattern: str, given_texts: list[str]) -> None:
    found = Texts(given_texts, is_narrow=is_narrow)

    ends, place, expected = found.match(pattern, lambda units: None), -1, []
    for text in given_texts:
        place += len(text) + 1
        expected.append((bool(ends >> place & 1), text))
    assert expected == [(reference(pattern, text, is_narrow=is_narrow), text) for text in given_texts]
    assert bin(ends).count("1") == sum(is_match for is_match, _ in expected)


@given(st.text(max_size=20))
def test_capitals_fold_character_by_character(text: str) -> None:
    assert len(approval_patterns.fold(text)) == len(text)
    assert approval_patterns.fold(approval_patterns.fold(text)) == approval_patterns.fold(text)


@given(st.characters(), st.characters())
def test_letters_that_a_regular_expression_treats_as_equal_are_equal(one: str, other: str) -> None:
    if re.fullmatch(re.escape(one), other, re.IGNORECASE):
        assert approval_patterns.fold(one) == approval_patterns.fold(other)


def test_every_pair_that_a_regular_expression_takes_for_the_same_letter_is_the_same() -> None:
    everything = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x20000))))
    for character in everything:
        for variant in {character.lower(), character.upper()} - {character}:
            if len(variant) == 1 and re.fullmatch(re.escape(character), variant, re.IGNORECASE):
                assert approval_patterns.fold(character) == approval_patterns.fold(variant), (character, variant)


@pytest.mark.parametrize(
    ("pattern", "is_taken"),
    [
        ("a" * 256, True),
        ("a" * 257, False),
        ("*" * 16, True),
        ("*" * 17, False),
        ("?*" * 8, True),
        ("?*" * 8 + "?", False),
        ("\\*" * 100, True),
        ("\\\\*" * 17, False),
        ("", True),
    ],
)
def test_patterns_have_at_most_256_characters_and_16_wildcards(pattern: str, is_taken: bool) -> None:
    assert (approval_patterns.find_problem(pattern) is None) is is_taken


def test_work_grows_with_lengths_alone() -> None:
    """The content of the text does not affect the number of steps."""
    spent: list[int] = []
    texts = Texts(["a" * 10_000], is_narrow=False)

    texts.match("*a" * 16 + "b", spent.append)

    assert len(spent) <= 2 * 16 + 1 + 2, "a unit of work for each token and for each character that was new"
    assert sum(spent) < 33 * (Texts.BASE + 10_001) + 2 * 2 * 10_001
