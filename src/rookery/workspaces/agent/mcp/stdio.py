"""The session with one MCP server over standard input and output. Each message is one line of JSON.

The MCP server is untrusted: invalid lines are skipped, a line that is too long ends the session, and every wait has a
limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from rookery.workspaces.agent.mcp.config import ServerConfig
from rookery.workspaces.agent.process.children import Child, Children, Pipe, open_writer

PROTOCOL = "2025-06-18"
CONNECT_S = 30.0
CALL_S = 60.0
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_TOOLS = 500
MAX_PAGES = 50
_MAX_STDERR_BYTES = 2000


class McpFailed(Exception):
    """Raised when a request to the MCP server fails. The message is for the model."""


class StdioSession:
    """One run of an MCP server. A session that has ended is not reused."""

    def __init__(self, config: ServerConfig, version: str, on_tools_changed: Callable[[], None]) -> None:
        self._config = config
        self._version = version
        self._on_tools_changed = on_tools_changed
        self._buffer = bytearray()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._stderr = b""
        self._child: Child | None = None
        self._pipes: list[Pipe] = []
        self._stdin: asyncio.StreamWriter | None = None
        self.is_over = False

    async def start(self, children: Children, env: Mapping[str, str]) -> None:
        """Start the program and initialize the session. Raise `McpFailed` if that fails."""
        out, err = Pipe(self._read_stdout), Pipe(self._read_stderr)
        reader, writer = os.pipe()
        command = [self._config.command or "", *self._config.args]
        try:
            self._child = children.spawn(
                command,
                cwd=self._config.folder,
                env=self._config.environment(env),
                out=out.writer,
                err=err.writer,
                stdin=reader,
            )
        except (OSError, ValueError) as error:
            for pipe in (out, err):
                pipe.close()
            os.close(writer)
            raise McpFailed(f"it cannot be started: {getattr(error, 'strerror', None) or error}") from error
        finally:
            os.close(reader)
        self._pipes = [out, err]
        for pipe in self._pipes:
            pipe.start()
        out.closed.add_done_callback(lambda _: self.close())
        self._stdin = await open_writer(writer)
        parameters = {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "rookery-agent", "version": self._version},
        }
        await self.request("initialize", parameters, CONNECT_S)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools of the server, up to a limit and without invalid definitions."""
        found: list[dict[str, Any]] = []
        cursor: object = None
        for _ in range(MAX_PAGES):
            page = await self.request("tools/list", {} if cursor is None else {"cursor": cursor}, CONNECT_S)
            tools = page.get("tools") if isinstance(page, dict) else None
            named = [each for each in tools or () if isinstance(each, dict) and isinstance(each.get("name"), str)]
            found += named[: MAX_TOOLS - len(found)]
            cursor = page.get("nextCursor") if isinstance(page, dict) else None
            if not isinstance(cursor, str) or len(found) >= MAX_TOOLS:
                break
        return found

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> Any:
        """Send one request and return its result. Raise `McpFailed` if there is none in time."""
        if self.is_over:
            raise McpFailed(self._end_reason())
        self._last_id += 1
        number = self._last_id
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return await asyncio.wait_for(answer, seconds)
        except asyncio.TimeoutError:
            raise McpFailed(f"it did not answer within {seconds:g} seconds") from None
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """Kill the program. Pending requests fail."""
        if self.is_over:
            return
        self.is_over = True
        if self._child is not None:
            self._child.signal_group(signal.SIGKILL)
        if self._stdin is not None:
            with contextlib.suppress(RuntimeError):
                self._stdin.close()
        for pipe in self._pipes:
            pipe.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(McpFailed(self._end_reason()))

    def _end_reason(self) -> str:
        stderr = self._stderr.decode("utf-8", "replace").strip()
        return f"it has ended{': ' + stderr[-500:] if stderr else ''}"

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._stdin is not None and not self.is_over:
            self._stdin.write(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def _read_stderr(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-_MAX_STDERR_BYTES:]

    def _read_stdout(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._handle_line(line)
        if len(self._buffer) > MAX_LINE_BYTES:
            self._stderr = b"it sent a message that does not end"
            self.close()

    def _handle_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return  # some servers print log lines to standard output
        if not isinstance(message, dict):
            return
        number, method = message.get("id"), message.get("method")
        if isinstance(method, str):
            self._handle_server_message(method, number)
        elif isinstance(number, int) and number in self._waiting and not self._waiting[number].done():
            if "error" in message:
                self._waiting[number].set_exception(McpFailed(_problem(message["error"])))
            else:
                self._waiting[number].set_result(message.get("result"))

    def _handle_server_message(self, method: str, number: object) -> None:
        """Handle a request or notification of the server. Only pings are supported."""
        if number is None:
            if method == "notifications/tools/list_changed":
                self._on_tools_changed()
        elif method == "ping":
            self._send({"jsonrpc": "2.0", "id": number, "result": {}})
        else:
            error = {"code": -32601, "message": "This client does not support this method."}
            self._send({"jsonrpc": "2.0", "id": number, "error": error})


def _problem(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else None
    return str(message)[:1000] if message else "it refused the request"
