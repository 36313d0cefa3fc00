from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from starlette.types import Message

from rookery.api.application import create_application
from rookery.api.routers.health import CACHE_SECONDS
from rookery.testing.clock import FakeClock


class Ask:
    """Sends requests straight into the ASGI application and keeps what comes back."""

    def __init__(self, found: dict[str, str]) -> None:
        self.found = found
        self.looks = 0
        self.stopping = False
        self.clock = FakeClock()
        self.application = create_application(self, clock=self.clock, log_access=True)

    async def checks(self) -> Mapping[str, str]:
        self.looks += 1
        return dict(self.found)

    async def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        messages: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            messages.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [],
            "scheme": "http",
            "server": ("127.0.0.1", 7117),
            "client": ("127.0.0.1", 50000),
        }
        async with asyncio.timeout(5):
            await self.application(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        return messages[0]["status"], headers, b"".join(message.get("body", b"") for message in messages[1:])


async def test_ready_when_every_part_is() -> None:
    ask = Ask({"database": "ok", "listener": "ok"})

    status, headers, body = await ask.get("/readyz")

    assert status == 200
    assert json.loads(body) == {"status": "ready", "checks": {"database": "ok", "listener": "ok"}}
    assert headers["cache-control"] == "no-store"


async def test_one_part_that_is_not_ok_makes_it_not_ready_and_says_which() -> None:
    ask = Ask({"database": "no answer", "listener": "ok"})

    status, _, body = await ask.get("/readyz")

    assert status == 503
    assert json.loads(body)["checks"]["database"] == "no answer"


async def test_readiness_is_looked_at_again_after_two_seconds_and_not_before() -> None:
    ask = Ask({"database": "ok"})
    await ask.get("/readyz")
    ask.found["database"] = "no answer"

    within = await ask.get("/readyz")
    await ask.clock.advance(CACHE_SECONDS)
    after = await ask.get("/readyz")

    assert (within[0], after[0], ask.looks) == (200, 503, 2)


async def test_stop_shows_at_once_whatever_was_found_a_moment_ago() -> None:
    ask = Ask({"database": "ok"})
    before = await ask.get("/readyz")

    ask.stopping = True
    after = await ask.get("/readyz")

    assert (before[0], after[0], ask.looks) == (200, 503, 1)


async def test_alive_looks_at_nothing() -> None:
    ask = Ask({"database": "no answer"})

    status, _, _ = await ask.get("/healthz")

    assert (status, ask.looks) == (200, 0)


async def test_front_page_loads_nothing_from_anywhere() -> None:
    status, headers, body = await Ask({}).get("/")

    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert b"http" not in body.replace(b"charset", b"")


async def test_unknown_address_and_wrong_method_are_told_in_the_error_shape() -> None:
    ask = Ask({})

    missing = await ask.get("/chats/secret-id")
    wrong = await ask.get("/healthz", method="DELETE")

    assert (missing[0], json.loads(missing[2])["code"]) == (404, "not_found")
    assert (wrong[0], json.loads(wrong[2])["code"]) == (405, "not_allowed")
