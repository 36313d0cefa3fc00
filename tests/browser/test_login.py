"""Login and logout in a browser."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.browser_user import PASSWORD
from tests.browser.conftest import Visit


def test_user_who_signs_in_gets_to_the_requested_page(visit: Visit) -> None:
    stranger = visit(None)
    stranger.allow("status of 401")
    page = stranger.go("/settings/appearance?group=status")

    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Email or username").fill("ada")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("The login or the password is")).to_be_visible()
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")

    expect(page.get_by_role("button", name="Account of Ada")).to_be_visible()
    assert page.url.endswith("/settings/appearance?group=status")


def test_signing_out_ends_the_session_and_leads_to_the_login_page(visit: Visit) -> None:
    ada = visit(own=True)
    page = ada.go("/")

    page.get_by_role("button", name="Account of Ada").click()
    page.get_by_role("menuitem", name="Sign out").click()

    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert ada.context.request.get(f"{ada.url}/api/v1/users/me", headers=ada.headers).status == 401


def test_session_that_ends_elsewhere_is_renewed_over_the_page(visit: Visit) -> None:
    ada = visit(own=True)
    ada.allow("status of 401")
    page = ada.go("/search")
    page.get_by_label("Words", exact=True).fill("what I typed")

    for session in ada.ask("GET", "/auth/sessions")["items"]:
        if session["current"]:
            ada.ask("DELETE", f"/auth/sessions/{session['id']}")

    dialog = page.get_by_role("dialog", name="Sign in again")
    dialog.get_by_label("Password").fill(PASSWORD)
    dialog.get_by_role("button", name="Sign in").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_label("Words", exact=True)).to_have_value("what I typed")
