"""Permission modes of chats in a browser."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
RUN = FakeCall("execute", json.dumps({"command": "echo one"}))


def mode(ada: Visitor, chat: str) -> str:
    return str(ada.ask("GET", f"/chats/{chat}")["permission_mode"])


def test_mode_is_changed_by_key_and_asks_before_every_effect(ada: Visitor, script: ModelScript) -> None:
    script.plays("ask before you run", Answer(calls=[RUN]), Answer(text="As you wish."))
    chat = ada.chat("hello", title="A careful chat", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    switch = page.get_by_role("button", name="Mode:")
    expect(switch).to_have_accessible_name("Mode: Auto")

    page.get_by_role("textbox", name="Message").focus()
    page.keyboard.press("Alt+m")
    expect(switch).to_have_accessible_name("Mode: Read only")
    page.keyboard.press("Alt+m")
    expect(switch).to_have_accessible_name("Mode: Ask")
    page.reload()
    expect(switch).to_have_accessible_name("Mode: Ask")
    assert mode(ada, chat["id"]) == "ask"

    page.get_by_role("textbox", name="Message").fill("ask before you run")
    page.keyboard.press("Enter")
    card = page.get_by_test_id("approval")
    expect(card).to_contain_text("$ echo one")
    # A rule would have no effect in this mode.
    expect(card.get_by_role("button", name="Always")).to_have_count(0)
    expect(card).to_contain_text("mode Ask, so each action is asked for every time")
    assert ada.violations() == []
    card.get_by_role("button", name="Deny").click()
    card.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("feed")).to_contain_text("As you wish.")


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desk", "phone"])
def test_new_chat_is_read_only_from_its_first_message(
    visit: Visit, script: ModelScript, options: dict[str, object]
) -> None:
    ada = visit(**options)
    words = f"only look, {'phone' if options else 'desk'}"
    script.plays(words, Answer(text="I looked."))
    script.config(ada)
    page = ada.go("/")
    page.get_by_role("button", name="Mode: Auto").click()
    page.get_by_role("menuitem", name="Read only").click()
    switch = page.get_by_role("button", name="Mode: Read only")
    expect(switch).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert ada.violations() == []

    page.get_by_role("textbox", name="Message").fill(words)
    page.get_by_role("button", name="Send message").click()
    expect(page.get_by_role("feed")).to_contain_text(words)
    expect(switch).to_be_visible()
    assert mode(ada, page.url.rsplit("/", 1)[-1]) == "read_only"
