"""Spilled results: tool results that are too large for the prompt, stored as files in the chat's workspace.

The model can read these files. Without a reachable workspace nothing is stored, and the result is only shortened.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from uuid import UUID, uuid5

from rookery.loop.tool import ToolOutput
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.log import get_logger
from rookery.tools.process_arguments import result_name
from rookery.tools.step_workspace import ask_agent
from rookery.workspaces.connection import ChatWorkspace
from rookery.workspaces.errors import WorkspaceError

log = get_logger("tools.spilled_results")

KEEP_SECONDS = 20.0
# The largest file that the agent accepts.
MAX_BYTES = 16 * 1024 * 1024
FOLDER = "/.rookery/results/"


class ResultKeeper:
    """Stores the results of one chat.

    Calling it stores a result and returns the path of the file, or None if nothing was stored.
    """

    def __init__(self, workspace: ChatWorkspace, clock: Clock) -> None:
        self._workspace = workspace
        self._clock = clock

    async def __call__(self, call_id: str, token: UUID, output: ToolOutput) -> str | None:
        if (own := own_file(output)) is not None:
            return own
        if self._workspace.workspace_id is None or output.media is not None:
            return None
        data = await asyncio.to_thread(as_text, output)
        if len(data) > MAX_BYTES:
            return None
        name, key = result_name(call_id), uuid5(token, "result")
        try:
            async with self._clock.deadline(KEEP_SECONDS, "keep-result"):
                return await ask_agent(self._workspace, lambda conn: conn.keep_result(name, data, key=key))
        except (WorkspaceError, DeadlineExceeded) as error:
            log.info("result_not_kept", call_id=call_id, error=str(error) or type(error).__name__)
            return None


def own_file(output: ToolOutput) -> str | None:
    """Return the path that the result already contains; None if it contains none.

    The tool `execute` stores its long output and puts the path into its result. Only paths in the folder of results
    count, because a result of another tool may have a field of the same name.
    """
    cut = output.value.get("truncated") if isinstance(output.value, Mapping) else None
    file = cut.get("file") if isinstance(cut, Mapping) else None
    return file if isinstance(file, str) and FOLDER in file else None


def as_text(output: ToolOutput) -> bytes:
    """Return the output as text with lines. If more than half of an object is one text, return only that text."""
    value = output.value
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    whole = json.dumps(value, ensure_ascii=False, indent=1, default=str)
    longest = max((each for each in value.values() if isinstance(each, str)), key=len, default="")
    return (longest if 2 * len(longest) > len(whole) else whole).encode("utf-8", "replace")
