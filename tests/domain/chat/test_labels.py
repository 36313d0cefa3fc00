"""Chat labels: valid and invalid ones, and the error messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import labels
from rookery.domain.chat.errors import InvalidInput


@pytest.mark.parametrize("key", ["a", "7", "team", "app.kubernetes.io/name", "A_b-c.d/e", "a" * 64])
def test_proper_keys_are_kept(key: str) -> None:
    assert labels.validate({key: "value"}) == {key: "value"}


@pytest.mark.parametrize("key", ["", "-a", ".a", "/a", "_a", "a b", "a:b", "größe", "a\n", "a\0", "a" * 65])
def test_other_keys_are_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        labels.validate({"fine": "value", key: "value"})

    assert caught.value.field.startswith("labels.")
    assert caught.value.field != "labels.fine"


def test_the_field_names_the_key_as_it_was_written() -> None:
    with pytest.raises(InvalidInput) as caught:
        labels.validate({"größe": "value"})

    assert caught.value.field == "labels.größe"
    assert "größe" in str(caught.value)


@pytest.mark.parametrize("key", ["\ud800", "x\0y", "x" * 100_000, "\u202e"])
def test_a_refused_key_never_makes_the_answer_unspeakable(key: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        labels.validate({key: "value"})

    caught.value.field.encode()
    assert caught.value.field.isprintable()
    assert len(caught.value.field) < 100


@pytest.mark.parametrize("value", ["x", " ", "a" * 256, "é" * 128, "\U0001f600" * 64, "\ue000"])
def test_values_of_1_to_256_bytes_are_kept(value: str) -> None:
    assert labels.validate({"key": value}) == {"key": value}


@pytest.mark.parametrize("value", ["", "a" * 257, "é" * 129, "nul\0", "half \ud83d", None, 1, True, ["x"], {}])
def test_other_values_are_refused_by_the_name_of_their_key(value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        labels.validate({"key": value})

    assert caught.value.field == "labels.key"


def test_fifty_labels_are_kept() -> None:
    assert len(labels.validate({f"k{n}": "v" for n in range(50)})) == 50


def test_fifty_one_labels_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        labels.validate({f"k{n}": "v" for n in range(51)})

    assert caught.value.field == "labels"
    assert "50" in str(caught.value)


@given(st.dictionaries(st.text(), st.text() | st.none() | st.integers()))
def test_accepted_labels_can_be_encoded_and_contain_no_nul(candidates: dict[str, object]) -> None:
    try:
        accepted = labels.validate(candidates)
    except InvalidInput as refused:
        refused.field.encode()
        str(refused).encode()
        return
    assert accepted == candidates
    for key, value in accepted.items():
        assert "\0" not in value
        assert 1 <= len(value.encode()) <= 256
        assert 1 <= len(key.encode()) <= 64
