"""The two requests that drivers send to an agent: health and shutdown. Responses are untrusted."""

from __future__ import annotations

import asyncio
import json

import msgspec

from rookery.workspaces.drivers.driver_interface import Connector, DriverError

MAX_ANSWER = 64 * 1024


class Health(msgspec.Struct, frozen=True):
    generation: int


async def health(connector: Connector, *, token: str, generation: int, timeout: float = 5.0) -> bool:
    """Return whether the agent of this boot responds and accepts the token."""
    try:
        status, body = await _ask(connector, "GET /v1/health", token, generation, None, timeout)
        return status == 200 and msgspec.json.decode(body, type=Health).generation == generation
    except (OSError, ValueError, DriverError, EOFError, asyncio.LimitOverrunError, msgspec.MsgspecError):
        return False


async def shutdown(connector: Connector, *, token: str, generation: int, grace: float) -> bool:
    """Request a shutdown, and return whether the agent accepted it. The shutdown ends when its process ends."""
    body = json.dumps({"grace_s": grace}).encode()
    try:
        status, _ = await _ask(connector, "POST /v1/shutdown", token, generation, body, timeout=5.0)
    except TimeoutError:
        return True
    except (OSError, ValueError, DriverError, EOFError, asyncio.LimitOverrunError):
        return False
    return 200 <= status < 300


async def _ask(
    connector: Connector, request: str, token: str, generation: int, body: bytes | None, timeout: float
) -> tuple[int, bytes]:
    async with asyncio.timeout(timeout):
        await connector.prepare()
        reader, writer = await connector.open()
        try:
            lines = [
                f"{request} HTTP/1.1",
                "Host: agent",
                "Connection: close",
                f"Authorization: Bearer {token}",
                f"X-Rookery-Generation: {generation}",
                f"Content-Length: {len(body or b'')}",
                *(["Content-Type: application/json"] if body else []),
            ]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b""))
            return await _answer(reader)
        finally:
            # A graceful close could take long, because the agent may not read.
            writer.transport.abort()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split(" ")[1]) if first.startswith("HTTP/1.") and len(first.split(" ")) > 1 else 0
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length") or 0)
    if not 0 <= length <= MAX_ANSWER:
        raise ValueError("the response is too long")
    return status, await reader.readexactly(length)
