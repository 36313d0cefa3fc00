"""A restart of the server while a page is open."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from rookery.testing.fake_completions import Answer
from tests.browser.browser_user import PASSWORD, SEND, visiting
from tests.browser.conftest import post
from tests.browser.faulty_connection import EventLoopThread, FaultyConnection
from tests.browser.model_script import ModelScript
from tests.cli.serve.server_process import serving


def test_page_goes_on_after_the_server_was_restarted_in_the_middle_of_a_turn(
    browser: Browser, backstage: EventLoopThread, script: ModelScript, tmp_path: Path
) -> None:
    # A turn in the middle of an answer is cut off soon, and its step is asked for again by the next server.
    data = ("--data-dir", str(tmp_path / "data"), "--drain-timeout", "100ms")
    never = script.cue()
    script.plays(
        "outlive it",
        [Answer(text="The first half, "), never, Answer(text="never said.")],
        [Answer(text="The first half, and the second.")],
    )
    connection = FaultyConnection(backstage, "")
    with connection.laid(), visiting(browser, connection.url) as ada:
        ada.allow("WebSocket connection|net::ERR_|status of 50[23]")
        page = ada.page
        main = page.get_by_role("main")
        with serving(tmp_path, *data) as before:
            connection.target = before.url
            token = before.wait_for_line(re.compile("rk_setup_[0-9a-f]{64}"))[0]
            post(before, "/setup", {"token": token, "email": "ada@example.org", "name": "Ada", "password": PASSWORD})
            ada.log_in("ada")
            chat = ada.chat("outlive it", title="Outlives a server", model_config_id=script.config(ada))
            ada.go(f"/c/{chat['id']}")
            expect(main).to_contain_text("The first half,")
            page.get_by_role("textbox", name="Message").fill("typed before")
        expect(page.get_by_role("img", name=re.compile("^Live"))).to_have_count(0)

        with serving(tmp_path, *data) as after:
            connection.target = after.url
            expect(page.get_by_role("img", name=re.compile("^Live"))).to_be_visible()
            expect(main).to_contain_text("The first half, and the second.")
            expect(page.get_by_role("button", name=re.compile("^Stop"))).to_have_count(0)
            expect(page.get_by_role("feed").get_by_text(re.compile("The first half"))).to_have_count(1)
            expect(page.get_by_role("textbox", name="Message")).to_have_value("typed before")
            page.get_by_role("button", name=SEND).click()
            expect(page.get_by_role("feed").get_by_text("Understood.", exact=True)).to_have_count(1)
            expect(main.get_by_text("typed before", exact=True)).to_have_count(1)
            page.goto("about:blank")  # nothing holds the server while it stops
