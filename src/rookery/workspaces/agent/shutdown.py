"""The shutdown of the agent, which ends all processes of the workspace. A request or a removed run directory starts it.

In a sandbox the kernel ends every process together with the agent. Without a sandbox, the agent finds its children and
adopted orphans in /proc.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from rookery.workspaces.agent.errors import invalid
from rookery.workspaces.agent.process import children
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.shared_state import Agent

TERMINATE_S = 5.0
KILL_S = 2.0
WATCH_S = 2.0
MAX_GRACE_S = 3600.0
_POLL_S = 0.05


class Shutdown:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._has_begun = False
        self.over = asyncio.Event()

    def begin(self, grace_s: float | None = None) -> None:
        """Begin the shutdown: run the shutdown script for at most `grace_s`, send TERM, and KILL after five seconds.

        With `grace_s` 0 the script is skipped. Repeated calls have no effect.
        """
        if not self._has_begun:
            self._has_begun = True
            self._agent.processes.stopping = True
            self._agent.background(self._run(grace_s))

    async def _run(self, grace_s: float | None) -> None:
        self._agent.log("shutting down")
        try:
            if grace_s != 0:
                await self._agent.scripts.run_shutdown(MAX_GRACE_S if grace_s is None else grace_s)
            await _end_all(self._agent, signal.SIGTERM, TERMINATE_S)
            await _end_all(self._agent, signal.SIGKILL, KILL_S)
        finally:
            self.over.set()

    async def handle(self, request: Request) -> Response:
        """Begin the shutdown and respond immediately. The shutdown is complete when the agent's process has ended."""
        body = await request.json()
        grace_s = body.get("grace_s")
        unknown = [name for name in body if name != "grace_s"]
        if unknown:
            raise invalid(unknown[0][:100], "is not known here")
        if grace_s is not None and (isinstance(grace_s, bool) or not isinstance(grace_s, (int, float)) or grace_s < 0):
            raise invalid("grace_s", "must be a number of seconds, 0 or more")
        self.begin(None if grace_s is None else min(float(grace_s), MAX_GRACE_S))
        return Response.json({"stopping": True}, 202)

    async def watch_directory(self, socket: str | None) -> None:
        """Shut down when the run directory is removed, because then no client can reach this agent."""
        while not self._has_begun:
            await asyncio.sleep(WATCH_S)
            if is_removed(self._agent.run_dir, socket):
                self._agent.log("the run directory is gone")
                self.begin(0)


def is_removed(run_dir: Path, socket: str | None) -> bool:
    try:
        if os.stat(run_dir).st_nlink == 0:  # removed, but still there as the root of a mount
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False
    names = [str(run_dir / "token"), str(run_dir / "config.json"), *([socket] if socket else [])]
    return not any(os.path.lexists(name) for name in names)


async def _end_all(agent: Agent, number: int, wait_s: float) -> None:
    """Send a signal to every process of the workspace. Wait at most `wait_s` until all have ended."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    if not _remaining(agent):
        return
    if os.getpid() == 1:
        with contextlib.suppress(OSError):
            os.kill(-1, number)
    else:
        for child in agent.children.alive():
            child.signal_group(number)
        for pid in children.descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, number)
    # The end of an orphan causes no event, so this polls.
    while _remaining(agent) and loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)


def _remaining(agent: Agent) -> Any:
    return agent.children.alive() or children.descendants()
