"""Search in a chat that is much longer than the part that the page has loaded."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from playwright.sync_api import Page, expect

from rookery.testing.fake_completions import Answer
from tests.browser.browser_user import Visitor, wait_until
from tests.browser.model_script import ModelScript
from tests.browser.stored_chats import RARE, StoredChats

MESSAGES = 5_000
# Where `rested` says so, newest first. The last row says it, too.
PLACES = (4_004, 3_005, 2_006, 1_007, 8)
# The words that are marked as found, in rows that are in view, and those of them that are the one that was gone to.
MARKED = """
    (name) => [...(CSS.highlights.get(name) ?? [])]
        .filter((range) => range.startContainer.isConnected)
        .map((range) => range.startContainer.parentElement.closest("article").innerText)
"""


def hit(page: Page, place: int) -> None:
    """Check that this row is visible and that the word in it is marked."""
    row = page.get_by_role("feed").get_by_text(f"I saw a heron at {place}.", exact=True)
    expect(row).to_be_in_viewport()
    wait_until(page, f"() => ({MARKED})('find-here').some((text) => text.includes('heron at {place}.'))")


def test_key_finds_text_that_is_not_loaded_and_walks_through_all_of_it(ada: Visitor, stored: StoredChats) -> None:
    chat = stored.chat(ada, "Sought through", messages=MESSAGES, answer=f"Once more: a {RARE}.")
    page = ada.go(f"/c/{chat}")
    last = page.get_by_text(f"Once more: a {RARE}.")
    expect(last).to_be_in_viewport()

    page.keyboard.press("Control+f")
    expect(page.get_by_role("textbox", name="Find in this chat")).to_be_focused()
    page.keyboard.type(RARE)
    count = page.get_by_role("search").get_by_role("status")
    expect(count).to_have_text("1/6")
    page.keyboard.press("Enter")
    expect(last).to_be_in_viewport()
    for number, place in enumerate(PLACES, start=2):
        page.keyboard.press("Enter")
        hit(page, place)
        expect(count).to_have_text(f"{number}/6")
    # Around the corner, and back again.
    page.keyboard.press("Enter")
    expect(last).to_be_in_viewport()
    expect(count).to_have_text("1/6")
    for number, place in ((6, 8), (5, 1_007)):
        page.keyboard.press("Shift+Enter")
        hit(page, place)
        expect(count).to_have_text(f"{number}/6")
    page.keyboard.press("Escape")
    expect(page.get_by_role("search")).to_have_count(0)
    hit_row = page.get_by_text("I saw a heron at 1007.", exact=True)
    expect(hit_row).to_be_in_viewport()
    assert page.evaluate("CSS.highlights.size") == 0


def test_link_to_an_old_message_and_what_a_search_found_open_at_it(ada: Visitor, stored: StoredChats) -> None:
    chat = stored.chat(ada, "Linked to", messages=MESSAGES)
    found = ada.ask("GET", f"/chats/{chat}/search?q={RARE}")["items"]
    assert len(found) == len(PLACES)
    page = ada.go(f"/c/{chat}?m={found[2]['message_id']}")
    row = page.get_by_text("I saw a heron at 2006.", exact=True)
    expect(row).to_be_in_viewport()

    # In the same chat, to another message of it.
    page.keyboard.press("Control+k")
    page.keyboard.type(f"{RARE} 1007")
    option = page.get_by_role("option", name=re.compile("Linked to"))
    expect(option).to_contain_text("1007")
    page.keyboard.press("Enter")

    expect(page.get_by_text("I saw a heron at 1007.", exact=True)).to_be_in_viewport()
    expect(row).not_to_be_in_viewport()


def test_word_is_found_within_two_seconds_of_its_message(ada: Visitor, script: ModelScript) -> None:
    script.plays("what is a zyzzyva", Answer(text="A weevil of tropical America."))
    chat = ada.chat("hello", title="Beetles", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    page.get_by_role("textbox", name="Message").fill("what is a zyzzyva")
    page.keyboard.press("Enter")
    expect(page.get_by_role("feed")).to_contain_text("A weevil of tropical America.")
    said = max(one["created_at"] for one in ada.ask("GET", f"/chats/{chat['id']}/messages?limit=10")["items"])

    at = at_end = datetime.fromisoformat(said)
    while not ada.ask("GET", "/chats?q=weevil")["items"] and at_end - at < timedelta(seconds=10):
        at_end = datetime.now(UTC)
    # Half a second for the request itself, on a busy machine.
    assert at_end - at < timedelta(seconds=2.5), "the index is behind the messages"
    page.keyboard.press("Control+k")
    page.keyboard.type("weevil")
    expect(page.get_by_role("option", name=re.compile("Beetles"))).to_be_visible()
