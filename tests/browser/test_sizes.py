"""Texts of a size that no browser should have to carry at once."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.rested import Shelf
from tests.browser.visit import Visitor


def test_answer_of_five_megabytes_is_shown_in_portions(ada: Visitor, shelf: Shelf) -> None:
    paragraph = "Words that **go on** and on, and `then` some more of them.\n\n"
    chat = shelf.chat(ada, "Five megabytes", answer=paragraph * (5_000_000 // len(paragraph)))
    page = ada.go(f"/c/{chat}")

    expect(page.get_by_text("4.7 MB more.")).to_be_in_viewport()
    shown = len(page.get_by_role("feed").inner_text())
    page.get_by_role("button", name="Show more").click()
    expect(page.get_by_text("4.6 MB more.")).to_be_attached()

    assert 50_000 < shown < 200_000
    assert len(page.get_by_role("feed").inner_text()) > shown
