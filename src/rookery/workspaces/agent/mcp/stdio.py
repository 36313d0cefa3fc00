"""A session with one MCP server that runs as a program of the workspace: one line of JSON per message, in both
directions.

The MCP server is untrusted: unreadable lines are skipped, a line that is too long ends the session, and every wait is
bounded.
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
_MAX_SAID_BYTES = 2000


class McpFailed(Exception):
    """Raised when the server does not do what was requested; the message is for a model."""


class StdioSession:
    """One session from start to end. A session that has ended is not reused."""

    def __init__(self, config: ServerConfig, version: str, on_tools_changed: Callable[[], None]) -> None:
        self._config = config
        self._version = version
        self._on_tools_changed = on_tools_changed
        self._buffer = bytearray()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._said = b""
        self._child: Child | None = None
        self._pipes: list[Pipe] = []
        self._into: asyncio.StreamWriter | None = None
        self.is_over = False

    async def start(self, children: Children, env: Mapping[str, str]) -> None:
        """Run the program and initialize the session. Raises `McpFailed`."""
        out, err = Pipe(self._take), Pipe(self._take_error)
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
        self._into = await open_writer(writer)
        greeting = {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "rookery-agent", "version": self._version},
        }
        await self.request("initialize", greeting, CONNECT_S)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return every tool the server offers, up to a limit. Invalid definitions are left out."""
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
        """Return the result of one request. Raises `McpFailed` when there is none in time."""
        if self.is_over:
            raise McpFailed(self._ending())
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
        """End the program. Pending requests fail."""
        if self.is_over:
            return
        self.is_over = True
        if self._child is not None:
            self._child.signal_group(signal.SIGKILL)
        if self._into is not None:
            with contextlib.suppress(RuntimeError):
                self._into.close()
        for pipe in self._pipes:
            pipe.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(McpFailed(self._ending()))

    def _ending(self) -> str:
        said = self._said.decode("utf-8", "replace").strip()
        return f"it has ended{': ' + said[-500:] if said else ''}"

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._into is not None and not self.is_over:
            self._into.write(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def _take_error(self, data: bytes) -> None:
        self._said = (self._said + data)[-_MAX_SAID_BYTES:]

    def _take(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._read(line)
        if len(self._buffer) > MAX_LINE_BYTES:
            self._said = b"it sent a message that does not end"
            self.close()

    def _read(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return  # some servers print to the wrong stream
        if not isinstance(message, dict):
            return
        number, method = message.get("id"), message.get("method")
        if isinstance(method, str):
            self._hear(method, number)
        elif isinstance(number, int) and number in self._waiting and not self._waiting[number].done():
            if "error" in message:
                self._waiting[number].set_exception(McpFailed(_problem(message["error"])))
            else:
                self._waiting[number].set_result(message.get("result"))

    def _hear(self, method: str, number: object) -> None:
        """Handle a message the server sends unasked. The agent offers it nothing: no files, no model, no user."""
        if number is None:
            if method == "notifications/tools/list_changed":
                self._on_tools_changed()
        elif method == "ping":
            self._send({"jsonrpc": "2.0", "id": number, "result": {}})
        else:
            error = {"code": -32601, "message": "This client does not do that."}
            self._send({"jsonrpc": "2.0", "id": number, "error": error})


def _problem(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else None
    return str(message)[:1000] if message else "it refused the request"
