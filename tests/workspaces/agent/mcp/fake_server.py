"""An MCP server over standard input and output, for tests; run as a program with only the standard library."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "name": "add",
        "description": "Add two numbers.",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
    {"name": "show env", "description": "What it was given."},
]


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def call(params: dict[str, Any]) -> dict[str, Any]:
    name, arguments = params["name"], params.get("arguments", {})
    if name == "add":
        with open("calls", "a") as file:
            file.write(params.get("_meta", {}).get("rookery/idempotency-key", "-") + "\n")
        total = arguments["a"] + arguments["b"]
        return {"content": [{"type": "text", "text": str(total)}], "structuredContent": {"sum": total}}
    if name == "show env":
        return {"content": [{"type": "text", "text": os.environ.get("SECRET", "none")}]}
    if name == "die":
        sys.stderr.write("told to die")
        sys.exit(3)
    if name == "more":
        TOOLS.append({"name": "late"})
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        return {"content": []}
    return {"content": [{"type": "text", "text": "no such tool"}], "isError": True}


def main() -> None:
    print("hello, this is no message")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        method, params = message["method"], message.get("params", {})
        result: dict[str, Any]
        if method == "initialize":
            send({"jsonrpc": "2.0", "id": "ours", "method": "sampling/createMessage", "params": {}})
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
        elif method == "tools/list":
            first = "cursor" not in params
            result = {"tools": TOOLS[:1], "nextCursor": "2"} if first else {"tools": TOOLS[1:]}
        elif method == "tools/call":
            result = call(params)
        else:
            send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown"}})
            continue
        send({"jsonrpc": "2.0", "id": message["id"], "result": result})


main()
