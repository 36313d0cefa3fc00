"""One of several replicas, as a process (`python -m rookery.cli.serve.replica`), started by `rookery serve`.

It serves a port that its parent has opened, with a database that its parent supervises. When the parent has ended, the
replica stops in order, without accepting new clients. The last replica to end stops the embedded database.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from rookery.app import installation
from rookery.app.replica import Choices, Replica, running_replica
from rookery.cli import main as cli
from rookery.cli.exit_codes import Exit
from rookery.cli.output import Output
from rookery.cli.serve import port
from rookery.cli.serve.replica_messages import HURRY, STOP, Orders, Ready, read_line
from rookery.cli.serve.stop_signals import Stop, leave_at_once
from rookery.runtime import heap
from rookery.settings import settings
from rookery.store.db import migrate
from rookery.store.db.embedded import postmaster as postmasters
from rookery.store.db.embedded.data_dir import DataDirLock, Use, remove_socket_dir
from rookery.store.db.errors import DataDirInUse
from rookery.store.db.pool import Database
from rookery.telemetry import log

HARD_END_SECONDS = 15.0  # in addition to drain_timeout
DATABASE_STOP_SECONDS = 30.0
SIBLINGS_FILE = "replicas.lock"
_STDIN, _STDOUT = 0, 1

_log = log.get_logger("serve")


def main() -> int:
    heap.share_heap()
    line = read_line(_STDIN)
    if line is None:
        return Exit.FAILED
    orders = Orders.decode(line)
    # stdout is the pipe to the parent; messages for users go to stderr.
    out = Output(sys.stderr, sys.stderr)
    for name, literal in settings.secret_literals(orders.settings):
        out.secrets.add(name, literal)
    out.show_tracebacks = orders.settings.log_level == "debug"
    form, level = orders.settings.log_format, orders.settings.log_level
    try:
        return cli.run(lambda out: cli.run_async(_run(orders, out), out, log_format=form, log_level=level), out)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


async def _run(orders: Orders, out: Output) -> int:
    hard_end = (orders.settings.shutdown_delay + orders.settings.drain_timeout).total_seconds() + HARD_END_SECONDS
    stop = Stop(hard_end, has_siblings=True)
    parent = ParentPipe(stop, hard_end)
    with _siblings(orders.settings.data_dir) as siblings:
        work = asyncio.create_task(_serve(orders, out, stop), name="serve")
        with stop.watching(work):
            parent.follow()
            await asyncio.wait([work])
        if parent.is_gone and orders.settings.database_url is None:
            await asyncio.to_thread(_stop_database_if_last, orders.settings.data_dir, siblings)
    if work.cancelled():
        return Exit.INTERRUPTED
    work.result()
    return Exit.OK


async def _serve(orders: Orders, out: Output, stop: Stop) -> None:
    with socket.socket(fileno=orders.descriptor) as listening:
        config = installation.database_config(orders.settings, orders.database_url)
        async with await Database.connect(config) as database:
            async with database.api.acquire() as conn:
                await migrate.check(conn, advice="Start the whole server again.")
            choices = Choices(
                index=orders.index,
                ring=await installation.prepare_models(orders.settings, database, os.environ),
                environ=os.environ,
                secrets=out.secrets,
            )
            async with running_replica(orders.settings, database, choices) as replica:

                async def on_ready() -> None:
                    _log.info("ready", index=orders.index)
                    _report(replica)

                await port.serve_until_stopped(orders.settings, replica, listening, stop=stop, on_ready=on_ready)


def _report(replica: Replica) -> None:
    ready = Ready(replica_id=replica.id, internal=replica.presence.replica.relay_unix)
    os.write(_STDOUT, msgspec.json.encode(ready) + b"\n")


class ParentPipe:
    """Reads the parent's messages in a thread. A process whose event loop hangs must also end with its parent."""

    def __init__(self, stop: Stop, hard_end_seconds: float) -> None:
        self.is_gone = False
        self._stop = stop
        self._hard_end_seconds = hard_end_seconds

    def follow(self) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read_messages, args=(loop,), name="parent", daemon=True).start()

    def _read_messages(self, loop: asyncio.AbstractEventLoop) -> None:
        # If the loop is closed, the process is already ending.
        with suppress(RuntimeError):
            while (line := read_line(_STDIN)) is not None:
                loop.call_soon_threadsafe(self._on_message, line.decode())
            loop.call_soon_threadsafe(self._orphaned)
        time.sleep(self._hard_end_seconds)
        leave_at_once()

    def _on_message(self, word: str) -> None:
        if word == STOP:
            self._stop.ask()
        elif word == HURRY:
            self._stop.ask()
            self._stop.cut()

    def _orphaned(self) -> None:
        _log.warning("parent_gone")
        self.is_gone = True
        # The port is released immediately, because a restarted server needs it.
        self._stop.ask(is_alone=True)


@contextmanager
def _siblings(data_dir: Path) -> Iterator[int]:
    """A lock that all replicas of a data directory share. With it, a replica can detect that it is the last one."""
    descriptor = os.open(data_dir / SIBLINGS_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


def _stop_database_if_last(data_dir: Path, siblings: int) -> None:
    """Stop a database whose server was killed. A database that a new server has taken over is not stopped."""
    try:
        fcntl.flock(siblings, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with DataDirLock(data_dir, Use.VISITING):
            cluster = data_dir / "postgres"
            pid_file = postmasters.read_pid_file(cluster)
            postmaster = postmasters.find_postmaster(cluster, pid_file)
            if postmaster is not None:
                postmaster.stop(DATABASE_STOP_SECONDS)
                postmaster.close()
            if pid_file is not None and pid_file.socket_dir is not None:
                remove_socket_dir(data_dir, pid_file.socket_dir)
    except (BlockingIOError, DataDirInUse):
        return


if __name__ == "__main__":
    raise SystemExit(main())
