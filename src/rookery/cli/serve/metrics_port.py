"""The port of `metrics_listen`: the metrics of this replica, or those of all replicas of one parent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from rookery.cli.output import Output
from rookery.cli.serve import port
from rookery.metrics.endpoint import PATH, metrics_endpoint
from rookery.metrics.export import MetricsSource
from rookery.server.listener import serving
from rookery.settings.settings import Settings, url_of
from rookery.settings.value_types import Address

REQUEST = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


@contextmanager
def bound(settings: Settings) -> Iterator[socket.socket | None]:
    """Bind the port before anything is started; None if it is not configured."""
    if settings.metrics_listen is None:
        yield None
        return
    with port.bound(settings.metrics_listen, "--metrics-listen") as listening:
        yield listening


def show(listening: socket.socket | None, out: Output) -> None:
    """Print the address of the metrics, because the system may have chosen the port."""
    if listening is not None:
        host, number = listening.getsockname()[:2]
        out.line(f"Metrics are at {url_of(Address(host, number))}{PATH}")


@asynccontextmanager
async def served(settings: Settings, metrics: MetricsSource, listening: socket.socket | None) -> AsyncIterator[None]:
    if listening is None:
        yield
        return
    async with serving(metrics_endpoint(metrics, settings.metrics_token), listening):
        yield


async def fetch(path: str) -> bytes:
    """Return a replica's response from its internal socket. Raise if it is invalid."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(REQUEST)
        answer = await reader.read()
        while more := await reader.read():
            answer += more
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ConnectionError(f"The replica answered: {head[:80].decode('latin-1')}")
    return body
