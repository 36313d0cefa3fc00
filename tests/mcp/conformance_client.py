"""The client that the conformance kit runs: it lists the tools of a server, calls each of them, and answers questions.

python -m tests.mcp.conformance_client URL
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rookery.mcp import connection_pool as connections_module
from rookery.mcp.address_guard import mcp_guard
from rookery.mcp.call_results import InputRequest, InputRequired, Resume
from rookery.mcp.connection_pool import McpConnections
from rookery.mcp.errors import McpError
from rookery.mcp.server_config import ServerConfig
from rookery.mcp.tool_lists import McpTool
from rookery.runtime.clock import SystemClock
from tests.mcp.mcp_rig import CHAT

MAX_ROUNDS = 5
# The machine runs other tests at the same time.
BUSY_SECONDS = 60.0
ECHO = "json_schema_echo"
EXAMPLES: Mapping[str, Any] = {
    "string": "text", "number": 5, "integer": 3, "boolean": True, "array": [], "object": {}, "null": None,
}  # fmt: skip


def value_for(schema: Mapping[str, Any]) -> Any:
    """Return the default of a schema, or a value that fits it."""
    if "default" in schema:
        return schema["default"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    return EXAMPLES.get(kind[0] if isinstance(kind, list) else str(kind), "text")


def arguments_for(tool: McpTool) -> dict[str, Any]:
    return {name: value_for(schema) for name, schema in tool.input_schema["properties"].items()}


def echoed_schema(tools: Sequence[McpTool]) -> dict[str, Any]:
    """Return the schema that a scenario wants to see as it was received: that of the other tool."""
    [observed] = [tool for tool in tools if tool.name != ECHO]
    return {"schema": observed.original_schema or observed.input_schema}


def answer_to(request: InputRequest) -> dict[str, Any]:
    if request.mode == "url":
        return {"action": "accept"}
    properties = (request.schema or {}).get("properties", {})
    return {"action": "accept", "content": {name: value_for(schema) for name, schema in properties.items()}}


async def call(connections: McpConnections, server: ServerConfig, tool: str, arguments: Mapping[str, Any]) -> None:
    responses: dict[str, Any] = {}
    resume = None
    for _ in range(MAX_ROUNDS):
        outcome = await connections.call(CHAT, server, tool, arguments, call_key=tool, resume=resume)
        if not isinstance(outcome, InputRequired):
            return
        responses |= {request.id: answer_to(request) for request in outcome.requests}
        resume = Resume(responses=responses, request_state=outcome.request_state, task_id=outcome.task_id)


async def main(url: str) -> None:
    connections_module.OPEN_SECONDS = BUSY_SECONDS
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    server = ServerConfig(key="kit", slug="kit", url=url)
    connections = McpConnections(mcp_guard(allow_private=True), SystemClock())
    try:
        [tools] = await connections.tools_of(CHAT, [server])
        if tools.problem is not None:
            raise McpError(tools.problem)
        planned = [(each["name"], each.get("arguments", {})) for each in context.get("toolCalls", ())]
        for name, arguments in planned or [(tool.name, arguments_for(tool)) for tool in tools.tools]:
            if name == ECHO:
                arguments = echoed_schema(tools.tools)
            try:
                await call(connections, server, name, arguments)
            except McpError as error:
                print(f"{name}: {error}", file=sys.stderr)
    finally:
        await connections.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
