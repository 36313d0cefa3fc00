"""Commands of `execute` and their output, without running anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.tools import process_arguments
from rookery.tools.process_arguments import BadDuration
from rookery.workspaces.agent_messages import Truncated


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("sleep 5 &", ("sleep 5", True)),
        ("sleep 5&", ("sleep 5", True)),
        ("a && b", ("a && b", False)),
        ("a &&", ("a &&", False)),
        ("a |&", ("a |&", False)),
        ("a |& b", ("a |& b", False)),
        ("echo \\&", ("echo \\&", False)),
        ("a & b", ("a & b", False)),
        ("a & b &", ("a & b", True)),
    ],
)
def test_ampersand_at_the_end_means_background(command: str, expected: tuple[str, bool]) -> None:
    assert process_arguments.split_background(command) == expected


@pytest.mark.parametrize(
    ("command", "is_noted"),
    [("cat /etc/hosts", True), ("cat a b", True), ("cat a | wc", False), ("echo cat a", False), ("cat", False)],
)
def test_command_that_only_prints_files_gets_a_note(command: str, is_noted: bool) -> None:
    assert (process_arguments.hint_for(command) is not None) is is_noted


@given(st.text(max_size=400), st.integers(120, 300))
def test_view_is_never_longer_than_its_limit_and_keeps_both_ends(text: str, limit: int) -> None:
    view = process_arguments.view(text, max_bytes=limit)

    data = view.text.encode()
    assert len(data) <= limit
    if len(text.encode()) <= limit:
        assert view.text == text
        return
    assert view.truncated is not None
    head, _, rest = view.text.partition("\n... [")
    tail = rest.partition("] ...\n")[2]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert tail
    assert view.truncated.original_bytes == view.truncated.retained_bytes + view.truncated.omitted_bytes


def test_view_of_a_megabyte_ends_with_the_last_line() -> None:
    text = "".join(f"line {number}\n" for number in range(100_000))

    view = process_arguments.view(text)

    assert len(view.text.encode()) <= 32 * 1024
    assert view.text.endswith("line 99999\n")
    assert view.text.startswith("line 0\n")


def test_bytes_omitted_by_the_agent_are_counted() -> None:
    reported = Truncated(original_bytes=1_000_000, retained_bytes=100, omitted_bytes=999_900)

    assert process_arguments.view("x" * 100, reported).truncated == reported
    again = process_arguments.view("x" * 40_000, reported).truncated
    assert again is not None
    assert again.original_bytes == 1_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("90", 90), (7, 7), ("1.5h", 5400), (" 10S ", 10)],
)
def test_durations_are_read_as_models_write_them(text: str | float, seconds: float) -> None:
    assert process_arguments.parse_duration(text, field="timeout") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "0s", "-5s", "5 minutes", "s", "5x", "nan", "inf", "1h 30m", "1e3"])
def test_invalid_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadDuration, match="1h30m"):
        process_arguments.parse_duration(text, field="timeout")


def test_zero_is_a_snapshot_where_it_may_be() -> None:
    assert process_arguments.parse_duration("0s", field="wait_timeout", may_be_zero=True) == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250ms"), (1.5, "1.5s"), (65, "1m5s"), (5400, "1h30m"), (10, "10s")]
)
def test_durations_are_shown_short(seconds: float, text: str) -> None:
    assert process_arguments.format_duration(seconds) == text
