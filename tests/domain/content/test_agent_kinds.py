"""Own kinds of subagents: the files that define them, and their rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.content import agent_kinds
from rookery.domain.content.agent_kinds import KindDefinition, KindProblem

FILE = """\
---
name: reviewer
description: Reviews a change and reports problems.
model: claude-opus
effort: high
tools: read_file, execute
read_only: true
max_minutes: 15
---
Read the diff first.
"""


def test_file_defines_a_kind() -> None:
    assert agent_kinds.read(FILE) == KindDefinition(
        name="reviewer",
        description="Reviews a change and reports problems.",
        prompt="Read the diff first.",
        model="claude-opus",
        reasoning_effort=Effort.HIGH,
        tools=("read_file", "execute"),
        read_only=True,
        max_minutes=15,
    )


@pytest.mark.parametrize("tools", ["read_file, execute", "[read_file, 'execute']", "\n- read_file\n- execute"])
def test_tools_are_a_list_or_one_text(tools: str) -> None:
    kind = agent_kinds.read(f"---\nname: a\ndescription: b\ntools: {tools}\n---\n")

    assert kind.tools == ("read_file", "execute")


def test_only_name_and_description_are_needed() -> None:
    kind = agent_kinds.read("---\nname: a\ndescription: b\n---\n")

    assert (kind.tools, kind.read_only, kind.max_minutes, kind.prompt) == (None, False, None, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no front matter", "does not begin with front matter"),
        ("---\ndescription: b\n---\n", "name"),
        ("---\nname: Big Name\ndescription: b\n---\n", "name"),
        ("---\nname: general\ndescription: b\n---\n", "built-in kind"),
        ("---\nname: a\n---\n", "description"),
        (f"---\nname: a\ndescription: {'x' * 2000}\n---\n", "description"),
        ("---\nname: a\ndescription: b\neffort: frantic\n---\n", "effort"),
        ("---\nname: a\ndescription: b\nread_only: perhaps\n---\n", "read_only"),
        ("---\nname: a\ndescription: b\nmax_minutes: -3\n---\n", "max_minutes"),
        ("---\nname: a\ndescription: b\nmax_minutes: 99999\n---\n", "max_minutes"),
        (f"---\nname: a\ndescription: b\ntools: {' '.join('t' + str(n) for n in range(100))}\n---\n", "tools"),
        (f"---\nname: a\ndescription: b\n---\n{'x' * 70_000}", "prompt"),
        ("---\nname: a\ndescription: b\ntools: {read_file: yes}\n---\n", "tools: this must be a list"),
        ("---\nname: a\ndescription: b\nread_only: [true]\n---\n", "read_only: this must be a text"),
        ("---\nname: a\ndescription: b\ntools: [x]\ntools: [y]\n---\n", "the field tools twice"),
    ],
)
def test_file_that_breaks_a_rule_names_it(text: str, problem: str) -> None:
    with pytest.raises(KindProblem, match=problem):
        agent_kinds.read(text)


@given(st.text(max_size=500))
def test_any_text_is_a_kind_or_has_a_problem(text: str) -> None:
    for file in (text, f"---\n{text}\n---\nbody", f"---\nname: a\ndescription: b\n{text}\n---\n"):
        try:
            assert agent_kinds.read(file).name not in agent_kinds.RESERVED
        except KindProblem:
            continue


def test_stored_kind_follows_the_same_rules() -> None:
    with pytest.raises(InvalidInput) as refused:
        agent_kinds.checked(KindDefinition(name="explore", description="b"))

    assert refused.value.field == "name"
