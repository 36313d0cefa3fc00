"""The browser for the API: for whoever is logged in, and made of nothing from elsewhere."""

from __future__ import annotations

import re

from rookery.api.routers.docs import Asset
from tests.api.house import PASSWORD, House, Person

PATH = "/api/v1/docs"


async def test_page_is_for_whoever_is_logged_in(house: House, ada: Person) -> None:
    assert (await house.nobody.get(PATH)).status_code == 401
    assert (await house.nobody.get(f"{PATH}/docs.js")).status_code == 401

    login = await house.nobody.post("/api/v1/auth/login", json={"login": "ada", "password": PASSWORD})
    assert login.status_code == 200, login.text
    by_cookie = await house.nobody.get(PATH)

    assert by_cookie.status_code == 200
    assert by_cookie.headers["content-type"].startswith("text/html")
    assert by_cookie.text == (await ada.http.get(PATH)).text


async def test_page_needs_nothing_that_its_policy_forbids(house: House, ada: Person) -> None:
    page = await ada.http.get(PATH)

    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page.text) == []
    loaded = re.findall(r'(?:src|<link[^>]*href)="([^"]*)"', page.text)
    assert sorted(loaded) == sorted(f"{PATH}/{asset}" for asset in Asset)
    for address in loaded:
        assert (await ada.http.get(address)).status_code == 200, address


async def test_assets_have_their_types_and_load_nothing_from_elsewhere(house: House, ada: Person) -> None:
    script, style = (await ada.http.get(f"{PATH}/docs.js")), (await ada.http.get(f"{PATH}/docs.css"))

    assert script.headers["content-type"].startswith("text/javascript")
    assert style.headers["content-type"].startswith("text/css")
    for text in (script.text, style.text):
        assert not re.search(r"https?://|@import|url\(|innerHTML|\beval\b|localStorage", text)


async def test_asset_that_does_not_exist_is_refused(house: House, ada: Person) -> None:
    assert (await ada.http.get(f"{PATH}/secrets.txt")).status_code == 400
