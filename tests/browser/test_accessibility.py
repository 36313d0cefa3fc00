"""Accessibility of the page: keyboard only, reduced motion, system colors, 400% zoom, and the rules of axe."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import PASSWORD, Visitor
from tests.browser.conftest import Visit
from tests.browser.keyboard import Keys
from tests.browser.model_script import ModelScript

# Controls that stand out of the view sideways, unless what holds them scrolls.
OUTSIDE = """
    () => [...document.querySelectorAll("button, a, input, textarea, select, h1, h2, p")]
        .filter((one) => {
            const box = one.getBoundingClientRect();
            if (box.width === 0 || box.height === 0 || getComputedStyle(one).visibility === "hidden") return false;
            if (one.closest(".sr-only")) return false;
            for (let up = one.parentElement; up; up = up.parentElement) {
                if (/auto|scroll/.test(getComputedStyle(up).overflowX) && up.scrollWidth > up.clientWidth) return false;
            }
            return box.right > innerWidth + 1 || box.left < -1;
        })
        .map((one) => one.outerHTML.slice(0, 120))
"""
BESIDE_THE_MENU = "nav[aria-label=Settings] + div"
HELD_MS = 300
RUNNING = "document.getAnimations().filter((one) => one.playState === 'running').length"


def test_person_without_a_mouse_signs_in_writes_approves_and_changes_settings(
    visit: Visit, script: ModelScript
) -> None:
    ada = visit()
    model = script.config(ada)
    ada.ask("PATCH", "/me/settings", {"approval_rules": [{"tool": "list_templates", "action": "ask"}]})
    script.plays("by keys", Answer(calls=[FakeCall("list_templates", "{}")]), Answer(text="Thank you for the keys."))
    someone = visit(None)
    page = someone.go("/login")
    someone.tab_to(page.get_by_label("Email or username"))
    page.keyboard.type("ada")
    someone.tab_to(page.get_by_label("Password"))
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")

    # A new chat: the box has the focus already.
    box = page.get_by_role("textbox", name="Message")
    expect(box).to_be_focused()
    choose_model(page, someone, model)
    someone.tab_to(box)
    page.keyboard.type("by keys")
    someone.tab_to(page.get_by_role("button", name="Send message"))
    page.keyboard.press("Enter")
    approve = page.get_by_role("button", name="Approve", exact=True)
    someone.tab_to(approve)
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_contain_text("Thank you for the keys.")
    ada.ask("PATCH", "/me/settings", {"approval_rules": None})

    # A question of the agent, which plans now.
    script.plays("ask me by keys", Answer(calls=[FakeCall("ask_user_question", QUESTION)]))
    someone.tab_to(page.get_by_role("button", name="Plan", exact=True))
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Plan", exact=True)).to_have_attribute("aria-pressed", "true")
    someone.tab_to(box)
    page.keyboard.type("ask me by keys")
    page.keyboard.press("Enter")
    someone.tab_to(page.get_by_role("radio", name=re.compile("^Red")))
    page.keyboard.press("2")
    expect(page.get_by_role("radio", name=re.compile("^Blue"))).to_be_checked()
    someone.tab_to(page.get_by_role("button", name="Send answer"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("feed").get_by_text("Blue", exact=True)).to_be_visible()
    expect(page.get_by_role("feed").get_by_text("Understood.", exact=True)).to_be_visible()

    page.keyboard.press("Control+k")
    page.keyboard.type("settings")
    expect(page.get_by_role("option", name="Settings")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    someone.tab_to(page.get_by_role("link", name="Appearance"))
    page.keyboard.press("Enter")
    system = page.get_by_role("radio", name=re.compile("^System"))
    someone.tab_to(system)
    # As long as a finger stays: a key that is up again in no time only moves the focus.
    page.keyboard.press("ArrowDown", delay=HELD_MS)
    expect(system).not_to_be_checked()
    page.keyboard.press("ArrowUp", delay=HELD_MS)
    expect(system).to_be_checked()
    # The list of shortcuts opens and closes, and the focus goes back to where it was.
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(system).to_be_focused()


def choose_model(page: Page, visitor: Visitor, model: str) -> None:
    """Select the model of the test in the picker."""
    names = {
        each["id"]: each["display_name"]
        for provider in visitor.ask("GET", "/models")["providers"]
        for each in provider["models"]
    }
    visitor.tab_to(page.get_by_role("button", name=re.compile("^Model:")))
    page.keyboard.press("Enter")
    page.keyboard.type(names[model])
    expect(page.get_by_role("option", name=names[model])).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name=f"Model: {names[model]}")).to_be_visible()


def test_nothing_moves_for_people_who_asked_for_less_motion(visit: Visit, script: ModelScript) -> None:
    calm, other = visit(reduced_motion="reduce"), visit()
    cue = script.cue()
    script.plays("wait for me", [cue, Answer(text="Here it is, all of it at once.")])
    chat = calm.chat("wait for me", title="Less motion", model_config_id=script.config(calm))
    for visitor in (calm, other):
        page = visitor.go(f"/c/{chat['id']}")
        expect(page.get_by_text(re.compile("^Waiting for the model"))).to_be_visible()

    assert other.page.evaluate(RUNNING) > 0
    assert calm.page.evaluate(RUNNING) == 0
    cue.give()

    for visitor in (calm, other):
        expect(visitor.page.get_by_role("main")).to_contain_text("all of it at once.")


def test_colours_of_the_system_leave_states_visible(visit: Visit, script: ModelScript) -> None:
    ada = visit(forced_colors="active")
    chat = ada.chat("hello", title="In the system's colours", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}?panel=info")
    outline = "(element) => getComputedStyle(element).outlineStyle"

    expect(page.get_by_role("heading", level=1, name="In the system's colours")).to_be_visible()
    assert page.get_by_role("link", name=re.compile("In the system's colours")).evaluate(outline) == "solid"
    assert page.get_by_role("tab", selected=True).evaluate(outline) == "solid"
    page.goto(f"{ada.url}/settings/appearance")
    chosen = page.get_by_role("radio", checked=True).first
    expect(chosen).to_be_visible()
    mark = chosen.evaluate("(one) => getComputedStyle(one.firstElementChild).backgroundColor")
    assert mark != chosen.evaluate("(one) => getComputedStyle(one).backgroundColor")


def test_zoom_of_four_hundred_per_cent_loses_nothing(visit: Visit) -> None:
    ada = visit(viewport={"width": 320, "height": 256})
    chat = ada.chat("hello", title="Four times as large, and with a title that does not fit")
    ada.wait_for_rest(chat["id"])
    found = {}
    for path in ("/", f"/c/{chat['id']}", "/settings/models", "/settings/users", "/usage", "/search?q=hello"):
        page = ada.go(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        if path.startswith("/settings"):
            expect(page.get_by_role("table")).to_be_visible()
        found[path] = page.evaluate(OUTSIDE)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    page = ada.go(f"/c/{chat['id']}")
    expect(page.get_by_role("textbox", name="Message")).to_be_in_viewport()
    expect(page.get_by_role("button", name="Send message")).to_be_in_viewport()
    # What lies over the page fits as well, and what it is for is in reach.
    page.get_by_role("button", name="Show the panel").click()
    expect(page.get_by_role("complementary", name="Panel")).to_be_visible()
    found["panel"] = page.evaluate(OUTSIDE)
    page.get_by_role("button", name="Close the panel").click()
    page.get_by_role("button", name="Actions for this chat").click()
    page.get_by_role("menuitem", name="Share").click()
    done = page.get_by_role("dialog").get_by_role("button", name="Done")
    expect(done).to_be_visible()
    found["dialog"] = page.evaluate(OUTSIDE)
    done.click()
    page.get_by_role("button", name="Actions for this chat").click()
    page.get_by_role("menuitem", name="Find in this chat").click()
    expect(page.get_by_role("textbox", name="Find in this chat")).to_be_focused()
    page.keyboard.type("hello")
    expect(page.get_by_role("search")).to_contain_text("1/")
    found["find"] = page.evaluate(OUTSIDE)
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("option").first).to_be_in_viewport()
    found["palette"] = page.evaluate(OUTSIDE)

    assert {path: outside for path, outside in found.items() if outside} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_barrier_on_any_page(ada: Visitor, script: ModelScript, theme: str) -> None:
    ada.ask("PATCH", "/me/settings", {"display": {"theme": theme}})
    script.plays(f"ask me, {theme}", Answer(calls=[FakeCall("ask_user_question", QUESTION)]))
    chat = ada.chat(
        f"ask me, {theme}", title=f"Read by axe, {theme}", model_config_id=script.config(ada), plan_mode=True
    )
    ada.wait_for_rest(chat["id"])
    found = {}
    rules = () if theme == "light" else ("color-contrast",)  # only colours are others

    def look(name: str) -> None:
        expect(ada.page.locator("html")).to_have_attribute("data-theme", theme)
        if wrong := ada.violations(*rules):
            found[name] = wrong

    page = ada.go("/")
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    look("new chat")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog")).to_be_visible()
    look("palette")
    page.keyboard.press("Escape")
    page.get_by_role("link", name=re.compile(f"Read by axe, {theme}")).click()
    expect(page.get_by_role("button", name="Send answer")).to_be_visible()
    page.get_by_role("button", name="Show the panel").click()
    look("question and panel")
    page.get_by_role("button", name="Actions for this chat").click()
    expect(page.get_by_role("menu")).to_be_visible()
    look("menu")
    page.keyboard.press("Escape")
    page.goto(f"{ada.url}/search?q=axe")
    expect(page.get_by_role("heading", level=1, name="Search")).to_be_visible()
    look("search")
    page.goto(f"{ada.url}/usage")
    expect(page.get_by_role("heading", level=1, name="Your usage")).to_be_visible()
    look("usage")
    page.goto(f"{ada.url}/settings/profile")
    menu = page.get_by_role("navigation", name="Settings")
    # The last to come: it depends on what the server has.
    expect(menu.get_by_role("link", name="Your workspaces")).to_be_visible()
    for name in menu.get_by_role("link").all_inner_texts():
        menu.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        look(name)
        if theme == "light" and (wrong := Keys(ada).walk(BESIDE_THE_MENU)):
            found[f"{name}, by Tab"] = wrong
    ada.ask("PATCH", "/me/settings", {"display": {"theme": "system"}})

    assert found == {}


QUESTION = """{"questions": [{"header": "Colour", "question": "Which colour?", "options": [
    {"label": "Red", "description": "Like a rose."}, {"label": "Blue", "description": "Like the sky."}]}]}"""
