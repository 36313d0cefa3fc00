"""Stored tool results: their form, their size, and that they can be stored."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.prompt import result_text
from rookery.loop import tool_results
from rookery.loop.tool import Attachment, Media, ToolOutput
from rookery.loop.tool_results import CallName, CallResult, UnusableOutput
from tests.loop.loop_rig import value

AT = datetime(2030, 1, 1, tzinfo=UTC)
CALL = CallName("call_a", "read", UUID(int=3))
BUDGET = 16 * 1024


def shape(output: ToolOutput, max_bytes: int = BUDGET) -> CallResult:
    result = tool_results.shape(CALL, output, at=AT, max_bytes=max_bytes)
    # Every result can be stored and read again.
    stored = parts.encode((result.result, *result.files))
    assert "\0" not in str(parts.json_value(Raw(stored)))
    assert parts.same(parts.decode(stored), (result.result, *result.files))
    return result


@pytest.mark.parametrize(
    ("output", "stored"),
    [
        (ToolOutput("plain"), {"output": "plain"}),
        (ToolOutput('{"a": [1]}'), {"a": [1]}),
        (ToolOutput("[1, 2]"), [1, 2]),
        (ToolOutput("12"), 12),
        (ToolOutput(""), {}),
        (ToolOutput(b""), {}),
        (ToolOutput({"a": 1}), {"a": 1}),
        (ToolOutput({}), {}),
        (ToolOutput("no such file", is_error=True), {"error": "no such file"}),
        (ToolOutput('{"a": 1}', is_error=True), {"error": '{"a": 1}'}),
        (ToolOutput({"error": "no", "operation_id": 3}, is_error=True), {"error": "no", "operation_id": 3}),
    ],
)
def test_every_output_has_one_stored_shape(output: ToolOutput, stored: Any) -> None:
    result = shape(output)

    assert value(result) == stored
    assert result.is_error is output.is_error
    assert (result.result.tool_call_id, result.result.tool_name) == ("call_a", "read")
    assert (result.result.mcp_server_id, result.result.created_at) == (UUID(int=3), AT)


def test_invalid_utf8_and_zero_bytes_become_replacement_characters() -> None:
    assert value(shape(ToolOutput(b"a\xffb\x00c"))) == {"output": "a\ufffdb\ufffdc"}
    assert value(shape(ToolOutput("a\udcffb\0c"))) == {"output": "a\ufffdb\ufffdc"}
    assert value(shape(ToolOutput({"k\0": ["x\0", {"y": "\ud800"}]}))) == {"k\ufffd": ["x\ufffd", {"y": "\ufffd"}]}
    assert value(shape(ToolOutput('{"a": "\\u0000"}'))) == {"a": "\ufffd"}


@given(st.text() | st.binary() | st.dictionaries(st.text(), st.text() | st.integers() | st.none()))
def test_any_text_can_be_stored_within_its_budget(given_value: Any) -> None:
    result = shape(ToolOutput(given_value), max_bytes=600)

    assert isinstance(result.result.result, Raw)
    assert len(result_text(result.result.result).encode()) <= 600


def test_a_long_text_keeps_head_marker_and_tail_and_stays_text() -> None:
    text = "first line\n" + "é" * 2_500_000 + "\nlast line"

    result = shape(ToolOutput(text))

    kept = value(result)["output"]
    assert result.is_truncated
    assert len(kept.encode()) <= BUDGET
    assert kept.startswith("first line\n")
    assert kept.endswith("\nlast line")
    assert "bytes of this result were removed" in kept


def test_long_json_stays_json_of_the_same_shape() -> None:
    output = {"lines": ["x" * 100_000, "short"], "count": 2}

    for result in (shape(ToolOutput(output)), shape(ToolOutput(bytes(parts.json_raw(output)).decode()))):
        kept = value(result)
        assert result.is_truncated
        assert (kept["lines"][1], kept["count"]) == ("short", 2)
        assert isinstance(result.result.result, Raw)
        assert len(bytes(result.result.result)) <= BUDGET


def test_a_heap_of_small_values_is_cut_as_text() -> None:
    output = {"rows": [{"n": number, "name": "abc"} for number in range(60_000)]}

    result = shape(ToolOutput(output))

    text = value(result)["output"]
    assert text.startswith('{"rows":[{"n":0,"name":"abc"}')
    assert text.endswith('{"n":59999,"name":"abc"}]}')
    assert isinstance(result.result.result, Raw)
    assert len(bytes(result.result.result)) <= BUDGET


def test_characters_are_whole_however_long_the_bytes_are() -> None:
    text = "é" * tool_results.LARGE_BYTES

    assert tool_results.clean_text(b"x" + text.encode()) == "x" + text
    assert tool_results.clean_text(text.encode()[:-1]) == text[:-1] + "\ufffd"


def test_long_errors_are_cut_too() -> None:
    result = shape(ToolOutput("e" * 1_000_000, is_error=True))

    assert len(value(result)["error"]) <= BUDGET


def test_fifty_megabytes_are_for_a_thread() -> None:
    assert tool_results.needs_thread(ToolOutput("x" * 50_000_000))
    assert tool_results.needs_thread(ToolOutput({"a": [{"b": "x" * 300_000}]}))
    assert tool_results.needs_thread(ToolOutput({"rows": list(range(100_000))}))
    assert tool_results.needs_thread(ToolOutput(media=Media(b"x" * 300_000, "image/png")))
    assert not tool_results.needs_thread(ToolOutput("short"))
    assert not tool_results.needs_thread(ToolOutput({"a": "short"}))


def test_media_is_base64_and_only_its_text_counts() -> None:
    picture = b"\x89PNG" * 10_000
    media = Media(picture, "image/png", "y" * 20_000, attachment_file_id=UUID(int=4), attachment_name="shot.png")

    result = shape(ToolOutput(media=media))

    stored = value(result)
    assert result.result.is_media
    assert base64.b64decode(stored["data"]) == picture
    assert stored["mime_type"] == "image/png"
    assert len(stored["text"]) <= BUDGET
    assert (stored["attachment_file_id"], stored["attachment_name"]) == (str(UUID(int=4)), "shot.png")


def test_media_that_no_model_could_look_at_is_refused() -> None:
    with pytest.raises(UnusableOutput, match="at most"):
        shape(ToolOutput(media=Media(bytes(tool_results.MAX_MEDIA_BYTES + 1), "video/mp4")))


def test_the_value_beside_media_is_its_text() -> None:
    assert value(shape(ToolOutput("seen", media=Media(b"", "image/png"))))["text"] == "seen"
    assert value(shape(ToolOutput({"w": 1}, media=Media(b"", "image/png"))))["text"] == '{"w":1}'


def test_attachments_follow_the_result_and_malformed_ones_are_left_out() -> None:
    good = Attachment(UUID(int=1), "text/plain", "a\0.txt")
    bad: Any = [{"file_id": "x"}, Attachment("not an id", "text/plain"), Attachment(UUID(int=2), "")]  # type: ignore[arg-type]

    result = shape(ToolOutput("ok", attachments=(good, *bad)))

    assert result.files == (parts.File("text/plain", name="a\ufffd.txt", file_id=UUID(int=1)),)


@pytest.mark.parametrize("nonsense", [{"a": object()}, {1: {2: {3}}, "x": lambda: None}, {"n": 10**5000}])
def test_objects_that_are_no_json_are_refused(nonsense: Any) -> None:
    with pytest.raises(UnusableOutput):
        tool_results.shape(CALL, ToolOutput(nonsense), at=AT, max_bytes=BUDGET)


def test_a_nesting_without_end_is_refused() -> None:
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(5000):
        inner["a"] = {}
        inner = inner["a"]

    with pytest.raises(UnusableOutput):
        tool_results.shape(CALL, ToolOutput(deep), at=AT, max_bytes=BUDGET)


@pytest.mark.parametrize("nonsense", [None, {"a": 1}, "text"])
def test_invalid_output_is_refused(nonsense: Any) -> None:
    assert not tool_results.needs_thread(nonsense)
    with pytest.raises(UnusableOutput):
        tool_results.shape(CALL, nonsense, at=AT, max_bytes=BUDGET)


def test_metadata_of_the_provider_is_kept() -> None:
    assert shape(ToolOutput("x", provider_metadata={"raw": [1]})).result.provider_meta == {"raw": [1]}


# The batch as a whole


def sized(*sizes: int) -> list[CallResult]:
    return [shape(ToolOutput("x" * size), max_bytes=10**9) for size in sizes]


def sizes_of(done: tuple[CallResult, ...]) -> list[int]:
    return [len(bytes(each.result.result)) for each in done if isinstance(each.result.result, Raw)]


def test_the_budget_of_a_batch_is_its_share_of_the_window() -> None:
    assert tool_results.batch_budget_bytes(100_000, percent=60) == 180_000
    assert (
        tool_results.batch_budget_bytes(None, percent=60) == tool_results.batch_budget_bytes(0, percent=60) == 117_964
    )


def test_a_batch_that_fits_is_left_alone() -> None:
    done = sized(100, 5000)

    assert tool_results.cap_batch(done, 10_000) == tuple(done)


def test_the_largest_are_cut_first_and_small_ones_stay_whole() -> None:
    done = sized(100, 50_000, 2_000, 40_000)

    capped = tool_results.cap_batch(done, 20_000)

    assert sum(sizes_of(capped)) <= 20_000
    assert (capped[0], capped[2]) == (done[0], done[2])
    assert capped[1].is_truncated
    assert capped[3].is_truncated
    # The large results use the space that the small ones leave.
    assert min(sizes_of(capped)[1], sizes_of(capped)[3]) > 8_000


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=12), st.integers(10_000, 60_000))
def test_a_capped_batch_fits_and_nothing_small_was_touched(sizes: list[int], allowed: int) -> None:
    done = sized(*sizes)

    capped = tool_results.cap_batch(done, allowed)

    assert sum(sizes_of(capped)) <= allowed
    kept = [size for before, after, size in zip(done, capped, sizes_of(tuple(done)), strict=True) if after is before]
    cut = [size for before, after, size in zip(done, capped, sizes_of(tuple(done)), strict=True) if after is not before]
    assert not cut or max(kept, default=0) <= min(cut)


def test_escapes_count_when_a_batch_is_capped() -> None:
    quoted = shape(ToolOutput('"\n' * 20_000), max_bytes=10**9)

    (capped,) = tool_results.cap_batch([quoted], 10_000)

    assert 8_000 < sizes_of((capped,))[0] <= 10_000


def test_a_heap_of_results_is_cut_beside_the_loop() -> None:
    heap = sized(*[100_000] * 4)

    assert tool_results.is_capping_slow(heap, 50_000)
    assert not tool_results.is_capping_slow(heap, 500_000)  # nothing to cut
    assert not tool_results.is_capping_slow(sized(1_000), 500)


def test_media_does_not_count() -> None:
    picture = shape(ToolOutput(media=Media(b"x" * 100_000, "image/png")))

    assert tool_results.cap_batch([picture, *sized(50)], 1_000)[0] is picture
