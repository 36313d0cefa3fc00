"""The public port: taken before anything else is started, served by a replica, and let go of in order."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn

from rookery import garbage
from rookery.app import Replica
from rookery.cli.stopping import Stop
from rookery.setting_values import Address
from rookery.settings import Settings, url_of
from rookery.stream.listening import PUBLIC_OPTIONS, QuietServer, limit_unacknowledged

BACKLOG = 1024
# Of requests that are still at work when everything else has ended.
LEAST_SECONDS = 1


class CannotListen(Exception):
    """The address to listen on cannot be had."""


@contextmanager
def bound(address: Address, flag: str = "--listen") -> Iterator[socket.socket]:
    """The port is taken before anything is started, so that a second server fails within milliseconds."""
    try:
        listening = _listen(address)
    except OSError as error:
        raise CannotListen(_why_not(error, address, flag)) from error
    with listening:
        limit_unacknowledged(listening)
        yield listening


def address_for_people(settings: Settings, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    if port == settings.listen.port:
        return settings.external_url
    return url_of(Address(settings.listen.host, port), has_tls=settings.tls_cert is not None)


async def serve_until_stopped(
    settings: Settings,
    replica: Replica,
    listening: socket.socket,
    *,
    stop: Stop,
    on_ready: Callable[[], Awaitable[None]],
) -> None:
    """Serve requests until somebody asks to stop; then let the work end, and the clients go elsewhere."""
    # The settings may leave the choice of it to the system.
    replica.workspaces.add_own_port(listening.getsockname()[1])
    server = QuietServer(
        uvicorn.Config(
            replica.application,
            **PUBLIC_OPTIONS,
            log_config=None,  # its own handlers would bypass ours, and its access lines carry query strings
            access_log=False,
            log_level="warning",
            lifespan="off",
            server_header=False,
            date_header=False,
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=list(settings.trusted_proxies),
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
    )
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listening]), name="http")
        await server.up.wait()
        stop.serving = True
        garbage.leave_start_alone()
        await on_ready()
        await stop.requested.wait()
        began = asyncio.get_running_loop().time()
        # Load balancers look at readiness: it turns first, and requests keep being served for the delay.
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


def _why_not(error: OSError, address: Address, flag: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"{address} is already in use. Stop what listens there, or choose another address with {flag}."
        case errno.EACCES:
            return f"{address} may not be used by this user. Choose a port above 1023 with {flag}."
        case errno.EADDRNOTAVAIL:
            return f"{address} is not an address of this machine. Choose another with {flag}."
    return f"Cannot listen on {address}: {error.strerror or error}. Choose another address with {flag}."
