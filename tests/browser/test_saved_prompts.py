"""Saved prompts: on their settings page, and in the message box after `/`."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.browser_user import PASSWORD, Visitor
from tests.browser.conftest import Visit


def test_prompt_is_saved_and_its_variables_are_filled_in_by_keys(ada: Visitor) -> None:
    page = ada.go("/settings/saved-prompts")
    page.get_by_role("button", name="Create a prompt").click()
    dialog = page.get_by_role("dialog", name="Create a prompt")
    dialog.get_by_label("Name").fill("Fix Tests")
    dialog.get_by_label("Text").fill("Run {{command}} and fix {{what}}, please.")
    ada.allow("status of 400")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_text("A name has 1 to 64 lowercase letters, digits and hyphens")).to_be_visible()
    dialog.get_by_label("Name").fill("fix-tests")
    assert ada.violations() == []
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Saved prompts").get_by_text("/fix-tests")).to_be_visible()
    assert ada.violations() == []

    page = ada.go("/")
    box = page.get_by_role("textbox", name="Message")
    box.press_sequentially("/fix-t")
    option = page.get_by_role("option", name="/fix-tests")
    expect(option).to_contain_text("Run {{command}}")
    assert ada.violations() == []
    page.keyboard.press("Enter")
    expect(box).to_have_value("Run {{command}} and fix {{what}}, please.")
    page.keyboard.type("pytest")
    page.keyboard.press("Tab")
    page.keyboard.type("what fails")

    expect(box).to_have_value("Run pytest and fix what fails, please.")
    page.keyboard.press("Tab")
    expect(box).not_to_be_focused()
    ada.ask("DELETE", "/saved-prompts/fix-tests")


def test_member_uses_a_shared_prompt_and_cannot_change_it(ada: Visitor, visit: Visit) -> None:
    ada.ask("PUT", "/saved-prompts/house-style?scope=deployment", {"text": "<b>Follow</b> the house style."})
    ada.ask("POST", "/users", {"email": "lea@example.org", "name": "Lea", "password": PASSWORD})
    lea = visit("lea", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)

    page = lea.go("/settings/saved-prompts")
    expect(page.get_by_text("/house-style")).to_be_visible()
    expect(page.get_by_text("<b>Follow</b> the house style.")).to_be_visible()
    expect(page.get_by_role("button", name="Edit house-style")).to_be_hidden()
    page = lea.go("/")
    box = page.get_by_role("textbox", name="Message")
    box.press_sequentially("/house")
    page.get_by_role("option", name="/house-style").tap()

    expect(box).to_have_value("<b>Follow</b> the house style.")
    ada.ask("DELETE", "/saved-prompts/house-style?scope=deployment")


def test_prompt_is_found_among_many_by_the_server(ada: Visitor) -> None:
    for number in range(60):
        ada.ask("PUT", f"/saved-prompts/many-{number:02}", {"text": f"Number {number}."})
    page = ada.go("/settings/saved-prompts")
    table = page.get_by_role("region", name="Saved prompts")

    expect(table.get_by_text("/many-40")).to_be_visible()
    expect(table.get_by_text("/many-59")).to_be_hidden()
    page.get_by_label("Search").fill("many-59")
    expect(table.get_by_text("/many-59")).to_be_visible()
    expect(table.get_by_role("row")).to_have_count(2)
    for number in range(60):
        ada.ask("DELETE", f"/saved-prompts/many-{number:02}")
