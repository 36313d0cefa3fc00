"""Skills: instructions for certain tasks, in files with front matter that has their name and description."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from rookery.domain.content import front_matter, invisible_characters
from rookery.domain.content.front_matter import FrontMatterProblem

PERSONAL, WORKSPACE = "personal", "workspace"
MAX_NAME_BYTES = 256
MAX_DESCRIPTION_BYTES = 4096
MAX_BODY_BYTES = 64 * 1024

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class SkillFile(msgspec.Struct, frozen=True):
    """A valid SKILL.md. `directory` is the folder with its other files in the workspace."""

    name: str
    description: str
    body: str
    source: str
    directory: str | None = None


class SkillProblem(ValueError):
    """Raised if a file is not a valid skill. The message is shown in the list of context resources."""


class AmbiguousSkill(LookupError):
    def __init__(self, name: str) -> None:
        super().__init__(f"There are two skills named {name}. Ask for {PERSONAL}/{name} or for {WORKSPACE}/{name}.")


class NoSuchSkill(LookupError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        offer = f" There are: {', '.join(known)}." if known else ""
        super().__init__(f"There is no skill {name}.{offer}")


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and len(name) <= MAX_NAME_BYTES


def read(text: str, *, folder: str) -> tuple[str, str, str]:
    """Return name, description and body of a SKILL.md in this folder. Raises `SkillProblem`."""
    try:
        fields, body = front_matter.read(text)
        name = (fields.text("name") or "").strip()
        description = " ".join(invisible_characters.clean(fields.text("description") or "").split())
    except FrontMatterProblem as error:
        raise SkillProblem(str(error)) from None
    if not is_name(name):
        raise SkillProblem("Its name is not of the form lowercase-with-hyphens.")
    if name != folder:
        raise SkillProblem(f"Its name is {name}, but its folder is {folder}.")
    return name, description[:MAX_DESCRIPTION_BYTES], body_text(body)


def body_text(text: str) -> str:
    """Return the instructions for a model: without front matter, comments and invisible characters."""
    return invisible_characters.clean_markdown(front_matter.split(text)[1])


def aliases(skills: Iterable[SkillFile]) -> dict[str, SkillFile]:
    """Return the skills by the name in the index. The source is part of it only if two skills have the same name."""
    found = list(skills)
    times: dict[str, int] = {}
    for skill in found:
        times[skill.name] = times.get(skill.name, 0) + 1
    return {f"{skill.source}/{skill.name}" if times[skill.name] > 1 else skill.name: skill for skill in found}


def find(skills: Sequence[SkillFile], name: str) -> SkillFile:
    """Return a skill by its name, or by source and name. Raises `NoSuchSkill` or `AmbiguousSkill`."""
    wanted = name.strip()
    source, _, bare = wanted.rpartition("/")
    matching = [skill for skill in skills if skill.name == bare and source in ("", skill.source)]
    if not matching:
        raise NoSuchSkill(wanted, sorted(aliases(skills)))
    if len(matching) > 1:
        raise AmbiguousSkill(bare)
    return matching[0]
