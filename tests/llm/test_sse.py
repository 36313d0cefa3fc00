"""The SSE decoder, compared with a slow reference decoder, for any split of any stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.llm.errors import EventTooLarge
from rookery.llm.sse import MAX_EVENT_BYTES, SseDecoder
from rookery.llm.wire import Event

BOM = b"\xef\xbb\xbf"
LINE_ENDS = (b"\n", b"\r\n", b"\r")

# Lines of significant bytes, and whole lines in the form that providers send.
lines = st.one_of(
    st.sampled_from(
        [
            b"",
            b"data",
            b"data:",
            b'data: {"a":1}',
            b'data:{"a":1}',
            b"data:  two spaces",
            b"data: [DONE]",
            b"event: ping",
            b"event:x",
            b"event",
            b": comment",
            b":",
            b"id: 7",
            b"retry: 10",
            b"database: no",
            "data: gr\u00fc\u00dfe \u2028".encode(),
            b"data: \xff\xfe",
            b"event: \xff",
        ]
    ),
    st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b"")),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Return lines with mixed line ends, optionally with a byte order mark, optionally cut in the last line."""
    parts = [BOM] if draw(st.booleans()) else []
    for line in draw(st.lists(lines, max_size=30)):
        parts += [line, draw(st.sampled_from(LINE_ENDS))]
    if draw(st.booleans()):
        parts.append(draw(lines))
    return b"".join(parts)


def split(stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    return [stream[a:b] for a, b in pairwise(places)]


def reference(stream: bytes) -> list[Event]:
    """Return the events that end with a blank line. This is the slow and obvious implementation."""
    text = stream.removeprefix(BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[Event] = []
    name, data = b"", b""
    for line in text.split(b"\n")[:-1]:
        if not line:
            if data[:-1]:
                events.append(Event(name.decode("utf-8", "replace"), data[:-1]))
            name, data = b"", b""
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data += value + b"\n"
        if field == b"event":
            name = value
    return events


def decode(chunks: Sequence[bytes]) -> list[Event]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


@given(streams(), st.lists(st.integers(min_value=0, max_value=10_000), max_size=20))
def test_any_split_of_any_stream_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    assert decode(split(stream, cuts)) == reference(stream)


@given(streams())
def test_single_bytes_give_the_same_events_and_the_same_end(stream: bytes) -> None:
    whole, slow = SseDecoder(), SseDecoder()

    at_once = whole.feed(stream) + whole.end()
    byte_by_byte = [event for i in range(len(stream)) for event in slow.feed(stream[i : i + 1])] + slow.end()

    assert at_once == byte_by_byte


@pytest.mark.parametrize("end", LINE_ENDS)
def test_every_line_end_ends_lines_and_events(end: bytes) -> None:
    stream = end.join([b"event: one", b"data: {}", b"", b"data: a", b"data: b", b"", b""])

    assert decode([stream]) == [Event("one", b"{}"), Event("", b"a\nb")]


def test_event_is_returned_with_its_last_byte_for_any_line_end() -> None:
    decoder = SseDecoder()

    assert decoder.feed(b"data: 1\r\n\r") == [Event("", b"1")]
    assert decoder.feed(b"\ndata: 2\r\r") == [Event("", b"2")]
    assert decoder.feed(b"data: 3\n\n") == [Event("", b"3")]


def test_byte_order_mark_is_skipped_at_the_start_only() -> None:
    decoder = SseDecoder()

    first = [event for byte in BOM + b"data: 1\n\n" for event in decoder.feed(bytes([byte]))]
    later = decoder.feed(BOM + b"data: 2\n\ndata: 3\n\n")

    assert first == [Event("", b"1")]
    assert later == [Event("", b"3")]


def test_comments_unknown_fields_and_empty_data_give_nothing() -> None:
    assert decode([b": ping\n\nid: 4\nretry: 1\n\nevent: ping\n\ndata:\n\ndata: \n\nevent: x\ndata: \n\n"]) == []


@pytest.mark.parametrize(
    "tail",
    [b'data: {"a":[1,2]}', b'event: x\ndata: {"a":1}\n', b"data: [DONE]", b'data: {"a":\ndata: 1}\n'],
)
def test_last_event_without_a_blank_line_counts_when_its_data_is_whole(tail: bytes) -> None:
    decoder = SseDecoder()

    assert decoder.feed(tail) == []
    assert len(decoder.end()) == 1
    assert decoder.end() == []


@pytest.mark.parametrize(
    "tail", [b'data: {"a":[1,2]', b"data: 12", b'data: "text', b"data: [DON", b"event: x", b"", b"da"]
)
def test_last_event_without_a_blank_line_is_dropped_when_its_data_is_not_whole(tail: bytes) -> None:
    decoder = SseDecoder()

    decoder.feed(b"data: {}\n\n" + tail)

    assert decoder.end() == []


def test_event_of_exactly_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    small = SseDecoder(max_event_bytes=16)
    assert small.feed(b"data: 0123456789\n\n") == [Event("", b"0123456789")]

    with pytest.raises(EventTooLarge, match="16 bytes"):
        small.feed(b"data: 01234567890\n\n")


def test_event_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    decoder = SseDecoder()
    chunk = b"x" * 65_536
    decoder.feed(b"data: ")
    for _ in range(MAX_EVENT_BYTES // len(chunk) - 1):
        decoder.feed(chunk)

    with pytest.raises(EventTooLarge):
        decoder.feed(chunk)


def test_largest_event_in_small_chunks_takes_time_in_proportion() -> None:
    def seconds(size: int) -> float:
        decoder = SseDecoder()
        started = time.process_time()
        decoder.feed(b"data: ")
        for _ in range(size // 4096):
            decoder.feed(b"x" * 4096)
        assert len(decoder.feed(b"\n\n")[0].data) == size
        return time.process_time() - started

    small, large = seconds(2 * 1024 * 1024), seconds(16 * 1024 * 1024)

    # With eight times the bytes, a decoder that scans everything again for each chunk takes sixty-four times as long.
    assert large < 30 * max(small, 0.005)
