"""`GET /v1/context`: the context resources of the workspace, with a version. A request may wait for the next version.

The standard library has no inotify, so the watched paths are checked every two seconds. A restarted agent continues the
version numbers of its boot, because the server accepts no lower version.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from rookery.workspaces.agent.context_discovery import Discovery, Found
from rookery.workspaces.agent.mcp.servers import McpServers
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.shared_state import Agent

POLL_S = 2.0
DEBOUNCE_S = 0.25
MAX_WAIT_S = 60.0
# A file that keeps changing is read after this many checks.
_MAX_CHECKS = 8
_RECORD = "context.json"


class Context:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        settings = agent.config
        self._discovery = Discovery(settings.home, settings.directory, settings.context_sources)
        self._found: Found | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self.servers = McpServers(agent, self._on_servers_changed)
        self.version = 0

    async def follow(self) -> None:
        """Check for changes forever.

        The checks start after the startup script, so that its partial writes are not reported.
        """
        await self._agent.scripts.startup_ended.wait()
        earlier = self._recorded_version()
        signature: object = None
        while True:
            try:
                seen = await self._in_thread(self._discovery.signature)
                if seen != signature:
                    signature = await self._wait_until_settled(seen)
                    found = await self._in_thread(self._discovery.find)
                    self.servers.update(found.servers())
                    self._store(found, earlier)
            except Exception as error:
                self._agent.log(f"context: {error!r}")
            await asyncio.sleep(POLL_S)

    async def _wait_until_settled(self, seen: object) -> object:
        """Wait until the watched paths stop changing, and return their signature."""
        if self._found is None:
            return seen
        for _ in range(_MAX_CHECKS):
            await asyncio.sleep(DEBOUNCE_S)
            again = await self._in_thread(self._discovery.signature)
            if again == seen:
                break
            seen = again
        return seen

    def _store(self, found: Found, earlier: int) -> None:
        if found == self._found:
            return
        self._found = found
        self.version = max(self.version, earlier)
        self._publish()

    def _on_servers_changed(self) -> None:
        """Publish a new version, because the tools of an MCP server have changed."""
        if self._found is not None:
            self._publish()

    def _publish(self) -> None:
        self.version += 1
        try:
            self._write_version()
        except OSError as error:
            # For example, the disk is full. Waiting requests get their response anyway.
            self._agent.log(f"context: the version could not be stored: {error}")
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def show(self, request: Request) -> Response:
        after = request.optional_number("after")
        wait_s = request.seconds("wait_s", cap=MAX_WAIT_S)
        if after is not None and after == self.version and wait_s > 0:
            await self._wait_for_change(wait_s, request.gone)
        if after is not None and after == self.version:
            return Response(304)
        return Response.json(self._described())

    async def _wait_for_change(self, wait_s: float, gone: asyncio.Event) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        leaving = asyncio.ensure_future(gone.wait())
        either: set[asyncio.Future[Any]] = {waiter, leaving}
        try:
            await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            self._waiters.discard(waiter)

    def _described(self) -> dict[str, Any]:
        if self._found is None:
            return {"version": 0, "hash": "", "resources": []}
        answer: dict[str, Any] = {"version": self.version, "hash": self._found.hash()}
        if self._found.error is not None:
            answer["error"] = self._found.error
        resources = [item.described(ordinal) for ordinal, item in enumerate(self._found.resources)]
        answer["resources"] = resources + self.servers.described(len(resources))
        return answer

    async def _in_thread(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, work)

    def _recorded_version(self) -> int:
        try:
            value = json.loads((self._agent.run_dir / _RECORD).read_bytes()[:4096])
            return int(value["version"]) if value["generation"] == self._agent.config.generation else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _write_version(self) -> None:
        value = {"generation": self._agent.config.generation, "version": self.version}
        temporary = self._agent.run_dir / (_RECORD + ".new")
        temporary.write_text(json.dumps(value) + "\n")
        os.replace(temporary, self._agent.run_dir / _RECORD)


def register(router: Router, context: Context) -> None:
    router.add("GET", "/v1/context", context.show, query=("after", "wait_s"))
