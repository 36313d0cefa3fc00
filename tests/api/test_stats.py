from __future__ import annotations

import asyncio
from uuid import uuid4

from rookery.api.middleware import ApiMiddleware
from rookery.telemetry.http_stats import HttpStats
from tests.api.api_rig import ApiRig, Person
from tests.api.more_servers import open_door
from tests.api.test_auth import watch
from tests.eventually import until


def stats_of(rig: ApiRig) -> HttpStats:
    application = rig.replica.application
    assert isinstance(application, ApiMiddleware)
    return application.services.stats


async def test_requests_are_counted_by_the_template_of_their_route(rig: ApiRig, ada: Person) -> None:
    stats = stats_of(rig)

    await ada.http.get(f"/api/v1/users/{ada.id}")
    await ada.http.head("/api/v1/version")
    await ada.http.get("/api/v1/no/such/path")
    await rig.nobody.get("/healthz")

    assert dict(stats.requests) == {
        ("GET", "/api/v1/users/{user}", "200"): 1,
        ("HEAD", "/api/v1/version", "200"): 1,
        ("GET", "unmatched", "404"): 1,
        ("GET", "/healthz", "200"): 1,
    }


async def test_refusals_are_counted_by_why(rig: ApiRig, ada: Person) -> None:
    stats = stats_of(rig)

    await rig.nobody.get("/api/v1/version")
    await rig.nobody.post("/api/v1/auth/login", json={"login": "ada", "password": "not the password"})
    await ada.http.post("/api/v1/users", json={})
    await ada.http.get("/api/v1/version", headers={"X-Big": "x" * 33_000})

    assert dict(stats.unauthenticated) == {"unauthenticated": 1, "invalid_credentials": 1}
    assert dict(stats.denied) == {("users", "create"): 1}
    assert dict(stats.refused_as_large) == {("unmatched", "other"): 1}


async def test_bodies_that_are_too_large_are_counted(rig: ApiRig, ada: Person) -> None:
    async with open_door(rig, max_body=1024) as url:
        await ada.http.post(f"{url}/api/v1/tokens", content=b" " * 1025, headers={"Content-Type": "application/json"})

    assert dict(stats_of(rig).refused_as_large) == {("/api/v1/tokens", "body"): 1}


async def test_limits_that_struck_are_counted(rig: ApiRig) -> None:
    answered = await asyncio.gather(*(rig.nobody.post("/api/v1/auth/login", json={}) for _ in range(80)))

    refused = [each for each in answered if each.status_code == 429]
    assert refused
    assert dict(stats_of(rig).limited) == {"login": len(refused)}


async def test_websockets_are_counted_by_how_long_they_lasted(rig: ApiRig, ada: Person) -> None:
    stats = stats_of(rig)

    stream = await watch(rig, Authorization=f"Bearer {ada.token}")
    await stream.close()

    await until(lambda: "/api/v1/chats/watch" in dict(stats.websocket_seconds.items()))
    assert not stats.requests


async def test_streams_are_counted_by_the_whole_template_of_their_route(rig: ApiRig, ada: Person) -> None:
    stats = stats_of(rig)

    await ada.http.get(f"/api/v1/chats/{uuid4()}/stream")
    await ada.http.get("/api/v1/chats/watch?tail=1")

    assert dict(stats.requests) == {
        ("GET", "/api/v1/chats/{chat}/stream", "404"): 1,
        ("GET", "/api/v1/chats/watch", "400"): 1,
    }
