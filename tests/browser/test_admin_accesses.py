"""Accesses to chats of other users: administrators give a reason, and the owner sees the access and the reason."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.browser_user import PASSWORD, Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript

REASON = "Grace asked me to look, naïve €"


def test_administrator_says_why_and_the_owner_sees_it(ada: Visitor, visit: Visit, script: ModelScript) -> None:
    ada.ask("POST", "/users", {"email": "grace@example.org", "name": "Grace", "password": PASSWORD})
    grace = visit("grace@example.org")
    chat = grace.chat("a secret of mine", title="Private", model_config_id=script.config(ada))
    grace.wait_for_rest(chat["id"])
    ada.allow("status of 403|WebSocket connection")

    page = ada.go(f"/c/{chat['id']}")
    expect(page.get_by_role("heading", name="This chat belongs to another user")).to_be_visible()
    expect(page.get_by_role("button", name="Read the chat")).to_be_disabled()
    page.get_by_role("textbox", name="Reason").fill(REASON)
    page.get_by_role("button", name="Read the chat").click()

    expect(page.get_by_role("feed", name="Conversation")).to_contain_text("a secret of mine")
    expect(page.get_by_text("Grace owns this chat. You can read it.")).to_be_visible()
    seen = grace.go(f"/c/{chat['id']}?panel=info")
    expect(seen.get_by_role("heading", name="Accesses by administrators")).to_be_visible()
    expect(seen.get_by_text(REASON)).to_have_count(1)
