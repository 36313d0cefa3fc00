"""attach_file: stores a file of the workspace as a file of the chat, which users can view and save.

Stored once per call, however often the call is run: the row is found again by the call's replay token.
"""

from __future__ import annotations

import posixpath
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rookery.domain.chat.errors import ChatError
from rookery.domain.content import uploads
from rookery.loop.tool import Attachment, Replay, Tool, ToolContext, ToolOutput
from rookery.store.chats import tool_files
from rookery.store.chats.files import MAX_FILE_BYTES, FileInfo
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
    turn, path = step_of(ctx), absolute(given.path)
    stored = await tool_files_find(turn, ctx)
    if stored is None:
        data = await read_whole(turn, path, max_bytes=MAX_FILE_BYTES)
        name = _cleaned(given.name or "") or _cleaned(posixpath.basename(path)) or "file"
        stored = await store(turn, ctx, name=name, media_type=uploads.detected_type(data, name=name), data=data)
    value: dict[str, Any] = {
        "ok": True,
        "path": path,
        "file_id": str(stored.id),
        "name": stored.name,
        "media_type": stored.mime_type,
        "size": stored.size_bytes,
    }
    return ToolOutput(value, attachments=(Attachment(stored.id, stored.mime_type, stored.name),))


async def read_whole(turn: StepContext, path: str, *, max_bytes: int, links: bool = True) -> bytes:
    """Return all bytes of a file that is neither empty nor too large.

    Without `links`, a path with a symbolic link is refused.
    """
    data = await ask_agent(turn.workspace, lambda conn: conn.read_bytes(path, max_bytes=max_bytes + 1, links=links))
    if not data:
        raise Refused(f"{path} is empty.")
    if len(data) > max_bytes:
        raise Refused(f"{path} is larger than {max_bytes} bytes, which is the limit.")
    return data


async def tool_files_find(turn: StepContext, ctx: ToolContext) -> FileInfo | None:
    """Return the file that an earlier run of this call has stored."""
    async with turn.pool.acquire() as conn:
        return await tool_files.find_stored(conn, turn.chat_id, token=ctx.replay_token)


async def store(turn: StepContext, ctx: ToolContext, *, name: str, media_type: str, data: bytes) -> FileInfo:
    try:
        async with turn.pool.acquire() as conn:
            return await tool_files.store_once(
                conn,
                turn.chat_id,
                owner_id=turn.owner_id,
                token=ctx.replay_token,
                name=name,
                mime_type=media_type,
                data=data,
            )
    except ChatError as error:
        raise Refused(str(error)) from error


def _cleaned(name: str) -> str:
    try:
        return uploads.cleaned_name(name)
    except ChatError:
        return ""
