"""A server that goes away and comes back under an open page."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.actor import Actor
from tests.browser.conftest import post
from tests.browser.visit import PASSWORD, SEND, visiting
from tests.browser.wire import Backstage, Wire
from tests.cli.served import serving


def test_page_goes_on_after_the_server_was_restarted(
    browser: Browser, backstage: Backstage, actor: Actor, tmp_path: Path
) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    wire = Wire(backstage, "")
    with wire.laid(), visiting(browser, wire.url) as ada:
        ada.allow("WebSocket connection|net::ERR_|status of 50[23]")
        page = ada.page
        with serving(tmp_path, *data) as before:
            wire.target = before.url
            token = before.wait_for_line(re.compile("rk_setup_[0-9a-f]{64}"))[0]
            post(before, "/setup", {"token": token, "email": "ada@example.org", "name": "Ada", "password": PASSWORD})
            ada.log_in("ada")
            chat = ada.chat("hello", title="Outlives a server", model_config_id=actor.config(ada))
            ada.wait_for_rest(chat["id"])
            ada.go(f"/c/{chat['id']}")
            expect(page.get_by_role("main")).to_contain_text("Understood.")
            page.get_by_role("textbox", name="Message").fill("typed before")
        expect(page.get_by_role("img", name=re.compile("^Live"))).to_have_count(0)

        with serving(tmp_path, *data) as after:
            wire.target = after.url
            expect(page.get_by_role("img", name=re.compile("^Live"))).to_be_visible()
            expect(page.get_by_role("textbox", name="Message")).to_have_value("typed before")
            page.get_by_role("button", name=SEND).click()
            expect(page.get_by_role("feed").get_by_text("Understood.", exact=True)).to_have_count(2)
            expect(page.get_by_role("main").get_by_text("typed before", exact=True)).to_have_count(1)
            page.goto("about:blank")  # nothing holds the server while it stops
