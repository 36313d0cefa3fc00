"""A driver whose sandboxes are files in a folder and sockets in this process, for tests of operations.

It follows the driver contract: actions are idempotent, and a stop finds what a canceled start leaves. Several of them
may share one folder, as the replicas of a node do.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from rookery.workspaces.drivers.driver_interface import DriverError, Endpoint, Found, Log, Probe, WorkspaceSpec
from tests.workspaces.fake_agent import UnixPath


@dataclass
class FakeDriver:
    """`folder` must be short: sockets are in it. `gate` holds starts back until it is set."""

    folder: Path
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    health: dict[str, Any] = field(default_factory=lambda: {"agent_state": "ready"})
    repositories: list[dict[str, Any]] = field(default_factory=list)
    folders: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    scanned: asyncio.Event = field(default_factory=asyncio.Event)
    printed: str = ""  # by the startup script
    context: dict[str, Any] = field(default_factory=lambda: {"version": 0, "hash": "", "resources": []})
    ran: list[list[str]] = field(default_factory=list)  # the MCP servers that it was asked to run, each time
    headers: dict[str, dict[str, str]] = field(default_factory=dict)  # of MCP servers with an address, by name
    asked_headers: list[str] = field(default_factory=list)  # the servers whose headers were fetched
    context_changed: asyncio.Event = field(default_factory=asyncio.Event)
    polled: asyncio.Event = field(default_factory=asyncio.Event)  # set when a request waits for a change of the context
    secrets: list[dict[str, str]] = field(default_factory=list)  # as they were received
    given: set[tuple[str, int]] = field(default_factory=set)  # starts that have received theirs
    floods: bool = False  # sends interim responses to every request, without end
    fails: DriverError | None = None
    starts: list[WorkspaceSpec] = field(default_factory=list)
    stops: list[tuple[str, int]] = field(default_factory=list)
    strays: list[Found] = field(default_factory=list)
    is_starting: asyncio.Event = field(default_factory=asyncio.Event)
    _agents: dict[str, web.AppRunner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate.set()

    async def start(self, ws: WorkspaceSpec, log: Log) -> Endpoint:
        self.starts.append(ws)
        self.is_starting.set()
        log("the driver begins")
        # Like a real driver: a record exists before the agent responds.
        self._row(ws.id).write_text(json.dumps({"generation": ws.generation, "token": ws.token}))
        (self.folder / f"{ws.id}.home").mkdir(exist_ok=True)
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        await self._serve(ws)
        log("the driver is done")
        return Endpoint(
            url=f"unix://{self._socket(ws.id)}",
            home="/home/agent",
            directory="/home/agent/project",
            network=ws.sandbox.network,
        )

    async def stop(self, ws: WorkspaceSpec, grace: float) -> None:
        self.stops.append((ws.id, ws.generation))
        await self.kill(ws.id)

    async def delete(self, ws: WorkspaceSpec) -> None:
        if self.fails is not None:
            raise self.fails
        await self.kill(ws.id)
        home = self.folder / f"{ws.id}.home"
        if home.exists():
            home.rmdir()

    async def probe(self, ws: WorkspaceSpec) -> Probe:
        found = self._found(ws.id)
        return Probe(alive=found is not None and found["generation"] == ws.generation, answers=ws.id in self._agents)

    def connector(self, ws: WorkspaceSpec) -> UnixPath:
        return UnixPath(self._socket(ws.id))

    async def list_running(self) -> list[Found]:
        names = [path.stem for path in self.folder.glob("*.row")]
        return [Found(name, found["generation"], 1) for name in names if (found := self._found(name)) is not None]

    async def stop_stray(self, found: Found) -> None:
        self.strays.append(found)
        await self.kill(found.workspace_id)

    async def kill(self, workspace_id: str) -> None:
        """End a sandbox from outside, as a machine that runs out of memory does."""
        self._row(workspace_id).unlink(missing_ok=True)
        if (runner := self._agents.pop(workspace_id, None)) is not None:
            await runner.cleanup()

    async def close(self) -> None:
        for workspace_id in list(self._agents):
            await self.kill(workspace_id)

    def has_files(self, workspace_id: object) -> bool:
        return (self.folder / f"{workspace_id}.home").exists()

    async def _serve(self, ws: WorkspaceSpec) -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            if self.floods:
                await _flood(request)
            if request.headers.get("Authorization") != f"Bearer {ws.token}":
                return web.json_response({"code": "unauthenticated", "message": "No."}, status=401)
            if request.path == "/v1/secrets":
                if (ws.id, ws.generation) in self.given:
                    return web.json_response({"code": "secrets_given", "message": "Given."}, status=409)
                self.given.add((ws.id, ws.generation))
                self.secrets.append((await request.json())["secrets"])
                return web.json_response({"ok": True})
            if request.path == "/v1/git/watch":
                return await self._watch(request)
            if request.path == "/v1/git/scan":
                self.scanned.set()
                return web.json_response({"type": "changes", "repositories": self.repositories})
            if request.path == "/v1/context":
                return await self._context(request)
            if request.path == "/v1/results":
                path = f"/home/agent/.rookery/results/{request.query['name']}"
                self.files[path] = await request.read()
                return web.json_response({"path": path})
            if request.path == "/v1/mcp/servers":
                return self._run_servers(await request.json())
            if request.path == "/v1/mcp/headers":
                return self._give_headers(await request.json())
            if request.path == "/v1/files/list":
                path = (await request.json())["path"]
                if path not in self.folders:
                    return web.json_response({"code": "not_found", "message": f"{path} is not there."}, status=404)
                return web.json_response({"path": path, "entries": self.folders[path]})
            if (request.method, request.path) == ("GET", "/v1/files"):
                path, limit = request.query["path"], int(request.query["limit"])
                if path not in self.files:
                    return web.json_response({"code": "not_found", "message": f"{path} is not there."}, status=404)
                return web.Response(body=self.files[path][:limit])
            if request.path == "/v1/scripts/log":
                printed = self.printed.encode()
                since = int(request.query.get("since", "0"))
                return web.json_response({"output": printed[since:].decode(), "cursor": len(printed)})
            shown = {"generation": ws.generation, "api": 1, "os": "linux", "arch": "x86_64", **self.health}
            return web.json_response(shown)

        if (old := self._agents.pop(ws.id, None)) is not None:
            await old.cleanup()
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", handle)
        runner = web.AppRunner(application, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, self._socket(ws.id)).start()
        self._agents[ws.id] = runner

    def tell(self, text: str) -> None:
        """Set the project's instructions."""
        resource = {"kind": "instruction_file", "source": "/p/AGENTS.md", "body": text, "size": len(text)}
        version = self.context["version"] + 1
        self.context = {"version": version, "hash": f"h{version}", "resources": [resource]}
        self.context_changed.set()

    def name_servers(self, *entries: dict[str, Any]) -> None:
        """Set the MCP servers that files of the workspace name. None of them runs, and the agent forgets consents."""
        self._tell_servers([{**each, "env": sorted(each["env"])} for each in entries], [])

    def _run_servers(self, body: dict[str, Any]) -> web.Response:
        self.ran.append([each["name"] for each in body["servers"]])
        named = [each["entry"] for each in self.context["resources"] if each["kind"] == "mcp_server"]
        self._tell_servers(named, body["servers"])
        return web.json_response({"running": self.ran[-1]})

    def _tell_servers(self, named: list[dict[str, Any]], agreed: list[dict[str, Any]]) -> None:
        version = self.context["version"] + 1
        resources = [
            {
                "kind": "mcp_server",
                "source": each["name"],
                "entry": each,
                **(self._running(each) if each in agreed else {"status": "pending"}),
            }
            for each in named
        ]
        self.context = {"version": version, "hash": "h", "resources": resources}
        self.context_changed.set()

    def _running(self, entry: dict[str, Any]) -> dict[str, Any]:
        if "command" in entry:
            return {"status": "ok", "tools": [{"name": "look"}]}
        values = json.dumps(self.headers.get(entry["name"], {}), sort_keys=True)
        return {"status": "ok", "tools": [], "hash": hashlib.sha256(values.encode()).hexdigest()}

    def _give_headers(self, body: dict[str, Any]) -> web.Response:
        self.asked_headers.append(body["server"])
        named = [each["entry"] for each in self.context["resources"] if each["kind"] == "mcp_server"]
        if body["entry"] not in named:
            return web.json_response({"code": "not_agreed", "message": "It has changed."}, status=409)
        return web.json_response({"headers": self.headers.get(body["server"], {})})

    def change_headers(self, name: str, **headers: str) -> None:
        """Give a server that runs new values of its headers, as a change of the file does."""
        self.headers[name] = headers
        running = [each["entry"] for each in self.context["resources"] if each.get("status") == "ok"]
        self._tell_servers([each["entry"] for each in self.context["resources"]], running)

    async def _context(self, request: web.Request) -> web.StreamResponse:
        after, wait_s = int(request.query["after"]), float(request.query["wait_s"])
        if after == self.context["version"] and wait_s > 0:
            self.context_changed.clear()
            self.polled.set()
            await self.context_changed.wait()
        return web.Response(status=304) if after == self.context["version"] else web.json_response(self.context)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """Send the repositories now, and again after every scan."""
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            self.scanned.clear()
            message = {"type": "changes", "repositories": self.repositories}
            await response.write(json.dumps(message).encode() + b"\n")
            await self.scanned.wait()

    def _row(self, workspace_id: str) -> Path:
        return self.folder / f"{workspace_id}.row"

    def _socket(self, workspace_id: str) -> str:
        return str(self.folder / f"{workspace_id[:8]}.s")

    def _found(self, workspace_id: str) -> dict[str, Any] | None:
        path = self._row(workspace_id)
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return found


async def _flood(request: web.Request) -> None:
    assert request.transport is not None
    while not request.transport.is_closing():
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
        await asyncio.sleep(0)
