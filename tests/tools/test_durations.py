from __future__ import annotations

import pytest

from rookery.tools import durations
from rookery.tools.durations import BadDuration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("90", 90), (7, 7), ("1.5h", 5400), (" 10S ", 10)],
)
def test_durations_are_read_as_models_write_them(text: str | float, seconds: float) -> None:
    assert durations.parse(text, field="timeout") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "0s", "-5s", "5 minutes", "s", "5x", "nan", "inf", "1h 30m", "1e3"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadDuration, match="1h30m"):
        durations.parse(text, field="timeout")


def test_zero_is_a_snapshot_where_it_may_be() -> None:
    assert durations.parse("0s", field="wait_timeout", may_be_zero=True) == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250ms"), (1.5, "1.5s"), (65, "1m5s"), (5400, "1h30m"), (10, "10s")]
)
def test_durations_are_shown_short(seconds: float, text: str) -> None:
    assert durations.shown(seconds) == text
