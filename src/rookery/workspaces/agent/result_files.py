"""Tool results that are too large for a model, kept as files of the workspace: `PUT /v1/results`."""

from __future__ import annotations

import asyncio
import os

from rookery.workspaces.agent import paths
from rookery.workspaces.agent.disk import Disk
from rookery.workspaces.agent.errors import invalid
from rookery.workspaces.agent.journal import Attempt, hash_of
from rookery.workspaces.agent.process import spill_file
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.state import Agent

MAX_RESULT_BYTES = 16 * 1024 * 1024


class Results:
    """Stores results of tools that the server runs, when they are too large for the model."""

    def __init__(self, agent: Agent, disk: Disk) -> None:
        self._agent = agent
        self._disk = disk

    async def write(self, request: Request) -> Response:
        name = request.text("name")
        if not spill_file.is_name(name):
            raise invalid("name", "must be letters, digits, hyphens and underscores")
        data = await request.read(MAX_RESULT_BYTES)

        async def run(attempt: Attempt) -> Response:
            return Response.json({"path": await asyncio.to_thread(self._write, name, data)})

        digest = hash_of(name, data) if request.idempotency_key is not None else ""
        return await self._agent.journal.once(request.idempotency_key, "result", digest, run)

    def _write(self, name: str, data: bytes) -> str:
        self._disk.require(len(data))
        home = self._agent.config.home
        try:
            descriptor, path = spill_file.new_file(home, name)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError as error:
            raise paths.refusal(error, os.path.join(home, spill_file.FOLDER)) from error
        return path


def register(router: Router, agent: Agent, disk: Disk) -> None:
    router.add("PUT", "/v1/results", Results(agent, disk).write, query=("name",))
