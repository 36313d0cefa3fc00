"""Events that differ only in their text are read together, with the same result as one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.llm.anthropic.stream import AnthropicFold
from rookery.llm.completions.stream import CompletionsFold
from rookery.llm.repeated_deltas import RepeatedDeltas
from rookery.llm.response_stream import AnswerReader, joined
from rookery.llm.types import ReasoningDelta, StreamPart, TextDelta

TEXTS = st.sampled_from(
    [
        "a",
        " word",
        "m",
        "index",
        "",
        "\n",
        "x\ny",
        '"',
        "\\",
        "\\n",
        'say "',
        "ö",
        "\U0001f600",
        "/",
        "\t",
        "text",
        "<think>",
    ]
) | st.text(max_size=4)
# The number of events that arrive together.
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=30)


def sse(body: dict[str, Any], *, ascii_only: bool) -> bytes:
    name = f"event: {body['type']}\n" if "type" in body else ""
    return f"{name}data: {json.dumps(body, ensure_ascii=ascii_only)}\n\n".encode("utf-8", "surrogatepass")


def completions(texts: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for kind, text in texts:
        delta = {"content" if kind == "text" else "reasoning": text}
        yield {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def anthropic(texts: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg", "type": "message", "role": "assistant", "model": "m", "content": []}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}
    yield {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}
    for kind, text in texts:
        name = "text" if kind == "text" else "thinking"
        yield {
            "type": "content_block_delta",
            "index": 1 if kind == "text" else 0,
            "delta": {"type": f"{name}_delta", name: text},
        }


def read(wire: str, blocks: Sequence[bytes], *, is_plain: bool) -> list[StreamPart]:
    fold = CompletionsFold("p") if wire == "completions" else AnthropicFold("p")
    reader = AnswerReader(fold, "p")
    reader.start(None)
    parts: list[StreamPart] = []
    for block in blocks:
        parts += reader.feed(block) if is_plain else reader._read(block)
        if reader.is_done:
            break
    return list(joined(parts))


def filled(parts: Sequence[StreamPart]) -> list[StreamPart]:
    return [part for part in parts if not (isinstance(part, TextDelta | ReasoningDelta) and not part.text)]


@pytest.mark.parametrize("wire", ["completions", "anthropic"])
@given(
    texts=st.lists(st.tuples(st.sampled_from(["text", "text", "text", "thought"]), TEXTS), max_size=60),
    sizes=SIZES,
    ascii_only=st.booleans(),
    cut=st.integers(0, 200),
)
def test_result_is_that_of_reading_one_by_one(
    wire: str, texts: list[tuple[str, str]], sizes: list[int], ascii_only: bool, cut: int
) -> None:
    """`cut` is where one block is divided into two reads."""
    bodies = completions(texts) if wire == "completions" else anthropic(texts)
    events = [sse(body, ascii_only=ascii_only) for body in bodies]
    blocks: list[bytes] = []
    while events:
        size = sizes[len(blocks) % len(sizes)]
        block, events = b"".join(events[:size]), events[size:]
        blocks += [block[:cut], block[cut:]] if len(blocks) % 5 == 4 and cut < len(block) else [block]
    blocks = [block for block in blocks if block]

    assert filled(read(wire, blocks, is_plain=True)) == filled(read(wire, blocks, is_plain=False))


def event(text: str, *, more: str = "") -> bytes:
    return b'data: {"type":"d","text":%b%b}\n\n' % (json.dumps(text, ensure_ascii=False).encode(), more.encode())


def test_texts_of_a_block_are_one_delta_and_nothing_is_decoded() -> None:
    repeated = RepeatedDeltas()
    assert repeated.read(event("one ")) is None
    repeated.learn(event("zero ") + event("one "), [TextDelta("t", "zero one ")])
    assert repeated.read(event("two ")) is None, "the text of two events is not that of the last one"
    repeated.learn(event("one "), [TextDelta("t", "one ")])

    assert repeated.read(event("two ")) == TextDelta("t", "two ")
    assert repeated.read(event("two ") + event("three\n") + event("ö")) == TextDelta("t", "two three\nö")


@pytest.mark.parametrize(
    "block",
    [
        event('"'),
        event("a\\") + event("b"),
        event("a") + event("b", more=',"usage":1'),
        event("a") + b": keep-alive\n\n",
        event("a")[:-1],
        event("a")[1:],
        event("a") + event("b")[:-9],
        event("a").replace(b'"a"', b'"\\u00e4"'),
        event("a").replace(b'"a"', b'"a\tb"'),
        event("a").replace(b'"a"', b'"\xff"'),
        event("a").replace(b'"a"', b'"a","x":"b"'),
        event(""),
    ],
)
def test_anything_else_is_decoded_as_usual(block: bytes) -> None:
    repeated = RepeatedDeltas()
    repeated.learn(event("one "), [TextDelta("t", "one ")])

    assert repeated.read(block) is None


@pytest.mark.parametrize("text", ["type", "d", 'a"', "ö", "a/b", "data"])
def test_text_whose_place_is_not_certain_teaches_nothing(text: str) -> None:
    repeated = RepeatedDeltas()
    repeated.learn(event(text) if text != "data" else event("other"), [TextDelta("t", text)])

    assert repeated.read(event("two ")) is None


def test_pattern_ends_with_its_text_and_is_not_sought_for_ever() -> None:
    repeated = RepeatedDeltas()
    repeated.learn(event("one "), [TextDelta("t", "one ")])
    repeated.learn(b'data: {"type":"stop"}\n\n', [])
    assert repeated.read(event("two ")) is None
    for number in range(9):
        repeated.learn(event("x ", more=f',"n":{number}'), [TextDelta("t", "x ")])
    assert repeated._trials == 4
    assert repeated.read(event("y ", more=',"n":8')) is None
    repeated.learn(event("one "), [ReasoningDelta("r", "one ")])
    assert repeated.read(event("two ")) == ReasoningDelta("r", "two ")
