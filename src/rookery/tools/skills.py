"""The tools read_skill and read_skill_file: instructions for certain tasks, provided by the workspace.

The instructions come from the captured context, so they can be read while the workspace is stopped. Other files of a
skill are read from the workspace.
"""

from __future__ import annotations

import posixpath
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rookery.domain.content import skills
from rookery.domain.content.skills import AmbiguousSkill, NoSuchSkill, SkillFile
from rookery.loop.tool import Tool, ToolContext, ToolOutput
from rookery.telemetry.log import get_logger
from rookery.tools.step_workspace import Refused, StepContext, ask_agent, make_tool, step_of

log = get_logger("tools.skills")

MAX_FILE_BYTES = 512 * 1024
LIST_SECONDS = 10.0


class ReadSkill(msgspec.Struct):
    name: Annotated[str, Meta(description="The skill as it is listed.")]


class ReadSkillFile(msgspec.Struct):
    name: Annotated[str, Meta(description="The skill as it is listed.")]
    path: Annotated[str, Meta(description="A file of the skill, relative to its folder.")]


def read_skill_tool() -> Tool:
    return make_tool(
        "read_skill",
        "Load the instructions of a skill that is listed in available-skills, before you do what it is for.",
        arguments=ReadSkill,
        handler=read_skill,
        read_only=True,
    )


def read_skill_file_tool() -> Tool:
    return make_tool(
        "read_skill_file",
        "Read a file that belongs to a skill, as listed by read_skill.",
        arguments=ReadSkillFile,
        handler=read_skill_file,
        read_only=True,
        needs_workspace=True,
    )


async def read_skill(ctx: ToolContext, given: ReadSkill) -> ToolOutput:
    step = step_of(ctx)
    skill = _find(step, given.name)
    value: dict[str, Any] = {"name": skill.name, "body": skill.body, "files": await _files(ctx, step, skill)}
    if skill.directory is not None:
        value["dir"] = skill.directory
    return ToolOutput(value)


async def read_skill_file(ctx: ToolContext, given: ReadSkillFile) -> ToolOutput:
    step = step_of(ctx)
    skill = _find(step, given.name)
    path = _inside(given.path)
    if skill.directory is None:
        raise Refused(f"The skill {skill.name} has no files besides its instructions.")
    place = posixpath.join(skill.directory, path)
    data = await ask_agent(step.workspace, lambda conn: conn.read_bytes(place, max_bytes=MAX_FILE_BYTES))
    return ToolOutput({"content": data.decode("utf-8", "replace")})


def _find(step: StepContext, name: str) -> SkillFile:
    try:
        return skills.find(step.skills, name)
    except (NoSuchSkill, AmbiguousSkill) as error:
        raise Refused(str(error)) from error


def _inside(path: str) -> str:
    """Return the path if it is relative and has no hidden or empty components. Raise `Refused` otherwise."""
    wanted = path.strip()
    pieces = wanted.split("/")
    if not wanted or wanted.startswith("/") or "\\" in wanted or "\0" in wanted:
        raise Refused(f"The path {path!r} cannot be used: give one relative to the skill's folder.")
    if any(piece.startswith(".") or not piece for piece in pieces):
        raise Refused(f"The path {path!r} cannot be used: no part of it may be empty or begin with a dot.")
    return wanted


async def _files(ctx: ToolContext, step: StepContext, skill: SkillFile) -> list[str]:
    """Return the other files of the skill's folder; an empty list if the workspace does not respond."""
    directory = skill.directory
    if directory is None or step.workspace.workspace_id is None:
        return []
    try:
        async with ctx.clock.deadline(LIST_SECONDS, "skill-files"):
            listing = await ask_agent(step.workspace, lambda conn: conn.list_dir(directory))
    except Exception as error:
        log.info("skill_files_unknown", chat_id=step.chat_id, skill=skill.name, error=str(error))
        return []
    names = [f"{entry.name}/" if entry.is_dir else entry.name for entry in listing.entries]
    return [name for name in names if not name.startswith(".") and name != "SKILL.md"]
