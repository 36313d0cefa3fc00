"""Scrapes over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import unix_connect
from websockets.exceptions import InvalidStatus

from rookery.metrics.endpoint import metrics_endpoint
from rookery.metrics.export import Metrics, Sources
from rookery.metrics.infrastructure import Build
from rookery.server.listener import serving, unix_socket

METRICS = Metrics(Sources(build=Build("1", 1)))


@asynccontextmanager
async def scraping(application: ASGIApp, directory: Path) -> AsyncIterator[httpx2.AsyncClient]:
    path = directory / "metrics.s"
    with unix_socket(path) as listening:
        async with (
            serving(application, listening),
            httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path)), base_url="http://metrics") as client,
        ):
            yield client


async def test_scrape_gets_the_text(tmp_path: Path) -> None:
    async with scraping(metrics_endpoint(METRICS), tmp_path) as client:
        found = await client.get("/metrics")

    assert found.status_code == 200
    assert found.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert found.headers["cache-control"] == "no-store"
    assert "rookery_build_info{" in found.text


async def test_scraper_that_asks_for_openmetrics_gets_it(tmp_path: Path) -> None:
    async with scraping(metrics_endpoint(METRICS), tmp_path) as client:
        found = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})

    assert found.headers["content-type"].startswith("application/openmetrics-text")
    assert found.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer s3cret", 200),
        ("bearer s3cret", 200),
        ("Bearer s3cre", 401),
        ("Bearer s3crets", 401),
        ("Bearer", 401),
        ("Basic s3cret", 401),
        ("Bearer é", 401),
        (None, 401),
    ],
)
async def test_token_decides(authorization: str | None, status: int, tmp_path: Path) -> None:
    headers = {} if authorization is None else {b"Authorization": authorization.encode()}
    async with scraping(metrics_endpoint(METRICS, "s3cret"), tmp_path) as client:
        found = await client.get("/metrics", headers=headers)

    assert found.status_code == status
    assert ("rookery_" in found.text) is (status == 200)
    if status == 401:
        assert found.headers["www-authenticate"] == "Bearer"


async def test_other_paths_and_methods_are_refused(tmp_path: Path) -> None:
    async with scraping(metrics_endpoint(METRICS), tmp_path) as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.post("/metrics")).status_code == 405
        assert (await client.post("/metrics")).headers["allow"] == "GET, HEAD"


async def test_head_has_the_size_and_no_body(tmp_path: Path) -> None:
    async with scraping(metrics_endpoint(METRICS), tmp_path) as client:
        found = await client.head("/metrics")

    assert (found.status_code, found.content) == (200, b"")
    assert int(found.headers["content-length"]) > 0


async def test_other_requests_go_to_the_application_that_shares_the_listener(tmp_path: Path) -> None:
    async def other(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    async with scraping(metrics_endpoint(METRICS, otherwise=other), tmp_path) as client:
        assert (await client.get("/relay")).text == "/relay"
        assert (await client.get("/metrics")).status_code == 200


async def test_websocket_without_anybody_to_take_it_is_refused(tmp_path: Path) -> None:
    async with scraping(metrics_endpoint(METRICS), tmp_path):
        with pytest.raises(InvalidStatus):
            await unix_connect(str(tmp_path / "metrics.s"), uri="ws://metrics/metrics")


def test_empty_token_is_refused() -> None:
    with pytest.raises(ValueError, match="empty token"):
        metrics_endpoint(METRICS, "")
