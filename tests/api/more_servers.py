"""Further ways into a rig: another server with other settings over the same replica, and browsers with a cookie."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from rookery.api.application import create_application
from rookery.api.middleware import Edge
from rookery.server.listener import serving
from tests.api.api_rig import PASSWORD, ApiRig, Person

KEY = "Rookery-Session-Key"


@asynccontextmanager
async def open_door(rig: ApiRig, **changes: Any) -> AsyncIterator[str]:
    """The URL of a second server with these parts of the API changed, as another replica would have its own."""
    application = rig.replica.application
    assert isinstance(application, Edge)
    parts = dataclasses.replace(application.parts, **changes)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with serving(create_application(parts), listening):
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"


async def log_in(rig: ApiRig, person: Person | str, *, password: str = PASSWORD) -> httpx2.AsyncClient:
    """A browser that is logged in: it keeps its cookie, sends its session key, and says from which page it sends."""
    browser = rig.client(None, Origin=rig.url)
    login = person if isinstance(person, str) else person.user.username
    answered = await browser.post("/api/v1/auth/login", json={"login": login, "password": password})
    assert answered.status_code == 200, answered.text
    browser.headers[KEY] = answered.json()["session_key"]
    return browser


def credentials(browser: httpx2.AsyncClient) -> dict[str, str]:
    """The headers that make a request one of this browser's session."""
    return {"Cookie": f"rookery_session={session_cookie(browser)}", KEY: browser.headers[KEY]}


def session_cookie(browser: httpx2.AsyncClient) -> str:
    found = browser.cookies.get("rookery_session")
    assert found is not None
    return found


@asynccontextmanager
async def late_body(
    rig: ApiRig, method: str, path: str, *, headers: Mapping[str, str], body: object
) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """A request that the server has let in and whose body it waits for. Call what this gives to send the body; it
    returns the status of the answer."""
    target, data = httpx2.URL(rig.url), json.dumps(body).encode()
    sent = {
        **headers,
        "Host": f"{target.host}:{target.port}",
        "Origin": rig.url,
        "Content-Type": "application/json",
        "Content-Length": str(len(data)),
        "Expect": "100-continue",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    reader, writer = await asyncio.open_connection(target.host, target.port)

    async def finish() -> int:
        writer.write(data)
        async with asyncio.timeout(20):
            return int((await reader.readline()).split()[1])

    try:
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode())
        async with asyncio.timeout(20):
            # The server says so when the route asks for the body, which is after authentication.
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        yield finish
    finally:
        writer.close()
