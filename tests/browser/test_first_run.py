"""The first run in a browser: from an empty database to the first answer."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.browser_user import PASSWORD, visiting
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.cli.serve.server_process import serving


def test_newcomer_gets_from_the_printed_link_to_the_first_answer(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, "--data-dir", str(tmp_path / "data")) as served:
        link = served.wait_for_line(re.compile(r"http\S+/setup#token=\S+"))[0]
        with visiting(browser, served.url) as newcomer:
            page = newcomer.page
            page.goto(link)
            expect(page.get_by_role("heading", name="Welcome to Rookery")).to_be_visible()
            assert "token" not in page.url
            assert newcomer.violations() == []

            # By keys alone, and with a reload at every step.
            newcomer.tab_to(page.get_by_label("Name"))
            page.keyboard.type("Ada")
            newcomer.tab_to(page.get_by_label("Email"))
            page.keyboard.type("ada@example.org")
            newcomer.tab_to(page.get_by_label("Password"))
            page.keyboard.type("short")
            newcomer.allow("status of 400")
            page.keyboard.press("Enter")
            expect(page.get_by_label("Password")).to_have_attribute("aria-invalid", "true")
            page.reload()  # the token is still known, and nothing has happened
            newcomer.tab_to(page.get_by_label("Email"))
            page.keyboard.type("ada@example.org")
            newcomer.tab_to(page.get_by_label("Password"))
            page.keyboard.type(PASSWORD)
            page.keyboard.press("Enter")  # the first of four presses

            expect(page.get_by_role("heading", name="Choose a model")).to_be_visible()
            page.reload()
            assert newcomer.violations() == []
            newcomer.tab_to(page.get_by_role("button", name="Continue"))
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", name="Choose a workspace")).to_be_visible()
            page.reload()
            newcomer.tab_to(page.get_by_role("button", name="Continue"))
            page.keyboard.press("Enter")
            page.reload()
            newcomer.tab_to(page.get_by_role("button", name="Explain how to review a pull request"))
            page.keyboard.press("Enter")

            conversation = page.get_by_role("feed", name="Conversation")
            expect(conversation).to_contain_text("Explain how to review a pull request")
            expect(conversation).to_contain_text("I cannot think for myself")
            expect(page.get_by_role("link", name=re.compile("Explain how to review"))).to_be_visible()
            page.goto(f"{served.url}/setup")
            expect(page.get_by_role("button", name="Account of ada")).to_be_visible()


def test_newcomer_on_a_machine_that_forbids_sandboxes_reads_the_command_that_helps(
    browser: Browser, tmp_path: Path
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text('#!/bin/sh\necho "bwrap: No permissions to create new namespace" >&2\nexit 1\n')
    bwrap.chmod(0o755)
    helps = re.compile(r"No permissions to create new namespace\. .*(sysctl -w|--security-opt)")
    with serving(tmp_path, "--data-dir", str(tmp_path / "data"), "--drivers-local-bwrap", str(bwrap)) as served:
        link = served.wait_for_line(re.compile(r"http\S+/setup#token=\S+"))[0]
        with visiting(browser, served.url) as newcomer:
            page = newcomer.page
            page.goto(link)
            page.get_by_label("Email").fill("ada@example.org")
            page.get_by_label("Password").fill(PASSWORD)
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="Choose a model").wait_for()
            page.get_by_role("button", name="Continue").click()

            expect(page.get_by_role("note")).to_contain_text(helps)
            expect(page.get_by_role("radio")).to_have_count(1)
            assert newcomer.violations() == []

            page.goto(f"{served.url}/")
            expect(page.get_by_role("status").filter(has_text="run nothing")).to_contain_text(helps)
            page.get_by_role("button", name="Workspace: none").click()
            expect(page.get_by_label("Choose a workspace").first).to_be_visible()
            expect(page.get_by_text("From a template")).to_have_count(0)
            assert newcomer.violations() == []


def test_page_without_https_warns_and_works_all_the_same(browser: Browser, tmp_path: Path) -> None:
    """Browsers disable the clipboard and parts of cryptography on pages without https."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://rookery.example:{port}"
    options = ("--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}", "--external-url", url)
    mapped = browser.browser_type.launch(
        executable_path=CHROMIUM, args=[*FLAGS, "--host-resolver-rules=MAP rookery.example 127.0.0.1"]
    )
    with serving(tmp_path, *options) as served:
        link = served.wait_for_line(re.compile(r"http\S+/setup#token=\S+"))[0]
        with visiting(mapped, url) as newcomer:
            newcomer.allow("Cross-Origin-Opener-Policy header has been ignored")
            page = newcomer.page
            page.goto(link)
            expect(page.get_by_role("note")).to_contain_text("Others on the network can read the password")
            page.get_by_label("Email").fill("ada@example.org")
            page.get_by_label("Password").fill(PASSWORD)
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="Choose a model").wait_for()
            page.get_by_role("button", name="Continue").click()
            page.get_by_role("heading", name="Choose a workspace").wait_for()
            page.get_by_role("button", name="Continue").click()
            page.get_by_role("button", name="Explain how to review a pull request").click()
            expect(page.get_by_role("feed", name="Conversation")).to_contain_text("I cannot think for myself")
            expect(page.get_by_role("status").filter(has_text="does not use https")).to_be_visible()

            page.goto(f"{url}/settings/tokens")
            page.get_by_role("button", name="New token").click()
            page.get_by_label("Name", exact=True).fill("laptop")
            page.get_by_role("button", name="Create").click()
            page.get_by_role("button", name="Copy").click()
            expect(page.get_by_text("Copied.", exact=True)).to_be_visible()
    mapped.close()
