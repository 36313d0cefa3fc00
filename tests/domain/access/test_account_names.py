"""The normal form of names: one for all spellings, and stable."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.access.account_names import normal_name

# Letters and marks that fold or compose in odd ways are too rare among all characters to be met by chance.
ODD = (
    "aAiI\u00df\u1e9e\u00c4\u0130\u0345\u0307\u0308\u0300\u0323\u03a3\u03c2"
    "\u1fb3\u1fbc\ufb03\uff21\u212a\u13a0\uab70\u00a8 \u3000@."
)
TEXT = st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"])), max_size=30)
VARIANTS: dict[str, Callable[[str], str]] = {
    "NFC": partial(unicodedata.normalize, "NFC"),
    "NFD": partial(unicodedata.normalize, "NFD"),
    "NFKC": partial(unicodedata.normalize, "NFKC"),
    "NFKD": partial(unicodedata.normalize, "NFKD"),
    "folded": str.casefold,
    "lower": str.lower,
    "padded": lambda text: f" \u3000{text}\t",
}


def fullwidth(text: str) -> str:
    return "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text)


@given(TEXT)
def test_normal_form_is_its_own(text: str) -> None:
    normal = normal_name(text)

    assert normal_name(normal) == normal
    assert normal == normal.strip()
    assert unicodedata.is_normalized("NFKC", normal)


@pytest.mark.parametrize("variant", VARIANTS)
@given(text=TEXT)
def test_spellings_have_one_normal_form(variant: str, text: str) -> None:
    assert normal_name(VARIANTS[variant](text)) == normal_name(text)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30))
def test_width_and_case_of_ascii_make_no_difference(text: str) -> None:
    assert normal_name(text) == text.strip().lower()
    assert normal_name(fullwidth(text)) == normal_name(text.upper()) == normal_name(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("stra\u00dfe", "STRASSE"),
        ("stra\u1e9ee", "strasse"),
        ("\u0130da", "i\u0307da"),
        ("\u212aelvin", "kelvin"),
        ("\u03c3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2", "\u03a3\u038a\u03a3\u03a5\u03a6\u039f\u03a3"),
    ],
)
def test_equal_names(one: str, other: str) -> None:
    assert normal_name(one) == normal_name(other)


@pytest.mark.parametrize(("one", "other"), [("\u0130da", "ida"), ("\u0131da", "ida"), ("\u00e4da", "ada"), ("", "a")])
def test_different_names(one: str, other: str) -> None:
    assert normal_name(one) != normal_name(other)
