"""Skill files: their front matter, their names, and how they are found."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.content import skills
from rookery.domain.content.skills import AmbiguousSkill, NoSuchSkill, SkillFile, SkillProblem


@pytest.mark.parametrize(
    ("head", "description"),
    [
        ("name: deploy\ndescription: Ship it", "Ship it"),
        ("name: deploy\r\ndescription: 'It''s \"fine\"'\r\n", 'It\'s "fine"'),
        ('name: "deploy"\ndescription: "a\\tb"', "a b"),
        ("name: deploy\ndescription: >-\n  Ship\n  it\nlicense: MIT", "Ship it"),
        ("description: |\n  Ship\n  it\nname: deploy", "Ship it"),
        ("name: deploy # comment\ndescription: Ship\n  it", "Ship it"),
        ("name: deploy\nmetadata:\n  name: other\n  x: [1, 2]", ""),
        ("name: deploy\nmetadata: {description: other}\n? [complex, key]\n: x\ndescription: 2026-01-02", "2026-01-02"),
        ("name: deploy\ndescription: !!python/object/apply:os.getcwd 'Ship it'", "Ship it"),
    ],
)
def test_head_of_a_skill_is_read(head: str, description: str) -> None:
    name, found, body = skills.read(f"---\n{head}\n---\n\n# Deploy\n<!-- no -->Run it.\n", folder="deploy")

    assert (name, found) == ("deploy", description)
    assert body == "# Deploy\nRun it."


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# Deploy", "front matter"),
        ("---\nname: deploy\n", "front matter"),
        ("---\nname: Deploy It\n---\n", "lowercase"),
        ("---\nname: other\n---\n", "folder"),
        ("---\ndescription: x\n---\n", "lowercase"),
        ("---\n---\n", "lowercase"),
        ("---\nname: deploy\ndescription: Use when: asked\n---\n", "not valid YAML in line 2: .* needs quotes"),
        ("---\nname: deploy\ndescription: [a, b]\n---\n", "description: this must be a text"),
    ],
)
def test_file_that_is_no_skill_says_why(text: str, problem: str) -> None:
    with pytest.raises(SkillProblem, match=problem):
        skills.read(text, folder="deploy")


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    for each in (text, f"---\n{text}\n---\nbody"):
        with contextlib.suppress(SkillProblem):
            assert skills.read(each, folder="deploy")[0] == "deploy"


def skill(name: str, source: str) -> SkillFile:
    return SkillFile(name, "", "", source)


def test_name_in_both_sources_needs_its_source() -> None:
    own, shared, other = skill("deploy", "personal"), skill("deploy", "workspace"), skill("test", "workspace")
    known = [own, shared, other]

    assert set(skills.aliases(known)) == {"personal/deploy", "workspace/deploy", "test"}
    assert skills.find(known, "personal/deploy") is own
    assert skills.find(known, "workspace/deploy") is shared
    assert skills.find(known, "workspace/test") is other
    assert skills.find(known, " test ") is other
    with pytest.raises(AmbiguousSkill, match="personal/deploy or for workspace/deploy"):
        skills.find(known, "deploy")
    with pytest.raises(NoSuchSkill, match="There are: personal/deploy, test, workspace/deploy"):
        skills.find(known, "build")
    with pytest.raises(NoSuchSkill):
        skills.find(known, "personal/test")
