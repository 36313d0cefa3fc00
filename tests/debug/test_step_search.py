"""Search in the steps of a run: which texts it looks at, and the text around a match."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, json

from rookery.debug.step_search import MAX_PLACES, PlaceKind, find_places
from rookery.store.debug.record_rows import SearchedStep


def step(
    *messages: str,
    prefix_len: int = 0,
    output: str | None = None,
    error: str | None = None,
    prior_errors: tuple[str, ...] = (),
) -> SearchedStep:
    request: dict[str, Any] = {
        "message_count": prefix_len + len(messages),
        "prefix_len": prefix_len,
        "messages": [{"role": "user", "parts": [{"type": "text", "text": text}]} for text in messages],
    }
    return SearchedStep(
        id=uuid4(),
        step_number=3,
        normalized_request=raw(request),
        normalized_response=None if output is None else raw({"content": [{"type": "text", "text": output}]}),
        error=None if error is None else raw({"message": error, "type": "ProviderError"}),
        prior_errors=raw([{"kind": "timeout", "message": text} for text in prior_errors]) if prior_errors else None,
    )


def raw(value: object) -> Raw:
    return Raw(json.encode(value))


def test_messages_answers_and_errors_are_found_with_the_text_around_them() -> None:
    found = step("no bird", "a Heron\nflies", prefix_len=4, output="HERON", error="heron", prior_errors=("a", "heron"))

    places = find_places([found], "heron")

    assert [(place.kind, place.message, place.role) for place in places] == [
        (PlaceKind.MESSAGE, 5, "user"),
        (PlaceKind.OUTPUT, None, None),
        (PlaceKind.ERROR, None, None),
        (PlaceKind.PRIOR_ERROR, None, None),
    ]
    assert (places[0].before, places[0].found, places[0].after) == ("a ", "Heron", " flies")
    assert {place.step_id for place in places} == {found.id}


def test_calls_and_results_of_tools_are_searched() -> None:
    parts = [
        {"type": "tool-call", "tool_name": "watch_birds", "arguments": '{"bird":"heron"}'},
        {"type": "tool-result", "tool_name": "watch_birds", "result": "two cranes"},
    ]
    request = raw({"messages": [{"role": "tool", "parts": [part]} for part in parts]})
    searched = msgspec.structs.replace(step(), normalized_request=request)

    assert [place.message for place in find_places([searched], "watch_birds")] == [0, 1]
    assert [place.message for place in find_places([searched], "crane")] == [1]
    assert find_places([searched], "tool-call") == []


def test_line_breaks_are_white_space_and_long_texts_are_cut_around_the_match() -> None:
    (place,) = find_places([step("x" * 500 + " two\n\twords " + "y" * 500)], " two  words ")

    assert place.found == "two words"
    assert (len(place.before), place.before[0]) == (31, "…")
    assert len(place.after) == 90


def test_step_without_a_stored_request_has_no_place() -> None:
    empty = SearchedStep(
        id=uuid4(),
        step_number=1,
        normalized_request=Raw(b"{}"),
        normalized_response=None,
        error=None,
        prior_errors=None,
    )

    assert find_places([empty], "word") == []


def test_places_are_limited() -> None:
    assert len(find_places([step(*["a word"] * 300), step(*["a word"] * 300)], "word")) == MAX_PLACES


@given(st.text(), st.text(min_size=1).filter(str.strip), st.text())
def test_every_text_with_the_query_is_found(before: str, query: str, after: str) -> None:
    (place,) = find_places([step(f"{before} {query} {after}")], query)

    assert place.found.casefold() == " ".join(query.split()).casefold()
