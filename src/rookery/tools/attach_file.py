"""The tool attach_file, which stores a file of the workspace as a file of the chat, so that users can view and save it.

A call that runs again after a crash stores nothing: it finds the file of the first run by the call's replay token.
"""

from __future__ import annotations

import posixpath
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rookery.domain.chat.errors import ChatError
from rookery.domain.content import uploads
from rookery.loop.tool import Attachment, Replay, Tool, ToolContext, ToolOutput
from rookery.store.chats import files
from rookery.store.chats.files import MAX_FILE_BYTES, FileInfo
from rookery.store.people.errors import QuotaExceeded
from rookery.tools.step_workspace import Refused, StepContext, absolute, ask_agent, make_tool, step_of


class AttachFile(msgspec.Struct):
    path: Annotated[str, Meta(description="Absolute path of the file in the workspace.")]
    name: Annotated[str, Meta(description="What the file is called in the chat, if not by its own name.")] | None = None


def tools() -> list[Tool]:
    return [
        make_tool(
            "attach_file",
            "Give the user a file of the workspace: it appears in the chat to look at and to save. At most 10 MiB.",
            arguments=AttachFile,
            handler=attach_file,
            needs_workspace=True,
            replay=Replay.TOKEN,
        )
    ]


async def attach_file(ctx: ToolContext, given: AttachFile) -> ToolOutput:
    step, path = step_of(ctx), absolute(given.path)
    stored = await find_stored(step, ctx)
    if stored is None:
        data = await read_whole(step, path, max_bytes=MAX_FILE_BYTES)
        name = _cleaned(given.name or "") or _cleaned(posixpath.basename(path)) or "file"
        stored = await store(step, ctx, name=name, media_type=uploads.detected_type(data, name=name), data=data)
    value: dict[str, Any] = {
        "ok": True,
        "path": path,
        "file_id": str(stored.id),
        "name": stored.name,
        "media_type": stored.mime_type,
        "size": stored.size_bytes,
    }
    return ToolOutput(value, attachments=(Attachment(stored.id, stored.mime_type, stored.name),))


async def read_whole(step: StepContext, path: str, *, max_bytes: int, links: bool = True) -> bytes:
    """Return all bytes of a file. Raise `Refused` if the file is empty or too large.

    Without `links`, paths with symbolic links are refused.
    """
    data = await ask_agent(step.workspace, lambda conn: conn.read_bytes(path, max_bytes=max_bytes + 1, links=links))
    if not data:
        raise Refused(f"{path} is empty.")
    if len(data) > max_bytes:
        raise Refused(f"{path} is larger than the limit of {max_bytes} bytes.")
    return data


async def find_stored(step: StepContext, ctx: ToolContext) -> FileInfo | None:
    """Return the file that an earlier run of this call stored, or None."""
    async with step.pool.acquire() as conn:
        return await files.find_stored(conn, step.chat_id, token=ctx.replay_token)


async def store(step: StepContext, ctx: ToolContext, *, name: str, media_type: str, data: bytes) -> FileInfo:
    try:
        async with step.pool.acquire() as conn:
            return await files.store_once(
                conn,
                step.chat_id,
                owner_id=step.owner_id,
                token=ctx.replay_token,
                name=name,
                mime_type=media_type,
                data=data,
            )
    except (ChatError, QuotaExceeded) as error:
        raise Refused(str(error)) from error


def _cleaned(name: str) -> str:
    try:
        return uploads.cleaned_name(name)
    except ChatError:
        return ""
