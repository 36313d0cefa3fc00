"""Live results of a running batch. They are a preview: an error here must never cost the result."""

from __future__ import annotations

from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import Part, ToolResult
from rookery.loop import tool_results
from rookery.loop.tool import Publish
from rookery.loop.tool_results import CallName
from rookery.telemetry.log import get_logger

log = get_logger("loop.live_results")


class LiveResult:
    """Shows the output of a running call; ignores output that a tool sends after its call has ended."""

    __slots__ = ("_is_open", "_name", "_publish")

    def __init__(self, name: CallName, publish: Publish) -> None:
        self._name = name
        self._publish = publish
        self._is_open = True

    def __call__(self, text: str, *, reset: bool = False) -> None:
        if self._is_open:
            delta = ToolResult(
                self._name.call_id,
                self._name.tool_name,
                result_delta=tool_results.clean_text(text),
                result_reset=reset,
                mcp_server_id=self._name.server_id,
            )
            show(self._publish, delta)

    def close(self) -> None:
        self._is_open = False


def show(publish: Publish, part: Part) -> None:
    """Publish a part. Errors are logged: a preview must never cost the result."""
    try:
        publish(Role.TOOL, part)
    except Exception as error:
        log.exception("live_part_lost", error)
