"""Skills: instructions for certain tasks, in files whose front matter names and describes them.

The front matter reader supports the part of YAML that such files use (`name: text`, quotes, folded and literal blocks).
Everything else is ignored, and nothing is ever evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rookery.domain.content import prompt_text

PERSONAL, WORKSPACE = "personal", "workspace"
MAX_NAME_BYTES = 256
MAX_DESCRIPTION_BYTES = 4096
MAX_BODY_BYTES = 64 * 1024

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FENCE = re.compile(r"---[ \t]*\n")
_FENCE_END = re.compile(r"^---[ \t]*$\n?", re.MULTILINE)
_KEY = re.compile(r"(?P<key>[A-Za-z_][\w-]*):(?:[ \t]+(?P<value>.*))?")
_BLOCK = re.compile(r"[|>][+-]?\d?")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "/": "/", "r": "\r", "0": "\0"}


class SkillFile(msgspec.Struct, frozen=True):
    """A valid SKILL.md. `directory` is the folder of its other files, in the workspace."""

    name: str
    description: str
    body: str
    source: str
    directory: str | None = None


class SkillProblem(ValueError):
    """The reason why a file is not a skill, for the list of what a workspace offers."""


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
    """Return name, description and body of a SKILL.md in this folder, or a `SkillProblem` if it cannot be used."""
    head, body = split_front_matter(text)
    if head is None:
        raise SkillProblem("It does not begin with front matter (--- name: ... ---).")
    name = head.get("name", "").strip()
    if not is_name(name):
        raise SkillProblem("Its name is not of the form lower-case-with-hyphens.")
    if name != folder:
        raise SkillProblem(f"Its name is {name}, but its folder is {folder}.")
    description = " ".join(prompt_text.clean(head.get("description", "")).split())
    return name, description[:MAX_DESCRIPTION_BYTES], body_text(body)


def body_text(text: str) -> str:
    """Return the instructions for a model: without front matter, comments and invisible characters."""
    return prompt_text.clean_markdown(split_front_matter(text)[1])


def split_front_matter(text: str) -> tuple[Mapping[str, str] | None, str]:
    """Return the front matter and the rest. Unclosed front matter counts as body."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not (begin := _FENCE.match(text)) or not (end := _FENCE_END.search(text, begin.end())):
        return None, text
    return _fields(text[begin.end() : end.start()]), text[end.end() :]


def aliases(skills: Iterable[SkillFile]) -> dict[str, SkillFile]:
    """Return the skills by listed name: the bare name where only one source has it."""
    found = list(skills)
    times: dict[str, int] = {}
    for skill in found:
        times[skill.name] = times.get(skill.name, 0) + 1
    return {f"{skill.source}/{skill.name}" if times[skill.name] > 1 else skill.name: skill for skill in found}


def find(skills: Sequence[SkillFile], name: str) -> SkillFile:
    """Return a skill by bare or qualified name. Raises `NoSuchSkill` or `AmbiguousSkill`."""
    wanted = name.strip()
    source, _, bare = wanted.rpartition("/")
    matching = [skill for skill in skills if skill.name == bare and source in ("", skill.source)]
    if not matching:
        raise NoSuchSkill(wanted, sorted(aliases(skills)))
    if len(matching) > 1:
        raise AmbiguousSkill(bare)
    return matching[0]


def _fields(head: str) -> dict[str, str]:
    lines = head.split("\n")
    fields: dict[str, str] = {}
    place = 0
    while place < len(lines):
        found = _KEY.fullmatch(lines[place].rstrip())
        place += 1
        if found is None:
            continue
        value = (found["value"] or "").strip()
        if value and not _BLOCK.fullmatch(value):
            more, place = _indented(lines, place)
            fields[found["key"]] = _scalar(" ".join((value, *(line.strip() for line in more if line.strip()))))
            continue
        block, place = _indented(lines, place)
        joiner = "\n" if value.startswith("|") else " "
        fields[found["key"]] = joiner.join(line.strip() for line in block).strip()
    return fields


def _indented(lines: Sequence[str], place: int) -> tuple[list[str], int]:
    start = place
    while place < len(lines) and (not lines[place].strip() or lines[place][0] in " \t"):
        place += 1
    return list(lines[start:place]), place


def _scalar(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), value[1:-1])
    return re.split(r"\s#", value, maxsplit=1)[0].strip()
