"""A fake provider in a separate process, so that its CPU time is not counted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def serve(answer: Answer) -> None:
    """Print the address and serve until the process is ended."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@asynccontextmanager
async def serving(*command: str) -> AsyncIterator[str]:
    """Run Python with this command, which calls `serve`, and yield the address of the provider."""
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = (await process.stdout.readline()).decode().strip()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        await process.wait()
