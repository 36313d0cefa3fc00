"""Connections that break or stall, or refuse WebSockets: in the end, the page shows the state of the server."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import PATIENCE_MS, SEND, Visitor
from tests.browser.conftest import Visit
from tests.browser.faulty_connection import FaultyConnection
from tests.browser.model_script import ModelScript

# What a browser prints of a line that breaks.
BROKEN = r"WebSocket connection|net::ERR_"
CUTS = 10
WAITS = "No connection. This is sent when the server can be reached."
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
# Prompts of different tests need different texts.
NUMBERS = count()

# Looks at every frame that is painted: words of the answer are there once and in order, whatever arrives twice.
WATCH = """
    window.seen = [];
    const look = () => {
        const feed = document.querySelector('[role=feed]')?.parentElement?.textContent ?? "";
        const marks = [...feed.matchAll(/mark(\\d+)\\./g)].map((found) => Number(found[1]));
        if (marks.some((mark, place) => mark !== place + 1)) window.seen.push(marks.join(" "));
        requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
"""


def test_turn_over_a_line_that_breaks_ten_times_ends_as_for_anybody_else(
    visit: Visit, connection: FaultyConnection, script: ModelScript
) -> None:
    calm, shaken = visit(), visit(url=connection.url)
    shaken.allow(BROKEN)
    cues = [script.cue() for _ in range(CUTS)]
    text = [Answer(text=f"mark{n}. and *more* of it\n\n") for n in range(1, CUTS + 1)]
    think = Answer(reasoning="**Counting** the cuts")
    call = Answer(calls=[FakeCall("look_up", '{"q": "a tool that is not there"}')])
    script.plays(
        "count",
        [think, cues[0], text[0], cues[1], text[1], cues[2], text[2], call],
        [cues[3], text[3], cues[4], text[4], cues[5], text[5], call],
        [cues[6], text[6], cues[7], text[7], cues[8], text[8], cues[9], text[9]],
    )
    chat = calm.chat("count", title="Cut ten times", model_config_id=script.config(calm))
    for visitor in (calm, shaken):
        visitor.go(f"/c/{chat['id']}")
        expect(visitor.page.get_by_role("button", name="Thinking about Counting")).to_be_visible()
    page = shaken.page
    page.evaluate(WATCH)

    for number, cue in enumerate(cues, start=1):
        wait_until(page, lambda least=number: connection.sockets.count("stream") >= least)  # type: ignore[misc]
        cue.give()
        connection.cut()
        expect(page.get_by_text(f"mark{number}. and more of it", exact=True)).to_be_visible()

    calm.wait_for_rest(chat["id"])
    for each in (calm.page, page):
        expect(each.get_by_role("button", name=re.compile("^Stop"))).to_have_count(0)
    assert transcript(page) == transcript(calm.page)
    assert page.evaluate("seen") == []
    wait_until(page, lambda: connection.sockets.count("stream") > CUTS)


def test_frames_that_come_twice_or_not_at_all_leave_no_trace(
    visit: Visit, connection: FaultyConnection, script: ModelScript
) -> None:
    ada = visit(url=connection.url)
    ada.allow(BROKEN)  # the line may be gone before the page is
    cues = [script.cue() for _ in range(3)]
    marks = [Answer(text=f"mark{n}. follows. ") for n in range(1, 5)]
    script.plays("stutter", [marks[0], cues[0], marks[1], cues[1], marks[2], cues[2], marks[3]])
    chat = ada.chat("stutter", title="Stuttering", model_config_id=script.config(ada))
    parts, losing, lost = 0, False, 0

    def stutter(frame: bytes) -> int:
        nonlocal parts, lost
        # Only previews may be lost: all else is the server's word, which a line delivers or breaks.
        if b'"message_part"' not in frame or b'"synced"' in frame:
            return 1
        parts += 1
        # Not the second of all: a slow server says a few letters in several parts.
        if losing and not lost:
            lost = parts
            return 0
        return 2

    connection.mangle = stutter
    page = ada.go(f"/c/{chat['id']}")
    feed = page.get_by_role("main")
    expect(feed).to_contain_text("mark1.")
    page.evaluate(WATCH)
    losing = True
    cues[0].give()
    wait_until(page, lambda: lost > 0)  # gone without a trace until the next part
    cues[1].give()
    expect(feed).to_contain_text("mark1. follows. mark2. follows. mark3. follows.")
    cues[2].give()
    expect(feed).to_contain_text("mark4. follows.")

    ada.wait_for_rest(chat["id"])
    expect(page.get_by_role("button", name=re.compile("^Stop"))).to_have_count(0)
    assert page.evaluate("seen") == []
    assert parts > lost + 1


def test_everything_works_where_sockets_are_forbidden(
    visit: Visit, connection: FaultyConnection, script: ModelScript
) -> None:
    connection.forbids_sockets = True
    ada = visit(url=connection.url)
    ada.allow(BROKEN)
    cue = script.cue()
    script.plays("no sockets", [Answer(text="The first half, "), cue, Answer(text="and the second.")])
    chat = ada.chat("hello", title="Without sockets", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    main = page.get_by_role("main")
    expect(main).to_contain_text("Understood.")

    page.get_by_role("textbox", name="Message").fill("no sockets")
    page.get_by_role("button", name=SEND).click()
    expect(main).to_contain_text("The first half,")
    page.get_by_role("textbox", name="Message").fill("and one more")
    page.get_by_role("button", name=SEND).click()
    expect(page.get_by_role("region", name="Queued messages")).to_contain_text("and one more")
    cue.give()
    expect(main).to_contain_text("and the second.")
    expect(page.get_by_role("region", name="Queued messages")).to_be_hidden()
    ada.ask("PATCH", f"/chats/{chat['id']}", {"title": "Renamed without sockets"})

    expect(page.get_by_role("link", name=re.compile("Renamed without sockets"))).to_be_visible()
    expect(page.get_by_role("heading", level=1, name="Renamed without sockets")).to_be_visible()
    assert connection.sockets == []


def test_message_whose_answer_was_lost_appears_once(
    visit: Visit, connection: FaultyConnection, script: ModelScript
) -> None:
    ada = visit(url=connection.url)
    ada.allow(BROKEN)
    chat = ada.chat("hello", title="Lost answers", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    expect(page.get_by_role("main")).to_contain_text("Understood.")
    connection.go_down_with(r"POST /api/v1/chats/[^/]+/messages")

    page.get_by_role("textbox", name="Message").fill("said once")
    page.get_by_role("button", name=SEND).click()
    waiting = page.get_by_text(WAITS)
    expect(waiting).to_be_visible()
    connection.is_down = False

    expect(waiting).to_have_count(0)
    expect(page.get_by_role("main").get_by_text("said once", exact=True)).to_have_count(1)
    ada.wait_for_rest(chat["id"])
    said = [each for each in ada.ask("GET", f"/chats/{chat['id']}/messages")["items"] if each["role"] == "user"]
    assert len(said) == 2


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desk", "phone"])
def test_messages_sent_while_offline_wait_at_the_end_and_are_sent_by_themselves(
    visit: Visit, connection: FaultyConnection, script: ModelScript, options: dict[str, Any]
) -> None:
    ada = visit(url=connection.url, **options)
    ada.allow(BROKEN)
    first, second = (f"{word} {next(NUMBERS)}" for word in ("worth keeping", "and this"))
    script.plays(first, Answer(text="I have the first."))
    script.plays(second, Answer(text="I have the second."))
    chat = ada.chat("hello", title="Sent while offline", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    feed = page.get_by_role("main")
    expect(feed).to_contain_text("Understood.")
    connection.is_down = True
    connection.cut()

    box = page.get_by_role("textbox", name="Message")
    for text in (first, second):
        box.fill(text)
        page.get_by_role("button", name=SEND).click()
        expect(box).to_have_value("")
    expect(page.get_by_text(WAITS)).to_have_count(2)
    said = feed.inner_text()
    assert said.index("Understood.") < said.index(first) < said.index(second)
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    assert ada.violations() == []

    connection.is_down = False
    expect(feed).to_contain_text("I have the second.")
    expect(page.get_by_text(WAITS)).to_have_count(0)
    ada.wait_for_rest(chat["id"])
    assert texts_of_user(ada, chat["id"]) == ["hello", first, second]


def test_message_that_waits_for_the_connection_is_sent_after_a_reload_or_taken_back(
    visit: Visit, connection: FaultyConnection, script: ModelScript
) -> None:
    ada = visit(url=connection.url)
    ada.allow(BROKEN)
    chat = ada.chat("hello", title="Reloaded while offline", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    box = page.get_by_role("textbox", name="Message")
    expect(page.get_by_role("main")).to_contain_text("Understood.")
    connection.is_down = True
    connection.cut()
    for text in ("to be taken back", "worth keeping"):
        box.fill(text)
        page.get_by_role("button", name=SEND).click()
    expect(page.get_by_text(WAITS)).to_have_count(2)
    page.get_by_role("button", name="Edit", exact=True).first.press("Enter")
    expect(box).to_have_value("to be taken back")
    expect(page.get_by_text(WAITS)).to_have_count(1)
    connection.is_down = False
    connection.cut()
    page.reload()

    expect(page.get_by_text(WAITS)).to_have_count(0)
    expect(page.get_by_role("main").get_by_text("worth keeping", exact=True)).to_be_visible()
    expect(box).to_have_value("to be taken back")
    ada.wait_for_rest(chat["id"])
    assert texts_of_user(ada, chat["id"]) == ["hello", "worth keeping"]


def texts_of_user(visitor: Visitor, chat: str) -> list[str]:
    messages = visitor.ask("GET", f"/chats/{chat}/messages")["items"]
    return [
        each["content"][0]["text"] for each in sorted(messages, key=lambda one: one["id"]) if each["role"] == "user"
    ]


def wait_until(page: Page, condition: Callable[[], bool]) -> None:
    """Wait for a condition on the connection, not on the page."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)


def transcript(page: Page) -> list[str]:
    """Return the texts of the rows."""
    return page.get_by_role("feed", name="Conversation").get_by_role("article").all_inner_texts()
