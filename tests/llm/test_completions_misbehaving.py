"""Misbehaving Chat Completions servers: every stream ends with exactly one terminal part, and all blocks are closed."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookery.llm.completions.stream import CompletionsFold
from rookery.llm.types import (
    Finish,
    ReasoningEnd,
    ReasoningStart,
    StreamError,
    StreamPart,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputEnd,
    ToolInputStart,
)
from rookery.llm.wire import Event

Json = Any

# No time limits, because busy machines are slow to make examples.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
texts = st.none() | st.text("ab<think>/", max_size=4)
indexes = st.none() | st.integers(0, 2)


def some(**known: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """Return objects with any of these keys."""
    return st.fixed_dictionaries({}, optional=known)


functions = some(
    name=st.sampled_from(("f", "g", "fg", "", None)),
    arguments=st.sampled_from(("{}", "{", "}", "", None, "1", {"a": 1})),
)
call_deltas = some(
    index=indexes, id=st.sampled_from((None, "", "a", "b")), function=functions, extra_content=st.just({"google": {}})
)
details = some(
    type=st.sampled_from(("reasoning.text", "reasoning.summary", "reasoning.encrypted")),
    text=texts | anything,
    summary=texts | anything,
    index=indexes | anything,
)
deltas = some(
    content=texts | st.lists(some(type=st.just("text"), text=texts, thinking=texts), max_size=2),
    reasoning_content=texts,
    reasoning=texts,
    reasoning_details=st.lists(details, max_size=2),
    refusal=texts,
    tool_calls=st.none() | st.lists(call_deltas, max_size=2),
    function_call=st.none() | functions,
    annotations=st.lists(some(type=texts, url_citation=some(url=st.text(max_size=2), title=texts)), max_size=2),
)
counts = st.none() | st.integers(-1, 9)
reasons = st.sampled_from((None, "stop", "length", "tool_calls", "content_filter", "strange"))
choices = st.fixed_dictionaries({"delta": deltas}, optional={"index": st.sampled_from((None, 0, 1))})
chunks = st.fixed_dictionaries(
    {"choices": st.lists(choices, min_size=1, max_size=1)},
    optional={
        "id": texts,
        "model": texts,
        "usage": st.none() | some(prompt_tokens=counts, completion_tokens=counts, total_tokens=counts),
    },
)


def finishing(reason: str | None) -> Json:
    return {"choices": [{"index": 0, "delta": None, "finish_reason": reason}]}


def folded(sent: list[bytes], *, think_tags: bool) -> list[StreamPart]:
    fold = CompletionsFold("Some Server", think_tags=think_tags)
    parts: list[StreamPart] = []
    for data in sent:
        parts += fold.feed(Event("", data))
        if parts and isinstance(parts[-1], Finish | StreamError):
            return parts
    return [*parts, *fold.end()]


def check_ending(parts: list[StreamPart]) -> None:
    assert [part for part in parts if isinstance(part, Finish | StreamError)] == parts[-1:]
    if isinstance(parts[-1], StreamError):
        return
    started = [part.id for part in parts if isinstance(part, TextStart | ReasoningStart | ToolInputStart)]
    ended = [part.id for part in parts if isinstance(part, TextEnd | ReasoningEnd | ToolInputEnd)]
    assert sorted(started) == sorted(ended)
    assert len(set(started)) == len(started)
    calls = [part for part in parts if isinstance(part, ToolCall)]
    assert all(call.name and call.id in ended for call in calls)
    assert len({call.id for call in calls}) == len(calls)


@unhurried
@given(st.lists(chunks, max_size=6), reasons, st.booleans())
def test_chunks_in_any_combination_end_in_order(sent: list[Json], reason: str | None, think_tags: bool) -> None:
    data = [msgspec.json.encode(chunk) for chunk in (*sent, finishing(reason))]
    check_ending(folded([*data, b"[DONE]"], think_tags=think_tags))


@unhurried
@given(st.lists(chunks, max_size=2), anything | st.binary(max_size=8))
def test_invalid_chunk_ends_the_stream_in_order(sent: list[Json], strange: Json) -> None:
    last = strange if isinstance(strange, bytes) else msgspec.json.encode(strange)
    check_ending(folded([*map(msgspec.json.encode, sent), last], think_tags=False))


@unhurried
@given(chunks | some(choices=anything) | anything)
def test_whole_answers_of_any_kind_end_in_order(body: Json) -> None:
    check_ending(list(CompletionsFold("Some Server").read_document(msgspec.json.encode(body))))
