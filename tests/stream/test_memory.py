"""The memory of an idle stream."""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID, uuid4

from tests.eventually import until
from tests.stream.socket_clients import open_sockets
from tests.stream.stream_rig import Rig
from tests.stream.test_sockets import UPGRADE

STREAMS = 60
BUDGET_BYTES = 50 * 1024


async def test_idle_stream_fits_its_budget_for_any_length_of_the_history(rig: Rig, tmp_path: Path) -> None:
    chat_id = await rig.chat("one", *("a long answer " * 100 for _ in range(200)))
    async with open_sockets(rig.site.streams, tmp_path / "door", "websocket") as sockets:
        with ExitStack() as clients:
            clients.enter_context(await bare_client(sockets.path, chat_id))
            gc.collect()
            tracemalloc.start()
            try:
                for _ in range(STREAMS):
                    clients.enter_context(await bare_client(sockets.path, chat_id))
                gc.collect()
                used, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        await until(lambda: len(rig.site.streams.sessions) == 0)

    assert used / STREAMS < BUDGET_BYTES


async def bare_client(path: Path, chat_id: UUID) -> socket.socket:
    """Connect a client that, after the first window, uses no memory of this process except for its socket."""
    loop = asyncio.get_running_loop()
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    await loop.sock_connect(client, str(path))
    request = f"GET /chats/{chat_id}/stream HTTP/1.1\r\nHost: x\r\nX-User: {uuid4()}\r\n{UPGRADE}\r\n"
    await loop.sock_sendall(client, request.encode())
    end = b""
    while b'"synced"' not in end:
        end = end[-200:] + await loop.sock_recv(client, 65536)
    return client
