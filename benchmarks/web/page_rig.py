"""A real server with chats in its database, a provider, and a Chromium that opens the page."""

from __future__ import annotations

import asyncio
import base64
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from playwright.async_api import APIRequestContext, Browser, BrowserContext, Page, StorageState, async_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.web.page_probe import PROBE
from benchmarks.web.provider import providing

from rookery.domain.chat.messages import Role
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import Database, DatabaseConfig
from tests.browser.stored_chats import rest_chat
from tests.cli.serve.server_process import Served, serving

SETUP_TOKEN = "benchmark-of-the-web-application"
RING = f"bench:{base64.b64encode(bytes(32)).decode()}"
PASSWORD = "correct horse battery"
PATIENCE_MS = 60_000
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def _diff(path: str, lines: int) -> str:
    """A change of `lines` lines: some taken away, others in their place, most of them as they were."""
    kinds = (" ", " ", "-", "+", " ", "+")
    body = [
        f"{kinds[n % len(kinds)]}    found[{n}] = await conn.fetchval(RENEW, lease.chat_id, {n})" for n in range(lines)
    ]
    old, new = (sum(not line.startswith(mark) for line in body) for mark in "+-")
    return "\n".join((f"--- a/{path}", f"+++ b/{path}", f"@@ -1,{old} +1,{new} @@", *body, ""))


@dataclass(kw_only=True)
class PageRig:
    """The server as its only user sees it."""

    url: str
    browser: Browser
    database: Database
    api: APIRequestContext
    session: StorageState
    user: UUID
    provider: str
    model: UUID
    speakers: dict[int, str] = field(default_factory=dict)
    key: dict[str, str] = field(default_factory=dict)

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        answer = await self.api.fetch(
            f"{self.url}/api/v1{path}", method=method, data=body, headers={"Origin": self.url, **self.key}
        )
        assert answer.ok, await answer.text()
        return await answer.json()

    async def rested(self, title: str, messages: int) -> str:
        """A chat at rest with so many messages."""
        return await rest_chat(self.database, owner=self.user, model=self.model, title=title, messages=messages)

    async def edited(self, title: str, *, files: int, lines: int) -> str:
        """A chat at rest whose agent changed so many files by so many lines each."""
        changes = [{"path": f"/src/part_{n}.py", "diff": _diff(f"src/part_{n}.py", lines)} for n in range(files)]
        edit: dict[str, object] = {"tool_call_id": "edit", "tool_name": "edit_files"}
        call = {"type": "tool-call", **edit, "args": {"files": []}}
        result = {"type": "tool-result", **edit, "result": {"files": changes}}
        steps = [(Role.ASSISTANT, [call]), (Role.TOOL, [result])]
        return await rest_chat(self.database, owner=self.user, model=self.model, title=title, steps=steps)

    async def speaking(self, seconds: int) -> str:
        """A new chat whose answer goes on for so long."""
        if seconds not in self.speakers:
            draft = {"provider_id": self.provider, "model": f"speak-{seconds}", "context_limit": 1_000_000}
            self.speakers[seconds] = (await self.ask("POST", "/model-configs", draft))["id"]
        body = {
            "content": [{"type": "text", "text": "Tell me everything about leases."}],
            "title": "A long answer",
            "client_type": "ui",
            "model_config_id": self.speakers[seconds],
        }
        return str((await self.ask("POST", "/chats", body))["id"])

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Page]:
        """A signed-in browser that has seen nothing yet."""
        context: BrowserContext = await self.browser.new_context(
            storage_state=self.session, viewport={"width": 1280, "height": 800}
        )
        context.set_default_timeout(PATIENCE_MS)
        await context.add_init_script(PROBE)
        try:
            yield await context.new_page()
        finally:
            await context.close()


@asynccontextmanager
async def _served(folder: Path, url: str) -> AsyncIterator[Served]:
    """Started and stopped in threads, which may take seconds."""
    options = ("--data-dir", str(folder / "server"), "--database-url", url, "--log-access", "false")
    held = serving(folder, *options, ROOKERY_SETUP_TOKEN=SETUP_TOKEN, ROOKERY_SECRET_KEYS=RING)
    served = await asyncio.to_thread(held.__enter__)
    try:
        yield served
    finally:
        await asyncio.to_thread(held.__exit__, None, None, None)


@asynccontextmanager
async def open_rig() -> AsyncIterator[PageRig]:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("There is no chromium on this machine, and this benchmark is about nothing else.")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rookery-bench-")))
        server = EmbeddedServer(folder / "database")
        await server.start()
        stack.push_async_callback(server.stop)
        served = await stack.enter_async_context(_served(folder, server.url))
        base = await stack.enter_async_context(providing())
        database = await stack.enter_async_context(await Database.connect(DatabaseConfig(server.url, pool_worker=1)))
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        stack.push_async_callback(browser.close)
        api = await playwright.request.new_context()
        stack.push_async_callback(api.dispose)
        yield await _prepare(served.url, base, browser, database, api)


async def _prepare(url: str, base: str, browser: Browser, database: Database, api: APIRequestContext) -> PageRig:
    rig = PageRig(
        url=url,
        browser=browser,
        database=database,
        api=api,
        session={"cookies": [], "origins": []},
        user=UUID(int=0),
        provider="",
        model=UUID(int=0),
    )
    account = {"token": SETUP_TOKEN, "email": "ada@example.test", "name": "Ada", "password": PASSWORD}
    await rig.ask("POST", "/setup", account)
    key = (await rig.ask("POST", "/auth/login", {"login": "ada", "password": PASSWORD}))["session_key"]
    rig.key = {"Rookery-Session-Key": key}
    rig.session = await api.storage_state()
    rig.session["origins"] = [{"origin": url, "localStorage": [{"name": "rookery.session_key", "value": key}]}]
    rig.user = UUID((await rig.ask("GET", "/users/me"))["id"])
    rig.model = UUID((await rig.ask("GET", "/model-configs"))["items"][0]["id"])
    draft = {"type": "openai_compat", "name": "speaker", "base_url": base, "api_key": "sk-bench"}
    rig.provider = (await rig.ask("POST", "/model-providers", draft))["id"]
    return rig
