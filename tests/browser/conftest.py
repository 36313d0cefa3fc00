"""Fixtures of the browser tests: one Chromium and one real server for all tests."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from rookery.api import web_app
from tests.browser.browser_user import PASSWORD, Visitor, visiting
from tests.browser.faulty_connection import EventLoopThread, FaultyConnection
from tests.browser.model_script import ModelScript
from tests.browser.stored_chats import StoredChats
from tests.cli.serve.server_process import Served, serving
from tests.database import fresh_database, lease_server
from tests.sandbox_cleanup import end_sandboxes

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# The tests share their users, who may send 512 requests per minute otherwise.
COMMAND = (sys.executable, str(Path(__file__).with_name("rookery_without_rate_limits.py")))
RING = f"tests:{base64.b64encode(bytes(32)).decode()}"

Visit = Callable[..., Visitor]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests if there is no Chromium or no built page. In CI this is an error."""
    here = Path(__file__).parent
    if "CI" in os.environ:
        return
    for item in items:
        if here in item.path.parents:
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="There is no chromium on this machine."))
            elif not web_app.packaged().is_built:
                item.add_marker(pytest.mark.skip(reason="The web application is not built: make web."))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory, backstage: EventLoopThread) -> Iterator[str]:
    """The address of the server's database."""
    # In a thread: what starts it runs an event loop, and Playwright has one in this thread.
    with ThreadPoolExecutor(1) as threads:
        lease = threads.submit(lease_server, tmp_path_factory.getbasetemp()).result()
    fresh = fresh_database(lease.server)
    yield backstage.run(fresh.__aenter__())
    backstage.run(fresh.__aexit__(None, None, None))
    lease.release()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of the server."""
    return tmp_path_factory.mktemp("home") / "data"


@pytest.fixture(scope="session")
def server(data_dir: Path, database: str, backstage: EventLoopThread) -> Iterator[Served]:
    """A server with an administrator, `ada`, and the offline model."""
    options = ("--data-dir", str(data_dir), "--database-url", database)
    with serving(data_dir.parent, *options, command=COMMAND, ROOKERY_SECRET_KEYS=RING) as served:
        token = served.wait_for_line(re.compile("rk_setup_[0-9a-f]{64}"))[0]
        post(served, "/setup", {"token": token, "email": "ada@example.org", "name": "Ada", "password": PASSWORD})
        yield served
    backstage.run(end_sandboxes(data_dir))


@pytest.fixture(scope="session")
def known() -> dict[str, Any]:
    """Cookies and session keys of users who have logged in once, because checking a password is slow by design."""
    return {}


@pytest.fixture
def visit(browser: Browser, server: Served, known: dict[str, Any]) -> Iterator[Visit]:
    """Opens browsers of several users, each logged in by name. At the end, none of them may have recorded an error.

    A test that ends a session requests a session of its `own`.
    """
    with ExitStack() as stack:

        def open_for(name: str | None = "ada", *, url: str | None = None, own: bool = False, **options: Any) -> Visitor:
            visitor = stack.enter_context(visiting(browser, url or server.url, **options))
            if own and name is not None:
                visitor.log_in(name)
            elif name in known:
                cookies, key = known[name]
                visitor.context.add_cookies(cookies)
                visitor.keep_key(key)
            elif name is not None:
                visitor.log_in(name)
                known[name] = (visitor.context.cookies(), visitor.key)
                if name == "ada":
                    # The tests share the server, and some leave workspaces running.
                    visitor.ask("PUT", "/settings/workspaces", {"max_per_user": 0, "max_running_per_user": 0})
            return visitor

        yield open_for


@pytest.fixture(scope="session")
def backstage() -> Iterator[EventLoopThread]:
    loop = EventLoopThread()
    yield loop
    loop.close()


@pytest.fixture
def stored(backstage: EventLoopThread, database: str) -> StoredChats:
    """Chats that are written to the database, because creating them by messages would take too long."""
    return StoredChats(backstage, database)


@pytest.fixture
def connection(backstage: EventLoopThread, server: Served) -> Iterator[FaultyConnection]:
    """A connection to the server that tests can disturb."""
    with FaultyConnection(backstage, server.url).laid() as laid:
        yield laid


@pytest.fixture(scope="session")
def script(backstage: EventLoopThread) -> Iterator[ModelScript]:
    """A model whose answers the test defines, including their timing."""
    with ModelScript(backstage).on_stage() as ready:
        yield ready


@pytest.fixture
def ada(visit: Visit) -> Visitor:
    """The administrator with a browser."""
    return visit()


def post(served: Served, path: str, body: object) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{served.url}/api/v1{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
