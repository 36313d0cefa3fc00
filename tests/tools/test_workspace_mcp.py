"""Tools of the workspace's own MCP servers: their names, their results, and a call from end to end."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pytest

from rookery.domain.chat.mcp_consent import Entry
from rookery.loop.tool import ToolSource
from rookery.store.workspaces.context import ContextResource
from rookery.tools import workspace_mcp
from rookery.workspaces.agent_messages import McpResult
from tests.tools.tools_rig import ToolsRig, open_hands
from tests.workspaces.agent.mcp.test_mcp import SERVER


def server(name: str, *tools: str, **fields: Any) -> ContextResource:
    definitions: list[dict[str, Any]] = [{"name": each, "description": f"Does {each}."} for each in tools]
    entry = Entry(name=name, folder="/p", command="x")
    return ContextResource(
        **{"ordinal": 0, "kind": "mcp_server", "source": name, "tools": definitions, "entry": entry, **fields}
    )


async def always(entry: Entry) -> bool:
    return True


def tools_of(*servers: ContextResource) -> list[workspace_mcp.WorkspaceMcpTool]:
    """Return the tools if the owner agrees to all servers."""
    agreed = {each.entry.hash for each in servers if each.entry is not None}
    return workspace_mcp.tools(servers, agreed, always)


def test_names_are_safe_short_and_each_its_own() -> None:
    found = tools_of(
        server("b", "x"), server("a.c", "do it", "do/it", "y" * 80), server("down", "z", status="unreadable")
    )

    names = [tool.spec.name for tool in found]
    assert names == sorted(names) == ["a_c__do_it", "a_c__do_it_2", f"a_c__{'y' * 59}", "b__x"]
    assert {tool.spec.source for tool in found} == {ToolSource.WORKSPACE_MCP}
    assert found[0].spec.input_schema == {"type": "object", "properties": {}}
    assert [tool.spec.rule_name for tool in found[:2]] == ["mcp:a.c/do%20it", "mcp:a.c/do%2Fit"]


def test_a_server_without_consent_has_no_tools() -> None:
    agreed, other = server("a", "x"), server("b", "y")
    assert agreed.entry is not None
    bare = server("c", "z", entry=None)

    found = workspace_mcp.tools([agreed, other, bare], {agreed.entry.hash}, always)

    assert [tool.spec.name for tool in found] == ["a__x"]


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
    async with open_hands() as rig:
        config = {"mcpServers": {"calc": {"command": sys.executable, "args": ["-I", str(SERVER)]}}}
        (rig.agent.directory / ".mcp.json").write_text(json.dumps(config))
        entry = await _named(rig)
        rig.extra = tools_of(server("calc", "add", "gone", entry=entry))

        done = await rig.run("calc__add", call_id="same", a=1, b=2)
        again = await rig.run("calc__add", call_id="same", a=1, b=2)
        unknown = await rig.run("calc__gone")

        assert done.value == again.value == 3
        assert len((rig.agent.directory / "calls").read_text().splitlines()) == 1
        assert "no such tool" in unknown.error


async def test_a_call_is_refused_once_the_owner_has_withdrawn_or_the_entry_has_changed() -> None:
    async with open_hands() as rig:
        config = {"mcpServers": {"calc": {"command": sys.executable, "args": ["-I", str(SERVER)]}}}
        (rig.agent.directory / ".mcp.json").write_text(json.dumps(config))
        entry = await _named(rig)

        async def never(entry: Entry) -> bool:
            return False

        resource = server("calc", "add", entry=entry)
        rig.extra = workspace_mcp.tools([resource], {entry.hash}, never)
        withdrawn = await rig.run("calc__add", a=1, b=2)
        rig.extra = tools_of(server("calc", "add", entry=msgspec.structs.replace(entry, args=("-c", "1"))))
        changed = await rig.run("calc__add", a=1, b=2)

        assert "has not agreed" in withdrawn.error
        assert "not the one that the owner has agreed to" in changed.error
        assert not (rig.agent.directory / "calls").exists()


async def _named(rig: ToolsRig) -> Entry:
    """Wait until the agent has read the file, which was written after its start."""
    version = 0
    while True:
        found = await rig.agent.get(f"/v1/context?after={version}&wait_s=50")
        for each in found["resources"]:
            if each["kind"] == "mcp_server":
                return msgspec.convert(each["entry"], Entry)
        version = found["version"]
