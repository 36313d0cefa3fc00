"""The chat list, which follows changes by other clients."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from playwright.sync_api import expect

from tests.browser.browser_user import PASSWORD, Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript


def test_list_follows_what_happens_in_another_tab(ada: Visitor) -> None:
    page = ada.go("/")
    expect(page.get_by_role("navigation", name="Chats")).to_be_visible()

    chat = ada.chat("say hello", title="Seen in both tabs")
    row = page.get_by_role("link", name=re.compile("Seen in both tabs"))
    expect(row).to_be_visible()
    ada.ask("PATCH", f"/chats/{chat['id']}", {"title": "Renamed elsewhere"})
    expect(page.get_by_role("link", name=re.compile("Renamed elsewhere"))).to_be_visible()
    expect(row).to_be_hidden()


def test_archived_chat_comes_back_by_undo(ada: Visitor, script: ModelScript) -> None:
    chat = ada.chat("say hello", title="To be archived", model_config_id=script.config(ada))
    page = ada.go("/")
    row = page.get_by_role("link", name=re.compile("To be archived"))
    expect(row).to_be_visible()
    ada.wait_for_rest(chat["id"])

    page.get_by_role("button", name="Actions for To be archived").click()
    page.get_by_role("menuitem", name="Archive").click()
    expect(row).to_be_hidden()
    page.get_by_role("button", name="Undo").click()

    expect(row).to_be_visible()
    assert ada.ask("GET", f"/chats/{chat['id']}")["archived"] is False


def test_archiving_says_when_the_chat_will_be_deleted(ada: Visitor, visit: Visit, script: ModelScript) -> None:
    ada.ask("POST", "/users", {"email": "kay@example.org", "name": "Kay", "password": PASSWORD})
    ada.ask("PUT", "/settings/chats", {"retention_days": 30})
    try:
        kay = visit("kay")
        chat = kay.chat("say hello", title="Kept for a month", model_config_id=script.config(ada))
        kay.wait_for_rest(chat["id"])
        page = kay.go("/")
        before = datetime.now()
        page.get_by_role("button", name="Actions for Kept for a month").click()
        page.get_by_role("menuitem", name="Archive").click()
        notice = page.get_by_role("status").filter(has_text="is in the archive.")
        expect(notice).to_be_visible()
        dates = {f"{day:%B} {day.day}, {day.year}" for day in (before + timedelta(30), datetime.now() + timedelta(30))}
        assert any(f"It will be deleted on {date}." in notice.inner_text() for date in dates)
    finally:
        ada.ask("PUT", "/settings/chats", {"retention_days": 0})


def test_filters_live_in_the_address_and_lists_say_when_nothing_matches(ada: Visitor) -> None:
    page = ada.go("/?label=team%3Anobody")

    expect(page.get_by_text("No chat matches the filters.")).to_be_visible()
    page.get_by_role("button", name="Show all chats").click()
    expect(page.get_by_text("No chat matches the filters.")).to_be_hidden()
    assert "label" not in page.url


def test_each_active_filter_is_shown_and_can_be_removed(ada: Visitor) -> None:
    page = ada.go("/?archived=1&source=mine")
    pills = page.get_by_role("list", name="Active filters")

    expect(pills.get_by_role("listitem")).to_have_text(["Mine", "Archived"])
    pills.get_by_role("button", name="Remove filter Archived").click()
    expect(pills.get_by_role("listitem")).to_have_text(["Mine"])
    pills.get_by_role("button", name="Remove filter Mine").click()
    expect(pills).to_be_hidden()
    assert "archived" not in page.url


def test_deleting_needs_the_title(ada: Visitor, script: ModelScript) -> None:
    chat = ada.chat("say hello", title="Gone for good", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    ada.ask("PATCH", f"/chats/{chat['id']}", {"archived": True})
    page = ada.go("/?archived=1")

    page.get_by_role("button", name="Actions for Gone for good").click()
    page.get_by_role("menuitem", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    dialog.get_by_role("textbox").fill("Gone for good")
    dialog.get_by_role("button", name="Delete").click()

    expect(page.get_by_text("was deleted.")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("Gone for good"))).to_be_hidden()
    assert ada.context.request.get(f"{ada.url}/api/v1/chats/{chat['id']}", headers=ada.headers).status == 404


def test_list_that_covers_a_phone_closes_by_its_button_and_by_escape(visit: Visit) -> None:
    phone = visit("ada", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = phone.go("/")
    chats, box = page.get_by_role("navigation", name="Chats"), page.get_by_role("textbox", name="Message")

    def tap_close() -> None:
        page.get_by_role("button", name="Close the list").tap()

    def press_escape() -> None:
        page.keyboard.press("Escape")

    for close in (tap_close, press_escape):
        page.get_by_role("button", name="Chats", exact=True).tap()
        expect(chats).to_be_visible()
        expect(box).to_be_hidden()
        close()
        expect(chats).to_be_hidden()
        expect(box).to_be_visible()


def test_a_chat_is_shared_by_a_whole_address_and_enter_and_is_marked(ada: Visitor, script: ModelScript) -> None:
    address = "nora@example.org"
    ada.ask("POST", "/users", {"email": address, "username": "nora", "password": PASSWORD})
    chat = ada.chat("say hello", title="Read by Nora", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}")
    page.get_by_role("button", name="Share", exact=True).click()
    dialog = page.get_by_role("dialog", name="Share")

    dialog.get_by_label("Add people").fill(address)
    dialog.get_by_label("Add people").press("Enter")
    expect(dialog.get_by_role("button", name="Remove nora")).to_be_visible()
    dialog.get_by_role("button", name="Done").click()

    expect(page.locator("header").get_by_text("Shared", exact=True)).to_be_visible()
    row = page.get_by_role("navigation", name="Chats").get_by_role("link", name=re.compile("Read by Nora"))
    expect(row.get_by_role("img", name="Shared")).to_be_visible()
