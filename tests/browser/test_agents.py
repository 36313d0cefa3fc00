"""A chat with subagents: their live cards, the panel, and the cards of their ends."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.model_script import ModelScript
from tests.browser.visitor import Visitor


def spawn(title: str, prompt: str) -> FakeCall:
    return FakeCall("spawn_agent", json.dumps({"type": "general", "title": title, "prompt": prompt}))


def test_parent_shows_two_children_live_stops_one_and_gets_the_report_of_the_other(
    ada: Visitor, script: ModelScript
) -> None:
    cue = script.cue()
    script.plays(
        "use two agents",
        Answer(calls=[spawn("callers", "find the callers"), spawn("endless", "never end")]),
        Answer(text="Both are at work."),
    )
    script.plays("find the callers", [Answer(text="There are "), cue, Answer(text="**three** callers.")])
    script.plays("never end", [Answer(text="On and "), script.cue(), Answer(text="on.")])
    chat = ada.chat("use two agents", title="Parent", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}?panel=agents")
    cards = page.get_by_test_id("tool-spawn_agent")
    expect(cards).to_have_count(2)
    callers, endless = cards.filter(has_text="callers"), cards.filter(has_text="endless")
    expect(callers.get_by_text("Waiting for the model")).to_be_visible()
    listed = page.get_by_role("list", name="Subagents").get_by_role("listitem")
    expect(listed).to_have_count(2)

    endless.get_by_role("button", name="Stop endless").click()
    expect(endless.get_by_text("Was stopped")).to_be_visible()
    expect(listed.filter(has_text="endless").get_by_role("button", name=re.compile("^Stop"))).to_have_count(0)
    cue.give()

    notice = page.get_by_test_id("agent-notice").filter(has_text="Agent callers finished")
    expect(notice.get_by_text("three")).to_be_visible()
    expect(callers.get_by_text("Finished")).to_be_visible()
    # Notices are not messages of the user.
    expect(page.locator("article[data-kind=user]")).to_have_count(1)
    expect(page.get_by_role("button", name="Edit and resend")).to_have_count(1)
    notice.get_by_role("link", name="Open").click()
    expect(page.get_by_role("feed", name="Conversation")).to_contain_text("find the callers")


def test_own_kind_is_created_edited_and_deleted(ada: Visitor) -> None:
    page = ada.go("/settings/agent-kinds")
    page.get_by_role("button", name="Create a kind").click()
    page.get_by_role("textbox", name="Name").fill("reviewer")
    page.get_by_role("textbox", name="Description").fill("Reviews code.")
    page.get_by_role("textbox", name="Tools").fill("read_file execute")
    page.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text="reviewer")
    expect(row).to_contain_text("Reviews code.")

    row.get_by_role("button", name="Edit reviewer").click()
    page.get_by_role("textbox", name="Description").fill("Reviews tests.")
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("Reviews tests.")
    stored = next(kind for kind in ada.ask("GET", "/agent-kinds")["kinds"] if kind["name"] == "reviewer")
    assert stored["tools"] == ["read_file", "execute"]

    row.get_by_role("button", name="Delete reviewer").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)


def test_user_chooses_models_for_own_subagents_if_administrators_allow_it(ada: Visitor) -> None:
    (provider, *_) = ada.ask("GET", "/models")["providers"]
    model = provider["models"][0]
    name = model["display_name"] or model["model"]
    page = ada.go("/settings/chat")
    expect(page.get_by_role("heading", name="Summarizing long chats")).to_be_visible()
    expect(page.get_by_role("heading", name="Your models")).to_have_count(0)

    try:
        override = {"model_config_id": model["id"]}
        ada.ask("PUT", "/settings/models", {"allow_personal_overrides": True, "explore_subagents": override})
        page = ada.go("/settings/chat")
        section = page.locator("section").filter(has=page.get_by_role("heading", name="Your models"))
        expect(section.get_by_label("General subagents").locator("option").first).to_have_text(
            "Server default: the chat's own"
        )
        explore = section.get_by_label("Explore subagents")
        expect(explore.locator("option").first).to_have_text(f"Server default: {name}")
        explore.select_option(label="The chat's own")
        section.get_by_label("General subagents").select_option(label=name)
        section.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()

        saved = ada.ask("GET", "/me/settings")["model_overrides"]
        assert (saved["general"]["mode"], saved["general"]["model_config_id"]) == ("model", model["id"])
        assert (saved["explore"]["mode"], saved["root"]) == ("chat_default", None)
        page.reload()
        expect(section.get_by_label("Explore subagents")).to_have_value("chat_default")
    finally:
        ada.ask("PUT", "/settings/models", {"allow_personal_overrides": False, "explore_subagents": None})
