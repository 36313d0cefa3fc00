"""The file tools: read_file, write_file, edit_files. The workspace agent reads and writes the files.

This module enforces the rules for plan files, because the agent does not know which turns are planning turns.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.parts import Json
from rookery.domain.content import uploads
from rookery.loop.tool import Media, Replay, Tool, ToolContext, ToolOutput
from rookery.tools.step_workspace import Refused, StepContext, absolute, ask_agent, make_tool, step_of, with_warning
from rookery.workspaces.agent_messages import Edit, FileEdits

MAX_WRITE_BYTES = 16 * 1024 * 1024
# The largest image that providers accept.
MAX_IMAGE_BYTES = 5 * 1024 * 1024
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_MEDIA_TYPES = frozenset({uploads.PNG, uploads.JPEG, uploads.GIF, uploads.WEBP})
_PLAN_NAME = "plan.md"
NOTHING_CHANGED = "Nothing was changed."

Path = Annotated[str, Meta(description="Absolute path in the workspace.")]


class ReadFile(msgspec.Struct):
    path: Path
    offset: Annotated[int, Meta(description="First line to read, counted from 1.")] = 1
    limit: Annotated[int, Meta(description="How many lines to read; 2000 at most.")] | None = None


class WriteFile(msgspec.Struct):
    path: Path
    content: Annotated[str, Meta(description="The whole new content of the file.")]


class EditText(msgspec.Struct):
    old_text: Annotated[
        str, Meta(description="Text to replace, copied from the file, with enough context to occur once.")
    ]
    new_text: Annotated[str, Meta(description="What stands there instead; empty to remove it.")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence.")] = False
    exact: Annotated[bool, Meta(description="Match byte for byte, without tolerance for indentation.")] = False


class EditFile(msgspec.Struct):
    path: Path
    edits: Annotated[list[EditText], Meta(description="Applied in order, each to the result of the one before.")]


class EditFiles(msgspec.Struct):
    files: list[EditFile]


def tools() -> list[Tool]:
    return [
        make_tool(
            "read_file",
            "Read a text file of the workspace, or look at an image. Lines come numbered, at most 2000 or 32 KiB at "
            "once; next_offset says where to go on. Use execute with grep, sed or ls for everything else.",
            arguments=ReadFile,
            handler=read_file,
            needs_workspace=True,
            read_only=True,
        ),
        make_tool(
            "write_file",
            "Create a file in the workspace or replace it as a whole. Parent directories are made. To change parts of "
            "an existing file use edit_files.",
            arguments=WriteFile,
            handler=write_file,
            needs_workspace=True,
            replay=Replay.TOKEN,
        ),
        make_tool(
            "edit_files",
            "Change parts of one or several files at once. Each old_text must be found exactly once unless replace_all "
            "is set; when one edit fails, nothing is changed. The result shows the difference.",
            arguments=EditFiles,
            handler=edit_files,
            amend=_with_known_names,
            needs_workspace=True,
            replay=Replay.TOKEN,
        ),
    ]


async def read_file(ctx: ToolContext, given: ReadFile) -> ToolOutput:
    path = absolute(given.path)
    workspace = step_of(ctx).workspace
    if path.lower().endswith(_IMAGES) and (image := await _read_image(ctx, path)) is not None:
        return image
    offset, limit = max(given.offset, 1), None if given.limit is None else max(given.limit, 1)
    lines = await ask_agent(workspace, lambda conn: conn.read_lines(path, offset, limit))
    if not lines.ok:
        raise Refused(lines.error or f"{path} cannot be read.")
    value: dict[str, Any] = {
        "content": lines.content,
        "file_size": lines.file_size,
        "total_lines": lines.total_lines,
        "lines_read": lines.lines_read,
    }
    if lines.truncated:
        value["truncated"] = True
    if lines.next_offset is not None:
        value["next_offset"] = lines.next_offset
    return ToolOutput(value)


async def _read_image(ctx: ToolContext, path: str) -> ToolOutput | None:
    """Return the image for the model, or None if the bytes are not an image. The file name does not count."""
    data = await ask_agent(step_of(ctx).workspace, lambda conn: conn.read_bytes(path, max_bytes=MAX_IMAGE_BYTES + 1))
    media_type = uploads.detected_type(data, name=posixpath.basename(path))
    if media_type not in _MEDIA_TYPES:
        return None
    if len(data) > MAX_IMAGE_BYTES:
        raise Refused(f"{path} is larger than {MAX_IMAGE_BYTES} bytes. Make a smaller copy and read that.")
    try:
        uploads.checked_type(data, name="image", declared=None)
    except InvalidInput as error:
        raise Refused(str(error)) from error
    media = Media(data, media_type, text=f"{path}: {media_type}, {len(data)} bytes")
    return ToolOutput(media.text, media=media)


async def write_file(ctx: ToolContext, given: WriteFile) -> ToolOutput:
    step, path = step_of(ctx), given.path.strip()
    data = given.content.encode("utf-8", "replace")
    if len(data) > MAX_WRITE_BYTES:
        raise Refused(f"The content has {len(data)} bytes; at most {MAX_WRITE_BYTES} can be written at once.")
    await check_target(step, path)
    path = absolute(path)
    links = not step.is_planning
    written = await ask_agent(
        step.workspace, lambda conn: conn.write_file(path, data, links=links, key=ctx.replay_token)
    )
    value = {"ok": True, "bytes": written.bytes or len(data), "created": written.created}
    return ToolOutput(with_warning(step.workspace, value))


async def edit_files(ctx: ToolContext, given: EditFiles) -> ToolOutput:
    step = step_of(ctx)
    files = _checked(given.files)
    for file in files:
        await check_target(step, file.path)
    links = not step.is_planning
    edited = await ask_agent(step.workspace, lambda conn: conn.edit_files(files, links=links, key=ctx.replay_token))
    shown = [
        {
            "path": each.path,
            "diff": each.diff,
            "edits": [{"matches": edit.matches, "pass": edit.pass_} for edit in each.edits],
        }
        for each in edited
    ]
    return ToolOutput(with_warning(step.workspace, {"ok": True, "files": shown}))


def _checked(files: Sequence[EditFile]) -> tuple[FileEdits, ...]:
    if not files:
        raise Refused(f"`files` is empty: name at least one file and one edit. {NOTHING_CHANGED}")
    checked = []
    for place, file in enumerate(files):
        if not file.path.strip():
            raise Refused(f"`files[{place}].path` is blank. {NOTHING_CHANGED}")
        if not file.edits:
            raise Refused(f"`files[{place}].edits` is empty: {file.path.strip()} has no edit. {NOTHING_CHANGED}")
        edits = tuple(
            Edit(old_text=each.old_text, new_text=each.new_text, replace_all=each.replace_all, exact=each.exact)
            for each in file.edits
        )
        checked.append(FileEdits(path=_absolute_or_unchanged(file.path), edits=edits))
    return tuple(checked)


def _absolute_or_unchanged(path: str) -> str:
    try:
        return absolute(path)
    except Refused as error:
        raise Refused(f"{error} {NOTHING_CHANGED}") from error


def _with_known_names(given: Json) -> Json:
    """Accept `search` and `replace` for `old_text` and `new_text`: models know these names from other agents."""
    if not isinstance(given, dict) or not isinstance(given.get("files"), list):
        return given
    return {**given, "files": [_file_with_known_names(file) for file in given["files"]]}


def _file_with_known_names(file: Json) -> Json:
    if not isinstance(file, dict) or not isinstance(file.get("edits"), list):
        return file
    return {**file, "edits": [_edit_with_known_names(edit) for edit in file["edits"]]}


def _edit_with_known_names(edit: Json) -> Json:
    if not isinstance(edit, dict):
        return edit
    renamed = dict(edit)
    for old, new in (("search", "old_text"), ("replace", "new_text")):
        if new not in renamed and old in renamed:
            renamed[new] = renamed.pop(old)
    return renamed


async def check_target(step: StepContext, path: str) -> None:
    """Raise `Refused` for a path that may not be written.

    In a planning turn, only the plan file may be written. In other turns, a plan file may be written only at its own
    path.
    """
    is_plan_name = posixpath.basename(path).lower() == _PLAN_NAME
    if not step.is_planning and not is_plan_name:
        return
    _, health = await step.workspace.dial()
    planned = step.plan_path(health.home)
    if step.is_planning:
        if path != planned:
            raise Refused(f"This is a planning turn: only the plan file {planned} may be written. {NOTHING_CHANGED}")
        # Old agents follow links. Newer agents also refuse links when they open the file.
        resolved = await ask_agent(step.workspace, lambda conn: conn.resolve_path(planned))
        if resolved != planned:
            raise Refused(f"The plan file {planned} leads to {resolved}, which may not be written. {NOTHING_CHANGED}")
        return
    if not path.startswith("/") or posixpath.dirname(posixpath.normpath(path)) == posixpath.normpath(health.home):
        raise Refused(f"Plans belong in {planned}. Write the plan there. {NOTHING_CHANGED}")
