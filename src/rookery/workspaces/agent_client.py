"""The client of a workspace agent, with one method for each request.

It raises `AgentError` for a refusal of the agent, whose message is for the model, and `AgentUnreachable` without a
response. Responses are checked by `agent_messages`. Paths in them are paths of the workspace, never of the server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import msgspec

from rookery.domain.chat.mcp_consent import Entry
from rookery.workspaces import agent_messages
from rookery.workspaces.agent_http import (
    REQUEST_SECONDS,
    UPLOAD_SECONDS,
    WAIT_SLACK_SECONDS,
    AgentHttp,
    ChatHeaders,
    Request,
)
from rookery.workspaces.agent_messages import (
    BadAnswer,
    ContextSnapshot,
    Edited,
    FileEdits,
    GitMessage,
    Health,
    Lines,
    Listing,
    McpHeaders,
    McpResult,
    Output,
    ProcessInfo,
    ScriptLog,
    StartProcess,
    Written,
)
from rookery.workspaces.errors import AgentError

MAX_WAIT_SECONDS = 300.0
MAX_CONTEXT_WAIT_SECONDS = 60.0
# Longer than the agent waits for an MCP server: 30 s for its start and 60 s for its response.
MCP_SECONDS = 105.0
MAX_SETTLE_SECONDS = 30.0
# The limit of `read_bytes`. It is higher than the limits of its callers, who detect larger files.
MAX_READ_BYTES = 64 * 1024 * 1024
_MAX_LINE_BYTES = 8 * 1024 * 1024

T = TypeVar("T")


class StartedProcess(msgspec.Struct, frozen=True):
    id: str
    is_replay: bool


class _Started(msgspec.Struct, frozen=True):
    id: agent_messages.Word


class _Processes(msgspec.Struct, frozen=True):
    processes: tuple[ProcessInfo, ...] = ()


class _EditedFiles(msgspec.Struct, frozen=True):
    files: tuple[Edited, ...] = ()


class _Resolved(msgspec.Struct, frozen=True):
    path: agent_messages.Line


class AgentConn:
    """The client for requests of one chat. It uses the connections of an `AgentHttp`."""

    def __init__(self, http: AgentHttp, chat: ChatHeaders = ChatHeaders()) -> None:  # noqa: B008 - frozen
        self._http = http
        self._chat = chat

    @property
    def generation(self) -> int:
        return self._http.generation

    async def health(self, *, seconds: float = REQUEST_SECONDS) -> Health:
        return await self._json(Request(method="GET", path="/v1/health", seconds=seconds), Health)

    # Files

    async def read_file(self, path: str, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        """Stream the bytes of a file."""
        query = {"path": path, "offset": str(offset)} | ({} if limit is None else {"limit": str(limit)})
        async with self._http.stream(Request(method="GET", path="/v1/files", query=query), self._chat) as body:
            while chunk := await body.readany():
                yield chunk

    async def read_bytes(self, path: str, *, max_bytes: int, links: bool = True) -> bytes:
        """Return the first `max_bytes` of a file. Without `links`, paths with symbolic links are refused."""
        query = {"path": path, "offset": "0", "limit": str(max_bytes)}
        max_bytes = min(max_bytes, MAX_READ_BYTES)
        request = Request(
            method="GET",
            path="/v1/files",
            query=query,
            seconds=UPLOAD_SECONDS,
            max_bytes=max_bytes,
            follows_links=links,
        )
        return (await self._http.call(request, self._chat)).body

    async def read_lines(self, path: str, offset: int = 1, limit: int | None = None) -> Lines:
        query = {"path": path, "offset": str(offset)} | ({} if limit is None else {"limit": str(limit)})
        return await self._json(Request(method="GET", path="/v1/files/lines", query=query), Lines)

    async def write_file(self, path: str, data: bytes, *, links: bool = True, key: UUID | None = None) -> Written:
        request = _put("/v1/files", {"path": path}, data, key=key)
        request.follows_links = links
        return await self._json(request, Written)

    async def edit_files(
        self, files: Sequence[FileEdits], *, diff: bool = True, links: bool = True, key: UUID | None = None
    ) -> tuple[Edited, ...]:
        request = self._post("/v1/files/edit", {"files": files, "include_diff": diff}, key=key, seconds=UPLOAD_SECONDS)
        request.follows_links = links
        return (await self._json(request, _EditedFiles)).files

    async def keep_result(
        self, name: str, data: bytes, *, key: UUID | None = None, seconds: float = UPLOAD_SECONDS
    ) -> str:
        """Store a tool result that is too large for the prompt in a file of the workspace. Return its path."""
        request = _put("/v1/results", {"name": name}, data, key=key, seconds=seconds)
        return (await self._json(request, _Resolved)).path

    async def list_dir(self, path: str | None = None, *, base: str = "root", parts: Sequence[str] = ()) -> Listing:
        body: dict[str, Any] = {"path": path} if path is not None else {"parts": list(parts), "base": base}
        return await self._json(self._post("/v1/files/list", body), Listing)

    async def resolve_path(self, path: str) -> str:
        request = Request(method="GET", path="/v1/files/resolve", query={"path": path})
        return (await self._json(request, _Resolved)).path

    # Processes

    async def start_process(
        self, wanted: StartProcess, *, key: UUID | None = None, result_name: str | None = None
    ) -> StartedProcess:
        """Start a process. If the key was used before, return the process of the first request.

        Output that does not fit a view is stored in a file of the workspace with the name `result_name`.
        """
        request = self._post("/v1/processes", wanted, key=key)
        request.result_name = result_name
        answer = await self._http.call(request, self._chat)
        return StartedProcess(self._decoded(answer.body, _Started).id, answer.is_replay)

    async def process_output(
        self, process_id: str, *, wait: float = 0.0, since: int | None = None, until: str | None = None
    ) -> Output:
        """Return the state and the output of a process after at most `wait` seconds, and never more than 300.

        The wait ends early when the process ends, or when a line matches the regular expression `until`.
        """
        wait = min(max(wait, 0.0), MAX_WAIT_SECONDS)
        query = {"wait_s": f"{wait:g}"} | ({} if since is None else {"since": str(since)})
        query |= {} if until is None else {"until": until}
        path = f"/v1/processes/{_segment(process_id)}/output"
        request = Request(method="GET", path=path, query=query, seconds=_waiting_seconds(wait))
        return await self._json(request, Output)

    async def list_processes(self) -> tuple[ProcessInfo, ...]:
        return (await self._json(Request(method="GET", path="/v1/processes"), _Processes)).processes

    async def signal_process(self, process_id: str, signal: str, *, seconds: float = REQUEST_SECONDS) -> None:
        path = f"/v1/processes/{_segment(process_id)}/signal"
        await self._http.call(self._post(path, {"signal": signal}, seconds=seconds), self._chat)

    async def give_secrets(self, secrets: Mapping[str, str]) -> None:
        """Send the secret parameters, which the startup script waits for. The agent accepts them once."""
        await self._http.call(self._post("/v1/secrets", {"secrets": secrets}), self._chat)

    async def script_log(self, *, since: int = 0) -> ScriptLog:
        """Return the output of the startup script after the first `since` bytes."""
        return await self._json(Request(method="GET", path="/v1/scripts/log", query={"since": str(since)}), ScriptLog)

    async def call_mcp_tool(
        self, entry: Entry, tool: str, arguments: Mapping[str, Any], *, key: UUID | None = None
    ) -> McpResult:
        """Call a tool of an MCP server of the workspace. `entry` is the entry that the owner has agreed to."""
        body = {"server": entry.name, "tool": tool, "arguments": arguments, "entry": entry.for_agent()}
        return await self._json(self._post("/v1/mcp/call", body, key=key, seconds=MCP_SECONDS), McpResult)

    async def mcp_headers(self, entry: Entry) -> Mapping[str, str]:
        """Return the headers of an MCP server with an address. Their values are often secrets.

        `entry` is the entry that the owner has agreed to.
        """
        body = {"server": entry.name, "entry": entry.for_agent()}
        return (await self._json(self._post("/v1/mcp/headers", body), McpHeaders)).headers

    async def run_mcp_servers(self, entries: Sequence[Entry], *, wait: float = 0.0) -> None:
        """Make the agent run exactly these MCP servers. Wait up to `wait` seconds for their start."""
        wait = min(max(wait, 0.0), MAX_SETTLE_SECONDS)
        body = {"servers": [each.for_agent() for each in entries], "wait_s": wait}
        await self._http.call(self._post("/v1/mcp/servers", body, seconds=_waiting_seconds(wait)), self._chat)

    # Context and git

    async def context(
        self, *, after: int = 0, wait: float = 0.0, seconds: float | None = None
    ) -> ContextSnapshot | None:
        """Return the context of the workspace; None if its version is still `after` at the end of the wait."""
        wait = min(max(wait, 0.0), MAX_CONTEXT_WAIT_SECONDS)
        request = Request(
            method="GET",
            path="/v1/context",
            query={"after": str(after), "wait_s": f"{wait:g}"},
            seconds=seconds if seconds is not None else _waiting_seconds(wait),
        )
        answer = await self._http.call(request, self._chat)
        return None if answer.status == 304 else self._decoded(answer.body, ContextSnapshot)

    async def watch_git(self, chat_id: UUID) -> AsyncGenerator[GitMessage, None]:
        """Stream the changes of the chat's repositories. The first message is their current state."""
        request = Request(method="GET", path="/v1/git/watch", query={"chat_id": str(chat_id)})
        async with self._http.stream(request, self._chat) as body:
            buffer, searched = bytearray(), 0
            while chunk := await body.readany():
                buffer += chunk
                # Continue the search at its last position, so that a line that arrives byte by byte does not take
                # quadratic time.
                while (end := buffer.find(b"\n", searched)) >= 0:
                    line = bytes(buffer[:end])
                    del buffer[: end + 1]
                    searched = 0
                    if line.strip():
                        yield self._decoded(line, GitMessage)
                searched = len(buffer)
                if searched > _MAX_LINE_BYTES:
                    raise AgentError(502, "bad_answer", "The workspace agent sent a line that is too long.")

    async def scan_git(self, chat_id: UUID, *, seconds: float = REQUEST_SECONDS) -> GitMessage:
        return await self._json(self._post("/v1/git/scan", {"chat_id": str(chat_id)}, seconds=seconds), GitMessage)

    def _post(
        self,
        path: str,
        body: Mapping[str, Any] | msgspec.Struct,
        *,
        key: UUID | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> Request:
        return Request(method="POST", path=path, body=msgspec.json.encode(body), key=key, seconds=seconds)

    async def _json(self, request: Request, kind: type[T]) -> T:
        return self._decoded((await self._http.call(request, self._chat)).body, kind)

    def _decoded(self, data: bytes, kind: type[T]) -> T:
        try:
            with self._http.charged():
                return agent_messages.decode(data, kind)
        except BadAnswer as error:
            raise AgentError(502, "bad_answer", str(error)) from error


def _waiting_seconds(wait: float) -> float:
    return REQUEST_SECONDS if not wait else wait + WAIT_SLACK_SECONDS


def _segment(process_id: str) -> str:
    """Quote a process id as one path segment. The id comes from the model."""
    return quote(process_id, safe="") or "-"


def _put(
    path: str, query: dict[str, str], data: bytes, *, key: UUID | None, seconds: float = UPLOAD_SECONDS
) -> Request:
    return Request(
        method="PUT",
        path=path,
        query=query,
        body=data,
        content_type="application/octet-stream",
        key=key,
        seconds=seconds,
    )
