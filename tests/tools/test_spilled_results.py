"""Spilled results: what is stored, and the path that the model is given."""

from __future__ import annotations

import pytest

from rookery.loop.tool import ToolOutput
from rookery.tools import spilled_results

FILE = "/home/agent/.rookery/results/call_1"


@pytest.mark.parametrize(
    ("value", "file"),
    [
        ({"output": "x", "truncated": {"omitted_bytes": 9, "file": FILE}}, FILE),
        ({"output": "x", "truncated": {"file": "/etc/passwd"}}, None),
        ({"content": "x", "truncated": True}, None),
        ({"truncated": {"file": 5}}, None),
        ("text", None),
    ],
)
def test_only_files_of_results_are_taken_for_the_whole(value: dict[str, object] | str, file: str | None) -> None:
    assert spilled_results.own_file(ToolOutput(value)) == file


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\xff", b"\xff"),
        ("text", b"text"),
        ({"output": "most of it " * 9, "n": 1}, b"most of it " * 9),
        ({"a": "x", "b": "y"}, b'{\n "a": "x",\n "b": "y"\n}'),
    ],
)
def test_kept_result_can_be_read_by_lines(value: dict[str, object] | str | bytes, text: bytes) -> None:
    assert spilled_results.as_text(ToolOutput(value)) == text
