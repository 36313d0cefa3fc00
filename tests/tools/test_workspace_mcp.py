"""Tools of the workspace's own MCP servers: their names, their results, and a call from end to end."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from rookery.loop.tools import ToolSource
from rookery.store.workspace_context import ContextResource
from rookery.tools import workspace_mcp
from rookery.workspaces.answers import McpResult
from tests.tools.hands import Hands, open_hands
from tests.workspaces.agent.test_mcp import SERVER


def server(name: str, *tools: str, **fields: Any) -> ContextResource:
    definitions: list[dict[str, Any]] = [{"name": each, "description": f"Does {each}."} for each in tools]
    return ContextResource(**{"ordinal": 0, "kind": "mcp_server", "source": name, "tools": definitions, **fields})


def test_names_are_safe_short_and_each_its_own() -> None:
    found = workspace_mcp.tools(
        [server("b", "x"), server("a.c", "do it", "do/it", "y" * 80), server("down", "z", status="unreadable")]
    )

    names = [tool.spec.name for tool in found]
    assert names == sorted(names) == ["a_c__do_it", "a_c__do_it_2", f"a_c__{'y' * 59}", "b__x"]
    assert {tool.spec.source for tool in found} == {ToolSource.WORKSPACE_MCP}
    assert found[0].spec.input_schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (McpResult(content=({"type": "text", "text": "a"}, {"type": "text", "text": "b"})), "a\nb"),
        (McpResult(content=({"type": "resource", "resource": {"uri": "f:1", "text": "inner"}},)), "inner"),
        (McpResult(content=({"type": "resource_link", "uri": "f:1"},)), "[resource: f:1]"),
        (McpResult(structured={"a": 1}), '{"a": 1}'),
        (McpResult(content=({"type": "image", "data": "!", "mimeType": "image/png"},)), ""),
        (McpResult(content=({"type": "text", "text": "t"}, {"type": "image", "data": "AA==", "mimeType": "i/p"})), "t"),
    ],
)
def test_result_is_all_its_text(result: McpResult, text: str) -> None:
    output = workspace_mcp.as_output(result)

    assert (output.value, output.media) == (text, None)


def test_picture_without_text_is_shown() -> None:
    result = McpResult(content=({"type": "image", "data": "AQI=", "mimeType": "image/png"},), is_error=True)

    output = workspace_mcp.as_output(result)

    assert output.media is not None
    assert (output.media.data, output.media.mime_type, output.is_error) == (b"\x01\x02", "image/png", True)


async def test_tool_is_called_through_the_agent_once() -> None:
    async with open_hands() as hands:
        config = {"mcpServers": {"calc": {"command": sys.executable, "args": ["-I", str(SERVER)]}}}
        (hands.agent.directory / ".mcp.json").write_text(json.dumps(config))
        await _settled(hands)
        hands.extra = workspace_mcp.tools([server("calc", "add", "gone")])

        done = await hands.run("calc__add", call_id="same", a=1, b=2)
        again = await hands.run("calc__add", call_id="same", a=1, b=2)
        unknown = await hands.run("calc__gone")

        assert done.value == again.value == 3
        assert len((hands.agent.directory / "calls").read_text().splitlines()) == 1
        assert "no such tool" in unknown.error


async def _settled(hands: Hands) -> None:
    """The file was written after the start: wait until the agent has seen it and its server answers."""
    version = 0
    while True:
        found = await hands.agent.get(f"/v1/context?after={version}&wait_s=50")
        if any(each["kind"] == "mcp_server" for each in found["resources"]):
            return
        version = found["version"]
