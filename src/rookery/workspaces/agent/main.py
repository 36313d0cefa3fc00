"""The entry point of the agent: reads the run directory, listens, and serves requests until shutdown."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rookery.workspaces.agent import config, files, health
from rookery.workspaces.agent import context as contexts
from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.context import Context
from rookery.workspaces.agent.disk_limit import Disk
from rookery.workspaces.agent.edit import routes
from rookery.workspaces.agent.egress_forwarder import Forwarder
from rookery.workspaces.agent.git import routes as git_routes
from rookery.workspaces.agent.journal import Journal
from rookery.workspaces.agent.log import Log
from rookery.workspaces.agent.mcp import servers
from rookery.workspaces.agent.process import routes as process_routes
from rookery.workspaces.agent.process.children import Children, adopt_orphans
from rookery.workspaces.agent.process.processes import Processes
from rookery.workspaces.agent.scripts import Scripts
from rookery.workspaces.agent.server.connections import Server
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.shared_state import Agent
from rookery.workspaces.agent.shutdown import Shutdown

MAX_THREADS = 8
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until shutdown. If the agent cannot start, write the reason to standard error and to the log."""
    options = _options(arguments)
    run_dir = Path(options.run_dir).resolve()
    os.umask(0o022)
    # The first process of a sandbox must have no signal handlers: then the kernel drops signals that processes of the
    # sandbox send to it. Python installs a handler for SIGINT, so it is removed.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log = Log(run_dir / "agent.log")
    try:
        asyncio.run(_run(run_dir, options.listen, log))
    except (config.ConfigError, OSError) as error:
        log(f"the agent cannot run: {error}")
        sys.exit(f"rookery-agent: {error}")


def build_router(agent: Agent, shutdown: Shutdown, context: Context) -> Router:
    """Return the router with every route of the agent."""
    router = Router()
    disk = Disk(agent.config, agent.clock.monotonic)
    health.register(router, agent, context, disk)
    agent.background(disk.watch(agent.log))
    files.register(router, agent, disk)
    routes.register(router, agent, disk)
    process_routes.register(router, agent, disk)
    git_routes.register(router, agent)
    contexts.register(router, context)
    servers.register(router, context.servers)
    router.add("POST", "/v1/secrets", agent.scripts.take_secrets)
    router.add("POST", "/v1/scripts/startup", agent.scripts.show_startup)
    router.add("GET", "/v1/scripts/log", agent.scripts.show_log, query=("name", "since", "wait_s"))
    router.add("POST", "/v1/shutdown", shutdown.handle)
    return router


async def _run(run_dir: Path, listen: str | None, log: Log) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, details: log(f"{details.get('message')}: {details.get('exception')!r}"))
    loop.set_default_executor(ThreadPoolExecutor(MAX_THREADS, "agent", block_signals))
    agent = _assemble(run_dir, log)
    shutdown = Shutdown(agent)
    if os.getpid() != 1:
        # The first process of a sandbox adopts orphans anyway, and is ended from outside of the sandbox.
        adopt_orphans()
        loop.add_signal_handler(signal.SIGTERM, shutdown.begin)
    _make_working_directory(agent)
    agent.journal.load()
    agent.children.watch()
    context = Context(agent)
    server = Server(agent, build_router(agent, shutdown, context))
    where = await _listen(server, agent, listen)
    await _start_egress_forwarder(agent)
    log(f"generation {agent.config.generation} listens on {where}")
    _write_identity(agent)
    agent.background(agent.processes.sweep_regularly())
    agent.background(agent.scripts.run_startup())
    agent.background(context.follow())
    agent.background(shutdown.watch_directory(where[5:] if where.startswith("unix:") else None))
    await shutdown.over.wait()
    await server.close()
    log("ended")


def block_signals() -> None:
    """Block all signals in a worker thread.

    Python blocks signals in the main thread while it starts a program. The kernel then delivers a signal to another
    thread of the first process that does not block it, and the agent would end.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _assemble(run_dir: Path, log: Log) -> Agent:
    clock, children, settings = Clock(), Children(), config.load(run_dir)
    processes = Processes(children, clock)
    return Agent(
        config=settings,
        run_dir=run_dir,
        token=config.load_token(run_dir),
        log=log,
        journal=Journal(run_dir / "journal", clock, log),
        children=children,
        processes=processes,
        scripts=Scripts(settings, run_dir, processes, log),
        clock=clock,
    )


def _make_working_directory(agent: Agent) -> None:
    """Make the working directory if it is missing. A failure is only logged."""
    try:
        os.makedirs(agent.config.directory, exist_ok=True)
    except OSError as error:
        agent.log(f"the working directory cannot be made: {error}")


async def _listen(server: Server, agent: Agent, listen: str | None) -> str:
    kind, _, place = (listen or f"unix:{agent.run_dir / 'agent.sock'}").partition(":")
    if kind == "unix" and place:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)  # the socket of a killed agent; the driver runs one agent at a time
        await server.listen_unix(place)
        os.chmod(place, 0o600)
        return f"unix:{place}"
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    if kind != "tcp" or host not in LOOPBACK or not port.isdigit():
        raise config.ConfigError("--listen takes unix:PATH or tcp:HOST:PORT with a loopback host")
    return f"tcp:{host}:{await server.listen_tcp(host, int(port))}"


async def _start_egress_forwarder(agent: Agent) -> None:
    """Start the egress forwarder. Call this before the startup script, which may need the network.

    If it fails, the workspace runs without network.
    """
    if agent.config.egress is None:
        return
    try:
        port = await Forwarder(agent.config.egress, agent.log).listen()
    except OSError as error:
        agent.log(f"the proxy cannot listen: {error}")
    else:
        agent.log(f"the proxy listens on 127.0.0.1:{port}")


def _write_identity(agent: Agent) -> None:
    """Write `agent.json` with the process id and start time of this process."""
    value = {"pid": os.getpid(), "pid_start": _pid_start(), "generation": agent.config.generation}
    temporary = agent.run_dir / "agent.json.new"
    temporary.write_text(json.dumps(value) + "\n")
    os.replace(temporary, agent.run_dir / "agent.json")


def _pid_start() -> int | None:
    """Return the start time of this process in kernel ticks. With the process id it identifies the process."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rookery-agent", description="The workspace agent of Rookery.")
    parser.add_argument(
        "--run-dir", required=True, metavar="DIR", help="the directory that holds token and config.json"
    )
    parser.add_argument(
        "--listen", help="unix:PATH or tcp:HOST:PORT (loopback); default: agent.sock in the run directory"
    )
    return parser.parse_args(arguments)
