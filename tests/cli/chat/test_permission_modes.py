"""The names and the order of permission modes in the terminal."""

from __future__ import annotations

import pytest

from rookery.cli.chat import permission_modes


@pytest.mark.parametrize("typed", ["read-only", "Read only", "read_only", " READ  ONLY "])
def test_mode_is_found_however_it_is_written(typed: str) -> None:
    assert permission_modes.named(typed) == "read_only"


@pytest.mark.parametrize("typed", ["readonly", "plan", "", "ask me"])
def test_other_words_are_no_mode(typed: str) -> None:
    assert permission_modes.named(typed) is None


def test_key_goes_through_all_modes() -> None:
    seen = ["auto"]
    while (following := permission_modes.following(seen[-1])) not in seen:  # type: ignore[arg-type]
        seen.append(following)

    assert seen == ["auto", "read_only", "ask"]


def test_current_mode_is_marked() -> None:
    assert [line for line in permission_modes.lines("read_only") if line.startswith("*")] == [
        "* read-only  the agent can only read"
    ]
