"""Serving of the web application: its page, its files, and the paths that belong to the API."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from rookery.api.web_app import FOREVER, POLICY, SANDBOX_POLICY, WebApp
from tests.api.api_rig import ApiRig, Person
from tests.api.more_servers import open_door

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
SCRIPT = "console.log('rook');" * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "web_dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "sandbox").mkdir()
    (folder / "index.html").write_text('<!doctype html><meta name="rookery-build" content="b1"><title>Rookery</title>')
    (folder / "favicon.svg").write_text("<svg/>")
    (folder / "sandbox" / "diagram.html").write_text("<!doctype html>")
    (folder / "assets" / "app-1a2b.js").write_text(SCRIPT)
    (folder / "assets" / "app-1a2b.js.gz").write_bytes(gzip.compress(SCRIPT.encode()))
    (folder / "assets" / "app-1a2b.js.br").write_bytes(b"brotli")
    (tmp_path / "secret.txt").write_text("not yours")
    return folder


@pytest.fixture
async def web(rig: ApiRig, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with open_door(rig, web=WebApp(folder)) as url, httpx2.AsyncClient(base_url=url, verify=False) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/login", "/c/0190-x?m=7", "/settings/profile", "/apiary", "/index.html"])
async def test_page_answers_every_address_a_browser_opens(web: httpx2.AsyncClient, path: str) -> None:
    found = await web.get(path, headers=HTML)

    assert found.status_code == 200
    assert 'content="b1"' in found.text
    assert found.headers["content-security-policy"] == POLICY
    assert found.headers["cache-control"] == "no-cache"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["referrer-policy"] == "no-referrer"
    assert found.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api", 404),
        ("/api/v1/nothing", 401),
        ("/internal/relay", 404),
        ("/assets/app-0000.js", 404),
        ("/assets/%2e%2e/%2e%2e/secret.txt", 404),
        ("/sandbox/other.html", 404),
    ],
)
async def test_page_does_not_stand_in_for_what_is_missing_elsewhere(
    web: httpx2.AsyncClient, path: str, status: int
) -> None:
    found = await web.get(path, headers=HTML)

    assert found.status_code == status
    assert found.headers["content-type"] == "application/json"


async def test_program_that_asks_for_no_page_is_told_that_nothing_is_there(web: httpx2.AsyncClient) -> None:
    assert (await web.get("/no/such/path")).status_code == 404
    assert (await web.post("/login", headers=HTML)).status_code == 404
    assert (await web.get("/healthz", headers=HTML)).json() == {"status": "ok"}


async def test_page_is_not_sent_again_to_a_browser_that_has_it(web: httpx2.AsyncClient) -> None:
    etag = (await web.get("/", headers=HTML)).headers["etag"]

    again = await web.get("/login", headers={**HTML, "If-None-Match": etag})
    other = await web.get("/login", headers={**HTML, "If-None-Match": '"other"'})

    assert (again.status_code, again.content) == (304, b"")
    assert other.status_code == 200


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("gzip, deflate, br", "br"), ("gzip", "gzip"), ("br;q=0, gzip", "gzip"), ("identity", None)],
)
async def test_asset_is_kept_for_ever_and_comes_compressed_as_the_browser_likes(
    web: httpx2.AsyncClient, accepted: str, encoding: str | None
) -> None:
    request = web.build_request("GET", "/assets/app-1a2b.js", headers={"Accept-Encoding": accepted})

    found = await web.send(request, stream=True)
    body = b"".join([piece async for piece in found.aiter_raw()])
    await found.aclose()

    assert found.headers["cache-control"] == FOREVER
    assert found.headers["content-type"] == "text/javascript; charset=utf-8"
    assert found.headers["vary"] == "Accept-Encoding"
    assert found.headers.get("content-encoding") == encoding
    expected = {"br": b"brotli", "gzip": gzip.compress(SCRIPT.encode()), None: SCRIPT.encode()}[encoding]
    assert (gzip.decompress(body) == SCRIPT.encode()) if encoding == "gzip" else (body == expected)


async def test_compressed_twin_is_no_file_of_its_own(web: httpx2.AsyncClient) -> None:
    assert (await web.get("/assets/app-1a2b.js.gz")).status_code == 404


async def test_only_the_sandbox_may_be_framed_and_it_has_no_origin(web: httpx2.AsyncClient) -> None:
    found = await web.get("/sandbox/diagram.html")

    assert found.headers["content-security-policy"] == SANDBOX_POLICY
    assert "x-frame-options" not in found.headers
    assert "frame-ancestors 'none'" in POLICY


async def test_answers_of_the_api_name_the_build_and_so_does_the_version(
    web: httpx2.AsyncClient, rig: ApiRig, ada: Person
) -> None:
    token = {"Authorization": f"Bearer {ada.token}"}

    found = await web.get("/api/v1/version", headers=token)
    refused = await web.get("/api/v1/version")

    assert found.json()["build"] == found.headers["x-rookery-build"] == refused.headers["x-rookery-build"] == "b1"
    assert {"chats", "messages", "models"} <= set(found.json()["features"])


async def test_server_without_a_build_says_how_to_make_one(rig: ApiRig, tmp_path: Path, ada: Person) -> None:
    async with open_door(rig, web=WebApp(tmp_path / "nowhere")) as url:
        page = await rig.nobody.get(f"{url}/c/1", headers=HTML)
        version = await ada.http.get(f"{url}/api/v1/version")

    assert page.status_code == 200
    assert "make web" in page.text
    assert 'href="/api/v1/docs"' in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert version.json()["build"] is None
    assert "x-rookery-build" not in version.headers


def test_build_without_a_name_goes_by_its_page(folder: Path) -> None:
    (folder / "index.html").write_text("<title>one</title>")
    one = WebApp(folder).build
    (folder / "index.html").write_text("<title>two</title>")

    assert one is not None
    assert one != WebApp(folder).build
