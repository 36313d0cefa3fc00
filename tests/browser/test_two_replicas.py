"""Modes, phases and "Try again now" on two replicas, and after the one that runs the chat was killed."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import PASSWORD, PATIENCE_MS, Visitor, visiting
from tests.browser.conftest import RING, post
from tests.browser.faulty_connection import EventLoopThread, FaultyConnection
from tests.browser.model_script import Cue, ModelScript
from tests.cli.serve.server_process import Served, serving
from tests.database import fresh_database, lease_server

RUN = FakeCall("execute", json.dumps({"command": "echo one"}))


@dataclass
class Pair:
    """Two replicas with a browser at each. The first one runs every chat, because it was alone when they began."""

    first: Served
    at_first: Visitor
    at_second: Visitor
    line: FaultyConnection  # from the first browser
    second_url: str

    def kill_first(self) -> None:
        """Kill the replica that runs the chats. Its browser reaches the other one from now on."""
        self.first.process.send_signal(signal.SIGKILL)
        self.first.process.wait(60)
        self.line.target = self.second_url


class Replicas:
    """Starts the second replica only when the first one has taken its chats."""

    def __init__(
        self, stack: ExitStack, browser: Browser, backstage: EventLoopThread, folder: Path, database: str
    ) -> None:
        self._stack, self._browser, self._folder = stack, browser, folder
        self._database = database
        self.first = self._serve("first")
        token = self.first.wait_for_line(re.compile("rk_setup_[0-9a-f]{64}"))[0]
        post(self.first, "/setup", {"token": token, "email": "ada@example.org", "name": "Ada", "password": PASSWORD})
        self.line = stack.enter_context(FaultyConnection(backstage, self.first.url).laid())
        self.ada = self._visit(self.line.url)

    def pair(self) -> Pair:
        second = self._serve("second")
        return Pair(self.first, self.ada, self._visit(second.url), self.line, second.url)

    def _serve(self, name: str) -> Served:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            relay = f"127.0.0.1:{probe.getsockname()[1]}"
        home = str(self._folder / name)
        options = ("--data-dir", home, "--database-url", self._database, "--relay-bind", relay)
        return self._stack.enter_context(serving(self._folder, *options, ROOKERY_SECRET_KEYS=RING))

    def _visit(self, url: str) -> Visitor:
        visitor = self._stack.enter_context(visiting(self._browser, url))
        visitor.allow("WebSocket connection|net::ERR_|status of 50[23]")
        visitor.log_in("ada")
        return visitor


@pytest.fixture
def replicas(
    browser: Browser, backstage: EventLoopThread, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicas]:
    with ThreadPoolExecutor(1) as threads:
        lease = threads.submit(lease_server, tmp_path_factory.getbasetemp()).result()
    fresh = fresh_database(lease.server)
    database = backstage.run(fresh.__aenter__())
    try:
        with ExitStack() as stack:
            yield Replicas(stack, browser, backstage, tmp_path, database)
    finally:
        backstage.run(fresh.__aexit__(None, None, None))
        lease.release()


def test_silent_model_is_asked_again_from_either_replica_and_after_a_kill(
    replicas: Replicas, script: ModelScript
) -> None:
    silent = [script.cue() for _ in range(4)]
    answers: list[list[Answer | Cue]] = [[cue, Answer(text="Too late.")] for cue in silent]
    script.plays("are you there, replicas", *answers, Answer(text="Here I am."))
    ada = replicas.ada
    chat = ada.chat("are you there, replicas", title="Silent", model_config_id=script.config(ada))
    ada.page.clock.install()
    ada.go(f"/c/{chat['id']}")
    expect(ada.page.get_by_test_id("phase")).to_contain_text("Waiting for the model")
    pair = replicas.pair()
    other = pair.at_second
    other.page.clock.install()
    other.go(f"/c/{chat['id']}")

    # The replica of this page does not run the chat.
    for visitor in (other, ada):
        phase = visitor.page.get_by_test_id("phase")
        expect(phase).to_contain_text("Waiting for the model")
        with visitor.page.expect_response(re.compile(r"/nudge$")) as nudged:
            visitor.page.clock.fast_forward(40_000)
            expect(phase).to_contain_text(re.compile(r"Waiting for the model, [4-9]\d s"))
            visitor.page.get_by_role("button", name="Try again now").click()
        assert nudged.value.ok
        # The age begins again on both pages.
        for page in (ada.page, other.page):
            expect(page.get_by_test_id("phase")).to_contain_text(re.compile(r"Waiting for the model(, [0-9] s)?$"))

    pair.kill_first()
    # The other replica asks the model again, which is as silent.
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while script.left("are you there, replicas") > 1:
        assert time.monotonic() < deadline
        ada.page.wait_for_timeout(100)
    for visitor in (ada, other):
        visitor.page.reload()
        expect(visitor.page.get_by_test_id("phase")).to_contain_text("Waiting for the model")
    ada.page.clock.fast_forward(40_000)
    ada.page.get_by_role("button", name="Try again now").press("Enter")
    for visitor in (ada, other):
        expect(visitor.page.get_by_role("feed")).to_contain_text("Here I am.")
        expect(visitor.page.get_by_role("feed")).not_to_contain_text("Too late.")


def test_mode_that_is_changed_at_one_replica_holds_at_the_other_and_after_a_kill(
    replicas: Replicas, script: ModelScript
) -> None:
    wait = script.cue()
    script.plays("work, replicas", [Answer(text="I begin. "), wait, Answer(calls=[RUN])], Answer(text="As you wish."))
    script.plays("again, replicas", Answer(calls=[RUN]), Answer(text="As you wish again."))
    ada = replicas.ada
    chat = ada.chat("work, replicas", title="Two modes", model_config_id=script.config(ada))
    ada.go(f"/c/{chat['id']}")
    expect(ada.page.get_by_role("main")).to_contain_text("I begin.")
    pair = replicas.pair()
    other = pair.at_second
    other.go(f"/c/{chat['id']}")
    expect(other.page.get_by_role("main")).to_contain_text("I begin.")

    # By the replica that does not run the chat, in the middle of a step.
    for key, name in (("Alt+m", "Read only"), ("Alt+m", "Ask")):
        other.page.get_by_role("textbox", name="Message").press(key)
        for page in (other.page, ada.page):
            expect(page.get_by_role("button", name="Mode:")).to_have_accessible_name(f"Mode: {name}")
    wait.give()
    for page in (ada.page, other.page):
        expect(page.get_by_test_id("approval")).to_contain_text("$ echo one")

    pair.kill_first()
    for page in (ada.page, other.page):
        page.reload()
        expect(page.get_by_role("button", name="Mode:")).to_have_accessible_name("Mode: Ask")
        expect(page.get_by_test_id("approval")).to_contain_text("$ echo one")
    card = ada.page.get_by_test_id("approval")
    card.get_by_role("button", name="Deny").click()
    card.get_by_role("button", name="Deny").click()
    for page in (ada.page, other.page):
        expect(page.get_by_role("feed")).to_contain_text("As you wish.")
    # The replica that is left asks as well.
    box = other.page.get_by_role("textbox", name="Message")
    box.fill("again, replicas")
    box.press("Enter")
    expect(other.page.get_by_test_id("approval")).to_contain_text("$ echo one")
    expect(ada.page.get_by_test_id("approval")).to_contain_text("$ echo one")
