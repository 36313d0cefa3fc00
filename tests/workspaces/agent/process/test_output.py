"""The output of a process in bounded memory, compared with a model for any bytes in any pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.workspaces.agent.process import output as outputs
from rookery.workspaces.agent.process.output import HEAD_BYTES, LINE_BYTES, LINE_SUFFIX, TAIL_BYTES, Output

WORDS = st.sampled_from([b"a", b"line\n", "€".encode(), "\U0001f426".encode(), b"\xff", b"\n", b"\x00", b"x" * 30])
PIECES = st.lists(st.lists(WORDS, max_size=40).map(b"".join), max_size=12)


HEAD, TAIL, VIEW, LINE, SMALL = 64, 256, 200, 20, 50


@contextlib.contextmanager
def small_buffers() -> Iterator[None]:
    """Make the buffers so small that a few words overflow them, for rules that hold for any size."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("HEAD", HEAD), ("TAIL", TAIL), ("VIEW", VIEW), ("LINE", LINE), ("SMALL", SMALL)):
            patch.setattr(outputs, f"{name}_BYTES", size)
        yield


def filled(pieces: list[bytes]) -> Output:
    output = Output()
    for piece in pieces:
        output.append(piece)
    return output


@settings(max_examples=150, deadline=None)
@given(PIECES, st.booleans())
def test_view_is_short_valid_text_that_ends_as_the_output_does(pieces: list[bytes], ended: bool) -> None:
    data = b"".join(pieces)

    with small_buffers():
        output = filled(pieces)
        view = output.view(ended=ended)

    assert len(view.text.encode()) <= VIEW
    assert output.total == len(data)
    assert output.held <= HEAD + TAIL
    if view.truncated is None and ended:
        assert view.text == data.decode("utf-8", "replace")
    if view.truncated is not None:
        assert view.truncated["original_bytes"] == len(data)
        assert view.truncated["retained_bytes"] + view.truncated["omitted_bytes"] == len(data)
    last_line = data.rpartition(b"\n")[2].decode("utf-8", "replace")
    if ended and len(last_line.encode()) <= LINE:
        assert view.text.endswith(last_line)


@settings(max_examples=150, deadline=None)
@given(PIECES)
def test_memory_grows_and_shrinks_by_what_it_says(pieces: list[bytes]) -> None:
    with small_buffers():
        output = Output()
        grown = sum(output.append(piece) for piece in pieces)
        before = output.held
        shrunk = output.shrink()

    assert grown == before <= HEAD + TAIL
    assert before - shrunk == output.held <= 2 * SMALL


@settings(max_examples=150, deadline=None)
@given(PIECES)
def test_follower_sees_every_byte_once_or_is_told_of_a_gap(pieces: list[bytes]) -> None:
    """A reader after each piece gets the whole text; there is no gap while the pieces fit the buffer."""
    with small_buffers():
        output = Output()
        cursor, seen, gaps = 0, "", 0
        for piece in pieces:
            output.append(piece)
            got = output.after(cursor, ended=False)
            assert output.has_more(cursor) == bool(got.text)
            seen, gaps, cursor = seen + got.text, gaps + got.gap, got.cursor
        rest = output.after(cursor, ended=True)
        seen, gaps = seen + rest.text, gaps + rest.gap

    assert rest.cursor == output.total
    if all(len(piece) < TAIL - 4 for piece in pieces):
        assert gaps == 0
    if gaps == 0:
        assert seen == b"".join(pieces).decode("utf-8", "replace")


def test_whole_output_has_no_marker_where_head_and_tail_meet() -> None:
    text = b"".join(b"%05d\n" % number for number in range(3000))
    output = filled([text[:10_000], text[10_000:]])

    assert output.view(ended=True).text == text.decode()


def test_both_ends_are_there_with_a_marker_between_them() -> None:
    output = filled([b"%07d\n" % number for number in range(100_000)])

    view = output.view(ended=True)

    assert view.text.startswith("0000000\n0000001\n")
    assert view.text.endswith("0099998\n0099999\n")
    assert view.truncated is not None
    assert f"[... {view.truncated['omitted_bytes']} bytes omitted ...]" in view.text


def test_shrunk_output_still_shows_both_ends() -> None:
    output = filled([b"%07d\n" % number for number in range(100_000)])
    before = output.view(ended=True).text

    output.shrink()
    after = output.view(ended=True).text

    assert output.held == 2 * outputs.SMALL_BYTES
    assert (after[:10_000], after[-10_000:]) == (before[:10_000], before[-10_000:])


@pytest.mark.parametrize("length", [LINE_BYTES - 1, LINE_BYTES, LINE_BYTES + 1, 10_000])
def test_long_lines_are_cut_with_a_suffix(length: int) -> None:
    output = filled([b"before\n" + b"x" * length + b"\nafter\n"])

    lines = output.view(ended=True).text.split("\n")

    assert (lines[0], lines[2]) == ("before", "after")
    suffix = (LINE_SUFFIX % b"").decode()
    assert lines[1].endswith(suffix) == (length > LINE_BYTES)
    assert len(lines[1].removesuffix(suffix)) == min(length, LINE_BYTES)


def test_character_that_is_not_whole_yet_is_held_back() -> None:
    output = filled(["abc€".encode()[:-1]])

    assert output.view(ended=False).text == "abc"
    assert output.after(0, ended=False) == outputs.Piece("abc", 3, 0)
    assert not output.has_more(3)
    assert output.view(ended=True).text == "abc�"
    output.append("€".encode()[-1:])
    assert output.after(3, ended=False).text == "€"


def test_cursor_in_dropped_bytes_gives_the_tail_and_the_gap() -> None:
    output = filled([b"x" * HEAD_BYTES, b"y" * 1000, b"z" * TAIL_BYTES])

    piece = output.after(10, ended=True)

    assert (piece.gap, piece.cursor) == (HEAD_BYTES + 1000 - 10, output.total)
    assert piece.text == "z" * TAIL_BYTES
