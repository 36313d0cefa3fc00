"""Turns that were stopped or have failed: the content that is kept, and the actions that the user has next."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from rookery.testing.fake_completions import Answer, FakeCall
from rookery.testing.fake_server import Scenario
from tests.browser.browser_user import PATIENCE_MS, SEND, Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
LONG = "for n in $(seq 1 300); do echo line $n of the build; done; echo waiting; sleep 600"


def workspace(visitor: Visitor) -> str:
    made = visitor.ask("POST", "/workspaces", {"template": "blank"})["workspace"]
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while visitor.ask("GET", f"/workspaces/{made['id']}")["status"] != "running":
        assert time.monotonic() < deadline
        visitor.page.wait_for_timeout(100)
    return str(made["id"])


def running_command(visitor: Visitor, script: ModelScript, prompt: str, *after: Answer) -> tuple[str, Page]:
    """Open a chat whose agent runs a command that has printed something and does not end."""
    call = FakeCall("execute", json.dumps({"command": LONG, "timeout": "15m"}))
    script.plays(prompt, Answer(calls=[call]), *after)
    chat = visitor.chat(
        prompt, title=prompt.capitalize(), model_config_id=script.config(visitor), workspace_id=workspace(visitor)
    )
    page = visitor.go(f"/c/{chat['id']}")
    card = page.get_by_test_id("tool-execute")
    card.get_by_role("button").first.click()
    expect(card.get_by_role("group", name="Output")).to_contain_text("waiting")
    return str(chat["id"]), page


def result_of(visitor: Visitor, chat: str) -> Any:
    for message in visitor.ask("GET", f"/chats/{chat}/messages?limit=50")["items"]:
        for part in message["content"]:
            if part["type"] == "tool-result":
                return part["result"]
    raise AssertionError("No tool has a result.")


def check_output_is_kept(visitor: Visitor, page: Page, chat: str) -> Locator:
    card = page.get_by_test_id("tool-execute")
    expect(card).to_have_attribute("data-state", "stopped")
    expect(card).to_contain_text("Stopped")
    expect(card).not_to_contain_text("Did not run")
    box = card.get_by_role("group", name="Output")
    expect(box.get_by_text("line 1 of the build")).to_be_attached()
    expect(box.get_by_text("line 300 of the build")).to_be_visible()
    result = result_of(visitor, chat)
    assert result["output"].startswith("line 1 of the build\n")
    assert "line 300 of the build\nwaiting\n" in result["output"]
    assert re.match(r"Stopped by the user after \d+(\.\d)? s\. Its output so far is in `output`\.", result["error"])
    return box


def test_stopped_command_keeps_its_output_in_the_card_and_for_the_agent(
    ada: Visitor, visit: Visit, script: ModelScript
) -> None:
    chat, page = running_command(ada, script, "run the build")
    page.get_by_role("button", name="Stop", exact=True).click()
    ada.wait_for_rest(chat)
    check_output_is_kept(ada, page, chat)
    expect(page.get_by_role("feed").get_by_text("Stopped at ")).to_have_count(1)
    assert ada.violations() == []

    page.reload()
    card = page.get_by_test_id("tool-execute")
    card.get_by_role("button").first.press("Enter")
    check_output_is_kept(ada, page, chat)
    # The agent gets the output with the next message.
    script.plays("Continue.", Answer(text="I saw line 300."))
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("feed")).to_contain_text("I saw line 300.")
    # Only the newest turn offers to continue.
    expect(page.get_by_role("button", name="Continue")).to_have_count(0)

    phone = visit(**PHONE)
    small = phone.go(f"/c/{chat}")
    small.get_by_test_id("tool-execute").get_by_role("button").first.tap()
    check_output_is_kept(phone, small, chat)
    assert small.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert phone.violations() == []


def test_message_that_stops_a_command_keeps_its_output(ada: Visitor, script: ModelScript) -> None:
    script.plays("do something else", Answer(text="Something else is done."))
    chat, page = running_command(ada, script, "run it and be interrupted")
    box = page.get_by_role("textbox", name="Message")
    box.fill("do something else")
    box.press("Control+Shift+Enter")
    expect(page.get_by_role("feed")).to_contain_text("Something else is done.")
    check_output_is_kept(ada, page, chat)


def test_turn_that_is_stopped_before_its_answer_leaves_a_mark_and_can_be_tried_again(
    ada: Visitor, script: ModelScript
) -> None:
    cue = script.cue()
    script.plays("say nothing yet", [cue, Answer(text="Never said.")], Answer(text="Said at last."))
    chat = ada.chat("say nothing yet", title="Stopped early", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}")
    feed = page.get_by_role("feed")
    page.get_by_role("button", name="Stop", exact=True).click()
    ada.wait_for_rest(chat["id"])
    expect(feed.get_by_text("Stopped at ")).to_be_visible()
    page.reload()
    expect(feed.get_by_text("Stopped at ")).to_be_visible()
    assert ada.violations() == []

    page.get_by_role("button", name="Try again").click()
    expect(feed).to_contain_text("Said at last.")
    expect(feed.get_by_text("Stopped at ")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    cue.give()


def test_turn_that_is_stopped_during_its_retries_leaves_a_mark(ada: Visitor, script: ModelScript) -> None:
    script.plays("fail for now", *[refusal(503, "Busy.")] * 8)
    chat = ada.chat("fail for now", title="Stopped while retrying", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}")
    banner = page.get_by_role("region", name="Retrying")
    banner.get_by_role("button", name="Stop").click()
    ada.wait_for_rest(chat["id"])
    expect(banner).to_have_count(0)
    expect(page.get_by_role("feed").get_by_text("Stopped at ")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def refusal(status: int, text: str) -> Scenario:
    return Scenario(status=status, body={"error": {"message": text, "type": "error"}})


def failing_chat(visitor: Visitor, script: ModelScript, prompt: str, *steps: Answer | Scenario) -> tuple[str, Page]:
    script.plays(prompt, *steps)
    chat = visitor.chat(prompt, title=prompt.capitalize(), model_config_id=script.config(visitor))
    visitor.wait_for_rest(chat["id"])
    return str(chat["id"]), visitor.go(f"/c/{chat['id']}")


def test_failed_turn_can_be_tried_again_and_leaves_a_mark(ada: Visitor, visit: Visit, script: ModelScript) -> None:
    refused = refusal(401, "The key is not valid.")
    chat, page = failing_chat(ada, script, "fail with a bad key", refused, refused, Answer(text="It works now."))
    card, mark = page.get_by_test_id("chat-error"), page.get_by_test_id("failed-mark")
    expect(card).to_contain_text("Key refused")
    expect(card.get_by_role("button", name="Switch model")).to_be_visible()
    expect(card.get_by_role("link", name="Open providers")).to_be_visible()
    # The card says what the mark would say.
    expect(mark).to_have_count(0)
    card.get_by_role("button", name="Try again").click()
    expect(mark).to_have_count(1)
    expect(card).to_be_visible()

    card.get_by_role("button", name="Try again").press("Enter")
    expect(page.get_by_role("feed")).to_contain_text("It works now.")
    expect(card).to_have_count(0)
    expect(mark).to_have_count(2)
    expect(mark.first).to_contain_text("Failed: Key refused.")
    assert ada.violations() == []

    phone = visit(**PHONE, color_scheme="dark")
    small = phone.go(f"/c/{chat}")
    expect(small.get_by_test_id("failed-mark")).to_have_count(2)
    assert small.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert phone.violations() == []


def test_message_after_a_failed_turn_does_not_erase_its_error(ada: Visitor, script: ModelScript) -> None:
    _, page = failing_chat(ada, script, "fail and forget", refusal(400, "Unknown parameter."))
    card = page.get_by_test_id("chat-error")
    expect(card).to_contain_text("Try again")
    page.get_by_role("textbox", name="Message").fill("another question")
    page.get_by_role("button", name=SEND).click()
    expect(page.get_by_role("feed")).to_contain_text("Understood.")
    expect(card).to_have_count(0)
    page.reload()
    mark = page.get_by_test_id("failed-mark")
    expect(mark).to_be_visible()
    expect(mark.locator("time")).to_be_visible()
    said = page.get_by_role("feed").inner_text()
    assert said.index("fail and forget") < said.index("Failed: ") < said.index("another question")


@pytest.fixture
def limited(ada: Visitor) -> Callable[[int], None]:
    def limit(micros: int) -> None:
        ada.ask("PUT", "/settings/spend", {"enabled": micros > 0, "default_limit_micros": micros})

    return limit


def test_used_up_limit_names_what_to_do_and_the_turn_goes_on_after_it_was_raised(
    ada: Visitor, script: ModelScript, limited: Callable[[int], None]
) -> None:
    config = script.config(ada)
    prices = {"price_input": "1000", "price_output": "10000"}
    cue = script.cue()
    look = Answer(calls=[FakeCall("list_agents", "{}")])
    script.plays("spend it all", [cue, look], Answer(text="There is money again."))
    ada.ask("PATCH", f"/model-configs/{config}", prices)
    try:
        chat = ada.chat("spend it all", title="At the limit", model_config_id=config)
        page = ada.go(f"/c/{chat['id']}")
        expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
        limited(1)
        cue.give()
        card = page.get_by_test_id("chat-error")
        expect(card).to_contain_text("Limit reached")
        expect(card.get_by_role("link", name="Usage")).to_be_visible()
        card.get_by_role("link", name="Raise the limit").click()
        expect(page.get_by_role("heading", name="Spending", exact=True)).to_be_visible()
        limited(0)
        page.go_back()
        card.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("feed")).to_contain_text("There is money again.")
        expect(page.get_by_test_id("failed-mark")).to_contain_text("Failed: Limit reached.")
    finally:
        limited(0)
        ada.ask("PATCH", f"/model-configs/{config}", dict.fromkeys(prices))
