"""Lines of files as models read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.workspaces.agent import file_lines
from rookery.workspaces.agent.file_lines import Window


def read(path: Path, **window: int) -> dict[str, Any]:
    return file_lines.read(str(path), Window(**window))


def test_lines_carry_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\r\n\ttwo\nthree")

    assert read(path) == {
        "ok": True,
        "content": "1\tone\n2\t\ttwo\n3\tthree",
        "file_size": 15,
        "total_lines": 3,
        "lines_read": 3,
    }


def test_final_newline_adds_no_line_and_an_empty_file_has_none(tmp_path: Path) -> None:
    ended, empty = tmp_path / "ended", tmp_path / "empty"
    ended.write_text("a\nb\n")
    empty.write_text("")

    assert (read(ended)["total_lines"], read(ended)["content"]) == (2, "1\ta\n2\tb")
    assert (read(empty)["total_lines"], read(empty)["content"], read(empty)["ok"]) == (0, "", True)


def test_offset_and_limit_choose_a_window_that_says_where_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("".join(f"line {n}\n" for n in range(1, 11)))

    window = read(path, offset=3, limit=2)

    assert (window["content"], window["next_offset"], window["truncated"]) == ("3\tline 3\n4\tline 4", 5, True)
    assert "next_offset" not in read(path, offset=9, limit=2)
    assert read(path, offset=-5, limit=1)["content"] == "1\tline 1"


@pytest.mark.parametrize(
    ("text", "offset", "count"),
    [("a\nb\n", 3, "2 lines"), ("a\nb", 9, "2 lines"), ("a", 2, "1 line"), ("", 2, "0 lines")],
)
def test_offset_beyond_the_end_names_the_number_of_lines(tmp_path: Path, text: str, offset: int, count: str) -> None:
    path = tmp_path / "f"
    path.write_text(text)

    answer = read(path, offset=offset)

    assert not answer["ok"]
    assert answer["error"].endswith(f"which has {count}.")


def test_reading_stops_when_the_room_is_full_and_goes_on_there(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("".join(f"{n} {'x' * 500}\n" for n in range(1, 301)))

    seen: list[str] = []
    offset: int | None = 1
    while offset is not None:
        answer = read(path, offset=offset)
        assert len(answer["content"].encode()) <= 32 * 1024
        seen += answer["content"].split("\n")
        offset = answer.get("next_offset")

    assert [line.split("\t")[0] for line in seen] == [str(n) for n in range(1, 301)]


def test_long_line_is_cut_on_a_character(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("ä" * 1000 + "\n" + "b" * 1024 + "\n" + "€" * 400)

    content = read(path)["content"].split("\n")

    assert content[0] == "1\t" + "ä" * 512 + "... [truncated]"
    assert content[1] == "2\t" + "b" * 1024
    assert content[2] == "3\t" + "€" * 341 + "... [truncated]"
    assert read(path)["truncated"]


def test_at_most_two_thousand_lines(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("x\n" * 3000)

    answer = read(path, limit=9999)

    assert (answer["lines_read"], answer["next_offset"], answer["total_lines"]) == (2000, 2001, 3000)


def test_bytes_that_are_not_utf8_are_shown_as_such(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"na\xefve\n")

    assert read(path)["content"] == "1\tna\ufffdve"


def test_binary_is_refused_with_size_and_type(tmp_path: Path) -> None:
    picture, other = tmp_path / "a.bin", tmp_path / "b"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00")
    other.write_bytes(b"\x01\x00")

    assert read(picture)["error"].endswith("is not text: 10 bytes of image/png.")
    assert read(other)["error"].endswith("is not text: 2 bytes of an unknown type.")


def test_huge_file_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.truncate(file_lines.MAX_FILE_BYTES + 1)

    assert "grep, sed or awk" in read(path)["error"]


def test_special_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    assert read(tmp_path)["error"] == f"{tmp_path} is a directory, not a file."
    assert read(tmp_path / "no")["error"] == f"{tmp_path / 'no'} does not exist."
    assert read(pipe)["error"] == f"{pipe} is not a regular file."
    assert "relative path" in file_lines.read("x/y", Window())["error"]
    assert "is not a directory" in read(Path("/dev/null/x"))["error"]


@given(
    text=st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xc3\xa4", b"\xff", b"xyz" * 4]), max_size=60),
    offset=st.integers(1, 12),
    limit=st.integers(1, 6),
)
def test_any_window_is_a_part_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, text: list[bytes], offset: int, limit: int
) -> None:
    data = b"".join(text)
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    pieces = data.split(b"\n")
    whole = pieces if pieces[-1] else pieces[:-1]

    answer = read(path, offset=offset, limit=limit, max_line_bytes=8)

    if offset > max(len(whole), 1):
        assert not answer["ok"]
        return
    shown = answer["content"].split("\n") if answer["lines_read"] else []
    assert answer["total_lines"] == len(whole)
    assert [line.split("\t")[0] for line in shown] == [
        str(number) for number in range(offset, min(offset + limit, len(whole) + 1))
    ]
    for line in shown:
        number, _, body = line.partition("\t")
        terminated = int(number) < len(pieces)
        raw = whole[int(number) - 1]
        content = raw[:-1] if terminated and raw.endswith(b"\r") else raw
        if len(content) <= 8:
            assert body == content.decode("utf-8", "replace")
        else:
            assert content.decode("utf-8", "replace").startswith(body.removesuffix(file_lines.CUT))
            assert body.endswith(file_lines.CUT)
