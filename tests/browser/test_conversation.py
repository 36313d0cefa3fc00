"""A conversation, seen by somebody who reloads, looks from a phone, or cannot see."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.visit import Visitor

# Some seconds at the pace of the offline model, so that a reload meets the middle of it.
STORY = " ".join(f"word{n}" for n in range(400))


def test_reload_in_the_middle_of_an_answer_loses_and_repeats_nothing(ada: Visitor) -> None:
    chat = ada.chat(STORY, title="A long answer", model_config_id=echo(ada))
    page = ada.go(f"/c/{chat['id']}")
    answer = page.get_by_role("feed", name="Conversation").get_by_role("paragraph")
    expect(answer).to_contain_text("word20 ")

    page.reload()

    expect(answer).to_contain_text("word399")
    ada.wait_for_rest(chat["id"])
    expect(page.get_by_role("button", name=re.compile("^Stop"))).to_have_count(0)
    assert answer.inner_text() == STORY


def test_message_is_written_and_answered_in_the_browser(ada: Visitor) -> None:
    page = ada.go("/")

    page.get_by_role("textbox", name="Message").fill("hello there")
    page.get_by_role("button", name="Send message").click()

    page.wait_for_url(re.compile("/c/[0-9a-f-]{36}"))
    chat = re.findall("/c/([0-9a-f-]{36})", page.url)[0]
    ada.wait_for_rest(chat)
    expect(page.get_by_role("feed", name="Conversation")).to_contain_text("hello there")


def test_queued_message_is_dragged_to_another_place(ada: Visitor) -> None:
    chat = ada.chat(STORY * 10, title="A queue", model_config_id=echo(ada))
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


def test_open_conversation_is_exported_as_a_file(ada: Visitor) -> None:
    chat = ada.chat("say a word for the file", title="To be exported")
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


def test_phone_shows_one_pane_and_going_back_leaves_the_list(visit: Visit) -> None:
    phone = visit("ada", viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    chat = phone.chat("hello", title="On a phone")
    phone.wait_for_rest(chat["id"])
    page = phone.go(f"/c/{chat['id']}")
    header = page.get_by_role("heading", level=1, name="On a phone")
    expect(header).to_be_visible()

    page.get_by_role("button", name="Chats").click()
    expect(page.get_by_role("link", name=re.compile("On a phone"))).to_be_visible()
    expect(header).to_be_hidden()
    page.go_back()
    expect(header).to_be_visible()

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing scrolls sideways"


def echo(visitor: Visitor) -> str:
    """The model that repeats what it hears, made once."""
    for config in visitor.ask("GET", "/model-configs")["items"]:
        if config["model"] == "echo":
            return str(config["id"])
    (provider,) = [one for one in visitor.ask("GET", "/model-providers")["items"] if one["type"] == "scripted"]
    body = {"provider_id": provider["id"], "model": "echo", "context_limit": 100_000}
    return str(visitor.ask("POST", "/model-configs", body)["id"])
