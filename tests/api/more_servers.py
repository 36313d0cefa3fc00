"""More clients and servers for a rig: another server with other settings over the same replica, and browsers."""

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
from rookery.api.middleware import ApiMiddleware
from rookery.server.listener import serving
from tests.api.api_rig import PASSWORD, ApiRig, Person

KEY = "Rookery-Session-Key"


@asynccontextmanager
async def open_door(rig: ApiRig, **changes: Any) -> AsyncIterator[str]:
    """Start a second server with other `ApiServices`, as on another replica. Yield its URL."""
    application = rig.replica.application
    assert isinstance(application, ApiMiddleware)
    parts = dataclasses.replace(application.services, **changes)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with serving(create_application(parts), listening):
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"


async def log_in(rig: ApiRig, person: Person | str, *, password: str = PASSWORD) -> httpx2.AsyncClient:
    """Return a logged-in browser, which sends its cookie, its session key and its origin."""
    browser = rig.client(None, Origin=rig.url)
    login = person if isinstance(person, str) else person.user.username
    answered = await browser.post("/api/v1/auth/login", json={"login": login, "password": password})
    assert answered.status_code == 200, answered.text
    browser.headers[KEY] = answered.json()["session_key"]
    return browser


def credentials(browser: httpx2.AsyncClient) -> dict[str, str]:
    """Return the headers of this browser's session."""
    return {"Cookie": f"rookery_session={session_cookie(browser)}", KEY: browser.headers[KEY]}


def session_cookie(browser: httpx2.AsyncClient) -> str:
    found = browser.cookies.get("rookery_session")
    assert found is not None
    return found


@asynccontextmanager
async def late_body(
    rig: ApiRig, method: str, path: str, *, headers: Mapping[str, str], body: object
) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Send the head of a request and wait until the server has admitted it. The returned function sends the body and
    returns the status of the response."""
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
            # The server sends 100 Continue when the route reads the body, which is after authentication.
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        yield finish
    finally:
        writer.close()
