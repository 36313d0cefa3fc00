"""From an empty database to the first answer, with a browser and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.visit import PASSWORD, visiting
from tests.cli.served import serving


def test_newcomer_gets_from_the_printed_link_to_the_first_answer(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, "--data-dir", str(tmp_path / "data")) as served:
        link = served.wait_for_line(re.compile(r"http\S+/setup#token=\S+"))[0]
        with visiting(browser, served.url) as newcomer:
            page = newcomer.page
            page.goto(link)
            expect(page.get_by_role("heading", name="Welcome to Rookery")).to_be_visible()
            assert "token" not in page.url
            assert newcomer.violations() == []

            page.get_by_label("Name").fill("Ada")
            page.get_by_label("Email").fill("ada@example.org")
            page.get_by_label("Password").fill("short")
            newcomer.allow("status of 400")
            page.get_by_role("button", name="Create account").click()
            expect(page.get_by_label("Password")).to_have_attribute("aria-invalid", "true")
            page.reload()  # the token is still known, and nothing has happened
            page.get_by_label("Email").fill("ada@example.org")
            page.get_by_label("Password").fill(PASSWORD)
            page.keyboard.press("Enter")

            expect(page.get_by_role("heading", name="Choose a model")).to_be_visible()
            page.reload()
            assert newcomer.violations() == []
            page.get_by_role("button", name="Continue").click()
            expect(page.get_by_role("heading", name="Choose a workspace")).to_be_visible()
            page.get_by_role("button", name="Continue").click()
            page.get_by_role("button", name="Explain how to review a pull request").click()

            conversation = page.get_by_role("feed", name="Conversation")
            expect(conversation).to_contain_text("Explain how to review a pull request")
            expect(conversation).to_contain_text("I am Rookery's scripted model")
            expect(page.get_by_role("link", name=re.compile("Explain how to review"))).to_be_visible()
            page.goto(f"{served.url}/setup")
            expect(page.get_by_role("button", name="Account of ada")).to_be_visible()
