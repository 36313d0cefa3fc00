"""A scripted agent on a real socket: slow, silent, broken, lying."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeAgent:
    """`answers` by path take precedence over the default health; `requests` are the received requests."""

    path: str
    generation: int = 1
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[web.Request] = field(default_factory=list)
    health: dict[str, Any] = field(default_factory=dict)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        await request.read()
        if (answer := self.answers.get(request.path)) is not None:
            return await answer(request)
        if request.path == "/v1/health":
            return web.json_response({"generation": self.generation, "api": 1, "home": "/home/agent", **self.health})
        return web.json_response({"code": "not_found", "message": "There is no such thing."}, status=404)


class UnixPath:
    """A connector to a socket on this machine."""

    def __init__(self, path: str) -> None:
        self.unix_path: str | None = path
        self.is_closed = False

    async def prepare(self) -> None:
        pass

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self.unix_path is not None
        return await asyncio.open_unix_connection(self.unix_path)

    async def close(self) -> None:
        self.is_closed = True


@asynccontextmanager
async def fake_agent(generation: int = 1, **health: Any) -> AsyncIterator[FakeAgent]:
    with tempfile.TemporaryDirectory(prefix="rk") as folder:
        agent = FakeAgent(str(Path(folder) / "agent.sock"), generation=generation, health=health)
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_route("*", "/{tail:.*}", agent.handle)
        runner = web.AppRunner(application, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, agent.path).start()
        try:
            yield agent
        finally:
            await runner.cleanup()
