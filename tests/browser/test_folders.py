"""Folders of the chat list: with the menu, with the mouse, and on a phone."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.hostile_texts import HOSTILE as HOSTILE_MARKUP
from tests.browser.hostile_texts import damage
from tests.browser.model_script import ModelScript

HOSTILE = '<img src=x onerror="alert(1)"> \u202egnp.exe'
# Names that the server keeps. Each must stay one row, in its place, and be only text.
NAMES = [
    HOSTILE_MARKUP,
    "../../etc/passwd",
    "עברית ١٢٣ abc",
    "👩‍👩‍👧‍👦" * 8,
    "🗂" * 60,
    "Z" + "\u0335\u0322\u0321" * 19,
    "x" * 60,
    "'; DROP TABLE folders; --",
    "toString",
    "__proto__",
]
REFUSED = ["", " \t ", "\u200b", "\x1b[31mred", "a\u0000b", "🗂" * 200, "y" * 5000]


POST_FOLDER = """async ([name, key]) => {
    const answer = await fetch("/api/v1/folders", {
        method: "POST",
        body: JSON.stringify({ name }),
        headers: { "content-type": "application/json", "rookery-session-key": key },
    });
    return [answer.status, (await answer.json()).fields.map((each) => each.field)];
}"""


def clear(visitor: Visitor) -> None:
    for folder in visitor.ask("GET", "/folders")["items"]:
        visitor.ask("DELETE", f"/folders/{folder['id']}")


def menu(page: Page, title: str, item: str) -> None:
    page.get_by_role("button", name=f"Actions for {title}", exact=True).click()
    page.get_by_role("menuitem", name=item).click()


def test_folder_is_created_filters_the_list_and_is_deleted(ada: Visitor, script: ModelScript) -> None:
    clear(ada)
    inside = ada.chat("say hello", title="Invoice parser", model_config_id=script.config(ada))
    ada.chat("say hello", title="Garden plan", model_config_id=script.config(ada))
    page = ada.go("/")
    folders = page.get_by_role("region", name="Folders")
    chats = page.get_by_role("navigation", name="Chats")

    menu(page, "Invoice parser", "Move to folder")
    dialog = page.get_by_role("dialog", name="New folder")
    dialog.get_by_label("Name").fill("Work")
    dialog.get_by_role("radio", name="Purple").click()
    assert ada.violations() == []
    dialog.get_by_role("button", name="Create").click()

    expect(page.get_by_text("“Invoice parser” is in “Work”.")).to_be_visible()
    work = folders.get_by_role("button", name=re.compile("^Work"))
    expect(work).to_contain_text("1")
    assert ada.ask("GET", f"/chats/{inside['id']}")["folder_id"] == ada.ask("GET", "/folders")["items"][0]["id"]

    work.click()
    expect(work).to_have_attribute("aria-pressed", "true")
    expect(chats.get_by_role("link", name=re.compile("Garden plan"))).to_be_hidden()
    expect(chats.get_by_role("link", name=re.compile("Invoice parser"))).to_be_visible()
    expect(page.get_by_role("list", name="Active filters")).to_have_text("Folder: Work")
    assert ada.violations() == []
    page.reload()
    expect(chats.get_by_role("link", name=re.compile("Invoice parser"))).to_be_visible()
    expect(chats.get_by_role("link", name=re.compile("Garden plan"))).to_be_hidden()

    menu(page, "folder Work", "Rename or color")
    dialog = page.get_by_role("dialog", name="Edit folder")
    dialog.get_by_label("Name").fill("Customers")
    dialog.get_by_role("button", name="Save").click()
    expect(folders.get_by_role("button", name=re.compile("^Customers"))).to_be_visible()

    menu(page, "folder Customers", "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(folders).to_be_hidden()
    expect(chats.get_by_role("link", name=re.compile("Garden plan"))).to_be_visible()
    assert ada.ask("GET", f"/chats/{inside['id']}")["folder_id"] is None


def test_chat_is_dragged_into_a_folder(ada: Visitor, script: ModelScript) -> None:
    clear(ada)
    folder = ada.ask("POST", "/folders", {"name": "Dropped here", "color": "green"})
    chat = ada.chat("say hello", title="Dragged chat", model_config_id=script.config(ada))
    page = ada.go("/")
    target = page.get_by_role("region", name="Folders").get_by_role("button", name=re.compile("^Dropped here"))

    page.get_by_role("link", name=re.compile("Dragged chat")).drag_to(target)

    expect(page.get_by_text("“Dragged chat” is in “Dropped here”.")).to_be_visible()
    assert ada.ask("GET", f"/chats/{chat['id']}")["folder_id"] == folder["id"]


def test_new_chat_of_an_open_folder_belongs_to_it(ada: Visitor) -> None:
    clear(ada)
    folder = ada.ask("POST", "/folders", {"name": "Fresh"})
    page = ada.go(f"/?folder={folder['id']}")

    page.get_by_role("textbox", name="Message").fill("hello from the folder")
    page.get_by_role("button", name="Send message").click()

    page.wait_for_url(re.compile(r"/c/.*folder="))
    expect(page.get_by_role("region", name="Folders").get_by_role("button", name=re.compile("^Fresh"))).to_contain_text(
        "1"
    )


def test_hostile_name_is_shown_as_text(ada: Visitor) -> None:
    clear(ada)
    made = ada.ask("POST", "/folders", {"name": HOSTILE})
    page = ada.go("/")

    assert "\u202e" not in made["name"]
    expect(page.get_by_role("region", name="Folders").get_by_text(made["name"])).to_be_visible()
    assert page.locator("nav img[src=x]").count() == 0
    clear(ada)


def test_hostile_names_stay_in_their_rows_and_are_found(ada: Visitor, visit: Visit, script: ModelScript) -> None:
    clear(ada)
    made = [ada.ask("POST", "/folders", {"name": name}) for name in NAMES]
    chat = ada.chat("say hello", title="In a folder", model_config_id=script.config(ada))
    page = ada.go("/")
    folders = page.get_by_role("region", name="Folders")
    expect(folders.get_by_role("listitem")).to_have_count(len(NAMES))
    heights = folders.get_by_role("listitem").evaluate_all("(rows) => rows.map((row) => row.offsetHeight)")
    assert max(heights) == min(heights)
    menu(page, "In a folder", "Move to folder")
    dialog = page.get_by_role("dialog", name="Move to folder")
    for folder in made:
        expect(dialog.get_by_text(folder["name"], exact=True)).to_be_attached()
    assert dialog.evaluate("(element) => element.scrollWidth <= element.clientWidth")
    page.keyboard.press("Escape")

    for folder in made:
        ada.ask("PATCH", f"/chats/{chat['id']}", {"folder_id": folder["id"]})
        page.goto(f"{ada.url}/?folder={folder['id']}")
        expect(page.get_by_role("list", name="Active filters")).to_have_text(f"Folder: {folder['name']}")
        expect(page.get_by_role("link", name=re.compile("In a folder"))).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert damage(page) == []

    ada.allow("status of 400")
    for name in REFUSED:
        status, fields = page.evaluate(POST_FOLDER, [name, ada.headers["Rookery-Session-Key"]])
        assert (status, fields) == (400, ["name"]), name
    phone = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    small = phone.go("/")
    small.get_by_role("button", name="Chats", exact=True).tap()
    expect(small.get_by_role("region", name="Folders").get_by_role("listitem")).to_have_count(len(NAMES))
    assert small.evaluate("document.documentElement.scrollWidth <= innerWidth")
    clear(ada)


def test_second_folder_of_the_same_name_is_refused_in_the_dialog(ada: Visitor) -> None:
    clear(ada)
    ada.ask("POST", "/folders", {"name": "Twice"})
    ada.allow("status of 409")
    page = ada.go("/")

    page.get_by_role("button", name="New folder").click()
    dialog = page.get_by_role("dialog", name="New folder")
    dialog.get_by_label("Name").fill("TWICE")
    dialog.get_by_role("button", name="Create").click()

    expect(dialog.get_by_text("You already have a folder named “TWICE”. Choose another name.")).to_be_visible()
    clear(ada)


def test_folders_work_on_a_phone(ada: Visitor, visit: Visit, script: ModelScript) -> None:
    clear(ada)
    ada.ask("POST", "/folders", {"name": "Pocket", "color": "red"})
    ada.chat("say hello", title="Moved by thumb", model_config_id=script.config(ada))
    phone = visit("ada", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = phone.go("/")
    page.get_by_role("button", name="Chats", exact=True).tap()

    page.get_by_role("button", name="Actions for Moved by thumb").tap()
    page.get_by_role("menuitem", name="Move to folder").tap()
    dialog = page.get_by_role("dialog", name="Move to folder")
    dialog.get_by_text("Pocket").tap()
    dialog.get_by_role("button", name="Move", exact=True).tap()

    pocket = page.get_by_role("region", name="Folders").get_by_role("button", name=re.compile("^Pocket"))
    expect(pocket).to_contain_text("1")
    assert phone.violations() == []
    pocket.tap()
    expect(page.get_by_role("list", name="Active filters")).to_have_text("Folder: Pocket")
    expect(pocket).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("link", name=re.compile("Moved by thumb"))).to_be_visible()
    clear(ada)
