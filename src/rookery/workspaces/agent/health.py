"""`GET /v1/health`: the version of the agent, and the state of the workspace."""

from __future__ import annotations

import getpass
import platform

from rookery.workspaces.agent.context import Context
from rookery.workspaces.agent.disk_limit import Disk
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.shared_state import API, VERSION, Agent


class Health:
    def __init__(self, agent: Agent, context: Context, disk: Disk) -> None:
        self._context = context
        self._disk = disk
        self._agent = agent
        self._started = agent.clock.monotonic()
        self._user = _user()

    async def show(self, request: Request) -> Response:
        agent = self._agent
        return Response.json(
            {
                "version": VERSION,
                "api": API,
                "generation": agent.config.generation,
                "ready": agent.scripts.startup_ended.is_set(),
                "agent_state": agent.scripts.state,
                "startup_exit_code": agent.scripts.exit_code,
                "os": platform.system().lower(),
                "arch": platform.machine(),
                "user": self._user,
                "home": agent.config.home,
                "directory": agent.config.directory,
                "uptime_s": round(agent.clock.monotonic() - self._started, 3),
                "processes": agent.processes.count_running(),
                "context_version": self._context.version,
                "disk_used": self._disk.used,
                "disk_limit": self._disk.limit,
            }
        )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "agent"  # the user id has no name


def register(router: Router, agent: Agent, context: Context, disk: Disk) -> None:
    router.add("GET", "/v1/health", Health(agent, context, disk).show)
