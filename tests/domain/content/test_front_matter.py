"""Front matter: the fields that are read, and hostile files."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookery.domain.content import front_matter
from rookery.domain.content.front_matter import FrontMatterProblem, Value


@pytest.mark.parametrize(
    ("head", "values"),
    [
        ("", {}),
        ("# nothing", {}),
        ("a: b\nc: 'd: e'\nf:", {"a": "b", "c": "d: e", "f": ""}),
        ("a: 2026-01-02\nb: yes\nc: 007\nd: ~", {"a": "2026-01-02", "b": "yes", "c": "007", "d": "~"}),
        ('a: "\\u00e9\\n"\nb: |\n  1\n  2\nc: >-\n  1\n  2', {"a": "\u00e9\n", "b": "1\n2\n", "c": "1 2"}),
        ("a: [b, 'c', 1]\nd: []\ne:\n- f\n- g", {"a": ("b", "c", "1"), "d": (), "e": ("f", "g")}),
        ("a: {b: c}\nd: [e, [f]]\ng: [[h], i]\nj: k", {"a": None, "d": None, "g": None, "j": "k"}),
        ("? [a]\n: b\n? {c: d}\n: [e]\nf: g", {"\0": ("e",), "f": "g"}),
        ("a: !!python/object/apply:os.getcwd 'b'\nc: !x [d]", {"a": "b", "c": ("d",)}),
    ],
)
def test_texts_and_lists_of_the_top_level_are_read(head: str, values: dict[str, Value]) -> None:
    fields, body = front_matter.read(f"\ufeff---\r\n{head}\n---\nbody\n---\n")

    assert (fields.values, body) == (values, "body\n---\n")


def test_field_of_another_type_is_refused() -> None:
    fields, _ = front_matter.read("---\ntext: a, b\nlist: [a]\nnested: {a: b}\n---\n")

    assert (fields.text("text"), fields.text("missing")) == ("a, b", None)
    assert (fields.texts("text"), fields.texts("list"), fields.texts("missing")) == (("a", "b"), ("a",), None)
    for name in ("list", "nested"):
        with pytest.raises(FrontMatterProblem, match=f"{name}: this must be a text"):
            fields.text(name)
    with pytest.raises(FrontMatterProblem, match="nested: this must be a list of texts"):
        fields.texts("nested")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# Title", "does not begin with front matter"),
        ("---\na: b\n", "does not begin with front matter"),
        ("---\n- a: b\n---\n", "no fields"),
        ("---\na\n---\n", "no fields"),
        ("---\na: 1\nb: 2\na: 3\n---\n", "the field a twice"),
        ("---\na: 'b\n---\n", "not valid YAML"),
        ("---\na: b\nc: d: e\n---\n", "not valid YAML in line 2: .* needs quotes"),
        ("---\na: \x07\n---\n", "characters that YAML does not allow"),
        ("---\na: \ud800\n---\n", "characters that YAML does not allow"),
    ],
)
def test_front_matter_that_cannot_be_read_says_why(text: str, problem: str) -> None:
    with pytest.raises(FrontMatterProblem, match=problem):
        front_matter.read(text)


# Each would cost a reader that builds objects, or one without limits, far more than it costs its author.
LAUGHS = "a: &a [x, x]\n" + "".join(f"{after}: &{after} [*{name}, *{name}]\n" for name, after in pairwise("abcdefghi"))
HOSTILE = {
    "aliases": (LAUGHS, "aliases"),
    "an alias of itself": ("a: &a [*a]\n", "aliases"),
    "deep lists": ("a: " + "[" * 8_000, "levels deep"),
    "deep mappings": ("m: " + "{a: " * 1_600, "levels deep"),
    "deep blocks": ("".join(f"{' ' * depth}a:\n" for depth in range(120)), "levels deep"),
    "deep keys": ("? " * 4_000, "levels deep"),
    "many small mappings": ("a: [" + "a: b, " * 1_300 + "]", "too many values"),
    "many keys": ("".join(f"k{place}:\n" for place in range(1_000)), "too many values"),
    "much of it": ("a: b\n" * 2_000, "more than 8192 characters"),
}


@pytest.fixture(params=["CBaseLoader", "BaseLoader"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each YAML loader: that of libyaml, and the one for machines without libyaml."""
    monkeypatch.setattr(front_matter, "_LOADER", getattr(yaml, request.param))


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_front_matter_is_refused(name: str) -> None:
    text, problem = HOSTILE[name]

    with pytest.raises(FrontMatterProblem, match=problem):
        front_matter.read(f"---\nname: deploy\n{text}\n---\n")


@pytest.mark.usefixtures("loader")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=300) | st.text("-?:,[]{}#&*!|>'\"%@` \n\tab1", max_size=100))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(FrontMatterProblem):
        fields, _ = front_matter.read(f"---\n{text}\n---\nbody")
        assert all(isinstance(value, str | tuple | None) for value in fields.values.values())
