"""The query parameters of a chat's stream."""

from __future__ import annotations

import pytest

from rookery.domain.chat.errors import InvalidInput
from rookery.stream import query_parameters
from rookery.stream.query_parameters import StreamParams


@pytest.mark.parametrize(
    ("name", "value"),
    [("tail", "1001"), ("tail", "-1"), ("after_id", "x"), ("parts", "maybe"), ("taill", "3"), ("after_id", "²")],
)
def test_wrong_parameter_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        query_parameters.parse({name: value})

    assert refused.value.field == name


def test_last_event_id_takes_precedence() -> None:
    found = query_parameters.parse({"after_id": "3", "parts": "0"}, last_event_id="9")

    assert found == StreamParams(after_id=9, parts=False)
