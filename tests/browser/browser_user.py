"""A person at a browser: one context of Chromium that notices whatever a page should not do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import APIResponse, Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect

# A busy machine is slow, not wrong.
# By the button: until the settings are loaded, Enter writes a line.
SEND = re.compile("^(Send|Queue) message$")
PATIENCE_MS = 60_000
PASSWORD = "correct horse battery"
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
# What fades in has another contrast on its way.
SETTLED = """
    () => Promise.allSettled(
        document.getAnimations()
            .filter((one) => one.effect.getComputedTiming().iterations !== Infinity)
            .map((one) => one.finished)
    )
"""
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]

MOST_TABS = 150
IS_THERE = "(element) => element === document.activeElement ? 'there' : element.isConnected ? 'elsewhere' : 'gone'"
# Fields may show it by their border or by that of the box around them.
HAS_RING = """(element) => {
    const style = getComputedStyle(element);
    return style.outlineStyle !== "none" || element.matches("input, textarea, select");
}"""

# Reports of the page's policy reach nobody else.
REPORT = """
    addEventListener("securitypolicyviolation", (event) =>
        console.error(`CSP: ${event.violatedDirective} blocked ${event.blockedURI || event.sample}`));
"""
# A page asks who is signed in before it knows; browsers print every refused request.
_WHO = re.compile(r"/api/v1/(users/me|me/settings|chats/watch)")

# Once for each key: a page that forgot it because somebody signed out does not find it again.
KEEP_KEY = """
    ([url, key]) => {
        const done = `test.kept.${key}`;
        // A sandboxed frame has no origin and no storage.
        if (origin !== url || localStorage.getItem(done)) return;
        localStorage.setItem(done, "yes");
        localStorage.setItem("rookery.session_key", key);
    }
"""

expect.set_options(timeout=PATIENCE_MS)


class Visitor:
    """Somebody with a browser of their own: cookies and storage are nobody else's."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.key: str | None = None
        self.problems: list[str] = []
        self._allowed: list[re.Pattern[str]] = []
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(REPORT)
        self.page = self.open_tab()

    def open_tab(self) -> Page:
        page = self.context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", self._see)
        return page

    def allow(self, pattern: str) -> None:
        """Let the page say this on its console: the test brings it about."""
        self._allowed.append(re.compile(pattern))

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def log_in(self, name: str, password: str = PASSWORD) -> None:
        """By a request: how the form works is the matter of one test."""
        answer = self.context.request.post(
            f"{self.url}/api/v1/auth/login",
            data={"login": name, "password": password},
            headers={"Origin": self.url},
        )
        assert answer.ok, answer.text()
        self.keep_key(answer.json()["session_key"])

    def keep_key(self, key: str) -> None:
        """What a page does that signs in, for this page and those to come."""
        self.key = key
        self.context.add_init_script(f"({KEEP_KEY})({json.dumps([self.url, key])})")
        if self.page.url.startswith(f"{self.url}/"):
            self.page.evaluate(KEEP_KEY, [self.url, key])

    @property
    def headers(self) -> dict[str, str]:
        """What requests of this person say besides the cookie. Who signed in by the form has the key in the page."""
        key = self.key
        if key is None and self.page.url.startswith(f"{self.url}/"):
            key = self.page.evaluate("localStorage.getItem('rookery.session_key')")
        return {"Origin": self.url, **({"Rookery-Session-Key": key} if key is not None else {})}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The API as this person, beside the page."""
        answer = self._fetch(method, path, body)
        if answer.status == 401 and self.key is not None:
            # Signed in again by the form: the page has another key than the one that was given to it.
            self.key = None
            answer = self._fetch(method, path, body)
        assert answer.ok, answer.text()
        return None if answer.status == 204 else answer.json()

    def _fetch(self, method: str, path: str, body: object) -> APIResponse:
        return self.context.request.fetch(
            f"{self.url}/api/v1{path}",
            method=method,
            data=None if body is None else body,
            headers=self.headers,
        )

    def chat(self, text: str, **more: object) -> Any:
        """A new chat that begins with this."""
        return self.ask("POST", "/chats", {"content": [{"type": "text", "text": text}], "client_type": "ui", **more})

    def wait_for_rest(self, chat_id: str) -> Any:
        """Until the model has said everything; the chat as it is then."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while (chat := self.ask("GET", f"/chats/{chat_id}"))["status"] not in ("waiting", "error"):
            assert time.monotonic() < deadline, chat
            # All tests share a server, which allows each user 512 requests per minute.
            self.page.wait_for_timeout(300)
        return chat

    def tab_to(self, target: Locator) -> None:
        """By keys alone, as somebody without a mouse gets there; where the focus is must be seen on the way."""
        target.wait_for()
        step_to(target, lambda: self.page.keyboard.press("Tab"))
        expect(target).to_be_focused()
        assert target.evaluate(HAS_RING), "The focus is not shown."

    def violations(self, *rules: str) -> list[str]:
        """What axe finds wrong with the page as it is shown, by all rules or by these."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        self.page.evaluate(SETTLED)
        found = self.page.evaluate(
            "(rules) => axe.run(document, { runOnly: rules }).then((result) => result.violations)", list(rules) or WCAG
        )
        return [
            f"{each['id']}: {[(node['target'], node['failureSummary']) for node in each['nodes']]}" for each in found
        ]

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type != "error" or any(pattern.search(message.text) for pattern in self._allowed):
            return
        where = message.location["url"]
        if "status of 401" in message.text and _WHO.search(where):
            return
        if "status of 503" in message.text and where.endswith("/users/me"):
            return
        self.problems.append(f"console: {message.text} ({where})")

    def _see(self, request: Request) -> None:
        asked, own = urlsplit(request.url), urlsplit(self.url)
        if asked.scheme in ("http", "https", "ws", "wss") and asked.netloc != own.netloc:
            self.problems.append(f"request to another origin: {request.url}")


def step_to(target: Locator, step: Callable[[], object]) -> None:
    """Step until it has the focus. Looking for it by its role takes long on a large page: once, unless it is gone."""
    found = target.element_handle()
    for _ in range(MOST_TABS):
        where = found.evaluate(IS_THERE)
        if where == "there":
            return
        if where == "gone":
            found = target.element_handle()
        else:
            step()


def wait_until(page: Page, function: str, arg: object = None) -> None:
    """Wait until a function of the page returns something true.

    Playwright evaluates a function once. It evaluates any other expression each time it looks, which the page's policy
    forbids from the second time on.
    """
    page.wait_for_function(f"(arg) => ({function})(arg)", arg=arg)


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visitor]:
    context = browser.new_context(**options)
    visitor = Visitor(context, url)
    try:
        yield visitor
    finally:
        context.close()
    assert visitor.problems == [], visitor.problems
