from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.content.shell_programs import parsed_commands


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("ls -la /tmp", (("ls", "/tmp"),)),
        ("cd x && FOO=1 /usr/bin/git status | wc -l", (("cd", "x"), ("git", "status"), ("wc",))),
        ("make 2>&1 | tail", (("make",), ("tail",))),
        ("a; b > out.txt", (("a",), ("b",))),
        ("if true; then echo hi; fi", (("true",), ("echo", "hi"))),
        ("pytest -q\ngit diff", (("pytest",), ("git", "diff"))),
        ("grep 'a && b' file", (("grep", "a && b"),)),
    ],
)
def test_programs_of_a_command_are_named(text: str, commands: tuple[tuple[str, ...], ...]) -> None:
    assert parsed_commands(text) == commands


@pytest.mark.parametrize("text", ["echo 'a", "for i in 1; do ls; done", "echo $(date)", "cat <<E\nx\nE", "", "  "])
def test_unclear_commands_are_left_out(text: str) -> None:
    assert parsed_commands(text) is None


@given(st.text(max_size=200))
def test_any_text_is_taken(text: str) -> None:
    found = parsed_commands(text)

    assert found is None or all(1 <= len(command) <= 2 for command in found)
