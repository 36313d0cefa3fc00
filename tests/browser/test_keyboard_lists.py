"""Lists, dialogs and settings with the keyboard only: everything can be reached, and the focus is never lost."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.browser.browser_user import PASSWORD, Visitor
from tests.browser.keyboard import Keys
from tests.browser.model_script import ModelScript


def row(page: Page, title: str) -> Locator:
    return page.get_by_role("navigation", name="Chats").get_by_role("link", name=re.compile(f"^(Unread )?{title}"))


def chats(visitor: Visitor, script: ModelScript, *titles: str) -> list[Any]:
    """Chats at rest. The last one is at the top of the list."""
    made = []
    for title in titles:
        chat = visitor.chat("hello", title=title, model_config_id=script.config(visitor))
        visitor.wait_for_rest(chat["id"])
        made.append(chat)
    return made


def choose(keys: Keys, page: Page, item: str) -> None:
    """Choose an entry of the open menu with the arrow keys."""
    target = page.get_by_role("menuitem", name=item, exact=True)
    keys.to(target, "ArrowDown")
    keys.press("Enter")


def test_chats_are_opened_pinned_renamed_labelled_shared_archived_and_brought_back(
    ada: Visitor, script: ModelScript
) -> None:
    ada.ask("POST", "/users", {"email": "kim@example.org", "username": "kim", "password": PASSWORD})
    first, second, third = chats(ada, script, "First by keys", "Second by keys", "Third by keys")
    page, keys = ada.go("/"), Keys(ada)
    keys.do(row(page, "Second by keys"))
    page.wait_for_url(f"**/c/{second['id']}")
    keys.at(page.get_by_role("textbox", name="Message"))
    keys.press("Alt+ArrowUp")
    page.wait_for_url(f"**/c/{third['id']}")

    # The menu of a row has a key and a button; both give the focus back.
    keys.to(row(page, "Second by keys"))
    keys.press("Shift+F10")
    choose(keys, page, "Pin")
    pinned = page.get_by_role("region", name="Pinned")
    expect(pinned.get_by_role("link", name=re.compile("Second by keys"))).to_be_visible()
    keys.somewhere()
    actions = page.get_by_role("button", name="Actions for Second by keys")
    keys.do(actions)
    keys.press("Escape")
    keys.at(actions)
    keys.press("Enter")
    choose(keys, page, "Rename")
    keys.at(page.get_by_role("dialog", name="Rename").get_by_label("Title"))
    keys.type("Second, renamed")
    keys.press("Enter")
    expect(row(page, "Second, renamed")).to_be_visible()
    actions = page.get_by_role("button", name="Actions for Second, renamed")
    keys.at(actions)

    keys.press("Enter")
    choose(keys, page, "Labels")
    dialog = page.get_by_role("dialog", name="Labels")
    keys.at(dialog.get_by_label("Key"))
    for pair in (("team", "docs"), ("kind", "test")):
        keys.to(dialog.get_by_label("Key"))
        keys.type(pair[0])
        keys.to(dialog.get_by_label("Value"))
        keys.type(pair[1])
        keys.press("Enter")
    keys.do(dialog.get_by_role("button", name="Remove team"))
    keys.at(dialog.get_by_role("button", name="Remove kind"))
    keys.do(dialog.get_by_role("button", name="Save"))
    keys.at(actions)
    keys.press("Enter")
    choose(keys, page, "Share")
    dialog = page.get_by_role("dialog", name="Share")
    keys.at(dialog.get_by_label("Add people"))
    keys.type("kim")
    expect(dialog.get_by_role("button", name=re.compile("@kim"))).to_be_visible()
    keys.press("Enter")
    keys.to(dialog.get_by_role("button", name="Remove kim"))
    keys.do(dialog.get_by_role("switch", name=re.compile("Everyone")), "Space")
    expect(dialog.get_by_role("switch", name=re.compile("Everyone"))).to_be_checked()
    keys.press("Escape")
    keys.at(actions)
    keys.press("Enter")
    choose(keys, page, "Unpin")
    expect(pinned).to_have_count(0)
    keys.somewhere()

    # A row that goes leaves the focus to its neighbour; the way back is in reach.
    keys.to(row(page, "First by keys"))
    keys.press("Shift+F10")
    choose(keys, page, "Archive")
    expect(row(page, "First by keys")).to_have_count(0)
    keys.somewhere()
    keys.do(page.get_by_role("button", name="Undo"))
    expect(row(page, "First by keys")).to_be_visible()
    keys.somewhere()
    assert ada.ask("GET", f"/chats/{first['id']}")["archived"] is False
    renamed = ada.ask("GET", f"/chats/{second['id']}")
    assert (renamed["title"], renamed["labels"]) == ("Second, renamed", {"kind": "test"})


def test_filters_search_and_help_are_opened_used_and_left(ada: Visitor, script: ModelScript) -> None:
    (chat,) = chats(ada, script, "Sought by keys")
    page, keys = ada.go("/usage"), Keys(ada)
    filters = page.get_by_role("button", name=re.compile("^Filter"))
    keys.do(filters)
    keys.somewhere()
    keys.press("Escape")
    keys.at(filters)

    opener = page.get_by_role("button", name=re.compile("^Search"))
    keys.do(opener)
    keys.at(page.get_by_role("combobox", name="Search and commands"))
    keys.press("Escape")
    keys.at(opener)
    keys.press("Enter")
    keys.type("Sought by keys")
    option = page.get_by_role("option", name=re.compile("Sought by keys")).first
    # What the server finds comes a moment after the key, and makes the list longer.
    expect(page.get_by_role("option", name="All results for “Sought by keys”")).to_be_visible()
    expect(page.get_by_role("listbox")).to_contain_text("Found")
    expect(option).to_have_attribute("aria-selected", "true")
    keys.press("ArrowDown", "ArrowUp", "Enter")
    page.wait_for_url(re.compile(f"/c/{chat['id']}"))
    keys.at(page.get_by_role("textbox", name="Message"))

    section = page.get_by_role("navigation", name="Chats").get_by_role("button", name=re.compile("^Today"))
    keys.do(section)
    expect(section).to_have_attribute("aria-expanded", "false")
    keys.at(section)
    keys.press("Space")
    expect(row(page, "Sought by keys")).to_be_visible()
    keys.press("?")
    help_ = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(help_).to_be_visible()
    keys.press("Tab", "Tab")
    assert help_.evaluate("(one) => one.contains(document.activeElement)"), "the focus stays in a dialog"
    keys.press("Escape")
    keys.at(section)
    # The list goes away and comes back, and nothing is lost with it.
    keys.press("Control+b")
    expect(section).to_be_hidden()
    keys.press("Control+b")
    expect(section).to_be_visible()
    keys.do(page.get_by_role("button", name="Account of Ada"))
    choose(keys, page, "Settings")
    page.wait_for_url("**/settings/profile")


def test_settings_are_saved_and_rows_made_and_removed(ada: Visitor) -> None:
    page, keys = ada.go("/settings/tokens"), Keys(ada)
    new = page.get_by_role("button", name="New token")
    for name in ("by keys one", "by keys two"):
        keys.do(new)
        keys.at(page.get_by_role("dialog", name="New token").get_by_label("Name", exact=True))
        keys.type(name)
        keys.press("Enter")
        made = page.get_by_role("dialog", name="Your new token")
        keys.do(made.get_by_role("button", name="Done"))
        expect(page.get_by_role("cell", name=name, exact=True)).to_be_visible()
        keys.at(new)
    keys.do(page.get_by_role("button", name="Revoke by keys one"))
    expect(page.get_by_role("cell", name="by keys one", exact=True)).to_have_count(0)
    keys.somewhere()
    keys.do(page.get_by_role("button", name="Revoke by keys two"))
    expect(page.get_by_role("cell", name="by keys two", exact=True)).to_have_count(0)
    keys.somewhere()

    keys.do(page.get_by_role("link", name="Instructions"))
    words = page.get_by_label("Instructions", exact=True)
    keys.to(words)
    keys.type("Be brief.")
    # Leaving asks, and Escape stays.
    profile = page.get_by_role("link", name="Profile")
    keys.to(profile, "Shift+Tab")
    keys.press("Enter")
    expect(page.get_by_role("dialog", name="Leave without saving?")).to_be_visible()
    keys.press("Escape")
    keys.at(profile)
    keys.do(page.get_by_role("button", name="Save"))
    expect(page.get_by_text("Saved.")).to_be_visible()
    # Save has nothing to do any more; the focus is near it.
    keys.somewhere()
    keys.to(words, "Shift+Tab")
    keys.press("Control+a", "Delete")
    keys.do(page.get_by_role("button", name="Save"))

    keys.do(page.get_by_role("link", name="Users"))
    actions = page.get_by_role("button", name="Actions for ada")
    keys.do(actions)
    choose(keys, page, "Spend limit")
    dialog = page.get_by_role("dialog", name=re.compile("^Spend limit"))
    keys.at(dialog.get_by_label("Limit in $"))
    keys.press("Escape")
    keys.at(actions)
