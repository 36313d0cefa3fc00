"""The public port: bound before any other part starts, served by a replica, and released in order."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

from rookery.app.replica import Replica
from rookery.cli.serve.stop_signals import Stop
from rookery.runtime import heap
from rookery.server.listener import PUBLIC_OPTIONS, InProcessServer, limit_unacknowledged
from rookery.server.proxy_headers import ProxyHeaders
from rookery.settings.settings import Settings, url_of
from rookery.settings.value_types import Address

BACKLOG = 1024
# The time limit of requests that still run after all other parts have ended.
LEAST_SECONDS = 1
# The mode of a unix socket: for the user and the group of the server.
UNIX_MODE = 0o660
PROBE_SECONDS = 1.0


class CannotListen(Exception):
    """Raised when the address to listen on is not available."""


@contextmanager
def bound(address: Address, flag: str = "--listen") -> Iterator[socket.socket]:
    """Bind the port before any other part starts, so that a second server fails within milliseconds."""
    if address.path is not None:
        with _unix(Path(address.path), flag) as listening:
            yield listening
        return
    try:
        listening = _listen(address)
    except OSError as error:
        raise CannotListen(_bind_error(error, address, flag)) from error
    with listening:
        limit_unacknowledged(listening)
        yield listening


@contextmanager
def _unix(path: Path, flag: str) -> Iterator[socket.socket]:
    """Bind a unix socket for a proxy of the same user or group. A socket left by a killed server is replaced."""
    _remove_dead(path, flag)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o777 & ~UNIX_MODE)  # the mode applies from the creation of the socket on
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise CannotListen(f"Cannot listen on unix:{path}: {error.strerror or error}. See {flag}.") from error
    made = path.stat()
    try:
        with listening:
            yield listening
    finally:
        with suppress(OSError):
            if (found := path.stat()).st_ino == made.st_ino and found.st_dev == made.st_dev:
                path.unlink()


def _remove_dead(path: Path, flag: str) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotListen(f"Cannot listen on unix:{path}: {error.strerror or error}. See {flag}.") from error
    if not stat.S_ISSOCK(kind):
        raise CannotListen(f"{path} exists and is not a socket. Choose another path with {flag}.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                path.unlink()
            return
        except OSError:
            pass  # the server is alive but busy, or the socket belongs to another user
    raise CannotListen(f"unix:{path} is already in use. Stop its program, or choose another with {flag}.")


def displayed_address(settings: Settings, listening: socket.socket) -> str:
    port = port_of(listening)
    if port is None or port == settings.listen.port:
        return settings.external_url
    return url_of(Address(settings.listen.host, port), has_tls=settings.tls_cert is not None)


def port_of(listening: socket.socket) -> int | None:
    """Return the port; None for a unix socket, which has a path instead."""
    if listening.family == socket.AF_UNIX:
        return None
    port: int = listening.getsockname()[1]
    return port


async def serve_until_stopped(
    settings: Settings,
    replica: Replica,
    listening: socket.socket,
    *,
    stop: Stop,
    on_ready: Callable[[], Awaitable[None]],
) -> None:
    """Serve requests until a stop is requested. Then let the work end, and ask clients to reconnect."""
    # The settings may let the system choose the port.
    if (port := port_of(listening)) is not None:
        replica.workspaces.add_own_port(port)
        replica.api.mcp.add_own_port(port)
    server = InProcessServer(
        uvicorn.Config(
            ProxyHeaders(
                replica.application,
                networks=settings.trusted_proxies,
                secret=settings.proxy_secret,
                header=settings.proxy_secret_header,
            ),
            **PUBLIC_OPTIONS,
            log_config=None,  # its own handlers would bypass ours, and its access lines contain query strings
            access_log=False,
            log_level="warning",
            lifespan="off",
            server_header=False,
            date_header=False,
            proxy_headers=False,  # our middleware checks the secret
            # Connections of these peers do not count as unauthenticated. If a secret is set, they have to present it
            # first.
            forwarded_allow_ips=[] if settings.proxy_secret else list(settings.trusted_proxies),
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
    )
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listening]), name="http")
        await server.up.wait()
        stop.serving = True
        heap.freeze_startup_objects()
        await on_ready()
        await stop.requested.wait()
        began = asyncio.get_running_loop().time()
        # Load balancers check readiness. It changes first, and requests are still served during the delay.
        await replica.announce_stop()
        if stop.is_alone:
            server.stop_listening()
        await asyncio.gather(_delay(settings, replica), replica.worker.drain())
        await replica.leave()
        left = settings.drain_timeout.total_seconds() - (asyncio.get_running_loop().time() - began)
        server.config.timeout_graceful_shutdown = max(LEAST_SECONDS, round(left))
        server.should_exit = True
        await serving


async def _delay(settings: Settings, replica: Replica) -> None:
    await asyncio.sleep(settings.shutdown_delay.total_seconds())
    replica.streams.sessions.stop_admitting()


def _listen(address: Address) -> socket.socket:
    if not address.host:
        return socket.create_server(("", address.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    family, _, _, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(target[:2], family=family, backlog=BACKLOG)


def _bind_error(error: OSError, address: Address, flag: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"{address} is already in use. Stop its program, or choose another address with {flag}."
        case errno.EACCES:
            return f"{address} may not be used by this user. Choose a port above 1023 with {flag}."
        case errno.EADDRNOTAVAIL:
            return f"{address} is not an address of this machine. Choose another with {flag}."
    return f"Cannot listen on {address}: {error.strerror or error}. Choose another address with {flag}."
