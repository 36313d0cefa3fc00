"""Sessions in a browser: cookies that a page on another port gets, several tabs, reloads, and closed browsers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.api.openapi_operations import ALL
from tests.api.test_statuses import missing
from tests.browser.browser_user import PASSWORD, PATIENCE_MS
from tests.browser.conftest import CHROMIUM, FLAGS, Visit
from tests.browser.test_bad_input import upload
from tests.cli.serve.server_process import Served

# Every way in which a page can make a browser ask with the cookie, and what it learns.
ATTACK = """
    async ([server, file]) => {
        const told = {};
        const fetched = async (name, path, init) => {
            told[name] = await fetch(server + path, { credentials: "include", ...init }).then(
                async (answer) => `${answer.type} ${answer.status} ${await answer.text()}`,
                (error) => `failed ${error.name}`,
            );
        };
        await fetched("fetch", "/api/v1/users/me", {});
        await fetched("fetch without cors", "/api/v1/users/me", { mode: "no-cors" });
        await fetched("simple post", "/api/v1/auth/logout", { method: "POST", mode: "no-cors" });
        await fetched("with a key", "/api/v1/users/me", { headers: { "Rookery-Session-Key": "rk_k_guess" } });
        await fetched("token", "/api/v1/tokens", {
            method: "POST", mode: "no-cors", body: '{"name": "mine", "scopes": ["all"]}',
        });
        told.image = await new Promise((resolve) => {
            const image = new Image();
            image.onload = () => resolve("shown");
            image.onerror = () => resolve("failed");
            image.src = `${server}/api/v1/files/${file}`;
        });
        told.socket = await new Promise((resolve) => {
            const socket = new WebSocket(`${server.replace("http", "ws")}/api/v1/chats/watch`, ["rookery.v1"]);
            socket.onopen = () => resolve("open");
            socket.onclose = (event) => resolve(`closed ${event.code}`);
        });
        told.events = await new Promise((resolve) => {
            const source = new EventSource(`${server}/api/v1/chats/watch`, { withCredentials: true });
            source.onopen = () => resolve("open");
            source.onerror = () => { source.close(); resolve("failed"); };
        });
        told.storage = JSON.stringify(Object.keys(localStorage));
        return told;
    }
