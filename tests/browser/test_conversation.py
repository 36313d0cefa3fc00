"""A conversation after a reload, on a phone, and with a screen reader."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from rookery.testing.fake_completions import Answer
from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript


def test_answer_survives_a_reload_and_a_closed_tab(ada: Visitor, script: ModelScript) -> None:
    cues = [script.cue() for _ in range(2)]
    said = ["It was a dark night. ", "The rain fell in torrents. ", "Nobody was about."]
    told = [Answer(text=text) for text in said]
    script.plays("tell me a story", [told[0], cues[0], told[1], cues[1], told[2]])
    chat = ada.chat("tell me a story", title="A long answer", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}")
    expect(page.get_by_test_id("live")).to_have_text(said[0].strip())

    page.reload()
    expect(page.get_by_test_id("live")).to_have_text(said[0].strip())
    cues[0].give()
    expect(page.get_by_test_id("live")).to_have_text(f"{said[0]}{said[1].strip()}")
    ada.page = ada.open_tab()
    page.close()
    page = ada.go(f"/c/{chat['id']}")
    expect(page.get_by_test_id("live")).to_have_text(f"{said[0]}{said[1].strip()}")
    cues[1].give()

    answer = page.get_by_role("feed", name="Conversation").get_by_role("paragraph")
    expect(answer).to_have_text("".join(said))
    expect(page.get_by_role("button", name=re.compile("^Stop"))).to_have_count(0)


def test_message_is_written_and_answered_in_the_browser(ada: Visitor) -> None:
    page = ada.go("/")

    page.get_by_role("textbox", name="Message").fill("hello there")
    page.get_by_role("button", name="Send message").click()

    page.wait_for_url(re.compile("/c/[0-9a-f-]{36}"))
    chat = re.findall("/c/([0-9a-f-]{36})", page.url)[0]
    ada.wait_for_rest(chat)
    expect(page.get_by_role("feed", name="Conversation")).to_contain_text("hello there")


def test_queued_message_is_dragged_to_another_place(ada: Visitor, script: ModelScript) -> None:
    script.plays("go on for ever", [Answer(text="On and "), script.cue(), Answer(text="on.")])
    chat = ada.chat("go on for ever", title="A queue", model_config_id=script.config(ada))
    for text in ("first", "second", "third"):
        ada.ask("POST", f"/chats/{chat['id']}/messages", {"content": [{"type": "text", "text": text}]})
    page = ada.go(f"/c/{chat['id']}")
    rows = page.get_by_role("region", name="Queued messages").get_by_role("listitem")
    expect(rows).to_contain_text(["first", "second", "third"])

    with page.expect_response(re.compile("/move$")) as moved:
        rows.nth(2).drag_to(rows.nth(0))

    assert moved.value.ok
    expect(rows).to_contain_text(["third", "first", "second"])
    queue = ada.ask("GET", f"/chats/{chat['id']}/queue")["items"]
    ada.ask("POST", f"/chats/{chat['id']}/interrupt")
    assert [each["content"][0]["text"] for each in queue] == ["third", "first", "second"]


def test_hint_of_a_button_is_not_in_the_way_of_the_button_above(ada: Visitor, script: ModelScript) -> None:
    script.plays("hold on", [Answer(text="Holding "), script.cue(), Answer(text="on.")])
    chat = ada.chat("hold on", title="Hints", model_config_id=script.config(ada))
    for text in ("first", "second"):
        ada.ask("POST", f"/chats/{chat['id']}/messages", {"content": [{"type": "text", "text": text}]})
    page = ada.go(f"/c/{chat['id']}")
    rows = page.get_by_role("region", name="Queued messages").get_by_role("listitem")

    rows.nth(1).get_by_role("button", name="Edit").hover()
    expect(page.get_by_role("tooltip", name="Edit")).to_be_visible()
    rows.nth(0).get_by_role("button", name="Edit").click()

    expect(page.get_by_role("textbox", name="Message")).to_have_value("first")
    ada.ask("POST", f"/chats/{chat['id']}/interrupt")


def test_open_conversation_is_exported_as_a_file(ada: Visitor, script: ModelScript) -> None:
    chat = ada.chat("say a word for the file", title="To be exported", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    expect(page.get_by_role("feed", name="Conversation")).to_contain_text("say a word for the file")

    page.get_by_role("button", name="Actions for this chat").click()
    with page.expect_download() as started:
        page.get_by_role("menuitem", name="Export as Markdown").click()

    assert started.value.suggested_filename == "To be exported.md"
    assert "say a word for the file" in started.value.path().read_text()
    page.get_by_role("button", name="Actions for this chat").click()
    with page.expect_download() as started:
        page.get_by_role("menuitem", name="Export as JSON").click()
    written = json.loads(started.value.path().read_text())
    assert started.value.suggested_filename == "To be exported.json"
    assert [each["role"] for each in written["messages"]][:2] == ["user", "assistant"]
    assert written["messages"][0]["content"] == [{"type": "text", "text": "say a word for the file"}]


def test_phone_shows_one_pane_and_everything_is_in_reach_of_a_thumb(visit: Visit, script: ModelScript) -> None:
    phone = visit("ada", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    cue = script.cue()
    script.plays("hello\nphone", [Answer(text="Writing "), cue, Answer(text="with one thumb.")])
    chat = phone.chat("hello", title="On a phone", model_config_id=script.config(phone))
    phone.wait_for_rest(chat["id"])
    page = phone.go(f"/c/{chat['id']}")
    header = page.get_by_role("heading", level=1, name="On a phone")
    expect(header).to_be_visible()

    page.get_by_role("button", name="Chats").tap()
    expect(page.get_by_role("link", name=re.compile("On a phone"))).to_be_visible()
    expect(header).to_be_hidden()
    page.go_back()
    expect(header).to_be_visible()

    # Enter is a line: there is a button to send, and while the agent works it queues.
    box = page.get_by_role("textbox", name="Message")
    expect(page.get_by_role("button", name=re.compile("^Model: actor"))).to_be_visible()  # the settings are there, too
    box.tap()
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    page.keyboard.type("phone")
    expect(box).to_have_value("hello\nphone")
    page.get_by_role("button", name="Send message").tap()
    expect(page.get_by_role("main")).to_contain_text("Writing")
    box.fill("and another thing")
    page.get_by_role("button", name="Queue message").tap()
    expect(page.get_by_role("region", name="Queued messages")).to_contain_text("and another thing")
    assert page.evaluate(TOO_SMALL) == []
    cue.give()
    expect(page.get_by_role("main")).to_contain_text("Writing with one thumb.")
    expect(page.get_by_role("region", name="Queued messages")).to_be_hidden()

    page.get_by_role("button", name="Show the panel").tap()
    expect(page.get_by_role("complementary", name="Panel")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing scrolls sideways"


# What a finger may want to touch, and is likely to miss.
TOO_SMALL = """
    () => [...document.querySelectorAll("header button, form button, [data-composer] ~ div button, nav a")]
        .filter((one) => one.checkVisibility() && !one.closest(".sr-only"))
        .filter((one) => one.getBoundingClientRect().height < 43.5)
        .map((one) => one.outerHTML.slice(0, 120))
"""
