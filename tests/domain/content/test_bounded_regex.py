"""Bounded regular expressions: they agree with `re`, and no pattern or text makes them slow."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.content import bounded_regex
from rookery.domain.content.bounded_regex import MAX_TEXT, BoundedRegex, Unsupported

ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "[a-c-]", "[]b]", r"\d", r"\W", r"[\s\d]", r"\.", r"\x61", "{", ""]
)
COUNTS = st.sampled_from(["", "*", "+", "?", "*?", "{2}", "{0,2}", "{1,}", "{,2}", "{0}"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(st.sampled_from(["(", "(?:"]), inner, st.just(")"), COUNTS).map("".join),
    )


PATTERNS = st.recursive(
    st.tuples(ATOMS, COUNTS).map(lambda pair: "".join(pair) if pair[0] else ""), _grown, max_leaves=8
)
TEXTS = st.text(alphabet="abc1 .{-\n", max_size=8)


@given(PATTERNS, TEXTS)
def test_match_agrees_with_re_for_every_pattern_that_both_accept(pattern: str, text: str) -> None:
    try:
        expected = re.compile(pattern)
        compiled = BoundedRegex(pattern)
    except (re.error, Unsupported):
        return
    assert compiled.fullmatch(text) == (expected.fullmatch(text) is not None)


@given(st.text(alphabet=r"ab()[]{}*+?|\^$.,-:1dwx", max_size=20), TEXTS)
def test_any_text_is_a_pattern_that_agrees_with_re_or_is_refused(pattern: str, text: str) -> None:
    try:
        compiled = BoundedRegex(pattern)
    except Unsupported:
        return
    assert compiled.fullmatch(text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+b", "a" * MAX_TEXT),
        ("(a|a)*b", "a" * MAX_TEXT),
        ("(.*a){8}.{30}c", "ab" * (MAX_TEXT // 2)),
        ("((a?){30}){30}b", "a" * MAX_TEXT),
        (".*" * 400 + "x", "".join(chr(200 + number) for number in range(MAX_TEXT))),
    ],
)
def test_hostile_text_takes_milliseconds(pattern: str, text: str) -> None:
    started = time.thread_time()
    assert not bounded_regex.compile_pattern(pattern).fullmatch(text)
    assert time.thread_time() - started < 1.0  # about 0.03 s; `re` would never end


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(a)\1", "not supported"),
        ("(?=a)b", r"\(\?"),
        ("(?i)a", r"\(\?"),
        (r"\bword", "not supported"),
        ("a^b", "start"),
        ("a$b", "end"),
        ("a{5000}", "at most"),
        ("(a{100}){100}", "too large"),
        ("((()" + "{1000}" + "){1000}){1000}", "too large"),
        ("(" * 60 + ")" * 60, "nested"),
        ("a" * 1001, "at most 1000"),
        ("a**", "repetition"),
        ("*a", "nothing to repeat"),
        ("{1}a", "nothing to repeat"),
        ("a|{,}", "nothing to repeat"),
        ("a*+", "Possessive"),
        ("(a", "closing"),
        ("a)", "opening"),
        ("[a", "too early"),
        ("[z-a]", "range"),
        ("a\\", "too early"),
        (r"\x6", "hexadecimal"),
    ],
)
def test_pattern_that_cannot_be_matched_safely_is_refused_with_a_reason(pattern: str, said: str) -> None:
    started = time.thread_time()
    with pytest.raises(Unsupported, match=said):
        BoundedRegex(pattern)
    assert time.thread_time() - started < 1.0