"""
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001e221bc330000"
    "000049454e44ae426082"
)
KEY_IN_PAGE = "localStorage.getItem('rookery.session_key')"


class CookieCollector:
    """A program on another port of the host that collects the cookies of its visitors."""

    def __init__(self) -> None:
        self.cookies: list[str] = []
        thief = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                thief.cookies.append(self.headers.get("Cookie", ""))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>harmless</title>")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def thief() -> Iterator[CookieCollector]:
    made = CookieCollector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_page_of_another_port_gets_the_cookie_and_can_do_nothing_with_it(visit: Visit, thief: CookieCollector) -> None:
    ada = visit(own=True)
    ada.allow(".*")
    file = upload(ada, "dot.png", "image/png", PNG)
    page = ada.page
    page.goto(thief.url)

    told = page.evaluate(ATTACK, [ada.url, file])
    page.set_content(
        f"<form method=post action='{ada.url}/api/v1/tokens' enctype='text/plain'>"
        '<input name=\'{"name": "mine", "scopes": ["all"], "x": "\' value=\'"}\'></form>'
    )
    with page.expect_navigation():
        page.evaluate("document.forms[0].submit()")
    posted = page.inner_text("body")
    navigated = page.goto(f"{ada.url}/api/v1/files/{file}")

    assert any("rookery_session=rk_s_" in each for each in thief.cookies)
    assert {name: told[name] for name in ("fetch", "with a key", "image", "events", "storage")} == {
        "fetch": "failed TypeError",
        "with a key": "failed TypeError",
        "image": "failed",
        "events": "failed",
        "storage": "[]",
    }
    assert told["socket"].startswith("closed")
    # An answer that nobody may read is opaque, or kept from the page altogether.
    for name in ("fetch without cors", "simple post", "token"):
        assert told[name] in ("opaque 0 ", "failed TypeError")
    assert re.search("session_key_required|origin_rejected", posted)
    assert navigated is not None
    assert (navigated.status, navigated.json()["code"]) == (401, "session_key_required")
    # The session is as it was, and nothing was made with it.
    assert ada.ask("GET", "/users/me")["username"] == "ada"
    assert "mine" not in [token["name"] for token in ada.ask("GET", "/tokens")["items"]]
    ada.problems.clear()  # the page of another origin is what this is about


def test_cookie_that_a_listener_received_opens_nothing_from_anywhere(visit: Visit, thief: CookieCollector) -> None:
    ada = visit(own=True)
    ada.page.goto(thief.url)
    cookie = next(each for each in thief.cookies if "rookery_session" in each)
    own = {"Cookie": cookie, "Origin": ada.url, "Sec-Fetch-Site": "same-origin"}

    got = {asked.name: status_of(ada.url + missing(asked), asked.method, own) for asked in ALL if not asked.is_public}

    assert set(got.values()) == {(401, "session_key_required")}
    assert got["tokens.create"] == (401, "session_key_required")
    ada.problems.clear()


def status_of(url: str, method: str, headers: dict[str, str]) -> tuple[int, str]:
    body = b"{}" if method in ("POST", "PUT", "PATCH") else None
    try:
        with urlopen(
            Request(url, body, {**headers, "Content-Type": "application/json"}, method=method), timeout=60
        ) as done:
            return done.status, ""
    except HTTPError as error:
        return error.code, json.load(error)["code"]


def test_second_tab_and_refresh_go_on_with_the_session(visit: Visit) -> None:
    ada = visit(own=True)
    chat = ada.chat("What can you do here?", title="Two tabs")
    ada.wait_for_rest(chat["id"])
    first, second = ada.go(f"/c/{chat['id']}"), ada.open_tab()

    second.goto(f"{ada.url}/c/{chat['id']}")
    first.reload()

    for page in (first, second):
        expect(page.get_by_role("img", name=re.compile("^Live"))).to_be_visible()
        expect(page.get_by_role("button", name="Account of Ada")).to_be_visible()


def test_signing_out_in_one_tab_signs_the_other_out(visit: Visit) -> None:
    ada = visit(own=True)
    ada.allow("status of 401|HTTP Authentication failed")
    first, second = ada.go("/"), ada.open_tab()
    second.goto(f"{ada.url}/search")
    expect(second.get_by_label("Words", exact=True)).to_be_visible()

    first.get_by_role("button", name="Account of Ada").click()
    first.get_by_role("menuitem", name="Sign out").click()

    for page in (first, second):
        expect(page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()
        assert page.evaluate(KEY_IN_PAGE) is None
    second.get_by_label("Email or username").fill("ada")
    second.get_by_label("Password").fill(PASSWORD)
    second.keyboard.press("Enter")
    expect(second.get_by_role("button", name="Account of Ada")).to_be_visible()


def test_page_whose_session_ended_goes_on_when_another_tab_signs_in(visit: Visit) -> None:
    ada = visit(own=True)
    ada.allow("status of 401|HTTP Authentication failed")
    first, second = ada.go("/search"), ada.open_tab()
    first.get_by_label("Words", exact=True).fill("what I typed")
    second.goto(f"{ada.url}/")
    for session in ada.ask("GET", "/auth/sessions")["items"]:
        if session["current"]:
            ada.ask("DELETE", f"/auth/sessions/{session['id']}")
    dialogs = [page.get_by_role("dialog", name="Sign in again") for page in (first, second)]
    for dialog in dialogs:
        expect(dialog).to_be_visible()

    dialogs[1].get_by_label("Password").fill(PASSWORD)
    dialogs[1].get_by_role("button", name="Sign in").click()

    for dialog in dialogs:
        expect(dialog).to_be_hidden()
    expect(first.get_by_label("Words", exact=True)).to_have_value("what I typed")


def test_page_that_lost_its_key_leads_to_the_login_page(visit: Visit) -> None:
    ada = visit(own=True)
    ada.allow("status of 401")
    page = ada.go("/")
    expect(page.get_by_role("button", name="Account of Ada")).to_be_visible()

    page.evaluate("localStorage.removeItem('rookery.session_key')")
    page.reload()

    expect(page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()
    expect(page.get_by_role("switch", name="Stay signed in")).to_be_checked()


def test_pictures_and_downloads_have_signed_links(visit: Visit) -> None:
    ada = visit(own=True)
    picture, other = (
        upload(ada, "dot.png", "image/png", PNG),
        upload(ada, "notes.pdf", "application/pdf", b"%PDF-1.7\n%%EOF"),
    )
    content = [{"type": "text", "text": "Look"}, *({"type": "file", "file_id": each} for each in (picture, other))]
    chat = ada.ask("POST", "/chats", {"content": content, "client_type": "ui", "title": "Files"})
    ada.wait_for_rest(chat["id"])
    loaded: list[str] = []
    ada.page.on("response", lambda answer: loaded.append(f"{answer.status} {answer.url}"))
    page = ada.go(f"/c/{chat['id']}")

    image = page.get_by_role("img", name="dot.png")
    expect(image).to_be_visible()
    expect(image).to_have_js_property("naturalWidth", 1)
    with page.expect_download() as saved:
        page.get_by_role("link", name="notes.pdf").click()

    assert saved.value.suggested_filename == "notes.pdf"
    assert Path(saved.value.path()).read_bytes() == b"%PDF-1.7\n%%EOF"
    assert "signature=rk_d_" in (image.get_attribute("src") or "")
    assert any(each.startswith(f"200 {ada.url}/api/v1/files/{picture}?signature=") for each in loaded)
    assert not any(re.search(rf"/files/({picture}|{other})$", each) for each in loaded)


@contextmanager
def opened(browser: Browser, folder: Path) -> Iterator[BrowserContext]:
    """Run a browser with a separate profile on disk."""
    context = browser.browser_type.launch_persistent_context(str(folder), executable_path=CHROMIUM, args=FLAGS)
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield context
    finally:
        context.close()


def sign_in(page: Page, url: str, *, stays: bool) -> None:
    page.goto(f"{url}/login")
    page.get_by_label("Email or username").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    stay = page.get_by_role("switch", name="Stay signed in")
    expect(stay).to_be_checked()
    if not stays:
        stay.click()
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Account of Ada")).to_be_visible()


def test_session_outlives_the_browser_only_if_the_user_stays_signed_in(
    browser: Browser, server: Served, tmp_path: Path
) -> None:
    for stays, shown in ((True, "Account of Ada"), (False, "Sign in")):
        folder = tmp_path / f"profile-{stays}"
        with opened(browser, folder) as context:
            sign_in(context.new_page(), server.url, stays=stays)

        with opened(browser, folder) as context:
            page = context.new_page()
            page.goto(server.url)
            expect(page.get_by_role("button", name=shown)).to_be_visible()
