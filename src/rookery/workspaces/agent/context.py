"""The context of the workspace for the model: follows changes and serves requests for it, which may wait for a change.

The standard library has no inotify, so the fixed paths are checked every two seconds. Versions continue after a restart
of the agent in the same boot, because the server never accepts a lower version.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from rookery.workspaces.agent.discovery import Discovery, Found
from rookery.workspaces.agent.mcp.servers import McpServers
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.state import Agent

POLL_S = 2.0
DEBOUNCE_S = 0.25
MAX_WAIT_S = 60.0
# A file that changes all the time is read as it is after this many checks.
_MAX_LOOKS = 8
_RECORD = "context.json"


class Context:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        settings = agent.config
        self._discovery = Discovery(settings.home, settings.directory, settings.context_sources)
        self._found: Found | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self.servers = McpServers(agent, self._heard)
        self.version = 0

    async def follow(self) -> None:
        """Check for changes forever, once the startup script has ended: its partial writes must not be seen."""
        await self._agent.scripts.startup_ended.wait()
        earlier = self._earlier_version()
        signature: object = None
        while True:
            try:
                looked = await self._in_thread(self._discovery.signature)
                if looked != signature:
                    signature = await self._settled(looked)
                    found = await self._in_thread(self._discovery.find)
                    self.servers.update(found.servers())
                    self._take(found, earlier)
            except Exception as error:
                self._agent.log(f"context: {error!r}")
            await asyncio.sleep(POLL_S)

    async def _settled(self, looked: object) -> object:
        """Wait until the watched paths stop changing, and return their signature."""
        if self._found is None:
            return looked
        for _ in range(_MAX_LOOKS):
            await asyncio.sleep(DEBOUNCE_S)
            again = await self._in_thread(self._discovery.signature)
            if again == looked:
                break
            looked = again
        return looked

    def _take(self, found: Found, earlier: int) -> None:
        if found == self._found:
            return
        self._found = found
        self.version = max(self.version, earlier)
        self._tell()

    def _heard(self) -> None:
        """Publish a new version: an MCP server of the workspace has other tools."""
        if self._found is not None:
            self._tell()

    def _tell(self) -> None:
        self.version += 1
        try:
            self._remember()
        except OSError as error:
            # For example on a full disk. Waiting requests get their response anyway.
            self._agent.log(f"context: the version could not be written down: {error}")
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def show(self, request: Request) -> Response:
        after = request.optional_number("after")
        wait_s = request.seconds("wait_s", cap=MAX_WAIT_S)
        if after is not None and after == self.version and wait_s > 0:
            await self._changed(wait_s, request.gone)
        if after is not None and after == self.version:
            return Response(304)
        return Response.json(self._described())

    async def _changed(self, wait_s: float, gone: asyncio.Event) -> None:
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

    def _earlier_version(self) -> int:
        try:
            value = json.loads((self._agent.run_dir / _RECORD).read_bytes()[:4096])
            return int(value["version"]) if value["generation"] == self._agent.config.generation else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _remember(self) -> None:
        value = {"generation": self._agent.config.generation, "version": self.version}
        temporary = self._agent.run_dir / (_RECORD + ".new")
        temporary.write_text(json.dumps(value) + "\n")
        os.replace(temporary, self._agent.run_dir / _RECORD)


def register(router: Router, context: Context) -> None:
    router.add("GET", "/v1/context", context.show, query=("after", "wait_s"))
