"""A browser user: one Chromium context, which records errors of the page such as console messages and failed
requests.
"""

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
    """A user with a separate browser: cookies and storage are not shared with other users."""

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
        """Allow this text on the console of the page, because the test causes it."""
        self._allowed.append(re.compile(pattern))

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def log_in(self, name: str, password: str = PASSWORD) -> None:
        """Log in by a request. A separate test covers the login form."""
        answer = self.context.request.post(
            f"{self.url}/api/v1/auth/login",
            data={"login": name, "password": password},
            headers={"Origin": self.url},
        )
        assert answer.ok, answer.text()
        self.keep_key(answer.json()["session_key"])

    def keep_key(self, key: str) -> None:
        """Store the session key as a page does after a login, for this page and later ones."""
        self.key = key
        self.context.add_init_script(f"({KEEP_KEY})({json.dumps([self.url, key])})")
        if self.page.url.startswith(f"{self.url}/"):
            self.page.evaluate(KEEP_KEY, [self.url, key])

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that requests of this user have besides the cookie. After a login by the form, the page
        has the session key.
        """
        key = self.key
        if key is None and self.page.url.startswith(f"{self.url}/"):
            key = self.page.evaluate("localStorage.getItem('rookery.session_key')")
        return {"Origin": self.url, **({"Rookery-Session-Key": key} if key is not None else {})}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the API as this user, outside of the page."""
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
        """Create a chat with this first message."""
        return self.ask("POST", "/chats", {"content": [{"type": "text", "text": text}], "client_type": "ui", **more})

    def wait_for_rest(self, chat_id: str) -> Any:
        """Wait until the chat is at rest, and return it."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while (chat := self.ask("GET", f"/chats/{chat_id}"))["status"] not in ("waiting", "error"):
            assert time.monotonic() < deadline, chat
            # All tests share a server, which allows each user 512 requests per minute.
            self.page.wait_for_timeout(300)
        return chat

    def tab_to(self, target: Locator) -> None:
        """Move the focus to an element with keys only. The focus must be visible at each step."""
        target.wait_for()
        step_to(target, lambda: self.page.keyboard.press("Tab"))
        expect(target).to_be_focused()
        assert target.evaluate(HAS_RING), "The focus is not shown."

    def violations(self, *rules: str) -> list[str]:
        """Return the violations that axe finds on the current page, by all rules or by the given ones."""
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
    """Press a key until the element has the focus. The element is located once, unless it disappears, because a search
    by role is slow on a large page.
    """
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
    """Wait until a function of the page returns a true value.

    Playwright evaluates a function once. It evaluates any other expression repeatedly, which the page's content
    security policy forbids.
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
