"""The API browser: its page, its files, and its content security policy."""

from __future__ import annotations

import re

from rookery.api.routers.version_and_docs import Asset
from tests.api.api_rig import ApiRig, Person

PATH = "/api/v1/docs"


async def test_page_opens_in_a_browser_that_is_not_logged_in_and_tells_it_nothing(rig: ApiRig, ada: Person) -> None:
    page = await rig.nobody.get(PATH)

    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert (await rig.nobody.get(f"{PATH}/docs.js")).status_code == 200
    assert (await rig.nobody.get("/api/v1/openapi.json")).status_code == 401


async def test_page_needs_nothing_that_its_policy_forbids(rig: ApiRig, ada: Person) -> None:
    page = await ada.http.get(PATH)

    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page.text) == []
    loaded = re.findall(r'(?:src|<link[^>]*href)="([^"]*)"', page.text)
    assert sorted(loaded) == sorted(f"{PATH}/{asset}" for asset in Asset)
    for address in loaded:
        assert (await ada.http.get(address)).status_code == 200, address


async def test_assets_have_their_types_and_load_nothing_from_elsewhere(rig: ApiRig, ada: Person) -> None:
    script, style = (await ada.http.get(f"{PATH}/docs.js")), (await ada.http.get(f"{PATH}/docs.css"))

    assert script.headers["content-type"].startswith("text/javascript")
    assert style.headers["content-type"].startswith("text/css")
    for text in (script.text, style.text):
        assert not re.search(r"https?://|@import|url\(|innerHTML|\beval\b|localStorage(?!\.getItem)", text)


async def test_asset_that_does_not_exist_is_refused(rig: ApiRig, ada: Person) -> None:
    assert (await ada.http.get(f"{PATH}/secrets.txt")).status_code == 400
