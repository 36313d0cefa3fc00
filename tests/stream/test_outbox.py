"""The two queues of the outbox: limits and order."""

from __future__ import annotations

import msgspec

from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import Text, ToolResult, json_raw
from rookery.live import deltas
from rookery.live.deltas import PartEvent
from rookery.stream.outbox import MAX_FRAME_BYTES, MAX_FRAME_EVENTS, PREVIEW_MAX_BYTES, Frame, Outbox


def part(seq: int, text: str = "x") -> PartEvent:
    return seq, 1, deltas.encode(seq, Role.ASSISTANT, Text(text))


def whole(seq: int, size: int) -> PartEvent:
    result = ToolResult(f"call-{seq}", "tool", result=json_raw("y" * size))
    return seq, 1, deltas.encode(seq, Role.TOOL, result)


def drained(outbox: Outbox) -> list[Frame]:
    frames = []
    while (frame := outbox.take()) is not None:
        frames.append(frame)
    return frames


def test_durable_events_go_before_parts_and_carry_the_cursor_at_their_end() -> None:
    outbox = Outbox()
    outbox.show([part(1)])
    outbox.put([b'{"a":1}', b'{"b":2}'], cursor=7)

    first, second = drained(outbox)

    assert first == Frame(b'[{"a":1},{"b":2}]', 7)
    assert second == Frame(b"[" + part(1)[2] + b"]")
    assert outbox.is_durable_empty


def test_long_batch_is_split_and_only_its_last_frame_has_the_cursor() -> None:
    outbox = Outbox()
    outbox.put([b"1"] * (MAX_FRAME_EVENTS + 1), cursor=9)

    frames = drained(outbox)

    assert [len(msgspec.json.decode(frame.data)) for frame in frames] == [MAX_FRAME_EVENTS, 1]
    assert [frame.cursor for frame in frames] == [None, 9]


def test_frame_is_bounded_unless_a_single_event_is_larger() -> None:
    outbox = Outbox()
    large, huge = b'"%s"' % (b"z" * 200_000), b'"%s"' % (b"z" * 400_000)
    outbox.put([large, large, huge, b"1"])

    sizes = [len(frame.data) for frame in drained(outbox)]

    assert len(sizes) == 4
    assert [size > MAX_FRAME_BYTES for size in sizes] == [False, False, True, False]


def test_events_put_behind_others_keep_their_order() -> None:
    outbox = Outbox()
    outbox.put([b"1"] * 300)
    outbox.take()
    outbox.put([b"2"], cursor=3)

    (frame,) = drained(outbox)

    assert msgspec.json.decode(frame.data) == [1] * 44 + [2]
    assert frame.cursor == 3


def test_reset_of_the_preview_forgets_its_parts() -> None:
    outbox = Outbox()
    outbox.show([part(1), part(2)])

    outbox.put([b"1"], clears_preview=True)

    assert len(drained(outbox)) == 1
    assert outbox.is_preview_empty


def test_full_lane_merges_neighbours() -> None:
    outbox = Outbox()
    parts = [part(seq) for seq in range(1, 4001)]
    for each in parts:
        outbox.show([each])

    events = [event for frame in drained(outbox) for event in msgspec.json.decode(frame.data)]

    assert not outbox.is_lagged
    assert "".join(event["part"]["text"] for event in events) == "x" * 4000
    assert len(events) < 2000
    assert events[-1]["seq"] == 4000


def test_lane_that_merging_does_not_empty_is_given_up() -> None:
    outbox = Outbox()
    outbox.show([whole(1, 150_000)])

    outbox.show([whole(2, 150_000)])

    assert outbox.is_lagged
    assert outbox.take() is None


def test_single_part_may_be_larger_than_the_lane() -> None:
    outbox = Outbox()

    outbox.show([whole(1, PREVIEW_MAX_BYTES + 1)])

    assert not outbox.is_lagged
    assert len(drained(outbox)) == 1


def test_mark_keeps_its_place_among_parts_that_are_merged() -> None:
    outbox = Outbox()
    outbox.show([part(seq) for seq in range(1, 2001)])
    outbox.mark(b'{"type":"mark"}')
    outbox.show([part(seq) for seq in range(2001, 4001)])
    outbox.show([part(seq) for seq in range(4001, 6001)])

    events = [event for frame in drained(outbox) for event in msgspec.json.decode(frame.data)]

    place = [event["type"] for event in events].index("mark")
    assert events[place - 1]["seq"] == 2000
    assert sum(event.get("n", 1) for event in events[:place]) == 2000
