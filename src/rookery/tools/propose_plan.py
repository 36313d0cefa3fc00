"""The tool propose_plan, which shows the plan file to the user and ends the planning turn."""

from __future__ import annotations

import posixpath
from typing import Annotated

import msgspec
from msgspec import Meta

from rookery.domain.content import uploads
from rookery.loop.tool import Attachment, Replay, Tool, ToolContext, ToolOutput
from rookery.tools import attach_file
from rookery.tools.step_workspace import Refused, ask_agent, make_tool, step_of

MAX_PLAN_BYTES = 32 * 1024


class ProposePlan(msgspec.Struct):
    path: Annotated[str, Meta(description="The plan file; it may be left out.")] | None = None


def tools() -> list[Tool]:
    return [
        make_tool(
            "propose_plan",
            "Show the plan in the plan file to the user and end the turn. Write the file first. The user accepts it or "
            "answers with what should be different.",
            arguments=ProposePlan,
            handler=propose_plan,
            needs_workspace=True,
            stop_after=True,
            replay=Replay.TOKEN,
        )
    ]


async def propose_plan(ctx: ToolContext, given: ProposePlan) -> ToolOutput:
    step = step_of(ctx)
    _, health = await step.workspace.dial()
    planned = step.plan_path(health.home)
    path = (given.path or "").strip() or planned
    if step.is_planning and path != planned:
        raise Refused(f"Only the plan file can be proposed: {planned}.")
    if not path.endswith(".md"):
        raise Refused(f"A plan is a Markdown file; {path} does not end in .md.")
    resolved = await ask_agent(step.workspace, lambda conn: conn.resolve_path(path))
    if resolved != path:
        raise Refused(
            f"The plan file {path} leads through a link to {resolved}. Write the plan without links in its path."
        )
    stored = await attach_file.find_stored(step, ctx)
    if stored is None:
        data = await attach_file.read_whole(step, path, max_bytes=MAX_PLAN_BYTES, links=False)
        if not data.strip():
            raise Refused(f"The plan file {path} is blank. Write the plan first.")
        stored = await attach_file.store(
            step, ctx, name=posixpath.basename(path), media_type=uploads.MARKDOWN, data=_as_text(data, path)
        )
    value = {
        "ok": True,
        "path": path,
        "kind": "plan",
        "file_id": str(stored.id),
        "media_type": stored.mime_type,
    }
    return ToolOutput(value, attachments=(Attachment(stored.id, stored.mime_type, stored.name),))


def _as_text(data: bytes, path: str) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Refused(f"The plan file {path} is not UTF-8 text.") from error
    return data
