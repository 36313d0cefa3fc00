"""The start of the agent: read the run directory, listen, serve until it is told to end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rookery.workspaces.agent import config, editing, files, health
from rookery.workspaces.agent.agent import Agent
from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.disk import Disk
from rookery.workspaces.agent.journal import Journal
from rookery.workspaces.agent.log import Log
from rookery.workspaces.agent.routing import Router
from rookery.workspaces.agent.server import Server

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until shutdown. A start that cannot work ends with a sentence on standard error and in the log."""
    options = _options(arguments)
    run_dir = Path(options.run_dir).resolve()
    os.umask(0o022)
    # Python answers SIGINT with an exception. As the first process of a sandbox the agent leaves every signal at its
    # default, for then the kernel drops what processes inside send to it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log = Log(run_dir / "agent.log")
    try:
        journal = Journal(run_dir / "journal", Clock(), log)
        agent = Agent(config.load(run_dir), run_dir, config.load_token(run_dir), log, journal)
        journal.load()
        asyncio.run(_serve(agent, options.listen))
    except (config.ConfigError, OSError) as error:
        log(f"the agent cannot run: {error}")
        sys.exit(f"rookery-agent: {error}")


def build_router(agent: Agent) -> Router:
    """Every route of the agent."""
    router = Router()
    health.register(router, agent)
    disk = Disk(agent.config, agent.clock.monotonic)
    files.register(router, agent, disk)
    editing.register(router, agent, disk)
    return router


async def _serve(agent: Agent, listen: str | None) -> None:
    server = Server(agent, build_router(agent))
    where = await _listen(server, agent, listen)
    _write_identity(agent)
    agent.log(f"generation {agent.config.generation} listens on {where}")
    await asyncio.Event().wait()


async def _listen(server: Server, agent: Agent, listen: str | None) -> str:
    kind, _, place = (listen or f"unix:{agent.run_dir / 'agent.sock'}").partition(":")
    if kind == "unix" and place:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)  # of an agent that was killed: its driver starts one at a time
        await server.listen_unix(place)
        os.chmod(place, 0o600)
        return f"unix:{place}"
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    if kind != "tcp" or host not in LOOPBACK or not port.isdigit():
        raise config.ConfigError("--listen takes unix:PATH or tcp:HOST:PORT with a host of the loopback")
    return f"tcp:{host}:{await server.listen_tcp(host, int(port))}"


def _write_identity(agent: Agent) -> None:
    """Say who runs here; the driver finds the process again by it after a restart of the server."""
    value = {"pid": os.getpid(), "pid_start": _pid_start(), "generation": agent.config.generation}
    temporary = agent.run_dir / "agent.json.new"
    temporary.write_text(json.dumps(value) + "\n")
    os.replace(temporary, agent.run_dir / "agent.json")


def _pid_start() -> int | None:
    """When this process began, in the kernel's ticks since boot: with it a pid names one process for good."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rookery-agent", description="The workspace agent of Rookery.")
    parser.add_argument("--run-dir", required=True, metavar="DIR", help="where token and config.json are")
    parser.add_argument(
        "--listen", help="unix:PATH or tcp:HOST:PORT (loopback); default: agent.sock in the run directory"
    )
    return parser.parse_args(arguments)
