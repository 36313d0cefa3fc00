"""Listening sockets set up for streams, and the internal listener that other replicas dial.

The connection of a client that stopped reading cannot be closed cleanly, because the close frame waits behind unread
data. With an option of the listening socket, the kernel drops such a connection if nothing was acknowledged for half a
minute.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from rookery.server.request_timeouts import MAX_HEAD_BYTES, CountedWebSocketProtocol, TimedHttpProtocol

USER_TIMEOUT_MS = 30_000
PING_SECONDS = 20.0
PUBLIC_MAX_BYTES = 64 * 1024
INTERNAL_MAX_BYTES = 4 * 1024 * 1024
STOP_SECONDS = 3
# For TLS clients. Until the handshake is done, no other limit applies to the connection.
HANDSHAKE_SECONDS = 10.0
BACKLOG = 1024

# Options for `uvicorn.Config` of the public port.
PUBLIC_OPTIONS: dict[str, Any] = {
    "http": TimedHttpProtocol,
    "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
    "ws": CountedWebSocketProtocol,
    "ws_max_size": PUBLIC_MAX_BYTES,
    "ws_ping_interval": PING_SECONDS,
    "ws_ping_timeout": PING_SECONDS,
    "ws_per_message_deflate": False,
}


def limit_unacknowledged(listening: socket.socket) -> bool:
    """Let the kernel drop connections whose client stopped reading; accepted sockets inherit the option.

    Return False if the platform has no such option. Dead connections then stay until the client ends them.
    """
    option: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is None or listening.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    listening.setsockopt(socket.IPPROTO_TCP, option, USER_TIMEOUT_MS)
    return True


@asynccontextmanager
async def serving(application: Any, listening: socket.socket, **options: Any) -> AsyncIterator[None]:
    """Serve an application on a socket until the block ends."""
    settings = {
        **PUBLIC_OPTIONS,
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "log_level": "warning",
        "timeout_graceful_shutdown": STOP_SECONDS,
    }
    server = InProcessServer(uvicorn.Config(application, **{**settings, **options}))
    task = asyncio.create_task(server.serve(sockets=[listening]), name="listener-serve")
    try:
        await server.up.wait()
        yield
    finally:
        server.should_exit = True
        await task


@contextmanager
def unix_socket(path: Path) -> Iterator[socket.socket]:
    """Create a socket that only this user can open. Its path exists while it listens, until the end of the block."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    try:
        before = os.umask(0o177)  # set before binding; a mode that is set afterwards would leave a gap
        try:
            listening.bind(str(draft))
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
        # Renamed last, because another process may take a socket that refuses connections for a dead one.
        draft.replace(path)
        yield listening
    finally:
        listening.close()
        for name in (draft, path):
            name.unlink(missing_ok=True)


def remove_dead_sockets(directory: Path, pattern: str) -> None:
    """Remove the sockets of processes that were killed."""
    for path in directory.glob(pattern):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue  # removed meanwhile, or busy and therefore alive


class InProcessServer(uvicorn.Server):
    """A server inside a process: it installs no signal handlers and reports when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None, "the caller binds the sockets"
        # uvicorn would listen with the default limit for TLS handshakes, which is a minute.
        await super().startup([])
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        for listening in sockets:
            server = await loop.create_server(
                self._new_protocol,
                sock=listening,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_SECONDS,
                backlog=self.config.backlog,
            )
            self.servers.append(server)
        self.up.set()

    def stop_listening(self) -> None:
        """Stop accepting connections, so that other processes on this port accept them. Open connections stay."""
        for server in self.servers:
            server.close()

    def _new_protocol(self) -> asyncio.Protocol:
        config: Any = self.config
        protocol: asyncio.Protocol = config.http_protocol_class(
            config=config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
