"""Saved prompts: on their settings page, and in the message box after `/`."""

from __future__ import annotations

import re

import asyncpg
from playwright.sync_api import expect

from tests.browser.browser_user import PASSWORD, Visitor
from tests.browser.conftest import Visit
from tests.browser.faulty_connection import EventLoopThread
from tests.browser.hostile_texts import HOSTILE, damage

FILL = """
    INSERT INTO saved_prompts (owner_id, name, summary, text)
    SELECT $1, 'prompt-' || n, 'Summary ' || n, repeat('Long text ' || n || ' ', 200)
      FROM generate_series(1, 10000) n
"""
# Collects how long the page was busy at a time.
WATCH_TASKS = """() => {
    window.tasks = [];
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.tasks.push(entry.duration);
    }).observe({ type: "longtask" });
}"""


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


def test_ten_thousand_prompts_slow_nothing_down(ada: Visitor, backstage: EventLoopThread, database: str) -> None:
    me = ada.ask("GET", "/users/me")["id"]
    backstage.run(executed(database, FILL, me))
    try:
        page = ada.go("/settings/saved-prompts")
        table = page.get_by_role("region", name="Saved prompts")
        expect(table.get_by_role("row")).to_have_count(51)
        page.get_by_role("main").get_by_role("button", name="More").click()
        expect(table.get_by_role("row")).to_have_count(101)
        page.get_by_label("Search").fill("prompt-9876")
        expect(table.get_by_role("row")).to_have_count(2)
        page.get_by_role("button", name="Edit prompt-9876").click()
        expect(page.get_by_role("dialog").get_by_label("Text")).to_have_value(re.compile("^Long text 9876"))

        page = ada.go("/")
        box = page.get_by_role("textbox", name="Message")
        sizes: list[int] = []
        page.on("response", lambda answer: sizes.append(len(answer.body())) if "/saved-prompts" in answer.url else None)
        page.evaluate(WATCH_TASKS)
        box.press_sequentially("/prompt-1234")
        expect(page.get_by_role("option", name="/prompt-1234")).to_be_visible()
        expect(page.get_by_role("option")).to_have_count(1)
        # A few of them are read for each key, and no key waits for them.
        assert sizes
        assert max(sizes) < 8 * 1024
        assert page.evaluate("tasks.filter((ms) => ms > 1000)") == []
        page.keyboard.press("Enter")
        expect(box).to_have_value(re.compile("^Long text 1234"))
    finally:
        backstage.run(executed(database, "DELETE FROM saved_prompts WHERE owner_id = $1", me))


def test_hostile_texts_of_prompts_are_only_text(ada: Visitor) -> None:
    texts = {
        "markup": HOSTILE,
        "right-to-left": "\u202egnp.exe \u05e2\u05d1\u05e8\u05d9\u05ea",
        "emoji": "🗂" * 200,
        "one-word": "w" * 60_000,
        "escapes": "\x1b[31mred\x1b[0m \x07",
        "a" * 64: "A long name. {{" + "b" * 40 + "}} {{c}}",
    }
    for name, text in texts.items():
        ada.ask("PUT", f"/saved-prompts/{name}", {"text": text})
    page = ada.go("/settings/saved-prompts")
    table = page.get_by_role("region", name="Saved prompts")
    expect(table.get_by_role("row")).to_have_count(len(texts) + 1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert damage(page) == []
    assert ada.violations() == []

    page = ada.go("/")
    box = page.get_by_role("textbox", name="Message")
    for name, text in texts.items():
        box.fill(f"/{name}")
        page.get_by_role("option", name=f"/{name}", exact=False).first.click()
        if "{{" not in text:
            expect(box).to_have_value(text.strip())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        box.fill("")
    assert damage(page) == []
    for name in texts:
        ada.ask("DELETE", f"/saved-prompts/{name}")


async def executed(database: str, statement: str, *arguments: object) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(statement, *arguments)
    finally:
        await connection.close()


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
