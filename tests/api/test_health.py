from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

from starlette.types import Message

from rookery.api.routers import health
from rookery.api.routers.health import CACHE_SECONDS
from rookery.api.routes import RouteTable
from rookery.testing.clock import FakeClock
from tests.api.api_rig import ApiRig


class Ask:
    """A process with a health that the test sets. Requests go directly to the health routes."""

    def __init__(self, found: dict[str, str]) -> None:
        self.found = found
        self.looks = 0
        self.stopping = False
        self.places: Sequence[Mapping[str, object]] = ()
        self.clock = FakeClock()
        self.application = RouteTable(health.routes(self, self.clock))

    async def checks(self) -> Mapping[str, str]:
        self.looks += 1
        return dict(self.found)

    async def slots(self) -> Sequence[Mapping[str, object]]:
        return self.places

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
            "path": path.partition("?")[0],
            "raw_path": path.partition("?")[0].encode(),
            "query_string": path.partition("?")[2].encode(),
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


async def test_places_of_replicas_are_told_of_and_do_not_make_it_unready() -> None:
    ask = Ask({"database": "ok"})
    ask.places = [{"index": 0, "state": "ready", "deaths": 0}, {"index": 1, "state": "paused", "deaths": 7}]

    status, _, body = await ask.get("/readyz")

    assert status == 200
    assert json.loads(body)["replicas"] == ask.places


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


async def test_stop_is_shown_immediately_despite_a_cached_result() -> None:
    ask = Ask({"database": "ok"})
    before = await ask.get("/readyz")

    ask.stopping = True
    after = await ask.get("/readyz")

    assert (before[0], after[0], ask.looks) == (200, 503, 1)


async def test_alive_looks_at_nothing() -> None:
    ask = Ask({"database": "no answer"})

    status, _, _ = await ask.get("/healthz")

    assert (status, ask.looks) == (200, 0)


async def test_unknown_address_and_wrong_method_are_told_in_the_error_shape(rig: ApiRig) -> None:
    missing = await rig.nobody.get("/chats/secret-id")
    wrong = await rig.nobody.delete("/healthz")

    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "not_allowed")
    assert missing.json()["request_id"] == missing.headers["x-request-id"]


async def test_replica_that_runs_is_ready(rig: ApiRig) -> None:
    found = await rig.nobody.get("/readyz")

    assert found.json() == {
        "status": "ready",
        "checks": {"database": "ok", "listener": "ok", "presence": "ok", "event_loop": "ok"},
    }


async def test_parameters_of_a_load_balancer_are_ignored() -> None:
    ask = Ask({"database": "ok"})

    alive = await ask.get("/healthz?from=balancer")
    ready = await ask.get("/readyz?from=balancer")

    assert (alive[0], ready[0]) == (200, 200)
