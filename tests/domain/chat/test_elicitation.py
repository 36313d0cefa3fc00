"""Questions of MCP servers: the questions that can be shown, and the answers that are valid."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import elicitation
from rookery.domain.chat.elicitation import Elicitation, FieldKind, FormOption, Unusable
from rookery.domain.chat.errors import InvalidInput


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    id: str = "q"
    mode: str = "form"
    message: str = "?"
    schema: dict[str, Any] | None = None
    url: str | None = None


def form(*required: str, **properties: object) -> Elicitation:
    return elicitation.read("Trains", [Asked(schema={"properties": properties, "required": list(required)})])


def content(asked: Elicitation, **values: object) -> Any:
    return elicitation.check(asked, {"q": values})["q"]["content"]


def test_every_kind_of_field_of_the_protocol_is_read() -> None:
    asked = form(
        name={"type": "string", "title": "Name", "description": "Yours", "maxLength": 5, "default": "Ann"},
        age={"type": "integer", "minimum": 0},
        weight={"type": "number"},
        window={"type": "boolean", "default": True},
        plain={"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
        titled={"type": "string", "oneOf": [{"const": "x", "title": "X"}]},
        many={"type": "array", "items": {"type": "string", "enum": ["1", "2"]}, "minItems": 1},
        more={"type": "array", "items": {"anyOf": [{"const": "3", "title": "Three"}]}},
    )

    (question,) = asked.questions
    assert [field.kind for field in question.fields] == [
        FieldKind.TEXT,
        FieldKind.INTEGER,
        FieldKind.NUMBER,
        FieldKind.BOOLEAN,
        FieldKind.CHOICE,
        FieldKind.CHOICE,
        FieldKind.CHOICES,
        FieldKind.CHOICES,
    ]
    assert question.fields[4].options == (FormOption("a", "A"), FormOption("b", "B"))
    assert (question.fields[0].maximum, question.fields[0].default) == (5, "Ann")


@pytest.mark.parametrize(
    "schema",
    [
        {"password": {"type": "string"}},
        {"value": {"type": "string", "format": "password"}},
        {"githubToken": {"type": "string"}},
        {"api_key": {"type": "string"}},
        {"value": {"type": "string", "title": "Client secret"}},
        {"value": {"type": "string", "description": "Paste your access token here."}},
    ],
)
def test_a_form_must_not_ask_for_a_secret(schema: dict[str, Any]) -> None:
    with pytest.raises(Unusable, match="Trains asked for a secret"):
        form(**schema)


def test_fields_that_only_sound_similar_are_no_secrets() -> None:
    asked = form(max_tokens={"type": "integer"}, keyword={"type": "string"}, secretary={"type": "string"})

    assert len(asked.questions[0].fields) == 3


@pytest.mark.parametrize(
    "schema",
    [{"deep": {"type": "object"}}, {"list": {"type": "array", "items": {"type": "string"}}}, {"odd": 5}, {"none": {}}],
)
def test_a_form_that_is_not_flat_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(Unusable, match="cannot be shown"):
        form(**schema)


@pytest.mark.parametrize(
    "url", ["", "javascript:alert(1)", "file:///etc/passwd", "https://user:pw@host/", "https://h/\n", "http://["]
)
def test_an_unsafe_address_is_refused(url: str) -> None:
    with pytest.raises(Unusable, match="address"):
        elicitation.read("Trains", [Asked(mode="url", url=url)])


def test_an_address_needs_no_values() -> None:
    asked = elicitation.read("Trains", [Asked(mode="url", url="https://pay.example/1")])

    assert asked.questions[0].url == "https://pay.example/1"
    assert elicitation.check(asked, None) == {"q": {"action": "accept"}}


def test_unknown_ways_and_numbers_of_questions_are_refused() -> None:
    for requests in ([], [Asked(mode="voice")], [Asked(), Asked()], [Asked(id=str(n)) for n in range(11)]):
        with pytest.raises(Unusable):
            elicitation.read("Trains", requests)


def test_defaults_fill_what_is_left_out() -> None:
    asked = form("name", name={"type": "string", "default": "Ann"}, age={"type": "integer"})

    assert content(asked) == {"name": "Ann"}
    assert content(asked, name="Bob", age=3) == {"name": "Bob", "age": 3}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "minLength": 3}, "ab"),
        ({"type": "string", "format": "email"}, "nobody"),
        ({"type": "string", "format": "date"}, "tomorrow"),
        ({"type": "string", "format": "date-time"}, "2026-13-01T00:00:00Z"),
        ({"type": "string", "format": "uri"}, "not an address"),
        ({"type": "integer"}, 1.5),
        ({"type": "integer"}, True),
        ({"type": "number", "maximum": 2}, 3),
        ({"type": "number"}, float("nan")),
        ({"type": "boolean"}, "yes"),
        ({"type": "string", "enum": ["a"]}, "b"),
        ({"type": "string", "enum": ["a"]}, ["a"]),
        ({"type": "array", "items": {"type": "string", "enum": ["a"]}}, ["b"]),
        ({"type": "array", "items": {"type": "string", "enum": ["a"]}, "minItems": 1}, []),
        ({"type": "string"}, {"a": 1}),
    ],
)
def test_a_value_that_does_not_fit_is_named(schema: dict[str, Any], value: object) -> None:
    with pytest.raises(InvalidInput) as error:
        content(form(seat=schema), seat=value)

    assert error.value.field == "answers.responses.seat"


def test_values_for_unknown_fields_and_questions_are_refused() -> None:
    asked = form(seat={"type": "string"})
    wrongs: list[dict[str, dict[str, Any]]] = [{"q": {"row": "1"}}, {"other": {}}]
    for wrong in wrongs:
        with pytest.raises(InvalidInput):
            elicitation.check(asked, wrong)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(("properties", "required", "type")), json, max_size=3), json)
def test_hostile_schemas_and_values_are_refused_or_answered(schema: dict[str, Any], value: Any) -> None:
    try:
        asked = elicitation.read("Trains", [Asked(schema=schema)])
    except Unusable:
        return
    names = [field.name for field in asked.questions[0].fields]
    try:
        answers = elicitation.check(asked, {"q": dict.fromkeys(names, value)})
    except InvalidInput:
        return
    assert set(answers["q"]["content"]) <= set(names)
