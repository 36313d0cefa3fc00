"""The page with all results of a search: states as choices, filters that are refused, and marked words."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.browser_user import Visitor
from tests.browser.model_script import ModelScript


def test_a_refused_filter_is_marked_and_does_not_stop_the_next_search(ada: Visitor, script: ModelScript) -> None:
    ada.allow("status of 400")
    ada.chat("say hello", title="Heron census", model_config_id=script.config(ada))
    page = ada.go("/search?q=heron+status:foo+archived:any")

    expect(page.get_by_role("alert").filter(has_text="status:foo")).to_contain_text(
        "status knows idle, working, needs_you and failed."
    )
    filters = page.get_by_role("list", name="Filters")
    expect(filters.get_by_text("Not valid:")).to_have_count(1)

    page.get_by_label("Words").fill("census status:done")
    page.get_by_role("button", name="Search", exact=True).click()
    result = page.get_by_role("main").get_by_role("link", name="Heron census")
    expect(result).to_be_visible()
    expect(result.locator("mark")).to_have_text("census")
    expect(filters).not_to_contain_text("foo")


def test_the_states_of_chats_are_choices(ada: Visitor, script: ModelScript) -> None:
    ada.chat("say hello", title="Plover census", model_config_id=script.config(ada))
    page = ada.go("/search?q=plover")
    result = page.get_by_role("main").get_by_role("link", name="Plover census")
    expect(result).to_be_visible()
    states = page.get_by_role("group", name="State")

    states.get_by_role("button", name="Failed").click()
    expect(page.get_by_text("Nothing matches.")).to_be_visible()
    states.get_by_role("button", name="Idle").click()
    expect(result).to_be_visible()
    expect(page.get_by_role("list", name="Filters")).to_contain_text("Idle")
    states.get_by_role("button", name="Idle").click()
    expect(page.get_by_role("list", name="Filters")).to_have_count(0)
