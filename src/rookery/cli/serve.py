"""`rookery serve`: the database, the schema, one replica and its port, until a signal ends them in order."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from rookery import __version__, app, log
from rookery.app import Replica
from rookery.cli.exits import Exit
from rookery.cli.output import Output
from rookery.setting_values import Address
from rookery.settings import Settings, url_of
from rookery.store.embedded.data_dir import Use
from rookery.worker.config import WorkerConfig

HARD_END_SECONDS = 15.0  # beyond drain_timeout
# Supervisors signal a process and its group: what comes this soon after another is the same request.
ECHO_SECONDS = 0.5
BACKLOG = 1024

_log = log.get_logger("serve")


class CannotListen(Exception):
    """The address to listen on cannot be had."""


class StopSignals:
    """SIGTERM and SIGINT: the first asks for an orderly end, the second skips the waiting, the third leaves at once.

    Before `serving` is set there is nothing to end in order yet, and the first one already cuts off.
    """

    def __init__(self, hard_end_seconds: float) -> None:
        self.requested = asyncio.Event()
        self.serving = False
        self._hard_end_seconds = hard_end_seconds
        self._work: asyncio.Task[None] | None = None
        self._count = 0
        self._last_at = float("-inf")

    @contextmanager
    def watching(self, work: asyncio.Task[None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._work = work
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, number.name)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _received(self, name: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last_at < ECHO_SECONDS:
            return
        self._last_at = now
        self._count += 1
        _log.info("stop_requested", signal=name, count=self._count)
        if self._count == 1:
            # Whatever hangs, hangs no longer than this: the operator asked for the process to end.
            asyncio.get_running_loop().call_later(self._hard_end_seconds, _leave_at_once)
        self.requested.set()
        if self._work is not None and (self._count == 2 or not self.serving):
            self._work.cancel()
        if self._count > 2:
            _leave_at_once()


def _leave_at_once() -> None:
    os._exit(Exit.FAILED)


async def run(settings: Settings, out: Output) -> int:
    """Serve until told to stop. Exit 0 after an orderly end, 130 when it was cut off."""
    stop = StopSignals(settings.drain_timeout.total_seconds() + HARD_END_SECONDS)
    work = asyncio.create_task(_serve(settings, out, stop), name="serve")
    with stop.watching(work):
        await asyncio.wait([work])
    if work.cancelled():
        out.error("Stopped before everything was finished; nothing committed is lost.")
        return Exit.INTERRUPTED
    try:
        work.result()
    except CannotListen as error:
        out.error(str(error))
        return Exit.FAILED
    return Exit.OK


async def _serve(settings: Settings, out: Output, stop: StopSignals) -> None:
    async with app.held_data_dir(settings, out.progress) as lock:
        with _bound(settings.listen) as listening:
            async with app.served_database(settings, lock, out.progress) as database:
                await app.prepare_schema(settings, database)
                ring = await app.prepare_models(settings, database, os.environ, with_offline=True)
                choices = app.Choices(
                    ring=ring,
                    environ=os.environ,
                    secrets=out.secrets,
                    worker=WorkerConfig(drain_seconds=settings.drain_timeout.total_seconds()),
                )
                async with app.running_replica(settings, database, choices) as replica:
                    lock.change_use(Use.SERVING)
                    await _serve_http(settings, replica, listening, out=out, stop=stop)


async def _serve_http(
    settings: Settings, replica: Replica, listening: socket.socket, *, out: Output, stop: StopSignals
) -> None:
    server = _Server(
        uvicorn.Config(
            replica.application,
            log_config=None,  # its own handlers would bypass ours, and its access lines carry query strings
            access_log=False,
            log_level="warning",
            ws="none",
            lifespan="off",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=max(1, round(settings.drain_timeout.total_seconds())),
            proxy_headers=False,
        )
    )
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listening]), name="http")
        stop.serving = True
        out.line(f"Rookery {__version__} is ready at {_address_for_people(settings, listening)} (Ctrl-C stops it)")
        _log.info("ready", version=__version__)
        await stop.requested.wait()
        out.progress("stopping")
        # Load balancers look at readiness: it turns first, and requests keep being served for the delay.
        await replica.announce_stop()
        await asyncio.gather(asyncio.sleep(settings.shutdown_delay.total_seconds()), replica.worker.drain())
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """Signals are handled above: the end has an order, and the port is only one part of it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _bound(address: Address) -> Iterator[socket.socket]:
    """The port is taken before anything is started, so that a second server fails within milliseconds."""
    try:
        listening = _listen(address)
    except OSError as error:
        raise CannotListen(_why_not(error, address)) from error
    with listening:
        yield listening


def _listen(address: Address) -> socket.socket:
    if not address.host:
        return socket.create_server(("", address.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    family, _, _, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(target[:2], family=family, backlog=BACKLOG)


def _why_not(error: OSError, address: Address) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"{address} is already in use. Stop what listens there, or choose another address with --listen."
        case errno.EACCES:
            return f"{address} may not be used by this user. Choose a port above 1023 with --listen."
        case errno.EADDRNOTAVAIL:
            return f"{address} is not an address of this machine. Choose another with --listen."
    return f"Cannot listen on {address}: {error.strerror or error}. Choose another address with --listen."


def _address_for_people(settings: Settings, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    if port == settings.listen.port:
        return settings.external_url
    return url_of(Address(settings.listen.host, port))
