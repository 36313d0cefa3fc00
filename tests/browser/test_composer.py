"""The message box: writing and editing, and announcements for users of screen readers."""

from __future__ import annotations

import re

from playwright.sync_api import FilePayload, Locator, Page, expect

from rookery.testing.fake_completions import Answer
from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript
from tests.browser.test_broken_connections import wait_until

PASTE = """(text) => {
    const data = new DataTransfer();
    data.setData("text/plain", text);
    const paste = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
    document.querySelector("[data-composer]").dispatchEvent(paste);
}"""
MIDDLE = "(one) => (one.getBoundingClientRect().top + one.getBoundingClientRect().bottom) / 2"


def test_long_pastes_odd_files_and_edits_of_prompts_lose_nothing(ada: Visitor, script: ModelScript) -> None:
    chat = ada.chat("first prompt", title="Composing", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    box, files = page.get_by_role("textbox", name="Message"), page.get_by_role("list", name="Attachments")
    lines = "\n".join(f"line {number}" for number in range(60))

    box.focus()
    page.evaluate(PASTE, lines)
    expect(files).to_contain_text("pasted-60-lines.txt")
    expect(box).to_have_value("")
    files.get_by_role("button", name="Insert as text").click()
    expect(box).to_have_value(lines)
    expect(files).to_have_count(0)
    box.fill("my own draft")

    ada.allow("status of 400")
    wrong = FilePayload(name="tool.exe", mimeType="application/x-msdownload", buffer=b"MZ\x00\x01")
    page.locator("input[type=file]").set_input_files(wrong)
    expect(files).to_contain_text("tool.exe")
    expect(files).to_contain_text("not accepted")
    files.get_by_role("button", name="Remove tool.exe").click()

    prompt = page.get_by_role("article").filter(has_text="first prompt").first
    prompt.hover()
    prompt.get_by_role("button", name="Edit and resend").click()
    expect(box).to_have_value("first prompt")
    expect(page.get_by_text("Sending this edit removes 1 later message.")).to_be_visible()
    box.press("Escape")
    expect(box).to_have_value("my own draft")


def test_one_of_three_tabs_tells_of_a_turn_that_ended(ada: Visitor, script: ModelScript) -> None:
    cue = script.cue()
    script.plays("tell me later", [Answer(text="Not yet "), cue, Answer(text="but now.")])
    chat = ada.chat("tell me later", title="Not told", model_config_id=script.config(ada))
    tabs = [ada.page, ada.open_tab(), ada.open_tab()]
    for tab in tabs:
        tab.goto(f"{ada.url}/usage")
        expect(tab.get_by_role("link", name=re.compile("Not told"))).to_be_visible()
    ada.ask("PATCH", f"/chats/{chat['id']}", {"title": "Told once"})
    for tab in tabs:
        expect(row(tab)).to_contain_text("Working")

    cue.give()
    ada.wait_for_rest(chat["id"])
    for tab in tabs:
        expect(row(tab)).not_to_contain_text("Working")

    def told() -> int:
        return sum(tab.get_by_text("“Told once” is done.").count() for tab in tabs)

    wait_until(ada.page, lambda: told() > 0)
    assert told() == 1


def row(tab: Page) -> Locator:
    return tab.get_by_role("link", name=re.compile("Told once"))


def test_controls_of_the_composer_are_one_row_on_a_phone_for_any_model_name(visit: Visit) -> None:
    phone = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = phone.go("/")
    model = page.get_by_role("button", name=re.compile("^Model: "))
    expect(page.get_by_role("button", name=re.compile("^Workspace: "))).to_be_visible()
    model.evaluate("(button) => { button.firstElementChild.textContent = 'A model of a long name '.repeat(9) }")

    send = page.get_by_role("button", name="Send message")
    middles = [one.evaluate(MIDDLE) for one in (model, send)]
    assert abs(middles[0] - middles[1]) < 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(send).to_be_in_viewport(ratio=1)
