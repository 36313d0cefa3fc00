"""The cost of chats in a browser: live in the header and the sidebar, and the same everywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import Visitor
from tests.browser.model_script import ModelScript

# The scripted model reads 100 tokens and writes 20 in each call: $0.30 at these prices, in dollars per million tokens.
PRICES = {"price_input": "1000", "price_output": "10000"}
ONE_CALL = 300_000


@pytest.fixture
def priced(ada: Visitor, script: ModelScript) -> Iterator[str]:
    """The model of the script, which has prices during the test."""
    config = script.config(ada)
    ada.ask("PATCH", f"/model-configs/{config}", PRICES)
    yield config
    ada.ask("PATCH", f"/model-configs/{config}", dict.fromkeys(PRICES))


def look(number: int) -> Answer:
    return Answer(calls=[FakeCall("list_agents", json.dumps({"offset": number}))])


def test_cost_is_shown_while_a_chat_runs_and_agrees_everywhere(ada: Visitor, script: ModelScript, priced: str) -> None:
    first, second = script.cue(), script.cue()
    script.plays("spend", [first, look(1)], [second, look(2)], Answer(text="All spent."))
    before = ada.ask("GET", "/me/spend")["spent_micros"]
    chat = ada.chat("spend", title="Live cost", model_config_id=priced)["id"]
    page = ada.go(f"/c/{chat}")
    cost, spent = page.get_by_test_id("chat-cost"), page.get_by_role("button", name="Account")
    expect(cost).to_have_count(0)

    first.give()
    expect(cost).to_have_text("$0.30")
    expect(spent).to_contain_text(f"${(before + ONE_CALL) / 1e6:.2f}")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    second.give()
    expect(page.get_by_role("feed")).to_contain_text("All spent.")
    expect(cost).to_have_text("$0.90")
    expect(spent).to_contain_text(f"${(before + 3 * ONE_CALL) / 1e6:.2f}")
    expect(page.get_by_role("feed")).to_contain_text("$0.90")
    assert ada.violations() == []

    cost.click()
    panel = page.get_by_role("complementary", name=re.compile("."))
    expect(panel.get_by_text("Total")).to_be_visible()
    expect(panel.get_by_text("Answers")).to_be_visible()
    expect(panel.get_by_text("$0.90").first).to_be_visible()


def test_stopped_turn_has_a_cost_and_it_is_the_same_everywhere(ada: Visitor, script: ModelScript, priced: str) -> None:
    cue = script.cue()
    script.plays("talk", [Answer(text="This is the first half of it. "), cue, Answer(text="Never said.")])
    chat = ada.chat("talk", title="Half a story", model_config_id=priced)["id"]
    page = ada.go(f"/c/{chat}")
    feed = page.get_by_role("feed")
    expect(page.get_by_role("main")).to_contain_text("the first half of it.")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(feed).to_contain_text("Stopped")
    cue.give()

    cost = page.get_by_test_id("chat-cost")
    expect(cost).to_have_text(re.compile(r"\$\d"))
    expect(feed).to_contain_text(f"out ·{cost.inner_text()}")


def test_usage_is_reported_by_chat_with_links(ada: Visitor, priced: str) -> None:
    chat = ada.chat("hello", title="A chat with a cost", model_config_id=priced)["id"]
    ada.wait_for_rest(chat)
    page = ada.go("/usage")
    page.get_by_role("combobox", name="By").select_option("Chat")
    link = page.get_by_role("link", name="A chat with a cost", exact=True)
    expect(link).to_be_visible()
    assert ada.violations() == []
    link.click()
    expect(page.get_by_role("heading", name="A chat with a cost")).to_be_visible()
