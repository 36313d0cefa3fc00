"""Descriptions of types, and the messages for invalid options and settings that are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.content import value_descriptions
from rookery.domain.models import options
from rookery.domain.models.options import ModelOptions, ProviderOptions, ProviderType
from rookery.store.settings import setting_groups

# Words of validators. A user must never see them.
VALIDATOR_WORDS = ("Expected `", "got `", "regex", "pattern", "enum", "`int", "`str", "$", "Object missing", "NoneType")
WRONG: tuple[object, ...] = ("", "x" * 20_000, -(10**12), 10**18, 0.5, True, [None], {"nothing": None}, [["x"]])


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Pair(msgspec.Struct):
    first: int
    second: int = 0


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (bool, "true or false"),
        (int | None, "a whole number"),
        (Annotated[int, Meta(ge=1, le=10)], "a whole number from 1 to 10"),
        (Annotated[float, Meta(ge=0.5)], "a number of at least 0.5"),
        (Annotated[int, Meta(le=2000)], "a whole number of at most 2,000"),
        (Annotated[str, Meta(max_length=1)], "text of at most 1 character"),
        (Annotated[str, Meta(min_length=2)], "text of at least 2 characters"),
        (Annotated[str, Meta(min_length=1, max_length=64)], "text of 1 to 64 characters"),
        (Annotated[str, Meta(pattern="^x$", description="an x")] | None, "an x"),
        (Color | None, "'red' or 'blue'"),
        (Literal["a", "b", "c"], "'a', 'b' or 'c'"),
        (UUID, "a UUID"),
        (Annotated[tuple[UUID, ...], Meta(max_length=3)], "a list of at most 3 items (each: a UUID)"),
        (Mapping[str, Any], "an object"),
        (
            dict[Annotated[str, Meta(description="a city")], int],
            "an object (each key: a city) (each value: a whole number)",
        ),
        (Pair, "an object with the fields first and second"),
    ],
)
def test_type_is_described_in_words(kind: Any, text: str) -> None:
    assert value_descriptions.describe(kind) == text


def refusals(check: Any) -> list[str]:
    """Return the messages for the wrong values that are refused."""
    found = []
    for value in WRONG:
        try:
            check(value)
        except InvalidInput as error:
            found.append(str(error))
    return found


def assert_readable(messages: list[str]) -> None:
    assert messages
    for message in messages:
        assert message.endswith("."), message
        assert not [word for word in VALIDATOR_WORDS if word in message], message


@pytest.mark.parametrize("name", ModelOptions.__struct_fields__)
def test_wrong_option_of_a_model_is_explained_without_words_of_validators(name: str) -> None:
    family = next(each for each, names in options.FAMILIES.items() if name in names)

    assert_readable(refusals(lambda value: options.parse_model_options(family, {name: value})))


@pytest.mark.parametrize("name", ProviderOptions.__struct_fields__)
def test_wrong_option_of_a_provider_is_explained_without_words_of_validators(name: str) -> None:
    family = next(each for each, names in options.PROVIDER_FAMILIES.items() if name in names)

    assert_readable(refusals(lambda value: options.parse_provider_options(family, {name: value})))


@pytest.mark.parametrize(
    ("group", "key"), [(group, key) for group in setting_groups.GROUPS.values() for key in group.keys]
)
def test_wrong_setting_is_explained_without_words_of_validators(group: setting_groups.Group, key: str) -> None:
    assert_readable(refusals(lambda value: setting_groups.changed(group, group.kind(), {key: value})))


def test_message_about_an_option_never_quotes_its_value() -> None:
    with pytest.raises(InvalidInput) as refused:
        options.parse_provider_options(ProviderType.OPENAI_COMPAT, {"headers": {"X-Key": ["s3cret"]}})

    assert "s3cret" not in str(refused.value)
    assert str(refused.value) == "Option headers must be an object (each value: text of at most 8,192 characters)."
